//! Reads a snapshot from a pickle of protocol 2 to 5.
//!
//! [`Machine`] executes the instructions. The values that they create are in the [`heap`] and
//! referred to by number ([`value`]). `convert` finds the snapshot in the result.

mod convert;
mod fast_entry;
mod heap;
mod input;
mod machine;
mod memo;
pub(crate) mod opcode;
mod unsupported;
mod value;

use machine::Machine;

use super::snapshot::Snapshot;
use crate::error::ReadError;
use crate::limits::Limits;

/// Reads a PyTorch snapshot from a pickle whose bytes arrive in pieces. Bytes are dropped as soon
/// as they have been read.
#[derive(Debug)]
pub(crate) struct PickleReader {
    machine: Machine,
}

impl PickleReader {
    /// Starts at the first byte of a pickle.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { machine: Machine::new(limits) }
    }

    /// Returns the buffer to which the next bytes of the pickle must be appended.
    pub(crate) fn buffer_mut(&mut self) -> &mut Vec<u8> {
        self.machine.input.buffer_mut()
    }

    /// Reads the bytes that were appended to the buffer.
    pub(crate) fn run(&mut self) -> Result<(), ReadError> {
        self.machine.run()
    }

    /// Returns the number of history entries read so far.
    pub(crate) fn entries(&self) -> u64 {
        self.machine.builder.snapshot.entries.len() as u64
    }

    /// Reads the last bytes and returns the snapshot, after the whole pickle was appended to the
    /// buffer.
    pub(crate) fn finish(mut self) -> Result<Snapshot, ReadError> {
        let (top, end) = self.machine.finish()?;
        let Machine { mut heap, mut builder, memo, .. } = self.machine;
        drop(memo);
        heap.allow_row_pairs(end);
        convert::snapshot(top, &mut heap, &mut builder).map_err(|error| ReadError::at(end, error.to_string()))?;
        Ok(builder.finish())
    }
}
