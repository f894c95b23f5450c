//! The driver's memory samples are available at every moment and over every time slice.

use proptest::prelude::*;
use vramscope_trace::{
    Chunk, ChunkKind, DeviceId, Encoder, Event, EventKind, MemorySample, MemoryState, Recording, RecordingInfo,
    SampleColumn, Sink, UsedMemoryPeaks,
};

use crate::common::{Random, program};

/// Returns events of a program on two devices; one event in `every` is a memory sample.
fn sampled(events: usize, seed: u64, every: u64) -> Vec<Event> {
    let mut random = Random(seed | 1);
    let mut events = program(events, seed);
    for event in &mut events[2..] {
        if random.below(every) == 0 {
            // Few different values, so that samples often repeat.
            let [used_by_context, used_by_others, free] = [1, 2, 3].map(|unit| (unit << 30) + random.below(3));
            event.kind = EventKind::MemorySample { used_by_context, used_by_others, free };
        }
    }
    events
}

fn encode(events: &[Event]) -> Vec<Chunk> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    events.iter().for_each(|event| encoder.event(event));
    encoder.flush();
    encoder.take_output()
}

fn open<'a>(chunks: impl IntoIterator<Item = &'a Chunk>) -> Recording {
    let mut recording = Recording::new();
    for chunk in chunks {
        recording.push(&chunk.bytes).expect("the encoder wrote valid chunks");
    }
    recording
}

fn sample(state: &MemoryState, device: DeviceId) -> Option<MemorySample> {
    state.device(device)?.sample()
}

/// Checks every slice of a time range against the states in it.
fn check(events: &[Event], recording: &Recording, (from, to): (u64, u64), width: usize) {
    let device = DeviceId(1);
    let columns = recording.series(device).expect("the device has events").samples(from, to, width);
    assert_eq!(columns.len(), width);
    let mut state = MemoryState::default();
    let mut rest = events.iter().peekable();
    while let Some(event) = rest.next_if(|event| event.time_ns <= from) {
        state.apply(event);
    }
    for (index, column) in columns.iter().enumerate() {
        let slice_end = from + (to - from) * (index as u64 + 1) / width as u64;
        let mut samples: Vec<MemorySample> = sample(&state, device).into_iter().collect();
        while let Some(event) = rest.next_if(|event| event.time_ns <= slice_end) {
            state.apply(event);
            samples.extend(sample(&state, device));
        }
        let each = |pick: fn(&MemorySample) -> u64| {
            let values = || samples.iter().map(pick);
            values().min().zip(values().max()).unwrap_or_default()
        };
        let (context, others, free) =
            (each(|one| one.used_by_context), each(|one| one.used_by_others), each(|one| one.free));
        let expected = samples.last().map(|&last| SampleColumn {
            last,
            min: MemorySample { used_by_context: context.0, used_by_others: others.0, free: free.0 },
            max: MemorySample { used_by_context: context.1, used_by_others: others.1, free: free.1 },
        });
        assert_eq!(*column, expected, "slice {index}");
    }
}

fn used_memory_peaks(events: &[Event], device: DeviceId) -> Option<UsedMemoryPeaks> {
    let mut state = MemoryState::default();
    let mut peaks = None::<UsedMemoryPeaks>;
    for event in events {
        state.apply(event);
        let Some((device, sample)) = state.device(device).and_then(|device| Some((device, device.sample()?))) else {
            continue;
        };
        let by_process = device.counters().reserved + sample.used_by_context;
        let peaks = peaks.get_or_insert_default();
        peaks.by_process = peaks.by_process.max(by_process);
        peaks.by_all_processes = peaks.by_all_processes.max(by_process + sample.used_by_others);
    }
    peaks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn sample_columns_match_the_samples(
        count in 2..5000usize, seed: u64, every in 1..500u64, width in 1..400usize, cut in (0..=100u64, 0..=100u64),
    ) {
        let events = sampled(count, seed, every);
        let recording = open(&encode(&events));
        let end = recording.end_ns();
        check(&events, &recording, (end * cut.0.min(cut.1) / 100, end * cut.0.max(cut.1) / 100), width);
        for device in [0, 1].map(DeviceId) {
            let peaks = recording.series(device).and_then(|series| series.used_memory_peaks());
            prop_assert_eq!(peaks, used_memory_peaks(&events, device));
        }
    }
}

#[test]
fn late_viewer_knows_the_last_sample() {
    let events = sampled(40_000, 3, 50);
    let chunks = encode(&events);
    let state =
        chunks.iter().rposition(|chunk| chunk.kind == ChunkKind::State).expect("the recording has a full state");
    let header = chunks.iter().filter(|chunk| chunk.kind == ChunkKind::Header);
    let late_viewer = open(header.chain(&chunks[state..]));
    assert!(late_viewer.first_event() > 0);
    let (start, end) = (late_viewer.start_ns(), late_viewer.end_ns());
    check(&events, &late_viewer, (start, end), 300);
}

#[test]
fn recording_without_samples_has_no_sample_columns() {
    let recording = open(&encode(&program(500, 1)));
    let series = recording.series(DeviceId(0)).expect("the device has events");
    assert_eq!(series.used_memory_peaks(), None);
    assert!(series.samples(0, recording.end_ns(), 50).iter().all(Option::is_none));
}
