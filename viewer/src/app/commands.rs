//! Executes commands.

use vramscope_trace::{DeviceId, FormatError, Recording};

use super::session::{Session, SessionReport};
use super::timeline_commands::{PAN_FRACTION, ZOOM_FACTOR};
use crate::command::{AllocationId, Command, Direction, HistoryEffect, OptionChange, ViewName};
use crate::device_map::ColorBy;
use crate::model::{Model, PeakKind};
use crate::view::{PictureInput, Topic};
use crate::views::ViewId;

/// Maximum number of rows of a list that count as in view; further ones that the page reports are
/// ignored.
const MAX_ROWS_IN_VIEW: u64 = 500;
/// Number of rows that a long list has in the page above, and again below, the rows in view.
const SPARE_ROWS: u64 = 8;
/// Factor by which a key press enlarges a view's picture.
const PICTURE_ZOOM: f64 = 1.5;

/// Converts an error of reading the recording to a message for the user.
fn text(error: FormatError) -> String {
    error.to_string()
}

impl Session {
    /// Executes a command. `clock_ms` is the page's clock.
    ///
    /// # Errors
    /// If it can do nothing now, or the recording cannot be read: a message for the user.
    pub fn execute(&mut self, command: &Command, clock_ms: f64, report: &mut SessionReport) -> Result<(), String> {
        if command.history_effect() != HistoryEffect::None {
            self.model.leave_opening();
        }
        let model = &mut self.model;
        match command {
            Command::Play => model.play_or_pause(clock_ms).map_err(text)?,
            Command::Step(events) => step(model, *events)?,
            Command::Mark(direction) => self.go_to_mark(*direction)?,
            // An invalid text in the field is replaced by the current event number.
            Command::Seek(None) => {}
            Command::Seek(Some(event)) => model.seek(*event).map_err(text)?,
            Command::GoToEdge(edge) => model.go_to_edge(edge.is_forward()).map_err(text)?,
            Command::GoToPeak(kind) => {
                model.go_to_peak(*kind).map_err(text)?;
                if *kind == PeakKind::Allocated {
                    self.show_beside(ViewId::about(Topic::Peak));
                }
            }
            Command::Failure(direction) => self.go_to_failure(*direction)?,
            Command::ChangeSpeed(direction) => change_speed(model, *direction)?,
            Command::SpeedKind => model.playback.change_kind(),
            Command::Speed(index) => model.playback.set_speed(*index),

            Command::ZoomIn => self.zoom_timeline(ZOOM_FACTOR),
            Command::ZoomOut => self.zoom_timeline(1.0 / ZOOM_FACTOR),
            Command::Pan(Direction::Back) => model.pan(-PAN_FRACTION),
            Command::Pan(Direction::Forward) => model.pan(PAN_FRACTION),
            Command::Fit => self.show_selection(),
            Command::FitAll => model.fit(),
            Command::RangeStart => {
                let moment = model.state().event();
                let end = model.selected_range().map_or(model.recording().end_event(), |(_, to)| to);
                model.select_range(Some((moment, end.max(moment))));
            }
            Command::RangeEnd => {
                let moment = model.state().event();
                let start = model.selected_range().map_or(model.recording().first_event(), |(from, _)| from);
                model.select_range(Some((start.min(moment), moment)));
            }
            Command::RangeClear if model.selected_range().is_none() => {
                return Err("no range of time is selected".to_owned());
            }
            Command::RangeClear => model.select_range(None),
            Command::RangeOfSelection => self.select_range_of_selection()?,
            Command::Range(from, to) => model.select_range(Some((*from, *to))),
            Command::Axis(axis) => self.choose_axis(*axis)?,
            Command::CutIdle => model.set_cuts_idle(Some(!model.cuts_idle())),
            Command::Lanes if model.recording().devices().count() < 2 => {
                return Err("this recording has only one device".to_owned());
            }
            Command::Lanes => {
                self.timeline.hides_lanes = !self.timeline.hides_lanes;
                self.model.everything_changed();
            }
            Command::Stack(stack) => self.choose_stack(*stack),
            Command::Band(band) => model.toggle_band(*band),

            Command::SelectNeighbor(direction) => self.select_neighbor(*direction, false)?,
            Command::SelectSegment(direction) => self.select_neighbor(*direction, true)?,
            Command::SelectAddress(address) => model.select(Some(*address)),
            Command::SelectAllocation(AllocationId { address, since, moment }) => {
                model.select_allocation(*address, *since);
                if let Some(moment) = *moment {
                    model.seek(moment).map_err(text)?;
                    self.reveal(*address);
                }
            }
            Command::DeselectAllocation => model.select(None),
            Command::Deselect => self.deselect(),
            Command::Group(by, group, moment) => self.select_group((*by, *group), *moment)?,
            Command::Light(memory) => self.light(memory.iter().copied().collect(), None),
            Command::KeepLight(memory) => self.keep_light(*memory),
            Command::Event(direction) => self.go_to_event(*direction)?,
            Command::Device(device) => self.set_device(*device).map_err(text)?,
            Command::NextDevice => {
                let devices: Vec<DeviceId> = model.recording().devices().collect();
                let next = devices.iter().find(|device| **device > model.device()).or(devices.first());
                let next = next.filter(|next| **next != model.device()).ok_or("this recording has only one device")?;
                self.set_device(*next).map_err(text)?;
            }

            Command::View(view) => self.show_view(ViewId::named(view)?),
            Command::AddressUses => self.show_view(ViewId::about(Topic::AddressUses)),
            Command::SearchView => {
                let shown = self.panes.views().into_iter().rev().flatten().find(|view| view.info().is_searched);
                self.show_view(shown.unwrap_or_else(|| ViewId::about(Topic::Allocations)));
            }
            Command::Pane(pane, view) => {
                let view = ViewId::named(view)?;
                self.panes.set(*pane, view);
                self.view_shown(view);
            }
            Command::Set(view, change) => self.change_option(ViewId::named(view)?, change.clone())?,
            Command::Try(settings) => {
                let view = ViewId::about(Topic::Settings);
                self.show_beside(view);
                self.change_option(view, OptionChange::Filter(settings.clone()))?;
            }
            Command::Setting(key, value) => {
                let recorded = model.recording().info().alloc_conf.clone();
                let view = self.views.get_mut(ViewId::about(Topic::Settings));
                view.set_setting(key, value, &recorded, &mut self.analysis.jobs)?;
            }
            Command::StepSpan(name) => self.analysis.step_span.clone_from(name),
            Command::Scroll(pane, first, count) => self.scroll_pane(*pane, *first, *count),
            Command::Reveal(view) => {
                let view = self.view_or_active(view.as_ref())?;
                let row = self.views.get_mut(view).kept_row();
                row.ok_or("this view has no list that follows the moment")?.resume();
            }
            Command::Swap if self.panes.count() < 2 => {
                return Err("there is only one pane: press | for two".to_owned());
            }
            Command::Swap => self.panes.swap(),
            Command::Split => self.panes.split(),
            Command::Color(color_by) => self.choose_color(*color_by, Direction::Forward),
            Command::PreviousColor => self.choose_color(None, Direction::Back),
            Command::Layout => {
                let has_changed = self.shown_views().any(|view| self.views.get_mut(view).change_layout());
                if !has_changed {
                    return Err("no pane shows a view with another layout".to_owned());
                }
            }
            Command::EnlargePicture => self.move_picture(PictureInput::Zoom(PICTURE_ZOOM))?,
            Command::ReducePicture => self.move_picture(PictureInput::Zoom(1.0 / PICTURE_ZOOM))?,
            Command::FitPicture => self.move_picture(PictureInput::Fit)?,
            Command::PinMoment => {
                let (device, event) = (model.device(), model.state().event());
                model.comparison.pin(device, event);
                self.show_view(ViewId::about(Topic::Comparison));
            }
            Command::CompareWith(with) => model.comparison.chosen = Some(*with),
            Command::CloseSecond => model.comparison.close(),
            Command::FindProblems => self.find_problems(),
            Command::SaveFindings => self.analysis.jobs.findings.saves ^= true,
            Command::Finding(index) => self.show_finding(*index)?,

            Command::CopyTable(view) => {
                let view = self.view_or_active(view.as_ref())?;
                self.copy_table(view, report)?;
            }
            Command::CopyDetails => self.copy_details(report)?,
            Command::CopyStack => self.copy_stack(report)?,
            Command::SavePicture(format, view) => self.save_picture(*format, view.as_deref(), report)?,
            Command::EditorTemplate(template) => self.details.editor.clone_from(template),
            Command::Undo => {
                let link = self.view_history.undo().ok_or("there is no change of the view to undo")?;
                self.restore(&link).map_err(text)?;
            }
            Command::Redo => {
                let link = self.view_history.redo().ok_or("there is no change of the view to redo")?;
                self.restore(&link).map_err(text)?;
            }
            Command::Follow | Command::LoadAll | Command::CompareUrl(_) | Command::Page(_) => {
                report.commands.push(command.clone());
                return Ok(());
            }
        }
        self.model.moment_changed();
        Ok(())
    }

