//! Tests of the tables with events made by hand.

use vramscope_trace::{
    Category, DeviceId, DeviceLifetimes, Event, EventKind, Interner, Lifetimes, LifetimesBuilder, MemoryState, PoolKey,
    SiteId, StreamId,
};

use super::{SpanRow, SpanTableScan, group_table, phase_table, span_table};
use crate::frames::test_definitions::TestSites;
use crate::group::{GroupBy, Grouping};
use crate::spans::Span;

const DEVICE: DeviceId = DeviceId(0);

/// Returns the lifetimes of allocations (address, size, site) and of frees (address), one event
/// each; events are numbered from 1, and the first allocates a segment.
fn lifetimes(events: &[(u64, Option<(u64, SiteId)>)]) -> Lifetimes {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    let segment = EventKind::SegmentAllocated { address: 0, size: 1 << 20, stream, pool, site };
    let mut kinds = vec![segment];
    for &(address, allocation) in events {
        if let Some((size, site)) = allocation {
            kinds.push(EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
        } else {
            kinds.push(EventKind::FreeRequested { address, site });
            kinds.push(EventKind::FreeCompleted { address, site });
        }
    }
    let mut builder = LifetimesBuilder::with_changes();
    for (index, kind) in (0..).zip(kinds) {
        builder.event(index, &Event { device: DEVICE, time_ns: index, kind });
    }
    builder.finish()
}

/// Returns the only device.
fn device(lifetimes: &Lifetimes) -> &DeviceLifetimes {
    lifetimes.device(DEVICE).expect("the events are on this device")
}

#[test]
fn rows_have_live_bytes_peaks_and_sums() {
    let mut sites = TestSites::default();
    let [one, other] = [1, 2].map(|line| sites.site("", Category::Unknown, &[("train.py", line, "main")]));
    // Moments: 2 and 3 allocate, 4 and 5 free the first, 6 allocates.
    let all = lifetimes(&[(0, Some((512, one))), (512, Some((1024, other))), (0, None), (2048, Some((2048, other)))]);
    let mut grouping = Grouping::new(GroupBy::Line, 0);
    grouping.update(sites.definitions());
    let mut rows_at = |moment| {
        let table = group_table(device(&all), sites.definitions(), &mut grouping, moment, (0, 6));
        let table = table.expect("the changes are kept");
        let rows = table.rows.iter().map(|row| {
            (row.name.to_string(), [row.bytes, row.blocks, row.peak_bytes, row.allocated_bytes, row.allocations])
        });
        (rows.collect::<Vec<_>>(), [table.total_bytes, table.pending_bytes, table.allocated_bytes, table.allocations])
    };
    let row = |line: u32, figures: [u64; 5]| (format!("train.py:{line}"), figures);
    let at_end = [row(2, [3072, 2, 3072, 3072, 2]), row(1, [0, 0, 512, 512, 1])];
    assert_eq!(rows_at(6), (at_end.to_vec(), [3072, 0, 3584, 3]));
    let pending = [row(2, [1024, 1, 3072, 3072, 2]), row(1, [512, 1, 512, 512, 1])];
    assert_eq!(rows_at(4), (pending.to_vec(), [1536, 512, 3584, 3]));
    let empty = [row(2, [0, 0, 3072, 3072, 2]), row(1, [0, 0, 512, 512, 1])];
    assert_eq!(rows_at(0), (empty.to_vec(), [0, 0, 3584, 3]));
    let none = group_table(&DeviceLifetimes::default(), sites.definitions(), &mut grouping, 0, (0, 0));
    assert!(none.is_none(), "these lifetimes lack the list of changes");
}

#[test]
fn operations_have_the_bytes_of_nested_operations() {
    let mut sites = TestSites::default();
    let line = ("src/gpt.rs", 66, "");
    let attention = sites.stack(&[line, ("", 0, "attention")]);
    let matmul = sites.stack(&[line, ("", 0, "attention"), ("", 0, "matmul")]);
    let all = lifetimes(&[(0, Some((512, attention))), (512, Some((1024, matmul)))]);
    let mut grouping = Grouping::new(GroupBy::Operation, 0);
    grouping.update(sites.definitions());
    let table = group_table(device(&all), sites.definitions(), &mut grouping, 3, (0, 3)).expect("with changes");
    let rows = table.rows.iter().map(|row| (&*row.name, row.bytes, row.nested_bytes));
    assert_eq!(rows.collect::<Vec<_>>(), [("matmul", 1024, 0), ("attention", 512, 1024)]);
}

#[test]
fn spans_have_the_bytes_of_the_occurrence_with_the_highest_peak() {
    let mut interner = Interner::default();
    let mut sites = TestSites::default();
    let site = sites.stack(&[("train.py", 1, "main")]);
    // Allocated bytes by moment: 2: 100, 3: 300, 4 and 5: 200, 6: 1000, 7 and 8: 200.
    let all = lifetimes(&[
        (0, Some((100, site))),
        (1000, Some((200, site))),
        (0, None),
        (2000, Some((800, site))),
        (2000, None),
    ]);
    let mut span = |name: &str, from_event: u64, to_event: Option<u64>| Span {
        device: DEVICE,
        from_ns: 0,
        to_ns: to_event,
        from_event,
        to_event,
        name: interner.string(name),
        depth: 0,
        is_instant: false,
    };
    let spans = [
        span("step 1", 1, Some(5)),
        span("forward", 2, Some(2)),
        span("step 2", 5, None),
        span("forward", 5, Some(6)),
        Span { is_instant: true, ..span("mark", 3, Some(3)) },
        span("damaged", 50, Some(7)),
    ];
    let mut definitions = vramscope_trace::Definitions::default();
    interner.take_new().into_iter().for_each(|definition| definitions.define(definition));
    let rows = span_table(spans.iter(), &definitions, device(&all), (0, 8));
    let figures = rows.iter().map(|row| {
        let bytes = [row.before_bytes, row.peak_bytes, row.after_bytes];
        (row.name.as_str(), row.count, (row.from_event, row.to_event), bytes, row.kept_bytes())
    });
    assert_eq!(
        figures.collect::<Vec<_>>(),
        [
            ("step", 2, (5, 8), [200, 1000, 200], 0),
            ("forward", 2, (5, 6), [200, 1000, 1000], 800),
            ("damaged", 1, (8, 8), [200, 200, 200], 0),
        ]
    );
    let first = span_table(spans[..2].iter(), &definitions, device(&all), (0, 8));
    assert_eq!((first[0].before_bytes, first[0].peak_bytes, first[0].kept_bytes()), (0, 300, 200));
    assert_eq!((first[1].before_bytes, first[1].peak_bytes, first[1].kept_bytes()), (100, 100, 0));
    assert!(span_table([].iter(), &definitions, device(&all), (0, 8)).is_empty());
}

/// Returns sites in the scopes `forward`, `backward`, `optimizer` and `loader`, without stacks, and
/// a grouping by phase.
fn phase_sites() -> (TestSites, [SiteId; 4], Grouping) {
    let mut sites = TestSites::default();
    let scopes = ["forward", "backward", "optimizer", "loader"];
    let ids = scopes.map(|scope| sites.site(scope, Category::Unknown, &[]));
    let mut grouping = Grouping::new(GroupBy::Phase, 0);
    grouping.update(sites.definitions());
    (sites, ids, grouping)
}

/// The figures of a row: name, count, first and last moment, and bytes before, within and after.
type Figures<'a> = (&'a str, u64, (u64, u64), [u64; 3]);

