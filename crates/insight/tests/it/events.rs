//! Lists of events equal a computation from every event and the state before it.

use vramscope_insight::events::{EventList, EventListError, EventRow, MatchSearch, event_rows, window};
use vramscope_insight::group::GroupBy;
use vramscope_insight::query::{Condition, Query, Span, TextField};
use vramscope_trace::{
    Block, Category, DeviceId, Encoder, Event, EventKind, EventType, MempoolId, PoolKey, PoolKind, Recording,
    RecordingInfo, RecordingOpener, Replay, Sink, SiteId, StreamId,
};

use crate::allocations::{RECORDINGS, Subject, random_query, site_holds, steps_between};

/// Returns every event with its number and the block that it frees.
fn all_events(recording: &Recording) -> Vec<(u64, Event, Option<Block>)> {
    let mut replay = Replay::new();
    let mut state = replay.seek(recording, recording.first_event()).expect("the recording can be read").clone();
    let mut all = Vec::new();
    for index in recording.first_event()..recording.end_event() {
        let Some(event) = replay.event(recording, index).expect("the recording can be read") else { continue };
        if state.event() != index || recording.has_correction_at(index) {
            state = replay.seek(recording, index).expect("the recording can be read").clone();
        }
        let freed = match event.kind {
            EventKind::FreeRequested { address, .. } | EventKind::FreeCompleted { address, .. } => {
                state.device(event.device).and_then(|device| device.block(address)).copied()
            }
            _ => None,
        };
        state.apply(&event);
        all.push((index + 1, event, freed));
    }
    all
}

/// Returns the category of the memory that an event requests or frees; of other events with a site
/// the recorded one.
fn category_of(subject: &Subject, number: u64, event: &Event, freed: Option<&Block>) -> Option<Category> {
    let grouping = subject.grouping(event.device, GroupBy::Site);
    match event.kind {
        EventKind::FreeRequested { .. } | EventKind::FreeCompleted { .. } => {
            freed.map(|block| grouping.category_of(block).category)
        }
        EventKind::BlockAllocated { address, size, requested, stream, pool, site } => {
            let (since_event, since_ns) = (number - 1, event.time_ns);
            let block =
                Block { address, size, requested, stream, pool, site, pending_free: false, since_event, since_ns };
            Some(grouping.category_of(&block).category)
        }
        EventKind::SegmentAllocated { site, .. }
        | EventKind::SegmentMapped { site, .. }
        | EventKind::OutOfMemory { site, .. } => Some(grouping.category(site, grouping.is_older(number)).category),
        _ => event.kind.site().map(|site| subject.recording.definitions().site(site).category),
    }
}

/// Returns true if an event meets a condition.
fn holds(subject: &Subject, (number, event, freed): &(u64, Event, Option<Block>), condition: &Condition) -> bool {
    let definitions = subject.recording.definitions();
    if let Condition::Text { field: TextField::Any | TextField::Mark, text, line: None } = condition
        && let EventKind::Mark { name, .. } = event.kind
        && definitions.string(name).to_lowercase().contains(text)
    {
        return true;
    }
    if let Condition::Categories(bits) = condition {
        return category_of(subject, *number, event, freed.as_ref()).is_some_and(|one| bits >> (one as u8) & 1 == 1);
    }
    if matches!(condition, Condition::Text { .. } | Condition::Site(_)) {
        let site = event.kind.site();
        return site.is_some_and(|site| site_holds(definitions, site, condition).unwrap_or(false));
    }
    let row = EventRow::new(*number, *event, freed.as_ref(), definitions);
    let is_oom = row.event_type() == Some(EventType::OutOfMemory);
    let size = if is_oom { row.requested } else { row.size };
    match condition {
        Condition::Address(address) => {
            row.address.is_some_and(|start| (start..start + row.size.unwrap_or(1)).contains(address))
        }
        Condition::Size(limit) => size.is_some_and(|size| limit.contains(size)),
        Condition::Requested(limit) => row.requested.is_some_and(|size| limit.contains(size)),
        Condition::Age(span) | Condition::Life(span) => freed.is_some_and(|block| match span {
            Span::Time(limit) => limit.contains(event.time_ns.saturating_sub(block.since_ns)),
            Span::Events(limit) => limit.contains(number - (block.since_event + 1)),
            Span::Steps(limit) => limit.contains(steps_between(&subject.steps, block.since_event + 1, *number)),
        }),
        Condition::Event(limit) => limit.contains(*number),
        Condition::Stream(limit) => row.stream.is_some_and(|stream| limit.contains(stream.0)),
        Condition::Device(device) => event.device == *device,
        Condition::Pool(filter) => row.pool.is_some_and(|pool| filter.contains(pool)),
        Condition::EventTypes(bits) => bits >> (event.kind.event_type() as u16) & 1 == 1,
        _ => false,
    }
}

