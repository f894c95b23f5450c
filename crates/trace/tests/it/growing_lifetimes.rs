//! Lifetimes that are queried while they grow, their row numbers, and building them in steps.

use proptest::prelude::*;
use vramscope_trace::{
    Allocation, DeviceLifetimes, Encoder, Event, EventKind, Lifetimes, LifetimesBuilder, LifetimesReader, MemoryState,
    Recording, RecordingInfo, RecordingOpener, Replay, RowChange, Sink, SiteId,
};

use crate::common::{Random, any_event, program};
use crate::lifetimes::{DEVICE, allocation_list, build, check, varied_program};

/// Checks row numbers, columns, `find` and the list of changes against all allocations.
fn check_rows(index: &DeviceLifetimes, random: &mut Random, last: u64) -> Result<(), TestCaseError> {
    let rows: Vec<(u32, Allocation)> = index.rows(0..u32::MAX).collect();
    prop_assert_eq!(rows.iter().map(|row| row.1).collect::<Vec<_>>(), index.iter().collect::<Vec<_>>());
    prop_assert!(rows.is_sorted_by(|one, next| one.0 < next.0));
    prop_assert_eq!(index.row_end(), rows.last().map_or(0, |last| last.0 + 1));
    let origins: Vec<_> = index.origins().collect();
    let numbers = 0..index.row_end() + 2000;
    prop_assert_eq!(numbers.clone().filter_map(|row| Some((row, index.row(row)?))).collect::<Vec<_>>(), rows.clone());
    for row in numbers.chain([1 << 31, u32::MAX]) {
        let (one, times) = (index.row(row), index.row_times(row));
        prop_assert_eq!(index.address_of_row(row), one.map(|one| one.address));
        prop_assert_eq!(index.index_of_row(row), rows.binary_search_by_key(&row, |row| row.0).ok());
        let values = |one: Allocation| {
            ((one.size, one.requested), (one.site, one.stream, one.pool), (one.first_moment, one.start_observed))
        };
        let times_values = times.map(|times| {
            let origin = origins[times.origin as usize];
            let moments = (times.first_moment, times.start_observed);
            ((times.size, times.requested), (origin.site, origin.stream, origin.pool), moments)
        });
        prop_assert_eq!(times_values, one.map(values));
        let ends = times.map(|times| (times.row, times.allocated_until, times.active_until));
        prop_assert_eq!(ends, one.map(|one| (row, one.allocated_until, one.active_until)));
    }
    for _ in 0..8 {
        let [a, b] = [(); 2].map(|()| random.below(u64::from(index.row_end()) + 3) as u32);
        let range = a.min(b)..a.max(b);
        let inside: Vec<_> = rows.iter().copied().filter(|row| range.contains(&row.0)).collect();
        prop_assert_eq!(index.rows(range.clone()).collect::<Vec<_>>(), inside.clone());
        let mut visited = Vec::new();
        index.for_each_row(range, |row| visited.push(Some(row)));
        prop_assert_eq!(visited, inside.iter().map(|row| index.row_times(row.0)).collect::<Vec<_>>());

        let [a, b] = [(); 2].map(|()| random.below(last + 2));
        let (from, to) = (a.min(b), a.max(b));
        let started: Vec<_> = rows.iter().filter(|row| from < row.1.first_moment && row.1.first_moment <= to).collect();
        prop_assert_eq!(index.rows(index.rows_started_in(from, to)).count(), started.len());
        if let Some(&&(row, one)) = started.get(random.below(started.len().max(1) as u64) as usize) {
            let inside = one.address + random.below(one.size);
            prop_assert_eq!(index.find(inside, one.first_moment), Some((row, one)));
            let end = one.active_until.map(|until| index.find(one.address, until));
            prop_assert!(end.flatten().is_none_or(|(_, found)| found.first_moment > one.first_moment));
        }
        check_changes(index, from, to)?;
    }
    Ok(())
}

/// Checks that the changes between two moments lead from the active allocations of the first to
/// those of the second.
fn check_changes(index: &DeviceLifetimes, after: u64, to: u64) -> Result<(), TestCaseError> {
    let rows_at = |moment: u64| {
        let mut rows: Vec<u32> = index.live_rows_at(moment).collect();
        rows.sort_unstable();
        rows
    };
    let changes: Vec<RowChange> = index.changes(after, to).into_iter().flatten().collect();
    let all: Vec<RowChange> = index.all_changes().into_iter().flatten().collect();
    let between = all.iter().copied().filter(|change| after < change.moment && change.moment <= to);
    prop_assert_eq!(&changes, &between.collect::<Vec<_>>());
    prop_assert!(all.is_sorted_by_key(|change| change.moment));
    let mut live = rows_at(after);
    for change in changes {
        match live.binary_search(&change.row) {
            Err(at) if change.is_start => live.insert(at, change.row),
            Ok(at) if !change.is_start => drop(live.remove(at)),
            _ => prop_assert!(false, "contradictory change {change:?}"),
        }
        let one = index.row_times(change.row).expect("the row exists");
        let moment = if change.is_start { Some(one.first_moment) } else { one.active_until };
        prop_assert_eq!((moment, one.size, one.origin), (Some(change.moment), change.size, change.origin));
    }
    prop_assert_eq!(live, rows_at(to));
    Ok(())
}

