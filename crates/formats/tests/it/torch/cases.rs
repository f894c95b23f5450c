//! Snapshots made of a few entries, segments and blocks, each with its expected import.

use serde_json::{Value, json};
use vramscope_formats::ImportSummary;
use vramscope_trace::{Counters, MemorySink};

use super::common::import_all;
use super::pickler::pickled;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
/// Addresses of segments.
pub(crate) const A: u64 = 64 * MIB;
pub(crate) const B: u64 = 128 * MIB;

/// A snapshot, and the expected state at its end.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) snapshot: Value,
    /// `[allocated, active, requested, reserved]` bytes of all devices together.
    pub(crate) bytes: [u64; 4],
    pub(crate) segments: usize,
    pub(crate) blocks: usize,
    pub(crate) events: u64,
    pub(crate) contradictions: u64,
    /// Texts that the notes must contain.
    pub(crate) notes: &'static [&'static str],
}

/// Creates an entry, such as `entry("alloc", A, 512)`. [`timed`] adds the times 10, 20, ...
pub(crate) fn entry(action: &str, address: impl Into<Value>, size: impl Into<Value>) -> Value {
    json!({"action": action, "addr": address.into(), "size": size.into(), "stream": 0})
}

/// Returns a dictionary with the value of one key set.
pub(crate) fn with(mut value: Value, key: &str, field: impl Into<Value>) -> Value {
    value[key] = field.into();
    value
}

/// Returns a dictionary without one key.
pub(crate) fn without(mut value: Value, key: &str) -> Value {
    value.as_object_mut().expect("the value is a dictionary").remove(key);
    value
}

/// Gives the entries the times 10, 20, ... in microseconds.
pub(crate) fn timed(entries: impl IntoIterator<Item = Value>) -> Value {
    (1..).zip(entries).map(|(number, entry)| with(entry, "time_us", 10 * number)).collect()
}

pub(crate) fn segment(
    address: impl Into<Value>,
    size: impl Into<Value>,
    blocks: impl IntoIterator<Item = Value>,
) -> Value {
    let blocks: Value = blocks.into_iter().collect();
    json!({"device": 0, "address": address.into(), "total_size": size.into(), "stream": 0, "segment_type": "large",
        "segment_pool_id": [0, 0], "is_expandable": false, "blocks": blocks})
}

pub(crate) fn block(address: impl Into<Value>, size: impl Into<Value>, state: &str) -> Value {
    let size = size.into();
    json!({"address": address.into(), "size": size, "requested_size": size, "state": state})
}

/// Returns an allocated block.
pub(crate) fn live(address: u64, size: u64) -> Value {
    block(address, size, "active_allocated")
}

/// Returns a free block.
pub(crate) fn free(address: u64, size: u64) -> Value {
    block(address, size, "inactive")
}

/// Returns a snapshot with segments and an empty history.
pub(crate) fn state(segments: impl IntoIterator<Item = Value>) -> Value {
    let segments: Value = segments.into_iter().collect();
    json!({"segments": segments, "device_traces": [[]], "allocator_settings": {}})
}

/// Returns a snapshot with a history and no segments.
pub(crate) fn history(entries: impl IntoIterator<Item = Value>) -> Value {
    json!({"device_traces": [timed(entries)], "allocator_settings": {}})
}

/// Returns a snapshot with segments and a history.
pub(crate) fn both(segments: impl IntoIterator<Item = Value>, entries: impl IntoIterator<Item = Value>) -> Value {
    let segments: Value = segments.into_iter().collect();
    json!({"segments": segments, "device_traces": [timed(entries)], "allocator_settings": {}})
}

pub(crate) fn case(name: &'static str, snapshot: Value, bytes: [u64; 4]) -> Case {
    Case { name, snapshot, bytes, segments: 0, blocks: 0, events: 0, contradictions: 0, notes: &[] }
}

impl Case {
    /// Sets the expected numbers of segments and blocks at the end, and of events.
    pub(crate) fn has(self, segments: usize, blocks: usize, events: u64) -> Self {
        Self { segments, blocks, events, ..self }
    }

    /// Sets the expected number of contradictions, and texts that the notes must contain.
    pub(crate) fn contradictions(self, contradictions: u64, notes: &'static [&'static str]) -> Self {
        Self { contradictions, notes, ..self }
    }

    /// Imports the snapshot as JSON and as a pickle, and checks both imports.
    pub(crate) fn check(&self) {
        let json = serde_json::to_vec(&self.snapshot).expect("the values are plain data");
        let from_json = import_all(&json, self.name);
        let from_pickle = import_all(&pickled(&self.snapshot), self.name);
        self.check_end("JSON", &from_json);
        self.check_end("pickle", &from_pickle);
        assert_eq!(from_json.0.events, from_pickle.0.events, "{}", self.name);
        assert_eq!(from_json.1, from_pickle.1, "{}", self.name);
    }

    /// Checks one import against the expected values.
    fn check_end(&self, form: &str, (memory, imported): &(MemorySink, ImportSummary)) {
        let name = format!("{} as {form}: {:?}", self.name, imported.info.import_notes);
        let mut state = memory.states.first().map(|(_, state)| state.clone()).unwrap_or_default();
        memory.events.iter().for_each(|event| state.apply(event));
        let (mut bytes, mut segments, mut blocks) = ([0; 4], 0, 0);
        for (_, device) in state.devices() {
            let Counters { allocated, active, requested, reserved } = device.counters();
            bytes.iter_mut().zip([allocated, active, requested, reserved]).for_each(|(sum, more)| *sum += more);
            segments += device.segments().len();
            blocks += device.blocks().len();
        }
        assert_eq!(bytes, self.bytes, "{name}: allocated, active, requested, reserved");
        assert_eq!((segments, blocks), (self.segments, self.blocks), "{name}: segments, blocks");
        assert_eq!((memory.events.len() as u64, imported.events), (self.events, self.events), "{name}: events");
        assert_eq!(imported.contradictions, self.contradictions, "{name}: contradictions");
        for words in self.notes {
            assert!(imported.info.import_notes.iter().any(|note| note.contains(words)), "{name}: no {words:?}");
        }
    }
}
