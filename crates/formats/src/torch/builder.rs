//! Puts a snapshot together from fields as a reader meets them.

use std::collections::HashMap;
use std::ops::Range;

use vramscope_trace::{Definition, DeviceId, Frame, FrameId, PoolKind, StackId, Stage, StringId};

use super::key::Key;
use super::scalar::{Refusal, Scalar};
use super::snapshot::{
    Action, AnnotationRow, BlockRow, BlockState, Context, Entry, MAX_CONTEXTS, NO_TIME, Origin, SegmentRow, Snapshot,
};
use crate::limits::{Budget, OutOfBudget};

/// Whose memory a list is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// GPUs, which it names.
    Devices,
    /// The host, for its pinned memory.
    Host,
}

/// Stands for a device that a segment does not rightly name.
const NO_DEVICE: u16 = DeviceId::HOST.0;

/// An entry whose fields are still coming.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryDraft {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) time_us: i64,
    pub(crate) action: Action,
    pub(crate) context: Context,
    pub(crate) stack: StackId,
}

impl Default for EntryDraft {
    fn default() -> Self {
        let (context, stack) = Default::default();
        Self { address: 0, size: 0, time_us: NO_TIME, action: Action::Other, context, stack }
    }
}

/// Whether a text is what stands where there is nothing to say.
pub(crate) fn says_nothing(text: &str) -> bool {
    matches!(text, "" | "N/A")
}

/// The number of a stream; the default one where none is said.
fn stream(value: Scalar<'_>) -> u64 {
    value.bits().or(value.whole()).unwrap_or(0)
}

/// A rough price of a definition: its row, its copy in the interner, and the interner's table.
const DEFINITION_BYTES: usize = 96;
/// The same for a context.
const CONTEXT_BYTES: usize = 128;

/// The snapshot so far, and the memory that it may still take.
#[derive(Debug)]
pub(crate) struct Builder {
    pub(crate) snapshot: Snapshot,
    pub(crate) budget: Budget,
    context_numbers: HashMap<Context, u32>,
    /// The context of the entry before: nearly always that of the next, too.
    last_context: Option<(Context, u32)>,
}

