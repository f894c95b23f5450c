//! Converts the value that a pickle evaluates to into the rows of a snapshot.
//!
//! A pickle may refer to one list or dictionary many times. Each list is converted once, and the
//! number of dictionary items read as rows is limited by the length of the pickle
//! ([`Heap::charge_row`]).

use std::collections::HashSet;
use std::ops::Range;

use super::heap::Heap;
use super::value::{DictId, ListId, Value};
use crate::torch::builder::{Builder, EntryDraft, MemoryKind};
use crate::torch::key::SnapshotKey;
use crate::torch::scalar::{FieldError, FieldResult};
use crate::torch::settings::{MAX_SETTINGS_BYTES, VALUE_BYTES};
use crate::torch::snapshot::{AnnotationRow, BlockRow, SegmentRow};

/// Maximum nesting depth of the allocator settings; deeper settings are ignored and counted as
/// invalid. PyTorch's settings have depth 2.
const MAX_SETTINGS_DEPTH: u32 = 8;

/// Adds the segments, entries, annotations and settings in `top`, the value that the pickle
/// evaluates to, to the builder's snapshot.
pub(super) fn snapshot(top: Value, heap: &mut Heap, builder: &mut Builder) -> FieldResult {
    SnapshotReader { heap, builder, converted: HashSet::new() }.snapshot(top)
}

/// Returns the [`SnapshotKey`] that a dictionary key of the pickle stands for; `None` if the import
/// does not use that key.
fn key_of(heap: &Heap, key: Value) -> Option<SnapshotKey> {
    if let Value::Text(text) = key { heap.strings.key(text) } else { None }
}

/// Adds the segments, entries and annotations of a pickle to a snapshot as rows.
struct SnapshotReader<'a> {
    heap: &'a mut Heap,
    builder: &'a mut Builder,
    /// Indices of the pickle's lists that were already converted to rows, so that each is converted
    /// only once.
    converted: HashSet<u32>,
}

