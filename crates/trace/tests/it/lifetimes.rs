//! The lifetime index agrees with a plain list of allocations and with the memory state.

use std::collections::BTreeMap;

use proptest::prelude::*;
use vramscope_trace::{
    Allocation, AllocationSums, Block, DeviceId, DeviceLifetimes, Encoder, Event, EventKind, EventTime, LifetimeChange,
    LifetimeEnding, LifetimeSummary, LifetimeTracker, Lifetimes, LifetimesBuilder, MemoryState, MempoolId, PoolKey,
    PoolKind, Recording, RecordingInfo, Sink, SiteId, StreamId,
};

use crate::common::{Random, any_event, program};

pub(super) const DEVICE: DeviceId = DeviceId(1);

/// Returns the events of a program on two devices with several streams, pools, sizes and kinds of
/// addresses. Some blocks are never freed, some are pending free for long.
pub(super) fn varied_program(events: usize, seed: u64, slots: u64) -> Vec<Event> {
    let mut random = Random(seed | 1);
    let mut live = BTreeMap::new();
    let mut out = Vec::with_capacity(events);
    while out.len() < events {
        let device = DeviceId(random.below(2) as u16);
        let slot = random.below(slots);
        // Aligned and unaligned addresses, and some beyond the first region of a TiB.
        let address = (slot << 21) + [0, 1, 256, 5 << 40][slot as usize % 4];
        let site = SiteId(random.below(40) as u32);
        let kind = match live.get(&(device, slot)) {
            None if random.below(9) == 0 => EventKind::Gap { lost: 0 },
            None => {
                live.insert((device, slot), false);
                let requested = [random.below(1 << 20), 1 << 9, 4096, random.below(700)][random.below(4) as usize] + 1;
                let size = match random.below(4) {
                    0 => requested,
                    1 => requested.next_multiple_of(512),
                    2 => requested + 77,
                    _ => 1 << 21,
                };
                let kind = if random.below(2) == 0 { PoolKind::Small } else { PoolKind::Large };
                let pool = PoolKey { kind, owner: MempoolId(0, random.below(3)) };
                EventKind::BlockAllocated { address, size, requested, stream: StreamId(slot % 3 * 7), pool, site }
            }
            Some(_) if slot % 16 == 3 => continue,
            // Some sources have no event for the free request.
            Some(false) if slot % 16 == 5 => {
                live.remove(&(device, slot));
                EventKind::FreeCompleted { address, site }
            }
            Some(false) => {
                live.insert((device, slot), true);
                EventKind::FreeRequested { address, site }
            }
            Some(true) => {
                live.remove(&(device, slot));
                EventKind::FreeCompleted { address, site }
            }
        };
        out.push(Event { device, time_ns: out.len() as u64, kind });
    }
    out
}

/// Returns all allocations of one device, from a plain list.
pub(super) fn allocation_list(start: &MemoryState, events: &[Event], device: DeviceId) -> Vec<Allocation> {
    let mut all: Vec<Allocation> = Vec::new();
    let mut open = BTreeMap::new();
    let first = start.event();
    for block in start.device(device).into_iter().flat_map(|device| device.blocks()) {
        open.insert(block.address, all.len());
        all.push(Allocation {
            start_observed: false,
            allocated_until: block.pending_free.then_some(first),
            ..of_block(block, first)
        });
    }
    for (number, event) in events.iter().enumerate().filter(|(_, event)| event.device == device) {
        let moment = first + number as u64 + 1;
        match event.kind {
            EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
                assert_eq!(open.insert(address, all.len()), None);
                all.push(Allocation {
                    address,
                    size,
                    requested,
                    stream,
                    pool,
                    site,
                    first_moment: moment,
                    start_observed: true,
                    allocated_until: None,
                    active_until: None,
                    end_observed: true,
                });
            }
            EventKind::FreeRequested { address, .. } => all[open[&address]].allocated_until = Some(moment),
            EventKind::FreeCompleted { address, .. } => {
                let one = &mut all[open.remove(&address).expect("the block is allocated")];
                one.allocated_until.get_or_insert(moment);
                one.active_until = Some(moment);
            }
            _ => {}
        }
    }
    all
}

fn of_block(block: &Block, first_moment: u64) -> Allocation {
    let &Block { address, size, requested, stream, pool, site, .. } = block;
    Allocation {
        address,
        size,
        requested,
        stream,
        pool,
        site,
        first_moment,
        start_observed: true,
        allocated_until: None,
        active_until: None,
        end_observed: true,
    }
}

