//! The session: its parts, and a frame from input to pictures.

use vramscope_trace::{FormatError, SiteId};

use crate::draw::text::Typesetter;
use crate::draw::theme::Theme;
use crate::editor_link::EditorTemplate;
use crate::model::{Changes, Model, Origin};
use crate::page_texts::LiveStatus;
use crate::protocol::{Action, FrameRequest, PageUpdate, Screen, Surface};
use crate::saved_picture::SavedPicture;
use crate::scene::{Layers, Scene, Viewport};
use crate::ui::Node;
use crate::views::ViewKind;

use super::panes::Panes;
use super::parts::{Analysis, Drag, HeatmapControl, JobClock, PageFacts, PanePicture, SentPanes, TimelineState};
use super::view_history::ViewHistory;

/// Everything between the recording and the page: model, panes, scene and pictures.
#[derive(Default)]
pub struct Session {
    /// The model of the page.
    pub model: Model,
    /// The views in the panes.
    pub panes: Panes,
    pub(super) scene: Scene,
    pub(super) screen: Screen,
    pub(super) theme: Theme,
    pub(super) typesetter: Typesetter,
    /// The pictures, in the order of [`Surface::ALL`].
    pub(super) layers: [Layers; 3],
    /// The pointer's pixel on a pane's picture.
    pub(super) hover: Option<(Surface, (i32, i32))>,
    pub(super) hover_changed: bool,
    /// The pixel column of the timeline to go to in the next frame.
    pub(super) scrub_x: Option<f64>,
    /// The event number of the moment to go to in the next frame.
    pub(super) pending_seek: Option<u64>,
    pub(super) drag: Option<Drag>,
    /// The page's clock at the last frame, in milliseconds.
    pub(super) clock_ms: f64,
    pub(super) heatmap: HeatmapControl,
    pub(super) timeline: TimelineState,
    /// The pictures of the panes, apart from the heatmap.
    pub(super) pictures: [PanePicture; 2],
    /// The contents of the panes that the page has.
    pub(super) sent_panes: SentPanes,
    /// The content of the details panel that the page has.
    pub(super) sent_details: Option<Vec<Node>>,
    /// Where the event with this index of this recording freed a block; `None` if it freed none.
    pub(super) free_site: Option<((u64, u64), Option<SiteId>)>,
    pub(super) analysis: Analysis,
    pub(super) job_clock: JobClock,
    /// Maximum memory of a file's history, in bytes; `None` for 1 GiB.
    pub history_limit_bytes: Option<usize>,
    /// The user's template for links to files.
    pub(super) editor: Option<EditorTemplate>,
    /// The views that the user can go back to.
    pub(super) view_history: ViewHistory,
}

/// Messages and commands that the session returns beside a frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionReport {
    /// Messages for the user.
    pub messages: Vec<String>,
    /// Commands that only the owner of the session can execute.
    pub commands: Vec<String>,
    /// A text for the clipboard.
    pub clipboard: Option<String>,
    /// A picture to save as a file, with title, legend and other parts around its pixels.
    pub picture: Option<(Surface, Box<SavedPicture>)>,
}

