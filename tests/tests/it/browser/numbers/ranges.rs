//! What the page shows of a range of events, of an address, and of the whole recording.

use serde_json::{Value, json};
use vramscope_insight::group::GroupBy;
use vramscope_insight::sites::groups_in_range;
use vramscope_tests::Page;
use vramscope_tests::snapshot_model::{AddressUse, RangeAnswer};
use vramscope_trace::{Allocation, DeviceId};

use super::rows::{address, number, rows, sum};
use super::subject::Subject;

/// Returns the bytes and the number of allocations.
fn totals(allocations: &[Allocation]) -> (u64, u64) {
    (allocations.iter().map(|one| one.size).sum(), allocations.len() as u64)
}

/// Checks everything that the page says of a range of a device; `within` is the most events from
/// the allocation to the free of a temporary.
pub(super) fn check(
    page: Page<'_>,
    subject: &Subject,
    device: DeviceId,
    (from, to, within): (u64, u64, u64),
    answer: &RangeAnswer,
) {
    let context = format!("{}, device {}, after {from} to {to}", subject.name, device.0);
    let by = GroupBy::ALL[from as usize % GroupBy::ALL.len()];
    let range = json!({ "from": from, "to": to, "mode": "range", "sort": "-allocated_at" });
    let grouped = json!({ "from": from, "to": to, "mode": "range", "by": by.name() });
    let soon = json!({ "from": from, "to": to, "by": by.name(), "number": within });
    let events = json!({ "from": from, "to": to, "mode": "range" });
    let queries = [
        ("allocations", range),
        ("sites", grouped.clone()),
        ("leaks", grouped),
        ("temporaries", soon),
        ("events", events),
    ];
    let tables = rows(page, &queries);
    let [allocations, sites, leaks, temporaries, events] = &tables[..] else { unreachable!("a table for each query") };

    let lifetimes = subject.lifetimes(device);
    let is_made = |one: &Allocation| one.start_observed && from < one.first_moment && one.first_moment <= to;
    let made: Vec<Allocation> = lifetimes.iter().filter(is_made).collect();
    check_allocations(&made, allocations, answer, &context);

    let mut grouping = subject.grouping(by, device);
    let time_ns = |event| subject.history.time_ns(event);
    let definitions = subject.recording.definitions();
    let groups = groups_in_range(lifetimes, definitions, &mut grouping, time_ns, (from, to), None);
    let field = |row: &Value, name| number(row, name).unwrap_or(0);
    let mut expected: Vec<_> =
        groups.iter().map(|one| (one.name.to_string(), one.bytes, one.allocations, one.live_bytes_at_end)).collect();
    let name = |row: &Value| row["name"].as_str().unwrap_or_default().to_owned();
    let mut shown: Vec<_> = sites
        .iter()
        .map(|row| (name(row), field(row, "bytes"), field(row, "allocations"), field(row, "live_bytes_at_end")))
        .collect();
    expected.sort();
    shown.sort();
    assert_eq!(shown, expected, "{context}: sites by {}", by.name());
    assert_eq!((sum(sites, "bytes"), sum(sites, "allocations")), totals(&made), "{context}: sites");

    let unfreed: Vec<Allocation> = made.iter().filter(|one| one.allocated_until.is_none()).copied().collect();
    let shown = (sum(leaks, "bytes"), sum(leaks, "blocks"));
    assert_eq!(shown, totals(&unfreed), "{context}: never freed");
    assert_eq!(shown, (answer.unfreed.bytes, answer.unfreed.allocations), "{context}: never freed, by the model");

    let life = |one: &Allocation| one.allocated_until.map(|freed| freed - one.first_moment);
    let soon: Vec<Allocation> =
        made.iter().filter(|one| life(one).is_some_and(|life| life <= within)).copied().collect();
    let shown = (sum(temporaries, "bytes"), sum(temporaries, "allocations"));
    assert_eq!(shown, totals(&soon), "{context}: temporaries within {within} events");
    assert_eq!(shown, (answer.temporaries.bytes, answer.temporaries.allocations), "{context}: by the model");

    check_events(subject, (from, to), events, answer, &context);
}

