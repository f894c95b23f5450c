//! Finds the snapshot in what the pickle machine leaves.
//!
//! A pickle may name one list from many places. What is turned into rows is turned once for each time that it is named, so a list
//! named too often is refused before it could make more rows than the pickle has bytes.

use std::collections::HashSet;
use std::ops::Range;

use vramscope_trace::Stage;

use super::heap::Heap;
use super::value::{DictId, ListId, Value};
use crate::torch::builder::{Builder, EntryDraft, Refusal};
use crate::torch::key::Key;
use crate::torch::snapshot::{AnnotationRow, BlockRow, SegmentRow};

/// Lists already turned into rows.
#[derive(Default)]
struct Used(HashSet<u32>);

impl Used {
    /// The items of a list that no one has used yet.
    fn list(&mut self, heap: &Heap<'_>, value: Value, wrong: &'static str) -> Result<ListId, Refusal> {
        let Value::List(list) = value else { return Err(Refusal::Wrong(wrong)) };
        let is_empty = heap.values(list).is_empty() && heap.entries(list).is_none_or(<[_]>::is_empty);
        if !is_empty && !self.0.insert(list.0) {
            return Err(Refusal::Wrong("one list stands in several places of the snapshot"));
        }
        Ok(list)
    }
}

/// The value of a key; the last one where it stands twice, as in Python.
fn field(heap: &Heap<'_>, dict: DictId, wanted: Key) -> Option<Value> {
    let mut pairs = heap.pairs(dict).iter().rev();
    pairs.find(|(key, _)| key_of(heap, *key) == Some(wanted)).map(|&(_, value)| value)
}

/// No row has more keys than this, so that a dictionary named from everywhere costs no more than its mentions.
const MAX_ROW_KEYS: usize = 256;

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
    let Value::Dict(top) = top else {
        return Err(Refusal::Wrong(match top {
            Value::List(_) => {
                "this pickle is a list, perhaps of segments alone; a whole snapshot is the dictionary that \
                 torch.cuda.memory._snapshot() gives"
            }
            _ => "this pickle is not the dictionary that torch.cuda.memory._snapshot() gives",
        }));
    };
    let segments = field(heap, top, Key::Segments);
    let traces = field(heap, top, Key::DeviceTraces);
    if segments.is_none() && traces.is_none() {
        return Err(Refusal::Wrong(
            "this dictionary has neither segments nor device_traces: it is not a PyTorch snapshot",
        ));
    }
    let mut used = Used::default();
    if let Some(segments) = segments {
        builder.snapshot.has_segments = true;
        read_segments(segments, &mut used, heap, builder)?;
    }
    if let Some(traces) = traces {
        read_traces(traces, &mut used, heap, builder)?;
    }
    if let Some(annotations) = field(heap, top, Key::ExternalAnnotations) {
        read_annotations(annotations, &mut used, heap, builder)?;
    }
    if let Some(Value::Dict(settings)) = field(heap, top, Key::AllocatorSettings) {
        read_settings(settings, heap, builder);
    }
    for (key, name) in [(Key::HostSegments, "host_segments"), (Key::HostTraces, "host_traces")] {
        if field(heap, top, key).is_some() {
            builder.snapshot.left_out.push(name);
        }
    }
    Ok(())
}

fn read_segments(list: Value, used: &mut Used, heap: &mut Heap<'_>, builder: &mut Builder) -> Result<(), Refusal> {
    let list = used.list(heap, list, "segments is not a list")?;
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
                Some(Key::Frames) => row.stack = heap.stack(value, builder)?,
                Some(Key::Blocks) => read_blocks(value, used, heap, builder)?,
                Some(key) => Builder::segment_field(&mut row, key, heap.scalar(value))?,
            }
        }
        builder.push_segment(row, first_block)?;
    }
    Ok(())
}

fn read_blocks(list: Value, used: &mut Used, heap: &mut Heap<'_>, builder: &mut Builder) -> Result<(), Refusal> {
    let list = used.list(heap, list, "the blocks of a segment are not a list")?;
    for at in 0..heap.values(list).len() {
        let Value::Dict(dict) = heap.value_at(list, at)? else {
            return Err(Refusal::Wrong("a block is not a dictionary"));
        };
        let mut row = BlockRow::default();
        for pair in 0..row_keys(heap, dict)? {
            let (key, value) = heap.pairs(dict)[pair];
            match key_of(heap, key) {
                None => {}
                Some(Key::Frames) => row.stack = heap.stack(value, builder)?,
                Some(key) => Builder::block_field(&mut row, key, heap.scalar(value))?,
            }
        }
        builder.push_block(row)?;
    }
    Ok(())
}

fn read_traces(list: Value, used: &mut Used, heap: &mut Heap<'_>, builder: &mut Builder) -> Result<(), Refusal> {
    let list = used.list(heap, list, "device_traces is not a list")?;
    for at in 0..heap.values(list).len() {
        let trace = used.list(heap, heap.value_at(list, at)?, "a device's history is not a list")?;
        let ranges = match heap.entries(trace) {
            Some(ranges) => ranges.to_vec(),
            None => {
                let first = builder.snapshot.entries.len() as u32;
                for at in 0..heap.values(trace).len() {
                    read_late_entry(heap.value_at(trace, at)?, heap, builder)?;
                }
                vec![Range { start: first, end: builder.snapshot.entries.len() as u32 }]
            }
        };
        builder.push_trace(ranges)?;
    }
    Ok(())
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
    let list = used.list(heap, list, "external_annotations is not a list")?;
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

fn read_settings(settings: DictId, heap: &Heap<'_>, builder: &mut Builder) {
    builder.snapshot.settings.present = true;
    for &(key, value) in heap.pairs(settings) {
        match (key_of(heap, key), value) {
            (Some(Key::Divisions), Value::Dict(divisions)) => {
                for &(mib, division) in heap.pairs(divisions) {
                    if let Value::Text(mib) = mib {
                        let place = Builder::division_place(heap.texts.text(mib));
                        builder.set_division(place, heap.scalar(division));
                    }
                }
            }
            (Some(key), _) => builder.setting(key, heap.scalar(value)),
            (None, _) => {}
        }
    }
}
