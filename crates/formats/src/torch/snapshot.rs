//! A PyTorch snapshot as plain rows, which do not depend on whether the file was a pickle or JSON.

use std::collections::BTreeSet;
use std::ops::Range;

use vramscope_trace::{AnnotationStage, Definition, DeviceId, Interner, MempoolId, PoolKind, StackId, StringId};

use super::paged_list::PagedList;
use super::settings::RecordedSettings;

/// The action that a trace entry of PyTorch's allocator reports, such as an allocated block or a
/// freed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TraceAction {
    /// A block was allocated (`ALLOC`).
    Allocated,
    /// The program freed a block (`FREE_REQUESTED`).
    FreeRequested,
    /// A freed block returned to its pool (`FREE_COMPLETED`).
    FreeCompleted,
    /// A segment was obtained from the driver (`SEGMENT_ALLOC`).
    SegmentAllocated,
    /// A segment was returned to the driver (`SEGMENT_FREE`).
    SegmentFreed,
    /// Memory was mapped into an expandable segment (`SEGMENT_MAP`).
    SegmentMapped,
    /// Memory was unmapped from an expandable segment (`SEGMENT_UNMAP`).
    SegmentUnmapped,
    /// A request failed after every retry (`OOM`).
    OutOfMemory,
    /// A snapshot was taken, a note (`annotate`, formerly `user_defined`), or an unknown action.
    /// Becomes a mark.
    Other,
}

impl TraceAction {
    /// All actions; an [`Entry`] stores an action as its index here.
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

    /// Returns the action with PyTorch's name, such as `segment_map`; [`TraceAction::Other`] if it
    /// is unknown.
    pub(crate) fn from_name(name: &str) -> Self {
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

/// The origin of a memory request: call stack, user metadata and compile context, as numbers of
/// definitions; 0 where the snapshot lacks them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) stack: StackId,
    /// Text set by the program, `user_metadata`.
    pub(crate) scope: StringId,
    /// The region that torch.compile generated, `compile_context`.
    pub(crate) compile_context: StringId,
}

/// The facts of a history entry that many entries share: stream, private pool and texts. Each
/// combination is stored once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Context {
    pub(crate) stream: u64,
    /// The private pool, if the entry names it.
    pub(crate) mempool: Option<MempoolId>,
    /// Text set by the program, `user_metadata`.
    pub(crate) scope: StringId,
    /// The region that torch.compile generated, `compile_context`.
    pub(crate) compile_context: StringId,
    /// The name of the action if it is [`TraceAction::Other`].
    pub(crate) mark: StringId,
    /// True if the action is a note, whose text is in `scope`.
    pub(crate) is_note: bool,
}

/// One entry of a snapshot's history: an action on a block or segment. It has 32 bytes, because
/// there may be tens of millions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The address; the free bytes of the device for an out-of-memory entry.
    pub(crate) address: u64,
    /// Requested bytes of a block, or all bytes of a segment.
    pub(crate) size: u64,
    pub(crate) time_us: i64,
    pub(crate) stack: StackId,
    /// The action in the low bits, and the index of the context above them.
    tag: u32,
}

/// Number of low bits of an entry's tag that hold its action.
const ACTION_BITS: u32 = 4;
/// Value of [`Entry::time_us`] for an entry without a time.
pub(crate) const NO_TIME: i64 = i64::MIN;
/// Maximum number of [`Context`]s in a snapshot, because entries refer to them by a number of 28
/// bits. The import fails beyond it.
pub(crate) const MAX_CONTEXTS: usize = 1 << (u32::BITS - ACTION_BITS);

impl Entry {
    /// Creates an entry; `context` must be below [`MAX_CONTEXTS`].
    pub(crate) fn new(
        address: u64,
        size: u64,
        time_us: i64,
        stack: StackId,
        action: TraceAction,
        context: u32,
    ) -> Self {
        Self { address, size, time_us, stack, tag: action as u32 | context << ACTION_BITS }
    }

    /// Returns the action that the entry reports.
    pub(crate) fn action(&self) -> TraceAction {
        let number = self.tag & ((1 << ACTION_BITS) - 1);
        TraceAction::ALL.get(number as usize).copied().unwrap_or(TraceAction::Other)
    }

    /// Returns the index of the entry's context in [`Snapshot::contexts`].
    pub(crate) fn context(&self) -> usize {
        (self.tag >> ACTION_BITS) as usize
    }

    /// Returns true if the address range of the entry is valid: not empty, and its end is below
    /// 2⁶⁴.
    pub(crate) fn is_range(&self) -> bool {
        is_range(self.address, self.size)
    }
}

/// Returns true if the range of `size` bytes at `address` is valid: not empty, and its end is below
/// 2⁶⁴.
fn is_range(address: u64, size: u64) -> bool {
    size > 0 && address.checked_add(size).is_some()
}

