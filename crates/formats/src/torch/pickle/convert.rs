//! Finds the snapshot in what the pickle machine leaves.
//!
//! A pickle may name one list from many places. Each is turned into rows once, so that a pickle cannot make more rows than it has bytes.

use std::collections::HashSet;
use std::ops::Range;

use vramscope_trace::Stage;

use super::heap::Heap;
use super::value::{DictId, ListId, Value};
use crate::torch::builder::{Builder, EntryDraft, Owner};
use crate::torch::key::Key;
use crate::torch::scalar::Refusal;
use crate::torch::settings::{MAX_PLAIN_BYTES, PLAIN_VALUE_BYTES, RecordedSettings};
use crate::torch::snapshot::{AnnotationRow, BlockRow, SegmentRow};

/// Lists already turned into rows.
#[derive(Default)]
struct Used(HashSet<u32>);

impl Used {
    /// The items of a list. One that was used before is skipped and counted: whoever puts a history or a segment's blocks together by
    /// hand may name one list twice, and a small pickle could name it so often that no memory is large enough.
    fn list(
        &mut self,
        heap: &Heap<'_>,
        builder: &mut Builder,
        value: Value,
        wrong: &'static str,
    ) -> Result<Option<ListId>, Refusal> {
        let list = match value {
            Value::List(list) => list,
            Value::None => return Ok(None),
            _ => return Err(Refusal::Wrong(wrong)),
        };
        let is_empty = heap.values(list).is_empty() && heap.entries(list).is_none_or(<[_]>::is_empty);
        if is_empty || self.0.insert(list.0) {
            return Ok(Some(list));
        }
        builder.note_odd("one list stands in several places of the snapshot");
        Ok(None)
    }

    /// The same of a list in which no entries of a history stand.
    fn list_of_others(
        &mut self,
        heap: &Heap<'_>,
        builder: &mut Builder,
        value: Value,
        wrong: &'static str,
    ) -> Result<Option<ListId>, Refusal> {
        match value {
            Value::List(list) if heap.entries(list).is_some_and(|entries| !entries.is_empty()) => {
                Err(Refusal::Wrong(wrong))
            }
            _ => self.list(heap, builder, value, wrong),
        }
    }
}

/// The value of a key; the last one where it stands twice, as in Python.
fn field(heap: &Heap<'_>, dict: DictId, wanted: Key) -> Option<Value> {
    let mut pairs = heap.pairs(dict).iter().rev();
    pairs.find(|(key, _)| key_of(heap, *key) == Some(wanted)).map(|&(_, value)| value)
}

/// No row has more keys than this, so that a dictionary named from everywhere costs no more than its mentions.
const MAX_ROW_KEYS: usize = 256;

/// How deeply settings may be nested. PyTorch nests them twice.
const MAX_SETTINGS_DEPTH: u32 = 8;

/// How many keys a dictionary has that describes one row.
fn row_keys(heap: &Heap<'_>, dict: DictId) -> Result<usize, Refusal> {
    let count = heap.pairs(dict).len();
    if count > MAX_ROW_KEYS { Err(Refusal::Wrong("a row of the snapshot has too many keys")) } else { Ok(count) }
}

fn key_of(heap: &Heap<'_>, key: Value) -> Option<Key> {
    if let Value::Text(text) = key { heap.texts.key(text) } else { None }
}

/// Fills the builder from the pickle's one value.
pub(super) fn snapshot(top: Value, heap: &mut Heap<'_>, builder: &mut Builder) -> Result<(), Refusal> {
    let mut used = Used::default();
    let top = match top {
        Value::Dict(top) => top,
        Value::List(list) if is_segments(list, heap) => {
            builder.snapshot.has_segments = true;
            return read_segments(top, Owner::Devices, &mut used, heap, builder);
        }
        Value::List(_) => return Err(Refusal::Wrong("this pickle is a list, and not one of segments")),
        _ => {
            let what = "this pickle is not the dictionary that torch.cuda.memory._snapshot() gives";
            return Err(Refusal::Wrong(what));
        }
    };
    let has = |key| field(heap, top, key).is_some();
    if ![Key::Segments, Key::DeviceTraces, Key::HostSegments, Key::HostTraces].into_iter().any(has) {
        return Err(Refusal::Wrong(
            "this dictionary has neither segments nor device_traces: it is not a PyTorch snapshot",
        ));
    }
    for (key, owner) in [(Key::Segments, Owner::Devices), (Key::HostSegments, Owner::Host)] {
        if let Some(segments) = field(heap, top, key) {
            builder.snapshot.has_segments |= owner == Owner::Devices;
            read_segments(segments, owner, &mut used, heap, builder)?;
        }
    }
    if let Some(traces) = field(heap, top, Key::DeviceTraces) {
        read_traces(traces, &mut used, heap, builder)?;
    }
    if let Some(trace) = field(heap, top, Key::HostTraces) {
        builder.snapshot.host_trace = read_host_traces(trace, &mut used, heap, builder)?;
    }
    if let Some(annotations) = field(heap, top, Key::ExternalAnnotations) {
        read_annotations(annotations, &mut used, heap, builder)?;
    }
    if let Some(settings) = field(heap, top, Key::AllocatorSettings) {
        read_settings(settings, heap, builder);
    }
    Ok(())
}

