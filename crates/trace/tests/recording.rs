//! What goes into a recording comes out of it: whole, however it is cut, at every moment.

mod common;

use common::{Random, Told, any_definition, any_told, chunk, column, program, tell, varint};
use proptest::collection::vec;
use proptest::prelude::*;
use vramscope_trace::{
    Chunk, ChunkKind, Counters, Decoder, DeviceId, Encoder, Event, EventKind, Info, Item, MemoryState, Pool, PoolKind,
    Recording, Replay, Segment, Sink, SiteId, StreamId, digest,
};

fn info() -> Info {
    Info { source: "test".into(), ..Info::default() }
}

fn encode(story: &[Told]) -> Vec<u8> {
    let mut encoder = Encoder::new(&info());
    tell(&mut encoder, story);
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn encode_events(events: &[Event]) -> Vec<u8> {
    encode(&events.iter().copied().map(Told::Event).collect::<Vec<_>>())
}

/// Decodes bytes cut into pieces of the given lengths, over and over.
fn decode(bytes: &[u8], pieces: &[usize]) -> Vec<Item> {
    let mut decoder = Decoder::new();
    let mut items = Vec::new();
    let mut rest = bytes;
    for &piece in pieces.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(piece.clamp(1, rest.len()));
        rest = later;
        decoder.push(now);
        while let Some(item) = decoder.next_item().unwrap() {
            items.push(item);
        }
    }
    decoder.finish().unwrap();
    items
}

/// What someone who comes now is given: everything that was defined, and the newest full state.
fn newcomer(chunks: &[Chunk]) -> Vec<u8> {
    let lasting = chunks.iter().filter(|chunk| matches!(chunk.kind, ChunkKind::Head | ChunkKind::Definitions));
    let state = chunks.iter().rfind(|chunk| chunk.kind == ChunkKind::State);
    lasting.chain(state).flat_map(|chunk| chunk.bytes.clone()).collect()
}

