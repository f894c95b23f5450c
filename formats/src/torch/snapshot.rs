//! A PyTorch snapshot as plain rows, the same whether it came as a pickle or as JSON.

use std::collections::BTreeSet;
use std::ops::Range;

use vramscope_trace::{Definition, Interner, MempoolId, PoolKind, StackId, Stage, StringId};

use super::settings::RecordedSettings;

/// What an entry of the history says happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Action {
    Allocated,
    FreeRequested,
    FreeCompleted,
    SegmentAllocated,
    SegmentFreed,
    SegmentMapped,
    SegmentUnmapped,
    OutOfMemory,
    /// A snapshot was taken, a note, or something that this reader does not know: a mark.
    Other,
}

impl Action {
    const ALL: [Self; 9] = [
        Self::Allocated,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAllocated,
        Self::SegmentFreed,
        Self::SegmentMapped,
        Self::SegmentUnmapped,
        Self::OutOfMemory,
        Self::Other,
    ];

    pub(crate) fn of(name: &str) -> Self {
        match name {
            "alloc" => Self::Allocated,
            "free_requested" => Self::FreeRequested,
            "free_completed" => Self::FreeCompleted,
            "segment_alloc" => Self::SegmentAllocated,
            "segment_free" => Self::SegmentFreed,
            "segment_map" => Self::SegmentMapped,
            "segment_unmap" => Self::SegmentUnmapped,
            "oom" => Self::OutOfMemory,
            _ => Self::Other,
        }
    }
}

/// What many entries have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Context {
    pub(crate) stream: u64,
    /// The private pool, where the entry says it.
    pub(crate) owner: Option<MempoolId>,
    /// The program's own words, `user_metadata`.
    pub(crate) scope: StringId,
    /// The name of the action, where it is [`Action::Other`].
    pub(crate) mark: StringId,
}

/// One entry of the history, in 32 bytes: there may be tens of millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The address; for an out-of-memory, the bytes that the device had free.
    pub(crate) address: u64,
    /// Requested bytes of a block, whole bytes of a segment.
    pub(crate) size: u64,
    pub(crate) time_us: i64,
    pub(crate) stack: StackId,
    /// The action in the low bits, the number of the context above.
    tag: u32,
}

const ACTION_BITS: u32 = 4;
/// How many contexts an entry can tell apart.
pub(crate) const MAX_CONTEXTS: usize = 1 << (u32::BITS - ACTION_BITS);

impl Entry {
    /// `context` is below [`MAX_CONTEXTS`].
    pub(crate) fn new(address: u64, size: u64, time_us: i64, stack: StackId, action: Action, context: u32) -> Self {
        Self { address, size, time_us, stack, tag: action as u32 | context << ACTION_BITS }
    }

    pub(crate) fn action(&self) -> Action {
        let number = self.tag & ((1 << ACTION_BITS) - 1);
        Action::ALL.get(number as usize).copied().unwrap_or(Action::Other)
    }

    pub(crate) fn context(&self) -> usize {
        (self.tag >> ACTION_BITS) as usize
    }

    /// Whether there can be memory where the entry says: at least one byte, and an end that is an address.
    pub(crate) fn is_range(&self) -> bool {
        self.size > 0 && self.address.checked_add(self.size).is_some()
    }
}

/// What a block is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BlockState {
    #[default]
    Free,
    Allocated,
    PendingFree,
}

/// A block of a segment, at the end of the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockRow {
    /// Always there once its segment is complete.
    pub(crate) address: Option<u64>,
    pub(crate) size: u64,
    /// Older versions do not say it.
    pub(crate) requested: Option<u64>,
    pub(crate) state: BlockState,
    pub(crate) stack: StackId,
}

/// A segment, at the end of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentRow {
    pub(crate) device: u16,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) kind: PoolKind,
    pub(crate) owner: MempoolId,
    pub(crate) expandable: bool,
    pub(crate) stack: StackId,
    /// Which of [`Snapshot::blocks`] are in it.
    pub(crate) blocks: Range<usize>,
}

impl SegmentRow {
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }
}

/// A named moment beside the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnnotationRow {
    pub(crate) device: u16,
    pub(crate) time_us: i64,
    pub(crate) stage: Stage,
    pub(crate) name: StringId,
}

/// Everything that a snapshot says and this reader uses.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// The entries of all devices, each device's in order.
    pub(crate) entries: Vec<Entry>,
    pub(crate) contexts: Vec<Context>,
    /// By device, which entries are its history.
    pub(crate) traces: Vec<Vec<Range<u32>>>,
    pub(crate) segments: Vec<SegmentRow>,
    pub(crate) blocks: Vec<BlockRow>,
    pub(crate) annotations: Vec<AnnotationRow>,
    pub(crate) settings: RecordedSettings,
    /// Whether any entry has a time.
    pub(crate) has_times: bool,
    /// Whether the snapshot lists segments at all.
    pub(crate) has_segments: bool,
    /// Parts that are not read yet, by name.
    pub(crate) left_out: Vec<&'static str>,
    /// Gives out the numbers of strings, frames, stacks and sites.
    pub(crate) interner: Interner,
    /// What the interner has defined so far.
    pub(crate) definitions: Vec<Definition>,
}

impl Snapshot {
    /// The segments of one device. They lie in order of device and address once the snapshot is complete.
    pub(crate) fn segments_of(&self, device: u16) -> &[SegmentRow] {
        let first = self.segments.partition_point(|row| row.device < device);
        let end = self.segments.partition_point(|row| row.device <= device);
        &self.segments[first..end]
    }

    /// The devices that have a history or segments, in order.
    pub(crate) fn devices(&self) -> Vec<u16> {
        let with_segments = self.segments.iter().map(|row| row.device);
        let with_history =
            (0..=u16::MAX).zip(&self.traces).filter(|(_, trace)| !trace.is_empty()).map(|(device, _)| device);
        let devices: BTreeSet<u16> = with_segments.chain(with_history).collect();
        devices.into_iter().collect()
    }

    /// The context of an entry of this snapshot.
    pub(crate) fn context(&self, entry: &Entry) -> Context {
        self.contexts.get(entry.context()).copied().unwrap_or_default()
    }
}
