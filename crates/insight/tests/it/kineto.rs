//! Profiler traces, compared with PyTorch's memory history of the same runs.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use vramscope_formats::{Importer, Limits, ignore_progress};
use vramscope_insight::frames::innermost_own_frame;
use vramscope_trace::{Counters, DeviceId, Encoder, EventKind, MemoryState, Recording, Replay, SegmentSource, SiteId};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/kineto");
const DEVICE: DeviceId = DeviceId(0);

/// Imports a file that may be packed.
fn imported(path: &Path) -> Recording {
    let file = std::fs::read(path).expect("the file exists");
    let mut importer = Importer::new(&Limits::default(), Some(file.len() as u64));
    file.chunks(100_000).for_each(|piece| importer.push(piece).expect("the file is valid"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let imported = importer.finish().expect("the file is complete").write(&name, &mut ignore_progress, Encoder::new);
    let (mut encoder, summary) = imported.expect("the file is valid");
    assert_eq!(summary.contradictions, 0, "{name}: {:?}", summary.info.import_notes);
    encoder.flush();
    let mut recording = Recording::new();
    encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("it is valid"));
    recording
}

/// An allocation or a free, with the state after it.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    is_free: bool,
    address: u64,
    /// Bytes of the block; 0 for a free.
    size: u64,
    counters: [u64; 2],
    /// Address and size of each segment.
    segments: BTreeSet<(u64, u64)>,
    site: SiteId,
}

/// Returns the allocations and frees of a recording. In a history, a free counts when it is
/// requested; a trace has only one event for it. Blocks of at least `max_address`, which stand for
/// memory without a known address, do not count.
fn changes(recording: &Recording, max_address: u64) -> Vec<Change> {
    let (mut replay, mut changes) = (Replay::new(), Vec::new());
    let has_requests = |kind: &EventKind| matches!(kind, EventKind::FreeRequested { .. });
    let mut events = Vec::new();
    let mut number = recording.first_event();
    while let Some((first, chunk)) = replay.load_events(recording, number).expect("it can be read") {
        let chunk: Vec<_> = chunk.iter().skip((number - first) as usize).copied().collect();
        number += chunk.len() as u64;
        events.extend(chunk);
        if number >= recording.end_event() {
            break;
        }
    }
    let is_history = events.iter().any(|event| has_requests(&event.kind));
    let state_of = |state: &MemoryState| {
        let device = state.device(DEVICE).expect("the device was used");
        let Counters { allocated, reserved, .. } = device.counters();
        ([allocated, reserved], device.segments().map(|segment| (segment.address, segment.size)).collect())
    };
    for (index, event) in events.iter().enumerate().filter(|(_, event)| event.device == DEVICE) {
        let (is_free, address, size, site) = match event.kind {
            EventKind::BlockAllocated { address, size, site, .. } => (false, address, size, site),
            EventKind::FreeRequested { address, site } => (true, address, 0, site),
            EventKind::FreeCompleted { address, site } if !is_history => (true, address, 0, site),
            _ => continue,
        };
        if address < max_address {
            let moment = recording.first_event() + index as u64 + 1;
            let (counters, segments) = state_of(replay.seek(recording, moment).expect("it can be read"));
            changes.push(Change { is_free, address, size, counters, segments, site });
        }
    }
    changes
}

/// The names of all programs, and whether they were profiled from the first allocation on.
fn programs() -> Vec<(String, bool)> {
    let entries = std::fs::read_dir(FOLDER).expect("the folder exists");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> =
        names.filter_map(|name| Some(name.strip_suffix(".trace.json.gz")?.to_owned())).collect();
    names.sort();
    let is_from_start = |name: &str| {
        let text = std::fs::read_to_string(format!("{FOLDER}/{name}.json")).expect("the facts exist");
        let facts: Value = serde_json::from_str(&text).expect("it is JSON");
        facts["from_start"] == true
    };
    names.into_iter().map(|name| (name.clone(), is_from_start(&name))).collect()
}

/// Returns the file, function and line of the innermost frame of the program; `None` without one.
fn own_line(recording: &Recording, site: SiteId) -> Option<(String, String, u32)> {
    let definitions = recording.definitions();
    let frame = innermost_own_frame(definitions, site)?;
    let [file, function] = [frame.file, frame.function].map(|id| definitions.string(id).to_owned());
    Some((file, function, frame.line))
}

/// Returns the bytes of all allocations for which the history names a line of the program, those of
/// them with the same function in the trace, and those with the same line.
fn sites_in_common(
    (trace, of_trace): (&Recording, &[Change]),
    (history, of_history): (&Recording, &[Change]),
) -> [u64; 3] {
    let mut bytes = [0; 3];
    for (one, other) in of_trace.iter().zip(of_history).filter(|(one, _)| !one.is_free) {
        let Some(wanted) = own_line(history, other.site) else { continue };
        let found = own_line(trace, one.site);
        let is_function = found.as_ref().is_some_and(|found| (&found.0, &found.1) == (&wanted.0, &wanted.1));
        let is_line = found.as_ref() == Some(&wanted);
        if !is_function {
            println!("{wanted:?} is {found:?}");
        }
        for (sum, counts) in bytes.iter_mut().zip([true, is_function, is_line]) {
            *sum += if counts { one.size } else { 0 };
        }
    }
    bytes
}

#[test]
fn traces_have_the_events_of_pytorchs_history() {
    let (mut from_start, mut inferred, mut bytes) = (0, 0, [0; 3]);
    for (name, is_from_start) in programs() {
        let trace = imported(Path::new(&format!("{FOLDER}/{name}.trace.json.gz")));
        let history = imported(Path::new(&format!("{FOLDER}/{name}.pickle.gz")));
        let of_history = changes(&history, u64::MAX);
        let of_trace = changes(&trace, 1 << 47);
        assert_eq!(of_trace.len(), of_history.len(), "{name}");
        let source = trace.info().device(DEVICE).expect("it is described").segments;
        for (index, (one, other)) in of_trace.iter().zip(&of_history).enumerate() {
            let [shown, expected] =
                [one, other].map(|change| (change.is_free, change.address, change.size, change.counters));
            assert_eq!(shown, expected, "{name}: change {index}");
            if source == SegmentSource::Inferred {
                assert_eq!(one.segments, other.segments, "{name}: segments at change {index}");
            }
        }
        assert_eq!(source == SegmentSource::Inferred, is_from_start, "{name}");
        from_start += u32::from(is_from_start);
        inferred += u32::from(source == SegmentSource::Inferred);
        let of_program = sites_in_common((&trace, &of_trace), (&history, &of_history));
        println!("{name}: {of_program:?}");
        bytes.iter_mut().zip(of_program).for_each(|(sum, more)| *sum += more);
    }
    println!("segments of {inferred} of {from_start}; sites: {bytes:?}");
}
