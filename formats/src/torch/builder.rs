//! Puts a snapshot together from fields as a reader meets them.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use vramscope_trace::{Definition, Frame, FrameId, MempoolId, PoolKind, StackId, Stage, StringId};

use super::key::Key;
use super::snapshot::{
    Action, AnnotationRow, BlockRow, BlockState, Context, Entry, MAX_CONTEXTS, SegmentRow, Snapshot,
};
use crate::limits::{Budget, OutOfBudget};

/// A value that is not a container, whichever way it was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scalar<'a> {
    Nothing,
    Bool(bool),
    Int(i64),
    /// Above `i64::MAX`.
    Unsigned(u64),
    Float(f64),
    Text(&'a str),
    /// Two whole numbers.
    Pair(u64, u64),
    /// Anything else: bytes, an integer of more than 64 bits, a container.
    Other,
}

impl<'a> Scalar<'a> {
    /// A number that fills 64 bits, which some versions write as signed.
    fn bits(self) -> Option<u64> {
        match self {
            Self::Int(number) => Some(number.cast_unsigned()),
            Self::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    pub(crate) fn count(self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(number).ok(),
            Self::Unsigned(number) => Some(number),
            _ => None,
        }
    }

    fn time_us(self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(number),
            Self::Float(number) => Some(number as i64),
            _ => None,
        }
    }

    fn number(self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(number),
            other => other.count().map(|number| number as f64),
        }
    }

    fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn is_true(self) -> bool {
        matches!(self, Self::Bool(true)) || self.count().is_some_and(|number| number != 0)
    }

    fn pool_id(self) -> Option<MempoolId> {
        match self {
            Self::Pair(first, second) => Some(MempoolId(first, second)),
            _ => None,
        }
    }
}

/// Why a field cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfBudget,
    Wrong(&'static str),
}

impl From<OutOfBudget> for Refusal {
    fn from(_: OutOfBudget) -> Self {
        Self::OutOfBudget
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBudget => OutOfBudget.fmt(f),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

/// An entry whose fields are still coming.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryDraft {
    address: u64,
    size: u64,
    time_us: i64,
    action: Action,
    context: Context,
    pub(crate) stack: StackId,
}

impl Default for EntryDraft {
    fn default() -> Self {
        let (context, stack) = Default::default();
        Self { address: 0, size: 0, time_us: 0, action: Action::Other, context, stack }
    }
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
                }
            }
            Key::Addr | Key::DeviceFree => {
                draft.address = value.bits().ok_or(Refusal::Wrong("an entry's address is not a 64-bit number"))?;
            }
            Key::Size => {
                draft.size = value.count().ok_or(Refusal::Wrong("an entry's size is not a count of bytes"))?;
            }
            Key::TimeUs => {
                if let Some(time_us) = value.time_us() {
                    draft.time_us = time_us;
                    self.snapshot.has_times = true;
                }
            }
            Key::Stream => draft.context.stream = value.bits().unwrap_or(0),
            Key::PoolId => draft.context.owner = value.pool_id(),
            Key::UserMetadata => match value.text() {
                Some(text) if !text.is_empty() => draft.context.scope = self.string(text)?,
                _ => {}
            },
            _ => {}
        }
        Ok(())
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
    pub(crate) fn segment_field(row: &mut SegmentRow, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        match key {
            Key::Device => {
                let device = value.count().and_then(|device| u16::try_from(device).ok());
                row.device = device.ok_or(Refusal::Wrong("a segment's device is not the number of a device"))?;
            }
            Key::Address => {
                row.address = value.bits().ok_or(Refusal::Wrong("a segment's address is not a 64-bit number"))?;
            }
            Key::TotalSize => {
                row.size = value.count().ok_or(Refusal::Wrong("a segment's size is not a count of bytes"))?;
            }
            Key::SegmentType => {
                row.kind = if value.text() == Some("small") { PoolKind::Small } else { PoolKind::Large };
            }
            Key::Stream => row.stream = value.bits().unwrap_or(0),
            Key::PoolId => row.owner = value.pool_id().unwrap_or_default(),
            Key::IsExpandable => row.expandable = value.is_true(),
            _ => {}
        }
        Ok(())
    }

    /// Takes one field of a block; its frames are the reader's own business.
    pub(crate) fn block_field(row: &mut BlockRow, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        match key {
            Key::Address => row.address = value.bits(),
            Key::Size => {
                row.size = value.count().ok_or(Refusal::Wrong("a block's size is not a count of bytes"))?;
            }
            Key::RequestedSize => row.requested = value.count(),
            Key::State => {
                // `active_pending_free` was `active_awaiting_free` for a while.
                row.state = match value.text() {
                    Some("active_allocated") => BlockState::Allocated,
                    Some(name) if name.starts_with("active") => BlockState::PendingFree,
                    _ => BlockState::Free,
                };
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn push_block(&mut self, row: BlockRow) -> Result<(), OutOfBudget> {
        self.budget.push(&mut self.snapshot.blocks, row)
    }

    /// Adds a segment, whose blocks are those pushed since there were `first_block`.
    pub(crate) fn push_segment(&mut self, mut row: SegmentRow, first_block: usize) -> Result<(), OutOfBudget> {
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
        if self.snapshot.traces.len() > usize::from(u16::MAX) {
            return Err(Refusal::Wrong("there are more histories than there can be devices"));
        }
        Ok(self.budget.push(&mut self.snapshot.traces, ranges)?)
    }

    /// The snapshot, complete.
    pub(crate) fn finish(mut self) -> Snapshot {
        self.snapshot.segments.sort_by_key(|row| (row.device, row.address));
        self.snapshot
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
            Key::Device => row.device = value.count().and_then(|device| u16::try_from(device).ok()).unwrap_or(0),
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

    /// Takes one of the settings.
    pub(crate) fn setting(&mut self, key: Key, value: Scalar<'_>) {
        let settings = &mut self.snapshot.settings;
        match key {
            Key::AllocConf => value.text().unwrap_or("").clone_into(&mut settings.text),
            // -1 stands for "no limit", and so does the same without a sign.
            Key::MaxSplitSize => settings.max_split_size = Some(value.count().filter(|&size| size != u64::MAX)),
            Key::GarbageCollectionThreshold => settings.garbage_collection_threshold = value.number(),
            Key::ExpandableSegments => settings.expandable_segments = Some(value.is_true()),
            Key::Divisions => settings.divisions = Some([value.count().unwrap_or(0); 16]),
            Key::Overflowed => settings.overflowed = value.is_true(),
            _ => {}
        }
    }

    /// Which row of the table of divisions is for sizes of `mib`, a power of two.
    pub(crate) fn division_place(mib: &str) -> Option<usize> {
        mib.parse::<u64>().ok().and_then(u64::checked_ilog2).map(|log| log as usize)
    }

    pub(crate) fn set_division(&mut self, place: Option<usize>, value: Scalar<'_>) {
        let table = self.snapshot.settings.divisions.get_or_insert_default();
        if let Some(division) = place.and_then(|place| table.get_mut(place)) {
            *division = value.count().unwrap_or(0);
        }
    }
}
