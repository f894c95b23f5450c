//! The bar with the verdict and the vital signs.

use vramscope_insight::pools::DeviceOwners;
use vramscope_trace::IncidentKind;

use super::session::Session;
use crate::details::verdict::{VitalSigns, elements};
use crate::model::Origin;
use crate::protocol::PageUpdate;

impl Session {
    /// Adds the bar with the verdict to `update` if it has changed.
    pub(super) fn update_verdict(&mut self, update: &mut PageUpdate) {
        let bar = match self.model.origin() {
            Origin::Empty => Vec::new(),
            _ => {
                let signs = self.vital_signs();
                elements(&self.analysis.jobs, &signs)
            }
        };
        if self.details.verdict.as_ref() != Some(&bar) {
            update.verdict = Some(bar.clone());
            self.details.verdict = Some(bar);
        }
    }

    /// Returns the vital signs of the device at the moment.
    fn vital_signs(&mut self) -> VitalSigns {
        let step = self.complete_history().is_some().then(|| self.step_at_moment()).flatten();
        let model = &self.model;
        let (recording, device) = (model.recording(), model.device());
        let owners = DeviceOwners::new(recording.info(), device, model.device_state());
        let is_failure = |kind: IncidentKind| matches!(kind, IncidentKind::OutOfMemory { .. });
        let incidents = model.marks().incidents().iter();
        let failures = incidents.filter(|one| one.device == device && is_failure(one.kind)).count() as u64;
        let has_events = recording.end_event() > recording.first_event();
        let others = [owners.outside_bytes, owners.others_bytes].into_iter().flatten();
        VitalSigns {
            device_bytes: owners.device_bytes,
            used_bytes: others.fold(owners.reserved_bytes, u64::saturating_add),
            reserved_bytes: owners.reserved_bytes,
            unused_bytes: model.free_memory().space.total,
            failures: has_events.then_some(failures),
            step,
        }
    }

    /// Returns the number of the step at the moment, and of all steps; `None` without steps.
    fn step_at_moment(&mut self) -> Option<(Option<u64>, u64)> {
        let steps = self.step_scale()?;
        let event = self.model.state().event();
        Some((steps.number_at(event), steps.last_number()?))
    }
}