/// Whether a list holds segments and nothing else: `torch.cuda.memory_snapshot()`, and all that the first versions had.
fn is_segments(list: ListId, heap: &Heap<'_>) -> bool {
    let is_segment = |value: &Value| match *value {
        Value::Dict(dict) if row_keys(heap, dict).is_ok() => {
            field(heap, dict, Key::Address).is_some() && field(heap, dict, Key::TotalSize).is_some()
        }
        _ => false,
    };
    let values = heap.values(list);
    !values.is_empty() && values.iter().all(is_segment)
}

fn read_segments(
    list: Value,
    owner: Owner,
    used: &mut Used,
    heap: &mut Heap<'_>,
    builder: &mut Builder,
) -> Result<(), Refusal> {
    let Some(list) = used.list_of_others(heap, builder, list, "segments is not a list of segments")? else {
        return Ok(());
    };
    for at in 0..heap.values(list).len() {
        let Value::Dict(dict) = heap.value_at(list, at)? else {
            return Err(Refusal::Wrong("a segment is not a dictionary"));
        };
        let mut row = SegmentRow::default();
        let first_block = builder.snapshot.blocks.len();
        for pair in 0..row_keys(heap, dict)? {
            let (key, value) = heap.pairs(dict)[pair];
            match key_of(heap, key) {
                None => {}
                Some(Key::Frames) => row.origin.stack = heap.stack(value, builder)?,
                Some(Key::Blocks) => read_blocks(value, used, heap, builder)?,
                Some(key) => builder.segment_field(&mut row, key, heap.scalar(value))?,
            }
        }
        builder.push_segment(row, first_block, owner)?;
    }
    Ok(())
}

fn read_blocks(list: Value, used: &mut Used, heap: &mut Heap<'_>, builder: &mut Builder) -> Result<(), Refusal> {
    let Some(list) = used.list_of_others(heap, builder, list, "the blocks of a segment are not a list of blocks")?
    else {
        return Ok(());
    };
    for at in 0..heap.values(list).len() {
        let Value::Dict(dict) = heap.value_at(list, at)? else {
            return Err(Refusal::Wrong("a block is not a dictionary"));
        };
        let mut row = BlockRow::default();
        for pair in 0..row_keys(heap, dict)? {
            let (key, value) = heap.pairs(dict)[pair];
            match key_of(heap, key) {
                None => {}
                Some(Key::Frames) => row.origin.stack = heap.stack(value, builder)?,
                Some(Key::History) => read_block_history(value, &mut row, heap, builder)?,
                Some(key) => builder.block_field(&mut row, key, heap.scalar(value))?,
            }
        }
        builder.push_block(row)?;
    }
    Ok(())
}

/// Old versions say in a list what was put into a block, the newest first, and only there where that came from.
fn read_block_history(
    list: Value,
    row: &mut BlockRow,
    heap: &mut Heap<'_>,
    builder: &mut Builder,
) -> Result<(), Refusal> {
    let Value::List(list) = list else { return Ok(()) };
    let Some(&Value::Dict(newest)) = heap.values(list).first() else { return Ok(()) };
    for pair in 0..row_keys(heap, newest)? {
        let (key, value) = heap.pairs(newest)[pair];
        match key_of(heap, key) {
            Some(Key::Frames) => row.origin.stack = heap.stack(value, builder)?,
            Some(Key::RealSize) => builder.block_field(row, Key::RealSize, heap.scalar(value))?,
            _ => {}
        }
    }
    Ok(())
}

fn read_traces(list: Value, used: &mut Used, heap: &mut Heap<'_>, builder: &mut Builder) -> Result<(), Refusal> {
    let Some(list) = used.list_of_others(heap, builder, list, "device_traces is not a list of lists")? else {
        return Ok(());
    };
    for at in 0..heap.values(list).len() {
        let trace = read_trace(heap.value_at(list, at)?, used, heap, builder)?;
        builder.push_trace(trace)?;
    }
    Ok(())
}