/// Checks the list of the allocations made in a range.
fn check_allocations(made: &[Allocation], shown: &[Value], answer: &RangeAnswer, context: &str) {
    let rows: Vec<_> = shown
        .iter()
        .map(|row| {
            let fields = ["bytes", "requested_bytes", "allocated_at", "freed_at", "free_completed_at"];
            (address(row), fields.map(|field| number(row, field)))
        })
        .collect();
    let native = made.iter().map(|one| {
        let fields =
            [Some(one.size), Some(one.requested), Some(one.first_moment), one.allocated_until, one.active_until];
        (one.address, fields)
    });
    assert_eq!(rows, native.collect::<Vec<_>>(), "{context}: allocations");
    let modeled = answer.allocations.iter().map(|one| {
        let fields =
            [Some(one.bytes), Some(one.requested_bytes), Some(one.allocated_at), one.freed_at, one.completed_at];
        (one.address, fields)
    });
    assert_eq!(rows, modeled.collect::<Vec<_>>(), "{context}: allocations by the model");
}

/// Checks the list of events.
fn check_events(subject: &Subject, (from, to): (u64, u64), shown: &[Value], answer: &RangeAnswer, context: &str) {
    let native = subject.events(from, to);
    assert_eq!((shown.len(), native.len()), (answer.events.len(), answer.events.len()), "{context}: events");
    for (((row, event), (action, at, size)), event_number) in
        shown.iter().zip(&native).zip(&answer.events).zip(from + 1..)
    {
        assert_eq!(number(row, "event"), Some(event_number), "{context}");
        let kind = event.kind.event_type();
        assert_eq!((row["kind"].as_str(), kind.action()), (Some(kind.name()), action.as_str()), "{context}: {row}");
        assert_eq!(number(row, "time_ns"), Some(event.time_ns), "{context}: {row}");
        if let Some(at) = at {
            assert_eq!(address(row), *at, "{context}: {row}");
        }
        // The history has the requested size of blocks, and the whole size of segments.
        let field = match action.as_str() {
            "segment_alloc" | "segment_free" | "segment_map" | "segment_unmap" => "bytes",
            "alloc" => "requested_bytes",
            _ => continue,
        };
        assert_eq!(number(row, field), Some(*size), "{context}: {row}");
    }
}

/// Checks the uses of an address.
pub(super) fn check_address(page: Page<'_>, subject: &Subject, at: u64, uses: &[AddressUse]) {
    let shown = &rows(page, &[("address", json!({ "filter": format!("{at:#x}") }))])[0];
    let found: Vec<AddressUse> = shown
        .iter()
        .map(|row| {
            let is_observed = row["start_observed"] == true;
            let start = number(row, "allocated_at").filter(|_| is_observed);
            (start, number(row, "freed_at"), address(row), number(row, "bytes").unwrap_or(0))
        })
        .collect();
    assert_eq!(found, uses, "{}: uses of {at:#x}", subject.name);
}

/// Checks the composition of the peak; `peak` is its event number with the bytes by the model.
pub(super) fn check_peak(page: Page<'_>, subject: &Subject, device: DeviceId, peak: (u64, u64)) {
    let context = format!("{}, device {}", subject.name, device.0);
    for by in [GroupBy::Line, GroupBy::Category, GroupBy::Site] {
        let shown = &rows(page, &[("peak", json!({ "by": by.name() }))])[0];
        assert_eq!(sum(shown, "bytes"), peak.1, "{context}: the rows of the peak add up to its allocated bytes");
    }
    assert_eq!(page.json::<u64>("return window.vramscope.peak()"), peak.0, "{context}: event of the peak");
}

/// Checks the steps: what is allocated in each, and what is live at its end.
pub(super) fn check_steps(page: Page<'_>, subject: &Subject, device: DeviceId) {
    for row in &rows(page, &[("steps", Value::Null)])[0] {
        let context = format!("{}, device {}, {row}", subject.name, device.0);
        let [Some(first), Some(last), Some(peak)] =
            ["first_event", "last_event", "peak_event"].map(|field| number(row, field))
        else {
            panic!("{context}");
        };
        let is_made = |one: &Allocation| one.start_observed && (first..=last).contains(&one.first_moment);
        let made: Vec<Allocation> = subject.lifetimes(device).iter().filter(is_made).collect();
        let shown = ["allocated_bytes", "allocations"].map(|field| number(row, field).unwrap_or(0));
        assert_eq!((shown[0], shown[1]), totals(&made), "{context}");
        let allocated_at = |moment| subject.state(device, moment).counters().allocated;
        assert_eq!(number(row, "peak_bytes"), Some(allocated_at(peak)), "{context}");
        let most = (first..=last).step_by((last - first) as usize / 20 + 1).map(allocated_at).max();
        assert!(number(row, "peak_bytes") >= most, "{context}: the peak is the highest moment");
        let end = subject.state(device, last).counters();
        let live = number(row, "live_bytes");
        assert!(live == Some(end.active) || live == Some(end.allocated), "{context}: live bytes at the end");
    }
}
