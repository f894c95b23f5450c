use proptest::prelude::*;

use super::*;

impl RecordSink for Vec<Vec<u64>> {
    fn put<const N: usize>(&mut self, record: [u64; N]) -> bool {
        self.push(record.to_vec());
        true
    }
}

/// Unpacks records.
fn unpacked(records: Vec<Vec<u64>>) -> Vec<Record> {
    let (mut words, mut unpacker) = (records.into_iter().flatten(), Unpacker::default());
    std::iter::from_fn(|| unpacker.next(|| words.next())).collect()
}

#[test]
fn relabels_are_between_the_events_of_a_free() {
    let (mut packer, mut records) = (Packer::default(), Vec::new());
    let (device, address, site) = (DeviceId(u16::MAX), u64::MAX, SiteId(7));
    let event = |kind| Event { device, time_ns: 50, kind };
    let request = event(EventKind::FreeRequested { address, site });
    let completion = event(EventKind::FreeCompleted { address, site });
    let relabel = Relabel { device, time_ns: u64::MAX, address, site: SiteId(u32::MAX) };
    assert!(packer.event(&request, Unit::Nanoseconds, &mut records));
    assert!(packer.relabel(&relabel, &mut records));
    assert!(packer.event(&completion, Unit::Nanoseconds, &mut records));
    let [request, completion] = [request, completion].map(|event| Record::Event(event, Unit::Nanoseconds));
    assert_eq!(unpacked(records), [request, Record::Relabel(relabel), completion]);
}

#[test]
fn every_kind_of_event_survives_packing() {
    let (address, size, requested, free) = (u64::MAX, u64::MAX - 1, u64::MAX - 2, u64::MAX - 3);
    let (stream, site) = (StreamId(u64::MAX - 4), SiteId(u32::MAX));
    let pools = [
        PoolKey::default_of(PoolKind::Small),
        PoolKey { kind: PoolKind::Large, owner: MempoolId(u64::MAX - 5, u64::MAX - 6) },
    ];
    let mut kinds = vec![
        EventKind::SegmentFreed { address, size, site },
        EventKind::SegmentUnmapped { address, size, site },
        EventKind::FreeRequested { address, site },
        EventKind::FreeCompleted { address, site },
        EventKind::OutOfMemory { requested, device_free: free, stream, site },
        EventKind::MemorySample { used_by_context: address, used_by_others: size, free },
        EventKind::Gap { lost: address },
    ];
    for pool in pools {
        kinds.push(EventKind::SegmentAllocated { address, size, stream, pool, site });
        kinds.push(EventKind::SegmentMapped { address, size, stream, pool, site });
        kinds.push(EventKind::BlockAllocated { address, size, requested, stream, pool, site });
    }
    let stages = [AnnotationStage::Instant, AnnotationStage::Begin, AnnotationStage::End];
    kinds.extend(stages.map(|stage| EventKind::Mark {
        stage,
        name: StringId(u32::MAX),
        address: u64::MAX,
        site: SiteId(u32::MAX),
    }));
    let (mut packer, mut records, mut expected) = (Packer::default(), Vec::new(), Vec::new());
    for (n, (kind, device)) in kinds.into_iter().zip((0..=u16::MAX).rev()).enumerate() {
        let unit = if n % 2 == 0 { Unit::Ticks } else { Unit::Nanoseconds };
        let event = Event { device: DeviceId(device), time_ns: u64::MAX, kind };
        assert!(packer.event(&event, unit, &mut records) && packer.side_record(&mut records));
        expected.extend([Record::Event(event, unit), Record::Side]);
    }
    assert_eq!(unpacked(records), expected);
}

/// Events with few addresses, sites and times, so that related ones follow each other, and with
/// values at the limits of short fields.
fn events() -> impl Strategy<Value = Vec<Option<(Event, Unit)>>> {
    let pool = (any::<bool>(), 0..2u64).prop_map(|(small, owner)| PoolKey {
        kind: if small { PoolKind::Small } else { PoolKind::Large },
        owner: MempoolId(owner, 0),
    });
    let size = prop_oneof![
        4 => (1..100u64).prop_map(|units| units * SIZE_UNIT),
        1 => (SIZE_END - 2..SIZE_END + 2).prop_map(|units| units * SIZE_UNIT),
        1 => any::<u64>(),
    ];
    let requested = (size, prop_oneof![4 => 0..600u64, 1 => SIZE_END - 2..SIZE_END + 2, 1 => any::<u64>()]);
    let requested = requested.prop_map(|(size, less)| (size, size.wrapping_sub(less)));
    let (address, site, stream) = (0..3u64, (0..2u32).prop_map(SiteId), (0..2u64).prop_map(StreamId));
    let kind = prop_oneof![
        3 => (address.clone(), requested, stream, pool, site.clone()).prop_map(
            |(address, (size, requested), stream, pool, site)| {
                EventKind::BlockAllocated { address, size, requested, stream, pool, site }
            }
        ),
        4 => (address.clone(), site.clone()).prop_map(|(address, site)| EventKind::FreeRequested { address, site }),
        4 => (address.clone(), site.clone()).prop_map(|(address, site)| EventKind::FreeCompleted { address, site }),
        1 => (address, site).prop_map(|(address, site)| EventKind::SegmentFreed { address, size: 512, site }),
    ];
    let passed = prop_oneof![6 => Just(0), 3 => 0..3u64, 1 => SINCE_END - 2..SINCE_END + 2, 1 => any::<u64>()];
    let device = prop_oneof![8 => Just(0), 1 => Just(u16::MAX)];
    let unit = prop_oneof![8 => Just(Unit::Ticks), 1 => Just(Unit::Nanoseconds)];
    let event = prop_oneof![12 => (passed, kind, device, unit).prop_map(Some), 1 => Just(None)];
    proptest::collection::vec(event, 0..40).prop_map(|events| {
        let mut time = 0u64;
        let events = events.into_iter().map(|event| {
            let (passed, kind, device, unit) = event?;
            time = time.wrapping_add(passed);
            Some((Event { device: DeviceId(device), time_ns: time, kind }, unit))
        });
        events.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_events_survive_packing(events in events()) {
        let (mut packer, mut records) = (Packer::default(), Vec::new());
        for event in &events {
            let taken = match event {
                Some((event, unit)) => packer.event(event, *unit, &mut records),
                None => packer.side_record(&mut records),
            };
            prop_assert!(taken);
        }
        let expected = events.into_iter().map(|event| match event {
            Some((event, unit)) => Record::Event(event, unit),
            None => Record::Side,
        });
        prop_assert_eq!(unpacked(records), expected.collect::<Vec<_>>());
    }
}

#[test]
fn lifetime_of_a_block_takes_less_than_a_cache_line() {
    let (mut packer, mut records) = (Packer::default(), Vec::new());
    let (address, size, requested, site) = (0x7f00_0000_0200, 20 << 20, 20_000_000, SiteId(3));
    let (stream, pool) = (StreamId(0x5500_0000_0000), PoolKey::default_of(PoolKind::Large));
    for time_ns in [5_000_000_000_000, 5_000_100_000_000] {
        let event = |kind| Event { device: DeviceId(1), time_ns, kind };
        for kind in [
            EventKind::BlockAllocated { address, size, requested, stream, pool, site },
            EventKind::FreeRequested { address, site },
            EventKind::FreeCompleted { address, site },
        ] {
            packer.event(&event(kind), Unit::Ticks, &mut records);
        }
    }
    // The first is a setting.
    assert_eq!(records.iter().map(Vec::len).collect::<Vec<_>>(), [5, 3, 2, 1, 3, 2, 1]);
}
