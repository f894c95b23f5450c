//! Executes the engine's commands; [`crate::commands`] lists them.

use vramscope_insight::group::GroupBy;
use vramscope_trace::DeviceId;

use crate::bands::Band;
use crate::editor_link::EditorTemplate;
use crate::model::{Model, PeakKind};
use crate::units;
use crate::view::searches::KeptInView;
use crate::views::ViewKind;
use crate::views::address::parse_address;

use super::core::{Session, SessionReport};

/// Maximum number of rows of a list that count as in view; further ones that the page reports are
/// ignored.
const MAX_ROWS_IN_VIEW: u64 = 500;
/// Number of rows that a long list has in the page above, and again below, the rows in view.
const SPARE_ROWS: u64 = 8;

/// Parses a command's argument as a number; the error names the command.
pub(super) fn number<T: std::str::FromStr>(command: &str, argument: &str) -> Result<T, String> {
    argument.parse().map_err(|_| format!("{command}: {argument:?} is not a number"))
}

/// Parses a command's argument as an address, in hexadecimal with `0x` or in decimal; the error
/// names the command.
fn address_of(command: &str, argument: &str) -> Result<u64, String> {
    match argument.strip_prefix("0x") {
        Some(digits) => {
            u64::from_str_radix(digits, 16).map_err(|_| format!("{command}: {argument:?} is not an address"))
        }
        None => number(command, argument),
    }
}