/// Returns the figures of each row.
fn figures(rows: &[SpanRow]) -> Vec<Figures<'_>> {
    let bytes = |row: &SpanRow| [row.before_bytes, row.peak_bytes, row.after_bytes];
    rows.iter().map(|row| (row.name.as_str(), row.count, (row.from_event, row.to_event), bytes(row))).collect()
}

#[test]
fn phases_have_the_bytes_of_the_run_with_the_highest_peak() {
    let (sites, [forward, backward, optimizer, other], mut grouping) = phase_sites();
    // Allocated bytes by moment: 2: 100, 3: 300, 4 and 5: 200, 6: 250, 7: 260, 8: 660,
    // 9 and 10: 260, 11: 265, 12: 565, 13 and 14: 265, 15 and 16: 260.
    let all = lifetimes(&[
        (0, Some((100, forward))),
        (1000, Some((200, forward))),
        (0, None),
        (2000, Some((50, backward))),
        // Interrupts the backward pass.
        (3000, Some((10, other))),
        (4000, Some((400, backward))),
        (4000, None),
        (5000, Some((5, optimizer))),
        (6000, Some((300, forward))),
        (6000, None),
        (5000, None),
    ]);
    let rows = phase_table(sites.definitions(), &mut grouping, device(&all), (0, 16));
    let expected = [
        ("forward", 2, (11, 16), [265, 565, 260]),
        ("backward", 2, (7, 10), [260, 660, 260]),
        ("optimizer", 1, (10, 11), [260, 265, 265]),
        ("other", 1, (6, 7), [250, 260, 260]),
    ];
    assert_eq!(figures(&rows), expected);
    assert_eq!(rows[0].kept_bytes(), -5);
    // A range that ends earlier: the backward pass lasts to its end.
    let rows = phase_table(sites.definitions(), &mut grouping, device(&all), (0, 9));
    assert_eq!(figures(&rows)[..2], [("forward", 1, (1, 5), [0, 300, 200]), ("backward", 2, (7, 9), [260, 660, 260])]);
    // Spans and phases come from one pass.
    let mut interner = Interner::default();
    let name = interner.string("step 1");
    let (from_event, to_event) = (5, Some(12));
    let span =
        Span { device: DEVICE, from_ns: 0, to_ns: None, from_event, to_event, name, depth: 0, is_instant: false };
    let mut definitions = vramscope_trace::Definitions::default();
    interner.take_new().into_iter().for_each(|definition| definitions.define(definition));
    let mut scan = SpanTableScan::new([span].iter(), &definitions, (0, 16));
    while !scan.step(device(&all), sites.definitions(), &mut grouping) {}
    assert_eq!(figures(scan.rows()), [("step", 1, (5, 12), [200, 660, 565])]);
    assert_eq!(figures(scan.phases()), expected);
}