pub(super) fn build(start: &MemoryState, events: &[Event]) -> vramscope_trace::Lifetimes {
    let mut builder = LifetimesBuilder::new();
    builder.replace_state(start);
    for (number, event) in (start.event()..).zip(events) {
        builder.event(number, event);
    }
    builder.finish()
}

fn sorted(allocations: impl IntoIterator<Item = Allocation>) -> Vec<Allocation> {
    let mut all: Vec<_> = allocations.into_iter().collect();
    all.sort_by_key(|one| (one.first_moment, one.address));
    all
}

/// Checks every query against a filter over the list.
pub(super) fn check(
    index: &DeviceLifetimes,
    all: &[Allocation],
    random: &mut Random,
    last: u64,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(index.len(), all.len());
    prop_assert_eq!(sorted(index.iter()), sorted(all.iter().copied()));
    let select = |keep: &dyn Fn(&Allocation) -> bool| sorted(all.iter().copied().filter(keep));
    for _ in 0..12 {
        let (a, b) = (random.below(last + 2), random.below(last + 2));
        let (from, to) = (a.min(b), a.max(b));
        let live = select(&|one| one.is_active_at(from));
        prop_assert_eq!(sorted(index.live_at(from)), live.clone());
        prop_assert_eq!(
            sorted(index.active_between(from, to)),
            select(&|one| one.first_moment <= to && one.active_until.is_none_or(|until| until > from))
        );
        let mut rows = Vec::new();
        index.for_each_active_row(from, to, |row| rows.push(index.row(row.row).expect("a row's allocation")));
        prop_assert_eq!(sorted(rows.into_iter()), sorted(index.active_between(from, to)));
        let made_by = |moment: u64| select(&|one| one.start_observed && one.first_moment <= moment).len() as u64;
        let counts: Vec<u64> = index.counts_until([from, from, to, u64::MAX].into_iter()).collect();
        prop_assert_eq!(counts, [from, from, to, u64::MAX].map(made_by));

        let count = random.below(9) as usize;
        let mut largest = live.clone();
        largest.sort_by_key(|one| (std::cmp::Reverse(one.size), one.address));
        largest.truncate(count);
        prop_assert_eq!(index.largest_at(from, count), largest);

        let mut sums = BTreeMap::<(SiteId, StreamId, PoolKey), AllocationSums>::new();
        for one in &live {
            let sum = sums.entry((one.site, one.stream, one.pool)).or_default();
            sum.count += 1;
            sum.active += one.size;
            sum.requested += one.requested;
            sum.allocated += if one.allocated_until.is_none_or(|until| until > from) { one.size } else { 0 };
        }
        prop_assert_eq!(index.sums_at(from, |one| (one.site, one.stream, one.pool)), sums);

        let made = |one: &Allocation| one.allocating_event().is_some_and(|event| (from..to).contains(&event));
        for at in [to, last, u64::MAX] {
            let survives = |one: &Allocation| made(one) && one.is_allocated_at(at);
            prop_assert_eq!(sorted(index.survivors(from..to, at)), select(&survives));
        }
        let within = random.below(300);
        let short =
            |one: &Allocation| made(one) && one.allocated_until.is_some_and(|until| until - one.first_moment <= within);
        let temporaries = select(&short);
        prop_assert_eq!(sorted(index.temporaries(from..to, within)), temporaries.clone());

        let churn = index.churn_by(from..to, |one| one.pool);
        let made = select(&made);
        prop_assert_eq!(churn.values().map(|churn| churn.allocations).sum::<u64>(), made.len() as u64);
        let bytes: u64 = made.iter().map(|one| one.size).sum();
        prop_assert_eq!(churn.values().map(|churn| churn.bytes).sum::<u64>(), bytes);

        if let Some(one) = all.get(random.below(all.len().max(1) as u64) as usize) {
            let address = (one.address + random.below(one.size + 2)).saturating_sub(1);
            let history: Vec<_> = index.history_of(address).collect();
            prop_assert!(history.is_sorted_by_key(|one| one.first_moment));
            let had = select(&|one| (one.address..one.address + one.size).contains(&address));
            prop_assert_eq!(sorted(history), had);
        }
    }
    Ok(())
}

