//! What PyTorch recorded, decided again: the requests of real histories run through the pool, on a device that places segments
//! where the GPU's driver placed them. Every block, every segment, every failure and every counter must come out the same.

#![allow(missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vramscope_formats::{Limits, import, unpack};
use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice, Stat, StatBySize, Stats};
use vramscope_trace::{DeviceId, Event, EventKind, Memory, SiteId};

/// Of the recordings under default settings, those small enough to be in the repository.
const FIXTURES: [&str; 2] = ["tiny_inference", "mlp_train"];
/// And those that are not.
const LARGER: [&str; 6] = ["resnet50_train", "gpt_varlen", "oom_frag", "frag_a", "cppstacks", "two_gpus"];

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What the pool decides; a time or a site does not change it.
fn decision(event: &Event) -> Option<EventKind> {
    let mut kind = event.kind;
    match &mut kind {
        EventKind::SegmentAllocated { site, .. }
        | EventKind::SegmentFreed { site, .. }
        | EventKind::BlockAllocated { site, .. }
        | EventKind::FreeRequested { site, .. }
        | EventKind::FreeCompleted { site, .. } => *site = SiteId(0),
        EventKind::OutOfMemory { site, device_free, .. } => {
            // What other programs leave free on the GPU is not the pool's to decide.
            (*site, *device_free) = (SiteId(0), 0);
        }
        _ => return None,
    }
    Some(kind)
}

fn decisions(events: &[Event]) -> Vec<EventKind> {
    events.iter().filter_map(decision).collect()
}

/// Something that the program asked of the pool.
#[derive(Clone, Copy, Debug)]
enum Call {
    Allocate(EventKind),
    Free(u64),
    EmptyCache,
}

/// Runs calls and returns what the pool decided.
fn make(pool: &mut Pool<SimulatedDevice>, calls: &[Call]) -> Vec<EventKind> {
    let (mut sink, origin) = (Memory::default(), Origin::default());
    for &call in calls {
        // Whether a call failed is among the events.
        let _ = match call {
            Call::Allocate(
                EventKind::BlockAllocated { requested, stream, .. } | EventKind::OutOfMemory { requested, stream, .. },
            ) => pool.allocate(requested, stream, origin, &mut sink).is_ok(),
            Call::Allocate(other) => panic!("{other:?} is no request"),
            Call::Free(address) => pool.free(address, origin, &mut sink).is_ok(),
            Call::EmptyCache => pool.empty_cache(origin, &mut sink).is_ok(),
        };
    }
    decisions(&sink.events)
}

/// The calls that the history's next entries come from, and how many entries that is. Emptying the cache leaves no entry of its
/// own, so that segments freed before a request were freed either by that or by the request itself.
fn next_calls(history: &[EventKind]) -> (Vec<Vec<Call>>, usize) {
    let driver =
        |kind: &&EventKind| matches!(kind, EventKind::SegmentAllocated { .. } | EventKind::SegmentFreed { .. });
    let before = history.iter().take_while(driver).count();
    match history.get(before) {
        Some(&EventKind::FreeRequested { address, .. }) if before == 0 => (vec![vec![Call::Free(address)]], 2),
        Some(&request @ (EventKind::BlockAllocated { .. } | EventKind::OutOfMemory { .. })) => {
            let allocate = Call::Allocate(request);
            (vec![vec![allocate], vec![Call::EmptyCache, allocate]], before + 1)
        }
        _ => (vec![vec![Call::EmptyCache]], before.max(1)),
    }
}

