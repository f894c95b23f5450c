//! The session: its parts, and a frame from input to pictures.

use vramscope_trace::{DeviceId, FormatError};

use super::display::Display;
use super::input::Input;
use super::panes::Panes;
use super::parts::{Analysis, DetailsPanel, Lights, PageFacts, SentPanes, TimelinePanel};
use super::view_history::ViewHistory;
use crate::command::Command;
use crate::connection::ConnectionState;
use crate::model::{Changes, Model, Origin};
use crate::page_texts::LiveStatus;
use crate::protocol::{Action, FrameRequest, PageUpdate, Surface};
use crate::saved_picture::SavedPicture;
use crate::views::{ViewId, Views};

/// Everything between the recording and the page.
#[derive(Default)]
pub struct Session {
    /// The recording, the moment, the device and the selection.
    pub model: Model,
    /// The views in the panes.
    pub panes: Panes,
    /// All views, with their options and results.
    pub views: Views,
    pub(super) timeline: TimelinePanel,
    pub(super) details: DetailsPanel,
    /// The history of the recording as far as it has been read, and results that views share.
    pub(super) analysis: Analysis,
    pub(super) display: Display,
    pub(super) input: Input,
    /// The panes' contents and pictures that the page has.
    pub(super) sent: SentPanes,
    /// The views that the user can go back to.
    pub(super) view_history: ViewHistory,
}

/// Messages and commands that the session returns beside a frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionReport {
    /// Messages for the user.
    pub messages: Vec<String>,
    /// Commands that only the owner of the session can execute.
    pub commands: Vec<Command>,
    /// A text for the clipboard.
    pub clipboard: Option<String>,
    /// A picture to save as a file, with title, legend and other parts around its pixels.
    pub picture: Option<(Surface, Box<SavedPicture>)>,
}

/// Minimum time in milliseconds between two changes of the texts of a followed live recording.
const TEXTS_MS: f64 = 500.0;

impl Session {
    /// Applies the user's actions and all received data, and draws the changed pictures.
    pub fn frame(&mut self, request: &FrameRequest, facts: &PageFacts, report: &mut SessionReport) -> PageUpdate {
        if let Some(screen) = request.screen.as_ref().filter(|screen| **screen != self.display.screen) {
            self.display.set_screen(screen);
            self.model.everything_changed();
        }
        self.input.clock_ms = request.clock_ms;
        self.notice_recording();
        self.act(&request.actions, request.clock_ms, report);
        let mut result = self.model.apply_received();
        report.messages.extend(self.model.take_notice().map(str::to_owned));
        report.messages.append(&mut self.analysis.messages);
        if let Some(x) = self.input.scrub_x.take() {
            result = result.and(self.scrub_to(x));
        }
        if let Some(event) = self.input.pending_seek.take() {
            result = result.and(self.model.seek(event));
        }
        let was_playing = self.model.playback.is_playing();
        let is_playing = self.model.tick(request.clock_ms);
        let error = result.and(is_playing.clone().map(|_| ())).err();
        report.messages.extend(error.map(|error| error.to_string()));
        let is_following = self.model.is_following() && self.model.origin() == Origin::Live;
        let is_calm = is_following
            && request.actions.is_empty()
            && request.clock_ms < self.details.next_texts_ms
            && facts.status.connection == self.details.shown_connection;
        // The page tells a new state of the connection at once.
        if is_following && facts.status.connection != self.details.shown_connection {
            self.model.moment_changed();
        }
        if self.details.are_texts_late && !is_calm {
            self.model.moment_changed();
        }
        let mut changes = self.model.take_changes();
        self.update_axis(&mut changes);
        let is_waiting = self.wait_for_exact_timeline(&mut changes);
        let mut update = PageUpdate { is_animated: is_playing.unwrap_or(false) || is_waiting, ..PageUpdate::default() };
        self.draw_frame(changes, (facts.status, is_calm), &mut update);
        let wait_ms = (self.details.next_texts_ms - request.clock_ms).max(1.0);
        update.next_frame_ms = Some(wait_ms).filter(|_| self.details.are_texts_late);
        update.lit = self.details.lights.lit().iter().map(ToString::to_string).collect();
        update.pane_count = self.panes.count();
        update.lanes = self.lane_count();
        update.state = self.state_json(facts);
        let link = self.link();
        if was_playing || self.input.drag.is_some() {
            self.view_history.gesture_continues();
        }
        self.view_history.record_view(self.model.opened(), &link, request.clock_ms);
        (update.link, update.entry) = (link.fragment(), self.view_history.entries());
        let has_ended = facts.status.connection == ConnectionState::Ended;
        update.is_live = matches!(self.model.origin(), Origin::Live | Origin::Disconnected) && !has_ended;
        update.is_connected = self.model.origin() == Origin::Live;
        update
    }

