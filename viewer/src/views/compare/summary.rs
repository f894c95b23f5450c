//! The difference in sentences.

use vramscope_insight::difference::{DifferenceRow, MomentFigures, largest_changes};
use vramscope_trace::{ByteSize, Count, Percent, Recording};

use super::figures::peaks;
use crate::comparison::{Side, recording_of};
use crate::view::Context;

/// Text that a comparison shows in place of allocator settings if the program set none.
const DEFAULT_SETTINGS: &str = "default";

/// Returns the difference of two sides in sentences: live memory, reserved memory, and of
/// recordings or devices the peaks and the allocator's settings.
pub(super) fn sentences(
    context: &Context<'_>,
    sides: &[Side; 2],
    figures: &[MomentFigures; 2],
    rows: &[DifferenceRow],
) -> Vec<String> {
    let mut sentences = vec![live_sentence(figures, rows), reserved_sentence(figures)];
    let is_same_device = sides[0].is_second == sides[1].is_second && sides[0].device == sides[1].device;
    let [a, b] = sides.each_ref().map(|side| recording_of(context, side));
    if let (Some(a), Some(b), false) = (a, b, is_same_device) {
        sentences.push(peaks_sentence(peaks(a, &sides[0]), peaks(b, &sides[1])));
        sentences.extend((sides[0].is_second != sides[1].is_second).then(|| settings_sentence(a, b)));
    }
    sentences
}

/// Returns a sentence on the allocator settings of two recordings, A and B.
fn settings_sentence(a: &Recording, b: &Recording) -> String {
    let [a, b] = [a, b].map(|recording| match recording.info().alloc_conf.as_str() {
        "" => DEFAULT_SETTINGS,
        settings => settings,
    });
    if a == b { format!("Allocator settings of both: {a}.") } else { format!("Allocator settings: A {a}; B {b}.") }
}

/// Formats the change from `a` to `b` bytes, as in `1 GiB more`; `None` if they are equal.
fn more_or_less(a: u64, b: u64) -> Option<String> {
    match a.cmp(&b) {
        std::cmp::Ordering::Less => Some(format!("{} more", ByteSize(b - a))),
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(format!("{} less", ByteSize(a - b))),
    }
}

/// Returns a sentence on how much more or less live memory B has than A, and which groups changed
/// most.
fn live_sentence(figures: &[MomentFigures; 2], rows: &[DifferenceRow]) -> String {
    let [a, b] = figures.each_ref().map(|figures| figures.counters.active);
    let mut changes = largest_changes(rows);
    if !changes.is_empty() && !changes.ends_with('…') {
        changes.push('.');
    }
    match more_or_less(a, b) {
        Some(change) => format!("B holds {change} than A ({} instead of {}): {changes}", ByteSize(b), ByteSize(a)),
        None if changes.is_empty() => format!("A and B hold the same: {} in the same groups.", ByteSize(a)),
        None => format!("A and B hold equally much, {}, in different groups: {changes}", ByteSize(a)),
    }
}

/// Returns a sentence on how much more or less memory B reserves than A, in how many segments, and
/// how fragmented it is.
fn reserved_sentence(figures: &[MomentFigures; 2]) -> String {
    let [a, b] = figures;
    let segments = |figures: &MomentFigures| {
        let segments = match (figures.segments, figures.expandable_segments) {
            (1, 1) => "1 expandable segment".to_owned(),
            (all, expandable) if all == expandable && all > 0 => format!("{} expandable segments", Count(all)),
            (all, _) => Count(all).of("segment", "segments"),
        };
        format!("{} in {segments}", ByteSize(figures.counters.reserved))
    };
    let fragmented = |figures: &MomentFigures| format!("{} fragmented", Percent(figures.free.fragmentation()));
    let reserved = |figures: &MomentFigures| format!("{}, {}", segments(figures), fragmented(figures));
    match more_or_less(a.counters.reserved, b.counters.reserved) {
        Some(change) => format!("B reserves {change}: {}; A {}.", reserved(b), reserved(a)),
        None if segments(a) != segments(b) => {
            format!("A and B reserve equally much: A {}; B {}.", reserved(a), reserved(b))
        }
        None if fragmented(a) == fragmented(b) => format!("A and B reserve the same: {}.", reserved(a)),
        None => format!(
            "A and B reserve the same: {}; A is {}, B {}.",
            segments(a),
            fragmented(a),
            Percent(b.free.fragmentation())
        ),
    }
}

/// Returns a sentence on how the peaks of allocated and of reserved bytes differ between A and B.
fn peaks_sentence([allocated_a, reserved_a]: [u64; 2], [allocated_b, reserved_b]: [u64; 2]) -> String {
    let allocated = match more_or_less(allocated_a, allocated_b) {
        Some(change) => {
            format!("B allocates at most {}, {change} than A ({})", ByteSize(allocated_b), ByteSize(allocated_a))
        }
        None => format!("A and B allocate at most the same, {}", ByteSize(allocated_a)),
    };
    let reserved = match more_or_less(reserved_a, reserved_b) {
        Some(change) => {
            format!("B reserves at most {}, {change} than A ({})", ByteSize(reserved_b), ByteSize(reserved_a))
        }
        None => format!("both reserve at most {}", ByteSize(reserved_a)),
    };
    format!("Over their whole length: {allocated}; {reserved}.")
}
