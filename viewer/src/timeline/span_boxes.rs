//! The named intervals above the chart: boxes with names; several without room are one box.

use vramscope_draw::Rect;
use vramscope_insight::spans::Span;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Count, StringId};

use super::content::TimelineContent;
use super::geometry::{Geometry, SPAN_ROW, TEXT};
use super::measure::Measure;
use super::scale::TimedMoment;
use super::x_axis::XAxis;

/// Width in units below which a span counts as narrow: the pointer need not be exactly on it.
const NARROW: f32 = 3.0;
/// Minimum number of letters to which a span's name is shortened; with less room, it is omitted.
const MIN_LETTERS: usize = 4;
/// Minimum number of neighboring spans without room for their names that are drawn as one box.
const MIN_MERGED: u64 = 4;
/// Maximum distance in units between two spans without room for their names that are drawn as one
/// box.
const MAX_GAP: f32 = 6.0;
/// Minimum width in units of a span, with the space to the next one, that keeps its own box.
const MIN_PITCH: f32 = 12.0;
/// Maximum number of different names that are counted for one box of several spans.
const MAX_NAMES: usize = 16;
/// Maximum number of names in the tooltip of one box of several spans.
const MAX_LISTED: usize = 3;

/// The rectangle of a named interval above the chart, or of several, with its shortened name.
#[derive(Clone, Debug)]
pub(super) struct SpanBox {
    pub(super) rect: Rect,
    /// Whether it has the second of the two alternating colors.
    pub(super) is_alternate: bool,
    /// Whether it stands for several spans.
    pub(super) is_merged: bool,
    /// The shortened name, which may reach into free space to the right; empty if too little of it
    /// would fit.
    pub(super) name: String,
    /// The lines of its tooltip: the names of several spans, or the name of one narrow span.
    lines: Vec<String>,
}

/// The boxes of the named intervals in view.
#[derive(Clone, Debug, Default)]
pub(super) struct SpanBoxes {
    pub(super) boxes: Vec<SpanBox>,
}

/// The spans of a [`Run`] whose names differ only in the number at their end.
struct RunName<'a> {
    /// The first span's whole name.
    name: &'a str,
    id: StringId,
    count: u64,
    /// The number at the end of the first and of the last name.
    numbers: Option<(u64, u64)>,
}

/// Splits a name into the text before the number at its end, and that number; `None` without one.
fn split_number(name: &str) -> (&str, Option<u64>) {
    let stem = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    (stem, name[stem.len()..].parse().ok())
}

/// Returns a name without its details: `Optimizer.step` of `Optimizer.step#AdamW.step`.
fn short_name(name: &str) -> &str {
    name.split_once('#').filter(|(_, rest)| split_number(rest).1.is_none()).map_or(name, |(name, _)| name)
}

impl RunName<'_> {
    /// Returns the spans' common name, with the first and the last number: `step 1–240`.
    fn text(&self) -> String {
        match self.numbers {
            Some((first, last)) if first != last => format!("{}{first}–{last}", split_number(self.name).0),
            _ => self.name.to_owned(),
        }
    }
}

/// A stretch of a row in which spans have no room for their names.
#[derive(Default)]
struct Run<'a> {
    x1: i32,
    count: u64,
    /// Whether one of them is an interval, not a moment.
    has_intervals: bool,
    /// The boxes of the spans; only the first ones of each pixel column.
    boxes: Vec<SpanBox>,
    names: Vec<RunName<'a>>,
    /// The name of the last span.
    last_name: &'a str,
}

impl<'a> Run<'a> {
    /// Adds a span with its name to the stretch.
    fn add(&mut self, span: &Span, name: &'a str) {
        self.count += 1;
        self.last_name = name;
        self.has_intervals |= !span.is_instant;
        if let Some(known) = self.names.iter_mut().find(|known| known.id == span.name) {
            known.count += 1;
            return;
        }
        let (stem, number) = split_number(name);
        if let Some(known) = self.names.iter_mut().find(|known| split_number(known.name).0 == stem) {
            known.count += 1;
            known.numbers = known.numbers.zip(number).map(|((first, _), last)| (first, last));
        } else if self.names.len() < MAX_NAMES {
            self.names.push(RunName { name, id: span.name, count: 1, numbers: number.map(|number| (number, number)) });
        }
    }

    /// Returns the number of spans in the stretch as text: `32 spans`.
    fn count_text(&self) -> String {
        let (one, several) = if self.has_intervals { ("span", "spans") } else { ("mark", "marks") };
        Count(self.count).of(one, several).to_string()
    }

    /// Returns a long and a short label for the stretch of spans, with the most frequent names
    /// first. The short label of a few spans is the name of the last one.
    fn texts(&self) -> [String; 2] {
        let Some(most) = self.names.first() else { return Default::default() };
        let name = most.text();
        let count = self.count_text();
        let others = self.count - most.count;
        if self.count < MIN_MERGED {
            let names = self.names.iter().map(RunName::text).collect::<Vec<_>>().join(", ");
            return [names, short_name(self.last_name).to_owned()];
        }
        if most.numbers.is_some_and(|(first, last)| first < last && last - first == most.count - 1) {
            let rest = if others > 0 { format!(" and {}", Count(others).of("other", "others")) } else { String::new() };
            return [name.clone() + &rest, name];
        }
        [&name, short_name(&name)].map(|name| match most.count {
            _ if others == 0 => format!("{count}: {name}"),
            most if most > others => format!("{count}, most {name}"),
            _ => format!("{count}: {name} and others"),
        })
    }

