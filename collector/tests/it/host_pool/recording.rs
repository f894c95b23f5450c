//! Recordings of several pools, of pauses and of call stacks.

use tracing_subscriber::layer::SubscriberExt;
use vramscope_collector::{
    Category, HostDevice, HostPool, Hub, Outputs, Recorder, RecorderHandle, Scope, ScopeLayer, Settings, ViewFrom,
};
use vramscope_trace::{DeviceId, Recording, RecordingInfo, Site};

use crate::host_pool::MIB;

/// Runs a program and returns its recording.
fn record(program: impl FnOnce(&RecorderHandle)) -> Recording {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts");
    program(&handle);
    recorder.stop();
    let mut recording = Recording::new();
    let mut viewer = hub.viewer(ViewFrom::Oldest);
    loop {
        let taken = viewer.take(usize::MAX);
        if taken.chunks.is_empty() {
            return recording;
        }
        taken.chunks.iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid recording"));
    }
}

fn pool(handle: &RecorderHandle, device: u16) -> HostPool {
    HostPool::recorded(HostDevice::new(64 * MIB).with_number(device), Settings::default(), handle)
}

/// Returns the sites of the blocks that are live at the end, in order of size.
fn sites(recording: &Recording, device: u16) -> Vec<Site> {
    let state = recording.end_state().device(DeviceId(device)).expect("the device has events");
    let mut blocks: Vec<_> = state.blocks().copied().collect();
    blocks.sort_by_key(|block| block.size);
    blocks.iter().map(|block| recording.definitions().site(block.site)).collect()
}

#[track_caller]
fn check_site(recording: &Recording, site: &Site, scope: &str, category: Category) {
    let definitions = recording.definitions();
    assert_eq!((definitions.string(site.scope), site.category), (scope, category));
    let frame = definitions.stack(site.stack).next().expect("the site has a location");
    assert!(definitions.string(frame.file).ends_with("host_pool/recording.rs"));
}

#[test]
fn pools_of_several_devices_share_a_recording() {
    let recording = record(|handle| {
        let pools = [0, 1, 2].map(|device| pool(handle, device));
        let _step = Scope::open("step");
        let held: Vec<_> = pools
            .iter()
            .enumerate()
            .map(|(n, pool)| {
                let _rank = Scope::open_with(&format!("rank{n}"), Category::ALL[n + 1]);
                pool.mark(&format!("begin {n}"));
                pool.alloc_zeros::<u8>(1000 << n).expect("the device is large enough")
            })
            .collect();
        // Never freed, so that the blocks are live at the end of the recording.
        std::mem::forget(held);
    });
    for n in 0..3 {
        let found = sites(&recording, n);
        let (scope, category) = (format!("step/rank{n}"), Category::ALL[usize::from(n) + 1]);
        assert_eq!(found.len(), 1);
        check_site(&recording, &found[0], &scope, category);
    }
    let marks: Vec<_> = recording.annotations().iter().map(|mark| recording.definitions().string(mark.name)).collect();
    assert_eq!(marks, ["begin 0", "begin 1", "begin 2"]);
}

#[test]
fn tracing_spans_are_recorded_as_scopes() {
    let recording = record(|handle| {
        let pool = pool(handle, 0);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(ScopeLayer::new()), || {
            let _step = tracing::info_span!("step").entered();
            let _forward = tracing::info_span!("forward", category = "activation").entered();
            std::mem::forget(pool.alloc_zeros::<u8>(1000).expect("the device is large enough"));
        });
    });
    check_site(&recording, &sites(&recording, 0)[0], "step/forward", Category::Activation);
}

#[test]
fn paused_events_are_counted_and_the_state_is_restored() {
    let mut stats = None;
    let recording = record(|handle| {
        let pool = pool(handle, 0);
        let first = pool.alloc_zeros::<u8>(1000).expect("the device is large enough");
        let stays = pool.alloc_zeros::<u8>(2000).expect("the device is large enough");
        handle.flush();
        pool.set_recording(false);
        drop(first);
        let unseen = pool.alloc_zeros::<u8>(3 * MIB as usize).expect("the device is large enough");
        pool.set_recording(true);
        let last = pool.alloc_zeros::<u8>(5000).expect("the device is large enough");
        stats = Some(pool.stats());
        std::mem::forget((stays, unseen, last));
    });
    // Two events for the free of `first`, one for the new segment and one for its block.
    assert_eq!(recording.lost_events(), 4);
    let stats = stats.expect("the program ran");
    let counters = recording.end_state().device(DeviceId(0)).expect("the device has events").counters();
    assert_eq!(counters.allocated, stats.allocated_bytes.all.current);
    assert_eq!(counters.reserved, stats.reserved_bytes.all.current);
    assert_eq!(counters.requested, stats.requested_bytes.all.current);
    assert_eq!(sites(&recording, 0).len(), 3);
}

#[test]
fn pause_without_events_leaves_no_gap() {
    let recording = record(|handle| {
        let pool = pool(handle, 0);
        pool.set_recording(false);
        pool.set_recording(true);
        drop(pool.alloc_zeros::<u8>(1000).expect("the device is large enough"));
    });
    assert_eq!(recording.lost_events(), 0);
}

#[test]
fn call_stacks_are_recorded_when_enabled() {
    #[inline(never)]
    fn allocating_function(pool: &HostPool) {
        std::mem::forget(pool.alloc_zeros::<u8>(1000).expect("the device is large enough"));
    }

    let recording = record(|handle| {
        let pool = pool(handle, 0);
        pool.record_native_stacks(16);
        allocating_function(&pool);
        pool.record_native_stacks(0);
        std::mem::forget(pool.alloc_zeros::<u8>(2000).expect("the device is large enough"));
    });
    let (found, definitions) = (sites(&recording, 0), recording.definitions());
    let names = |site: &Site| -> Vec<String> {
        definitions.stack(site.stack).map(|frame| definitions.string(frame.function).to_owned()).collect()
    };
    let (deep, shallow) = (names(&found[0]), names(&found[1]));
    if deep.iter().all(|name| name.starts_with("0x")) {
        // This executable has no symbols.
        assert!(deep.len() > 1 && deep.len() <= 16);
        return;
    }
    assert!(deep.len() > 1 && deep.len() <= 16 && deep[0].ends_with("allocating_function"), "{deep:?}");
    assert_eq!(shallow, [""]);
}