impl Session {
    /// Executes a command with its arguments. `clock_ms` is the page's clock.
    ///
    /// # Errors
    /// If an argument is invalid, or the recording cannot be read.
    pub fn execute(&mut self, command: &str, clock_ms: f64, report: &mut SessionReport) -> Result<(), String> {
        let (name, argument) = command.split_once(' ').unwrap_or((command, ""));
        let text = |error: vramscope_trace::FormatError| error.to_string();
        if self.timeline_command(name, argument)? || self.heatmap_command(name, argument)? {
            return Ok(());
        }
        let model = &mut self.model;
        match name {
            "play" => model.play_or_pause(clock_ms).map_err(text)?,
            "step" => {
                let (before, events) = (model.state().event(), number(name, argument)?);
                model.step(events).map_err(text)?;
                if model.state().event() == before && !model.is_loading() {
                    let (edge, other) = if events > 0 { ("last", "later") } else { ("first", "earlier") };
                    let recording = model.recording();
                    let is_at_edge = before == if events > 0 { recording.end_event() } else { recording.first_event() };
                    return Err(match is_at_edge {
                        true => format!("this is the {edge} moment of the recording"),
                        false => format!("the shown device has no {other} event"),
                    });
                }
            }
            "seek" => match units::parse_count(argument) {
                Some(event) => model.seek(event).map_err(text)?,
                // Replaces invalid text in the field with the current event number.
                None => model.moment_changed(),
            },
            "first" => model.go_to_edge(false).map_err(text)?,
            "last" => model.go_to_edge(true).map_err(text)?,
            "peak" => {
                model.go_to_peak(PeakKind::Allocated).map_err(text)?;
                self.panes.show(ViewKind::Peak);
            }
            "peak-reserved" => model.go_to_peak(PeakKind::Reserved).map_err(text)?,
            "slower" => change_speed(model, false)?,
            "faster" => change_speed(model, true)?,
            "speed-kind" => model.playback.change_kind(),
            "speed" => model.playback.set_speed(number(name, argument)?),
            "select" => self.select_neighbor(argument == "1", false)?,
            "select-segment" => self.select_neighbor(argument == "1", true)?,
            "deselect-allocation" => model.select(None),
            // The heatmap handles the command if its pane was used last.
            "layout" if self.panes.surface_of(ViewKind::Allocations).is_none() => {
                return Err("no pane shows a view with another layout: the heatmap or allocations".to_owned());
            }
            "layout" => self.change_allocations_layout(),
            "deselect" if model.selection().is_some() => model.select(None),
            "deselect" => {
                if !self.deselect_group() {
                    self.analysis.options(ViewKind::Flame).number = None;
                }
            }
            // Without the path id of a node, all call stacks are shown.
            "flame-zoom" => {
                let zoom = if argument.is_empty() { None } else { Some(number(name, argument)?) };
                let options = self.analysis.options(ViewKind::Flame);
                (options.number, options.rows.0) = (zoom, 0);
            }
            "select-allocation" => {
                let (address, rest) = argument.split_once(' ').unwrap_or((argument, ""));
                let (since, moment) = rest.split_once(' ').unwrap_or((rest, ""));
                let address = address_of(name, address)?;
                model.select_allocation(address, number(name, since)?);
                if !moment.is_empty() {
                    model.seek(number(name, moment)?).map_err(text)?;
                    self.change_heatmap_view(|layout, _| layout.reveal(address).unwrap_or(layout.view));
                }
            }
            "event" => self.go_to_event(argument == "1")?,
            "range-selection" => self.select_range_of_selection()?,
            "device" => model.set_device(DeviceId(number(name, argument)?)).map_err(text)?,
            "device-next" => {
                let devices: Vec<DeviceId> = model.recording().devices().collect();
                let next = devices.iter().find(|device| **device > model.device()).or(devices.first());
                let next = next.filter(|next| **next != model.device()).ok_or("this recording has only one device")?;
                model.set_device(*next).map_err(text)?;
            }
            "band" => {
                if let Some(band) = Band::ALL.into_iter().find(|band| band.id() == argument) {
                    model.toggle_band(band);
                }
            }
            "view" => {
                let view = match argument {
                    // The view whose filter gets the typed text.
                    "search" => self.panes.views().into_iter().rev().flatten().find(|view| view.is_searched()),
                    _ => Some(view(argument)?),
                };
                let view = view.unwrap_or(ViewKind::List);
                self.panes.show(view);
                self.view_shown(view);
            }
            "pane" => {
                let (pane, choice) = argument.split_once(' ').unwrap_or((argument, ""));
                let view = view(choice)?;
                self.panes.set(usize::from(pane == "1"), view);
                self.view_shown(view);
            }
            "by" => {
                let (view, options) = self.view_options(argument)?;
                let by = GroupBy::from_name(&options).ok_or_else(|| format!("there is no grouping by {options:?}"))?;
                self.analysis.options(view).by = Some(by);
                if view == ViewKind::Flame {
                    self.analysis.options(view).number = None;
                }
            }
            "mode" => {
                let (view, mode) = self.view_options(argument)?;
                self.analysis.options(view).mode = Some(mode);
                self.show_first_row(view);
            }
            "filter" => {
                let (mut view, filter) = self.view_options(argument)?;
                // Any other search than for an address is one in the list.
                if view == ViewKind::Address && !filter.trim().is_empty() && parse_address(&filter).is_none() {
                    view = ViewKind::List;
                    self.panes.show(view);
                    self.view_shown(view);
                }
                self.analysis.options(view).filter = filter;
                self.show_first_row(view);
            }
            "number" => {
                let (view, value) = self.view_options(argument)?;
                self.analysis.options(view).number = Some(number(name, &value)?);
            }
            "sort" => {
                let (view, column) = self.view_options(argument)?;
                let options = self.analysis.options(view);
                let is_descending = options.sort.as_ref().is_none_or(|(by, order)| *by != column || !order);
                options.sort = Some((column, is_descending));
                self.show_first_row(view);
            }
            // Without a name, steps are recognized.
            "step-span" => self.analysis.step_span = Some(argument.to_owned()).filter(|name| !name.is_empty()),
            "scroll" => self.scroll_pane(argument)?,
            "reveal" => {
                let view = self.view_or_active(argument)?;
                if self.kept_in_view(view).is_none() {
                    return Err("this view has no list that follows the moment".to_owned());
                }
                self.view_shown(view);
            }
            "copy-table" => {
                let view = self.view_or_active(argument)?;
                self.copy_table(view, report)?;
            }
            "copy-details" => self.copy_details(report)?,
            "copy-stack" => self.copy_stack(report)?,
            "save-picture" => self.save_picture(argument, report)?,
            // Without a template, frames are no links.
            "editor-template" => {
                self.editor = if argument.is_empty() { None } else { Some(EditorTemplate::parse(argument)?) };
            }
            "undo" => {
                let link = self.view_history.undo().ok_or("there is no change of the view to undo")?;
                self.restore(&link).map_err(text)?;
            }
            "redo" => {
                let link = self.view_history.redo().ok_or("there is no change of the view to redo")?;
                self.restore(&link).map_err(text)?;
            }
            "swap" if self.panes.count() < 2 => return Err("there is only one pane: press | for two".to_owned()),
            "swap" => self.panes.swap(),
            "split" => self.panes.split(),
            "what-if" | "find-problems" | "save-findings" | "finding" => self.execute_job_command(name, argument)?,
            "pin-moment" | "compare-with" | "compare-close" => self.execute_comparing(name, argument)?,
            _ => {
                report.commands.push(command.to_owned());
                return Ok(());
            }
        }
        self.model.moment_changed();
        Ok(())
    }

