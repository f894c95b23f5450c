//! What a recording says of pools that share it, that pause it, and that look at the call stack.

use tracing_subscriber::layer::SubscriberExt;
use vramscope_collector::{
    Begin, Category, HostDevice, HostPool, Hub, Outputs, Recorder, RecorderHandle, Scope, ScopeLayer, Settings,
};
use vramscope_trace::{DeviceId, Recording, RecordingInfo, Site};

use crate::MIB;

/// What is recorded while a program runs.
fn recorded(program: impl FnOnce(&RecorderHandle)) -> Recording {
    let hub = Hub::default();
    let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
    let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
    program(&handle);
    recorder.stop();
    let mut recording = Recording::new();
    let mut viewer = hub.viewer(Begin::Oldest);
    loop {
        let taken = viewer.take(usize::MAX);
        if taken.chunks.is_empty() {
            return recording;
        }
        taken.chunks.iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a recording"));
    }
}

fn pool(handle: &RecorderHandle, device: u16) -> HostPool {
    HostPool::recorded(HostDevice::new(64 * MIB).with_number(device), Settings::default(), handle)
}

/// The sites of the blocks that are live at the end, in the order of their sizes.
fn sites(recording: &Recording, device: u16) -> Vec<Site> {
    let state = recording.end_state().device(DeviceId(device)).expect("it has events");
    let mut blocks: Vec<_> = state.blocks().copied().collect();
    blocks.sort_by_key(|block| block.size);
    blocks.iter().map(|block| recording.definitions().site(block.site)).collect()
}

#[track_caller]
fn check_site(recording: &Recording, site: &Site, scope: &str, category: Category) {
    let definitions = recording.definitions();
    assert_eq!((definitions.string(site.scope), site.category), (scope, category));
    let frame = definitions.stack(site.stack).next().expect("a line");
    assert!(definitions.string(frame.file).ends_with("host_pool/recording.rs"));
}

#[test]
fn pools_of_several_devices_share_a_recording() {
    let recording = recorded(|handle| {
        let pools = [0, 1, 2].map(|device| pool(handle, device));
        let _step = Scope::open("step");
        let kept: Vec<_> = pools
            .iter()
            .enumerate()
            .map(|(n, pool)| {
                let _rank = Scope::open_with(&format!("rank{n}"), Category::ALL[n + 1]);
                pool.mark(&format!("begin {n}"));
                pool.alloc_zeros::<u8>(1000 << n).expect("room")
            })
            .collect();
        // It stays in the recording: the pools are gone before their buffers.
        std::mem::forget(kept);
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
    let recording = recorded(|handle| {
        let pool = pool(handle, 0);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(ScopeLayer::new()), || {
            let _step = tracing::info_span!("step").entered();
            let _forward = tracing::info_span!("forward", category = "activation").entered();
            std::mem::forget(pool.alloc_zeros::<u8>(1000).expect("room"));
        });
    });
    check_site(&recording, &sites(&recording, 0)[0], "step/forward", Category::Activation);
}

#[test]
fn paused_events_are_counted_and_the_state_is_restored() {
    let mut stats = None;
    let recording = recorded(|handle| {
        let pool = pool(handle, 0);
        let first = pool.alloc_zeros::<u8>(1000).expect("room");
        let stays = pool.alloc_zeros::<u8>(2000).expect("room");
        handle.flush();
        pool.set_recording(false);
        drop(first);
        let unseen = pool.alloc_zeros::<u8>(3 * MIB as usize).expect("room");
        pool.set_recording(true);
        let last = pool.alloc_zeros::<u8>(5000).expect("room");
        stats = Some(pool.stats());
        std::mem::forget((stays, unseen, last));
    });
    // Asked and freed: 2; a segment and a block: 2.
    assert_eq!(recording.lost_events(), 4);
    let stats = stats.expect("it ran");
    let counters = recording.end_state().device(DeviceId(0)).expect("it has events").counters();
    assert_eq!(counters.allocated, stats.allocated_bytes.all.current);
    assert_eq!(counters.reserved, stats.reserved_bytes.all.current);
    assert_eq!(counters.requested, stats.requested_bytes.all.current);
    assert_eq!(sites(&recording, 0).len(), 3);
}

#[test]
fn pause_without_events_leaves_no_gap() {
    let recording = recorded(|handle| {
        let pool = pool(handle, 0);
        pool.set_recording(false);
        pool.set_recording(true);
        drop(pool.alloc_zeros::<u8>(1000).expect("room"));
    });
    assert_eq!(recording.lost_events(), 0);
}

#[test]
fn call_stacks_are_recorded_when_enabled() {
    #[inline(never)]
    fn a_function_that_asks(pool: &HostPool) {
        std::mem::forget(pool.alloc_zeros::<u8>(1000).expect("room"));
    }

    let recording = recorded(|handle| {
        let pool = pool(handle, 0);
        pool.record_native_stacks(16);
        a_function_that_asks(&pool);
        pool.record_native_stacks(0);
        std::mem::forget(pool.alloc_zeros::<u8>(2000).expect("room"));
    });
    let (found, definitions) = (sites(&recording, 0), recording.definitions());
    let names = |site: &Site| -> Vec<String> {
        definitions.stack(site.stack).map(|frame| definitions.string(frame.function).to_owned()).collect()
    };
    let (deep, shallow) = (names(&found[0]), names(&found[1]));
    if deep.iter().all(|name| name.starts_with("0x")) {
        // This program was stripped of its symbols.
        assert!(deep.len() > 1 && deep.len() <= 16);
        return;
    }
    assert!(deep.len() > 1 && deep.len() <= 16 && deep[0].ends_with("a_function_that_asks"), "{deep:?}");
    assert_eq!(shallow, [""]);
}
