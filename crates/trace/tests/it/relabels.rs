//! Relabels: blocks whose use becomes known after their allocation.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vramscope_trace::{
    AllocationSums, ChunkKind, DecodedItem, Decoder, DeviceId, Encoder, Event, EventKind, IndexedEncoder, Lifetimes,
    LifetimesReader, MemoryState, PoolKey, RangeCopy, Recording, RecordingInfo, Redactor, Relabel, Replay, Sink,
    SiteId, StreamId,
};

use crate::common::{Random, program};

const DEVICE: DeviceId = DeviceId(0);

/// A step of a recorded program.
#[derive(Clone, Copy, Debug)]
enum Step {
    Event(Event),
    Relabel(Relabel),
    /// The recorder ends the open chunks.
    Flush,
}

/// Returns the steps of a program that relabels one of `every` blocks, some of them unknown.
fn steps(events: usize, seed: u64, every: u64, flush_every: u64) -> Vec<Step> {
    let mut random = Random(seed | 1);
    let mut steps = Vec::new();
    let mut known = Vec::new();
    for event in program(events, seed) {
        if let EventKind::BlockAllocated { address, .. } = event.kind {
            known.push((event.device, address));
        }
        steps.push(Step::Event(event));
        while !known.is_empty() && random.below(every) == 0 {
            let (device, address) = known[random.below(known.len() as u64) as usize];
            let site = SiteId(random.below(12) as u32);
            steps.push(Step::Relabel(Relabel { device, time_ns: event.time_ns, address, site }));
        }
        if random.below(flush_every) == 0 {
            steps.push(Step::Flush);
        }
    }
    steps
}

fn encode(sink: &mut Encoder, steps: &[Step]) -> Vec<u8> {
    for step in steps {
        match step {
            Step::Event(event) => sink.event(event),
            Step::Relabel(relabel) => sink.relabel(relabel),
            Step::Flush => sink.flush(),
        }
    }
    sink.flush();
    sink.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn open(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).unwrap();
    recording.finish().unwrap();
    recording
}

fn open_with_index(bytes: &[u8]) -> Recording {
    let mut indexed = bytes.to_vec();
    indexed.extend(open(bytes).index().into_iter().flat_map(|chunk| chunk.bytes));
    let len = indexed.len() as u64;
    Recording::open_by_index(&(std::sync::Arc::new(indexed) as _), len).unwrap().expect("the index is valid")
}

/// Returns the state after every event, without and with the relabels that follow it.
fn states(steps: &[Step]) -> (Vec<MemoryState>, Vec<MemoryState>) {
    let mut state = MemoryState::default();
    let (mut after_event, mut after_relabels) = (vec![state.clone()], vec![state.clone()]);
    for step in steps {
        match step {
            Step::Event(event) => {
                state.apply(event);
                after_event.push(state.clone());
                after_relabels.push(state.clone());
            }
            Step::Relabel(relabel) => {
                let block = state.device(relabel.device).and_then(|device| device.block(relabel.address));
                // Relabels that change nothing are not recorded.
                if block.is_none_or(|block| block.site != relabel.site) {
                    state.relabel(relabel);
                }
                *after_relabels.last_mut().unwrap() = state.clone();
            }
            Step::Flush => {}
        }
    }
    (after_event, after_relabels)
}

/// Returns the expected state at a moment. A full state may contain the relabels that follow it.
fn expected<'a>(
    recording: &Recording,
    (after_event, after_relabels): &'a (Vec<MemoryState>, Vec<MemoryState>),
    moment: u64,
) -> &'a MemoryState {
    let is_later = moment == recording.end_event() || recording.has_correction_at(moment);
    &(if is_later { after_relabels } else { after_event })[moment as usize]
}

fn block(address: u64, site: u32) -> EventKind {
    let (stream, pool) = (StreamId(0), PoolKey::default());
    EventKind::BlockAllocated { address, size: 512, requested: 400, stream, pool, site: SiteId(site) }
}

fn at(time_ns: u64, kind: EventKind) -> Step {
    Step::Event(Event { device: DEVICE, time_ns, kind })
}

fn label(time_ns: u64, address: u64, site: u32) -> Step {
    Step::Relabel(Relabel { device: DEVICE, time_ns, address, site: SiteId(site) })
}

fn segment() -> Step {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    at(0, EventKind::SegmentAllocated { address: 0, size: 2 << 20, stream, pool, site })
}

