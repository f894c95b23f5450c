//! What the page shows of one moment.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vramscope_insight::group::{GroupBy, pool_name, stream_name};
use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::pool_rows;
use vramscope_insight::sites::live_groups;
use vramscope_tests::Page;
use vramscope_tests::snapshot_model::MomentAnswer;
use vramscope_trace::{DeviceId, DeviceState, Metrics};

use super::rows::{address, number, rows, sum};
use super::subject::Subject;

/// The groupings that are checked at a moment; the others follow in turn.
const ALWAYS: [GroupBy; 3] = [GroupBy::Stack, GroupBy::Line, GroupBy::Site];

/// Checks everything that the page says of a device at a moment.
pub(super) fn check(page: Page<'_>, subject: &Subject, device: DeviceId, moment: u64, answer: &MomentAnswer) {
    let context = format!("{}, device {}, moment {moment}", subject.name, device.0);
    let state = subject.state(device, moment);
    check_counters(page, &state, moment, answer, &context);
    let other = GroupBy::ALL[moment as usize % GroupBy::ALL.len()];
    let groupings = ALWAYS.into_iter().chain([other].into_iter().filter(|by| !ALWAYS.contains(by)));
    let groupings: Vec<GroupBy> = groupings.collect();
    // The moment on the screen, and another one, which the page replays anew.
    let at = json!({ "event": moment });
    let mut queries: Vec<(&str, Value)> =
        ["blocks", "segments", "metrics", "flame", "list"].map(|view| (view, at.clone())).into();
    queries[4].1 = json!({ "event": moment, "mode": "live" });
    queries.extend(groupings.iter().map(|by| ("sites", json!({ "event": moment, "by": by.name() }))));
    if moment.is_multiple_of(2) {
        page.seek(subject.recording.end_event() - moment / 2);
    }
    let tables = rows(page, &queries);
    let [blocks, segments, metrics, flame, list] = &tables[..5] else { unreachable!("a table for each query") };
    check_blocks(subject, (device, &state), blocks, answer, &context);
    check_segments(subject, &state, segments, &context);
    check_metrics(&state, &metrics[0], answer, &context);
    check_list(subject, device, &state, list, &context);
    let counters = state.counters();
    assert_eq!(flame.first().map_or(0, |root| number(root, "bytes").unwrap_or(0)), counters.active, "{context}: flame");
    assert_eq!(sum(flame, "self_bytes"), counters.active, "{context}: flame graph's own bytes");
    for (by, shown) in groupings.into_iter().zip(&tables[5..]) {
        check_sites(subject, (device, &state), by, shown, answer, &format!("{context}, by {}", by.name()));
    }
}

/// Checks the counters of the header.
fn check_counters(page: Page<'_>, state: &DeviceState, moment: u64, answer: &MomentAnswer, context: &str) {
    let shown = page.seek(moment);
    let counters = state.counters();
    let native = [counters.allocated, counters.active, counters.reserved];
    assert_eq!([shown.allocated_bytes, shown.active_bytes, shown.reserved_bytes], native, "{context}");
    assert_eq!([answer.allocated_bytes, answer.active_bytes, answer.reserved_bytes], native, "{context}: model");
    assert_eq!((shown.segments, shown.blocks), (answer.segments, answer.blocks.len() as u64), "{context}");
    let free = answer.reserved_bytes - answer.active_bytes;
    let fragmentation = if free == 0 { 0.0 } else { 1.0 - answer.largest_free_bytes as f64 / free as f64 };
    assert!((shown.fragmentation - fragmentation).abs() < 1e-9, "{context}: {} {fragmentation}", shown.fragmentation);
}

