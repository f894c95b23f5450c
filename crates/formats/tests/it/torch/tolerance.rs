//! Snapshots that are incomplete, contradictory or contain invalid values: everything valid is
//! imported, and problems are counted. Every case is read as JSON and as a pickle.

use serde_json::{Value, json};
use vramscope_trace::{DeviceId, MemorySink, MemoryState};

use super::cases::{
    A, B, Case, KIB, MIB, block, both, case, entry, free, history, live, segment, state, timed, with, without,
};
use super::common::import_all;
use super::pickler::pickled;

/// Snapshots of older versions of PyTorch, and of the newest.
fn versions() -> Vec<Case> {
    let whole = || segment(A, 2 * MIB, [live(A, MIB), free(A + MIB, MIB)]);
    let of = |snapshot| case("", snapshot, [MIB, MIB, MIB, 2 * MIB]).has(1, 1, 0);
    let named = |name, case| Case { name, ..case };
    let old_block = json!({"size": MIB, "state": "active_allocated", "history": [
        {"addr": A, "real_size": 1000 * KIB, "frames": [{"name": "f", "filename": "a.py", "line": 3}]},
        {"addr": A, "real_size": 7}]});
    let host_history = || {
        timed([
            entry("segment_alloc", B, 8 * KIB),
            entry("alloc", B, 5000),
            entry("segment_alloc", A, 3000),
            entry("alloc", A, 3000),
        ])
    };
    vec![
        named("only segments, as torch.cuda.memory_snapshot() gives", of(json!([whole()]))),
        named("only segments, in a dictionary", of(json!({"segments": [whole()]}))),
        named("no segment_pool_id", of(state([without(whole(), "segment_pool_id")]))),
        named("no is_expandable", of(state([without(whole(), "is_expandable")]))),
        named("no segment_type", of(state([without(whole(), "segment_type")]))),
        named("no stream", of(state([without(whole(), "stream")]))),
        named("no device", of(state([without(whole(), "device")]))),
        named(
            "blocks without addresses",
            of(state([segment(A, 2 * MIB, [without(live(A, MIB), "address"), without(free(A, MIB), "address")])])),
        ),
        named(
            "blocks without requested_size",
            of(state([segment(A, 2 * MIB, [without(live(A, MIB), "requested_size"), free(A + MIB, MIB)])])),
        ),
        case("blocks with a history", json!([segment(A, 2 * MIB, [old_block])]), [MIB, MIB, 1000 * KIB, 2 * MIB])
            .has(1, 1, 0),
        case(
            "the old name of a pending free",
            state([segment(A, MIB, [block(A, MIB, "active_awaiting_free")])]),
            [0, MIB, MIB, MIB],
        )
        .has(1, 1, 0),
        named(
            "null instead of lists",
            of(json!({"segments": [whole()], "device_traces": null, "external_annotations": null})),
        ),
        case("no blocks", state([without(whole(), "blocks")]), [0, 0, 0, 2 * MIB]).has(1, 0, 0),
        case(
            "no stream, no time, no free_requested",
            json!({"device_traces": [[
                without(entry("segment_alloc", A, 2 * MIB), "stream"), without(entry("alloc", A, 1000), "stream"),
                without(entry("free_completed", A, 1000), "stream")]]}),
            [0, 0, 0, 2 * MIB],
        )
        .has(1, 0, 3)
        .contradictions(0, &["have no times"]),
        case(
            "mapped parts of a segment without is_expandable",
            both(
                [without(segment(A, 4 * MIB, [free(A, 4 * MIB)]), "is_expandable")],
                [entry("segment_map", A, 2 * MIB), entry("segment_map", A + 2 * MIB, 2 * MIB)],
            ),
            [0, 0, 0, 4 * MIB],
        )
        .has(1, 0, 2),
        case(
            "unknown actions",
            history([entry("annotate", A, 5), entry("defragmented", A, 7), entry("snapshot", 0, 0)]),
            [0; 4],
        )
        .has(0, 0, 3),
        case(
            "pinned memory",
            json!({"host_traces": host_history()}),
            [8 * KIB + 3000, 8 * KIB + 3000, 8000, 8 * KIB + 3000],
        )
        .has(2, 2, 4),
        case(
            "pinned memory in nested lists",
            json!({"host_traces": [host_history()]}),
            [8 * KIB + 3000, 8 * KIB + 3000, 8000, 8 * KIB + 3000],
        )
        .has(2, 2, 4),
        case(
            "pinned memory from before the history",
            json!({"segments": [whole()], "device_traces": [[]],
                "host_segments": [with(segment(A, 8 * KIB, [live(A, 8 * KIB)]), "device", -1)],
                "host_traces": timed([entry("free_requested", A, 5000), entry("free_completed", A, 5000),
                    entry("alloc", A, 8000)])}),
            [MIB + 8 * KIB, MIB + 8 * KIB, MIB + 8000, 2 * MIB + 8 * KIB],
        )
        .has(2, 2, 3)
        .contradictions(0, &["Pinned host memory: Recording began after memory was in use"]),
    ]
}

