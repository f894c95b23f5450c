//! Recordings in an archive equal those that were pushed.

use std::sync::Arc;
use std::time::Duration;

use vramscope_trace::{ReadAt, Recording, Replay};

use super::harness::*;
use crate::archive::store::ArchiveStore;
use crate::archive::{ArchiveError, ArchiveOptions};

/// Checks that the archive has the whole recording of a program, in at least `parts` parts, each
/// of which can be opened alone and begins where the part before it ends.
#[track_caller]
fn check_archive(store: &ArchiveStore, program: &Program, parts: usize) {
    let (reader, expected) = (reader(store), program.recording());
    let rank = reader.ranks().iter().find(|rank| rank.identity == program.process.identity).expect("it is listed");
    assert_eq!((rank.rank, rank.host.as_str(), rank.program.as_str()), (program.process.rank, "machine", "train.py"));
    assert!(rank.parts.len() >= parts, "{} parts", rank.parts.len());
    let mut replay = Replay::new();
    let mut end = 0;
    for part in &rank.parts {
        assert_eq!(part.first_event, end, "{}", part.object.name);
        assert_eq!(part.first_state, (end > 0).then_some(end));
        let source: Arc<dyn ReadAt> = Arc::new(reader.part(part));
        let indexed = Recording::open_by_index(&source, part.object.bytes).expect("it can be read");
        assert!(indexed.is_some(), "{} has no index", part.object.name);
        let recording = reader.recording_at(rank, part.object.end_unix_ms).expect("it opens").expect("it exists");
        assert_eq!(recording.first_event(), part.first_event);
        assert_eq!((recording.events(), recording.lost_events()), (part.events, 0));
        for moment in [part.first_event, part.first_event + part.events / 2, part.end_event] {
            let mut archived = Replay::new();
            let archived = archived.seek(&recording, moment).expect("the moment is in the part");
            assert_eq!(archived, replay.seek(&expected, moment).expect("the moment is in the recording"));
        }
        end = part.end_event;
    }
    assert_eq!(end, expected.end_event());
    let last = rank.parts.last().expect("there are parts");
    let recording = reader.recording_at(rank, last.object.end_unix_ms).expect("it opens").expect("it exists");
    assert_eq!(*recording.end_state(), program.end_state());
    assert_eq!(rank.parts.iter().map(|part| part.events).sum::<u64>(), expected.events());
    let later = reader.recording_at(rank, last.object.end_unix_ms + 1);
    assert!(later.expect("the manifest is valid").is_none());
}

#[test]
fn archived_recording_equals_the_pushed_one() {
    for_each_store(|store| {
        let writer = writer(&store, small_parts());
        let mut programs = [Program::new(0), Program::new(7)];
        for program in &mut programs {
            let archive = writer.process(&program.process).expect("a valid process");
            let chunks = program.run(20_000);
            for chunk in chunks {
                archive.push(&program.chunks[chunk]).expect("valid chunks");
            }
        }
        let summary = writer.finish().expect("everything is stored");
        assert_eq!((summary.lost_objects, summary.lost_summaries), (0, 0));
        assert!(summary.objects >= 10 && summary.bytes > 0, "{summary:?}");
        programs.iter().for_each(|program| check_archive(&store, program, 3));
        let concatenated = concatenated_parts(&store, &programs[0]);
        assert_eq!(*concatenated.end_state(), programs[0].end_state());
        assert_eq!(concatenated.events(), programs[0].recording().events());
    });
}

/// Returns the recording that results from concatenating all archived parts of a program.
fn concatenated_parts(store: &ArchiveStore, program: &Program) -> Recording {
    let reader = reader(store);
    let rank = reader.ranks().iter().find(|rank| rank.identity == program.process.identity).expect("it is listed");
    let mut recording = Recording::new();
    for part in &rank.parts {
        let bytes = block_on(store.read_whole(&part.object)).expect("the object is unchanged");
        recording.push(&bytes).expect("parts can be concatenated");
    }
    recording
}

#[test]
fn parts_end_by_the_time_of_events() {
    let store = memory();
    let writer = writer(&store, ArchiveOptions { part_duration: Duration::from_secs(5), ..small_parts() });
    let mut program = Program::new(1);
    let archive = writer.process(&program.process).expect("a valid process");
    let chunks = program.run(10_000);
    archive.push(&program.bytes(chunks)).expect("valid chunks");
    drop(archive);
    writer.finish().expect("everything is stored");
    check_archive(&store, &program, 2);
    let reader = reader(&store);
    for part in &reader.ranks()[0].parts {
        let object = &part.object;
        assert!(object.end_unix_ms - object.start_unix_ms <= 5_500, "{object:?}");
        assert!(object.start_unix_ms >= EPOCH_NS / 1_000_000);
    }
}