impl SnapshotReader<'_> {
    /// Reads the outermost value: a snapshot's dictionary, or only its list of segments.
    fn snapshot(&mut self, top: Value) -> FieldResult {
        /// The error for a pickle that is not a snapshot.
        const NO_SNAPSHOT: FieldError = FieldError::Invalid("a pickle, but not from torch.cuda.memory._dump_snapshot");
        let top = match top {
            Value::Dict(top) => top,
            Value::List(list) if self.is_segments(list)? => {
                self.builder.snapshot.has_segments = true;
                return self.segments(top, MemoryKind::Devices);
            }
            Value::List(_) => return Err(FieldError::Invalid("a pickled list, but not of segments")),
            _ => return Err(NO_SNAPSHOT),
        };
        let has = |key| self.field(top, key).is_some();
        if ![SnapshotKey::Segments, SnapshotKey::DeviceTraces, SnapshotKey::HostSegments, SnapshotKey::HostTraces]
            .into_iter()
            .any(has)
        {
            return Err(NO_SNAPSHOT);
        }
        for (key, kind) in [(SnapshotKey::Segments, MemoryKind::Devices), (SnapshotKey::HostSegments, MemoryKind::Host)]
        {
            if let Some(segments) = self.field(top, key) {
                self.builder.snapshot.has_segments |= kind == MemoryKind::Devices;
                self.segments(segments, kind)?;
            }
        }
        if let Some(traces) = self.field(top, SnapshotKey::DeviceTraces) {
            self.for_each_item(traces, "device_traces is not a list of lists", |this, trace| {
                let trace = this.trace(trace)?;
                this.builder.push_trace(trace)
            })?;
        }
        if let Some(trace) = self.field(top, SnapshotKey::HostTraces) {
            self.builder.snapshot.host_trace = self.host_traces(trace)?;
        }
        if let Some(annotations) = self.field(top, SnapshotKey::ExternalAnnotations) {
            self.annotations(annotations)?;
        }
        if let Some(settings) = self.field(top, SnapshotKey::AllocatorSettings) {
            self.settings(settings);
        }
        Ok(())
    }

    /// Returns the list that `value` is; `None` for a null. Also returns `None` for a list that was
    /// converted before, which counts as invalid: a small pickle could refer to one list many
    /// times. Fails with `problem` for any other value.
    fn list(&mut self, value: Value, problem: &'static str) -> FieldResult<Option<ListId>> {
        let list = match value {
            Value::List(list) => list,
            Value::None => return Ok(None),
            _ => return Err(FieldError::Invalid(problem)),
        };
        let is_empty = self.heap.values(list).is_empty() && self.heap.entries(list).is_none_or(<[_]>::is_empty);
        if is_empty || self.converted.insert(list.0) {
            return Ok(Some(list));
        }
        self.builder.count_invalid("one list is used several times in the snapshot");
        Ok(None)
    }

    /// Calls `read` with each item of the list `value`, see [`list`](Self::list). Fails with
    /// `problem` if `value` is not a list, or is a list of history entries.
    fn for_each_item(
        &mut self,
        value: Value,
        problem: &'static str,
        mut read: impl FnMut(&mut Self, Value) -> FieldResult,
    ) -> FieldResult {
        if let Value::List(list) = value
            && self.heap.entries(list).is_some_and(|entries| !entries.is_empty())
        {
            return Err(FieldError::Invalid(problem));
        }
        let Some(list) = self.list(value, problem)? else { return Ok(()) };
        for at in 0..self.heap.values(list).len() {
            let item = self.heap.value_at(list, at)?;
            read(self, item)?;
        }
        Ok(())
    }

    /// Returns the value of the key `wanted` of a dictionary, the last one if the key occurs twice,
    /// as in Python; `None` if it is missing.
    fn field(&self, dict: DictId, wanted: SnapshotKey) -> Option<Value> {
        let mut pairs = self.heap.pairs(dict).iter().rev();
        pairs.find(|(key, _)| key_of(self.heap, *key) == Some(wanted)).map(|&(_, value)| value)
    }

    /// Calls `set` with each key of a segment, block or entry that the import uses, and its value.
    /// Fails if dictionaries are read as rows more often than the length of the pickle justifies.
    fn for_each_field(
        &mut self,
        dict: DictId,
        mut set: impl FnMut(&mut Self, SnapshotKey, Value) -> FieldResult,
    ) -> FieldResult {
        for pair in 0..self.heap.charge_row(dict)? {
            let (key, value) = self.heap.pairs(dict)[pair];
            if let Some(key) = key_of(self.heap, key) {
                set(self, key, value)?;
            }
        }
        Ok(())
    }

    /// Returns true if a list is not empty and has segments only, as `torch.cuda.memory_snapshot()`
    /// returns them; the first versions saved nothing else.
    fn is_segments(&mut self, list: ListId) -> FieldResult<bool> {
        for at in 0..self.heap.values(list).len() {
            let Value::Dict(dict) = self.heap.value_at(list, at)? else { return Ok(false) };
            self.heap.charge_row(dict)?;
            if [SnapshotKey::Address, SnapshotKey::TotalSize].into_iter().any(|key| self.field(dict, key).is_none()) {
                return Ok(false);
            }
        }
        Ok(!self.heap.values(list).is_empty())
    }

    /// Adds the segments in `list`, with their blocks, to the snapshot. Fails if it is not a list
    /// of segments.
    fn segments(&mut self, list: Value, kind: MemoryKind) -> FieldResult {
        self.for_each_item(list, "segments is not a list of segments", |this, segment| {
            let Value::Dict(dict) = segment else { return Err(FieldError::Invalid("a segment is not a dictionary")) };
            let mut row = SegmentRow::default();
            let first_block = this.builder.snapshot.blocks.len();
            this.for_each_field(dict, |this, key, value| {
                match key {
                    SnapshotKey::Frames => row.origin.stack = this.heap.stack(value, this.builder)?,
                    SnapshotKey::Blocks => this.blocks(value)?,
                    _ => {
                        let value = this.heap.field_scalar(key, value, this.builder)?;
                        this.builder.segment_field(&mut row, key, value)?;
                    }
                }
                Ok(())
            })?;
            Ok(this.builder.push_segment(row, first_block, kind)?)
        })
    }

    /// Adds the blocks of one segment to the snapshot.
    fn blocks(&mut self, list: Value) -> FieldResult {
        self.for_each_item(list, "the blocks of a segment are not a list of blocks", |this, block| {
            let Value::Dict(dict) = block else { return Err(FieldError::Invalid("a block is not a dictionary")) };
            let (mut row, mut history) = (BlockRow::default(), Value::None);
            this.for_each_field(dict, |this, key, value| {
                match key {
                    SnapshotKey::Frames => row.origin.stack = this.heap.stack(value, this.builder)?,
                    SnapshotKey::History => history = value,
                    _ => {
                        let value = this.heap.field_scalar(key, value, this.builder)?;
                        this.builder.block_field(&mut row, key, value)?;
                    }
                }
                Ok(())
            })?;
            this.block_history(history, &mut row)?;
            Ok(this.builder.push_block(row)?)
        })
    }

    /// Reads the `history` of a block, its allocations with the newest first: call stack and
    /// requested size. Only old versions have it.
    fn block_history(&mut self, list: Value, row: &mut BlockRow) -> FieldResult {
        let Value::List(list) = list else { return Ok(()) };
        let Some(&Value::Dict(newest)) = self.heap.values(list).first() else { return Ok(()) };
        self.for_each_field(newest, |this, key, value| {
            match key {
                SnapshotKey::Frames => row.origin.stack = this.heap.stack(value, this.builder)?,
                SnapshotKey::RealSize => this.builder.block_field(row, key, this.heap.scalar(value))?,
                _ => {}
            }
            Ok(())
        })
    }

    /// Adds the history of pinned host memory to the snapshot's entries and returns the ranges of
    /// their indices. `list` has entries, or lists of entries as for devices.
    fn host_traces(&mut self, list: Value) -> FieldResult<Vec<Range<u32>>> {
        let is_nested = match list {
            Value::List(list) => matches!(self.heap.values(list).first(), Some(Value::List(_))),
            _ => false,
        };
        if !is_nested {
            return self.trace(list);
        }
        let mut all = Vec::new();
        self.for_each_item(list, "host_traces is not a list", |this, trace| {
            all.extend(this.trace(trace)?);
            Ok(())
        })?;
        Ok(all)
    }

    /// Returns the ranges of indices that the entries of one history have in the snapshot's
    /// entries, and adds the entries that are not there yet.
    fn trace(&mut self, list: Value) -> FieldResult<Vec<Range<u32>>> {
        let Some(trace) = self.list(list, "a device's history is not a list")? else { return Ok(Vec::new()) };
        if let Some(ranges) = self.heap.entries(trace) {
            return Ok(ranges.to_vec());
        }
        let first = self.builder.snapshot.entries.len() as u32;
        for at in 0..self.heap.values(trace).len() {
            self.unrecognized_entry(self.heap.value_at(trace, at)?)?;
        }
        Ok(vec![Range { start: first, end: self.builder.snapshot.entries.len() as u32 }])
    }

    /// Adds an entry whose dictionary received its keys one by one, so that the pickle machine did
    /// not take it for an entry.
    fn unrecognized_entry(&mut self, value: Value) -> FieldResult {
        let Value::Dict(dict) = value else {
            return Err(FieldError::Invalid("an entry of a history is not a dictionary"));
        };
        let mut draft = EntryDraft::default();
        self.heap.charge_row(dict)?;
        if self.field(dict, SnapshotKey::Action).is_none() {
            return Err(FieldError::Invalid("an entry of a history has no action"));
        }
        self.for_each_field(dict, |this, key, value| {
            match key {
                SnapshotKey::Frames => draft.stack = this.heap.stack(value, this.builder)?,
                _ => {
                    let value = this.heap.field_scalar(key, value, this.builder)?;
                    this.builder.entry_field(&mut draft, key, value)?;
                }
            }
            Ok(())
        })?;
        self.builder.push_entry(&draft).map(drop)
    }

    /// Adds the annotations of a list to the snapshot; items that are not dictionaries are skipped.
    fn annotations(&mut self, list: Value) -> FieldResult {
        self.for_each_item(list, "external_annotations is not a list of annotations", |this, annotation| {
            let Value::Dict(dict) = annotation else { return Ok(()) };
            let mut row = AnnotationRow::default();
            this.for_each_field(dict, |this, key, value| {
                let value = this.heap.field_scalar(key, value, this.builder)?;
                this.builder.annotation_field(&mut row, key, value)
            })?;
            Ok(this.builder.push_annotation(row)?)
        })
    }

    /// Stores the pickle's allocator settings in the builder's snapshot; counts them as invalid if
    /// they are not a dictionary or too large.
    fn settings(&mut self, settings: Value) {
        let mut remaining = MAX_SETTINGS_BYTES;
        let settings = to_json(settings, self.heap, MAX_SETTINGS_DEPTH, &mut remaining);
        self.builder.set_settings(settings.as_ref());
    }
}

