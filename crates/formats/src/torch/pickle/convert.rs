//! Converts the value that a pickle evaluates to into the rows of a snapshot.
//!
//! A pickle may refer to one list or dictionary many times. Each list is converted once, and
//! reading dictionaries as rows takes no more steps than the pickle has bytes
//! ([`Heap::charge_row`]).

use std::collections::HashSet;
use std::ops::Range;

use vramscope_trace::AnnotationStage;

use super::heap::Heap;
use super::value::{DictId, ListId, Value};
use crate::torch::builder::{Builder, EntryDraft, MemoryKind};
use crate::torch::key::SnapshotKey;
use crate::torch::scalar::FieldError;
use crate::torch::settings::{MAX_SETTINGS_BYTES, RecordedSettings, VALUE_BYTES};
use crate::torch::snapshot::{AnnotationRow, BlockRow, SegmentRow};

/// Indices of the pickle's lists that were already converted to rows, so that each is converted
/// only once.
#[derive(Default)]
struct ConvertedLists(HashSet<u32>);

impl ConvertedLists {
    /// Returns the list that `value` is; `None` for a null, and for a list that was converted
    /// before, which counts as invalid: a small pickle could refer to one list without end. Fails
    /// with `problem` for any other value.
    fn list(
        &mut self,
        heap: &Heap,
        builder: &mut Builder,
        value: Value,
        problem: &'static str,
    ) -> Result<Option<ListId>, FieldError> {
        let list = match value {
            Value::List(list) => list,
            Value::None => return Ok(None),
            _ => return Err(FieldError::Invalid(problem)),
        };
        let is_empty = heap.values(list).is_empty() && heap.entries(list).is_none_or(<[_]>::is_empty);
        if is_empty || self.0.insert(list.0) {
            return Ok(Some(list));
        }
        builder.count_invalid("one list is used several times in the snapshot");
        Ok(None)
    }

    /// Returns the list that `value` is, of anything but history entries. `None` for a null, and
    /// for a list that was converted before, which counts as invalid. Fails with `problem` for a
    /// list with history entries and for any other value.
    fn list_without_entries(
        &mut self,
        heap: &Heap,
        builder: &mut Builder,
        value: Value,
        problem: &'static str,
    ) -> Result<Option<ListId>, FieldError> {
        match value {
            Value::List(list) if heap.entries(list).is_some_and(|entries| !entries.is_empty()) => {
                Err(FieldError::Invalid(problem))
            }
            _ => self.list(heap, builder, value, problem),
        }
    }
}

/// Returns the value of the key `wanted` of a dictionary, the last one if the key occurs twice, as
/// in Python; `None` if it is missing.
fn field(heap: &Heap, dict: DictId, wanted: SnapshotKey) -> Option<Value> {
    let mut pairs = heap.pairs(dict).iter().rev();
    pairs.find(|(key, _)| key_of(heap, *key) == Some(wanted)).map(|&(_, value)| value)
}

/// Maximum nesting depth of the allocator settings; deeper settings are ignored and counted as
/// invalid. PyTorch's have depth 2.
const MAX_SETTINGS_DEPTH: u32 = 8;

/// Returns the [`SnapshotKey`] that a dictionary key of the pickle stands for; `None` if the import
/// does not use that key.
fn key_of(heap: &Heap, key: Value) -> Option<SnapshotKey> {
    if let Value::Text(text) = key { heap.strings.key(text) } else { None }
}

/// Calls `set` with each key of a segment, block or entry that the import uses, and its value.
/// Fails if dictionaries are read as rows more often than the length of the pickle justifies.
fn for_each_field(
    dict: DictId,
    heap: &mut Heap,
    mut set: impl FnMut(SnapshotKey, Value, &mut Heap) -> Result<(), FieldError>,
) -> Result<(), FieldError> {
    for pair in 0..heap.charge_row(dict)? {
        let (key, value) = heap.pairs(dict)[pair];
        if let Some(key) = key_of(heap, key) {
            set(key, value, heap)?;
        }
    }
    Ok(())
}

