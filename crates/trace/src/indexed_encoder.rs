//! Encodes a whole recording with an index at its end.

use crate::encoder::Encoder;
use crate::event::Event;
use crate::info::RecordingInfo;
use crate::memory_state::MemoryState;
use crate::recording::Recording;
use crate::sink::Sink;

/// An [`Encoder`] for whole recordings: full states keep their event numbers, and an index follows
/// the last chunk. [`RangeCopy`](crate::RangeCopy) shows its use.
#[derive(Debug)]
pub struct IndexedEncoder {
    encoder: Encoder,
    /// The recording written so far, from which the index is computed; `None` once it exceeds the
    /// limits of a reader.
    written: Option<Recording>,
}

impl IndexedEncoder {
    /// Creates an encoder; the output contains the header chunk at once.
    #[must_use]
    pub fn new(info: &RecordingInfo) -> Self {
        Self { encoder: Encoder::new(info), written: Some(Recording::overview_only(None)) }
    }

    /// Replaces the recording's metadata, which becomes known completely only at the end of an
    /// import.
    pub fn update_info(&mut self, info: &RecordingInfo) {
        self.encoder.update_info(info);
    }

    /// Returns the bytes of the chunks that were completed since the last call, in order.
    pub fn take_output(&mut self) -> Vec<Vec<u8>> {
        let chunks = self.encoder.take_output();
        for chunk in &chunks {
            self.written.take_if(|written| written.push(&chunk.bytes).is_err());
        }
        chunks.into_iter().map(|chunk| chunk.bytes).collect()
    }

    /// Returns the bytes of the last chunks and of the index. Concatenated, all bytes are the
    /// recording.
    pub fn finish(&mut self) -> Vec<Vec<u8>> {
        self.encoder.flush();
        let mut output = self.take_output();
        output.extend(self.written.iter().flat_map(Recording::index).map(|chunk| chunk.bytes));
        output
    }

    /// Returns the memory state after all events received so far.
    #[must_use]
    pub fn state(&self) -> &MemoryState {
        self.encoder.state()
    }
}

impl Sink for IndexedEncoder {
    fn event(&mut self, event: &Event) {
        self.encoder.event(event);
    }

    fn inner_sink(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.encoder)
    }

    fn replace_state(&mut self, state: &MemoryState) {
        // Keep the numbers of events after a late beginning or a gap.
        self.encoder.skip_to(state.event());
        self.encoder.replace_state(state);
    }
}
