//! Builds a [`Snapshot`] from the fields that a reader parses.

use std::collections::HashMap;
use std::ops::Range;

use vramscope_trace::{AnnotationStage, Definition, DeviceId, Frame, FrameId, PoolKind, StackId, StringId};

use super::key::SnapshotKey;
use super::scalar::{FieldError, FieldResult, Scalar};
use super::settings::RecordedSettings;
use super::snapshot::{
    AnnotationRow, BlockRow, BlockState, Context, Entry, MAX_CONTEXTS, NO_TIME, Origin, SegmentRow, Snapshot,
    TraceAction,
};
use crate::limits::{LimitExceeded, MemoryBudget};

/// The kind of memory that a list of segments describes: device memory or pinned host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// Device memory; the list names the devices.
    Devices,
    /// Pinned host memory.
    Host,
}

/// Device number that marks a segment whose own number is missing or invalid. It is the number of
/// the host, which no segment of a device has.
const INVALID_DEVICE: u16 = DeviceId::HOST.0;

/// An entry of the history whose fields are still being parsed; [`Builder::push_entry`] packs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryDraft {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) time_us: i64,
    pub(crate) action: TraceAction,
    pub(crate) context: Context,
    pub(crate) stack: StackId,
}

impl Default for EntryDraft {
    fn default() -> Self {
        let (context, stack) = Default::default();
        Self { address: 0, size: 0, time_us: NO_TIME, action: TraceAction::Other, context, stack }
    }
}

/// Returns true for a frame's file name that means "unknown", empty or `??`, as many C++ frames
/// have.
pub(crate) fn is_unknown_file(file: &str) -> bool {
    file.is_empty() || file == "??"
}

/// Returns true for an empty text and for `N/A`, which PyTorch writes instead of an empty text.
pub(crate) fn is_empty_text(text: &str) -> bool {
    matches!(text, "" | "N/A")
}

/// Converts a value to a CUDA stream handle; 0, the default stream, if it is not an integer.
fn stream_handle(value: Scalar<'_>) -> u64 {
    value.as_bits().or(value.as_whole_number()).unwrap_or(0)
}

/// Estimated memory for one string, frame, stack or site, in bytes: in the snapshot's list of
/// definitions, in the interner and in its hash table.
const DEFINITION_BYTES: usize = 96;
/// Estimated memory for one [`Context`] of the snapshot, in bytes, with its share of the hash
/// table.
const CONTEXT_BYTES: usize = 128;

/// A snapshot that is being read: the rows so far, and the memory that reading may still use.
#[derive(Debug)]
pub(crate) struct Builder {
    pub(crate) snapshot: Snapshot,
    pub(crate) budget: MemoryBudget,
    /// The index of each context in [`Snapshot::contexts`].
    context_numbers: HashMap<Context, u32>,
    /// The context of the previous entry and its index. The next entry nearly always has an equal
    /// context.
    last_context: Option<(Context, u32)>,
}