#[test]
fn phases_are_not_interrupted_by_blocks_without_a_recorded_allocation() {
    let (sites, [forward, backward, ..], mut grouping) = phase_sites();
    let mut events = Vec::new();
    let (stream, pool) = (StreamId(0), PoolKey::default());
    let event = |kind| Event { device: DEVICE, time_ns: 0, kind };
    let block =
        |address, size, site| event(EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
    events.push(event(EventKind::SegmentAllocated { address: 0, size: 1 << 20, stream, pool, site: SiteId(0) }));
    events.push(block(0, 1000, forward));
    // The recording begins here, with a block of 1000 bytes.
    events.push(block(2000, 100, backward));
    events.push(event(EventKind::FreeCompleted { address: 0, site: SiteId(0) }));
    events.push(block(3000, 50, backward));
    // This event is lost.
    events.push(block(4000, 700, forward));
    events.push(block(5000, 20, backward));
    events.push(block(6000, 1, SiteId(0)));
    let mut state = MemoryState::default();
    let mut builder = LifetimesBuilder::with_changes();
    for (index, event) in (0..).zip(&events) {
        if index == 2 || index == 6 {
            builder.replace_state(&state);
        }
        state.apply(event);
        if index >= 2 && index != 5 {
            builder.event(index, event);
        }
    }
    let all = builder.finish();
    let rows = phase_table(sites.definitions(), &mut grouping, device(&all), (2, 8));
    let unknown = "no stacks recorded";
    assert_eq!(
        figures(&rows),
        [("backward", 1, (2, 7), [1000, 1100, 870]), (unknown, 1, (7, 8), [870, 871, 871])],
        "{rows:?}"
    );
}

#[test]
fn first_of_equal_occurrences_counts_and_empty_recording_has_no_phase() {
    let (sites, [forward, backward, ..], mut grouping) = phase_sites();
    let [forward, backward] = [forward, backward].map(|site| (0, Some((100, site))));
    let free = (0, None);
    // The last block replaces the one before, whose free is missing, so that no byte changes.
    let all = lifetimes(&[forward, free, backward, free, forward, backward]);
    let rows = phase_table(sites.definitions(), &mut grouping, device(&all), (0, 9));
    let expected = [("forward", 2, (1, 4), [0, 100, 0]), ("backward", 2, (4, 7), [0, 100, 0])];
    assert_eq!(figures(&rows), expected);
    assert!(phase_table(sites.definitions(), &mut grouping, &DeviceLifetimes::default(), (0, 0)).is_empty());
    let mut by_line = Grouping::new(GroupBy::Line, 0);
    by_line.update(sites.definitions());
    assert!(phase_table(sites.definitions(), &mut by_line, device(&all), (0, 9)).is_empty());
}

#[test]
fn phase_can_last_over_several_steps_of_the_scan() {
    let (sites, [forward, backward, ..], mut grouping) = phase_sites();
    let events: Vec<_> = (0..200_000).flat_map(|_| [(0, Some((100, forward))), (0, None)]).collect();
    let all = lifetimes(&[events, vec![(0, Some((50, backward)))]].concat());
    let mut scan = SpanTableScan::new([].iter(), sites.definitions(), (0, 600_002));
    let steps = std::iter::repeat_with(|| scan.step(device(&all), sites.definitions(), &mut grouping));
    assert!(steps.take_while(|is_done| !is_done).count() >= 2, "each step is bounded");
    let expected = [("forward", 1, (1, 600_001), [0, 100, 0]), ("backward", 1, (600_001, 600_002), [0, 50, 50])];
    assert_eq!(figures(scan.phases()), expected);
}
