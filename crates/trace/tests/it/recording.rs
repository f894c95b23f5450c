//! Encoding, decoding, opening and seeking, however the bytes are split.

use proptest::collection::vec;
use proptest::prelude::*;
use vramscope_trace::{
    AnnotationStage, Chunk, ChunkKind, Counters, DecodedItem, Decoder, Definition, DeviceId, Encoder, Event, EventKind,
    MemoryState, PoolKey, PoolKind, Recording, RecordingInfo, Replay, Segment, Sink, SiteId, StreamId, StringId,
    digest,
};

use crate::common::{Random, SinkCall, any_definition, any_sink_call, chunk, column, program, replay_calls, varint};

fn info() -> RecordingInfo {
    RecordingInfo { source: "test".into(), ..RecordingInfo::default() }
}

fn encode(calls: &[SinkCall]) -> Vec<u8> {
    let mut encoder = Encoder::new(&info());
    replay_calls(&mut encoder, calls);
    encoder.flush();
    encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
}

fn encode_events(events: &[Event]) -> Vec<u8> {
    encode(&events.iter().copied().map(SinkCall::Event).collect::<Vec<_>>())
}

/// Decodes bytes that are split into pieces of the given lengths, repeatedly.
fn decode(bytes: &[u8], pieces: &[usize]) -> Vec<DecodedItem> {
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

/// Returns the bytes for a viewer that joins now: header, definitions and the newest full state.
fn late_viewer(chunks: &[Chunk]) -> Vec<u8> {
    let definitions = chunks.iter().filter(|chunk| matches!(chunk.kind, ChunkKind::Header | ChunkKind::Definitions));
    let state = chunks.iter().rfind(|chunk| chunk.kind == ChunkKind::State);
    definitions.chain(state).flat_map(|chunk| chunk.bytes.clone()).collect()
}

fn open(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).unwrap();
    recording.finish().unwrap();
    recording
}