#[test]
fn lists_equal_a_search_of_all_events() {
    let mut random = fastrand::Rng::with_seed(21);
    let mut found = 0;
    for name in RECORDINGS {
        let subject = Subject::new(name);
        let recording = &subject.recording;
        let all = all_events(recording);
        for _ in 0..60 {
            let text = random_query(&subject, &mut random);
            let query = Query::parse(&text).expect("random queries are valid");
            let matches = |event: &(u64, Event, Option<Block>)| {
                query.terms().iter().all(|term| holds(&subject, event, &term.condition) != term.is_negated)
            };
            let expected: Vec<_> = all.iter().filter(|event| matches(event)).collect();
            let numbers: Vec<u64> = expected.iter().map(|(number, ..)| *number).collect();
            let mut replay = Replay::new();
            let matcher = query.compile(recording, &subject.steps, subject.history.inferred_categories());
            let mut list = EventList::new(recording, matcher, subject.moment(&mut random));
            let context = format!("{name}: {text}");

            // The next and previous matches are found before and after the list is complete.
            for is_complete in [false, true] {
                let moment = subject.moment(&mut random);
                let next = numbers.iter().find(|&&number| number > moment);
                let previous = numbers.iter().rev().find(|&&number| number < moment);
                let search =
                    |found: Option<&u64>| found.map_or(MatchSearch::NotFound, |&found| MatchSearch::Found(found));
                let answer = list.next_match(recording, &mut replay, moment, u64::MAX).expect("readable");
                assert_eq!(answer, search(next), "{context} after {moment}");
                let answer = list.previous_match(recording, &mut replay, moment, u64::MAX).expect("readable");
                assert_eq!(answer, search(previous), "{context} before {moment}");
                if is_complete {
                    break;
                }
                while !list.step(recording, &mut replay, 1000).expect("readable").is_finished() {
                    assert!(list.len() <= numbers.len() as u64, "{context}");
                }
            }
            assert_eq!(list.len(), numbers.len() as u64, "{context}");
            let (offset, count) = (random.usize(..=numbers.len()), random.usize(..100));
            let end = (offset + count).min(numbers.len());
            for history in [None, Some(&subject.history)] {
                let rows = list.rows(recording, &mut replay, history, offset as u64, count).expect("readable");
                let expected_row = |(number, event, freed): &&(u64, Event, Option<Block>)| {
                    EventRow::new(*number, *event, freed.as_ref(), recording.definitions())
                };
                let mut expected: Vec<_> = expected[offset..end].iter().map(expected_row).collect();
                let mut rows = rows;
                // An allocation that is older than the recording has no event that began it.
                for row in rows.iter_mut().chain(&mut expected) {
                    let is_old = row.age_events.is_some_and(|age| row.number - age <= recording.first_event() + 1);
                    if history.is_some() && is_old {
                        (row.age_events, row.age_ns) = (None, None);
                    }
                }
                assert_eq!(rows, expected, "{context}");
            }
            if let Some(number) = random.choice(&numbers) {
                let position = list.position_of(recording, &mut replay, *number).expect("readable");
                assert_eq!(numbers.get(position as usize), Some(number), "{context}");
            }
            found += numbers.len();
        }
    }
    assert!(found > 20_000, "the queries find {found} events");
}