impl Builder {
    /// Creates the builder of an empty snapshot that may take `max_bytes` of memory.
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self {
            snapshot: Snapshot::default(),
            budget: MemoryBudget::new(max_bytes),
            context_numbers: HashMap::new(),
            last_context: None,
        }
    }

    /// Moves definitions that are new in the interner to the snapshot and subtracts their memory
    /// from the budget.
    fn take_new_definitions(&mut self) -> Result<(), LimitExceeded> {
        for definition in self.snapshot.interner.take_new() {
            let text_len = if let Definition::String(text) = &definition { 2 * text.len() } else { 0 };
            self.budget.spend(DEFINITION_BYTES + text_len)?;
            self.snapshot.definitions.push(definition);
        }
        Ok(())
    }

    /// Returns the number of a text in the recording, and adds the text if it is new.
    pub(crate) fn string(&mut self, text: &str) -> Result<StringId, LimitExceeded> {
        let id = self.snapshot.interner.string(text);
        self.take_new_definitions()?;
        Ok(id)
    }

    /// Returns the number of a call frame in the recording, and adds the frame if it is new. `line`
    /// is 0 if unknown.
    pub(crate) fn frame(&mut self, function: StringId, file: StringId, line: u32) -> Result<FrameId, LimitExceeded> {
        let id = self.snapshot.interner.frame(Frame { function, file, line });
        self.take_new_definitions()?;
        Ok(id)
    }

    /// Returns the number of the call stack with these frames, innermost first, and adds the stack
    /// if it is new.
    pub(crate) fn stack(&mut self, frames: &[FrameId]) -> Result<StackId, LimitExceeded> {
        let interner = &mut self.snapshot.interner;
        let stack = frames.iter().rev().fold(StackId(0), |caller, &frame| interner.stack(frame, caller));
        self.take_new_definitions()?;
        Ok(stack)
    }

    /// Sets the field of a history entry that `key` names; ignores other keys. Fails for a value
    /// that PyTorch never writes there. Call stacks ([`SnapshotKey::Frames`]) are read elsewhere.
    #[inline]
    pub(crate) fn entry_field(&mut self, draft: &mut EntryDraft, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        match key {
            SnapshotKey::Action => {
                let name = value.as_str().ok_or(FieldError::Invalid("an entry's action is not a string"))?;
                draft.action = TraceAction::from_name(name);
                if draft.action == TraceAction::Other {
                    draft.context.mark = self.text(value)?;
                    draft.context.is_note = matches!(name, "annotate" | "user_defined");
                }
            }
            SnapshotKey::Addr | SnapshotKey::DeviceFree => {
                draft.address = match value.as_bits() {
                    Some(address) => address,
                    None => self.invalid_number(value, "an entry's address is not a 64-bit number")?,
                };
            }
            SnapshotKey::Size => {
                draft.size = match value.as_u64() {
                    Some(size) => size,
                    None => self.invalid_number(value, "an entry's size is not a count of bytes")?,
                };
            }
            SnapshotKey::TimeUs => {
                if let Some(time_us) = value.as_time_us() {
                    draft.time_us = time_us;
                    self.snapshot.has_times = true;
                }
            }
            SnapshotKey::Stream => draft.context.stream = stream_handle(value),
            SnapshotKey::PoolId => draft.context.mempool = value.as_pool_id(),
            SnapshotKey::UserMetadata => draft.context.scope = self.optional_string(value)?,
            SnapshotKey::CompileContext => draft.context.compile_context = self.optional_string(value)?,
            _ => {}
        }
        Ok(())
    }

    /// Returns the number of a text in the recording; 0 if the value is not a text, empty or `N/A`.
    fn optional_string(&mut self, value: Scalar<'_>) -> Result<StringId, LimitExceeded> {
        if value.as_str().is_some_and(is_empty_text) { Ok(StringId(0)) } else { self.text(value) }
    }

    /// Returns the number of a text in the recording; 0 if the value is not a text or empty.
    fn text(&mut self, value: Scalar<'_>) -> Result<StringId, LimitExceeded> {
        match value {
            Scalar::Text(_, Some(number)) => Ok(number),
            Scalar::Text(text, None) => self.string(text),
            _ => Ok(StringId(0)),
        }
    }

    /// Sets the user metadata or the compile context of a segment or block; ignores other keys.
    /// Call stacks ([`SnapshotKey::Frames`]) are read elsewhere.
    fn origin_field(&mut self, origin: &mut Origin, key: SnapshotKey, value: Scalar<'_>) -> Result<(), LimitExceeded> {
        match key {
            SnapshotKey::UserMetadata => origin.scope = self.optional_string(value)?,
            SnapshotKey::CompileContext => origin.compile_context = self.optional_string(value)?,
            _ => {}
        }
        Ok(())
    }

    /// Returns the number to use for a value that is not a valid count or address: a float is
    /// rounded down; null, a list or a negative number counts as invalid and becomes 0. Fails with
    /// `problem` for a text, boolean or pair, which a snapshot never has there.
    #[cold]
    fn invalid_number(&mut self, value: Scalar<'_>, problem: &'static str) -> FieldResult<u64> {
        if !value.is_invalid_number() {
            return Err(FieldError::Invalid(problem));
        }
        Ok(value.rounded_down().unwrap_or_else(|| {
            self.count_invalid(problem);
            0
        }))
    }

    /// Counts a value that was ignored because it is invalid. The first `problem` is kept for a
    /// message to the user.
    pub(crate) fn count_invalid(&mut self, problem: &'static str) {
        self.snapshot.invalid_values += 1;
        self.snapshot.first_invalid.get_or_insert(problem);
    }

    /// Stores the allocator settings, given as JSON; `None` stands for settings that are too large.
    /// Counts an invalid value if they are `None` or not a dictionary.
    pub(crate) fn set_settings(&mut self, settings: Option<&serde_json::Value>) {
        match settings.filter(|settings| settings.is_object()) {
            Some(settings) => self.snapshot.settings = RecordedSettings::read(settings),
            None => self.count_invalid("the allocator settings are not a dictionary or too large"),
        }
    }

    /// Returns the index of a context (stream, private pool and texts of an entry) in
    /// [`Snapshot::contexts`], and adds the context if it is new.
    fn context_number(&mut self, context: Context) -> FieldResult<u32> {
        if let Some((last, number)) = self.last_context
            && last == context
        {
            return Ok(number);
        }
        let number = match self.context_numbers.get(&context) {
            Some(&number) => number,
            None => {
                let number = self.snapshot.contexts.len();
                if number >= MAX_CONTEXTS {
                    return Err(FieldError::Invalid("the entries have too many combinations of stream and metadata"));
                }
                self.budget.spend(CONTEXT_BYTES)?;
                self.snapshot.contexts.push(context);
                self.context_numbers.insert(context, number as u32);
                number as u32
            }
        };
        self.last_context = Some((context, number));
        Ok(number)
    }

    /// Packs a draft into an entry, with the index of its context; counts the entry if it has no
    /// time.
    fn finish_entry(&mut self, draft: &EntryDraft) -> FieldResult<Entry> {
        let context = self.context_number(draft.context)?;
        self.snapshot.untimed += u64::from(draft.time_us == NO_TIME);
        Ok(Entry::new(draft.address, draft.size, draft.time_us, draft.stack, draft.action, context))
    }

    /// Adds an entry to the end of [`Snapshot::entries`] and returns its index there.
    pub(crate) fn push_entry(&mut self, draft: &EntryDraft) -> FieldResult<u32> {
        let entry = self.finish_entry(draft)?;
        let number = u32::try_from(self.snapshot.entries.len())
            .ok()
            .filter(|&number| number < u32::MAX)
            .ok_or(FieldError::Invalid("the history has more than 4 billion entries"))?;
        self.snapshot.entries.push(entry, &mut self.budget)?;
        Ok(number)
    }

    /// Unpacks the entry at index `number` of [`Snapshot::entries`] into a draft; `None` if the
    /// index is too high.
    pub(crate) fn draft_of(&self, number: u32) -> Option<EntryDraft> {
        let entry = self.snapshot.entries.get(number as usize)?;
        Some(EntryDraft {
            address: entry.address,
            size: entry.size,
            time_us: entry.time_us,
            action: entry.action(),
            context: self.snapshot.context(entry),
            stack: entry.stack,
        })
    }

    /// Replaces the entry at index `number` of [`Snapshot::entries`] by a draft; does nothing if
    /// the index is too high.
    pub(crate) fn replace_entry(&mut self, number: u32, draft: &EntryDraft) -> FieldResult {
        let entry = self.finish_entry(draft)?;
        if let Some(old) = self.snapshot.entries.get_mut(number as usize) {
            *old = entry;
        }
        Ok(())
    }

    /// Sets the field of a segment that `key` names; ignores other keys. Fails for a value that
    /// PyTorch never writes there. Call stacks and blocks are read elsewhere.
    pub(crate) fn segment_field(&mut self, row: &mut SegmentRow, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        match key {
            SnapshotKey::Device => {
                let device = value.as_whole_number().and_then(|device| u16::try_from(device).ok());
                row.device = match device {
                    Some(device) => device,
                    None if !value.is_invalid_number() => {
                        return Err(FieldError::Invalid("a segment's device is not a device number"));
                    }
                    None => INVALID_DEVICE,
                };
            }
            SnapshotKey::Address => {
                row.address = match value.as_bits() {
                    Some(address) => address,
                    None => self.invalid_number(value, "a segment's address is not a 64-bit number")?,
                };
            }
            SnapshotKey::TotalSize => {
                row.size = match value.as_u64() {
                    Some(size) => size,
                    None => self.invalid_number(value, "a segment's size is not a count of bytes")?,
                };
            }
            SnapshotKey::SegmentType => {
                row.kind = value.as_str().map(|name| if name == "small" { PoolKind::Small } else { PoolKind::Large });
            }
            SnapshotKey::Stream => row.stream = stream_handle(value),
            SnapshotKey::PoolId => row.mempool = value.as_pool_id().unwrap_or_default(),
            SnapshotKey::IsExpandable => row.expandable = Some(value.is_true()),
            _ => self.origin_field(&mut row.origin, key, value)?,
        }
        Ok(())
    }

    /// Sets the field of a block that `key` names; ignores other keys. Fails for a value that
    /// PyTorch never writes there. Call stacks are read elsewhere.
    pub(crate) fn block_field(&mut self, row: &mut BlockRow, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        match key {
            SnapshotKey::Address => row.address = value.as_bits().or(value.as_whole_number()),
            SnapshotKey::Size => {
                row.size = match value.as_u64() {
                    Some(size) => size,
                    None => self.invalid_number(value, "a block's size is not a count of bytes")?,
                };
            }
            // Old versions list a block's allocations as its history and call the size `real_size`.
            SnapshotKey::RequestedSize | SnapshotKey::RealSize => row.requested = value.as_whole_number(),
            SnapshotKey::State => {
                // Some versions call `active_pending_free` `active_awaiting_free`.
                row.state = match value.as_str() {
                    Some("active_allocated") => BlockState::Allocated,
                    Some(name) if name.starts_with("active") => BlockState::PendingFree,
                    _ => BlockState::Free,
                };
            }
            _ => self.origin_field(&mut row.origin, key, value)?,
        }
        Ok(())
    }

    /// Adds a block to the segment that is being read, which [`push_segment`](Self::push_segment)
    /// completes.
    pub(crate) fn push_block(&mut self, row: BlockRow) -> Result<(), LimitExceeded> {
        self.budget.push(&mut self.snapshot.blocks, row)
    }

    /// Adds a segment whose blocks begin at index `first_block` of [`Snapshot::blocks`]. A segment
    /// without a valid device number is counted as invalid and dropped with its blocks.
    pub(crate) fn push_segment(
        &mut self,
        mut row: SegmentRow,
        first_block: usize,
        kind: MemoryKind,
    ) -> Result<(), LimitExceeded> {
        match kind {
            MemoryKind::Host => row.device = DeviceId::HOST.0,
            MemoryKind::Devices if row.device == INVALID_DEVICE => {
                self.count_invalid("a segment's device is not a device number");
                self.snapshot.blocks.truncate(first_block);
                return Ok(());
            }
            MemoryKind::Devices => {}
        }
        row.blocks = first_block..self.snapshot.blocks.len();
        // Older versions omit block addresses: the blocks are contiguous.
        let mut next_address = row.address;
        for block in &mut self.snapshot.blocks[row.blocks.clone()] {
            next_address = block.address.get_or_insert(next_address).wrapping_add(block.size);
        }
        self.budget.push(&mut self.snapshot.segments, row)
    }

    /// Adds the history of the next device, in order of device numbers, as ranges of indices in
    /// [`Snapshot::entries`].
    pub(crate) fn push_trace(&mut self, ranges: Vec<Range<u32>>) -> FieldResult {
        if self.snapshot.traces.len() >= usize::from(INVALID_DEVICE) {
            return Err(FieldError::Invalid("more histories than possible devices"));
        }
        Ok(self.budget.push(&mut self.snapshot.traces, ranges)?)
    }

    /// Returns the complete snapshot: sorts the segments by device and address, and derives missing
    /// times and missing `expandable` flags from the history.
    pub(crate) fn finish(mut self) -> Snapshot {
        self.snapshot.segments.sort_by_key(|row| (row.device, row.address));
        if self.snapshot.has_times && self.snapshot.untimed > 0 {
            self.fill_times();
        }
        self.find_expandable();
        self.snapshot
    }

    /// Gives each entry without a time the time of the entry before it in its device's history.
    /// Entries before the first entry with a time get that entry's time.
    fn fill_times(&mut self) {
        let Snapshot { entries, traces, host_trace, .. } = &mut self.snapshot;
        for trace in traces.iter().chain([&*host_trace]) {
            let indices = || trace.iter().flat_map(|range| range.start as usize..range.end as usize);
            let times = indices().filter_map(|index| entries.get(index)).map(|entry| entry.time_us);
            let mut time_us = times.into_iter().find(|&time_us| time_us != NO_TIME).unwrap_or(0);
            for index in indices() {
                let Some(entry) = entries.get_mut(index) else { continue };
                if entry.time_us == NO_TIME {
                    entry.time_us = time_us;
                }
                time_us = entry.time_us;
            }
        }
    }

    /// Marks segments as expandable if the history maps or unmaps a part of them. Only segments for
    /// which the snapshot lacks this flag are marked.
    fn find_expandable(&mut self) {
        let Snapshot { entries, traces, segments, .. } = &mut self.snapshot;
        if segments.iter().all(|row| row.expandable.is_some()) {
            return;
        }
        for (device, trace) in (0..INVALID_DEVICE).zip(traces.iter()) {
            let first = segments.partition_point(|row| row.device < device);
            let end = segments.partition_point(|row| row.device <= device);
            let rows = &mut segments[first..end];
            for entry in trace.iter().flat_map(|range| entries.range(range.start as usize..range.end as usize)) {
                if matches!(entry.action(), TraceAction::SegmentMapped | TraceAction::SegmentUnmapped)
                    && let Some(index) = rows.partition_point(|row| row.address <= entry.address).checked_sub(1)
                    && entry.address < rows[index].end()
                {
                    rows[index].expandable.get_or_insert(true);
                }
            }
        }
    }

    /// Sets the field of an annotation that `key` names; ignores other keys. An invalid value
    /// becomes an empty name, time 0, device 0, or the stage of an instant.
    pub(crate) fn annotation_field(
        &mut self,
        row: &mut AnnotationRow,
        key: SnapshotKey,
        value: Scalar<'_>,
    ) -> FieldResult {
        match key {
            SnapshotKey::Name => row.name = self.text(value)?,
            SnapshotKey::TimeUs => row.time_us = value.as_time_us().unwrap_or(0),
            SnapshotKey::Device => {
                row.device = value.as_whole_number().and_then(|device| u16::try_from(device).ok()).unwrap_or(0)
            }
            SnapshotKey::Stage => {
                row.stage = match value.as_str() {
                    Some("START") => AnnotationStage::Begin,
                    Some("END") => AnnotationStage::End,
                    _ => AnnotationStage::Instant,
                };
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds an annotation to the snapshot; annotations may be added in any order.
    pub(crate) fn push_annotation(&mut self, row: AnnotationRow) -> Result<(), LimitExceeded> {
        self.budget.push(&mut self.snapshot.annotations, row)
    }
}
