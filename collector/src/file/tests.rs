use std::collections::HashMap;
use std::fs;
use std::ops::ControlFlow;
use std::sync::mpsc;

use proptest::prelude::*;
use vramscope_trace::{ChunkKind, Recording, digest};

use super::testing::{FakeDisk, FakeDiskState, Fault, Program, ReplacementStep};
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
            program.replace_state();
        }
        chunks.extend(program.chunks());
    }
    chunks
}

fn end_of(chunk: &Chunk) -> u64 {
    chunk.first_event + chunk.events
}

/// Writes chunks until one fails; returns how many were written.
fn write_all(writer: &mut Writer<FakeDisk>, chunks: &[Chunk]) -> (usize, Option<io::Error>) {
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

/// A cache of the results of opening a file, by its content: most faults leave equal bytes.
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
    let disk = FakeDisk::default();
    disk.0.lock().expect("no thread panics").fault = Some((at, fault));
    let mut writer = Writer::new(disk.clone(), keep);
    let (written, error) = write_all(&mut writer, chunks);
    writer.close();
    let calls_for_chunks = disk.0.lock().expect("no thread panics").calls;
    if error.is_none() {
        writer.append_index();
    }
    let FakeDiskState { current, next, calls, pauses, .. } = &*disk.0.lock().expect("no thread panics");
    let context = format!("{fault:?} at call {at} of {calls}");
    assert!(next.is_none(), "{context}: the second file was left behind");
    assert!(*pauses <= 5000, "{context}");
    if *calls <= at {
        // The fault comes after the last call.
        assert_eq!(written, chunks.len());
        return false;
    }
    if calls_for_chunks <= at {
        // Only writing the index failed; the recording is complete.
        let end = chunks.iter().map(end_of).max().expect("the file has a chunk");
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
    let end = chunks[..written].iter().map(end_of).max().expect("the file has a chunk");
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

/// Whether power fails before or after the rename, the folder has a complete file.
#[test]
fn replacement_is_synced_before_the_rename_and_the_folder_after_it() {
    let run = |fault| {
        let (chunks, disk) = (chunks(), FakeDisk::default());
        let everything: usize = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        disk.0.lock().expect("no thread panics").fault = fault;
        let mut writer = Writer::new(disk.clone(), Keep { bytes: Some(everything as u64 / 3), time: None });
        let (_, error) = write_all(&mut writer, &chunks);
        let state = disk.0.lock().expect("no thread panics");
        (state.replacing.clone(), state.calls, error)
    };
    let (steps, calls, error) = run(None);
    assert!(error.is_none() && steps.len() >= 6, "{error:?}: {steps:?}");
    let whole = [ReplacementStep::SyncedNext, ReplacementStep::Renamed, ReplacementStep::SyncedFolder];
    assert!(steps.chunks(3).all(|steps| steps == whole), "{steps:?}");
    // Whichever call fails, no step is done unless all steps before it were done.
    for at in 0..calls {
        let (steps, ..) = run(Some((at, Fault::Once(io::ErrorKind::StorageFull))));
        assert!(steps.chunks(3).all(|steps| whole.starts_with(steps)), "at call {at}: {steps:?}");
        assert_ne!(steps.len() % 3, 2, "at call {at}: the folder is not synced: {steps:?}");
    }
}

#[test]
fn disk_that_cannot_sync_keeps_the_recording() {
    let (chunks, disk) = (chunks(), FakeDisk::default());
    let everything: usize = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
    for kind in [io::ErrorKind::InvalidInput, io::ErrorKind::Unsupported] {
        disk.0.lock().expect("no thread panics").sync_fault = Some(kind);
        let mut writer = Writer::new(disk.clone(), Keep { bytes: Some(everything as u64 / 3), time: None });
        let (written, error) = write_all(&mut writer, &chunks);
        assert!(error.is_none() && written == chunks.len(), "{error:?}");
        let state = std::mem::take(&mut *disk.0.lock().expect("no thread panics"));
        assert!(state.taken > 1);
        open(&state.current, false);
    }
}

#[test]
fn end_of_the_recording_waits_for_no_copy() {
    let (chunks, disk) = (chunks(), FakeDisk::default());
    let everything: usize = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
    let mut writer = Writer::new(disk.clone(), Keep { bytes: Some(everything as u64 / 3), time: None });
    let mut rest = chunks.iter();
    while !writer.is_copying() {
        writer.append(rest.next().expect("a copy begins"), Instant::now()).expect("the disk has no fault");
    }
    writer.close();
    let taken = disk.0.lock().expect("no thread panics").taken;
    for chunk in rest.take(3) {
        writer.append(chunk, Instant::now()).expect("the disk has no fault");
        assert!(!writer.is_copying());
    }
    let state = disk.0.lock().expect("no thread panics");
    assert!(state.next.is_none() && state.taken == taken);
    open(&state.current, false);
}

#[test]
fn sync_of_the_disk_is_progress() {
    let queue = FileQueue::new(QUEUE_BYTES, Duration::ZERO);
    queue.begin();
    let syncs = Arc::clone(&queue.lock().syncs);
    // Each check of the state sees that another sync has begun or ended.
    let looks = AtomicU64::new(0);
    let state = queue.wait_while(|_| {
        syncs.fetch_add(1, Ordering::Relaxed);
        looks.fetch_add(1, Ordering::Relaxed) < 100
    });
    assert!(state.failed.is_none());
    drop(state);
    // The queue waits longer for a sync than for a write, but not forever.
    let looks_until_failure = |syncs_so_far| {
        let queue = FileQueue::new(QUEUE_BYTES, Duration::ZERO);
        queue.begin();
        queue.lock().syncs.store(syncs_so_far, Ordering::Relaxed);
        let looks = AtomicU64::new(0);
        let state = queue.wait_while(|_| looks.fetch_add(1, Ordering::Relaxed) < u64::MAX);
        assert_eq!(state.failed.as_ref().map(io::Error::kind), Some(io::ErrorKind::TimedOut));
        looks.load(Ordering::Relaxed)
    };
    assert!(looks_until_failure(1) > looks_until_failure(2));
}

#[test]
fn pipe_that_stays_full_is_an_error_after_5000_attempts() {
    let chunks = chunks();
    for kind in [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted] {
        assert!(check_fault(&chunks, Keep::default(), 100, Fault::Gone(8, kind), &mut Opened::default()));
    }
}

#[derive(Clone, Debug)]
enum Action {
    Run(u64),
    Annotate,
    State,
    Idle,
    Wait(u64),
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (1..400u64).prop_map(Action::Run),
        1 => Just(Action::Annotate),
        1 => Just(Action::State),
        2 => Just(Action::Idle),
        2 => (1..20u64).prop_map(Action::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn window_is_valid_and_within_its_limits(
        actions in prop::collection::vec(any_action(), 1..150),
        limit in prop::option::of(12_000..40_000u64),
        seconds in prop::option::of(5..30u64),
    ) {
        let keep = Keep { bytes: limit, time: seconds.map(Duration::from_secs) };
        let (disk, mut program, mut now) = (FakeDisk::default(), Program::new(), Instant::now());
        let mut writer = Writer::new(disk.clone(), keep);
        let mut sent: Vec<(Chunk, Instant)> = Vec::new();
        for action in actions {
            match action {
                Action::Run(blocks) => program.run(blocks),
                Action::Annotate => program.annotate(),
                Action::State => program.replace_state(),
                Action::Idle => while writer.is_copying() { writer.copy().expect("the disk has no fault") },
                Action::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            if writer.wants_state(now) {
                program.replace_state();
            }
            for chunk in program.chunks() {
                writer.append(&chunk, now).expect("the disk has no fault");
                sent.push((chunk, now));
            }
            let state = disk.0.lock().expect("no thread panics");
            let bytes = &state.current;
            prop_assert_eq!(bytes.len() as u64, writer.len());
            let recording = open(bytes, false);
            prop_assert_eq!(recording.lost_events(), 0);
            prop_assert_eq!(recording.end_event(), sent.last().map_or(0, |(chunk, _)| end_of(chunk)));
            check_window(&keep, &recording, bytes.len() as u64, &sent, now)?;
        }
        let kept = open(&disk.0.lock().expect("no thread panics").current, true);
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
            "the file begins with a full state"
        );
    }
    if let Some(limit) = keep.bytes {
        prop_assert!(len <= limit, "{len} of {limit}");
    }
    let begins =
        |(chunk, _): &&(Chunk, Instant)| end_of(chunk) > first || (is_state(chunk) && chunk.first_event == first);
    let dropped = sent.iter().rev().skip_while(begins).find(|(chunk, _)| chunk.kind == ChunkKind::Events);
    match (keep.time, keep.bytes) {
        // The time limit alone drops only chunks that are older than it.
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
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    fs::write(folder.path().join(".a.vram.part"), "from a process that was killed").expect("the disk has room");
    let file =
        RecordingFile::create(&path, Keep { bytes: Some(100_000), time: None }).expect("the file can be created");
    let count = fs::read_dir(folder.path()).expect("the folder exists").count();
    assert_eq!(count, 1, "the killed process's file is removed");
    let mut program = Program::new();
    for _ in 0..500 {
        program.run(200);
        if file.wants_state() {
            program.replace_state();
        }
        program.chunks().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
        file.flush();
        assert!(fs::metadata(&path).expect("the file exists").len() <= 100_000);
    }
    let bytes = file.finish().expect("the disk has room");
    let recording = open(&fs::read(&path).expect("the file exists"), false);
    assert_eq!(fs::metadata(&path).expect("the file exists").len(), bytes);
    assert_eq!(recording.end_event(), program.encoder.state().event());
    assert!(recording.first_event() > 0, "{bytes} bytes");
    assert_eq!(fs::read_dir(folder.path()).expect("the file exists").count(), 1);
}

#[test]
fn file_of_another_recording_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let file = RecordingFile::create(&path, Keep::default()).expect("the file can be created");
    Program::new().chunks().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
    file.flush();
    let error = RecordingFile::create(&path, Keep::default()).expect_err("the file is locked");
    assert!(error.to_string().contains("a.vram: another process is recording to this file"), "{error}");
    assert!(file.finish().expect("the disk has room") > 0);
    open(&fs::read(&path).expect("the file exists"), false);
    drop(RecordingFile::create(&path, Keep::default()).expect("the other process has ended"));
    assert_eq!(fs::read(&path).expect("the file exists"), b"");
}

#[test]
fn device_file_keeps_everything() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let error = RecordingFile::create(folder.path(), Keep::default()).expect_err("a folder is not a file");
    assert_eq!(error.name, folder.path().display().to_string());
    #[cfg(unix)]
    {
        let null = Path::new("/dev/null");
        let keep = Keep { bytes: Some(1 << 20), time: None };
        let error = RecordingFile::create(null, keep).expect_err("/dev/null keeps nothing");
        assert!(error.to_string().starts_with("/dev/null: not a regular file"), "{error}");
        let file = RecordingFile::create(null, Keep::default()).expect("/dev/null can be written");
        Program::new().chunks().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
        assert!(file.finish().expect("the disk has room") > 0);
    }
}

#[cfg(unix)]
#[test]
fn file_that_cannot_be_opened_is_an_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("pipe");
    // Opening it for writing waits for a reader, as a disk that hangs waits for its server.
    assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo is installed").success());
    let error = RecordingFile::create_within(&path, Keep::default(), Duration::from_millis(20));
    let error = error.expect_err("the pipe has no reader").to_string();
    assert!(error.ends_with("pipe: it could not be opened for 0 s"), "{error}");
    // The thread that still opens it then writes nothing.
    assert_eq!(fs::read(&path).expect("the thread opens the pipe, and closes it"), b"");
}

#[test]
fn file_that_is_opened_too_late_keeps_its_content() {
    let queue = FileQueue::new(QUEUE_BYTES, Duration::ZERO);
    queue.wait_until_open();
    let disk = FakeDisk::default();
    disk.0.lock().expect("no thread panics").current = b"an earlier recording".to_vec();
    begin(&queue, disk.clone(), None, Keep::default());
    assert_eq!(disk.0.lock().expect("no thread panics").current, b"an earlier recording");
}

/// Creating the file must not fail: the disk may still empty it after an error was returned.
#[test]
fn file_that_is_emptied_slowly_is_open() {
    let (disk, chunks) = (FakeDisk::default(), chunks());
    let (release, released) = mpsc::channel();
    {
        let mut state = disk.0.lock().expect("no thread panics");
        (state.current, state.clear_hangs) = (b"an earlier recording".to_vec(), Some(released));
    }
    let storage = disk.clone();
    let file = RecordingFile::spawn("a file".to_owned(), QUEUE_BYTES, PATIENCE, move |queue| {
        begin(queue, storage, None, Keep::default());
    });
    let file = file.expect("the thread starts");
    drop(file.shared.wait_while(|state| state.is_opening));
    assert!(file.failure().is_none() && file.shared.lock().is_clearing);
    chunks.iter().for_each(|chunk| file.append(Arc::new(chunk.clone())));
    release.send(()).expect("the disk waits");
    assert!(file.finish().expect("the disk has no fault") > 0);
    let current = std::mem::take(&mut disk.0.lock().expect("no thread panics").current);
    let whole: Vec<u8> = chunks.into_iter().flat_map(|chunk| chunk.bytes).collect();
    assert!(current.starts_with(&whole));
}

#[test]
fn file_that_cannot_be_emptied_is_a_failure() {
    let disk = FakeDisk::default();
    disk.0.lock().expect("no thread panics").clear_fault = Some(io::ErrorKind::PermissionDenied);
    let queue = FileQueue::new(QUEUE_BYTES, PATIENCE);
    begin(&queue, disk, None, Keep::default());
    queue.wait_until_open();
    let state = queue.lock();
    assert_eq!(state.failed.as_ref().map(io::Error::kind), Some(io::ErrorKind::PermissionDenied));
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
    let (release, signal) = mpsc::channel();
    let file = RecordingFile::stream("broken", Broken(signal)).expect("the thread starts");
    Program::new().chunks().into_iter().for_each(|chunk| file.append(Arc::new(chunk)));
    drop(release);
    file.flush();
    assert!(file.finish().expect_err("the thread panicked").to_string().starts_with("broken: internal error"));
}