fn open(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).unwrap();
    recording.finish().unwrap();
    recording
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn everything_comes_back_however_it_is_cut(story in vec(any_told(), 0..300), pieces in vec(1..200usize, 1..10)) {
        let bytes = encode(&story);
        let items = decode(&bytes, &pieces);
        prop_assert_eq!(&items[0], &Item::Info(info()));
        let of = |pick: fn(&Item) -> bool| items.iter().filter(|item| pick(item)).cloned().collect::<Vec<_>>();
        let told = |pick: fn(&Told) -> Option<Item>| story.iter().filter_map(pick).collect::<Vec<_>>();
        prop_assert_eq!(
            of(|item| matches!(item, Item::Event(_))),
            told(|told| if let Told::Event(event) = told { Some(Item::Event(*event)) } else { None })
        );
        // Of each kind by itself: what comes between two chunks of events comes kind by kind.
        let kind = |item: &Item| if let Item::Define(definition) = item { Some(std::mem::discriminant(definition)) } else { None };
        let mut defined = of(|item| matches!(item, Item::Define(_)));
        let mut told_of = told(|told| if let Told::Define(definition) = told { Some(Item::Define(definition.clone())) } else { None });
        while let Some(of_kind) = told_of.first().map(kind) {
            let (expected, rest): (Vec<_>, Vec<_>) = told_of.into_iter().partition(|item| kind(item) == of_kind);
            let (found, others): (Vec<_>, Vec<_>) = defined.into_iter().partition(|item| kind(item) == of_kind);
            prop_assert_eq!(found, expected);
            (told_of, defined) = (rest, others);
        }
        prop_assert_eq!(defined, vec![]);
        prop_assert_eq!(
            of(|item| matches!(item, Item::Annotation(_))),
            told(|told| if let Told::Annotation(annotation) = told { Some(Item::Annotation(*annotation)) } else { None })
        );
    }

    #[test]
    fn a_state_comes_back(story in vec(any_told(), 0..200)) {
        let mut encoder = Encoder::new(&info());
        tell(&mut encoder, &story);
        encoder.flush();
        let state = encoder.state().clone();
        encoder.full_state(&state);
        let recording = open(&newcomer(&encoder.take_output()));
        prop_assert_eq!(recording.end_state(), encoder.state());
        prop_assert_eq!(digest(recording.end_state()), digest(encoder.state()));
        prop_assert_eq!(recording.lost_events(), 0);
    }

    #[test]
    fn seeking_is_applying(count in 1..60_000usize, seed: u64) {
        let events = program(count, seed);
        let recording = open(&encode_events(&events));
        let mut random = Random(seed | 1);
        let mut targets: Vec<u64> = (0..20).map(|_| random.below(events.len() as u64 + 1)).collect();
        // Short steps too, as playing and stepping make them.
        targets.extend(targets.clone().into_iter().flat_map(|n| [n + 1, n + 5, n.saturating_sub(1)]));
        let mut expected: Vec<u64> = targets.iter().map(|&n| n.min(events.len() as u64)).collect();
        expected.sort_unstable();
        expected.dedup();
        let mut state = MemoryState::default();
        let mut states = std::collections::HashMap::new();
        for number in expected {
            while state.event() < number {
                state.apply(&events[state.event() as usize]);
            }
            states.insert(number, state.clone());
        }
        let mut replay = Replay::new();
        for target in targets {
            let number = target.min(events.len() as u64);
            prop_assert_eq!(replay.seek(&recording, target).unwrap(), &states[&number]);
        }
    }

    #[test]
    fn changed_bytes_are_noticed(story in vec(any_told(), 1..50), at: prop::sample::Index, flip in 1..=255u8) {
        let mut bytes = encode(&story);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let mut recording = Recording::new();
        // The two bytes behind the version are not used; every other change must be seen.
        let refused = recording.push(&bytes).and_then(|()| recording.finish()).is_err();
        prop_assert!(refused || (10..12).contains(&at));
    }

    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..2000), with_magic: bool) {
        let mut whole = if with_magic { encode(&[])[..12].to_vec() } else { Vec::new() };
        whole.extend(bytes);
        let mut recording = Recording::new();
        let result = recording.push(&whole).and_then(|()| recording.finish());
        prop_assert!(result.is_err());
    }

    #[test]
    fn damage_behind_a_right_checksum_is_survived(story in vec(any_told(), 1..50), at: prop::sample::Index, byte: u8) {
        let mut encoder = Encoder::new(&info());
        tell(&mut encoder, &story);
        encoder.flush();
        for chunk in encoder.take_output() {
            let start = if chunk.bytes[0] == 0x89 { 12 } else { 0 };
            let mut bytes = chunk.bytes[start..].to_vec();
            let at = 32 + at.index(bytes.len() - 32);
            bytes[at] = byte;
            let mut hash = xxhash_rust::xxh3::Xxh3::new();
            hash.update(&bytes[..24]);
            hash.update(&bytes[32..]);
            bytes[24..32].copy_from_slice(&hash.digest().to_le_bytes());
            let mut recording = Recording::new();
            let before = encode(&[]);
            let before = if start == 12 { &before[..12] } else { &before };
            let whole: Vec<u8> = before.iter().copied().chain(bytes).collect();
            let _ = recording.push(&whole);
            let _ = Replay::new().seek(&recording, 3);
            let _ = recording.columns(DeviceId(0), 0, 1000, 10);
        }
    }

    #[test]
    fn columns_are_what_happened(count in 1..5000usize, seed: u64, width in 160..400usize, cut in (0..100u64, 0..100u64)) {
        let events = program(count, seed);
        let recording = open(&encode_events(&events));
        let end = recording.end_ns();
        let (from, to) = (end * cut.0.min(cut.1) / 100, end * cut.0.max(cut.1) / 100);
        let device = DeviceId(1);
        let columns = recording.columns(device, from, to, width);
        prop_assert_eq!(columns.len(), width);
        let mut state = MemoryState::default();
        let mut rest = events.iter().peekable();
        let counters = |state: &MemoryState| state.device(device).map_or(Counters::default(), |device| device.counters());
        while let Some(event) = rest.next_if(|event| event.time_ns <= from) {
            state.apply(event);
        }
        for (index, column) in columns.iter().enumerate() {
            let slice_end = from + (to - from) * (index as u64 + 1) / width as u64;
            let (mut min, mut max) = (counters(&state).allocated, counters(&state).allocated);
            while let Some(event) = rest.next_if(|event| event.time_ns <= slice_end) {
                state.apply(event);
                min = min.min(counters(&state).allocated);
                max = max.max(counters(&state).allocated);
            }
            prop_assert_eq!((column.event, column.last), (state.event(), counters(&state)));
            prop_assert_eq!((column.min.allocated, column.max.allocated), (min, max));
        }
    }

    #[test]
    fn moments_are_found_by_time(count in 1..20_000usize, seed: u64, share in 0..=110u64) {
        let events = program(count, seed);
        let recording = open(&encode_events(&events));
        let time = recording.end_ns() * share / 100;
        prop_assert_eq!(recording.event_at_time(time), events.iter().filter(|event| event.time_ns <= time).count() as u64);
    }
}