    /// Splits the argument of a command into the view that it concerns and the rest.
    fn view_options(&self, argument: &str) -> Result<(ViewKind, String), String> {
        let (name, rest) = argument.split_once(' ').unwrap_or((argument, ""));
        Ok((view(name)?, rest.to_owned()))
    }

    /// Stores which rows of a pane's list are in view: the argument has the pane's number, the
    /// first row (from 0) and the number of rows.
    fn scroll_pane(&mut self, argument: &str) -> Result<(), String> {
        let mut numbers = argument.split(' ').map(|part| number::<u64>("scroll", part));
        let mut next = || numbers.next().unwrap_or(Ok(0));
        let (pane, first, count) = (next()?, next()?, next()?.min(MAX_ROWS_IN_VIEW));
        let view = usize::try_from(pane).ok().and_then(|pane| self.panes.views().get(pane).copied().flatten());
        let Some(view) = view else { return Ok(()) };
        self.analysis.options(view).rows = (first.saturating_sub(SPARE_ROWS), count + 2 * SPARE_ROWS);
        if let Some(kept) = self.kept_in_view(view) {
            kept.scrolled(first, count);
        }
        Ok(())
    }

    /// Returns the state of the row that a long list keeps in view; `None` for views without such a
    /// list.
    fn kept_in_view(&mut self, view: ViewKind) -> Option<&mut KeptInView> {
        let searches = &mut self.analysis.caches.shared.searches;
        match view {
            ViewKind::Events => Some(&mut searches.events_row),
            ViewKind::List => Some(&mut searches.allocations_row),
            ViewKind::Address => Some(&mut searches.address_row),
            _ => None,
        }
    }

    /// Returns the view called `name`, or the view of the pane that was used last if the name is
    /// empty.
    fn view_or_active(&self, name: &str) -> Result<ViewKind, String> {
        if name.is_empty() { Ok(self.panes.active()) } else { view(name) }
    }

    /// Makes a list that follows the moment on the screen scroll to the moment's row again, because
    /// the user has opened or requested the list.
    pub(super) fn view_shown(&mut self, view: ViewKind) {
        if let Some(kept) = self.kept_in_view(view) {
            kept.resume();
        }
    }

    /// Scrolls a list to its first row, because its rows have changed; a list that follows the
    /// moment on the screen scrolls to the moment's row instead.
    pub(super) fn show_first_row(&mut self, view: ViewKind) {
        self.analysis.options(view).rows.0 = 0;
        if let Some(kept) = self.kept_in_view(view) {
            if view == ViewKind::List { kept.show(0) } else { kept.resume() }
        }
    }

    /// Selects the next (`forward`) or previous block or free range, or with `whole_segments` the
    /// first one of the next or previous segment, and scrolls to it.
    ///
    /// # Errors
    /// If the device has no memory at the moment, or the first or last block is selected already.
    fn select_neighbor(&mut self, forward: bool, whole_segments: bool) -> Result<(), String> {
        let before = self.model.selection();
        self.model.select_neighbor(forward, whole_segments);
        let Some(address) = self.model.selection() else {
            return Err("this device has no memory at this moment".to_owned());
        };
        self.change_heatmap_view(|layout, _| layout.reveal(address).unwrap_or(layout.view));
        if before == Some(address) {
            let edge = if forward { "last" } else { "first" };
            return Err(format!("this is the {edge} {}", if whole_segments { "segment" } else { "block" }));
        }
        Ok(())
    }
}

/// Returns the view called `name`, or an error.
fn view(name: &str) -> Result<ViewKind, String> {
    ViewKind::from_name(name).ok_or_else(|| format!("there is no view called {name:?}"))
}

/// Changes playback to the next faster speed (`is_faster`) or the next slower one.
///
/// # Errors
/// If the speed is the highest or the lowest of its kind.
fn change_speed(model: &mut Model, is_faster: bool) -> Result<(), String> {
    let has_changed = model.playback.change_speed(is_faster);
    has_changed
        .then_some(())
        .ok_or_else(|| format!("this is the {} speed", if is_faster { "highest" } else { "lowest" }))
}