impl Session {
    /// Applies the user's actions and all received data, and draws the changed pictures.
    pub fn frame(&mut self, request: &FrameRequest, facts: &PageFacts, report: &mut SessionReport) -> PageUpdate {
        if let Some(screen) = request.screen.as_ref().filter(|screen| **screen != self.screen) {
            self.screen = screen.clone();
            self.theme = Theme::new(screen.is_dark);
            for (layers, size) in self.layers.iter_mut().zip(screen.sizes) {
                if layers.size() != size {
                    layers.resize(size);
                }
            }
            self.model.everything_changed();
        }
        self.clock_ms = request.clock_ms;
        self.act(&request.actions, request.clock_ms, report);
        let mut result = self.model.apply_received();
        report.messages.extend(self.model.take_notice().map(str::to_owned));
        report.messages.append(&mut self.analysis.messages);
        if let Some(x) = self.scrub_x.take() {
            result = result.and(self.scrub_to(x));
        }
        if let Some(event) = self.pending_seek.take() {
            result = result.and(self.model.seek(event));
        }
        let was_playing = self.model.playback.is_playing();
        let is_playing = self.model.tick(request.clock_ms);
        let error = result.and(is_playing.clone().map(|_| ())).err();
        report.messages.extend(error.map(|error| error.to_string()));
        let mut changes = self.model.take_changes();
        self.update_axis(&mut changes);
        let hover_changed = std::mem::take(&mut self.hover_changed);
        let is_waiting = self.wait_for_exact_timeline(&mut changes);
        let mut update = PageUpdate { is_animated: is_playing.unwrap_or(false) || is_waiting, ..PageUpdate::default() };
        if changes.timeline || changes.moment || hover_changed {
            self.update_scene(changes, facts.status);
            let has_changed = changes.timeline || changes.moment;
            let pictures = if has_changed { self.update_pictures() } else { [false; 2] };
            self.draw(changes, hover_changed, pictures, &mut update);
            update.texts = Some(Box::new(self.scene.texts.clone()));
            self.update_details(&mut update);
            self.update_timeline_page(&mut update);
            if has_changed {
                self.update_panes(&mut update);
            }
        }
        update.pane_count = self.panes.count();
        update.lanes = self.lane_count();
        update.state = self.state_json(facts);
        let link = self.link();
        if was_playing || self.drag.is_some() {
            self.view_history.gesture_continues();
        }
        self.view_history.record_view(self.model.opened(), &link, request.clock_ms);
        (update.link, update.entry) = (link.fragment(), self.view_history.entries());
        update.is_live = matches!(self.model.origin(), Origin::Live | Origin::Disconnected);
        update.is_connected = self.model.origin() == Origin::Live;
        update
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
    #[must_use]
    pub fn pixels(&self, surface: Surface) -> &[u8] {
        self.layers[surface as usize].picture().bytes()
    }

    /// Goes to a moment, for scripts.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn seek(&mut self, event: u64) -> Result<(), FormatError> {
        self.view_history.commanded("seek");
        self.model.seek(event)
    }

    /// Selects a range of event numbers, for scripts; `None` clears the selection.
    pub fn select_range(&mut self, range: Option<(u64, u64)>) {
        self.view_history.commanded("range");
        self.model.select_range(range);
    }

    /// Shows a view, for scripts; an empty name changes nothing.
    ///
    /// # Errors
    /// If there is no such view.
    pub fn show(&mut self, view: &str) -> Result<(), String> {
        if !view.is_empty() && view != "timeline" {
            let view = ViewKind::from_name(view).ok_or_else(|| format!("there is no view called {view:?}"))?;
            self.view_history.commanded(view.name());
            self.panes.show(view);
            self.view_shown(view);
        }
        self.model.moment_changed();
        Ok(())
    }

    /// Recomputes the parts of the scene that have changed.
    pub(super) fn update_scene(&mut self, changes: Changes, status: LiveStatus) {
        let heatmap = self.heatmap_surface();
        let viewport = Viewport {
            timeline: self.screen.sizes[0],
            heatmap: heatmap.map_or((1, 1), |surface| self.screen.sizes[surface as usize]),
            scale: self.screen.scale,
        };
        if changes.timeline || self.scene.timeline.is_none() {
            self.compute_timeline(&viewport);
        }
        if changes.timeline || changes.moment {
            self.update_heatmap(&viewport);
        }
        let pointer = self.hover.filter(|(surface, _)| Some(*surface) == heatmap).map(|(_, point)| point);
        let last_step = self.analysis.jobs.findings.last_step(self.model.device());
        self.scene.update(&mut self.model, changes, pointer, status, last_step, &self.typesetter);
        self.update_overlay();
    }

    /// Draws the pictures that have changed and lists them in `update`. `pictures` has true for
    /// each pane whose picture's base must be redrawn.
    pub(super) fn draw(&mut self, changes: Changes, hover_changed: bool, pictures: [bool; 2], update: &mut PageUpdate) {
        let has_changed = changes.timeline || changes.moment;
        let heatmap = self.heatmap_surface();
        let (theme, typesetter) = (&self.theme, &mut self.typesetter);
        let is_on_timeline = self.hover.is_none_or(|(surface, _)| surface == Surface::Timeline);
        if has_changed || (hover_changed && is_on_timeline) {
            self.layers[0].draw_timeline(&self.scene, changes.timeline, theme, typesetter);
            update.pictures.push((Surface::Timeline, 0, 0));
        }
        if let Some(surface) = heatmap.filter(|_| has_changed || hover_changed) {
            self.layers[surface as usize].draw_heatmap(&self.scene, has_changed, theme, typesetter);
            update.pictures.push((surface, 0, 0));
        }
        let drawn = self.draw_pictures(pictures, has_changed || hover_changed);
        update.pictures.extend(drawn.into_iter().map(|surface| (surface, 0, 0)));
        for (surface, width, height) in &mut update.pictures {
            (*width, *height) = self.layers[*surface as usize].size();
        }
    }
}