    /// Iterates over the views in the panes, the one that was used last first.
    fn shown_views(&self) -> impl Iterator<Item = ViewId> + use<> {
        let active = self.panes.active();
        let others = self.panes.views().into_iter().flatten().filter(move |view| *view != active);
        std::iter::once(active).chain(others)
    }

    /// Changes an option of a view, and scrolls its list to the first row if its rows change.
    fn change_option(&mut self, view: ViewId, change: OptionChange) -> Result<(), String> {
        let mut view = view;
        if let OptionChange::Filter(filter) = &change
            && !self.views.get(view).accepts_filter(filter)
        {
            view = ViewId::about(Topic::Allocations);
            self.show_view(view);
        }
        let view = self.views.get_mut(view);
        let is_grouping = matches!(change, OptionChange::By(_));
        view.options().change(change)?;
        if is_grouping {
            view.regrouped();
        } else {
            view.rows_changed();
        }
        Ok(())
    }

    /// Colors blocks by a property; `None` chooses the next or previous one.
    fn choose_color(&mut self, chosen: Option<ColorBy>, direction: Direction) {
        let count = ColorBy::ALL.len();
        for view in self.views.iter_mut() {
            let Some(shown) = view.color_by() else { continue };
            let current = ColorBy::ALL.iter().position(|&known| known == shown).unwrap_or(0);
            let next = if direction.is_forward() { current + 1 } else { current + count - 1 };
            view.set_color(chosen.unwrap_or(ColorBy::ALL[next % count]));
        }
    }