#[test]
fn a_long_series_keeps_its_extremes() {
    let events = program(300_000, 7);
    let recording = open(&encode_events(&events));
    let series = recording.series(DeviceId(0)).unwrap();
    let (mut state, mut peak) = (MemoryState::default(), (0, 0));
    for event in &events {
        state.apply(event);
        let allocated = state.device(DeviceId(0)).map_or(0, |device| device.counters().allocated);
        peak = if allocated > peak.1 { (state.event(), allocated) } else { peak };
    }
    assert_eq!((series.peak_allocated().event, series.peak_allocated().bytes), peak);
    let columns = series.columns(0, recording.end_ns(), 100);
    assert_eq!(columns.iter().map(|column| column.max.allocated).max(), Some(peak.1));
    assert_eq!(columns.last().map(|column| column.last), state.device(DeviceId(0)).map(|device| device.counters()));
    assert!(columns.is_sorted_by_key(|column| column.event));
}

/// Bursts of 5,007 events, which end in the middle of a bucket of a series, with pauses of 6 of 1,000 columns between them.
#[test]
fn pauses_that_can_be_seen_are_drawn_as_they_were() {
    let (stream, pool, site) = (StreamId(0), Pool::default(), SiteId(0));
    let (column_ns, width) = (1_000_000, 1000);
    let segment = EventKind::SegmentAllocated { address: 0x7000_0000_0000, size: 32 << 20, stream, pool, site };
    let mut events = vec![Event { device: DeviceId(0), time_ns: 0, kind: segment }];
    for burst in 0..8 {
        for number in 0..5007 {
            let address = 0x7000_0000_0000 + number * 4096;
            let kind = match number {
                _ if burst % 2 == 1 => EventKind::FreeCompleted { address, site },
                _ => EventKind::BlockAllocated { address, size: 4096, requested: 4096, stream, pool, site },
            };
            let time_ns = (burst * 125 + number * 119 / 5007) * column_ns + 1;
            events.push(Event { device: DeviceId(0), time_ns, kind });
        }
    }
    let last = EventKind::BlockAllocated { address: 0x7000_0000_0000, size: 512, requested: 512, stream, pool, site };
    events.push(Event { device: DeviceId(0), time_ns: 1000 * column_ns, kind: last });
    let recording = open(&encode_events(&events));
    let columns = recording.columns(DeviceId(0), 0, 1000 * column_ns, width);
    for burst in 0..8_u64 {
        let expected = if burst % 2 == 0 { 5007 * 4096 } else { 0 };
        for column in &columns[burst as usize * 125 + 120..][..4] {
            let allocated = [column.min.allocated, column.last.allocated, column.max.allocated];
            assert_eq!((column.event, allocated), (1 + 5007 * (burst + 1), [expected; 3]), "after burst {burst}");
        }
    }
}

#[test]
fn a_cut_recording_opens_up_to_the_cut() {
    let events = program(600, 3);
    let mut encoder = Encoder::new(&info());
    let mut bytes = Vec::new();
    let mut whole_at = Vec::new();
    let head = encode(&[]).len();
    for part in events.chunks(100) {
        part.iter().for_each(|event| encoder.event(event));
        encoder.flush();
        bytes.extend(encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes));
        whole_at.push(bytes.len());
    }
    for cut in 0..bytes.len() {
        let mut recording = Recording::new();
        recording.push(&bytes[..cut]).unwrap();
        let whole = whole_at.iter().filter(|&&at| at <= cut).count();
        assert_eq!(recording.end_event(), 100 * whole as u64, "cut at {cut}");
        assert_eq!(recording.finish().is_ok(), cut == head || whole_at.contains(&cut), "cut at {cut}");
        if let Err(error) = recording.finish() {
            assert!(error.offset <= cut as u64);
        }
    }
}