fn check_history(name: &str, events: &[Event], limit_bytes: Option<u64>) -> Stats {
    let history = decisions(events);
    let segments = history.iter().filter_map(|kind| match kind {
        EventKind::SegmentAllocated { address, .. } => Some(*address),
        _ => None,
    });
    let device = SimulatedDevice::new(u64::MAX).with_addresses(segments);
    let mut pool = Pool::new(DeviceId(0), Settings { limit_bytes, ..Settings::default() }, device);
    let mut at = 0;
    while at < history.len() {
        let (readings, len) = next_calls(&history[at..]);
        let expected = &history[at..history.len().min(at + len)];
        let mut outcomes = readings.iter().map(|calls| {
            let mut tried = pool.clone();
            let decided = make(&mut tried, calls);
            (decided == expected).then_some(tried)
        });
        let Some(next) = outcomes.find_map(|outcome| outcome) else {
            panic!("{name}, entry {at}: recorded {expected:#?}, decided {:#?}", make(&mut pool, &readings[0]));
        };
        pool = next;
        at += len;
    }
    pool.stats()
}

fn check_stats(name: &str, stats: &Stats, truth: &Value) {
    let by_size = [
        ("allocation", stats.allocation),
        ("segment", stats.segment),
        ("active", stats.active),
        ("inactive_split", stats.inactive_split),
        ("allocated_bytes", stats.allocated_bytes),
        ("reserved_bytes", stats.reserved_bytes),
        ("active_bytes", stats.active_bytes),
        ("inactive_split_bytes", stats.inactive_split_bytes),
        ("requested_bytes", stats.requested_bytes),
    ];
    let is = |key: String, value: u64| assert_eq!(Some(value), truth[&key].as_u64(), "{name}: {key}");
    for (quantity, StatBySize { all, small_pool, large_pool }) in by_size {
        for (size, Stat { current, peak, allocated, freed }) in
            [("all", all), ("small_pool", small_pool), ("large_pool", large_pool)]
        {
            is(format!("{quantity}.{size}.current"), current);
            is(format!("{quantity}.{size}.peak"), peak);
            is(format!("{quantity}.{size}.allocated"), allocated);
            is(format!("{quantity}.{size}.freed"), freed);
        }
    }
    is("num_alloc_retries".to_owned(), stats.num_alloc_retries);
    is("num_ooms".to_owned(), stats.num_ooms);
    is("num_device_alloc".to_owned(), stats.num_device_alloc);
    is("num_device_free".to_owned(), stats.num_device_free);
    // Emptying a cache that holds nothing leaves no entry, but counts here.
    assert!(Some(stats.num_sync_all_streams) <= truth["num_sync_all_streams"].as_u64(), "{name}: num_sync_all_streams");
}

fn check(folder: &Path, name: &str) {
    let truth: Value = serde_json::from_slice(&read(&folder.join(format!("{name}.json")))).expect("the truth is JSON");
    let limits = Limits::default();
    let packed = read(&folder.join(format!("{name}.pickle.zst")));
    let bytes = unpack(&packed, &limits).expect("a fixture is whole");
    let (memory, imported) =
        import(&bytes, name, &limits, &mut |_, _| {}, |_| Memory::default()).expect("a fixture can be read");
    assert!(imported.info.devices.iter().all(|device| device.history_complete), "{name}");
    for device in &imported.info.devices {
        let events: Vec<Event> =
            memory.events.iter().filter(|event| event.device == DeviceId(device.device)).copied().collect();
        let stats = check_history(name, &events, truth["limit_bytes"].as_u64());
        println!("{name}, device {}: {} entries decided as recorded", device.device, events.len());
        // The truth was read on the first device.
        if device.device == 0 {
            check_stats(name, &stats, &truth["stats"]);
        }
    }
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

#[test]
fn recorded_decisions_are_made_again() {
    FIXTURES.iter().for_each(|name| check(&workspace_root().join("tests/data"), name));
}

#[test]
fn recorded_decisions_of_larger_programs_are_made_again() {
    let folder = workspace_root().join("../shared/snapshots");
    if folder.is_dir() {
        LARGER.iter().for_each(|name| check(&folder, name));
    } else {
        println!("SKIPPED: {} is not there; these were not checked: {}", folder.display(), LARGER.join(", "));
    }
}
