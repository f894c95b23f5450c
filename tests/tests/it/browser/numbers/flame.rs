//! Clicks on the flame graph.

use fastrand::Rng;
use serde_json::{Value, json};

use super::open_recording::OpenRecording;
use super::pointer::{Gesture, is_size, picture_size, point, show, whole};
use super::rows::{number, rows};

/// Units around the boxes, half of them above, and of the scroll bar right of them.
const MARGINS: [i32; 2] = [8, 5];
/// Height of a row of boxes in units.
const ROW: i32 = 18;
/// Height of a row of boxes with labels of two lines, in units.
const TALL_ROW: i32 = 32;

/// A call of the graph, with the pixel columns of its box.
struct Call {
    name: String,
    bytes: u64,
    blocks: u64,
    level: u64,
    parent: usize,
    columns: (i32, i32),
    /// Whether it is wide enough for a box of its own.
    has_box: bool,
}

/// Computes the boxes of the graph's rows, callers before what they call. A call is as wide as its
/// part of the caller's bytes; calls narrower than a pixel have no box of their own.
fn calls(table: &[Value], columns: (i32, i32)) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    // Bytes of the calls before, within each caller.
    let mut before: Vec<u64> = Vec::new();
    for row in table {
        let field = |name| number(row, name).unwrap_or_else(|| panic!("{row} has no {name}"));
        let (bytes, level) = (field("bytes"), field("level"));
        let parent = calls.iter().rposition(|one| one.level < level);
        let (columns, has_box) = match parent {
            None => (columns, true),
            Some(parent) => {
                let caller = &calls[parent];
                let per_byte = f64::from(caller.columns.1 - caller.columns.0) / caller.bytes as f64;
                let column = |bytes: u64| caller.columns.0 + (bytes as f64 * per_byte).round() as i32;
                let from = before[parent];
                ((column(from), column(from + bytes)), caller.has_box && bytes as f64 * per_byte >= 1.0)
            }
        };
        if let Some(parent) = parent {
            before[parent] += bytes;
        }
        let name = row["name"].as_str().unwrap_or_default().to_owned();
        let parent = parent.unwrap_or(0);
        calls.push(Call { name, bytes, blocks: field("blocks"), level, parent, columns, has_box });
        before.push(0);
    }
    calls
}

/// Returns the call that a click on a pixel column of a level shows: the one drawn there, or the
/// caller of narrow ones. `None` where nothing is drawn.
fn call_at(calls: &[Call], level: u64, x: i32) -> Option<usize> {
    let is_here = |one: &Call| one.level == level && (one.columns.0..one.columns.1).contains(&x);
    let index = calls.iter().position(is_here)?;
    let mut caller = calls[index].parent;
    if calls[index].has_box {
        return Some(index);
    }
    // Below a narrow call, nothing is drawn.
    while caller > 0 && !calls[caller].has_box {
        caller = calls[caller].parent;
    }
    (calls[caller].level + 1 == level).then_some(caller)
}

/// Checks clicks on the flame graph: the summary names the call with its bytes.
pub(super) fn check(open: &OpenRecording<'_>, random: &mut Rng) {
    open.page.seek(open.page.json("return window.vramscope.peak()"));
    show(open.page, "flame");
    let size = picture_size(open.page, "flame");
    let table = &rows(open.page, &[("flame", json!({}))])[0];
    let [left, bar] = MARGINS.map(|units| size.px(units));
    let right = left + bar;
    let above = left / 2;
    let calls = calls(table, (left, size.width - right));
    let depth = calls.iter().map(|one| one.level).max().unwrap_or(0) as i32;
    // Rows have two lines if all of them are in view then.
    let [row, tall] = [ROW, TALL_ROW].map(|units| size.px(units));
    let row = if (depth + 1) * tall <= size.height - 2 * above { tall } else { row };
    let end = (size.height - above / 2).min(above + (depth + 1) * row);
    let points: Vec<(i32, i32)> =
        (0..open.points).map(|_| (random.i32(left..size.width - right), random.i32(above..end))).collect();
    let hovered = point(open.page, "flame", Gesture::Hover, &points);
    let clicked = point(open.page, "flame", Gesture::Click, &points);
    let mut zoomed = 0;
    for ((&at, hovered), shown) in points.iter().zip(&hovered).zip(&clicked) {
        let context = format!("{}: {shown:?}", open.context("flame graph", at));
        let level = ((at.1 - above) / row) as u64;
        // A box may be a pixel wider or narrower, where others are narrower than a pixel.
        let mut near: Vec<Option<usize>> = (at.0 - 1..=at.0 + 1).map(|x| call_at(&calls, level, x)).collect();
        // Those narrower ones may have the pixel for themselves.
        let has_pixel = |one: &&Call| {
            let is_narrow = one.level == level && !one.has_box && calls[one.parent].has_box;
            is_narrow && (one.columns.0 - 1..=one.columns.1 + 1).contains(&at.0)
        };
        near.extend(calls.iter().filter(has_pixel).map(|one| Some(one.parent)));
        let is_shown = |index: &Option<usize>| match *index {
            Some(index) if index > 0 => {
                let one = &calls[index];
                shown.summary.strip_prefix(&format!("{}: ", one.name)).is_some_and(|rest| {
                    let (bytes, all) = rest.split_once(" of ").unwrap_or_default();
                    is_size(bytes, one.bytes) && is_total(all, &calls[0])
                })
            }
            _ => is_total(&shown.summary, &calls[0]),
        };
        assert!(near.iter().any(is_shown), "{context}: {:?}", near.iter().map(|one| one.map(|one| &calls[one].name)));
        let is_described = |index: &Option<usize>| match *index {
            Some(index) => is_text_of(&hovered.lines, &calls, index, level),
            None => hovered.lines.is_empty(),
        };
        assert!(near.iter().any(is_described), "{context}: {:?}", hovered.lines);
        zoomed += usize::from(near[1].is_some_and(|index| index > 0));
    }
    assert!(zoomed > open.points / 10, "{}: {zoomed} points show a call", open.subject.name);
}

/// Returns true if the text under the pointer describes a call, or those of its callees on the row
/// `level` that are narrower than a pixel.
fn is_text_of(lines: &[String], calls: &[Call], index: usize, level: u64) -> bool {
    let [label, amount, ..] = lines else { return false };
    let (bytes, blocks) = match calls[index].level == level {
        true if *label == calls[index].name => (calls[index].bytes, calls[index].blocks),
        true => return false,
        false => {
            let narrow = calls.iter().skip(1).filter(|one| one.parent == index && !one.has_box);
            let narrow: Vec<(u64, u64)> = narrow.map(|one| (one.bytes, one.blocks)).collect();
            if whole(label.split(' ').next().unwrap_or_default()) != narrow.len() as u64 {
                return false;
            }
            (narrow.iter().map(|one| one.0).sum(), narrow.iter().map(|one| one.1).sum())
        }
    };
    let (size, rest) = amount.split_once(" (").unwrap_or_default();
    let (_, count) = rest.split_once(") in ").unwrap_or_default();
    is_size(size, bytes) && whole(count.split(' ').next().unwrap_or_default()) == blocks
}

/// Returns true if a text names the bytes and blocks of the whole graph: `3 MiB in 7 blocks …`.
fn is_total(text: &str, root: &Call) -> bool {
    let Some((bytes, rest)) = text.split_once(" in ") else { return false };
    let Some((blocks, _)) = rest.split_once(" block") else { return false };
    is_size(bytes, root.bytes) && whole(blocks) == root.blocks
}
