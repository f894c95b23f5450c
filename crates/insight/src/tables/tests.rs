//! Tests of both tables with events made by hand.

use vramscope_trace::{
    Category, DeviceId, DeviceLifetimes, Event, EventKind, Interner, Lifetimes, LifetimesBuilder, PoolKey, SiteId,
    StreamId,
};

use super::{group_table, span_table};
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
fn operations_have_the_bytes_of_those_inside() {
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