#[test]
fn a_gap_is_counted_and_mended() {
    let events = program(1000, 5);
    let mut encoder = Encoder::new(&info());
    events[..500].iter().for_each(|event| encoder.event(event));
    // 100 events are lost; the recorder says so and gives the state behind them.
    let mut truth = MemoryState::default();
    events[..600].iter().for_each(|event| truth.apply(event));
    encoder.event(&Event { device: DeviceId(0), time_ns: events[600].time_ns, kind: EventKind::Gap { lost: 100 } });
    encoder.full_state(&truth);
    events[600..].iter().for_each(|event| encoder.event(event));
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let recording = open(&bytes);
    assert_eq!((recording.lost_events(), recording.end_event()), (100, 901));
    events[600..].iter().for_each(|event| truth.apply(event));
    let counters = |state: &MemoryState| state.device(DeviceId(0)).map(|device| device.counters());
    assert_eq!(counters(recording.end_state()), counters(&truth));
    let mut replay = Replay::new();
    // From before the gap, and from nothing, to a moment behind it.
    replay.seek(&recording, 450).unwrap();
    assert_eq!(replay.seek(&recording, 700).unwrap(), Replay::new().seek(&recording, 700).unwrap());
}

#[test]
fn a_newcomer_and_one_who_missed_some_see_the_same_end() {
    let events = program(50_000, 11);
    let mut encoder = Encoder::new(&info());
    let mut skipped = Recording::new();
    let mut late = Recording::new();
    let mut sent = Vec::new();
    for (index, event) in events.iter().enumerate() {
        encoder.event(event);
        if index % 1000 == 999 {
            encoder.flush();
            let fresh = encoder.take_output();
            let bytes: Vec<u8> = fresh.iter().flat_map(|chunk| chunk.bytes.clone()).collect();
            sent.extend(fresh);
            if index == 29_999 {
                let state = encoder.state().clone();
                encoder.full_state(&state);
                sent.extend(encoder.take_output());
                late.push(&newcomer(&sent)).unwrap();
                skipped.push(&newcomer(&sent)).unwrap();
            } else if index > 29_999 {
                late.push(&bytes).unwrap();
                skipped.push(&bytes).unwrap();
            } else if index < 10_000 {
                skipped.push(&bytes).unwrap();
            }
        }
    }
    assert_eq!((late.first_event(), late.lost_events()), (30_000, 0));
    assert_eq!((skipped.first_event(), skipped.lost_events()), (0, 20_000));
    for recording in [&late, &skipped] {
        assert_eq!(digest(recording.end_state()), digest(encoder.state()));
        assert_eq!(recording.end_event(), 50_000);
    }
    // A moment in the hole is its edge.
    assert_eq!(Replay::new().seek(&skipped, 20_000).unwrap().event(), 10_000);
    let mut replay = Replay::new();
    assert_eq!(replay.seek(&skipped, 40_000).unwrap(), Replay::new().seek(&late, 40_000).unwrap());
}

#[test]
fn what_was_there_before_the_first_event_is_there() {
    let mut start = MemoryState::default();
    let pool = Pool::default_of(PoolKind::Large);
    let segment = Segment {
        address: 4096,
        size: 20 << 20,
        stream: StreamId(0),
        pool,
        expandable: false,
        site: SiteId(0),
        since_event: 0,
    };
    start.device_mut(DeviceId(0)).insert_segment(segment);
    let mut encoder = Encoder::new(&info());
    encoder.full_state(&start);
    let kind = EventKind::SegmentFreed { address: 4096, size: 20 << 20, site: SiteId(0) };
    encoder.event(&Event { device: DeviceId(0), time_ns: 9, kind });
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let recording = open(&bytes);
    let reserved = |event| {
        let mut replay = Replay::new();
        replay.seek(&recording, event).unwrap().device(DeviceId(0)).unwrap().counters().reserved
    };
    assert_eq!((reserved(0), reserved(1)), (20 << 20, 0));
    assert_eq!(recording.series(DeviceId(0)).unwrap().peak_reserved().bytes, 20 << 20);
    assert_eq!(recording.lost_events(), 0);
}

