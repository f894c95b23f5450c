//! Encodes imported events as a recording with an index.

use vramscope_trace::{Event, IndexedEncoder, RecordingInfo, Sink};

use crate::error::Result;

/// Number of events after which a [`ChunkWriter`] passes finished chunks to its function.
const EVENTS_PER_WRITE: u32 = 1024;

/// A sink that encodes the received items as a recording and passes finished chunks to a function,
/// so that little of the recording is in memory.
pub(crate) struct ChunkWriter<F> {
    encoder: IndexedEncoder,
    write: F,
    /// The first error of `write`.
    result: Result,
    pending_events: u32,
}

impl<F> ChunkWriter<F>
where
    F: FnMut(&[u8]) -> Result,
{
    /// Creates a writer for the recording that `info` describes.
    pub(crate) fn new(info: &RecordingInfo, write: F) -> Self {
        Self { encoder: IndexedEncoder::new(info), write, result: Ok(()), pending_events: 0 }
    }

    /// Adds the notes of an import to the recording, if there are any.
    pub(crate) fn add_notes(&mut self, info: &RecordingInfo) {
        if !info.import_notes.is_empty() {
            self.encoder.update_info(info);
        }
    }

    /// Passes the encoder's finished chunks to the writer's function.
    fn write_chunks(&mut self) {
        self.pending_events = 0;
        let output = self.encoder.take_output();
        self.write_all(output);
    }

    /// Passes the bytes of chunks to the writer's function. Does nothing after its first error.
    fn write_all(&mut self, output: Vec<Vec<u8>>) {
        for bytes in output {
            if self.result.is_ok() {
                self.result = (self.write)(&bytes);
            }
        }
    }

    /// Passes the last chunk and the index to the writer's function. Returns the number of events,
    /// or the function's first error.
    pub(crate) fn finish(mut self) -> Result<u64> {
        let output = self.encoder.finish();
        self.write_all(output);
        self.result.map(|()| self.encoder.state().event())
    }
}

impl<F: FnMut(&[u8]) -> Result> Sink for ChunkWriter<F> {
    fn event(&mut self, event: &Event) {
        self.encoder.event(event);
        self.pending_events += 1;
        if self.pending_events == EVENTS_PER_WRITE {
            self.write_chunks();
        }
    }
    fn inner_sink(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.encoder)
    }
}