    /// Computes and draws what has changed, and adds it to `update`.
    /// With `is_calm`, texts and tables may stay older than the pictures.
    fn draw_frame(&mut self, changes: Changes, (status, is_calm): (LiveStatus, bool), update: &mut PageUpdate) {
        let hover_changed = std::mem::take(&mut self.input.hover_changed);
        let has_changed = changes.timeline || changes.moment;
        if !has_changed && !hover_changed {
            return;
        }
        if changes.timeline || self.timeline.scene.is_none() {
            self.compute_timeline();
        }
        let bases = if has_changed { self.update_pictures() } else { [false; 2] };
        self.check_light(bases, changes.timeline);
        self.draw_pictures(bases, update);
        // The numbers of a live recording change twice a second, so that they can be read.
        let are_texts_due = hover_changed || !is_calm;
        if are_texts_due {
            self.update_texts(status);
        }
        self.update_overlay();
        let is_on_timeline = self.input.hover.is_none_or(|(surface, _)| surface == Surface::Timeline);
        if has_changed || is_on_timeline {
            self.draw_timeline(changes.timeline);
            update.pictures.insert(0, (Surface::Timeline, 0, 0));
        }
        for (surface, width, height) in &mut update.pictures {
            (*width, *height) = self.display.drawn_size(*surface);
        }
        self.update_timeline_page(update);
        if !are_texts_due {
            self.details.are_texts_late = true;
            return;
        }
        self.details.next_texts_ms = self.input.clock_ms + TEXTS_MS;
        self.details.shown_connection = status.connection;
        let were_late = std::mem::take(&mut self.details.are_texts_late);
        update.texts = Some(Box::new(self.details.texts.clone()));
        self.update_verdict(status, update);
        self.update_details(update);
        if has_changed || were_late {
            self.update_panes(update);
        }
    }

    /// Applies the user's actions, in order. `clock_ms` is the page's clock.
    pub fn act(&mut self, actions: &[Action], clock_ms: f64, report: &mut SessionReport) {
        for action in actions {
            let result = match action {
                Action::Command(command) => {
                    self.view_history.commanded(command);
                    self.execute(command, clock_ms, report)
                }
                Action::Pointer(pointer) => {
                    self.view_history.pointed(pointer);
                    self.pointer(pointer)
                }
            };
            report.messages.extend(result.err());
        }
    }

    /// Returns the pixels of a picture as last drawn, RGBA.
    pub fn pixels(&self, surface: Surface) -> &[u8] {
        self.display.pixels(surface)
    }

    /// Goes to a moment, for scripts.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn seek(&mut self, event: u64) -> Result<(), FormatError> {
        self.view_history.repeated(&Command::seek(event));
        self.model.seek(event)
    }

    /// Selects a range of event numbers, for scripts; `None` clears the selection.
    pub fn select_range(&mut self, range: Option<(u64, u64)>) {
        // Selecting and clearing ranges are changes of one kind.
        self.view_history.repeated(&Command::RangeClear);
        self.model.select_range(range);
    }

    /// Shows a view, for scripts; an empty name changes nothing.
    ///
    /// # Errors
    /// If there is no such view.
    pub fn show(&mut self, view: &str) -> Result<(), String> {
        if !view.is_empty() && view != "timeline" {
            let view = ViewId::named(view)?;
            self.view_history.commanded(&Command::View(view.name().into()));
            self.show_view(view);
        }
        self.model.moment_changed();
        Ok(())
    }

    /// Shows a view unless a pane shows it already.
    pub(super) fn show_view(&mut self, view: ViewId) {
        self.panes.show(view);
        self.view_shown(view);
    }

    /// Shows a view beside the map if the page shows only the map, else as
    /// [`show_view`](Self::show_view) does.
    pub(super) fn show_beside(&mut self, view: ViewId) {
        if self.panes.has_defaults() && self.panes.surface_of(view).is_none() {
            self.panes.split();
        }
        self.show_view(view);
    }

    /// Selects a device, and resets what views show of the one before.
    ///
    /// # Errors
    /// If the recording cannot be read at the moment.
    pub(super) fn set_device(&mut self, device: DeviceId) -> Result<(), FormatError> {
        let before = self.model.device();
        self.model.set_device(device)?;
        if self.model.device() != before {
            self.views.iter_mut().for_each(|view| view.device_changed());
        }
        Ok(())
    }

    /// Resets what views show of the recording before, if another one is on the page.
    pub(super) fn notice_recording(&mut self) {
        if std::mem::replace(&mut self.analysis.opened, self.model.opened()) != self.model.opened() {
            self.views.iter_mut().for_each(|view| view.device_changed());
            self.details.lights = Lights::default();
        }
        self.reset_jobs();
    }
}
