//! Tests of sessions that start while the process runs, of snapshots and of settings.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use vramscope_formats::{Limits, ignore_progress, import};
use vramscope_trace::{Definition, Encoder, EventKind, Recording, SiteId, StringId};

use super::tests::{MIB, STREAM, decode, recording_to, start, take};
use super::*;

/// Starts a session that must not fail.
fn start_session<S: DeviceSource>(process: &ProcessState<S>, options: RecordingOptions) -> SessionStart {
    process.start_session(options).expect("no page is wanted")
}

/// Allocates memory on device 0, which must succeed, and returns its address.
fn allocate<S: DeviceSource>(process: &ProcessState<S>, bytes: u64) -> u64 {
    process.allocate(bytes, 0, STREAM).expect("the pool is large enough").expect("the request is not empty")
}

/// Reads a recording's last state of device 0: allocated bytes and blocks.
fn end_of(path: &Path) -> (u64, usize) {
    let mut recording = Recording::new();
    recording.push(&std::fs::read(path).expect("the file was written")).expect("a valid recording");
    let device = recording.end_state().device(DeviceId(0)).expect("the device was used");
    (device.counters().allocated, device.blocks().len())
}

#[test]
fn session_begins_with_the_pools_state_and_can_be_repeated() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (process, messages) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    let first = allocate(&process, 1024);
    for (name, expected) in [("a.vram", (1024 + 2048, 2)), ("b.vram", (2048 + 4096, 2))] {
        let path = folder.path().join(name);
        assert_eq!(start_session(&process, recording_to(&path)), SessionStart::Started(None));
        assert_eq!(start_session(&process, recording_to(&path)), SessionStart::InProgress(None));
        allocate(&process, expected.0 - if name == "a.vram" { 1024 } else { 2048 });
        if name == "b.vram" {
            assert_eq!(process.free(first, 0), Ok(()));
        }
        assert!(process.shut_down());
        assert_eq!(end_of(&path), expected);
        let (info, events, _) = decode(&path);
        assert!(!info.devices[0].history_complete);
        assert!(matches!(events[0], EventKind::Gap { lost: 0 }), "{events:?}");
    }
    assert_eq!(take(&messages).len(), 2, "one message for each file");
}

#[test]
fn session_before_the_first_pool_has_the_complete_history() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    assert_eq!(process.save(&path), Err("nothing is recorded in memory yet".to_owned()));
    start_session(&process, recording_to(&path));
    allocate(&process, 1000);
    process.mark("span", AnnotationStage::Begin);
    let saved = folder.path().join("saved.vram");
    assert_eq!(process.save(&saved), Ok(()));
    assert_eq!(end_of(&saved), (1024, 1));
    assert!(process.stop());
    let (info, events, _) = decode(&path);
    assert!(info.devices[0].history_complete);
    assert_eq!(events.len(), 3);
}

#[test]
fn span_that_is_open_at_the_first_request_is_recorded() {
    use AnnotationStage::{Begin, End, Instant};
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let (process, _) = start(Ok(vec![64 * MIB; 2]), Ok(""), recording_to(&path));
    let early = [("over", Begin), ("step 1", Begin), ("over", End), ("unknown", End), ("moment", Instant)];
    early.into_iter().for_each(|(name, stage)| process.mark(name, stage));
    allocate(&process, 1000);
    process.mark("step 1", End);
    assert!(process.stop());
    let (_, events, definitions) = decode(&path);
    let mark = |stage| EventKind::Mark { stage, name: StringId(1), address: 0, site: SiteId(0) };
    assert_eq!((events[0], events[3]), (mark(Begin), mark(End)), "{events:?}");
    assert_eq!((events.len(), definitions), (4, vec![Definition::String("step 1".to_owned())]));
}

#[test]
fn page_that_cannot_be_served_is_an_error() {
    // No machine has this address (RFC 5737).
    let listen = Some(std::net::SocketAddr::from(([192, 0, 2, 1], 0)));
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    let error = process.start_session(RecordingOptions { listen, ..RecordingOptions::default() });
    let error = error.expect_err("the address is not of this machine");
    assert!(error.ends_with("the page is not served"), "{error}");
    let other = process.start_session(RecordingOptions::default());
    assert_eq!(other, Ok(SessionStart::Started(None)));
}

