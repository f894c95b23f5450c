//! The placement of recorded requests: valid, separate for each stream, and close to the peak.

use vramscope_insight::history::History;
use vramscope_insight::packing::{Buffer, DevicePacker, PackingState, check_placement};
use vramscope_trace::Recording;

use crate::recordings::{recordings_in, snapshots};

/// Most steps for each device, and steps between two looks at the placement.
const STEPS: u64 = 1_000_000_000;
const TURN_STEPS: u64 = 5_000_000;

/// Recordings of random allocations, without the pattern of a program.
const RANDOM: [&str; 2] = ["frag_a", "ring"];

/// Packs each device of a recording until its placement is at most `percent` of the lower bound
/// (the peaks of all streams and pools, added up), and checks it. Returns the number of devices.
fn pack(name: &str, recording: &Recording, percent: u64) -> usize {
    let mut history = History::new();
    while !history.extend(recording, 100_000).expect("the recording is complete").is_complete {}
    for (device, lifetimes) in history.all_lifetimes().devices() {
        let mut packer = DevicePacker::new(lifetimes).expect("the requests are valid");
        let is_low = |state: PackingState| state.height_bytes * 100 <= state.lower_bound_bytes * percent;
        let mut state = packer.state();
        for _ in 0..STEPS / TURN_STEPS {
            if is_low(state) {
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
        // Streams and pools share no memory, not even one after another.
        let forever: Vec<Buffer> = packer
            .arenas()
            .map(|(key, state)| {
                let own = placement.iter().filter(|placed| placed.key == key);
                let low = own.clone().map(|placed| placed.offset).min().unwrap_or(0);
                let high = own.map(|placed| placed.offset + placed.buffer.size).max().unwrap_or(0);
                assert!(high - low <= state.height_bytes, "{name}: {device}: {key:?}");
                Buffer { lower: low, upper: high.max(low + 1), size: 1 }
            })
            .collect();
        let same_offset = vec![0; forever.len()];
        assert!(check_placement(&forever, &same_offset).is_ok(), "{name}: {device}: two arenas share memory");
        let reserved = recording.series(device).map_or(0, |series| series.peak_reserved().bytes);
        assert!(state.peak_live_bytes <= state.lower_bound_bytes && state.peak_live_bytes <= reserved, "{name}");
    }
    history.all_lifetimes().devices().len()
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
