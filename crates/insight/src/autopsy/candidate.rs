//! Changes that may have prevented a failure.

use vramscope_pool::Settings;
use vramscope_pool::rerun::Edits;

/// What a remedy changes, the smallest change first. [`id`](Self::id) is the name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RemedyKind {
    /// Other allocator settings.
    Setting,
    /// Wait for all streams before the request.
    Synchronize,
    /// Empty the cache before the request.
    EmptyCache,
    /// Free what one line holds before the request.
    FreeEarlier,
    /// Compute the failed request's result in parts, or without it.
    AvoidTemporary,
    /// Train with a smaller batch.
    SmallerBatch,
    /// Compute activations again in the backward pass.
    Checkpoint,
}

impl RemedyKind {
    /// Returns the machine-readable name.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Synchronize => "synchronize",
            Self::EmptyCache => "empty_cache",
            Self::FreeEarlier => "free_earlier",
            Self::AvoidTemporary => "avoid_temporary",
            Self::SmallerBatch => "smaller_batch",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// A change with which a simulated run has no such failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// What it changes.
    pub kind: RemedyKind,
    /// The change, as a line to paste or a phrase.
    pub detail: String,
    /// Bytes by which the reserved peak of the changed run is below what the failed request would
    /// have needed: the bytes reserved then, and its segment.
    pub saves_bytes: u64,
    /// The reserved peak of the changed run.
    pub peak_reserved_bytes: u64,
}

/// One change to try.
#[derive(Clone, Debug)]
pub(super) struct Alternative {
    pub(super) detail: String,
    pub(super) settings: Settings,
    pub(super) edits: Edits,
}

/// The changes of one kind, the smallest first.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub(super) kind: RemedyKind,
    pub(super) alternatives: Vec<Alternative>,
}

impl Candidate {
    /// Returns what the candidate changes.
    #[must_use]
    pub fn kind(&self) -> RemedyKind {
        self.kind
    }
}