    /// Ends the stretch and adds its spans to `boxes`: one by one if they are few or wide, else as
    /// one box. The pixels up to `end` are free for the label.
    fn finish(&mut self, measure: &Measure, end: i32, boxes: &mut Vec<SpanBox>) {
        let mut run = std::mem::take(self);
        let [Some(first), Some(last)] = [run.boxes.first(), run.boxes.last()].map(|one| one.map(|one| one.rect)) else {
            return;
        };
        let is_merged = run.count >= MIN_MERGED;
        let mut rect = Rect { x1: run.x1, ..first };
        let is_wide = i64::from(rect.width()) >= i64::from(measure.px(MIN_PITCH)) * run.count as i64;
        let space = Rect { x0: if is_merged { first.x0 } else { last.x0 }, x1: end, ..first };
        sort_by_key(&mut run.names, |name| std::cmp::Reverse(name.count));
        let count = run.count_text();
        let [long, short] = run.texts();
        // A number of spans and a part of a name say more than the number.
        let least = MIN_LETTERS + if is_merged { count.chars().count() + 2 } else { MIN_LETTERS };
        let texts = [(&long, usize::MAX), (&short, least), (&count, usize::MAX)];
        let texts = texts.into_iter().take(if is_merged { 3 } else { 2 });
        let mut names = texts.map(|(text, least)| fit(measure, space, text, least));
        let name = names.find(|name| !name.is_empty()).unwrap_or_default();
        if let Some(last) = run.boxes.last_mut().filter(|_| !is_merged) {
            last.name = name;
            return boxes.append(&mut run.boxes);
        }
        let mut lines = vec![format!("{count} close together")];
        let mut others = run.count;
        for name in run.names.iter().take(MAX_LISTED) {
            lines.push(format!("{}: {}", name.text(), Count(name.count)));
            others -= name.count;
        }
        lines.extend((others > 0).then(|| format!("and {} more", Count(others))));
        if is_wide {
            boxes.append(&mut run.boxes);
            // Only the label lies on the boxes.
            rect.x1 = rect.x0 + if name.is_empty() { 0 } else { measure.text_width(&name, TEXT - 1.0, 10.0) };
        }
        boxes.push(SpanBox { rect, is_alternate: false, is_merged: true, name, lines });
    }
}

/// Returns `text` if it fits into a box, else shortened if more than `least` characters remain,
/// else an empty text.
fn fit(measure: &Measure, rect: Rect, text: &str, least: usize) -> String {
    let max_width = (rect.width() - measure.px(8.0)).max(0) as f32;
    let fitted = measure.typesetter.fit(text, (TEXT - 1.0) * measure.scale, max_width);
    if fitted == text || fitted.chars().count() > least { fitted } else { String::new() }
}

/// Returns the moments and times of a span's begin and end; an open span lasts until the end of the
/// recording.
pub(super) fn ends_of(span: &Span, content: &TimelineContent) -> [TimedMoment; 2] {
    let recording = content.recording;
    let from = TimedMoment { event: span.from_event, time_ns: span.from_ns };
    let event = span.to_event.unwrap_or_else(|| recording.end_event());
    [from, TimedMoment { event, time_ns: span.to_ns.unwrap_or_else(|| recording.end_ns()) }]
}

