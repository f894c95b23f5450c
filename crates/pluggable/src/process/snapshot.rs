//! Snapshots of the pools in PyTorch's format.

use vramscope_formats::export;
use vramscope_trace::{Block, DeviceId, DeviceState, Encoder, MemoryState, Recording, Segment, Sink, SiteId};

use super::{DeviceSource, ProcessState, lock};

/// Reads a recording from its chunks.
fn read<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Result<Recording, String> {
    let mut recording = Recording::new();
    for bytes in chunks {
        recording.push(bytes).map_err(|error| error.to_string())?;
    }
    Ok(recording)
}

/// Returns the device's state with all sites set to unknown, because a snapshot without a recording
/// has no definitions of sites.
fn without_sites(state: &DeviceState) -> DeviceState {
    let mut plain = DeviceState::default();
    for segment in state.segments() {
        plain.insert_segment(Segment { site: SiteId(0), ..*segment });
    }
    for block in state.blocks() {
        plain.insert_block(Block { site: SiteId(0), ..*block });
    }
    plain
}

impl<S: DeviceSource> ProcessState<S> {
    /// Returns the pools' segments and blocks as a pickle, as `torch.cuda.memory._snapshot()` has
    /// them. With `with_history`, it has the events of the recording in progress, if it is kept in
    /// memory, and the scopes of blocks.
    pub(crate) fn snapshot_pickle(&self, with_history: bool) -> Result<Vec<u8>, String> {
        let history = if with_history { lock(&self.session).history() } else { None };
        let recording = if let Some((recording, hub)) = history {
            recording.handle().flush();
            read(hub.everything().iter().map(|chunk| chunk.bytes.as_ref()))?
        } else {
            let settings = lock(&self.settings).clone();
            let mut memory = MemoryState::default();
            for (number, pool) in self.pools() {
                *memory.device_mut(DeviceId(number)) = without_sites(&pool.memory_state());
            }
            let mut encoder = Encoder::new(&self.recording_info(&settings));
            encoder.replace_state(&memory);
            encoder.flush();
            read(encoder.take_output().iter().map(|chunk| chunk.bytes.as_ref()))?
        };
        let mut pickle = Vec::new();
        export::memory_viz_pickle(&recording, &mut pickle, &mut |_, _| {}).map_err(|error| error.to_string())?;
        Ok(pickle)
    }
}