fn sites_of(state: &MemoryState) -> Vec<u32> {
    state.device(DEVICE).map(|device| device.blocks().map(|block| block.site.0).collect()).unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn seeking_applies_all_relabels(
        count in 1..12_000usize, seed: u64, every in 1..60u64, flush_every in 1..9_000u64,
    ) {
        let steps = steps(count, seed, every + 1, flush_every);
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let bytes = encode(&mut encoder, &steps);
        let states = states(&steps);
        prop_assert_eq!(encoder.state(), states.1.last().unwrap());
        for recording in [open(&bytes), open_with_index(&bytes)] {
            let end = recording.end_event();
            prop_assert_eq!(end, states.0.len() as u64 - 1);
            let mut random = Random(seed | 1);
            let (mut all, mut one) = (Replay::new(), Replay::of_device(DEVICE).with_checkpoints());
            for target in (0..40).map(|_| random.below(end + 1)).flat_map(|n| [n, n + 1, n.saturating_sub(1)]) {
                let target = target.min(end);
                let expected = expected(&recording, &states, target);
                prop_assert_eq!(all.seek(&recording, target).unwrap(), expected, "moment {}", target);
                prop_assert_eq!(
                    one.seek(&recording, target).unwrap().device(DEVICE), expected.device(DEVICE), "moment {}", target
                );
            }
            prop_assert_eq!(all.seek(&recording, end).unwrap(), states.1.last().unwrap());
            // Playing from the start gives equal states, too.
            let last = end.saturating_sub(1);
            let mut played = Replay::new();
            prop_assert_eq!(played.play(&recording, 0, last).unwrap(), expected(&recording, &states, last));
        }
    }

    #[test]
    fn relabels_are_decoded_in_order(count in 1..3000usize, seed: u64, flush_every in 1..50u64, piece in 1..500usize) {
        let steps = steps(count, seed, 3, flush_every);
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let bytes = encode(&mut encoder, &steps);
        let mut decoder = Decoder::new();
        let mut found = Vec::new();
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(item) = decoder.next_item().unwrap() {
                match item {
                    DecodedItem::Event(event) => found.push((Some(event), None)),
                    DecodedItem::Relabel(relabel) => found.push((None, Some(relabel))),
                    _ => {}
                }
            }
        }
        let mut state = MemoryState::default();
        let mut expected = Vec::new();
        for step in &steps {
            match step {
                Step::Event(event) => {
                    state.apply(event);
                    expected.push((Some(*event), None));
                }
                Step::Relabel(relabel) => {
                    let block = state.device(relabel.device).and_then(|device| device.block(relabel.address));
                    if block.is_none_or(|block| block.site != relabel.site) {
                        state.relabel(relabel);
                        expected.push((None, Some(*relabel)));
                    }
                }
                Step::Flush => {}
            }
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn lifetimes_have_the_site_of_each_moment(
        count in 1..6000usize, seed: u64, every in 1..20u64, flush_every in 1..3000u64,
    ) {
        let steps = steps(count, seed, every + 1, flush_every);
        let bytes = encode(&mut Encoder::new(&RecordingInfo::default()), &steps);
        let recording = open(&bytes);
        let states = states(&steps);
        let mut reader = LifetimesReader::with_changes();
        while !reader.is_at_end(&recording) {
            reader.step(&recording, 500, |_, _, _| {}).unwrap();
        }
        let lifetimes = reader.finish();
        let Some(device) = lifetimes.device(DEVICE) else {
            // A short list of steps may allocate no block of the device.
            let state = states.0.last().unwrap();
            prop_assert!(state.device(DEVICE).is_none_or(|device| device.blocks().len() == 0));
            return Ok(());
        };
        let mut random = Random(seed | 1);
        let end = recording.end_event();
        for moment in (0..20).map(|_| random.below(end + 1)).chain([end]) {
            let memory = expected(&recording, &states, moment).device(DEVICE);
            let mut sums: BTreeMap<SiteId, AllocationSums> = BTreeMap::new();
            for block in memory.into_iter().flat_map(|memory| memory.blocks()) {
                let sum = sums.entry(block.site).or_default();
                sum.count += 1;
                sum.active += block.size;
                sum.requested += block.requested;
                sum.allocated += if block.pending_free { 0 } else { block.size };
            }
            prop_assert_eq!(&device.sums_at(moment, |one| one.site), &sums, "moment {}", moment);
            // The list of changes up to a moment adds up to the same sums.
            let mut active: BTreeMap<SiteId, u64> = BTreeMap::new();
            for change in device.all_changes().unwrap().take_while(|change| change.moment <= moment) {
                let site = device.origin(change.origin).unwrap().site;
                let sum = active.entry(site).or_default();
                *sum = if change.is_start { *sum + change.size } else { *sum - change.size };
            }
            active.retain(|_, sum| *sum > 0);
            prop_assert_eq!(active, sums.into_iter().map(|(site, sum)| (site, sum.active)).collect());
        }
        // Without relabels, there are as many allocations at the same moments.
        let events: Vec<Step> = steps.iter().filter(|step| matches!(step, Step::Event(_))).copied().collect();
        let plain = open(&encode(&mut Encoder::new(&RecordingInfo::default()), &events));
        let plain = Lifetimes::from_recording(&plain).unwrap();
        let times = |lifetimes: &Lifetimes| -> Vec<_> {
            let device = lifetimes.device(DEVICE).unwrap();
            device.iter().map(|one| (one.address, one.first_moment, one.allocated_until, one.active_until)).collect()
        };
        prop_assert_eq!(times(&lifetimes), times(&plain));
    }

    #[test]
    fn copied_part_keeps_all_sites(count in 2..6000usize, seed: u64, flush_every in 1..3000u64, cut in 0..100u64) {
        let steps = steps(count, seed, 9, flush_every);
        let recording = open(&encode(&mut Encoder::new(&RecordingInfo::default()), &steps));
        let end = recording.end_event();
        let (from, to) = (end * cut / 200, end - end * cut / 300);
        let mut copy = RangeCopy::new(&recording, from, to);
        let mut encoder = IndexedEncoder::new(&copy.begin(&recording).unwrap());
        while copy.step(&recording, &mut encoder).unwrap() {}
        let part = open(&encoder.finish().concat());
        // Sites get new numbers, by which equal sites stay equal: all are undefined here.
        let of = |recording: &Recording, moment| {
            let state = Replay::new().seek(recording, moment).unwrap().clone();
            let device = state.device(DEVICE).cloned().unwrap_or_default();
            device.blocks().map(|block| (block.address, block.since_event)).collect::<Vec<_>>()
        };
        for moment in [from, from.midpoint(to), to] {
            prop_assert_eq!(of(&part, moment), of(&recording, moment));
        }
    }
}

#[test]
fn relabel_takes_effect_with_the_next_event() {
    let steps = [segment(), at(1, block(0, 1)), label(2, 0, 2), at(3, block(512, 3)), label(4, 512, 4)];
    let recording = open(&encode(&mut Encoder::new(&RecordingInfo::default()), &steps));
    let sites: Vec<_> = (0..4).map(|moment| sites_of(Replay::new().seek(&recording, moment).unwrap())).collect();
    assert_eq!(sites, [vec![], vec![], vec![1], vec![2, 4]]);
    assert_eq!(recording.events(), 3);
    let lifetimes = Lifetimes::from_recording(&recording).unwrap();
    let last: Vec<u32> = lifetimes.device(DEVICE).unwrap().iter().map(|one| one.site.0).collect();
    assert_eq!(last, [2, 4]);
}

#[test]
fn live_viewer_sees_relabels_before_the_next_event() {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut recording = Recording::new();
    let mut reader = LifetimesReader::new();
    let first = [segment(), at(1, block(0, 1))];
    let parts: [(&[Step], _); 4] = [
        (&first, 1),
        (&[label(2, 0, 5)], 5),
        (&[label(3, 0, 6)], 6),
        (&[at(4, block(512, 1)), label(5, 512, 6), label(5, 9, 9)], 6),
    ];
    for (steps, site) in parts {
        recording.push(&encode(&mut encoder, steps)).unwrap();
        assert_eq!(sites_of(recording.end_state())[0], site);
        assert_eq!(recording.end_state(), encoder.state());
        while !reader.is_at_end(&recording) {
            reader.step(&recording, u64::MAX, |_, _, _| {}).unwrap();
        }
        let device = reader.lifetimes().device(DEVICE).unwrap();
        assert_eq!(device.iter().next().unwrap().site, SiteId(site));
    }
    // Once an event has followed, the moment before it has no relabel that came after it.
    assert_eq!(sites_of(Replay::new().seek(&recording, 2).unwrap()), [1]);
    assert_eq!(recording.end_state().device(DEVICE).unwrap().inconsistencies(), 1);
}

#[test]
fn many_relabels_between_two_events_become_a_full_state() {
    let blocks = (0..40_000u64).map(|index| at(index, block(index * 512, 1)));
    let size = EventKind::SegmentAllocated {
        address: 0,
        size: 1 << 30,
        stream: StreamId(0),
        pool: PoolKey::default(),
        site: SiteId(0),
    };
    let mut steps: Vec<Step> = std::iter::once(at(0, size)).chain(blocks).collect();
    steps.extend((0..40_000u64).map(|index| label(50_000, index * 512, 7)));
    steps.push(at(60_000, block(1 << 29, 1)));
    let bytes = encode(&mut Encoder::new(&RecordingInfo::default()), &steps);
    let recording = open(&bytes);
    let mut all = Replay::new();
    for (moment, relabeled) in [(40_000, 0), (40_001, 40_000), (40_002, 40_000)] {
        let sites = sites_of(all.seek(&recording, moment).unwrap());
        let count = sites.iter().filter(|&&site| site == 7).count();
        // At the moment of the full states, some of the relabels are in effect.
        assert!(if moment == 40_001 { count > 0 } else { count == relabeled }, "{count} at {moment}");
    }
    let played = Replay::new().play(&recording, 0, 40_002).unwrap().clone();
    assert_eq!(&played, recording.end_state());
}

#[test]
fn unchanged_sites_are_not_recorded_and_unknown_blocks_are_counted() {
    let labels = [label(2, 0, 1), label(2, 512, 4), label(2, 0, 3), label(2, 0, 3)];
    let unknown_device = Step::Relabel(Relabel { device: DeviceId(7), time_ns: 2, address: 0, site: SiteId(1) });
    let steps: Vec<Step> = [segment(), at(1, block(0, 1))]
        .into_iter()
        .chain(labels)
        .chain([unknown_device, at(3, block(512, 1))])
        .collect();
    let bytes = encode(&mut Encoder::new(&RecordingInfo::default()), &steps);
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    let mut relabels = 0;
    while let Some(item) = decoder.next_item().unwrap() {
        relabels += usize::from(matches!(item, DecodedItem::Relabel(_)));
    }
    assert_eq!(relabels, 2);
    let recording = open(&bytes);
    assert_eq!(recording.end_state().device(DEVICE).unwrap().inconsistencies(), 1);
    assert!(recording.end_state().device(DeviceId(7)).is_none());
}

#[test]
fn relabeled_blocks_keep_their_site_and_age_in_a_gap() {
    let mut state = MemoryState::default();
    for step in [segment(), at(1, block(0, 1)), at(2, block(512, 1))] {
        let Step::Event(event) = step else { unreachable!() };
        state.apply(&event);
    }
    // The pool knows only the sites of allocations.
    let observed = state.device(DEVICE).unwrap().clone();
    state.relabel(&Relabel { device: DEVICE, time_ns: 3, address: 0, site: SiteId(9) });
    state.device_mut(DEVICE).resync(&observed, 70, 80);
    let blocks: Vec<_> = state.device(DEVICE).unwrap().blocks().map(|block| (block.site.0, block.since_ns)).collect();
    assert_eq!(blocks, [(9, 1), (1, 2)]);
}

#[test]
fn redacted_recordings_keep_relabels() {
    let mut redactor = Redactor::new(&RecordingInfo::default(), String::new(), Encoder::new);
    for step in [segment(), at(1, block(0, 1)), label(2, 0, 2)] {
        match step {
            Step::Event(event) => redactor.pass(&DecodedItem::Event(event)),
            Step::Relabel(relabel) => redactor.pass(&DecodedItem::Relabel(relabel)),
            Step::Flush => {}
        }
    }
    assert_eq!(sites_of(redactor.into_inner().state()), [2]);
}

#[test]
fn some_hundred_relabels_take_a_few_bytes_each() {
    let steps = |has_relabels: bool| -> Vec<Step> {
        let blocks = (0..2000u64).map(|index| at(100 * index, block(index * 512, (index % 40) as u32)));
        let labels = (0..500u64).map(|index| label(200_000 + 70 * index, index * 2048, 50 + (index % 40) as u32));
        let labels = labels.filter(|_| has_relabels);
        std::iter::once(segment()).chain(blocks).chain(labels).chain([at(300_000, block(1 << 20, 1))]).collect()
    };
    let len = |has_relabels| {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        for step in steps(has_relabels) {
            match step {
                Step::Event(event) => encoder.event(&event),
                Step::Relabel(relabel) => encoder.relabel(&relabel),
                Step::Flush => {}
            }
        }
        encoder.flush();
        let chunks = encoder.take_output();
        assert!(chunks.iter().all(|chunk| chunk.kind != ChunkKind::State));
        chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>()
    };
    let each = (len(true) - len(false)) as f64 / 500.0;
    assert!(each < 3.0, "{each} bytes a relabel");
}