/// Checks the live blocks.
fn check_blocks(
    subject: &Subject,
    (device, state): (DeviceId, &DeviceState),
    shown: &[Value],
    answer: &MomentAnswer,
    context: &str,
) {
    let mut grouping = subject.grouping(GroupBy::Site, device);
    let definitions = subject.recording.definitions();
    let by_address: BTreeMap<u64, &Value> = shown.iter().map(|row| (address(row), row)).collect();
    assert_eq!(by_address.len(), state.blocks().len(), "{context}: blocks");
    for block in state.blocks() {
        let row = by_address[&block.address];
        let group = grouping.group_of(block);
        let expected = json!({
            "address": format!("{:#x}", block.address),
            "bytes": block.size,
            "requested_bytes": block.requested,
            "state": if block.pending_free { "pending" } else { "allocated" },
            "site": grouping.group_name(definitions, group),
            "category": grouping.category_of(block).name(),
            "stream": block.stream.0,
            "device": row["device"],
            "allocated_at": block.since_event + 1,
        });
        assert_eq!(*row, expected, "{context}");
    }
    for one in &answer.blocks {
        let row = by_address.get(&one.address).unwrap_or_else(|| panic!("{context}: no block {one:?}"));
        assert_eq!(
            (number(row, "bytes"), number(row, "requested_bytes")),
            (Some(one.bytes), Some(one.requested_bytes))
        );
        assert_eq!(row["state"] == "pending", one.is_pending, "{context}: {row}");
        // Of an older block, the page has the first moment of the recording.
        if let Some(event) = one.allocated_at {
            assert_eq!(number(row, "allocated_at"), Some(event), "{context}: {row}");
        }
    }
}

/// Checks the list of live allocations, which has the same blocks and their fate.
fn check_list(subject: &Subject, device: DeviceId, state: &DeviceState, shown: &[Value], context: &str) {
    let counters = state.counters();
    assert_eq!(sum(shown, "bytes"), counters.active, "{context}: list");
    let pending: u64 =
        shown.iter().filter(|row| row["state"] == "pending").filter_map(|row| number(row, "bytes")).sum();
    assert_eq!(pending, counters.active - counters.allocated, "{context}: list");
    assert!(shown.is_sorted_by_key(|row| std::cmp::Reverse(number(row, "bytes"))), "{context}: list");
    let moments: BTreeMap<(u64, u64), _> = subject
        .lifetimes(device)
        .iter()
        .map(|one| ((one.address, one.first_moment), (one.allocated_until, one.active_until)))
        .collect();
    for row in shown {
        let key = (address(row), number(row, "allocated_at").unwrap_or(0));
        let freed = (number(row, "freed_at"), number(row, "free_completed_at"));
        assert_eq!(moments.get(&key), Some(&freed), "{context}: {row}");
    }
}

/// Checks the live bytes by group.
fn check_sites(
    subject: &Subject,
    (device, state): (DeviceId, &DeviceState),
    by: GroupBy,
    shown: &[Value],
    answer: &MomentAnswer,
    context: &str,
) {
    let mut grouping = subject.grouping(by, device);
    let definitions = subject.recording.definitions();
    let expected = live_groups(state, definitions, &mut grouping);
    // Equal bytes may be in another order, as the page numbers its groups in the order of use.
    let row = |name: &str, bytes, pending, requested, blocks| (name.to_owned(), bytes, pending, requested, blocks);
    let mut expected_rows: Vec<_> = expected
        .iter()
        .map(|one| row(&one.name, one.bytes, one.pending_bytes, one.requested_bytes, one.blocks))
        .collect();
    let field = |row: &Value, name| number(row, name).unwrap_or_else(|| panic!("{row} has no {name}"));
    let mut shown_rows: Vec<_> = shown
        .iter()
        .map(|one| {
            let name = one["name"].as_str().unwrap_or_default();
            let [bytes, pending, requested, blocks] =
                ["bytes", "pending_bytes", "requested_bytes", "blocks"].map(|name| field(one, name));
            row(name, bytes, pending, requested, blocks)
        })
        .collect();
    assert!(shown_rows.is_sorted_by_key(|row| std::cmp::Reverse(row.1)), "{context}: the largest comes first");
    expected_rows.sort();
    shown_rows.sort();
    assert_eq!(shown_rows, expected_rows, "{context}");
    let counters = state.counters();
    assert_eq!(sum(shown, "bytes"), counters.active, "{context}: the rows add up to the active bytes");
    let allocated = sum(shown, "bytes") - sum(shown, "pending_bytes");
    assert_eq!(allocated, counters.allocated, "{context}: without pending ones, to the allocated bytes");

    match by {
        GroupBy::Stack => {
            let has_stack = |group| !grouping.group_details(definitions, group).stack.is_empty();
            let stacks = expected.iter().filter(|one| has_stack(one.group)).map(|one| (one.bytes, one.blocks));
            let mut stacks: Vec<(u64, u64)> = stacks.collect();
            let with_stack: u64 = stacks.iter().map(|(bytes, _)| bytes).sum();
            let without = (counters.active - with_stack, state.blocks().len() as u64);
            let without = (without.0, without.1 - stacks.iter().map(|(_, blocks)| blocks).sum::<u64>());
            stacks.extend((without.1 > 0).then_some(without));
            stacks.sort_unstable();
            assert_eq!(stacks, answer.bytes_by_stack, "{context}: model");
        }
        GroupBy::Line => {
            let mut lines: BTreeMap<&str, u64> = BTreeMap::new();
            for one in &answer.blocks {
                *lines.entry(one.line.as_deref().unwrap_or_default()).or_default() += one.bytes;
            }
            lines.remove("");
            for (line, bytes) in lines {
                let of_line: u64 =
                    shown.iter().filter(|row| row["name"] == line).filter_map(|row| number(row, "bytes")).sum();
                assert_eq!(of_line, bytes, "{context}: {line} by the model");
            }
        }
        _ => {}
    }
}