#[test]
fn idle_parts_end_by_the_clock() {
    let store = memory();
    let options = ArchiveOptions { part_duration: Duration::from_secs(1), ..ArchiveOptions::default() };
    let writer = writer(&store, options);
    let mut program = Program::new(1);
    let archive = writer.process(&program.process).expect("a valid process");
    let first = program.run(200);
    archive.push(&program.bytes(first)).expect("valid chunks");
    wait_until("the part is stored", || !reader(&store).ranks().is_empty());
    let second = program.run(200);
    archive.push(&program.bytes(second)).expect("valid chunks");
    writer.finish().expect("everything is stored");
    check_archive(&store, &program, 2);
}

#[test]
fn parts_end_early_if_they_take_too_much_memory() {
    let store = memory();
    let writer = writer(&store, ArchiveOptions { memory_bytes: 0, ..ArchiveOptions::default() });
    let mut program = Program::new(1);
    let archive = writer.process(&program.process).expect("a valid process");
    let first = program.run(150_000);
    archive.push(&program.bytes(first)).expect("valid chunks");
    wait_until("the part is stored", || !reader(&store).ranks().is_empty());
    let second = program.run(200);
    archive.push(&program.bytes(second)).expect("valid chunks");
    writer.finish().expect("everything is stored");
    let reader = reader(&store);
    let moments: Vec<_> = reader.ranks()[0].parts.iter().map(|part| (part.first_event, part.end_event)).collect();
    assert_eq!(moments, [(0, 150_000), (150_000, 150_200)]);
}

#[test]
fn restarted_server_continues_the_archive() {
    for_each_store(|store| {
        let mut program = Program::new(2);
        for _ in 0..3 {
            let writer = writer(&store, small_parts());
            let archive = writer.process(&program.process).expect("a valid process");
            // The broker repeats what an earlier server has read.
            let known = 0..program.chunks.len();
            archive.push(&program.bytes(known)).expect("valid chunks");
            let new = program.run(4_000);
            archive.push(&program.bytes(new)).expect("valid chunks");
            // A process that connects again repeats its start.
            drop(archive);
            let archive = writer.process(&program.process).expect("a valid process");
            archive.push(&program.bytes(0..program.chunks.len())).expect("valid chunks");
            writer.finish().expect("everything is stored");
        }
        check_archive(&store, &program, 3);
    });
}

#[test]
fn repeated_starts_take_no_space() {
    let sizes = [false, true].map(|repeats| {
        let store = memory();
        let writer = writer(&store, ArchiveOptions::default());
        let mut program = Program::new(1);
        let archive = writer.process(&program.process).expect("a valid process");
        for chunk in program.run(4_000) {
            archive.push(&program.chunks[chunk]).expect("valid chunks");
            if repeats {
                archive.push(&program.header_and_definitions(chunk + 1)).expect("valid chunks");
            }
        }
        writer.finish().expect("everything is stored");
        check_archive(&store, &program, 1);
        reader(&store).ranks()[0].parts[0].object.bytes
    });
    assert_eq!(sizes[0], sizes[1]);
}

#[test]
fn missing_part_is_a_gap_between_parts() {
    let store = memory();
    let mut program = Program::new(3);
    let first = program.run(2_000);
    let writer = writer(&store, ArchiveOptions::default());
    let archive = writer.process(&program.process).expect("a valid process");
    archive.push(&program.bytes(first)).expect("valid chunks");
    drop(archive);
    program.run(2_000);
    let start = program.start();
    let rest = program.run(2_000);
    let archive = writer.process(&program.process).expect("a valid process");
    archive.push(&start).expect("a valid start");
    archive.push(&program.bytes(rest)).expect("valid chunks");
    writer.finish().expect("everything is stored");
    let reader = reader(&store);
    let rank = &reader.ranks()[0];
    let moments: Vec<_> = rank.parts.iter().map(|part| (part.first_event, part.end_event)).collect();
    assert_eq!(moments, [(0, 2_000), (4_000, 6_000)]);
    let last = reader.recording_at(rank, rank.parts[1].object.end_unix_ms).expect("it opens").expect("it exists");
    assert_eq!(*last.end_state(), program.end_state());
}

#[test]
fn invalid_recordings_and_processes_are_refused() {
    let store = memory();
    let writer = writer(&store, ArchiveOptions::default());
    let mut program = Program::new(4);
    let chunks = program.run(400);
    let archive = writer.process(&program.process).expect("a valid process");
    let check = |bytes: &[u8], expected: &str| {
        let error = archive.push(bytes).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(expected), "{error}");
    };
    check(b"PK", "cannot archive the recording");
    check(&program.chunks[0][..20], "end inside a chunk");
    archive.push(&program.bytes(chunks.clone())).expect("valid chunks");
    check(&program.bytes(chunks), "should follow");
    let mut process = program.process.clone();
    for identity in ["", "../../../../../../../../../../x/..", "0123456789ABCDEF0123456789ABCDEF"] {
        process.identity = identity.to_owned();
        assert!(matches!(writer.process(&process), Err(ArchiveError::Process(_))), "{identity}");
    }
    writer.finish().expect("the valid part is stored");
    let later = program.run(400);
    archive.push(&program.bytes(later)).expect("it is ignored");
    drop(archive);
    assert_eq!(reader(&store).ranks()[0].parts[0].events, 400);
}