/// Returns the active blocks of a device from the memory state.
fn blocks(state: &MemoryState, device: DeviceId) -> Vec<(u64, u64, u64, StreamId, PoolKey, SiteId, bool)> {
    let blocks = state.device(device).into_iter().flat_map(|device| device.blocks());
    blocks.map(|one| (one.address, one.size, one.requested, one.stream, one.pool, one.site, one.pending_free)).collect()
}

/// Returns the active blocks of a device from the lifetime index.
fn live(index: Option<&DeviceLifetimes>, moment: u64) -> Vec<(u64, u64, u64, StreamId, PoolKey, SiteId, bool)> {
    let live = index.into_iter().flat_map(|index| index.live_at(moment));
    let row = |one: Allocation| {
        (one.address, one.size, one.requested, one.stream, one.pool, one.site, !one.is_allocated_at(moment))
    };
    let mut rows: Vec<_> = live.map(row).collect();
    rows.sort();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn lifetime_queries_agree_with_a_plain_list(
        count in 0..30_000usize, seed: u64, slots in prop_oneof![1..40u64, 40..3000u64], cut in 0..=100usize,
    ) {
        let events = varied_program(count, seed, slots);
        let (before, events) = events.split_at(count * cut / 200);
        let mut start = MemoryState::default();
        before.iter().for_each(|event| start.apply(event));
        let lifetimes = build(&start, events);
        let all = allocation_list(&start, events, DEVICE);
        let last = start.event() + events.len() as u64;
        match lifetimes.device(DEVICE) {
            Some(index) => check(index, &all, &mut Random(seed | 1), last)?,
            None => prop_assert!(all.is_empty()),
        }
    }

    #[test]
    fn live_set_agrees_with_the_memory_state(count in 1..40_000usize, seed: u64, gap in 0..3usize) {
        let events = program(count.max(2), seed);
        let mut random = Random(seed | 1);
        // Ranges of lost events.
        let lost = (0..gap).map(|_| (random.below(events.len() as u64) as usize, random.below(3000) as usize));
        let lost: Vec<_> = lost.map(|(from, length)| from..from + length).collect();
        let moments: Vec<usize> = (0..20).map(|_| random.below(events.len() as u64) as usize).collect();
        let mut state = MemoryState::default();
        let mut builder = LifetimesBuilder::new();
        let mut expected = vec![(0, state.clone())];
        let mut missing = false;
        for (number, event) in events.iter().enumerate() {
            if missing && !lost.iter().any(|range| range.contains(&number)) {
                builder.replace_state(&state);
                missing = false;
            }
            state.apply(event);
            if lost.iter().any(|range| range.contains(&number)) {
                missing = true;
                continue;
            }
            builder.event(number as u64, event);
            // A full state that equals the current state changes nothing.
            if number % 5000 == 77 {
                builder.replace_state(&state);
            }
            if moments.contains(&number) {
                expected.push((number as u64 + 1, state.clone()));
            }
        }
        let lifetimes = builder.finish();
        for (moment, state) in expected {
            for device in [0, 1].map(DeviceId) {
                prop_assert_eq!(live(lifetimes.device(device), moment), blocks(&state, device));
            }
        }
        let counted: usize = lifetimes.devices().map(|(_, index)| index.len()).sum();
        let made = events.iter().filter(|event| matches!(event.kind, EventKind::BlockAllocated { .. })).count();
        prop_assert!(counted <= made);
    }

    #[test]
    fn inconsistent_events_do_not_panic(
        steps in prop::collection::vec((any_event(), 0..5u64, prop::bool::weighted(0.05)), 0..300), begin: u64,
    ) {
        let mut state = MemoryState::default();
        let mut builder = LifetimesBuilder::new();
        let mut number = begin;
        for (event, skip, settle) in &steps {
            number = number.saturating_add(*skip);
            builder.event(number, event);
            state.apply(event);
            if *settle {
                builder.replace_state(&state);
            }
        }
        let lifetimes = builder.finish();
        for (_, index) in lifetimes.devices() {
            prop_assert!(index.len() <= steps.len());
            for moment in [0, begin, number, u64::MAX] {
                let _ = index.live_at(moment).count() + index.active_between(moment, u64::MAX).count();
                let _ = index.survivors(moment..u64::MAX, moment).count() + index.history_of(moment).count();
                let _ = index.temporaries(0..moment, moment).count();
                for one in index.iter() {
                    prop_assert!(one.allocated_until <= one.active_until || one.active_until.is_none());
                    prop_assert!(one.allocated_until.is_none_or(|until| until >= one.first_moment));
                }
            }
        }
    }

    #[test]
    fn full_state_resolves_inconsistencies(steps in prop::collection::vec(any_event(), 1..200)) {
        let mut state = MemoryState::default();
        let mut builder = LifetimesBuilder::new();
        for event in &steps {
            builder.event(state.event(), event);
            state.apply(event);
        }
        builder.replace_state(&state);
        let lifetimes = builder.finish();
        for (id, _) in state.devices() {
            prop_assert_eq!(live(lifetimes.device(id), state.event()), blocks(&state, id));
        }
    }
}

