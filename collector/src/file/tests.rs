use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::sync::mpsc;

use proptest::prelude::*;
use vramscope_trace::{ChunkKind, Recording, digest};

use super::testing::{Fake, FakeState, Fault, Program};
use super::*;

/// Opens a recording; an incomplete chunk at the end is allowed only if `may_be_cut`.
fn open(bytes: &[u8], may_be_cut: bool) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("the bytes are chunks, the last perhaps incomplete");
    let finished = recording.finish();
    assert!(may_be_cut || finished.is_ok(), "{finished:?}");
    recording
}

/// Returns a few hundred chunks of every kind.
fn chunks() -> Vec<Chunk> {
    let mut program = Program::new();
    let mut chunks = program.chunks();
    for n in 1..=250 {
        program.run(7);
        if n % 10 == 0 {
            program.annotate();
        }
        if n % 13 == 0 {
            program.full_state();
        }
        chunks.extend(program.chunks());
    }
    chunks
}

fn end_of(chunk: &Chunk) -> u64 {
    chunk.first_event + chunk.events
}

/// Writes chunks until one fails; returns how many were written.
fn write_all(writer: &mut Writer<Fake>, chunks: &[Chunk]) -> (usize, Option<io::Error>) {
    let now = Instant::now();
    let written = chunks.iter().try_fold(0, |count, chunk| match writer.append(chunk, now) {
        Ok(()) => ControlFlow::Continue(count + 1),
        Err(error) => ControlFlow::Break((count, Some(error))),
    });
    match written {
        ControlFlow::Continue(count) => (count, None),
        ControlFlow::Break(broken) => broken,
    }
}

/// Results of opening, by content: most faults leave the same bytes.
#[derive(Default)]
struct Opened(HashMap<Vec<u8>, (u64, u64)>);

impl Opened {
    /// Returns the last event and the number of lost events.
    fn open(&mut self, bytes: &[u8], may_be_cut: bool) -> (u64, u64) {
        if let Some(&known) = self.0.get(bytes).filter(|_| !may_be_cut) {
            return known;
        }
        let recording = open(bytes, may_be_cut);
        let found = (recording.end_event(), recording.lost_events());
        if !may_be_cut {
            self.0.insert(bytes.to_vec(), found);
        }
        found
    }
}

fn check_fault(chunks: &[Chunk], keep: Keep, at: u64, fault: Fault, opened: &mut Opened) -> bool {
    let fake = Fake::default();
    fake.0.lock().expect("no panic").fault = Some((at, fault));
    let mut writer = Writer::new(fake.clone(), keep);
    let (written, error) = write_all(&mut writer, chunks);
    writer.close();
    let calls_for_chunks = fake.0.lock().expect("no panic").calls;
    if error.is_none() {
        writer.append_index();
    }
    let FakeState { current, next, calls, pauses, .. } = &*fake.0.lock().expect("no panic");
    let context = format!("{fault:?} at call {at} of {calls}");
    assert!(next.is_none(), "{context}: the second file was left behind");
    assert!(*pauses <= 5000, "{context}");
    if *calls <= at {
        // The fault comes after the last call.
        assert_eq!(written, chunks.len());
        return false;
    }
    if calls_for_chunks <= at {
        // Only the index failed; the recording is complete.
        let end = chunks.iter().map(end_of).max().expect("there is one");
        assert_eq!(opened.open(current, matches!(fault, Fault::Gone(..))), (end, 0), "{context}");
        return true;
    }
    let recovers = match fault {
        Fault::Once(kind) => matches!(kind, io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock),
        Fault::Short(_) => true,
        Fault::Full(..) | Fault::Gone(..) => false,
    };
    // A short write of all bytes in the last call is no failure.
    assert_eq!(error.is_none() && written == chunks.len(), recovers, "{context}: {error:?}");
    if let (Fault::Once(kind) | Fault::Full(_, kind) | Fault::Gone(_, kind), Some(error)) = (fault, &error) {
        assert!(error.kind() == kind || error.kind() == io::ErrorKind::TimedOut, "{context}: {error}");
    }
    if written == 0 {
        // Not even the header was written.
        assert!(matches!(fault, Fault::Gone(..)) || current.is_empty(), "{context}");
        return true;
    }
    let end = chunks[..written].iter().map(end_of).max().expect("there is one");
    assert_eq!(opened.open(current, matches!(fault, Fault::Gone(..))), (end, 0), "{context}");
    if keep.is_everything() {
        let whole: Vec<u8> = chunks[..written].iter().flat_map(|chunk| chunk.bytes.clone()).collect();
        assert!(current.starts_with(&whole), "{context}");
    }
    true
}

