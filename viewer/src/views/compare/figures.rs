//! The counters of both sides, side by side.

use vramscope_insight::difference::MomentFigures;
use vramscope_trace::Recording;

use crate::comparison::{Side, recording_of};
use crate::view::{Cell, Column, Context, Row, Table};

/// A function that returns one byte count of a moment's figures.
type Figure = fn(&MomentFigures) -> u64;

/// Returns a table of `view` with the figures of both compared moments. It has figures of whole
/// recordings only if recordings or devices are compared.
pub(super) fn table(
    view: &'static str,
    context: &Context<'_>,
    sides: &[Side; 2],
    figures: &[MomentFigures; 2],
) -> Table {
    let columns = vec![
        Column::text("name", ""),
        Column::number("a", "A"),
        Column::number("b", "B"),
        Column::number("change", "change"),
    ];
    let mut table = Table::new(view, "Counters at A and at B", columns);
    let at_moments: [(&str, Figure); 7] = [
        ("allocated", |figures| figures.counters.allocated),
        ("pending free", MomentFigures::pending_bytes),
        ("rounding waste", |figures| figures.counters.rounding_waste_bytes()),
        ("reserved", |figures| figures.counters.reserved),
        ("releasable (free segments)", MomentFigures::releasable_bytes),
        ("stuck beside live blocks", |figures| figures.stuck_bytes),
        ("largest free block", |figures| figures.free.largest),
    ];
    table.rows.extend(at_moments.map(|(name, value)| bytes_row(name, figures.each_ref().map(value))));
    table.rows.push(share_row("fragmentation", figures.each_ref().map(|figures| figures.free.fragmentation())));
    let expandable = figures.each_ref().map(|figures| figures.expandable_segments);
    table.rows.push(count_row("segments", figures.each_ref().map(|figures| figures.segments)));
    table.rows.extend((expandable != [0, 0]).then(|| count_row("— expandable", expandable)));
    table.rows.push(count_row("live blocks", figures.each_ref().map(|figures| figures.blocks)));
    if sides[0].is_second == sides[1].is_second && sides[0].device == sides[1].device {
        return table;
    }
    let [Some(a), Some(b)] = sides.each_ref().map(|side| recording_of(context, side)) else { return table };
    let of = |value: fn(&Recording, &Side) -> u64| [value(a, &sides[0]), value(b, &sides[1])];
    table.rows.extend([
        bytes_row("peak allocated", of(|recording, side| peaks(recording, side)[0])),
        bytes_row("peak reserved", of(|recording, side| peaks(recording, side)[1])),
        count_row(
            "failed requests",
            of(|recording, side| recording.end_state().device(side.device).map_or(0, |device| device.ooms())),
        ),
    ]);
    if sides[1].is_second {
        table.rows.push(count_row("events", of(|recording, _| recording.events())));
        let length = |recording: &Recording| {
            Cell::duration(recording.info(), recording.end_ns().saturating_sub(recording.start_ns()))
        };
        table.rows.push(Row::new(vec!["length".into(), length(a), length(b), Cell::Empty]));
    }
    table
}

/// Returns the peak of the allocated bytes and of the reserved bytes of a side's device in its
/// whole recording.
pub(super) fn peaks(recording: &Recording, side: &Side) -> [u64; 2] {
    let series = recording.series(side.device);
    series.map_or([0, 0], |series| [series.peak_allocated().bytes, series.peak_reserved().bytes])
}

/// Returns a table row called `name` with the bytes of A and B, and their difference.
fn bytes_row(name: &str, [a, b]: [u64; 2]) -> Row {
    let change = Cell::BytesChange(i128::from(b) - i128::from(a));
    Row::new(vec![name.into(), Cell::Bytes(a), Cell::Bytes(b), change])
}

/// Returns a table row called `name` with a number of A and of B, and their difference.
fn count_row(name: &str, [a, b]: [u64; 2]) -> Row {
    let change = match a.cmp(&b) {
        std::cmp::Ordering::Less => format!("+{}", vramscope_trace::Count(b - a)),
        std::cmp::Ordering::Equal => "0".to_owned(),
        std::cmp::Ordering::Greater => format!("−{}", vramscope_trace::Count(a - b)),
    };
    Row::new(vec![name.into(), Cell::Count(a), Cell::Count(b), change.into()])
}

/// Returns a table row called `name` with a share (0 to 1) of A and of B, and their difference in
/// percentage points.
fn share_row(name: &str, [a, b]: [f64; 2]) -> Row {
    let points = ((b - a) * 1000.0).round() / 10.0;
    let change = match points {
        points if points > 0.0 => format!("+{points:.1} points"),
        points if points < 0.0 => format!("−{:.1} points", -points),
        _ => "0 points".to_owned(),
    };
    Row::new(vec![name.into(), Cell::Share(a), Cell::Share(b), change.into()])
}