/// Segments and blocks that are invalid or contradict others.
fn contradicting_states() -> Vec<Case> {
    let huge = u64::MAX;
    vec![
        case(
            "a segment twice",
            state([segment(A, MIB, [live(A, MIB)]), segment(A, MIB, [live(A, MIB)])]),
            [MIB, MIB, MIB, MIB],
        )
        .has(1, 1, 0)
        .contradictions(1, &["in contradiction to others"]),
        case(
            "segments that overlap",
            state([segment(A, 2 * MIB, []), segment(A + MIB, 2 * MIB, [])]),
            [0, 0, 0, 2 * MIB],
        )
        .has(1, 0, 0)
        .contradictions(1, &["in contradiction to others"]),
        case(
            "blocks that overlap",
            state([segment(A, 2 * MIB, [live(A, MIB + 512), live(A + MIB, MIB)])]),
            [MIB, MIB, MIB, 2 * MIB],
        )
        .has(1, 1, 0)
        .contradictions(2, &[]),
        case("a block twice", state([segment(A, 2 * MIB, [live(A, MIB), live(A, MIB)])]), [MIB, MIB, MIB, 2 * MIB])
            .has(1, 1, 0)
            .contradictions(1, &[]),
        case("a block beyond its segment", state([segment(A, MIB, [live(B, MIB)])]), [MIB, MIB, MIB, MIB])
            .has(1, 1, 0)
            .contradictions(1, &[]),
        case("a block before its segment", state([segment(B, MIB, [live(A, MIB)])]), [MIB, MIB, MIB, MIB])
            .has(1, 1, 0)
            .contradictions(1, &[]),
        case(
            "a block larger than its segment",
            state([segment(A, MIB, [live(A, 2 * MIB)])]),
            [2 * MIB, 2 * MIB, 2 * MIB, MIB],
        )
        .has(1, 1, 0)
        .contradictions(1, &[]),
        case("a block without a size", state([segment(A, MIB, [without(live(A, MIB), "size")])]), [0, 0, 0, MIB])
            .has(1, 0, 0),
        case("an empty segment", state([segment(A, 0, [])]), [0; 4]).contradictions(1, &[]),
        case("a segment of a negative size", state([segment(A, -5, [])]), [0; 4])
            .contradictions(2, &["a segment's size is not a count of bytes"]),
        case("a segment beyond the last address", state([segment(huge - 511, MIB, [])]), [0; 4]).contradictions(1, &[]),
        case("a segment at a negative address", state([segment(-512, 512, [])]), [0; 4]).contradictions(1, &[]),
        case(
            "a block of a negative size",
            state([segment(A, MIB, [block(A, -1, "active_allocated")])]),
            [0, 0, 0, MIB],
        )
        .has(1, 0, 0)
        .contradictions(1, &["a block's size is not a count of bytes"]),
        case("a block of a huge size", state([segment(A, MIB, [live(A, huge)])]), [0, 0, 0, MIB])
            .has(1, 0, 0)
            .contradictions(1, &[]),
        case(
            "integers written as floats",
            state([with(
                with(segment(A, 2 * MIB, [with(live(A, MIB), "requested_size", 1000.0)]), "device", 1.0),
                "stream",
                7.0,
            )]),
            [MIB, MIB, 1000, 2 * MIB],
        )
        .has(1, 1, 0),
        case("a size that is a fraction", state([segment(A, 1048576.7, [])]), [0, 0, 0, MIB]).has(1, 0, 0),
        case("a size that is not a number", state([segment(A, Value::Null, [])]), [0; 4]).contradictions(2, &[]),
        case("an invalid device number", state([with(segment(A, MIB, [live(A, MIB)]), "device", -1)]), [0; 4])
            .contradictions(1, &["not a device number"]),
        case("a device number that is too high", state([with(segment(A, MIB, []), "device", 65535)]), [0; 4])
            .contradictions(1, &[]),
        case("an unknown block state", state([segment(A, MIB, [block(A, MIB, "asleep")])]), [0, 0, 0, MIB])
            .has(1, 0, 0),
        case(
            "settings that are not a dictionary",
            json!({"segments": [], "device_traces": [], "allocator_settings": 5}),
            [0; 4],
        )
        .contradictions(1, &["settings are not a dictionary"]),
    ]
}