const FAULTS: [Fault; 13] = [
    Fault::Once(io::ErrorKind::Interrupted),
    Fault::Once(io::ErrorKind::WouldBlock),
    Fault::Once(io::ErrorKind::BrokenPipe),
    Fault::Short(0),
    Fault::Short(8),
    Fault::Short(15),
    Fault::Full(0, io::ErrorKind::StorageFull),
    Fault::Full(8, io::ErrorKind::StorageFull),
    Fault::Full(15, io::ErrorKind::QuotaExceeded),
    Fault::Full(0, io::ErrorKind::PermissionDenied),
    Fault::Gone(0, io::ErrorKind::BrokenPipe),
    Fault::Gone(8, io::ErrorKind::Other),
    Fault::Gone(15, io::ErrorKind::BrokenPipe),
];

/// Tries every fault at every call of a whole run; returns the number of calls.
fn check_faults(keep: Keep) -> u64 {
    let (chunks, mut opened, mut calls) = (chunks(), Opened::default(), 0);
    for fault in FAULTS {
        let mut at = 0;
        while check_fault(&chunks, keep, at, fault, &mut opened) {
            at += 1;
        }
        calls = calls.max(at);
    }
    calls
}

#[test]
fn file_is_valid_after_any_fault_at_any_call() {
    assert!(check_faults(Keep::default()) > 250);
}

#[test]
fn file_is_valid_after_any_fault_while_copying() {
    let everything: usize = chunks().iter().map(|chunk| chunk.bytes.len()).sum();
    let keep = Keep { bytes: Some(everything as u64 / 3), time: None };
    assert!(check_faults(keep) > 500);
}

#[test]
fn pipe_that_stays_full_is_an_error_after_a_while() {
    let chunks = chunks();
    for kind in [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted] {
        assert!(check_fault(&chunks, Keep::default(), 100, Fault::Gone(8, kind), &mut Opened::default()));
    }
}