fn allocated(address: u64, size: u64) -> EventKind {
    let (stream, pool) = (StreamId(0), PoolKey::default());
    EventKind::BlockAllocated { address, size, requested: size, stream, pool, site: SiteId(1) }
}

fn of_kinds(kinds: &[EventKind]) -> Vec<Allocation> {
    let events: Vec<Event> = kinds.iter().map(|&kind| Event { device: DEVICE, time_ns: 0, kind }).collect();
    build(&MemoryState::default(), &events).device(DEVICE).map(|index| index.iter().collect()).unwrap_or_default()
}

#[test]
fn lifetime_has_start_free_request_and_completion() {
    let site = SiteId(0);
    let one = of_kinds(&[
        EventKind::Gap { lost: 0 },
        allocated(512, 512),
        EventKind::FreeRequested { address: 512, site },
        EventKind::Gap { lost: 0 },
        EventKind::FreeCompleted { address: 512, site },
    ])[0];
    assert_eq!(
        (one.allocating_event(), one.free_requested_event(), one.free_completed_event()),
        (Some(1), Some(2), Some(4))
    );
    assert!(!one.is_active_at(1) && one.is_allocated_at(2) && !one.is_allocated_at(3));
    assert!(one.is_active_at(4) && !one.is_active_at(5));
}

#[test]
fn summary_has_the_number_and_the_median_lifetime() {
    let free = |address| EventKind::FreeRequested { address, site: SiteId(0) };
    let completed = |address| EventKind::FreeCompleted { address, site: SiteId(0) };
    // The event with index i is at i² ns.
    let check = |kinds: &[EventKind], allocations: u64, median_ns: Option<u64>| {
        let events: Vec<Event> = kinds.iter().map(|&kind| Event { device: DEVICE, time_ns: 0, kind }).collect();
        let lifetimes = build(&MemoryState::default(), &events);
        let summary = lifetimes.device(DEVICE).expect("the device has events").summary(|event| event * event);
        assert_eq!(summary, LifetimeSummary { allocations, median_ns }, "{kinds:?}");
    };
    let (a, b, c) = (512, 1024, 2048);
    check(&[free(a)], 0, None);
    check(&[allocated(a, 512)], 1, None);
    check(&[allocated(a, 512), free(a)], 1, Some(1));
    // A lifetime ends at the free request, not at the completed free.
    check(&[allocated(a, 512), free(a), completed(a)], 1, Some(1));
    // The median of an even number of lifetimes is the shorter of the middle two.
    check(&[allocated(a, 512), completed(a), allocated(b, 512), completed(b)], 2, Some(1));
    check(&[allocated(a, 512), allocated(b, 512), completed(b)], 2, Some(3));
    check(&[allocated(a, 512), allocated(b, 512), allocated(c, 512), completed(b)], 3, None);
    check(&[allocated(a, 512), allocated(b, 512), allocated(c, 512), completed(b), completed(a)], 3, Some(16));
    // The end of the first allocation is not recorded.
    check(&[allocated(a, 512), allocated(a, 512)], 2, None);
}

/// A recording with a gap gives the lifetimes of its events and full states.
#[test]
fn lifetimes_of_a_recording_match_its_events() {
    let events = program(20_000, 7);
    let lost = 9_000..9_500;
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let (mut state, mut builder) = (MemoryState::default(), LifetimesBuilder::new());
    for (index, event) in events.iter().enumerate() {
        if index == lost.end {
            encoder.skip_to(state.event());
            encoder.replace_state(&state);
            builder.replace_state(&state);
        }
        if !lost.contains(&index) {
            encoder.event(event);
            builder.event(state.event(), event);
        }
        state.apply(event);
    }
    encoder.flush();
    let mut recording = Recording::new();
    encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid recording"));
    let actual = Lifetimes::from_recording(&recording).expect("the recording can be read");
    let known = |index: usize| if lost.contains(&index) { lost.start - 1 } else { index };
    let time_ns = |index: u64| events[known(index as usize)].time_ns;
    for (id, expected) in builder.finish().devices() {
        let actual = actual.device(id).expect("the device has events");
        assert_eq!(sorted(actual.iter()), sorted(expected.iter()));
        let summary = actual.summary(time_ns);
        assert_eq!(summary, expected.summary(time_ns));
        assert!(summary.allocations > 1_000 && summary.median_ns > Some(0), "{summary:?}");
    }
}