/// The host has one history; it may stand in a list as those of the devices do.
fn read_host_traces(
    list: Value,
    used: &mut Used,
    heap: &mut Heap<'_>,
    builder: &mut Builder,
) -> Result<Vec<Range<u32>>, Refusal> {
    let is_nested = |heap: &Heap<'_>| match list {
        Value::List(list) => matches!(heap.values(list).first(), Some(Value::List(_))),
        _ => false,
    };
    if !is_nested(heap) {
        return read_trace(list, used, heap, builder);
    }
    let mut all = Vec::new();
    let Some(list) = used.list(heap, builder, list, "host_traces is not a list")? else { return Ok(all) };
    for at in 0..heap.values(list).len() {
        all.extend(read_trace(heap.value_at(list, at)?, used, heap, builder)?);
    }
    Ok(all)
}

/// The entries of one history.
fn read_trace(
    list: Value,
    used: &mut Used,
    heap: &mut Heap<'_>,
    builder: &mut Builder,
) -> Result<Vec<Range<u32>>, Refusal> {
    let Some(trace) = used.list(heap, builder, list, "a device's history is not a list")? else {
        return Ok(Vec::new());
    };
    if let Some(ranges) = heap.entries(trace) {
        return Ok(ranges.to_vec());
    }
    let first = builder.snapshot.entries.len() as u32;
    for at in 0..heap.values(trace).len() {
        read_late_entry(heap.value_at(trace, at)?, heap, builder)?;
    }
    Ok(vec![Range { start: first, end: builder.snapshot.entries.len() as u32 }])
}

/// An entry whose dictionary got its keys one by one, and so was not recognized when it was filled.
fn read_late_entry(value: Value, heap: &mut Heap<'_>, builder: &mut Builder) -> Result<(), Refusal> {
    let Value::Dict(dict) = value else { return Err(Refusal::Wrong("an entry of a history is not a dictionary")) };
    let mut draft = EntryDraft::default();
    row_keys(heap, dict)?;
    if field(heap, dict, Key::Action).is_none() {
        return Err(Refusal::Wrong("an entry of a history has no action"));
    }
    for pair in 0..row_keys(heap, dict)? {
        let (key, value) = heap.pairs(dict)[pair];
        match key_of(heap, key) {
            None => {}
            Some(Key::Frames) => draft.stack = heap.stack(value, builder)?,
            Some(key) => builder.entry_field(&mut draft, key, heap.scalar(value))?,
        }
    }
    builder.push_entry(&draft)?;
    Ok(())
}

fn read_annotations(list: Value, used: &mut Used, heap: &Heap<'_>, builder: &mut Builder) -> Result<(), Refusal> {
    let Some(list) = used.list_of_others(heap, builder, list, "external_annotations is not a list of annotations")?
    else {
        return Ok(());
    };
    for &value in heap.values(list) {
        let Value::Dict(dict) = value else { continue };
        let mut row = AnnotationRow { device: 0, time_us: 0, stage: Stage::Instant, name: Default::default() };
        for &(key, value) in &heap.pairs(dict)[..row_keys(heap, dict)?] {
            if let Some(key) = key_of(heap, key) {
                builder.annotation_field(&mut row, key, heap.scalar(value))?;
            }
        }
        builder.push_annotation(row)?;
    }
    Ok(())
}

/// A value as JSON, where it is no deeper than `depth` and no larger than what is left.
fn plain(value: Value, heap: &Heap<'_>, depth: u32, left: &mut usize) -> Option<serde_json::Value> {
    let text_len = |value| if let Value::Text(text) = value { heap.texts.text(text).len() } else { 0 };
    *left = left.checked_sub(PLAIN_VALUE_BYTES.saturating_add(text_len(value)))?;
    Some(match value {
        Value::Bool(value) => value.into(),
        Value::Int(number) => number.into(),
        Value::Unsigned(number) => number.into(),
        Value::Float(number) => number.into(),
        Value::Text(text) => heap.texts.text(text).into(),
        Value::Pair(first, second) => vec![first, second].into(),
        Value::List(list) => {
            let depth = depth.checked_sub(1)?;
            let values = heap.values(list).iter();
            values.map(|&value| plain(value, heap, depth, left)).collect::<Option<Vec<_>>>()?.into()
        }
        Value::Dict(dict) => {
            let depth = depth.checked_sub(1)?;
            let mut values = serde_json::Map::new();
            for &(key, value) in heap.pairs(dict) {
                let Value::Text(key) = key else { continue };
                let key = heap.texts.text(key);
                *left = left.checked_sub(key.len())?;
                values.insert(key.to_owned(), plain(value, heap, depth, left)?);
            }
            values.into()
        }
        _ => serde_json::Value::Null,
    })
}

fn read_settings(settings: Value, heap: &Heap<'_>, builder: &mut Builder) {
    let mut left = MAX_PLAIN_BYTES;
    match plain(settings, heap, MAX_SETTINGS_DEPTH, &mut left).filter(serde_json::Value::is_object) {
        Some(settings) => builder.snapshot.settings = RecordedSettings::read(&settings),
        None => builder.note_odd("the allocator's settings are not a dictionary of a few"),
    }
}