/// Returns the item that a decoder should return for a call of a sink.
fn item_of(call: &SinkCall) -> DecodedItem {
    match call {
        SinkCall::Event(event) => DecodedItem::Event(*event),
        SinkCall::Define(definition) => DecodedItem::Define(definition.clone()),
        SinkCall::Annotation(annotation) => DecodedItem::Annotation(*annotation),
        SinkCall::Relabel(relabel) => DecodedItem::Relabel(*relabel),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn all_items_are_decoded_however_bytes_are_split(
        calls in vec(any_sink_call(), 0..300), pieces in vec(1..200usize, 1..10),
    ) {
        let bytes = encode(&calls);
        let items = decode(&bytes, &pieces);
        prop_assert_eq!(&items[0], &DecodedItem::Info(info()));
        type Pick = fn(&DecodedItem) -> bool;
        let decoded = |pick: Pick| items.iter().filter(|item| pick(item)).cloned().collect::<Vec<_>>();
        let is_event = |item: &DecodedItem| matches!(item, DecodedItem::Event(_));
        let is_annotation = |item: &DecodedItem| matches!(item, DecodedItem::Annotation(_));
        let expected: Vec<DecodedItem> = calls.iter().map(item_of).collect();
        let select = |pick: Pick| expected.iter().filter(|item| pick(item)).cloned().collect::<Vec<_>>();
        prop_assert_eq!(decoded(is_event), select(is_event));
        prop_assert_eq!(decoded(is_annotation), select(is_annotation));
        // Compare each kind of definition by itself, because definitions between two chunks of
        // events are grouped by kind.
        let kind = |item: &DecodedItem| match item {
            DecodedItem::Define(definition) => Some(std::mem::discriminant(definition)),
            _ => None,
        };
        let mut definitions = decoded(|item| matches!(item, DecodedItem::Define(_)));
        let mut expected_definitions = select(|item| matches!(item, DecodedItem::Define(_)));
        while let Some(first_kind) = expected_definitions.first().map(kind) {
            let is_of_kind = |item: &DecodedItem| kind(item) == first_kind;
            let (expected, other_expected): (Vec<_>, Vec<_>) = expected_definitions.into_iter().partition(is_of_kind);
            let (found, others): (Vec<_>, Vec<_>) = definitions.into_iter().partition(is_of_kind);
            prop_assert_eq!(found, expected);
            (expected_definitions, definitions) = (other_expected, others);
        }
        prop_assert_eq!(definitions, vec![]);
    }

    #[test]
    fn full_state_is_decoded(calls in vec(any_sink_call(), 0..200)) {
        let mut encoder = Encoder::new(&info());
        replay_calls(&mut encoder, &calls);
        encoder.flush();
        let state = encoder.state().clone();
        encoder.replace_state(&state);
        let recording = open(&late_viewer(&encoder.take_output()));
        prop_assert_eq!(recording.end_state(), encoder.state());
        prop_assert_eq!(digest(recording.end_state()), digest(encoder.state()));
        prop_assert_eq!(recording.lost_events(), 0);
    }

    #[test]
    fn seeking_equals_applying_all_events(count in 1..60_000usize, seed: u64) {
        let events = program(count, seed);
        let recording = open(&encode_events(&events));
        let mut random = Random(seed | 1);
        let mut targets: Vec<u64> = (0..20).map(|_| random.below(events.len() as u64 + 1)).collect();
        // Also short steps, as playing and stepping cause them.
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
    fn changed_bytes_are_detected(calls in vec(any_sink_call(), 1..50), at: prop::sample::Index, flip in 1..=255u8) {
        let mut bytes = encode(&calls);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let mut recording = Recording::new();
        // The two bytes after the version are unused; every other change must be detected.
        let rejected = recording.push(&bytes).and_then(|()| recording.finish()).is_err();
        prop_assert!(rejected || (10..12).contains(&at));
    }

    #[test]
    fn random_bytes_are_rejected(bytes in vec(any::<u8>(), 0..2000), with_magic: bool) {
        let mut whole = if with_magic { encode(&[])[..12].to_vec() } else { Vec::new() };
        whole.extend(bytes);
        let mut recording = Recording::new();
        let result = recording.push(&whole).and_then(|()| recording.finish());
        prop_assert!(result.is_err());
    }

    #[test]
    fn damage_with_a_valid_checksum_does_not_panic(
        calls in vec(any_sink_call(), 1..50), at: prop::sample::Index, byte: u8,
    ) {
        let mut encoder = Encoder::new(&info());
        replay_calls(&mut encoder, &calls);
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
    fn columns_match_the_events(
        count in 1..5000usize, seed: u64, width in 160..400usize, cut in (0..100u64, 0..100u64),
    ) {
        let events = program(count, seed);
        let recording = open(&encode_events(&events));
        let end = recording.end_ns();
        let (from, to) = (end * cut.0.min(cut.1) / 100, end * cut.0.max(cut.1) / 100);
        let device = DeviceId(1);
        let columns = recording.columns(device, from, to, width);
        prop_assert_eq!(columns.len(), width);
        let mut state = MemoryState::default();
        let mut rest = events.iter().peekable();
        let counters =
            |state: &MemoryState| state.device(device).map_or(Counters::default(), |device| device.counters());
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
        let expected = events.iter().filter(|event| event.time_ns <= time).count() as u64;
        prop_assert_eq!(recording.event_at_time(time), expected);
    }
}

#[test]
fn long_series_keeps_its_extremes() {
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

/// Bursts of 5,007 events, which end in the middle of a bucket, with pauses of 6 columns of 1,000.
#[test]
fn long_pauses_have_exact_columns() {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
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
fn truncated_recording_opens_up_to_the_cut() {
    let events = program(600, 3);
    let mut encoder = Encoder::new(&info());
    let mut bytes = Vec::new();
    let mut whole_at = Vec::new();
    let header_len = encode(&[]).len();
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
        assert_eq!(recording.finish().is_ok(), cut == header_len || whole_at.contains(&cut), "cut at {cut}");
        if let Err(error) = recording.finish() {
            assert!(error.offset <= cut as u64);
        }
    }
}

#[test]
fn gap_is_counted_and_followed_by_a_full_state() {
    let events = program(1000, 5);
    let mut encoder = Encoder::new(&info());
    events[..500].iter().for_each(|event| encoder.event(event));
    // 100 events are lost; a gap and the full state after them are recorded.
    let mut actual_state = MemoryState::default();
    events[..600].iter().for_each(|event| actual_state.apply(event));
    encoder.event(&Event { device: DeviceId(0), time_ns: events[600].time_ns, kind: EventKind::Gap { lost: 100 } });
    encoder.replace_state(&actual_state);
    events[600..].iter().for_each(|event| encoder.event(event));
    encoder.flush();
    let bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let recording = open(&bytes);
    assert_eq!((recording.lost_events(), recording.end_event()), (100, 901));
    events[600..].iter().for_each(|event| actual_state.apply(event));
    let counters = |state: &MemoryState| state.device(DeviceId(0)).map(|device| device.counters());
    assert_eq!(counters(recording.end_state()), counters(&actual_state));
    let mut replay = Replay::new();
    // Seek across the gap from before it, and from a new replay.
    replay.seek(&recording, 450).unwrap();
    assert_eq!(replay.seek(&recording, 700).unwrap(), Replay::new().seek(&recording, 700).unwrap());
}

#[test]
fn late_viewer_and_lagging_viewer_reach_the_same_end() {
    let events = program(50_000, 11);
    let mut encoder = Encoder::new(&info());
    let mut lagging = Recording::new();
    let mut late = Recording::new();
    let mut sent = Vec::new();
    for (index, event) in events.iter().enumerate() {
        encoder.event(event);
        if index % 1000 == 999 {
            encoder.flush();
            let new_chunks = encoder.take_output();
            let bytes: Vec<u8> = new_chunks.iter().flat_map(|chunk| chunk.bytes.clone()).collect();
            sent.extend(new_chunks);
            if index == 29_999 {
                let state = encoder.state().clone();
                encoder.replace_state(&state);
                sent.extend(encoder.take_output());
                late.push(&late_viewer(&sent)).unwrap();
                lagging.push(&late_viewer(&sent)).unwrap();
            } else if index > 29_999 {
                late.push(&bytes).unwrap();
                lagging.push(&bytes).unwrap();
            } else if index < 10_000 {
                lagging.push(&bytes).unwrap();
            }
        }
    }
    assert_eq!((late.first_event(), late.lost_events()), (30_000, 0));
    assert_eq!((lagging.first_event(), lagging.lost_events()), (0, 20_000));
    for recording in [&late, &lagging] {
        assert_eq!(digest(recording.end_state()), digest(encoder.state()));
        assert_eq!(recording.end_event(), 50_000);
    }
    // A moment in a gap leads to the last moment before it.
    assert_eq!(Replay::new().seek(&lagging, 20_000).unwrap().event(), 10_000);
    let mut replay = Replay::new();
    assert_eq!(replay.seek(&lagging, 40_000).unwrap(), Replay::new().seek(&late, 40_000).unwrap());
}

#[test]
fn memory_before_the_first_event_is_included() {
    let mut start = MemoryState::default();
    let pool = PoolKey::default_of(PoolKind::Large);
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
    encoder.replace_state(&start);
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
fn newer_chunk_kinds_are_rejected_or_skipped() {
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
    fn every_stack_is_finite(definitions in vec(any_definition(), 0..60), id: u32) {
        let mut known = vramscope_trace::Definitions::default();
        definitions.into_iter().for_each(|definition| known.define(definition));
        let length = known.stack(vramscope_trace::StackId(id % 64)).count();
        prop_assert!(length <= 60);
    }
}

#[test]
fn chunk_read_returns_the_encoded_chunks() {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    encoder.define(&Definition::String("a name".to_owned()));
    encoder.flush();
    for encoded in encoder.take_output() {
        let with_more = [encoded.bytes.as_slice(), b"and more"].concat();
        assert_eq!(Chunk::read(&with_more, 7), Ok(Some(encoded.clone())));
        for len in 0..encoded.bytes.len() {
            assert_eq!(Chunk::read(&encoded.bytes[..len], 7), Ok(None), "{len} bytes");
        }
        let mut damaged = encoded.bytes.clone();
        damaged[encoded.bytes.len() - 1] ^= 1;
        assert!(Chunk::read(&damaged, 7).is_err());
    }
}

/// Extreme values in a full state and in events.
#[test]
fn extreme_numbers_do_not_overflow() {
    let mut encoder = Encoder::new(&info());
    let event = |kind| Event { device: DeviceId(u16::MAX), time_ns: u64::MAX, kind };
    encoder.event(&event(EventKind::Gap { lost: u64::MAX }));
    encoder.event(&event(EventKind::Gap { lost: u64::MAX }));
    encoder.event(&event(EventKind::SegmentUnmapped { address: u64::MAX, size: u64::MAX, site: SiteId(u32::MAX) }));
    encoder.flush();
    let mut bytes: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    // A full state of a late moment whose device has the largest possible counts.
    let moment = u64::MAX - 10;
    let device: Vec<u8> = [3, u64::MAX, u64::MAX, u64::MAX, 0, 0, 0].into_iter().flat_map(varint).collect();
    let state = [varint(moment), varint(u64::MAX), varint(1), column(0, &device)].concat();
    bytes.extend(chunk(4, moment, 0, &state));
    // Then a free of an unknown block and a failed request: operations, times, allocation ages,
    // older blocks, sites of frees, other events.
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
    assert_eq!((device.events(), device.ooms(), device.inconsistencies()), (u64::MAX, u64::MAX, u64::MAX));
    assert!(recording.columns(DeviceId(3), 0, u64::MAX, 7).len() == 7);
    let error = recording.push(&chunk(3, u64::MAX - 8, 20, &[0; 40])).unwrap_err();
    assert!(error.to_string().contains("above 64 bits"), "{error}");
}

/// Marks in the worst order, on many devices, take time in proportion to their number.
#[test]
fn marks_in_the_worst_order_take_linear_time() {
    let started = std::time::Instant::now();
    let mut encoder = Encoder::new(&info());
    for number in 0..400_000u64 {
        let (stage, name) = (AnnotationStage::Instant, StringId(0));
        let kind = EventKind::Mark { stage, name, address: 0, site: SiteId(0) };
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
    // It took over a minute when marks were inserted one by one and memory was computed per chunk.
    println!("400,000 marks and 50,000 chunks are read after {:?}", started.elapsed());
}
