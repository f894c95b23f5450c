//! Saving a part of a recording, or all of it without names; and the examples of the page.

use std::fs;
use std::path::Path;

use vramscope_analyzer::{ExcerptJob, ExcerptStep};
use vramscope_trace::{MemoryState, Recording, Replay};
use vramscope_viewer::model::Model;

use crate::testing::load;
use crate::testing::samples::{Sample, bytes};

/// Writes an excerpt completely, and returns its recording and its bytes.
fn written(recording: &Recording, events: (u64, u64), is_redacted: bool) -> (Recording, Vec<u8>) {
    let mut job = ExcerptJob::new(recording, events, is_redacted);
    let (mut output, mut done_before) = (Vec::new(), 0);
    loop {
        match job.step(recording, &mut output).expect("a readable recording") {
            ExcerptStep::Written(done, all) => {
                assert!(done >= done_before && done <= all);
                done_before = done;
            }
            ExcerptStep::Missing(ranges) => panic!("everything is in memory, but {ranges:?} is missing"),
            ExcerptStep::Done => break,
        }
    }
    let bytes = output.concat();
    let excerpt = load("excerpt.vram", &bytes);
    assert_eq!(excerpt.warning, None);
    (excerpt.recording, bytes)
}

/// A device's counters, and address, size, state and begin of every block, which do not depend on
/// the numbers of sites.
fn numbers(state: &MemoryState) -> Vec<String> {
    let devices = state.devices().map(|(id, device)| {
        let segments = device.segments().map(|known| (known.address, known.size, known.since_event));
        let blocks = device.blocks().map(|known| (known.address, known.size, known.requested, known.since_event));
        let lists = (segments.collect::<Vec<_>>(), blocks.collect::<Vec<_>>());
        format!("{id} {:?} {lists:?}", device.counters())
    });
    std::iter::once(format!("{} {}", state.event(), state.time_ns())).chain(devices).collect()
}

/// Asserts that an excerpt has the states of the original at all moments between `from` and `to`,
/// at most 500 of them.
fn check_states(excerpt: &Recording, original: &Recording, (from, to): (u64, u64)) {
    let (mut expected, mut found) = (Replay::new(), Replay::new());
    let every = ((to - from) / 500).max(1);
    for moment in (from..=to).step_by(usize::try_from(every).expect("a small number")).chain([to]) {
        let expected = expected.seek(original, moment).expect("a readable recording");
        let found = found.seek(excerpt, moment).expect("a readable excerpt");
        assert_eq!(numbers(found), numbers(expected), "at {moment}");
    }
}

/// Returns the files of a folder of the repository with one of these name endings, with their
/// names.
fn files(folder: &str, endings: &[&str]) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let paths = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let named = paths.map(|path| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path));
    let known = named.filter(|(name, _)| endings.iter().any(|ending| name.ends_with(ending)));
    known.map(|(name, path)| (name, fs::read(path).expect("a file"))).collect()
}

#[test]
fn excerpts_of_real_recordings_have_the_original_states() {
    let snapshots = files("tests/data", &[".pickle.gz", ".pickle.zst"]);
    assert!(snapshots.len() > 10);
    for (name, bytes) in snapshots {
        let recording = load(&name, &bytes).recording;
        let (first, last) = (recording.first_event(), recording.end_event());
        for range in [(first, last), (first + (last - first) / 3, last - (last - first) / 4)] {
            for is_redacted in [false, true] {
                let (excerpt, _) = written(&recording, range, is_redacted);
                assert_eq!((excerpt.first_event(), excerpt.end_event()), range, "{name}");
                check_states(&excerpt, &recording, range);
                assert_eq!(excerpt.info().source == "redacted", is_redacted, "{name}");
            }
        }
    }
}

#[test]
fn redacted_excerpts_have_no_names() {
    let (name, snapshot) =
        files("tests/data", &["annotated.pickle.gz"]).into_iter().next().expect("a snapshot with names");
    let recording = load(&name, &snapshot).recording;
    let everything = (recording.first_event(), recording.end_event());
    let (redacted, _) = written(&recording, everything, true);
    let (plain, _) = written(&recording, everything, false);
    let names = |recording: &Recording| {
        let names = recording.annotations().iter().map(|known| recording.definitions().string(known.name).to_owned());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&plain), names(&recording));
    assert_eq!(names(&redacted).len(), names(&recording).len());
    assert!(names(&redacted).iter().all(|name| name.starts_with("mark_")), "{:?}", names(&redacted));
}

#[test]
fn excerpts_keep_gaps_and_every_device() {
    for sample in [Sample::Trouble, Sample::TwoGpus, Sample::Shared, Sample::EndOfTime] {
        let recording = load("drawn.vram", &bytes(sample)).recording;
        let (first, last) = (recording.first_event(), recording.end_event());
        for range in [(first, last), (first + 1, last.saturating_sub(1).max(first + 1))] {
            let (excerpt, _) = written(&recording, range, false);
            check_states(&excerpt, &recording, (excerpt.first_event(), range.1));
        }
    }
}

#[test]
fn shown_moments_are_those_of_the_timeline() {
    let mut model = Model::default();
    model.show("drawn.vram", load("drawn.vram", &bytes(Sample::Training))).expect("a readable recording");
    let (first, last) = (model.recording().first_event(), model.recording().end_event());
    assert_eq!(model.shown_moments(), (first, last));
    let whole = model.whole_positions();
    let middle = whole.start + (whole.end - whole.start) / 2;
    model.zoom(0.25, middle);
    let (from, to) = model.shown_moments();
    let shown = model.range();
    assert!(first < from && from < to && to < last, "{from} to {to} of {first} to {last}");
    let mut replay = Replay::new();
    for index in first..last {
        let event = replay.event(model.recording(), index).expect("readable").expect("no event is missing");
        let is_shown = (shown.start..=shown.end).contains(&event.time_ns);
        assert_eq!((from..to).contains(&index), is_shown, "event {} at {}", index + 1, event.time_ns);
    }
}

#[test]
fn commands_open_entries_of_the_gallery() {
    let gallery: serde_json::Value =
        serde_json::from_str(include_str!("../../../www/examples/gallery.json")).expect("valid JSON");
    let entries = gallery["recordings"].as_array().expect("a list");
    let names: Vec<&str> = entries.iter().filter_map(|entry| entry["name"].as_str()).collect();
    let commands = vramscope_viewer::key_bindings::all();
    let opened: Vec<&str> = commands.iter().filter_map(|command| command.name.strip_prefix("example ")).collect();
    assert!(opened.len() == 3 && opened.iter().all(|name| names.contains(name)), "{opened:?} of {names:?}");
}
