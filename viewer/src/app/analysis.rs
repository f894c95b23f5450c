//! Analyses of the whole recording, computed in steps between frames.

use vramscope_insight::history::{History, Progress};
use vramscope_trace::{ByteSize, Count, FormatError};

use super::parts::{Analysis, HISTORY_LIMIT_BYTES, Lights};
use super::session::Session;
use crate::later;
use crate::model::{AllDevices, Fetch, Origin};
use crate::timeline::AxisKind;
use crate::view::{Context, SharedCaches, View, Work};
use crate::views::{ViewId, Views};

/// Number of bytes of a recording's file that are loaded ahead of the history, before it needs
/// them.
const AHEAD_BYTES: u64 = 4 << 20;

/// Returns the message for the user that the history ends early because it takes `bytes` of memory.
fn limit_message(progress: &Progress, bytes: usize) -> String {
    format!(
        "Views of the whole recording end after {} of {} events: reading them takes {}, the page's limit. Every \
         moment can still be shown. To analyze a later part, select it and save the range as a file.",
        Count(progress.events),
        Count(progress.known_events),
        ByteSize(bytes as u64)
    )
}

impl Session {
    /// Reads about `max_events` more events of the recording for the views. Returns true if more
    /// can be read at once.
    ///
    /// # Errors
    /// If the recording cannot be read.
    pub fn work(&mut self, max_events: u64) -> Result<bool, FormatError> {
        let recording = self.model.recording();
        let analysis = &mut self.analysis;
        let was_complete = analysis.progress.is_complete;
        let is_stale = analysis.history.is_stale(recording);
        if is_stale {
            analysis.shared = SharedCaches::default();
            // Groups may have other numbers.
            self.details.lights = Lights::default();
            self.views.iter_mut().for_each(|view| view.forget());
            analysis.shown_events = 0;
            analysis.is_at_limit = false;
        }
        if recording.end_event() == recording.first_event() && recording.devices().next().is_none() {
            if is_stale {
                (analysis.history, analysis.progress) = (History::new(), Progress::default());
            }
            return Ok(false);
        }
        if !analysis.is_at_limit {
            match analysis.history.extend(recording, max_events) {
                Ok(progress) => analysis.progress = progress,
                Err(error) => {
                    if analysis.infer_categories_of_part(recording) {
                        self.model.moment_changed();
                    }
                    return Err(error);
                }
            }
            let bytes = analysis.history.memory_bytes();
            let is_file = self.model.origin() == Origin::File;
            if is_file && bytes > analysis.limit_bytes.unwrap_or(HISTORY_LIMIT_BYTES) && !analysis.progress.is_complete
            {
                analysis.is_at_limit = true;
                analysis.messages.push(limit_message(&analysis.progress, bytes));
                self.model.moment_changed();
            }
        }
        let analysis = &mut self.analysis;
        let (recording, is_growing) = (self.model.recording(), self.model.origin() == Origin::Live);
        let is_due = analysis.history.needs_categories(recording, is_growing);
        if is_due {
            analysis.history.infer_categories(recording);
        }
        if is_due || analysis.is_at_limit && analysis.infer_categories_of_part(recording) {
            self.model.timeline_changed();
            self.model.moment_changed();
        }
        analysis.share_categories(self.model.device());
        if analysis.is_settled() {
            self.model.add_marks(analysis.history.all_lifetimes().marks());
        }
        if analysis.progress.is_complete && !was_complete {
            self.model.timeline_changed();
        }
        let progress = &analysis.progress;
        // Panes are updated ten times while a recording is read, and at its end.
        let step = progress.known_events / 10;
        if progress.events >= analysis.shown_events + step.max(1) || (progress.is_complete && !was_complete) {
            analysis.shown_events = progress.events;
            self.model.moment_changed();
        }
        let analysis = &mut self.analysis;
        if std::mem::take(&mut analysis.shared.is_unfinished) {
            self.model.moment_changed();
        }
        let can_read_more =
            !analysis.progress.is_complete && analysis.progress.missing.is_empty() && !analysis.is_at_limit;
        let is_searching = self.continue_event_search().unwrap_or_else(|message| {
            self.analysis.messages.push(message);
            self.model.moment_changed();
            false
        });
        // The areas of the stacked timeline take about 40 ns for each allocation and each free.
        let is_stacking = self.work_on_stack(usize::try_from(max_events).unwrap_or(usize::MAX).saturating_mul(4));
        let is_computing = self.work_on_views(max_events)?;
        // Views of the whole recording come first.
        let is_busy = can_read_more || is_searching || is_stacking || is_computing;
        Ok(is_busy || self.work_on_lanes((max_events / 4).max(1)))
    }

    /// Continues the computations of the views in the panes. Returns true if more can be done at
    /// once.
    fn work_on_views(&mut self, max_events: u64) -> Result<bool, FormatError> {
        let mut has_more = false;
        for view in self.panes.views().into_iter().flatten() {
            let work = self.with_view(view, |view, context, shared| view.work(context, shared, max_events));
            let work: Work = work.transpose()?.unwrap_or_default();
            has_more |= work.has_more;
            if work.has_changed {
                self.model.moment_changed();
            }
        }
        Ok(has_more)
    }

    /// Computes a part of the bytes that the lanes of devices show, by applying at most about
    /// `max_events` events. Does nothing until the page [rests](Self::rest). Returns true if more
    /// is left.
    fn work_on_lanes(&mut self, max_events: u64) -> bool {
        let rests = self.timeline.rested_at == Some(self.model.state().event());
        rests && self.lane_count() > 0 && self.model.work_on_all_devices(max_events)
    }