/// Histories that contradict themselves or the segments.
fn contradicting_histories() -> Vec<Case> {
    let made = || entry("segment_alloc", A, 2 * MIB);
    let twice = |value: Value| [value.clone(), value];
    vec![
        case("a block at the address of no segment", history([entry("alloc", B, 512)]), [512, 512, 512, 0])
            .has(0, 1, 1)
            .contradictions(1, &["contradicts the entries before"]),
        case(
            "a block that reaches out of its segment",
            history([made(), entry("alloc", A + MIB, 2 * MIB)]),
            [2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB],
        )
        .has(1, 1, 2)
        .contradictions(1, &[]),
        case(
            "a block twice",
            history([made()].into_iter().chain(twice(entry("alloc", A, 512)))),
            [512, 512, 512, 2 * MIB],
        )
        .has(1, 1, 3)
        .contradictions(1, &[]),
        case(
            "blocks that overlap",
            history([made(), entry("alloc", A, 1024), entry("alloc", A + 512, 1024)]),
            [1024, 1024, 1024, 2 * MIB],
        )
        .has(1, 1, 3)
        .contradictions(1, &[]),
        case(
            "a free without a block",
            json!({"segments": [], "device_traces": [timed([entry("free_requested", A, 512)])]}),
            [0, 512, 512, 0],
        )
        .has(0, 1, 1)
        .contradictions(0, &["began after memory was in use", "does not lead to the snapshot's end state"]),
        case(
            "a free twice",
            history([made(), entry("alloc", A, 512)].into_iter().chain(twice(entry("free_completed", A, 512)))),
            [0, 0, 0, 2 * MIB],
        )
        .has(1, 0, 4)
        .contradictions(1, &[]),
        case("a segment twice", history(twice(made())), [0, 0, 0, 2 * MIB]).has(1, 0, 2).contradictions(1, &[]),
        case("a segment over live blocks", history([made(), entry("alloc", A, 512), made()]), [0, 0, 0, 2 * MIB])
            .has(1, 0, 3)
            .contradictions(1, &[]),
        case(
            "a segment freed with a live block",
            history([made(), entry("alloc", A, 512), entry("segment_free", A, 2 * MIB)]),
            [0; 4],
        )
        .has(0, 0, 3)
        .contradictions(1, &[]),
        case("a segment freed with a different size", history([made(), entry("segment_free", A, MIB)]), [0; 4])
            .has(0, 0, 2)
            .contradictions(1, &[]),
        case(
            "an unmapped part that was not mapped",
            history([entry("segment_map", A, 2 * MIB), entry("segment_unmap", A + MIB, 2 * MIB)]),
            [0, 0, 0, MIB],
        )
        .has(1, 0, 2)
        .contradictions(0, &["began after memory was in use"]),
        case("a block of a negative size", history([made(), entry("alloc", A, -512)]), [512, 512, 0, 2 * MIB])
            .has(1, 1, 2)
            .contradictions(1, &["an entry's size is not a count of bytes"]),
        case("a block of a huge size", history([made(), entry("alloc", A, u64::MAX)]), [0, 0, 0, 2 * MIB])
            .has(1, 0, 2)
            .contradictions(1, &[]),
        case("a block whose end overflows", history([entry("alloc", u64::MAX - 511, 4096)]), [0; 4])
            .has(0, 0, 1)
            .contradictions(1, &[]),
        case("a segment of no size", history([entry("segment_alloc", A, 0)]), [0; 4])
            .has(0, 0, 1)
            .contradictions(1, &[]),
        case(
            "an address that is not a number",
            history([made(), entry("alloc", Value::Null, 512)]),
            [512, 512, 512, 2 * MIB],
        )
        .has(1, 1, 2)
        .contradictions(2, &["an entry's address is not a 64-bit number"]),
        case(
            "entries with an action only",
            history([json!({"action": "alloc"}), json!({"action": "oom"})]),
            [512, 512, 0, 0],
        )
        .has(0, 1, 2)
        .contradictions(1, &[]),
        case(
            "segments that are not in the history",
            both([segment(B, MIB, [live(B, MIB)])], [made(), entry("alloc", A, 512)]),
            [MIB + 512, MIB + 512, MIB + 512, 3 * MIB],
        )
        .has(2, 2, 2)
        .contradictions(0, &["does not lead to the snapshot's end state: 1 segment and 1 block differ"]),
        case(
            "a block whose size contradicts the history",
            both([segment(A, 2 * MIB, [live(A, MIB)])], [made(), entry("alloc", A, 512)]),
            [MIB, MIB, 512, 2 * MIB],
        )
        .has(1, 1, 2)
        .contradictions(1, &["the snapshot's size was used"]),
        case(
            "overlapping blocks before the history",
            json!({"device_traces": [timed([entry("free_completed", B, 8 * MIB),
                entry("free_completed", B + MIB, 512 * KIB), entry("alloc", B + 2 * MIB, 512)])]}),
            [512, 512, 512, 0],
        )
        .has(0, 1, 3)
        .contradictions(3, &[]),
    ]
}