/// Returns the rectangles and names of the named intervals that the device's process recorded in
/// view.
pub(super) fn span_boxes(measure: &Measure, geometry: &Geometry, axis: &XAxis, content: &TimelineContent) -> SpanBoxes {
    let rows = geometry.span_row_count;
    let mut boxes = Vec::new();
    if rows == 0 {
        return SpanBoxes::default();
    }
    let (max_gap, least_width) = (measure.px(MAX_GAP), measure.px(1.5).max(1));
    let range = axis.range();
    let mut runs: Vec<Run> = (0..rows).map(|_| Run::default()).collect();
    // Right edge of the last named box of each row.
    let mut row_ends = vec![i32::MIN; rows];
    // By name without number: until when the last numbered span lasts, in nanoseconds.
    let mut numbered: Vec<(&str, u64)> = Vec::new();
    let spans = content.marks.spans_on(content.recording.info(), content.device);
    for (index, span) in spans.enumerate() {
        let full = content.recording.definitions().string(span.name);
        if let (stem, Some(_)) = split_number(full) {
            let has_room = numbered.len() < MAX_NAMES;
            match numbered.iter_mut().find(|(other, _)| *other == stem) {
                // A program that names its steps counts them itself; marks of its optimizer's steps
                // may have other numbers.
                Some((_, to_ns)) if span.is_instant && span.from_ns <= *to_ns => continue,
                Some((_, to_ns)) if !span.is_instant => *to_ns = span.to_ns.unwrap_or(u64::MAX).max(*to_ns),
                None if !span.is_instant && has_room => {
                    numbered.push((stem, span.to_ns.unwrap_or(u64::MAX)));
                }
                _ => {}
            }
        }
        let [from, to] = ends_of(span, content).map(|at| axis.scale().position(at));
        if from > range.end || to < range.start {
            continue;
        }
        let row = span.depth.min(rows - 1);
        let x0 = axis.x_of(from).max(geometry.plot.x0).min(geometry.plot.x1 - 1);
        let x1 = axis.x_of(to).min(geometry.plot.x1).max(x0 + least_width);
        let (run, row_end) = (&mut runs[row], &mut row_ends[row]);
        if x1 <= *row_end {
            continue;
        }
        if x0.saturating_sub(run.x1) > max_gap {
            run.finish(measure, x0, &mut boxes);
        }
        let rect = row_rect(measure, geometry, row, x0, x1);
        let mut name = String::new();
        if x1 - x0 > max_gap {
            let names = [(full, usize::MAX), (short_name(full), MIN_LETTERS)];
            let mut names = names.into_iter().map(|(name, least)| fit(measure, rect, name, least));
            name = names.find(|name| !name.is_empty()).unwrap_or_default();
        }
        let is_narrow = span.is_instant || x1 - x0 <= measure.px(NARROW);
        let lines = if is_narrow { vec![full.to_owned()] } else { Vec::new() };
        let one = SpanBox { rect, is_alternate: !index.is_multiple_of(2), is_merged: false, name, lines };
        if one.name.is_empty() {
            run.add(span, full);
            run.x1 = run.x1.max(x1);
            if run.boxes.last().is_none_or(|last| last.rect.x1 < rect.x1) || run.count < MIN_MERGED {
                run.boxes.push(one);
            }
        } else {
            run.finish(measure, x0, &mut boxes);
            *row_end = x1;
            boxes.push(one);
        }
    }
    runs.iter_mut().for_each(|run| run.finish(measure, geometry.plot.x1, &mut boxes));
    SpanBoxes { boxes }
}

/// Returns the rectangle of a span in a row, with a gap to the next one unless it is very narrow.
fn row_rect(measure: &Measure, geometry: &Geometry, row: usize, x0: i32, x1: i32) -> Rect {
    let height = measure.px(SPAN_ROW);
    let y0 = geometry.span_rows.y0 + height * row as i32;
    Rect::new(x0, y0, x1 - i32::from(x1 - x0 > 2), y0 + height - measure.stroke())
}

impl SpanBoxes {
    /// Returns the lines of the tooltip for the box at a pixel, without the names in `known`; empty
    /// for a box of one wide span.
    pub(super) fn lines_at(&self, (x, y): (i32, i32), scale: f32, known: &[&str]) -> Vec<String> {
        let narrow = (NARROW * scale) as i32;
        let reach = |rect: Rect| if rect.width() > narrow { 0 } else { narrow };
        let is_at = |rect: Rect| Rect { x0: rect.x0 - reach(rect), x1: rect.x1 + reach(rect), ..rect }.contains(x, y);
        let lines = self.boxes.iter().rev().find(|one| is_at(one.rect)).map_or(&[][..], |one| &one.lines);
        lines.iter().filter(|line| !known.contains(&line.as_str())).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::DeviceId;

    use super::*;

    /// Returns the texts of a stretch of marks with these names.
    fn texts(names: &[&str], is_instant: bool) -> [String; 2] {
        let mut run = Run::default();
        for name in names {
            let id = StringId(names.iter().position(|one| one == name).expect("it is one of them") as u32);
            let (from_ns, to_ns, from_event, to_event) = (0, Some(1), 0, Some(0));
            run.add(
                &Span { device: DeviceId(0), from_ns, to_ns, from_event, to_event, name: id, depth: 0, is_instant },
                name,
            );
        }
        sort_by_key(&mut run.names, |name| std::cmp::Reverse(name.count));
        run.texts()
    }

    #[test]
    fn stretches_of_spans_name_what_they_contain() {
        let (step, zero) = ("Optimizer.step#Adam.step", "Optimizer.zero_grad#Adam.zero_grad");
        assert_eq!(texts(&["step 7", "step 8", "step 9", "step 10"], true)[0], "step 7–10");
        assert_eq!(texts(&["step 7", "step 8", "eval", "step 9", "step 10"], false)[0], "step 7–10 and 1 other");
        assert_eq!(texts(&["step 7", "step 17", "step 27", "step 37"], true)[0], "4 marks: step 7–37");
        assert_eq!(texts(&[step; 5], false), ["5 spans: Optimizer.step#Adam.step", "5 spans: Optimizer.step"]);
        assert_eq!(texts(&[zero, step, step, step], false)[1], "4 spans, most Optimizer.step");
        assert_eq!(texts(&[step, zero, step, zero], false)[1], "4 spans: Optimizer.step and others");
        assert_eq!(texts(&["load", step], false), ["load, Optimizer.step#Adam.step", "Optimizer.step"]);
        assert_eq!(short_name("ProfilerStep#12"), "ProfilerStep#12");
    }
}
