//! The selected device and its free memory.

use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::{FreeMemory, free_memory};
use vramscope_trace::{DeviceId, FormatError};

use super::state::Model;

impl Model {
    /// Selects another device to show, at the current moment, and clears the selection. Does
    /// nothing if the device is selected or the recording has no events of it.
    ///
    /// # Errors
    /// If the recording cannot be read at this moment.
    pub fn set_device(&mut self, device: DeviceId) -> Result<(), FormatError> {
        if self.recording.series(device).is_some() && device != self.device {
            self.device = device;
            (self.selection, self.selected_since) = (None, None);
            self.peaks = Default::default();
            self.find_peaks();
            self.everything_changed();
            let (pending, holds_span) = (self.pending_moment, self.holds_span);
            self.holds_span = true;
            self.go_to(self.state().event())?;
            // The page still goes to a moment that is being loaded.
            if pending.is_some() {
                (self.pending_moment, self.holds_span) = (pending, holds_span);
            }
        }
        Ok(())
    }

    /// Returns the free memory in the selected device's segments at the moment on the screen. The
    /// first call at a moment visits all blocks.
    pub fn free_memory(&self) -> FreeMemory {
        let (device, event) = (self.device, self.state().event());
        if let Some((_, _, free)) = self.free_memory.get().filter(|(known, at, _)| (*known, *at) == (device, event)) {
            return free;
        }
        let free = free_memory(self.device_state(), &recorded_settings(self.recording.info()));
        self.free_memory.set(Some((device, event, free)));
        free
    }
}