impl Builder {
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self {
            snapshot: Snapshot::default(),
            budget: Budget::new(max_bytes),
            context_numbers: HashMap::new(),
            last_context: None,
        }
    }

    /// Moves what the interner has newly defined to the snapshot, and pays for it.
    fn collect_definitions(&mut self) -> Result<(), OutOfBudget> {
        for definition in self.snapshot.interner.take_fresh() {
            let text_len = if let Definition::String(text) = &definition { 2 * text.len() } else { 0 };
            self.budget.take(DEFINITION_BYTES + text_len)?;
            self.snapshot.definitions.push(definition);
        }
        Ok(())
    }

    pub(crate) fn string(&mut self, text: &str) -> Result<StringId, OutOfBudget> {
        let id = self.snapshot.interner.string(text);
        self.collect_definitions()?;
        Ok(id)
    }

    pub(crate) fn frame(&mut self, function: StringId, file: StringId, line: u32) -> Result<FrameId, OutOfBudget> {
        let id = self.snapshot.interner.frame(Frame { function, file, line });
        self.collect_definitions()?;
        Ok(id)
    }

    /// The call stack of these frames, innermost first.
    pub(crate) fn stack(&mut self, frames: &[FrameId]) -> Result<StackId, OutOfBudget> {
        let interner = &mut self.snapshot.interner;
        let stack = frames.iter().rev().fold(StackId(0), |caller, &frame| interner.stack(frame, caller));
        self.collect_definitions()?;
        Ok(stack)
    }

    /// Takes one field of an entry; [`Key::Frames`] is the reader's own business.
    #[inline]
    pub(crate) fn entry_field(&mut self, draft: &mut EntryDraft, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        match key {
            Key::Action => {
                let name = value.text().ok_or(Refusal::Wrong("an entry's action is not a text"))?;
                draft.action = Action::of(name);
                if draft.action == Action::Other {
                    draft.context.mark = self.string(name)?;
                    draft.context.is_note = matches!(name, "annotate" | "user_defined");
                }
            }
            Key::Addr | Key::DeviceFree => {
                draft.address = match value.bits() {
                    Some(address) => address,
                    None => self.odd_number(value, "an entry's address is not a 64-bit number")?,
                };
            }
            Key::Size => {
                draft.size = match value.count() {
                    Some(size) => size,
                    None => self.odd_number(value, "an entry's size is not a count of bytes")?,
                };
            }
            Key::TimeUs => {
                if let Some(time_us) = value.time_us() {
                    draft.time_us = time_us;
                    self.snapshot.has_times = true;
                }
            }
            Key::Stream => draft.context.stream = stream(value),
            Key::PoolId => draft.context.owner = value.pool_id(),
            Key::UserMetadata => draft.context.scope = self.words(value)?,
            Key::CompileContext => draft.context.compiled = self.words(value)?,
            _ => {}
        }
        Ok(())
    }

    /// What a field says in words; nothing where it says that there is nothing to say.
    fn words(&mut self, value: Scalar<'_>) -> Result<StringId, OutOfBudget> {
        match value.text() {
            Some(text) if !says_nothing(text) => self.string(text),
            _ => Ok(StringId(0)),
        }
    }

    /// Takes one of the fields that tell where memory was asked for; [`Key::Frames`] is the reader's own business.
    fn origin_field(&mut self, origin: &mut Origin, key: Key, value: Scalar<'_>) -> Result<(), OutOfBudget> {
        match key {
            Key::UserMetadata => origin.scope = self.words(value)?,
            Key::CompileContext => origin.compiled = self.words(value)?,
            _ => {}
        }
        Ok(())
    }

    /// What stands where a number should: one written in another way, or one that means nothing there and counts as 0, and is counted.
    #[cold]
    fn odd_number(&mut self, value: Scalar<'_>, what: &'static str) -> Result<u64, Refusal> {
        if !value.is_odd_number() {
            return Err(Refusal::Wrong(what));
        }
        Ok(value.rounded().unwrap_or_else(|| {
            self.note_odd(what);
            0
        }))
    }

    /// Counts something that means nothing where it stands.
    pub(crate) fn note_odd(&mut self, what: &'static str) {
        self.snapshot.odd_values += 1;
        self.snapshot.first_odd.get_or_insert(what);
    }

    fn context_number(&mut self, context: Context) -> Result<u32, Refusal> {
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
                    return Err(Refusal::Wrong("the entries have too many different streams and metadata"));
                }
                self.budget.take(CONTEXT_BYTES)?;
                self.snapshot.contexts.push(context);
                self.context_numbers.insert(context, number as u32);
                number as u32
            }
        };
        self.last_context = Some((context, number));
        Ok(number)
    }

    fn finish_entry(&mut self, draft: &EntryDraft) -> Result<Entry, Refusal> {
        let context = self.context_number(draft.context)?;
        self.snapshot.untimed += u64::from(draft.time_us == NO_TIME);
        Ok(Entry::new(draft.address, draft.size, draft.time_us, draft.stack, draft.action, context))
    }

    /// Adds an entry and gives its number.
    pub(crate) fn push_entry(&mut self, draft: &EntryDraft) -> Result<u32, Refusal> {
        let entry = self.finish_entry(draft)?;
        let number = u32::try_from(self.snapshot.entries.len())
            .ok()
            .filter(|&number| number < u32::MAX)
            .ok_or(Refusal::Wrong("the history has more than 4 billion entries"))?;
        self.budget.push(&mut self.snapshot.entries, entry)?;
        Ok(number)
    }

    /// An entry as it was before it was finished; `None` where there is no entry of this number.
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

    pub(crate) fn replace_entry(&mut self, number: u32, draft: &EntryDraft) -> Result<(), Refusal> {
        let entry = self.finish_entry(draft)?;
        if let Some(place) = self.snapshot.entries.get_mut(number as usize) {
            *place = entry;
        }
        Ok(())
    }

    /// Takes one field of a segment; its frames and blocks are the reader's own business.
    pub(crate) fn segment_field(&mut self, row: &mut SegmentRow, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        match key {
            Key::Device => {
                let device = value.whole().and_then(|device| u16::try_from(device).ok());
                row.device = match device {
                    Some(device) => device,
                    None if !value.is_odd_number() => {
                        return Err(Refusal::Wrong("a segment's device is not the number of a device"));
                    }
                    None => NO_DEVICE,
                };
            }
            Key::Address => {
                row.address = match value.bits() {
                    Some(address) => address,
                    None => self.odd_number(value, "a segment's address is not a 64-bit number")?,
                };
            }
            Key::TotalSize => {
                row.size = match value.count() {
                    Some(size) => size,
                    None => self.odd_number(value, "a segment's size is not a count of bytes")?,
                };
            }
            Key::SegmentType => {
                row.kind = value.text().map(|name| if name == "small" { PoolKind::Small } else { PoolKind::Large });
            }
            Key::Stream => row.stream = stream(value),
            Key::PoolId => row.owner = value.pool_id().unwrap_or_default(),
            Key::IsExpandable => row.expandable = Some(value.is_true()),
            _ => self.origin_field(&mut row.origin, key, value)?,
        }
        Ok(())
    }

    /// Takes one field of a block; its frames are the reader's own business.
    pub(crate) fn block_field(&mut self, row: &mut BlockRow, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        match key {
            Key::Address => row.address = value.bits().or(value.whole()),
            Key::Size => {
                row.size = match value.count() {
                    Some(size) => size,
                    None => self.odd_number(value, "a block's size is not a count of bytes")?,
                };
            }
            // The second name is the one it has in the histories that blocks had in old versions.
            Key::RequestedSize | Key::RealSize => row.requested = value.whole(),
            Key::State => {
                // `active_pending_free` was `active_awaiting_free` for a while.
                row.state = match value.text() {
                    Some("active_allocated") => BlockState::Allocated,
                    Some(name) if name.starts_with("active") => BlockState::PendingFree,
                    _ => BlockState::Free,
                };
            }
            _ => self.origin_field(&mut row.origin, key, value)?,
        }
        Ok(())
    }

    pub(crate) fn push_block(&mut self, row: BlockRow) -> Result<(), OutOfBudget> {
        self.budget.push(&mut self.snapshot.blocks, row)
    }

    /// Adds a segment, whose blocks are those pushed since there were `first_block`.
    pub(crate) fn push_segment(
        &mut self,
        mut row: SegmentRow,
        first_block: usize,
        of: Owner,
    ) -> Result<(), OutOfBudget> {
        match of {
            Owner::Host => row.device = DeviceId::HOST.0,
            Owner::Devices if row.device == NO_DEVICE => {
                self.note_odd("a segment's device is not the number of a device");
                self.snapshot.blocks.truncate(first_block);
                return Ok(());
            }
            Owner::Devices => {}
        }
        row.blocks = first_block..self.snapshot.blocks.len();
        // Older versions leave the blocks' addresses out: they lie one behind the other.
        let mut next_address = row.address;
        for block in &mut self.snapshot.blocks[row.blocks.clone()] {
            next_address = block.address.get_or_insert(next_address).wrapping_add(block.size);
        }
        self.budget.push(&mut self.snapshot.segments, row)
    }

    /// Adds the history of the next device.
    pub(crate) fn push_trace(&mut self, ranges: Vec<Range<u32>>) -> Result<(), Refusal> {
        if self.snapshot.traces.len() >= usize::from(NO_DEVICE) {
            return Err(Refusal::Wrong("there are more histories than there can be devices"));
        }
        Ok(self.budget.push(&mut self.snapshot.traces, ranges)?)
    }

    /// The snapshot, complete.
    pub(crate) fn finish(mut self) -> Snapshot {
        self.snapshot.segments.sort_by_key(|row| (row.device, row.address));
        if self.snapshot.has_times && self.snapshot.untimed > 0 {
            self.fill_times();
        }
        self.find_expandable();
        self.snapshot
    }

    /// Gives an entry without a time that of the one before it, or of the first that has one.
    fn fill_times(&mut self) {
        let Snapshot { entries, traces, host_trace, .. } = &mut self.snapshot;
        for trace in traces.iter().chain([&*host_trace]) {
            let places = || trace.iter().flat_map(|range| range.start as usize..range.end as usize);
            let mut time_us =
                places().map(|place| entries[place].time_us).find(|&time_us| time_us != NO_TIME).unwrap_or(0);
            for place in places() {
                let entry = &mut entries[place];
                if entry.time_us == NO_TIME {
                    entry.time_us = time_us;
                }
                time_us = entry.time_us;
            }
        }
    }

    /// Where a segment does not say whether it is expandable, entries that map or unmap a part of it do.
    fn find_expandable(&mut self) {
        let Snapshot { entries, traces, segments, .. } = &mut self.snapshot;
        if segments.iter().all(|row| row.expandable.is_some()) {
            return;
        }
        for (device, trace) in (0..NO_DEVICE).zip(traces.iter()) {
            let first = segments.partition_point(|row| row.device < device);
            let end = segments.partition_point(|row| row.device <= device);
            let rows = &mut segments[first..end];
            for entry in trace.iter().flat_map(|range| &entries[range.start as usize..range.end as usize]) {
                if matches!(entry.action(), Action::SegmentMapped | Action::SegmentUnmapped)
                    && let Some(place) = rows.partition_point(|row| row.address <= entry.address).checked_sub(1)
                    && entry.address < rows[place].end()
                {
                    rows[place].expandable.get_or_insert(true);
                }
            }
        }
    }

    /// Takes one field of an annotation.
    pub(crate) fn annotation_field(
        &mut self,
        row: &mut AnnotationRow,
        key: Key,
        value: Scalar<'_>,
    ) -> Result<(), Refusal> {
        match key {
            Key::Name => row.name = self.string(value.text().unwrap_or(""))?,
            Key::TimeUs => row.time_us = value.time_us().unwrap_or(0),
            Key::Device => row.device = value.whole().and_then(|device| u16::try_from(device).ok()).unwrap_or(0),
            Key::Stage => {
                row.stage = match value.text() {
                    Some("START") => Stage::Begin,
                    Some("END") => Stage::End,
                    _ => Stage::Instant,
                };
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn push_annotation(&mut self, row: AnnotationRow) -> Result<(), OutOfBudget> {
        self.budget.push(&mut self.snapshot.annotations, row)
    }
}
