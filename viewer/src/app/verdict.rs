//! The bar with the verdict and the figures.

use vramscope_insight::pools::DeviceOwners;
use vramscope_trace::{Count, IncidentKind};

use super::session::Session;
use crate::connection::ConnectionState;
use crate::details::incomplete_history;
use crate::details::verdict::{MomentFigures, elements};
use crate::model::Origin;
use crate::page_texts::LiveStatus;
use crate::protocol::PageUpdate;
use crate::timeline::StepAt;

impl Session {
    /// Adds the bar with the verdict to `update` if it has changed.
    pub(super) fn update_verdict(&mut self, status: LiveStatus, update: &mut PageUpdate) {
        let bar = match self.model.origin() {
            Origin::Empty => Vec::new(),
            _ => {
                let signs = self.moment_figures();
                let ended = self.ended_text(status);
                elements(&self.analysis.jobs, &signs, ended.as_deref())
            }
        };
        if self.details.verdict.as_ref() != Some(&bar) {
            update.verdict = Some(bar.clone());
            self.details.verdict = Some(bar);
        }
    }

    /// Returns when the watched program ended, and how much of it is kept; `None` while it runs,
    /// and for files.
    fn ended_text(&self, status: LiveStatus) -> Option<String> {
        let what = match status.connection {
            ConnectionState::Ended => "The program ended",
            ConnectionState::Reconnecting => "The program ended, was killed or cannot be reached (trying again)",
            ConnectionState::Disconnected => "The program ended, was killed or cannot be reached",
            ConnectionState::None | ConnectionState::Live => return None,
        };
        let recording = self.model.recording();
        let events = recording.end_event().saturating_sub(recording.first_event());
        if self.model.origin() == Origin::File || events == 0 {
            return None;
        }
        let info = recording.info();
        let time = match info.lacks_times || info.epoch_unix_ns == 0 {
            true => String::new(),
            false => {
                let unix_ns = info.epoch_unix_ns.saturating_add(recording.end_ns());
                let unix_s = i64::try_from(unix_ns / 1_000_000_000).unwrap_or(0);
                let local_s = unix_s.saturating_add(i64::from(status.utc_offset_min) * 60).rem_euclid(86_400);
                format!(" at {:02}:{:02}:{:02}", local_s / 3600, local_s / 60 % 60, local_s % 60)
            }
        };
        Some(format!("{what}{time}; {} kept.", Count(events).of("event is", "events are")))
    }

    /// Returns the figures of the device at the moment.
    fn moment_figures(&mut self) -> MomentFigures {
        let step = self.complete_history().is_some().then(|| self.step_at_moment()).flatten();
        let model = &self.model;
        let (recording, device) = (model.recording(), model.device());
        let owners = DeviceOwners::new(recording.info(), device, model.device_state());
        let is_failure = |kind: IncidentKind| matches!(kind, IncidentKind::OutOfMemory { .. });
        let incidents = model.marks().incidents().iter();
        let failures = incidents.filter(|one| one.device == device && is_failure(one.kind)).count() as u64;
        let has_events = recording.end_event() > recording.first_event();
        let others = [owners.outside_bytes, owners.others_bytes].into_iter().flatten();
        let last_step = self.analysis.jobs.findings.last_step(device);
        let last_step = last_step.filter(|_| model.origin() == Origin::Live && model.is_following());
        // Memory varies within a step: a live recording shows the last complete one.
        let [reserved, unused] = match last_step {
            Some([reserved, stuck, releasable]) => [reserved, stuck.saturating_add(releasable)],
            None => [owners.reserved_bytes, model.free_memory().space.total],
        };
        MomentFigures {
            device,
            device_bytes: owners.device_bytes,
            used_bytes: others.fold(reserved, u64::saturating_add),
            reserved_bytes: reserved,
            unused_bytes: unused,
            is_after_step: last_step.is_some(),
            largest_free_bytes: (!owners.lacks_segments).then(|| model.free_memory().space.largest),
            incomplete_history: recording
                .info()
                .device(device)
                .is_some_and(|info| !info.history_complete)
                .then(|| incomplete_history(recording)),
            inconsistencies: model.device_state().inconsistencies(),
            failures: has_events.then_some(failures),
            step,
        }
    }

    /// Returns the step at the moment, and the number of the last step; `None` without steps.
    fn step_at_moment(&mut self) -> Option<(StepAt, u64)> {
        let steps = self.step_scale()?;
        let event = self.model.state().event();
        Some((steps.step_at(event), steps.last_number()?))
    }
}