/// Adds the segments, entries, annotations and settings in `top`, the value that the pickle
/// evaluates to, to the builder's snapshot.
pub(super) fn snapshot(top: Value, heap: &mut Heap, builder: &mut Builder) -> Result<(), FieldError> {
    let mut converted = ConvertedLists::default();
    let top = match top {
        Value::Dict(top) => top,
        Value::List(list) if is_segments(list, heap)? => {
            builder.snapshot.has_segments = true;
            return read_segments(top, MemoryKind::Devices, &mut converted, heap, builder);
        }
        Value::List(_) => return Err(FieldError::Invalid("a pickled list, but not of segments")),
        _ => {
            let problem = "a pickle, but not from torch.cuda.memory._dump_snapshot";
            return Err(FieldError::Invalid(problem));
        }
    };
    let has = |key| field(heap, top, key).is_some();
    if ![SnapshotKey::Segments, SnapshotKey::DeviceTraces, SnapshotKey::HostSegments, SnapshotKey::HostTraces]
        .into_iter()
        .any(has)
    {
        return Err(FieldError::Invalid("a pickle, but not from torch.cuda.memory._dump_snapshot"));
    }
    for (key, kind) in [(SnapshotKey::Segments, MemoryKind::Devices), (SnapshotKey::HostSegments, MemoryKind::Host)] {
        if let Some(segments) = field(heap, top, key) {
            builder.snapshot.has_segments |= kind == MemoryKind::Devices;
            read_segments(segments, kind, &mut converted, heap, builder)?;
        }
    }
    if let Some(traces) = field(heap, top, SnapshotKey::DeviceTraces) {
        read_traces(traces, &mut converted, heap, builder)?;
    }
    if let Some(trace) = field(heap, top, SnapshotKey::HostTraces) {
        builder.snapshot.host_trace = read_host_traces(trace, &mut converted, heap, builder)?;
    }
    if let Some(annotations) = field(heap, top, SnapshotKey::ExternalAnnotations) {
        read_annotations(annotations, &mut converted, heap, builder)?;
    }
    if let Some(settings) = field(heap, top, SnapshotKey::AllocatorSettings) {
        read_settings(settings, heap, builder);
    }
    Ok(())
}

/// Returns true if a list is not empty and has segments only, as `torch.cuda.memory_snapshot()`
/// returns them; the first versions saved nothing else.
fn is_segments(list: ListId, heap: &mut Heap) -> Result<bool, FieldError> {
    for at in 0..heap.values(list).len() {
        let Value::Dict(dict) = heap.value_at(list, at)? else { return Ok(false) };
        heap.charge_row(dict)?;
        if field(heap, dict, SnapshotKey::Address).is_none() || field(heap, dict, SnapshotKey::TotalSize).is_none() {
            return Ok(false);
        }
    }
    Ok(!heap.values(list).is_empty())
}

/// Adds the segments of a list, with their blocks, to the snapshot.
fn read_segments(
    list: Value,
    kind: MemoryKind,
    converted: &mut ConvertedLists,
    heap: &mut Heap,
    builder: &mut Builder,
) -> Result<(), FieldError> {
    let Some(list) = converted.list_without_entries(heap, builder, list, "segments is not a list of segments")? else {
        return Ok(());
    };
    for at in 0..heap.values(list).len() {
        let Value::Dict(dict) = heap.value_at(list, at)? else {
            return Err(FieldError::Invalid("a segment is not a dictionary"));
        };
        let mut row = SegmentRow::default();
        let first_block = builder.snapshot.blocks.len();
        for_each_field(dict, heap, |key, value, heap| {
            match key {
                SnapshotKey::Frames => row.origin.stack = heap.stack(value, builder)?,
                SnapshotKey::Blocks => read_blocks(value, converted, heap, builder)?,
                _ => {
                    let value = heap.field_scalar(key, value, builder)?;
                    builder.segment_field(&mut row, key, value)?;
                }
            }
            Ok(())
        })?;
        builder.push_segment(row, first_block, kind)?;
    }
    Ok(())
}

/// Adds the blocks of one segment to the snapshot.
fn read_blocks(
    list: Value,
    converted: &mut ConvertedLists,
    heap: &mut Heap,
    builder: &mut Builder,
) -> Result<(), FieldError> {
    let Some(list) =
        converted.list_without_entries(heap, builder, list, "the blocks of a segment are not a list of blocks")?
    else {
        return Ok(());
    };
    for at in 0..heap.values(list).len() {
        let Value::Dict(dict) = heap.value_at(list, at)? else {
            return Err(FieldError::Invalid("a block is not a dictionary"));
        };
        let (mut row, mut history) = (BlockRow::default(), Value::None);
        for_each_field(dict, heap, |key, value, heap| {
            match key {
                SnapshotKey::Frames => row.origin.stack = heap.stack(value, builder)?,
                SnapshotKey::History => history = value,
                _ => {
                    let value = heap.field_scalar(key, value, builder)?;
                    builder.block_field(&mut row, key, value)?;
                }
            }
            Ok(())
        })?;
        read_block_history(history, &mut row, heap, builder)?;
        builder.push_block(row)?;
    }
    Ok(())
}

/// Reads the `history` of a block, its allocations with the newest first: call stack and requested
/// size. Only old versions have it.
fn read_block_history(
    list: Value,
    row: &mut BlockRow,
    heap: &mut Heap,
    builder: &mut Builder,
) -> Result<(), FieldError> {
    let Value::List(list) = list else { return Ok(()) };
    let Some(&Value::Dict(newest)) = heap.values(list).first() else { return Ok(()) };
    for_each_field(newest, heap, |key, value, heap| {
        match key {
            SnapshotKey::Frames => row.origin.stack = heap.stack(value, builder)?,
            SnapshotKey::RealSize => builder.block_field(row, key, heap.scalar(value))?,
            _ => {}
        }
        Ok(())
    })
}

