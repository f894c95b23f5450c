//! What fuzzing found: recordings that no allocator made, and that once did harm when they were run again.

use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Requests, verify};
use vramscope_trace::{
    DeviceId, Encoder, Info, MemoryState, MempoolId, Pool, PoolKind, Segment, Sink, SiteId, StreamId,
};

use crate::files::recording_of;

/// Runs a history that begins with these segments: `(address, size, expandable)`. None has events, so there is nothing to match.
fn check(segments: &[(u64, u64, bool)]) {
    let mut state = MemoryState::default();
    let pool = Pool { kind: PoolKind::Large, owner: MempoolId(0, 0) };
    for &(address, size, expandable) in segments {
        let (stream, site) = (StreamId(0), SiteId(0));
        let segment = Segment { address, size, stream, pool, expandable, site, since_event: 0 };
        state.device_mut(DeviceId(0)).insert_segment(segment);
    }
    let mut encoder = Encoder::new(&Info::default());
    encoder.full_state(&state);
    for history in History::all_of(&recording_of(&mut encoder)).expect("all chunks are here") {
        assert_eq!(verify(&history, &Settings::default()).matched, 0, "{segments:?}");
        if let Ok(requests) = Requests::of(history, &Settings::default()) {
            let _ = requests.simulate(&Settings::default(), None);
        }
    }
}

#[test]
fn segments_may_be_as_large_as_there_are_addresses() {
    check(&[(512, u64::MAX - 1024, true)]);
    check(&[(512, u64::MAX - 1024, false)]);
    check(&[(512, 2 << 20, true), (u64::MAX - 5000, 4096, true)]);
    check(&[(0, u64::MAX, true)]);
}
