//! Comparing with another recording, device or moment.

use vramscope_trace::Recording;

use crate::model::CompareWith;
use crate::views::ViewKind;

use super::core::Session;

impl Session {
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
        self.show(ViewKind::Compare.name())
    }

    /// Executes a command about comparing: `pin-moment`, `compare-with` or `compare-close`.
    pub(super) fn execute_comparing(&mut self, name: &str, argument: &str) -> Result<(), String> {
        let model = &mut self.model;
        match name {
            "pin-moment" => {
                let (device, event) = (model.device(), model.state().event());
                model.comparison.pin(device, event);
                self.show(ViewKind::Compare.name())?;
            }
            "compare-close" => model.comparison.close(),
            _ => {
                let with = CompareWith::from_name(argument);
                model.comparison.chosen = Some(with.ok_or_else(|| format!("cannot compare with {argument:?}"))?);
            }
        }
        Ok(())
    }
}