/// Adds the history of each device to the snapshot; `list` has one item a device.
fn read_traces(
    list: Value,
    converted: &mut ConvertedLists,
    heap: &mut Heap,
    builder: &mut Builder,
) -> Result<(), FieldError> {
    let Some(list) = converted.list_without_entries(heap, builder, list, "device_traces is not a list of lists")?
    else {
        return Ok(());
    };
    for at in 0..heap.values(list).len() {
        let trace = read_trace(heap.value_at(list, at)?, converted, heap, builder)?;
        builder.push_trace(trace)?;
    }
    Ok(())
}

/// Adds the history of pinned host memory to the snapshot's entries and returns the ranges of their
/// indices. `list` has entries, or lists of entries as for devices.
fn read_host_traces(
    list: Value,
    converted: &mut ConvertedLists,
    heap: &mut Heap,
    builder: &mut Builder,
) -> Result<Vec<Range<u32>>, FieldError> {
    let is_nested = |heap: &Heap| match list {
        Value::List(list) => matches!(heap.values(list).first(), Some(Value::List(_))),
        _ => false,
    };
    if !is_nested(heap) {
        return read_trace(list, converted, heap, builder);
    }
    let mut all = Vec::new();
    let Some(list) = converted.list(heap, builder, list, "host_traces is not a list")? else { return Ok(all) };
    for at in 0..heap.values(list).len() {
        all.extend(read_trace(heap.value_at(list, at)?, converted, heap, builder)?);
    }
    Ok(all)
}

/// Returns the ranges of indices that the entries of one history have in the snapshot's entries,
/// and adds the entries that are not there yet.
fn read_trace(
    list: Value,
    converted: &mut ConvertedLists,
    heap: &mut Heap,
    builder: &mut Builder,
) -> Result<Vec<Range<u32>>, FieldError> {
    let Some(trace) = converted.list(heap, builder, list, "a device's history is not a list")? else {
        return Ok(Vec::new());
    };
    if let Some(ranges) = heap.entries(trace) {
        return Ok(ranges.to_vec());
    }
    let first = builder.snapshot.entries.len() as u32;
    for at in 0..heap.values(trace).len() {
        read_unrecognized_entry(heap.value_at(trace, at)?, heap, builder)?;
    }
    Ok(vec![Range { start: first, end: builder.snapshot.entries.len() as u32 }])
}

/// Adds an entry whose dictionary received its keys one by one, so that the pickle machine did not
/// take it for an entry.
fn read_unrecognized_entry(value: Value, heap: &mut Heap, builder: &mut Builder) -> Result<(), FieldError> {
    let Value::Dict(dict) = value else { return Err(FieldError::Invalid("an entry of a history is not a dictionary")) };
    let mut draft = EntryDraft::default();
    heap.charge_row(dict)?;
    if field(heap, dict, SnapshotKey::Action).is_none() {
        return Err(FieldError::Invalid("an entry of a history has no action"));
    }
    for_each_field(dict, heap, |key, value, heap| {
        match key {
            SnapshotKey::Frames => draft.stack = heap.stack(value, builder)?,
            _ => {
                let value = heap.field_scalar(key, value, builder)?;
                builder.entry_field(&mut draft, key, value)?;
            }
        }
        Ok(())
    })?;
    builder.push_entry(&draft)?;
    Ok(())
}

/// Adds the annotations of a list to the snapshot; items that are not dictionaries are skipped.
fn read_annotations(
    list: Value,
    converted: &mut ConvertedLists,
    heap: &mut Heap,
    builder: &mut Builder,
) -> Result<(), FieldError> {
    let Some(list) =
        converted.list_without_entries(heap, builder, list, "external_annotations is not a list of annotations")?
    else {
        return Ok(());
    };
    for at in 0..heap.values(list).len() {
        let Value::Dict(dict) = heap.value_at(list, at)? else { continue };
        let mut row =
            AnnotationRow { device: 0, time_us: 0, stage: AnnotationStage::Instant, name: Default::default() };
        for_each_field(dict, heap, |key, value, heap| {
            let value = heap.field_scalar(key, value, builder)?;
            builder.annotation_field(&mut row, key, value)
        })?;
        builder.push_annotation(row)?;
    }
    Ok(())
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

/// Stores the pickle's allocator settings in the builder's snapshot; counts them as invalid if they
/// are not a dictionary or too large.
fn read_settings(settings: Value, heap: &Heap, builder: &mut Builder) {
    let mut remaining = MAX_SETTINGS_BYTES;
    match to_json(settings, heap, MAX_SETTINGS_DEPTH, &mut remaining).filter(serde_json::Value::is_object) {
        Some(settings) => builder.snapshot.settings = RecordedSettings::read(&settings),
        None => builder.count_invalid("the allocator settings are not a dictionary or too large"),
    }
}