/// Checks the memory by pool and stream.
fn check_segments(subject: &Subject, state: &DeviceState, shown: &[Value], context: &str) {
    let expected = pool_rows(state, &recorded_settings(subject.recording.info()));
    assert_eq!(shown.len(), expected.len(), "{context}: pools");
    for (row, one) in shown.iter().zip(&expected) {
        let usage = &one.usage;
        let (pool, stream) = (pool_name(one.pool), stream_name(one.stream));
        assert_eq!((row["pool"].as_str(), row["stream"].as_str()), (Some(&*pool), Some(&*stream)), "{context}");
        let fields = [
            ("segments", usage.segments),
            ("reserved_bytes", usage.reserved_bytes),
            ("allocated_bytes", usage.allocated_bytes),
            ("pending_bytes", usage.pending_bytes),
            ("free_bytes", usage.free.total),
            ("releasable_bytes", usage.releasable_bytes),
            ("stuck_bytes", usage.stuck_bytes),
            ("largest_free_bytes", usage.free.largest),
        ];
        for (name, expected) in fields {
            assert_eq!(number(row, name), Some(expected), "{context}: {name} of {pool}, {stream}");
        }
    }
    let counters = state.counters();
    let sums = ["reserved_bytes", "allocated_bytes", "free_bytes"].map(|name| sum(shown, name));
    assert_eq!(sums, [counters.reserved, counters.allocated, counters.reserved - counters.active], "{context}: pools");
}

/// Checks the metrics of the device.
fn check_metrics(state: &DeviceState, row: &Value, answer: &MomentAnswer, context: &str) {
    let metrics = Metrics::at(state, |_, _| true);
    let fields = [
        ("free_bytes", metrics.free.total, answer.reserved_bytes - answer.active_bytes),
        ("largest_free_bytes", metrics.free.largest, answer.largest_free_bytes),
        ("reserved_bytes", metrics.counters.reserved, answer.reserved_bytes),
        ("active_bytes", metrics.counters.active, answer.active_bytes),
        ("allocated_bytes", metrics.counters.allocated, answer.allocated_bytes),
        ("segments", metrics.segments, answer.segments),
    ];
    for (name, native, modeled) in fields {
        assert_eq!((number(row, name), native), (Some(modeled), modeled), "{context}: {name}");
    }
    let rounding = metrics.rounding_waste_bytes();
    assert_eq!(number(row, "rounding_waste_bytes"), Some(rounding), "{context}: rounding");
    let requested: u64 = answer.blocks.iter().map(|one| one.requested_bytes).sum();
    assert_eq!(rounding, answer.active_bytes - requested, "{context}: rounding by the model");
    let inactive_split = metrics.inactive_split_bytes;
    assert_eq!(number(row, "inactive_split_bytes"), Some(inactive_split), "{context}: inactive split");
}