/// State of a block at the end of the history: free, allocated or pending free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BlockState {
    #[default]
    Free,
    Allocated,
    PendingFree,
}

/// A block of a segment at the end of the history, as a snapshot lists it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockRow {
    /// Set for all blocks once their segment is complete.
    pub(crate) address: Option<u64>,
    pub(crate) size: u64,
    /// Missing in older versions.
    pub(crate) requested: Option<u64>,
    pub(crate) state: BlockState,
    pub(crate) origin: Origin,
}

impl BlockRow {
    /// Returns the block's address; `None` if it is missing, or the block is empty or its end
    /// overflows.
    pub(crate) fn valid_address(&self) -> Option<u64> {
        self.address.filter(|&address| is_range(address, self.size))
    }
}

/// A segment at the end of the history, as a snapshot lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentRow {
    pub(crate) device: u16,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    /// Missing in the oldest versions.
    pub(crate) kind: Option<PoolKind>,
    pub(crate) mempool: MempoolId,
    /// Missing in the first versions that had expandable segments.
    pub(crate) expandable: Option<bool>,
    pub(crate) origin: Origin,
    /// The range of its blocks in [`Snapshot::blocks`].
    pub(crate) blocks: Range<usize>,
}

impl SegmentRow {
    /// Returns the segment's end address, exclusive; 2⁶⁴ − 1 if the end would overflow.
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    /// Returns true if the address range of the segment is valid: not empty, and its end is below
    /// 2⁶⁴.
    pub(crate) fn is_range(&self) -> bool {
        is_range(self.address, self.size)
    }
}

/// A named moment or the beginning or end of a named interval, which PyTorch stores beside the
/// history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnnotationRow {
    pub(crate) device: u16,
    pub(crate) time_us: i64,
    pub(crate) stage: AnnotationStage,
    pub(crate) name: StringId,
}

/// The rows and settings of a PyTorch snapshot that this crate uses: entries, segments, blocks and
/// annotations.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// The entries of all devices; the entries of one device are in order.
    pub(crate) entries: PagedList<Entry>,
    pub(crate) contexts: Vec<Context>,
    /// The ranges of `entries` that make up the history of each device.
    pub(crate) traces: Vec<Vec<Range<u32>>>,
    /// The history of pinned host memory, [`DeviceId::HOST`].
    pub(crate) host_trace: Vec<Range<u32>>,
    pub(crate) segments: Vec<SegmentRow>,
    pub(crate) blocks: Vec<BlockRow>,
    pub(crate) annotations: Vec<AnnotationRow>,
    pub(crate) settings: RecordedSettings,
    /// True if any entry has a time.
    pub(crate) has_times: bool,
    /// True if the snapshot lists segments.
    pub(crate) has_segments: bool,
    /// Number of entries without a time, if others have one.
    pub(crate) untimed: u64,
    /// Number of invalid values that were ignored, such as a negative size.
    pub(crate) invalid_values: u64,
    /// Description of the first invalid value.
    pub(crate) first_invalid: Option<&'static str>,
    /// Assigns the numbers of strings, frames, stacks and sites.
    pub(crate) interner: Interner,
    /// The definitions that the interner has produced so far.
    pub(crate) definitions: Vec<Definition>,
}

impl Snapshot {
    /// Returns the segments of one device, sorted by address. Valid only after
    /// [`Builder::finish`](super::builder::Builder::finish) has sorted all segments.
    pub(crate) fn segments_of(&self, device: u16) -> &[SegmentRow] {
        let first = self.segments.partition_point(|row| row.device < device);
        let end = self.segments.partition_point(|row| row.device <= device);
        &self.segments[first..end]
    }

    /// Returns the ranges of indices in `entries` that make up the history of a device, in order;
    /// empty if it has no history.
    pub(crate) fn trace_of(&self, device: u16) -> &[Range<u32>] {
        if DeviceId(device) == DeviceId::HOST {
            return &self.host_trace;
        }
        self.traces.get(usize::from(device)).map_or(&[], Vec::as_slice)
    }

    /// Returns the numbers of the devices that have entries or segments, sorted; [`DeviceId::HOST`]
    /// is last.
    pub(crate) fn devices(&self) -> Vec<u16> {
        let with_segments = self.segments.iter().map(|row| row.device);
        let with_history = self.listed_devices().chain([DeviceId::HOST.0]).filter(|&id| !self.trace_of(id).is_empty());
        let devices: BTreeSet<u16> = with_segments.chain(with_history).collect();
        devices.into_iter().collect()
    }

    /// Returns the numbers of the devices for which the snapshot has a list of entries, even an
    /// empty one.
    pub(crate) fn listed_devices(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.traces.len().min(usize::from(DeviceId::HOST.0)) as u16
    }

    /// Returns the context of an entry of this snapshot: its stream, private pool and texts.
    pub(crate) fn context(&self, entry: &Entry) -> Context {
        self.contexts.get(entry.context()).copied().unwrap_or_default()
    }
}
