//! The tables by group, span and phase, as `vramscope table` has them.

use serde_json::{Value, json};
use vramscope_insight::group::GroupBy;
use vramscope_insight::spans::Marks;
use vramscope_insight::tables::{SpanRow, group_table, phase_table, span_table};
use vramscope_tests::Page;
use vramscope_trace::DeviceId;

use super::rows::{rows, sum};
use super::subject::Subject;

/// The groupings that are checked at every moment; the others follow in turn.
const ALWAYS: [GroupBy; 3] = [GroupBy::Phase, GroupBy::Line, GroupBy::Operation];

/// Returns rows as text, in an order that does not depend on the numbers of groups: the page
/// numbers them in the order of use, which decides between equal bytes.
fn sorted(rows: impl IntoIterator<Item = Value>) -> Vec<String> {
    let mut texts: Vec<String> = rows.into_iter().map(|row| row.to_string()).collect();
    texts.sort();
    texts
}

/// Checks the tables of a device at a moment.
pub(super) fn check(page: Page<'_>, subject: &Subject, device: DeviceId, moment: u64) {
    let other = GroupBy::ALL[moment as usize % GroupBy::ALL.len()];
    let groupings: Vec<GroupBy> = ALWAYS.into_iter().chain((!ALWAYS.contains(&other)).then_some(other)).collect();
    let mut queries: Vec<(&str, Value)> =
        groupings.iter().map(|by| ("table", json!({ "event": moment, "by": by.name() }))).collect();
    queries.push(("table", json!({ "by": "line", "mode": "peak", "sort": "peak_bytes" })));
    queries.push(("table", json!({ "by": "phase", "mode": "spans" })));
    queries.push(("table", json!({ "by": "phase", "mode": "phases" })));
    let shown = rows(page, &queries);
    let (definitions, lifetimes) = (subject.recording.definitions(), subject.lifetimes(device));
    let range = (subject.recording.first_event(), subject.recording.end_event());
    let peak = subject.recording.series(device).map_or(0, |series| series.peak_allocated().event);
    let expected = |by: GroupBy, moment: u64| {
        let table = group_table(lifetimes, definitions, &mut subject.grouping(by, device), moment, range);
        table.expect("a history has the changes").rows
    };
    let tables = groupings.iter().map(|&by| (by, moment)).chain([(GroupBy::Line, peak)]);
    for ((by, moment), shown) in tables.zip(&shown) {
        let context = format!("{}, device {}, moment {moment}, by {}", subject.name, device.0, by.name());
        let expected = expected(by, moment);
        let has_calls = expected.iter().any(|row| row.model_calls.is_some());
        let expected = expected.into_iter().map(|row| {
            let mut fields = json!({
                "name": &*row.name,
                "bytes": row.bytes,
                "blocks": row.blocks,
                "peak_bytes": row.peak_bytes,
                "allocated_bytes": row.allocated_bytes,
                "allocations": row.allocations,
            });
            if by == GroupBy::Operation {
                fields["nested_bytes"] = row.nested_bytes.into();
            }
            if has_calls {
                fields["model_called_at"] = row.model_calls.into();
            }
            fields
        });
        assert_eq!(sorted(shown.iter().cloned()), sorted(expected), "{context}");
        let active = subject.state(device, moment).counters().active;
        assert_eq!(sum(shown, "bytes"), active, "{context}: the rows add up");
    }
    let by_peak = &shown[groupings.len()];
    assert!(by_peak.is_sorted_by_key(|row| std::cmp::Reverse(row["peak_bytes"].as_u64())), "{}", subject.name);
    let mut marks = Marks::default();
    marks.update(&subject.recording);
    let spans = span_table(marks.spans_on(subject.recording.info(), device), definitions, lifetimes, range);
    let phases = phase_table(definitions, &mut subject.grouping(GroupBy::Phase, device), lifetimes, range);
    for (index, what, expected) in [(1, "spans", spans), (2, "phases", phases)] {
        let expected: Vec<Value> = expected.iter().map(span_fields).collect();
        assert_eq!(shown[groupings.len() + index], expected, "{}, device {}: {what}", subject.name, device.0);
    }
}

/// Returns the fields of a row of spans or phases.
fn span_fields(span: &SpanRow) -> Value {
    json!({
        "name": &*span.name,
        "before_bytes": span.before_bytes,
        "peak_bytes": span.peak_bytes,
        "after_bytes": span.after_bytes,
        "kept_bytes": i64::try_from(span.kept_bytes()).expect("sizes are far from 2^63"),
        "count": span.count,
        "from_event": span.from_event,
        "to_event": span.to_event,
    })
}