/// Converts a value of the pickle to JSON; `None` if it is nested deeper than `depth` or takes more
/// than `remaining` bytes. Each value takes its text bytes plus [`VALUE_BYTES`], which are
/// subtracted from `remaining`; a pair whose key is not a text is skipped and counts as a value.
fn to_json(value: Value, heap: &Heap, depth: u32, remaining: &mut usize) -> Option<serde_json::Value> {
    let text_len = |value| if let Value::Text(text) = value { heap.strings.text(text).len() } else { 0 };
    *remaining = remaining.checked_sub(VALUE_BYTES.saturating_add(text_len(value)))?;
    Some(match value {
        Value::Bool(value) => value.into(),
        Value::Int(number) => number.into(),
        Value::Unsigned(number) => number.into(),
        Value::Float(number) => number.into(),
        Value::Text(text) => heap.strings.text(text).into(),
        Value::Pair(first, second) => vec![first, second].into(),
        Value::List(list) => {
            let depth = depth.checked_sub(1)?;
            let values = heap.values(list).iter();
            values.map(|&value| to_json(value, heap, depth, remaining)).collect::<Option<Vec<_>>>()?.into()
        }
        Value::Dict(dict) => {
            let depth = depth.checked_sub(1)?;
            let mut values = serde_json::Map::new();
            for &(key, value) in heap.pairs(dict) {
                let Value::Text(key) = key else {
                    *remaining = remaining.checked_sub(VALUE_BYTES)?;
                    continue;
                };
                let key = heap.strings.text(key);
                *remaining = remaining.checked_sub(key.len())?;
                values.insert(key.to_owned(), to_json(value, heap, depth, remaining)?);
            }
            values.into()
        }
        _ => serde_json::Value::Null,
    })
}