#[test]
fn snapshot_can_be_imported() {
    let (process, _) = start(Ok(vec![64 * MIB]), Ok("max_split_size_mb:32"), RecordingOptions::default());
    allocate(&process, 1000);
    allocate(&process, 5 * MIB);
    let read = |pickle: Vec<u8>| {
        let mut alloc_conf = String::new();
        let begin = |info: &RecordingInfo| {
            alloc_conf.clone_from(&info.alloc_conf);
            Encoder::new(info)
        };
        let imported = import(&pickle, "snapshot.pickle", &Limits::default(), &mut ignore_progress, begin);
        let (encoder, _) = imported.expect("a valid snapshot");
        let device = encoder.state().device(DeviceId(0)).expect("the device was used");
        (device.counters().allocated, device.blocks().len(), alloc_conf)
    };
    let expected = (1024 + 5 * MIB, 2, "max_split_size_mb:32".to_owned());
    assert_eq!(read(process.snapshot_pickle(true).expect("a snapshot")), expected);
    start_session(&process, RecordingOptions::default());
    let pickle = process.snapshot_pickle(false).expect("a snapshot");
    assert_eq!(read(pickle), expected);
    let address = allocate(&process, 2000);
    assert_eq!(process.free(address, 0), Ok(()));
    let pickle = process.snapshot_pickle(true).expect("a snapshot");
    assert!(pickle.windows(14).any(|part| part == b"free_completed"));
    assert_eq!(read(pickle), expected);
}

#[test]
fn counters_can_be_reset() {
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    let stats = |process: &ProcessState<_>| -> serde_json::Value {
        serde_json::from_str(&process.memory_stats_json(0)).expect("the text is JSON")
    };
    let address = allocate(&process, 4096);
    assert_eq!(process.free(address, 0), Ok(()));
    process.reset_stats(0, StatsReset::Peaks);
    assert_eq!(stats(&process)["allocated_bytes.all.peak"], 0);
    assert_eq!(stats(&process)["allocated_bytes.all.allocated"], 4096);
    process.reset_stats(0, StatsReset::Accumulated);
    assert_eq!(stats(&process)["allocated_bytes.all.allocated"], 0);
    process.reset_stats(7, StatsReset::Peaks);
}

#[test]
fn settings_change_for_all_pools() {
    let (process, _) = start(Ok(vec![64 * MIB, 64 * MIB]), Ok(""), RecordingOptions::default());
    allocate(&process, 512);
    assert_eq!(process.memory_fraction(0), 1.0);
    assert_eq!(process.set_memory_fraction(0.5, 1), Ok(()));
    assert_eq!((process.memory_fraction(0), process.memory_fraction(1)), (1.0, 0.5));
    assert_eq!(process.set_settings("max_split_size_mb:64"), Ok(()));
    let error = process.set_settings("nonsense:1").expect_err("no such setting");
    assert!(error.starts_with("character 1: "), "{error}");
    process.allocate(512, 1, STREAM).expect("the pool is large enough");
    for device in [0, 1] {
        let split = process.pool(device).map(|pool| pool.allocator_settings().max_split_size_bytes);
        assert_eq!(split, Ok(Some(64 * MIB)));
    }
    assert_eq!(process.memory_fraction(1), 0.5);
}

#[test]
fn observers_see_out_of_memory_on_every_device() {
    let (process, _) = start(Ok(vec![64 * MIB, 64 * MIB]), Ok(""), RecordingOptions::default());
    allocate(&process, 512);
    let seen = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&seen);
    process.attach_out_of_memory_observer(Arc::new(move |details| {
        count.fetch_add(details.requested / MIB, Ordering::Relaxed);
    }));
    for device in [0, 1] {
        assert!(process.allocate(100 * MIB, device, STREAM).is_err());
    }
    assert_eq!(seen.load(Ordering::Relaxed), 200);
}

#[test]
fn largest_block_is_known_to_cudnn() {
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    assert_eq!(process.cache_info(0, 7), 7);
    let address = allocate(&process, 15 * MIB);
    assert_eq!(process.cache_info(0, 0), process.pool(0).map(|pool| pool.mem_get_info().free_bytes).expect("a pool"));
    assert_eq!(process.free(address, 0), Ok(()));
    assert_eq!(process.cache_info(0, MIB), 16 * MIB);
    assert_eq!(process.cache_info(0, 40 * MIB), 40 * MIB);
}

#[test]
fn sites_of_an_earlier_recording_are_unknown_in_the_next() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (process, _) = start(Ok(vec![64 * MIB]), Ok(""), RecordingOptions::default());
    for (name, scopes) in [("a.vram", ["old"].as_slice()), ("b.vram", &["", "new"])] {
        let path = folder.path().join(name);
        start_session(&process, recording_to(&path));
        vramscope_collector::enter_scope(scopes[scopes.len() - 1], None);
        allocate(&process, 1000);
        vramscope_collector::leave_scope();
        assert!(process.shut_down());
        let mut recording = Recording::new();
        recording.push(&std::fs::read(&path).expect("the file was written")).expect("a valid recording");
        let definitions = recording.definitions();
        let device = recording.end_state().device(DeviceId(0)).expect("the device was used");
        let scope_of = |site| definitions.string(definitions.site(site).scope).to_owned();
        let mut found: Vec<String> = device.blocks().map(|block| scope_of(block.site)).collect();
        found.sort();
        assert_eq!(found, scopes);
    }
}
