//! The progress of dropping the oldest part of a recording.

use super::overview::Overview;
use crate::decoder::DecodeContext;

/// The progress of decoding again the part of a recording that stays, while the oldest part is
/// being dropped.
#[derive(Debug)]
pub(super) struct TrimProgress {
    /// Byte offset of the first full state that stays.
    pub(super) cut: u64,
    /// The moment of that full state.
    pub(super) first_event: u64,
    /// Index in `Recording::chunks` of the next chunk to decode.
    pub(super) next_chunk: usize,
    pub(super) context: DecodeContext,
    pub(super) overview: Overview,
}