#[test]
fn second_allocation_at_an_address_ends_the_first() {
    let all = of_kinds(&[allocated(512, 512), allocated(512, 1024)]);
    assert_eq!((all[0].active_until, all[0].end_observed, all[0].free_requested_event()), (Some(2), false, None));
    assert_eq!((all[1].first_moment, all[1].active_until, all[1].size), (2, None, 1024));
}

#[test]
fn events_in_a_gap_are_not_invented() {
    let events = [allocated(512, 512), allocated(1024, 512)].map(|kind| Event { device: DEVICE, time_ns: 0, kind });
    let mut state = MemoryState::default();
    let mut builder = LifetimesBuilder::new();
    for event in &events {
        builder.event(state.event(), event);
        state.apply(event);
    }
    // In the gap, the first block is freed and another one allocated.
    for kind in [EventKind::FreeCompleted { address: 512, site: SiteId(0) }, allocated(4096, 512)] {
        state.apply(&Event { device: DEVICE, time_ns: 0, kind });
    }
    builder.replace_state(&state);
    let lifetimes = builder.finish();
    let all: Vec<Allocation> = lifetimes.device(DEVICE).expect("the device has events").iter().collect();
    let ends: Vec<_> =
        all.iter().map(|one| (one.allocating_event(), one.active_until, one.free_requested_event())).collect();
    assert_eq!(ends, [(Some(0), Some(4), None), (Some(1), None, None), (None, None, None)]);
    assert_eq!((all[0].end_observed, all[2].first_moment), (false, 4));
}

/// Follows events with a tracker and returns the event of the free and the ending of each
/// allocation, in the order of ends. The tracker does not get the events of `lost`, but a full
/// state after them.
fn tracked(kinds: &[EventKind], lost: &[EventKind]) -> Vec<(u64, Option<u64>, LifetimeEnding)> {
    let mut tracker = LifetimeTracker::new(0);
    let mut state = MemoryState::default();
    let mut ends = Vec::new();
    let mut visit = |change: LifetimeChange<'_>| {
        if let LifetimeChange::Ended(lifetime, ending) = change {
            ends.push((lifetime.block.address, lifetime.freed.map(|time| time.event), ending));
        }
        Ok::<(), std::convert::Infallible>(())
    };
    for &kind in kinds {
        let time = EventTime { event: state.event(), time_ns: 0 };
        let event = Event { device: DEVICE, time_ns: 0, kind };
        let Ok(()) = tracker.event(time, &event, &mut visit);
        state.apply(&event);
        let Ok(()) = tracker.verify(time, DEVICE, state.device(DEVICE).expect("the device has events"), &mut visit);
    }
    lost.iter().for_each(|&kind| state.apply(&Event { device: DEVICE, time_ns: 0, kind }));
    let Ok(()) = tracker.replace_state(&state, &mut visit);
    let Ok(()) = tracker.finish(&mut visit);
    ends
}

#[test]
fn partly_overlapped_allocation_ends_in_the_tracker_at_once() {
    let ends = tracked(&[allocated(512, 1024), allocated(1024, 512)], &[]);
    assert_eq!(ends, [(512, Some(1), LifetimeEnding::Lost), (1024, None, LifetimeEnding::Alive)]);
    // The index ends the allocation only at the next full state.
    assert_eq!(of_kinds(&[allocated(512, 1024), allocated(1024, 512)])[0].active_until, None);
}

#[test]
fn full_state_shows_free_requests_and_frees_that_were_lost() {
    let site = SiteId(0);
    let lost = [EventKind::FreeRequested { address: 512, site }, EventKind::FreeCompleted { address: 1024, site }];
    let ends = tracked(&[allocated(512, 512), allocated(1024, 512), allocated(2048, 512)], &lost);
    let expected = [
        (1024, Some(5), LifetimeEnding::Lost),
        (512, Some(5), LifetimeEnding::Pending),
        (2048, None, LifetimeEnding::Alive),
    ];
    assert_eq!(ends, expected);
}