#[derive(Clone, Debug)]
enum Act {
    Run(u64),
    Annotate,
    State,
    Idle,
    Wait(u64),
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1..400u64).prop_map(Act::Run),
        1 => Just(Act::Annotate),
        1 => Just(Act::State),
        2 => Just(Act::Idle),
        2 => (1..20u64).prop_map(Act::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn window_is_valid_and_within_its_limits(
        acts in prop::collection::vec(any_act(), 1..150),
        limit in prop::option::of(12_000..40_000u64),
        seconds in prop::option::of(5..30u64),
    ) {
        let keep = Keep { bytes: limit, time: seconds.map(Duration::from_secs) };
        let (fake, mut program, mut now) = (Fake::default(), Program::new(), Instant::now());
        let mut writer = Writer::new(fake.clone(), keep);
        let mut sent: Vec<(Chunk, Instant)> = Vec::new();
        for act in acts {
            match act {
                Act::Run(blocks) => program.run(blocks),
                Act::Annotate => program.annotate(),
                Act::State => program.full_state(),
                Act::Idle => while writer.is_copying() { writer.copy().expect("no fault") },
                Act::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            if writer.wants_state(now) {
                program.full_state();
            }
            for chunk in program.chunks() {
                writer.append(&chunk, now).expect("no fault");
                sent.push((chunk, now));
            }
            let state = fake.0.lock().expect("no panic");
            let bytes = &state.current;
            prop_assert_eq!(bytes.len() as u64, writer.len());
            let recording = open(bytes, false);
            prop_assert_eq!(recording.lost_events(), 0);
            prop_assert_eq!(recording.end_event(), sent.last().map_or(0, |(chunk, _)| end_of(chunk)));
            check_window(&keep, &recording, bytes.len() as u64, &sent, now)?;
        }
        let kept = open(&fake.0.lock().expect("no panic").current, true);
        let whole = open(&joined(&sent), true);
        prop_assert_eq!(kept.definitions(), whole.definitions());
        prop_assert_eq!(digest(kept.end_state()), digest(whole.end_state()));
    }
}

fn joined(sent: &[(Chunk, Instant)]) -> Vec<u8> {
    sent.iter().flat_map(|(chunk, _)| chunk.bytes.clone()).collect()
}

fn check_window(
    keep: &Keep,
    recording: &Recording,
    len: u64,
    sent: &[(Chunk, Instant)],
    now: Instant,
) -> Result<(), TestCaseError> {
    let first = recording.first_event();
    let is_state = |chunk: &Chunk| chunk.kind == ChunkKind::State;
    if first > 0 {
        prop_assert!(
            sent.iter().any(|(chunk, _)| is_state(chunk) && chunk.first_event == first),
            "it begins with a state"
        );
    }
    if let Some(limit) = keep.bytes {
        prop_assert!(len <= limit, "{len} of {limit}");
    }
    let begins =
        |(chunk, _): &&(Chunk, Instant)| end_of(chunk) > first || (is_state(chunk) && chunk.first_event == first);
    let dropped = sent.iter().rev().skip_while(begins).find(|(chunk, _)| chunk.kind == ChunkKind::Events);
    match (keep.time, keep.bytes) {
        // What was dropped is older than that, or the size limit applied.
        (Some(time), None) => {
            if let Some((_, at)) = dropped {
                prop_assert!(now.duration_since(*at) >= time);
            }
        }
        (None, Some(limit)) => prop_assert!(dropped.is_none() || len >= limit / 4, "{len} of {limit}"),
        _ => {}
    }
    Ok(())
}

#[test]
fn file_on_a_disk_keeps_its_newest_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.vram");
    fs::write(folder.path().join(".a.vram.part"), "from a process that was killed").expect("room");
    let file = RecordingFile::create(&path, Keep { bytes: Some(100_000), time: None }).expect("a new file");
    let taken = fs::read_dir(folder.path()).expect("it is there").count();
    assert_eq!(taken, 1, "the killed process's file is removed");
    let mut program = Program::new();
    for _ in 0..500 {
        program.run(200);
        if file.wants_state() {
            program.full_state();
        }
        program.chunks().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
        file.flush();
        assert!(fs::metadata(&path).expect("it is there").len() <= 100_000);
    }
    let bytes = file.finish().expect("room");
    let recording = open(&fs::read(&path).expect("it is there"), false);
    assert_eq!(fs::metadata(&path).expect("it is there").len(), bytes);
    assert_eq!(recording.end_event(), program.encoder.state().event());
    assert!(recording.first_event() > 0, "{bytes} bytes");
    assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 1);
}

#[test]
fn file_of_another_recording_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.vram");
    let file = RecordingFile::create(&path, Keep::default()).expect("a new file");
    Program::new().chunks().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
    file.flush();
    let refused = RecordingFile::create(&path, Keep::default()).expect_err("it is locked");
    assert!(refused.to_string().contains("a.vram: another process is recording to this file"), "{refused}");
    assert!(file.finish().expect("room") > 0);
    open(&fs::read(&path).expect("it is there"), false);
    drop(RecordingFile::create(&path, Keep::default()).expect("nobody writes it any more"));
    assert_eq!(fs::read(&path).expect("it is there"), b"");
}

#[test]
fn device_file_keeps_everything() {
    let folder = tempfile::tempdir().expect("a folder");
    let refused = RecordingFile::create(folder.path(), Keep::default()).expect_err("a folder");
    assert_eq!(refused.name, folder.path().display().to_string());
    #[cfg(unix)]
    {
        let null = Path::new("/dev/null");
        let keep = Keep { bytes: Some(1 << 20), time: None };
        let refused = RecordingFile::create(null, keep).expect_err("it gives nothing back");
        assert!(refused.to_string().starts_with("/dev/null: not a regular file"), "{refused}");
        let file = RecordingFile::create(null, Keep::default()).expect("it takes everything");
        Program::new().chunks().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
        assert!(file.finish().expect("room") > 0);
    }
}

#[test]
fn panicking_writer_blocks_no_thread() {
    struct Broken(mpsc::Receiver<()>);
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("{:?}", self.0.recv());
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (go_on, told) = mpsc::channel();
    let file = RecordingFile::stream("broken", Broken(told)).expect("a thread");
    Program::new().chunks().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
    drop(go_on);
    file.flush();
    assert!(file.finish().expect_err("the thread panicked").to_string().starts_with("broken: internal error"));
}
