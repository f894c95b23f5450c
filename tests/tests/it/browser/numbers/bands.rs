//! Clicks on the picture of all allocations: stacked, and by address.

use fastrand::Rng;
use vramscope_trace::Allocation;

use super::open_recording::{OpenRecording, exact, hexadecimal};
use super::pointer::{Gesture, Shown, Size, choose, is_size, picture_size, point, show, whole};

/// Units above and below the plot.
const MARGINS: [i32; 2] = [8, 18];
/// Height in pixels of the gap between two address ranges.
const GAP: u64 = 2;

/// What the columns of the picture show.
struct Columns {
    /// The event numbers at the columns' edges.
    edges: Vec<u64>,
    /// The moment that each column shows: the first one of the most live bytes in it.
    moments: Vec<u64>,
    /// Number of pixel rows.
    rows: u32,
    /// Size of the picture.
    size: Size,
}

impl Columns {
    /// Shows the picture in a layout, and finds what its columns show.
    fn new(open: &OpenRecording<'_>, layout: &str) -> Self {
        show(open.page, "allocations");
        choose(open.page, "allocations", "mode allocations", layout);
        let size = picture_size(open.page, "allocations");
        let edges = open.chart_edges("allocations");
        let active = |moment: &u64| open.counters[*moment as usize].active;
        let highest = |pair: &[u64]| {
            let most = (pair[0]..=pair[1]).map(|moment| active(&moment)).max();
            (pair[0]..=pair[1]).find(|moment| Some(active(moment)) == most).unwrap_or(pair[0])
        };
        let moments = edges.windows(2).map(highest).collect();
        let rows = (size.height - size.px(MARGINS[0]) - size.px(MARGINS[1])).unsigned_abs();
        Self { edges, moments, rows, size }
    }

    /// Returns random points of the plot.
    fn points(&self, open: &OpenRecording<'_>, random: &mut Rng) -> Vec<(i32, i32)> {
        let [above, below] = MARGINS.map(|units| self.size.px(units));
        self.size.plot_points(random, above..self.size.height - below, open.points)
    }

    /// Returns the pixel row of a point, counted from the plot's lower edge.
    fn row(&self, point: (i32, i32)) -> u32 {
        (self.size.height - self.size.px(MARGINS[1]) - 1 - point.1).unsigned_abs()
    }
}

/// Returns the allocations that are live at a moment, in the order of their starts.
fn live_at(open: &OpenRecording<'_>, moment: u64) -> Vec<Allocation> {
    open.subject.lifetimes(open.device).iter().filter(|one| one.is_active_at(moment)).collect()
}

/// Returns true if an allocation is selected, and the details panel describes it.
fn is_selected(shown: &Shown, one: &Allocation) -> bool {
    let Some(address) = shown.selection.as_deref().map(hexadecimal) else { return false };
    let allocated_by = match shown.value(0, "allocated by") {
        "not recorded" => None,
        event => Some(whole(event)),
    };
    let freed_by = Some(shown.value(0, "freed by")).filter(|text| text.starts_with("event")).map(whole);
    address == one.address
        && allocated_by == Some(one.first_moment).filter(|_| one.start_observed)
        && freed_by == one.allocated_until
        && hexadecimal(shown.value(0, "address")) == one.address
        && shown.value(0, "size").ends_with(&exact(one.size))
        && shown.value(0, "requested").ends_with(&exact(one.requested))
        && whole(shown.value(0, "stream")) == one.stream.0
}

/// Returns true if the text under the pointer describes an allocation.
fn is_described(shown: &Shown, one: &Allocation) -> bool {
    let event_of = |start| shown.line(start).and_then(|rest| rest.split(" (").next()).map(whole);
    let bytes = shown.lines.first().and_then(|line| line.split(" · ").next()).unwrap_or("0 B");
    is_size(bytes, one.size)
        && event_of("allocated at ") == Some(one.first_moment).filter(|_| one.start_observed)
        && event_of("freed at ") == one.allocated_until
        && shown.line(&format!("address {:#x}, stream {}", one.address, one.stream.0)).is_some()
}

/// Checks the text under the pointer where the address map shows no allocation.
fn check_free(open: &OpenRecording<'_>, shown: &Shown, moment: u64, context: &str) {
    let Some(at) = shown.line("address ").map(hexadecimal) else { return };
    let state = open.subject.state(open.device, moment);
    match shown.lines[0].strip_suffix(" free") {
        Some(bytes) => {
            let segment = state.segment_at(at).unwrap_or_else(|| panic!("{context}: no segment"));
            let free = state.extents(segment).find(|extent| extent.block.is_none() && extent.address == at);
            assert!(free.is_some_and(|free| is_size(bytes, free.size)), "{context}: {free:?}");
        }
        None => {
            assert_eq!(shown.lines[0], "not reserved", "{context}");
            assert!(state.segment_at(at).is_none(), "{context}: it is reserved");
        }
    }
}