    /// Zooms the picture of a pane that can be zoomed.
    fn move_picture(&mut self, input: PictureInput) -> Result<(), String> {
        let has_moved = self.shown_views().any(|view| self.views.get_mut(view).input(self.model.device_state(), input));
        has_moved.then_some(()).ok_or_else(|| "no pane shows a picture that can be zoomed: press 1".to_owned())
    }

    /// Stores which rows of a pane's list are in view: the first one (from 0) and their number.
    fn scroll_pane(&mut self, pane: usize, first: u64, count: u64) {
        let Some(view) = self.panes.views().get(pane).copied().flatten() else { return };
        let (view, count) = (self.views.get_mut(view), count.min(MAX_ROWS_IN_VIEW));
        view.options().rows().in_view = (first.saturating_sub(SPARE_ROWS), count + 2 * SPARE_ROWS);
        if let Some(kept) = view.kept_row() {
            kept.scrolled(first, count);
        }
    }

    /// Returns the view with a name, or without one the view of the pane that was used last.
    fn view_or_active(&self, name: Option<&ViewName>) -> Result<ViewId, String> {
        name.map_or(Ok(self.panes.active()), |name| ViewId::named(name))
    }

    /// Makes a list that follows the moment on the screen scroll to the moment's row again, because
    /// the user has opened or requested the list.
    pub(super) fn view_shown(&mut self, view: ViewId) {
        if let Some(kept) = self.views.get_mut(view).kept_row() {
            kept.resume();
        }
    }

    /// Compares the recording on the page with another, the file called `name`, and shows the
    /// comparison.
    ///
    /// # Errors
    /// If no recording is on the page, or the other one has no events.
    pub fn compare_with(&mut self, name: &str, recording: Recording) -> Result<(), String> {
        if self.model.recording().devices().count() == 0 {
            return Err("open a recording first, then the one to compare it with".to_owned());
        }
        if recording.devices().count() == 0 {
            return Err(format!("{name}: the recording has no events to compare"));
        }
        self.model.comparison.open(name, recording);
        self.show(ViewId::about(Topic::Comparison).name())
    }
}

/// Goes forward by `events` events of the device, or back.
///
/// # Errors
/// If there is no such event, or the recording cannot be read there: a message for the user.
fn step(model: &mut Model, events: i64) -> Result<(), String> {
    let before = model.state().event();
    model.step(events).map_err(text)?;
    if model.state().event() != before || model.is_loading() {
        return Ok(());
    }
    let (edge, other) = if events > 0 { ("last", "later") } else { ("first", "earlier") };
    let recording = model.recording();
    let is_at_edge = before == if events > 0 { recording.end_event() } else { recording.first_event() };
    Err(match is_at_edge {
        true => format!("this is the {edge} moment of the recording"),
        false => format!("the shown device has no {other} event"),
    })
}

/// Changes playback to the next faster or slower speed.
///
/// # Errors
/// If the speed is the highest or the lowest of its kind.
fn change_speed(model: &mut Model, direction: Direction) -> Result<(), String> {
    let has_changed = model.playback.change_speed(direction.is_forward());
    let edge = if direction.is_forward() { "highest" } else { "lowest" };
    has_changed.then_some(()).ok_or_else(|| format!("this is the {edge} speed"))
}
