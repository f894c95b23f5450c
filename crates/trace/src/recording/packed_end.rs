//! The state at the end of a recording that was opened by its index, decoded on first use.

use std::sync::OnceLock;

use crate::chunk::PackedChunk;
use crate::compression::Decompressor;
use crate::decoder::decompress_state;
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::memory_state::MemoryState;

/// The chunk of the full state at the end of a recording, and the state once it is decoded.
#[derive(Debug)]
pub(super) struct PackedEnd {
    packed: PackedChunk,
    /// The state; `None` if it cannot be decoded.
    state: OnceLock<Option<MemoryState>>,
}

impl PackedEnd {
    /// Creates it from the chunk of a full state, which is not decoded yet.
    pub(super) fn new(packed: PackedChunk) -> Self {
        Self { packed, state: OnceLock::new() }
    }

    /// Decodes the state: all devices or, if `only` is given, this device. The state is not kept.
    pub(super) fn decode(
        &self,
        only: Option<DeviceId>,
        decompressor: &mut Decompressor,
    ) -> Result<MemoryState, FormatError> {
        decompress_state(&self.packed, decompressor, only)
    }

    /// Decodes the state, unless that was done before, and keeps it.
    ///
    /// # Errors
    /// If it cannot be decoded.
    pub(super) fn check(&self) -> Result<(), FormatError> {
        let state = self.decode(None, &mut Decompressor::default())?;
        self.state.get_or_init(|| Some(state));
        Ok(())
    }

    /// Returns the state at the recording's end if it has been decoded before.
    pub(super) fn known_state(&self) -> Option<&MemoryState> {
        self.state.get()?.as_ref()
    }

    /// Returns the state, decoding it in the first call; `None` if it cannot be decoded.
    pub(super) fn state(&self) -> Option<&MemoryState> {
        self.state.get_or_init(|| self.decode(None, &mut Decompressor::default()).ok()).as_ref()
    }
}