fn times() -> Vec<Case> {
    let entries = [
        entry("oom", 0, 1),
        with(entry("oom", 0, 2), "time_us", 70),
        entry("oom", 0, 3),
        with(entry("oom", 0, 4), "time_us", 50),
    ];
    vec![
        case("times for some entries only", json!({"device_traces": [entries]}), [0; 4])
            .has(0, 0, 4)
            .contradictions(0, &["2 entries have no time"]),
        case(
            "times that are not numbers",
            json!({"device_traces": [[with(entry("oom", 0, 1), "time_us", "noon")]]}),
            [0; 4],
        )
        .has(0, 0, 1)
        .contradictions(0, &["have no times"]),
        case(
            "times for annotations only",
            json!({"device_traces": [[entry("oom", 0, 1), entry("oom", 0, 1)]],
                "external_annotations": [{"stage": "START", "name": "step", "device": 0, "time_us": 5},
                    {"stage": "END", "name": "step", "device": 0, "time_us": 6}]}),
            [0; 4],
        )
        .has(0, 0, 2)
        .contradictions(0, &["have no times", "2 annotations from before"]),
        case("no entries", history([]), [0; 4]),
        case(
            "a time difference that overflows",
            json!({"device_traces": [[with(entry("oom", 0, 1), "time_us", i64::MAX),
                with(entry("oom", 0, 1), "time_us", i64::MIN + 1)]]}),
            [0; 4],
        )
        .has(0, 0, 2),
    ]
}