#[test]
fn lists_without_a_query_have_every_event() {
    let subject = Subject::new("streams.pickle.gz");
    let recording = &subject.recording;
    let everything = Query::default().compile(recording, &[], None);
    let mut replay = Replay::new();
    let mut list = EventList::new(recording, everything, 500);
    assert!(list.is_complete() && list.progress().is_finished());
    assert_eq!(list.len(), recording.end_event() - recording.first_event());
    let rows = list.rows(recording, &mut replay, None, 700, 100).expect("readable");
    let first = recording.first_event() + 701;
    assert_eq!(rows.iter().map(|row| row.number).collect::<Vec<_>>(), (first..first + 100).collect::<Vec<_>>());
    assert_eq!(rows, window(recording, &mut replay, None, first, 100).expect("readable"));
    let end = window(recording, &mut replay, None, recording.end_event(), 100).expect("readable");
    assert_eq!(end.len(), 1);
    assert!(window(recording, &mut replay, None, u64::MAX, usize::MAX).expect("readable").is_empty());
    assert_eq!(list.next_match(recording, &mut replay, 7, 1).expect("readable"), MatchSearch::Found(8));
    assert_eq!(list.previous_match(recording, &mut replay, 7, 1).expect("readable"), MatchSearch::Found(6));
    assert_eq!(list.previous_match(recording, &mut replay, 1, 1).expect("readable"), MatchSearch::NotFound);
    assert_eq!(list.next_match(recording, &mut replay, u64::MAX, 1).expect("readable"), MatchSearch::NotFound);
}

/// Appends the chunks that an encoder has completed to a recording.
fn push(encoder: &mut Encoder, recording: &mut Recording) {
    encoder.flush();
    for chunk in encoder.take_output() {
        recording.push(&chunk.bytes).expect("the encoder writes valid chunks");
    }
}

/// Passes `count` pairs of allocation and free to an encoder, the first allocation being the event
/// with index `first`; every tenth block has 1 MiB, others 512 bytes.
fn allocate(encoder: &mut Encoder, first: u64, count: u64) {
    let (stream, pool, site) = (StreamId(0), PoolKey { kind: PoolKind::Small, owner: MempoolId(0, 0) }, SiteId(0));
    let mut event = |time_ns: u64, kind: EventKind| encoder.event(&Event { device: DeviceId(0), time_ns, kind });
    for pair in 0..count {
        let size = if pair % 10 == 0 { 1 << 20 } else { 512 };
        let time_ns = first + 3 * pair;
        event(time_ns, EventKind::BlockAllocated { address: 0, size, requested: size - 8, stream, pool, site });
        event(time_ns + 1, EventKind::FreeRequested { address: 0, site });
        event(time_ns + 2, EventKind::FreeCompleted { address: 0, site });
    }
}

/// Returns an encoder that has received a segment of 2 MiB.
fn encoder() -> Encoder {
    let mut encoder = Encoder::new(&RecordingInfo::default());
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    let kind = EventKind::SegmentAllocated { address: 0, size: 2 << 20, stream, pool, site };
    encoder.event(&Event { device: DeviceId(0), time_ns: 0, kind });
    encoder
}

#[test]
fn lists_follow_a_live_recording() {
    let (mut encoder, mut recording, mut replay) = (encoder(), Recording::new(), Replay::new());
    allocate(&mut encoder, 1, 5000);
    push(&mut encoder, &mut recording);
    let query = Query::parse(">=1MiB kind:alloc,free").expect("a valid query");
    let mut list = EventList::new(&recording, query.compile(&recording, &[], None), 9000);
    list.step(&recording, &mut replay, 1).expect("readable");
    assert!(!list.is_complete() && !list.is_empty());
    list.prioritize(2);
    for more in [0, 1, 2000, 7000] {
        allocate(&mut encoder, recording.end_event(), more);
        push(&mut encoder, &mut recording);
        list.update(&recording);
        while !list.step(&recording, &mut replay, 5000).expect("readable").is_finished() {}
        let matches = |(_, event, freed): &(u64, Event, Option<Block>)| {
            let is_large = matches!(event.kind, EventKind::BlockAllocated { size, .. } if size == 1 << 20);
            is_large || freed.is_some_and(|block| block.size == 1 << 20)
        };
        let expected: Vec<u64> = all_events(&recording).iter().filter(|one| matches(one)).map(|one| one.0).collect();
        assert_eq!(list.numbers(&recording, &mut replay, 0, usize::MAX).expect("readable"), expected);
    }
}

#[test]
fn searches_stop_when_their_budget_is_used() {
    let (mut encoder, mut recording, mut replay) = (encoder(), Recording::new(), Replay::new());
    allocate(&mut encoder, 1, 20_000);
    push(&mut encoder, &mut recording);
    let query = Query::parse("kind:oom").expect("a valid query");
    let mut list = EventList::new(&recording, query.compile(&recording, &[], None), 0);
    let mut calls = 0;
    while list.next_match(&recording, &mut replay, 0, 5000).expect("readable") == MatchSearch::Unfinished {
        calls += 1;
    }
    assert!((5..10).contains(&calls), "{calls} calls");
}

