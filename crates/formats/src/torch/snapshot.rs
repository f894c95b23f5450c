//! A PyTorch snapshot as plain rows, the same whether it came as a pickle or as JSON.

use std::collections::BTreeSet;
use std::ops::Range;

use vramscope_trace::{Definition, DeviceId, Interner, MempoolId, PoolKind, StackId, Stage, StringId};

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
    /// A snapshot was taken, a note (`annotate`, and `user_defined` before it), or something that this reader does not know: a mark.
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

/// Where memory was asked for, as far as the snapshot says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) stack: StackId,
    /// The program's own words, `user_metadata`.
    pub(crate) scope: StringId,
    /// The region that torch.compile made, `compile_context`.
    pub(crate) compiled: StringId,
}

/// What many entries have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Context {
    pub(crate) stream: u64,
    /// The private pool, where the entry says it.
    pub(crate) owner: Option<MempoolId>,
    /// The program's own words, `user_metadata`.
    pub(crate) scope: StringId,
    /// The region that torch.compile made, `compile_context`.
    pub(crate) compiled: StringId,
    /// The name of the action, where it is [`Action::Other`].
    pub(crate) mark: StringId,
    /// The action is that the program notes something, in words of its own.
    pub(crate) is_note: bool,
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
/// The time of an entry that says none.
pub(crate) const NO_TIME: i64 = i64::MIN;
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
        is_range(self.address, self.size)
    }
}

fn is_range(address: u64, size: u64) -> bool {
    size > 0 && address.checked_add(size).is_some()
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
    pub(crate) origin: Origin,
}

impl BlockRow {
    /// The address of a block that there can be.
    pub(crate) fn place(&self) -> Option<u64> {
        self.address.filter(|&address| is_range(address, self.size))
    }
}

/// A segment, at the end of the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentRow {
    pub(crate) device: u16,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// The oldest versions do not say it.
    pub(crate) kind: Option<PoolKind>,
    pub(crate) owner: MempoolId,
    /// The first versions that had such segments do not say it.
    pub(crate) expandable: Option<bool>,
    pub(crate) origin: Origin,
    /// Which of [`Snapshot::blocks`] are in it.
    pub(crate) blocks: Range<usize>,
}

impl SegmentRow {
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    /// Whether there can be memory where the row says.
    pub(crate) fn is_range(&self) -> bool {
        is_range(self.address, self.size)
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
    /// The same of the host's pinned memory, [`DeviceId::HOST`].
    pub(crate) host_trace: Vec<Range<u32>>,
    pub(crate) segments: Vec<SegmentRow>,
    pub(crate) blocks: Vec<BlockRow>,
    pub(crate) annotations: Vec<AnnotationRow>,
    pub(crate) settings: RecordedSettings,
    /// Whether any entry has a time.
    pub(crate) has_times: bool,
    /// Whether the snapshot lists segments at all.
    pub(crate) has_segments: bool,
    /// How many entries have none although others have.
    pub(crate) untimed: u64,
    /// Values that mean nothing where they stand, such as a negative size, and were read as if they were not there: how many, and
    /// what the first of them was.
    pub(crate) odd_values: u64,
    pub(crate) first_odd: Option<&'static str>,
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

    /// Which entries are the history of a device.
    pub(crate) fn trace_of(&self, device: u16) -> &[Range<u32>] {
        if DeviceId(device) == DeviceId::HOST {
            return &self.host_trace;
        }
        self.traces.get(usize::from(device)).map_or(&[], Vec::as_slice)
    }

    /// The devices that have a history or segments, in order, the host last.
    pub(crate) fn devices(&self) -> Vec<u16> {
        let with_segments = self.segments.iter().map(|row| row.device);
        let with_history = self.listed_devices().chain([DeviceId::HOST.0]).filter(|&id| !self.trace_of(id).is_empty());
        let devices: BTreeSet<u16> = with_segments.chain(with_history).collect();
        devices.into_iter().collect()
    }

    /// The devices for which the snapshot has a list of entries, be it an empty one.
    pub(crate) fn listed_devices(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.traces.len().min(usize::from(DeviceId::HOST.0)) as u16
    }

    /// The context of an entry of this snapshot.
    pub(crate) fn context(&self, entry: &Entry) -> Context {
        self.contexts.get(entry.context()).copied().unwrap_or_default()
    }
}