#[test]
fn snapshots_of_other_versions_are_imported() {
    versions().iter().for_each(Case::check);
}

#[test]
fn valid_parts_of_invalid_states_are_imported() {
    contradicting_states().iter().for_each(Case::check);
}

#[test]
fn valid_parts_of_invalid_histories_are_imported() {
    contradicting_histories().iter().for_each(Case::check);
}

#[test]
fn missing_and_invalid_times_are_replaced() {
    times().iter().for_each(Case::check);
    let (memory, imported) =
        import_all(&serde_json::to_vec(&times()[0].snapshot).expect("the values are plain data"), "");
    assert_eq!(imported.info.epoch_unix_ns, 50_000, "the earliest entry is not the first");
    let times: Vec<_> = memory.events.iter().map(|event| event.time_ns).collect();
    assert_eq!(times, [20_000, 20_000, 20_000, 0]);
}

/// Invalid numbers are tolerated; values of another type are refused.
#[test]
fn values_of_the_wrong_type_are_refused() {
    for (snapshot, what) in [
        (history([entry("alloc", "here", 512)]), "an entry's address"),
        (history([entry("alloc", A, json!([1, 2]))]), "an entry's size"),
        (history([entry("alloc", A, true)]), "an entry's size"),
        (state([segment(A, "large", [])]), "a segment's size"),
        (state([with(segment(A, MIB, []), "device", "cuda")]), "a segment's device"),
        (json!({"device_traces": [[{"addr": 5}]]}), "no action"),
        (json!([{"address": 5}]), "not of segments"),
        (json!([[{"address": 5}]]), ""),
    ] {
        let json = serde_json::to_vec(&snapshot).expect("the values are plain data");
        for bytes in [json, pickled(&snapshot)] {
            let read = vramscope_formats::import(
                &bytes,
                "",
                &Default::default(),
                &mut vramscope_formats::ignore_progress,
                |_| MemorySink::default(),
            );
            let error = read.map(|(_, imported)| imported).expect_err("the value has the wrong type");
            assert!(error.message.contains(what), "{snapshot}: {error}");
        }
    }
}

#[test]
fn origins_of_initial_segments_and_blocks_are_kept() {
    let frames = json!([{"name": "train", "filename": "a.py", "line": 7}]);
    let with_origin = |value: Value, words: &str| {
        with(with(with(value, "frames", frames.clone()), "user_metadata", words), "compile_context", "0/1")
    };
    let before = with_origin(live(A, MIB), "before");
    let during = with_origin(live(A + MIB, MIB), "during");
    let rows = [with_origin(segment(A, 2 * MIB, [before, during]), "segment")];
    // Under some settings PyTorch keeps call stacks of live blocks only, and entries have none.
    let snapshot = both(rows, [with(entry("alloc", A + MIB, MIB), "compile_context", "N/A")]);
    for bytes in [serde_json::to_vec(&snapshot).expect("the values are plain data"), pickled(&snapshot)] {
        let (memory, _) = import_all(&bytes, "");
        let mut definitions = vramscope_trace::Definitions::default();
        memory.definitions.iter().cloned().for_each(|definition| definitions.define(definition));
        let mut state: MemoryState = memory.states[0].1.clone();
        memory.events.iter().for_each(|event| state.apply(event));
        let device = state.device(DeviceId(0)).expect("the recording has device 0");
        let words = |site| {
            let site = definitions.site(site);
            let frame = definitions.stack(site.stack).next().expect("the stack has a frame");
            let texts = [frame.function, frame.file, site.scope, site.compile_context];
            texts.map(|id| definitions.string(id).to_owned()).join(" ")
        };
        let sites = device.segments().map(|segment| segment.site).chain(device.blocks().map(|block| block.site));
        let texts: Vec<_> = sites.map(words).collect();
        assert_eq!(texts, ["train a.py segment 0/1", "train a.py before 0/1", "train a.py during 0/1"]);
    }
}