#[test]
fn what_is_newer_is_refused_or_skipped_by_its_kind() {
    let mut bytes = encode(&[]);
    bytes.extend(chunk(0x50, 0, 0, b"hi"));
    open(&bytes);
    let at = bytes.len() as u64;
    bytes.extend(chunk(0x20, 0, 0, b"hi"));
    let error = Recording::new().push(&bytes).unwrap_err();
    assert_eq!(error.offset, at);
    assert!(error.to_string().contains("unknown kind 32"), "{error}");
    let mut future = encode(&[]);
    future[8] = 2;
    let error = Recording::new().push(&future).unwrap_err();
    assert!(error.to_string().contains("version 2"), "{error}");
}

proptest! {
    #[test]
    fn a_stack_always_ends(definitions in vec(any_definition(), 0..60), id: u32) {
        let mut known = vramscope_trace::Definitions::default();
        definitions.into_iter().for_each(|definition| known.define(definition));
        let length = known.stack(vramscope_trace::StackId(id % 64)).count();
        prop_assert!(length <= 60);
    }
}

/// Numbers at the edge of what fits, in a full state and in events.
#[test]
fn extreme_numbers_are_survived() {
    let mut encoder = Encoder::new(&info());
    let event = |kind| Event { device: DeviceId(u16::MAX), time_ns: u64::MAX, kind };
    encoder.event(&event(EventKind::Gap { lost: u64::MAX }));
    encoder.event(&event(EventKind::Gap { lost: u64::MAX }));
    encoder.event(&event(EventKind::SegmentUnmapped { address: u64::MAX, size: u64::MAX, site: SiteId(u32::MAX) }));
    encoder.flush();
    let mut bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    // A full state of a moment far behind, whose device has counted as far as one can.
    let moment = u64::MAX - 10;
    let device: Vec<u8> = [3, u64::MAX, u64::MAX, u64::MAX, 0, 0, 0].into_iter().flat_map(varint).collect();
    let state = [varint(moment), varint(u64::MAX), varint(1), column(0, &device)].concat();
    bytes.extend(chunk(4, moment, 0, &state));
    // Then a free of nothing and a failed request: operations, times, ages, strangers, sites of frees, all other events.
    let columns = [
        column(0, &[2, 4]),
        column(1, &[0, 0]),
        column(7, &[0]),
        column(8, &[3, 0]),
        column(9, &[0]),
        column(11, &[4, 3, 0, 0, 0, 0]),
    ];
    bytes.extend(chunk(3, moment, 2, &[vec![0, 1, 0], columns.concat()].concat()));
    let mut recording = open(&bytes);
    assert_eq!((recording.lost_events(), recording.events()), (u64::MAX, 5));
    let device = recording.end_state().device(DeviceId(3)).unwrap();
    assert_eq!((device.events(), device.ooms(), device.misfits()), (u64::MAX, u64::MAX, u64::MAX));
    assert!(recording.columns(DeviceId(3), 0, u64::MAX, 7).len() == 7);
    let error = recording.push(&chunk(3, u64::MAX - 8, 20, &[0; 40])).unwrap_err();
    assert!(error.to_string().contains("more than 64 bits"), "{error}");
}

/// Marks in the worst order, and many devices, cost no more than their number.
#[test]
fn hostile_orders_take_no_longer() {
    let started = std::time::Instant::now();
    let mut encoder = Encoder::new(&info());
    for number in 0..400_000u64 {
        let kind = EventKind::Mark {
            stage: vramscope_trace::Stage::Instant,
            name: vramscope_trace::StringId(0),
            address: 0,
            site: SiteId(0),
        };
        encoder.event(&Event { device: DeviceId((number % 60_000) as u16), time_ns: 400_000 - number, kind });
    }
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let mut recording = Recording::new();
    recording.push(&bytes).unwrap();
    for _ in 0..50_000 {
        recording.push(&chunk(5, 0, 0, &[1])).unwrap();
    }
    assert!(recording.annotations().is_sorted_by_key(|annotation| annotation.time_ns));
    // It took over a minute when the order was kept mark by mark and memory counted chunk by chunk.
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}