    /// Returns the moment on the screen if the lanes do not show the other devices' bytes there
    /// yet, because the page has not [rested](Self::rest) at it; else `None`.
    pub fn unrested_moment(&self) -> Option<u64> {
        let moment = self.model.state().event();
        (self.lane_count() > 0 && self.timeline.rested_at != Some(moment)).then_some(moment)
    }

    /// Lets [`work`](Self::work) compute the bytes of other devices at `moment`, which the page has
    /// shown for a while. If the page shows another moment by now, returns that one, and the caller
    /// waits again.
    pub fn rest(&mut self, moment: u64) -> Option<u64> {
        let now = self.model.state().event();
        if now != moment {
            return Some(now);
        }
        self.timeline.rested_at = Some(moment);
        None
    }

    /// Returns the share of the recording that has been read for the views, 0 to 1, while it is
    /// being read; `None` once it is complete.
    pub fn reading_progress(&self) -> Option<f64> {
        let analysis = &self.analysis;
        (!analysis.is_complete() && analysis.progress.known_events > 0).then(|| analysis.progress())
    }

    /// Returns the byte ranges of the recording's file to load next: first the ranges for the
    /// moment on the screen, then the ranges that the history lacks, if a view needs it.
    pub fn needed_fetches(&mut self) -> Vec<Fetch> {
        let fetches = self.model.needed_fetches();
        if fetches.is_empty() && !self.analysis.shared.missing.is_empty() {
            return self.model.fetches_for(self.analysis.shared.missing.clone());
        }
        if !fetches.is_empty() || !self.analysis.is_wanted || self.analysis.is_at_limit {
            return fetches;
        }
        if self.analysis.progress.missing.is_empty() {
            return if self.analysis.progress.is_complete { self.model.fetches_for_rest() } else { fetches };
        }
        // Bytes may have arrived since the last step.
        self.analysis.progress = self.analysis.history.progress(self.model.recording());
        self.model.fetches_for(self.analysis.progress.missing.clone())
    }

    /// Returns requests for the bytes that the history will need soon; empty until they are worth a
    /// request. To be called only while no other request runs.
    pub fn fetches_ahead(&self) -> Vec<Fetch> {
        let progress = &self.analysis.progress;
        if !self.analysis.is_wanted || self.analysis.is_at_limit || progress.is_complete {
            return Vec::new();
        }
        let recording = self.model.recording();
        let missing = recording.missing_ahead(self.analysis.history.until(), AHEAD_BYTES);
        let bytes: u64 = missing.iter().map(|chunk| chunk.end - chunk.start).sum();
        if bytes >= AHEAD_BYTES / 2 { self.model.fetches_for(missing) } else { Vec::new() }
    }

    /// Returns the lifetimes and times of all events read so far.
    pub(super) fn history(&self) -> &History {
        &self.analysis.history
    }

    /// Adds the bytes of a fetch and shows what can be shown with them.
    ///
    /// # Errors
    /// If the bytes contradict the recording's index.
    pub fn supply(&mut self, fetch: &Fetch, bytes: &[u8]) -> Result<(), FormatError> {
        self.model.supply(fetch, bytes)?;
        if !std::mem::take(&mut self.analysis.shared.missing).is_empty() {
            self.model.moment_changed();
        }
        Ok(())
    }

    /// Requests that [`work`](Self::work) reads the whole recording, because a view or a script
    /// needs it.
    pub(super) fn want_history(&mut self) {
        self.analysis.is_wanted = true;
    }

    /// Sets the maximum memory of a file's history, in bytes.
    pub fn set_history_limit(&mut self, bytes: usize) {
        self.analysis.limit_bytes = Some(bytes);
    }

    /// Calls `compute` with a view, its inputs, and the results that views share. Returns `None`
    /// if the view's functions are not [loaded](later) yet, and requests them.
    pub(super) fn with_view<R>(
        &mut self,
        view: ViewId,
        compute: impl FnOnce(&mut dyn View, &Context<'_>, &mut SharedCaches) -> R,
    ) -> Option<R> {
        if !view.is_loaded() {
            later::request();
            return None;
        }
        let lit = self.details.lights.lit_on(self.panes.surface_of(view)).first().copied();
        Some(
            self.with_views(|views, context, shared| {
                compute(views.get_mut(view), &Context { lit, ..*context }, shared)
            }),
        )
    }

    /// Calls `compute` with all views, their inputs, and the results that they share.
    pub(super) fn with_views<R>(
        &mut self,
        compute: impl FnOnce(&mut Views, &Context<'_>, &mut SharedCaches) -> R,
    ) -> R {
        let Self { model, views, analysis, display, details, .. } = self;
        analysis.share_categories(model.device());
        let Analysis { history, progress, shared, jobs, step_span, .. } = analysis;
        let recording = model.recording();
        let whole = (recording.first_event(), recording.end_event());
        let context = Context {
            recording,
            device: model.device(),
            state: model.device_state(),
            all_devices: AllDevices::OnDemand(model),
            moment: model.state().event(),
            time_ns: model.time_ns(),
            range: model.selected_range().unwrap_or(whole),
            has_range: model.selected_range().is_some(),
            history,
            is_history_complete: progress.is_complete,
            marks: model.marks(),
            step_span: step_span.as_deref(),
            selection: model.selection().map(|address| (address, model.selected_since())),
            selected: model.selected(),
            counts_events: model.axis() == AxisKind::Events,
            source: model.source(),
            jobs,
            comparison: &model.comparison,
            selected_group: model.selected_group(),
            lit: details.lights.lit().first().copied(),
            kept: &details.lights.kept,
            theme: &display.theme,
            typesetter: &display.typesetter,
            editor: details.editor.as_ref(),
        };
        compute(views, &context, shared)
    }
}
