//! The placement of recorded requests: valid, and close to the peak.

use vramscope_insight::packing::{Buffer, DevicePacker, PackingState, PlacedRequest, check_placement};
use vramscope_pool::Settings;
use vramscope_pool::rerun::{History, Workload};
use vramscope_trace::{MempoolId, Recording};

use crate::recordings::{recordings_in, snapshots};

/// Maximum number of steps for each device.
const STEPS: u64 = 1_000_000_000;
/// Number of steps between two checks of the placement.
const TURN_STEPS: u64 = 5_000_000;

/// Recordings of random allocations, without the pattern of a program.
const RANDOM: [&str; 3] = ["frag_a", "ring", "streams"];

/// Packs each device of a recording until its placement is at most `percent` of the lower bound or
/// proven to be the lowest, and checks it. Returns the number of devices.
fn pack(name: &str, recording: &Recording, percent: u64) -> usize {
    let histories = History::from_recording(recording).expect("the recording is complete");
    for history in &histories {
        let (requests, device) = (history.requests(), history.device());
        let workload = Workload::new(history.clone(), &Settings::default()).expect("the start state is valid");
        assert_eq!(requests.floor_bytes, workload.floor_bytes, "{name}: {device}");
        let mut packer = DevicePacker::new(requests.clone()).expect("the requests are valid");
        let is_low = |state: PackingState| state.height_bytes * 100 <= state.lower_bound_bytes * percent;
        let mut state = packer.state();
        for _ in 0..STEPS / TURN_STEPS {
            if is_low(state) || state.is_done {
                break;
            }
            state = packer.advance(TURN_STEPS);
        }
        assert!(is_low(state), "{name}: {device}: {state:?}");
        let placement = packer.placement();
        assert_eq!(placement.len(), packer.len());
        let buffers: Vec<Buffer> = placement.iter().map(|placed| placed.buffer).collect();
        let offsets: Vec<u64> = placement.iter().map(|placed| placed.offset).collect();
        assert_eq!(check_placement(&buffers, &offsets), Ok(state.height_bytes), "{name}: {device}");
        check_private_pools(name, &placement);
        let reserved = recording.series(device).map_or(0, |series| series.peak_reserved().bytes);
        if workload.unverified_from.is_none() {
            assert_eq!(workload.recorded.peak_reserved_bytes, reserved, "{name}: {device}");
        }
        assert!(state.peak_live_bytes <= state.lower_bound_bytes && state.peak_live_bytes <= reserved, "{name}");
        assert!(state.height_bytes <= reserved, "{name}: {device}: {state:?}, reserved {reserved}");
    }
    histories.len()
}

/// Checks that no other request gets memory of a private pool before the pool's segments are
/// released.
fn check_private_pools(name: &str, placement: &[PlacedRequest]) {
    let is_private = |placed: &&PlacedRequest| placed.arena.mempool != MempoolId::default();
    for kept in placement.iter().filter(is_private) {
        let other = placement.iter().filter(|placed| placed.arena != kept.arena);
        for other in other.filter(|other| other.buffer.size > 0) {
            let is_later = kept.buffer.lower < other.buffer.upper && other.buffer.lower < kept.arena.released;
            let (end, other_end) = (kept.offset + kept.buffer.size, other.offset + other.buffer.size);
            assert!(!is_later || end <= other.offset || other_end <= kept.offset, "{name}: {kept:?} and {other:?}");
        }
    }
}

#[test]
fn programs_are_within_1_percent_and_random_requests_within_4() {
    let percent = |name: &str| if RANDOM.iter().any(|random| name.starts_with(random)) { 104 } else { 101 };
    let devices: usize = snapshots().map(|(name, recording)| pack(&name, &recording, percent(&name))).sum();
    assert!(devices >= 20, "{devices} devices");
}

#[test]
fn techniques_are_within_1_percent() {
    for (name, recording) in recordings_in("../../examples/pytorch/recordings").step_by(6) {
        pack(&name, &recording, 101);
    }
}
