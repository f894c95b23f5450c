//! Exact counters between moments, compared with the state after each event.

use proptest::prelude::*;
use vramscope_trace::{Counters, DeviceId, Encoder, MemoryState, Recording, RecordingInfo, Sink};

use crate::common::program;

proptest! {
    #[test]
    fn exact_columns_between_moments_match_the_events(
        count in 1..5000usize, seed: u64, cuts in proptest::collection::vec(0..=100u64, 2..40),
    ) {
        let events = program(count, seed);
        let mut encoder = Encoder::new(&RecordingInfo::default());
        events.iter().for_each(|event| encoder.event(event));
        encoder.flush();
        let mut recording = Recording::new();
        for chunk in encoder.take_output() {
            recording.push(&chunk.bytes).unwrap();
        }
        recording.finish().unwrap();
        let mut edges: Vec<u64> = cuts.iter().map(|cut| cut * count as u64 / 100).collect();
        edges.sort_unstable();
        for devices in [&[DeviceId(1), DeviceId(0)][..], &[DeviceId(0)]] {
            let found = recording.exact_columns_between(devices, &edges).unwrap();
            prop_assert_eq!(found.len(), devices.len());
            for (&device, columns) in devices.iter().zip(&found) {
                prop_assert_eq!(columns.len(), edges.len() - 1);
                let mut state = MemoryState::default();
                let counters = |state: &MemoryState| {
                    state.device(device).map_or(Counters::default(), |one| one.counters())
                };
                let mut rest = events.iter();
                rest.by_ref().take(edges[0] as usize).for_each(|event| state.apply(event));
                for (pair, column) in edges.windows(2).zip(columns) {
                    let (mut min, mut max) = (counters(&state).allocated, counters(&state).allocated);
                    for event in rest.by_ref().take((pair[1] - pair[0]) as usize) {
                        state.apply(event);
                        min = min.min(counters(&state).allocated);
                        max = max.max(counters(&state).allocated);
                    }
                    prop_assert_eq!((column.event, column.last), (pair[1], counters(&state)));
                    prop_assert_eq!((column.min.allocated, column.max.allocated), (min, max));
                }
            }
        }
    }
}