/// Checks clicks on the stacked picture: bands in the order of their starts, and all allocations
/// less than a pixel row high above them.
pub(super) fn check_stacked(open: &OpenRecording<'_>, random: &mut Rng) {
    let columns = Columns::new(open, "stacked");
    let active = |moment: &u64| open.counters[*moment as usize].active;
    let highest = columns.moments.iter().map(active).max().unwrap_or(0);
    let length = (highest + highest / 12).max(1) as f64;
    let row_of = |bytes: u64| (bytes as f64 * (f64::from(columns.rows) / length)) as u32;
    let least = (length / f64::from(columns.rows)).ceil() as u64;
    let points = columns.points(open, random);
    let clicked = point(open.page, "allocations", Gesture::Click, &points);
    let mut selected = 0;
    for (&at, shown) in points.iter().zip(&clicked) {
        let column = columns.size.column(at.0);
        let (moment, row) = (columns.moments[column], columns.row(at));
        let context = format!("{}, moment {moment}: {shown:?}", open.context("stacked allocations", at));
        let mut bottom = 0u64;
        let mut expected = None;
        for one in live_at(open, moment).into_iter().filter(|one| one.size >= least) {
            let rows = row_of(bottom)..row_of(bottom + one.size);
            bottom += one.size;
            if rows.contains(&row) {
                expected = Some(one);
            }
        }
        match expected {
            Some(one) => {
                assert!(is_selected(shown, &one) && is_described(shown, &one), "{context}: {one:?}");
                selected += 1;
            }
            None => assert_eq!(shown.selection, None, "{context}"),
        }
        let is_empty = row >= row_of(active(&moment));
        assert_eq!(shown.lines.is_empty(), is_empty, "{context}");
        // A click above all allocations goes to the moment.
        if is_empty {
            assert!((columns.edges[column]..=columns.edges[column + 1]).contains(&shown.event), "{context}");
        }
    }
    // Live memory covers a small part of the picture of a program that allocates most of it late.
    assert!(selected > open.points / 25, "{}: {selected} points show an allocation", open.subject.name);
}

/// Returns the address ranges that are reserved at some of the moments, by address, each with its
/// distance in bytes from the axis's lower end, and the axis's length.
fn address_axis(open: &OpenRecording<'_>, columns: &Columns) -> (Vec<(u64, u64, u64)>, u64) {
    let mut segments: Vec<(u64, u64)> = Vec::new();
    let mut moments = columns.moments.clone();
    moments.dedup();
    for state in open.subject.states(open.device, &moments) {
        segments.extend(state.segments().map(|one| (one.address, one.address + one.size)));
        segments.sort_unstable();
        segments.dedup();
    }
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in segments {
        match merged.last_mut().filter(|last| start <= last.1) {
            Some(last) => last.1 = last.1.max(end),
            None => merged.push((start, end)),
        }
    }
    let (bytes, rows) = (merged.iter().map(|(start, end)| end - start).sum::<u64>(), u64::from(columns.rows));
    let gap = if merged.len() as u64 * 8 <= rows { bytes / rows * GAP } else { 0 };
    let (mut ranges, mut length) = (Vec::new(), 0);
    for (start, end) in merged {
        let offset = if ranges.is_empty() { 0 } else { length + gap };
        length = offset + (end - start);
        ranges.push((start, end, offset));
    }
    (ranges, length)
}

/// Checks clicks on the address map: time across, address up.
pub(super) fn check_by_address(open: &OpenRecording<'_>, random: &mut Rng) {
    let columns = Columns::new(open, "address");
    let (ranges, length) = address_axis(open, &columns);
    let per_row = length as f64 / f64::from(columns.rows);
    let points = columns.points(open, random);
    let clicked = point(open.page, "allocations", Gesture::Click, &points);
    let mut selected = 0;
    for (&at, shown) in points.iter().zip(&clicked) {
        let (moment, row) = (columns.moments[columns.size.column(at.0)], columns.row(at));
        let context = format!("{}, moment {moment}: {shown:?}", open.context("address map", at));
        let (from, to) = (f64::from(row) * per_row, f64::from(row + 1) * per_row);
        // The bytes of the pixel row in each allocation.
        let covered = |one: &Allocation| {
            let range = ranges.iter().rfind(|(start, ..)| *start <= one.address);
            let (start, _, offset) = *range.expect("a live block is in a segment");
            let bottom = (one.address - start + offset) as f64;
            (bottom + one.size as f64).min(to) - bottom.max(from)
        };
        let inside: Vec<(Allocation, f64)> = live_at(open, moment)
            .into_iter()
            .map(|one| (one, covered(&one)))
            .filter(|(_, bytes)| *bytes > -1e-6 * per_row)
            .collect();
        let main = inside.iter().find(|(_, bytes)| *bytes > per_row * 0.55);
        match (main, &shown.selection) {
            (Some((one, bytes)), _) => {
                let share = bytes / per_row;
                assert!(is_selected(shown, one) && is_described(shown, one), "{context}: {share} of {one:?}");
            }
            // Several allocations share the pixel, or it is free for the most part.
            (None, Some(_)) => {
                assert!(inside.iter().any(|(one, _)| is_selected(shown, one)), "{context}: {inside:?}");
            }
            (None, None) => check_free(open, shown, moment, &context),
        }
        selected += usize::from(main.is_some());
    }
    assert!(selected > open.points / 25, "{}: {selected} points show an allocation", open.subject.name);
    choose(open.page, "allocations", "mode allocations", "stacked");
}
