//! Snapshots of older and newer versions of PyTorch, and of other programs that write the same
//! format.

use serde_json::{Value, json};
use vramscope_formats::ImportSummary;
use vramscope_trace::{
    Annotation, AnnotationStage, Definitions, DeviceId, Event, EventKind, MemorySink, MempoolId, PoolKey, PoolKind,
    SiteId,
};

use super::common::{import_all, moments, recorded};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn import_json(snapshot: &Value) -> (MemorySink, ImportSummary) {
    import_all(&serde_json::to_vec(snapshot).expect("the values are plain data"), "made up")
}

fn definitions(memory: &MemorySink) -> Definitions {
    let mut definitions = Definitions::default();
    memory.definitions.iter().cloned().for_each(|definition| definitions.define(definition));
    definitions
}

/// Returns the sizes of all allocated blocks.
fn block_sizes(memory: &MemorySink) -> Vec<u64> {
    let size = |event: &Event| match event.kind {
        EventKind::BlockAllocated { size, .. } => Some(size),
        _ => None,
    };
    memory.events.iter().filter_map(size).collect()
}

fn entry(action: &str, addr: u64, size: u64, time_us: u64) -> Value {
    json!({"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us})
}

fn has_note(imported: &ImportSummary, words: &str) -> bool {
    imported.info.import_notes.iter().any(|note| note.contains(words))
}

#[test]
fn call_stacks_begin_with_the_innermost_frame() {
    let recorded = recorded("tiny_inference").expect("the repository contains this snapshot");
    let (memory, _) = import_all(&recorded.pickle, "tiny_inference");
    let definitions = definitions(&memory);
    let EventKind::SegmentAllocated { site, .. } = memory.events[0].kind else { panic!("a segment comes first") };
    let frames: Vec<_> = definitions
        .stack(definitions.site(site).stack)
        .map(|frame| (definitions.string(frame.function), definitions.string(frame.file), frame.line))
        .collect();
    assert_eq!(frames.len(), 6);
    assert_eq!(frames[0], ("<lambda>", "site-packages/torch/nn/modules/module.py", 1097));
    assert_eq!(frames[5], ("<module>", "train.py", 151));
    // Time 0 is the first event.
    assert_eq!(memory.events[0].time_ns, 0);
    assert_eq!(memory.events[1].time_ns, 2000);
}

#[test]
fn old_snapshot_uses_default_settings() {
    // No settings, pool ids, times, block addresses or free_requested entries.
    let mut entries = vec![entry("segment_alloc", BASE, 2 * MIB, 0), entry("alloc", BASE, 1000, 0)];
    entries.extend([entry("alloc", BASE + 1024, 512, 0), entry("free_completed", BASE, 1000, 0)]);
    entries.iter_mut().for_each(|entry| drop(entry.as_object_mut().and_then(|entry| entry.remove("time_us"))));
    let segments = json!([{"device": 0, "address": BASE, "total_size": 2 * MIB, "stream": 0,
        "segment_type": "small", "blocks": [
        {"size": 1024, "state": "inactive"},
        {"size": 512, "state": "active_allocated"},
        {"size": 2 * MIB - 1536, "state": "inactive"},
    ]}]);
    let (memory, imported) = import_json(&json!({"segments": segments, "device_traces": [entries]}));
    assert_eq!(block_sizes(&memory), [1024, 512]);
    assert!(imported.info.devices[0].history_complete);
    assert_eq!(imported.info.epoch_unix_ns, 0);
    assert_eq!(memory.events[3].time_ns, 3000);
    assert_eq!(imported.contradictions, 0);
    assert_eq!(imported.info.import_notes.len(), 2, "{:?}", imported.info.import_notes);
    assert!(has_note(&imported, "the defaults were assumed") && has_note(&imported, "have no times"));
}

#[test]
fn new_actions_become_marks_and_pool_ids_are_read() {
    let mut entries = vec![
        entry("segment_alloc", BASE, 20 * MIB, 10),
        entry("alloc", BASE, 3 * MIB, 11),
        json!({"action": "annotate", "addr": 0, "size": 0, "stream": 0, "time_us": 12, "user_metadata": "epoch 3"}),
        json!({"action": "snapshot", "addr": 0, "size": 3 * MIB, "stream": 0, "time_us": 13}),
        json!({"action": "oom", "device_free": 77, "size": 512, "stream": 0, "time_us": 14}),
    ];
    entries[0]["pool_id"] = json!([3, 1]);
    entries[1]["pool_id"] = json!([3, 1]);
    entries[1]["user_metadata"] = json!("forward");
    let snapshot = json!({"device_traces": [entries], "host_segments": [], "host_traces": null, "later": null});
    let (memory, imported) = import_json(&snapshot);
    let definitions = definitions(&memory);
    let owner = MempoolId(3, 1);
    let EventKind::BlockAllocated { pool, site, size, .. } = memory.events[1].kind else { panic!("a block") };
    assert_eq!((pool, size), (PoolKey { kind: PoolKind::Large, owner }, 3 * MIB));
    assert_eq!(definitions.string(definitions.site(site).scope), "forward");
    let mark = |event: &Event| match event.kind {
        EventKind::Mark { stage: AnnotationStage::Instant, name, .. } => definitions.string(name).to_owned(),
        _ => String::new(),
    };
    assert_eq!(mark(&memory.events[2]), "epoch 3");
    assert_eq!(mark(&memory.events[3]), "snapshot");
    let (device_free, stream, site) = (77, Default::default(), SiteId(0));
    assert_eq!(memory.events[4].kind, EventKind::OutOfMemory { requested: 512, device_free, stream, site });
    assert!(has_note(&imported, "lists no segments"));
}

#[test]
fn block_sizes_follow_the_settings() {
    let entries = [
        entry("segment_alloc", BASE, 64 * MIB, 1),
        // 5 MiB and a little, rounded to quarters of 4..8 MiB.
        entry("alloc", BASE, 5 * MIB + 1, 2),
        // Too large to be split.
        entry("segment_alloc", 2 * BASE, 64 * MIB, 3),
        entry("alloc", 2 * BASE, 40 * MIB, 4),
    ];
    // Recorded values are appended to a text that has further settings, and replace any other text.
    let values = "max_split_size_mb:32,roundup_power2_divisions:[2:0,4:4]";
    for (text, alloc_conf) in [("x", format!("x,{values}")), ("", values.to_owned())] {
        let settings = json!({"PYTORCH_CUDA_ALLOC_CONF": text, "max_split_size": 32 * MIB,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": false, "roundup_power2_divisions": {"4": 4, "1": 0}});
        let snapshot = json!({"device_traces": [entries.clone()], "allocator_settings": settings});
        let (memory, imported) = import_json(&snapshot);
        assert_eq!(block_sizes(&memory), [6 * MIB, 64 * MIB]);
        assert_eq!(imported.info.alloc_conf, alloc_conf);
    }
}

#[test]
fn reported_overflow_makes_a_history_incomplete() {
    let snapshot = |overflowed: bool| {
        json!({"segments": [], "device_traces": [[entry("oom", 0, 512, 1)]],
            "allocator_settings": {"trace_alloc_overflowed": overflowed}})
    };
    let (_, imported) = import_json(&snapshot(true));
    assert!(!imported.info.devices[0].history_complete && has_note(&imported, "overflowed"));
    assert!(import_json(&snapshot(false)).1.info.devices[0].history_complete);
}

#[test]
fn contradicting_entries_become_events_and_are_counted() {
    // An address outside all segments, a free of an unknown block, the same block twice.
    let entries = [
        entry("alloc", BASE, 512, 1),
        entry("alloc", BASE, 512, 2),
        entry("free_completed", BASE, 512, 3),
        entry("free_completed", BASE, 512, 4),
        entry("segment_free", BASE, 2 * MIB, 5),
        entry("segment_alloc", u64::MAX - 511, 4096, 6),
    ];
    let (memory, imported) = import_json(&json!({"segments": [], "device_traces": [entries]}));
    assert_eq!(memory.events.len(), 6);
    assert!(imported.contradictions >= 3, "{imported:?}");
    assert!(has_note(&imported, "contradict the entries before"));
    moments(&memory, DeviceId(0));
}

#[test]
fn snapshots_block_size_overrides_the_rules() {
    // An allocator that never splits: the block of 3 MiB has all of its 20 MiB.
    let entries = [entry("segment_alloc", BASE, 20 * MIB, 1), entry("alloc", BASE, 3 * MIB, 2)];
    let segments = json!([{"device": 0, "address": BASE, "total_size": 20 * MIB, "stream": 0,
        "segment_type": "large", "blocks": [
        {"address": BASE, "size": 20 * MIB, "requested_size": 3 * MIB, "state": "active_allocated"},
    ]}]);
    let (memory, imported) = import_json(&json!({"segments": segments, "device_traces": [entries]}));
    assert_eq!(block_sizes(&memory), [20 * MIB]);
    assert!(
        has_note(&imported, "the snapshot's size was used") && !has_note(&imported, "differ"),
        "{:?}",
        imported.info.import_notes
    );
}

#[test]
fn snapshot_without_history_becomes_a_full_state() {
    let segments = json!([{"device": 1, "address": BASE, "total_size": 20 * MIB, "stream": 7, "segment_type": "large",
        "segment_pool_id": [2, 0], "is_expandable": true, "blocks": [
            {"address": BASE, "size": 8 * MIB, "requested_size": 7 * MIB, "state": "active_pending_free"},
            {"address": BASE + 8 * MIB, "size": 12 * MIB, "requested_size": 0, "state": "inactive"}]}]);
    let (memory, imported) = import_json(&json!({"segments": segments, "device_traces": [[], []]}));
    assert_eq!((memory.events.len(), imported.info.devices.len()), (0, 2));
    let (_, state) = moments(&memory, DeviceId(1));
    let device = state.device(DeviceId(1)).expect("the recording has device 1");
    let counters = device.counters();
    assert_eq!((counters.allocated, counters.active, counters.reserved), (0, 8 * MIB, 20 * MIB));
    assert_eq!(counters.requested, 7 * MIB);
    assert!(device.segments().all(|segment| segment.expandable && segment.pool.owner == MempoolId(2, 0)));
    let complete: Vec<_> = imported.info.devices.iter().map(|device| device.history_complete).collect();
    assert_eq!(complete, [true, false], "device 0 exists but was never used");
}

#[test]
fn devices_and_annotations_are_merged_in_order_of_time() {
    let annotation =
        |stage: &str, time_us: u64| json!({"stage": stage, "name": "step", "device": 1, "time_us": time_us});
    let snapshot = json!({
        "device_traces": [
            [entry("oom", 0, 512, 100), entry("oom", 0, 512, 300)],
            [entry("oom", 0, 512, 100), entry("oom", 0, 512, 200)],
        ],
        "external_annotations": [annotation("START", 150), annotation("END", 400), annotation("END", 50)],
    });
    let (memory, imported) = import_json(&snapshot);
    let order: Vec<_> = memory.events.iter().map(|event| (event.device.0, event.time_ns)).collect();
    assert_eq!(order, [(0, 0), (1, 0), (1, 100_000), (0, 200_000)]);
    assert_eq!(imported.info.epoch_unix_ns, 100_000);
    let annotations: Vec<_> = memory
        .annotations
        .iter()
        .map(|Annotation { at_event, stage, time_ns, .. }| (*at_event, *stage, *time_ns))
        .collect();
    assert_eq!(annotations, [(2, AnnotationStage::Begin, 50_000), (4, AnnotationStage::End, 300_000)]);
    assert!(has_note(&imported, "1 annotation from before"));
}