#[test]
fn events_that_were_not_recorded_are_rows_without_an_event() {
    let (mut encoder, mut recording, mut replay) = (encoder(), Recording::new(), Replay::new());
    allocate(&mut encoder, 1, 3);
    push(&mut encoder, &mut recording);
    let state = recording.end_state().clone();
    let kind = EventKind::Gap { lost: 5 };
    encoder.event(&Event { device: DeviceId(0), time_ns: 100, kind });
    encoder.replace_state(&state);
    allocate(&mut encoder, 200, 2);
    push(&mut encoder, &mut recording);
    let all = all_events(&recording);
    let rows = window(&recording, &mut replay, None, 0, 1000).expect("readable");
    assert_eq!(rows.len() as u64, recording.end_event());
    assert_eq!(rows.iter().filter(|row| row.event.is_some()).count(), all.len());
    assert!(rows.iter().any(|row| row.kind_name() == "gap" && row.text == "5 events lost"));
    let missing: Vec<_> = rows.iter().filter(|row| row.event.is_none()).collect();
    assert!(missing.iter().all(|row| row.kind_name() == "not recorded" && row.time_ns().is_none()));
}

#[test]
fn chunks_that_are_not_loaded_are_named() {
    let (mut encoder, mut whole) = (encoder(), Recording::new());
    allocate(&mut encoder, 1, 30_000);
    encoder.flush();
    let mut bytes = Vec::new();
    for chunk in encoder.take_output() {
        whole.push(&chunk.bytes).expect("the encoder writes valid chunks");
        bytes.extend_from_slice(&chunk.bytes);
    }
    bytes.extend(whole.index().into_iter().flat_map(|chunk| chunk.bytes));
    let mut recording = open_by_index(&bytes);
    let mut replay = Replay::new();
    let query = Query::parse(">=1MiB").expect("a valid query");
    let mut list = EventList::new(&recording, query.compile(&recording, &[], None), 40_000);
    let mut fetches = 0;
    let mut supply = |recording: &mut Recording, error: EventListError| {
        let EventListError::NotLoaded { missing } = error else { panic!("the recording is whole: {error}") };
        for range in missing {
            recording.supply(range.start, &bytes[range.start as usize..range.end as usize]).expect("it is the chunk");
            fetches += 1;
        }
    };
    let rows = loop {
        match window(&recording, &mut replay, None, 70_000, 100) {
            Ok(rows) => break rows,
            Err(error) => supply(&mut recording, error),
        }
    };
    let expected = window(&whole, &mut Replay::new(), None, 70_000, 100).expect("readable");
    assert_eq!(rows, expected);
    loop {
        match list.step(&recording, &mut replay, 10_000) {
            Ok(progress) if progress.is_finished() => break,
            Ok(_) => {}
            Err(error) => supply(&mut recording, error),
        }
    }
    assert!(fetches > 3, "{fetches} chunks");
    let mut expected = EventList::new(&whole, query.compile(&whole, &[], None), 0);
    while !expected.step(&whole, &mut Replay::new(), 10_000).expect("readable").is_finished() {}
    let expected = expected.numbers(&whole, &mut Replay::new(), 0, usize::MAX).expect("readable");
    assert_eq!(list.numbers(&recording, &mut replay, 0, usize::MAX).expect("readable"), expected);
    assert_eq!(expected.len(), 9001);
}

/// Opens a recording by the index at its end, without its chunks of events.
fn open_by_index(bytes: &[u8]) -> Recording {
    let mut opener = RecordingOpener::new(bytes.len() as u64);
    while let Some(range) = opener.wanted_range() {
        opener.supply(range.start, &bytes[range.start as usize..range.end as usize]);
    }
    opener.finish().expect("the recording has an index")
}

#[test]
fn any_event_number_has_a_row() {
    let subject = Subject::new("annotated.pickle.gz");
    let mut replay = Replay::new();
    let numbers = [0, 1, 2, u64::MAX, subject.recording.end_event() + 1];
    let rows = event_rows(&subject.recording, &mut replay, Some(&subject.history), numbers).expect("readable");
    let recorded: Vec<bool> = rows.iter().map(|row| row.event.is_some()).collect();
    assert_eq!(recorded, [false, true, true, false, false]);
}