/// Returns a recording of the events, without the events whose index is in `lost`.
fn record(events: &[Event], lost: &std::ops::Range<usize>) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let mut state = MemoryState::default();
    for (index, event) in events.iter().enumerate() {
        if !lost.contains(&index) {
            if index == lost.end && !lost.is_empty() {
                encoder.skip_to(state.event());
                encoder.replace_state(&state);
            }
            encoder.event(event);
        }
        state.apply(event);
        if index % 1700 == 0 {
            encoder.flush();
        }
    }
    if lost.end >= events.len() && !lost.is_empty() {
        encoder.skip_to(state.event());
        encoder.replace_state(&state);
    }
    encoder.flush();
    encoder.take_output().into_iter().map(|chunk| chunk.bytes).collect()
}

/// Asserts that a reader has the lifetimes that one pass over the recording gives.
fn assert_complete(reader: &LifetimesReader, recording: &Recording) {
    assert!(reader.is_at_end(recording) && reader.moment() == recording.end_event());
    let expected = Lifetimes::from_recording(recording).expect("the recording can be read");
    assert_eq!(reader.lifetimes().devices().len(), expected.devices().len());
    for (id, expected) in expected.devices() {
        let actual = reader.lifetimes().device(id).expect("the device has events");
        assert!(actual.iter().eq(expected.iter()), "{id:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn queries_while_building_match_the_events_so_far(
        count in 0..20_000usize, seed: u64, slots in prop_oneof![1..40u64, 40..3000u64], cut in 0..=100usize,
    ) {
        let events = varied_program(count, seed, slots);
        let (before, events) = events.split_at(count * cut / 200);
        let mut start = MemoryState::default();
        before.iter().for_each(|event| start.apply(event));
        let mut builder = LifetimesBuilder::with_changes();
        builder.replace_state(&start);
        let mut random = Random(seed | 1);
        let mut added = 0;
        while added < events.len() {
            let next = (added + 1 + random.below(9000) as usize).min(events.len());
            for (index, event) in (start.event()..).zip(events).take(next).skip(added) {
                builder.event(index, event);
            }
            added = next;
            let all = allocation_list(&start, &events[..added], DEVICE);
            let last = start.event() + added as u64;
            match builder.lifetimes().device(DEVICE) {
                Some(index) => {
                    check(index, &all, &mut random, last)?;
                    check_rows(index, &mut random, last)?;
                }
                None => prop_assert!(all.is_empty()),
            }
        }
        let lifetimes = builder.finish();
        if let Some(index) = lifetimes.device(DEVICE) {
            check_rows(index, &mut random, start.event() + events.len() as u64)?;
        }
    }

    #[test]
    fn changes_of_inconsistent_events_follow_each_other(
        steps in prop::collection::vec((any_event(), 0..3u64, prop::bool::weighted(0.05)), 0..300),
    ) {
        let mut state = MemoryState::default();
        let mut builder = LifetimesBuilder::with_changes();
        let mut number = 0;
        for (event, skip, has_state) in &steps {
            builder.event(number, event);
            state.apply(event);
            if *has_state {
                builder.replace_state(&state);
            }
            number += skip;
        }
        for (_, index) in builder.lifetimes().devices() {
            for (after, to) in [(0, u64::MAX), (number / 3, number / 2), (number / 2, u64::MAX)] {
                check_changes(index, after, to)?;
            }
            for address in [0, 512, u64::MAX] {
                let found = index.find(address, number);
                prop_assert!(found.is_none_or(|(row, one)| index.row(row) == Some(one) && one.is_active_at(number)));
            }
        }
    }

    #[test]
    fn steps_over_a_growing_recording_equal_one_pass(
        count in 0..30_000usize, seed: u64, lost_from in 0..40_000usize, lost_count in 0..5000usize,
    ) {
        let mut random = Random(seed | 1);
        let events = program(count, seed);
        let lost = lost_from.min(events.len())..(lost_from + lost_count).min(events.len());
        let mut recording = Recording::new();
        let mut reader = LifetimesReader::with_changes();
        let mut moments = Vec::new();
        for chunk in record(&events, &lost) {
            recording.push(&chunk).expect("a valid recording");
            if random.below(3) == 0 {
                let max_events = random.below(40_000);
                let added = reader.step(&recording, max_events, |moment, ns, _| moments.push((moment, ns)));
                prop_assert!(added.expect("the recording can be read") < max_events + 16_384);
            }
            if random.below(8) == 0 && reader.is_at_end(&recording) {
                assert_complete(&reader, &recording);
            }
        }
        while !reader.is_at_end(&recording) {
            reader.step(&recording, 1, |moment, ns, _| moments.push((moment, ns))).expect("the recording can be read");
        }
        assert_complete(&reader, &recording);
        // Every moment that the recording has is visited once, with the time of its state.
        let expected = (0..=recording.end_event()).filter(|&moment| {
            let follows_event = moment > 0 && !lost.contains(&(moment as usize - 1));
            follows_event || moment == 0 || moment == lost.end as u64
        });
        prop_assert!(moments.iter().map(|moment| moment.0).eq(expected));
        let mut replay = Replay::new();
        for &(moment, time_ns) in moments.iter().skip(1).step_by(997) {
            prop_assert_eq!(replay.seek(&recording, moment).expect("it can be read").time_ns(), time_ns);
        }
    }
}

#[test]
fn recording_opened_by_its_index_is_loaded_on_demand() {
    let events = program(200_000, 3);
    let mut file = record(&events, &(90_000..95_500)).concat();
    let mut whole = Recording::new();
    whole.push(&file).expect("a valid recording");
    file.extend(whole.index().into_iter().flat_map(|chunk| chunk.bytes));
    let mut opener = RecordingOpener::new(file.len() as u64);
    while let Some(range) = opener.wanted_range() {
        opener.supply(range.start, &file[range.start as usize..range.end as usize]);
    }
    let mut recording = opener.finish().expect("the file has an index");
    assert!(Lifetimes::from_recording(&recording).is_err(), "nothing is loaded");

    let mut reader = LifetimesReader::new();
    let mut fetches = 0;
    while !reader.is_at_end(&recording) {
        reader.step(&recording, 20_000, |_, _, _| {}).expect("missing chunks are no error");
        let missing = reader.missing(&recording, 30_000);
        assert!(missing.iter().skip(1).map(|range| range.end - range.start).sum::<u64>() < 60_000);
        for range in missing {
            let bytes = &file[range.start as usize..range.end as usize];
            recording.supply(range.start, bytes).expect("the chunk begins there");
            fetches += 1;
        }
    }
    assert!(fetches > 10);
    let expected = Lifetimes::from_recording(&whole).expect("the recording can be read");
    for (id, expected) in expected.devices() {
        let actual = reader.lifetimes().device(id).expect("the device has events");
        assert!(actual.len() > 10_000 && actual.iter().eq(expected.iter()));
    }
}

#[test]
fn blocks_of_the_first_full_state_are_known_before_any_event() {
    let mut state = MemoryState::default();
    program(3000, 5).iter().for_each(|event| state.apply(event));
    let mut encoder = Encoder::new(&RecordingInfo::default());
    encoder.flush();
    let mut recording = Recording::new();
    let push = |recording: &mut Recording, encoder: &mut Encoder| {
        encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid recording"));
    };
    push(&mut recording, &mut encoder);
    let mut reader = LifetimesReader::new();
    assert_eq!(reader.step(&recording, 100, |_, _, _| {}).expect("nothing to read"), 0);
    assert!(reader.is_at_end(&recording) && reader.first_moment().is_none());

    encoder.skip_to(state.event());
    encoder.replace_state(&state);
    encoder.flush();
    push(&mut recording, &mut encoder);
    assert!(!reader.is_at_end(&recording));
    assert_eq!(reader.step(&recording, 100, |_, _, _| {}).expect("it can be read"), 0);
    assert_eq!(reader.first_moment(), Some(state.event()));
    let index = reader.lifetimes().device(DEVICE).expect("the state has the device");
    assert_eq!(index.len(), state.device(DEVICE).map_or(0, |device| device.blocks().len()));
    assert!(index.len() > 100 && index.iter().all(|one| !one.start_observed));
    assert!(index.changes(0, u64::MAX).is_none(), "changes are not kept");
}

#[test]
fn summaries_of_old_groups_follow_late_ends() {
    let allocated = |address: u64| EventKind::BlockAllocated {
        address,
        size: 512,
        requested: 512,
        stream: Default::default(),
        pool: Default::default(),
        site: SiteId(0),
    };
    let mut builder = LifetimesBuilder::new();
    let add = |builder: &mut LifetimesBuilder, index: u64, kind: EventKind| {
        builder.event(index, &Event { device: DEVICE, time_ns: index, kind });
    };
    (0..3000).for_each(|index| add(&mut builder, index, allocated(index << 10)));
    let survivors = |builder: &LifetimesBuilder, at: u64| {
        builder.lifetimes().device(DEVICE).expect("it has events").survivors(0..3000, at).count()
    };
    assert_eq!(survivors(&builder, u64::MAX), 3000);
    for index in 0..3000 {
        add(&mut builder, 3000 + index, EventKind::FreeCompleted { address: index << 10, site: SiteId(0) });
        if index % 500 == 7 {
            assert_eq!(survivors(&builder, u64::MAX), 2999 - index as usize);
            assert_eq!(survivors(&builder, 3000 + index), 3000 - index as usize);
        }
    }
    assert_eq!(survivors(&builder, u64::MAX), 0);
}

#[test]
fn index_takes_at_most_24_bytes_per_allocation() {
    let lifetimes = build(&MemoryState::default(), &program(600_000, 5));
    let count: usize = lifetimes.devices().map(|(_, index)| index.len()).sum();
    let bytes = lifetimes.memory_bytes() as f64 / count as f64;
    assert!(count > 190_000 && bytes <= 24.0, "{bytes} bytes for each of {count}");
}
