//! Spans: the named intervals and moments that a program recorded, and the incidents of a
//! recording.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;

use vramscope_trace::sort::sort_by;
use vramscope_trace::{Annotation, AnnotationStage, DeviceId, Incident, Recording, RecordingInfo, StringId};

/// A named interval that the program recorded. A named moment is a span of length 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// A device of the process that recorded it.
    pub device: DeviceId,
    /// Start time, in nanoseconds since the recording's time 0.
    pub from_ns: u64,
    /// End time, in nanoseconds since the recording's time 0; `None` while the span is open.
    pub to_ns: Option<u64>,
    /// The moment at which it begins: its first event has the next number.
    pub from_event: u64,
    /// The moment at which it ends: the number of its last event. `None` while the span is open.
    pub to_event: Option<u64>,
    /// Name.
    pub name: StringId,
    /// Number of enclosing spans.
    pub depth: usize,
    /// Whether it is a single moment, not an interval.
    pub is_instant: bool,
}

impl Span {
    /// Returns the numbers of the events within the span; an open span lasts until `end_event`, the
    /// last moment of the recording. Empty if no event happened within it.
    #[must_use]
    pub fn event_numbers(&self, end_event: u64) -> RangeInclusive<u64> {
        self.from_event.saturating_add(1)..=self.to_event.unwrap_or(end_event)
    }

    /// Returns true if the span, which is not a single moment, has begun by `time_ns` and ends
    /// later.
    #[must_use]
    pub fn contains(&self, time_ns: u64) -> bool {
        !self.is_instant && self.from_ns <= time_ns && self.to_ns.is_none_or(|to_ns| to_ns > time_ns)
    }
}

/// The closed and the open spans of a device's process.
#[derive(Clone, Debug, Default)]
struct DeviceSpans {
    /// Indices of all spans, ordered by start time.
    all: Vec<usize>,
    /// Indices of the open spans; the last is the innermost.
    open: BTreeSet<usize>,
    /// Indices of the open spans of each name, innermost last.
    open_by_name: HashMap<StringId, Vec<usize>>,
}

/// The spans (named intervals and moments), out-of-memory errors and gaps of a recording, updated
/// as it grows.
#[derive(Clone, Debug, Default)]
pub struct Marks {
    spans: Vec<Span>,
    /// For each span, the index of the innermost span that was open when it began. Following the
    /// parents leads to all spans that were open then.
    parents: Vec<Option<usize>>,
    devices: BTreeMap<DeviceId, DeviceSpans>,
    depth: usize,
    /// Number of annotations that have been read.
    annotations_read: usize,
    /// The last annotation that was read, to notice changes of earlier ones.
    last_read: Option<Annotation>,
    incidents: Vec<Incident>,
}

impl Marks {
    /// Returns the spans of all processes, ordered by start time.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Iterates over the spans of the process that uses a device, ordered by start time.
    ///
    /// In a recording of several processes each has its own spans; the devices of one process share
    /// them.
    pub fn spans_on<'a>(&'a self, info: &'a RecordingInfo, device: DeviceId) -> impl Iterator<Item = &'a Span> {
        let process = process_of(info, device);
        // Consecutive spans nearly always have the same device, so the last answer is kept.
        let mut last = (device, true);
        self.spans.iter().filter(move |span| {
            if span.device != last.0 {
                last = (span.device, process_of(info, span.device) == process);
            }
            last.1
        })
    }

    /// Returns the spans of a device's process that are open at a time, innermost first.
    ///
    /// The cost is that of a binary search and one step for each enclosing span.
    #[must_use]
    pub fn spans_at(&self, info: &RecordingInfo, device: DeviceId, time_ns: u64) -> Vec<Span> {
        let process = process_of(info, device);
        let devices = self.devices.iter().filter(|&(&id, _)| id == device || process_of(info, id) == process);
        let mut open: Vec<usize> = Vec::new();
        for (_, spans) in devices {
            let begun = spans.all.partition_point(|&span| self.spans[span].from_ns <= time_ns);
            let mut next = begun.checked_sub(1).map(|last| spans.all[last]);
            while let Some(span) = next {
                if self.spans[span].contains(time_ns) {
                    open.push(span);
                }
                next = self.parents[span];
            }
        }
        // A later span is further inside.
        sort_by(&mut open, |a, b| b.cmp(a));
        open.into_iter().map(|span| self.spans[span]).collect()
    }

    /// Returns the names of the spans of a device's process that are open at a time, innermost
    /// first.
    #[must_use]
    pub fn names_at<'a>(&self, recording: &'a Recording, device: DeviceId, time_ns: u64) -> Vec<&'a str> {
        let spans = self.spans_at(recording.info(), device, time_ns);
        spans.iter().map(|span| recording.definitions().string(span.name)).collect()
    }

    /// Returns out-of-memory errors and gaps (missing events), ordered by time.
    #[must_use]
    pub fn incidents(&self) -> &[Incident] {
        &self.incidents
    }

    /// Returns the number of levels of nested spans; 0 without spans.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Reads the annotations and incidents that the recording has received since the last call.
    pub fn update(&mut self, recording: &Recording) {
        self.read_annotations(recording.annotations());
        let incidents = recording.incidents();
        let last = self.incidents.len().checked_sub(1).and_then(|last| incidents.get(last));
        if last != self.incidents.last() {
            // The oldest part of a live recording was dropped.
            self.incidents.clear();
        }
        let known = self.incidents.len();
        self.incidents.extend_from_slice(incidents.get(known..).unwrap_or_default());
    }

    /// Reads the annotations after the ones that were read before, or all again if those have
    /// changed.
    fn read_annotations(&mut self, annotations: &[Annotation]) {
        let last = self.annotations_read.checked_sub(1).and_then(|last| annotations.get(last).copied());
        if last != self.last_read {
            // An annotation arrived late and was inserted before the ones already read, or the
            // oldest part of a live recording was dropped.
            let incidents = std::mem::take(&mut self.incidents);
            *self = Self { incidents, ..Self::default() };
        }
        for annotation in annotations.get(self.annotations_read..).unwrap_or_default() {
            self.add(annotation);
        }
        self.annotations_read = annotations.len();
        self.last_read = annotations.last().copied();
    }

    /// Adds a named moment, opens a span, or closes the innermost open span of that name.
    fn add(&mut self, annotation: &Annotation) {
        let Annotation { device, time_ns, at_event, stage, name } = *annotation;
        let spans = self.devices.entry(device).or_default();
        if stage == AnnotationStage::End {
            let Some(ended) = spans.open_by_name.get_mut(&name).and_then(Vec::pop) else { return };
            spans.open.remove(&ended);
            let span = &mut self.spans[ended];
            (span.to_ns, span.to_event) = (Some(time_ns), Some(at_event));
            return;
        }
        let is_instant = stage == AnnotationStage::Instant;
        let depth = spans.open.len();
        self.depth = self.depth.max(depth.saturating_add(1));
        self.parents.push(spans.open.last().copied());
        let index = self.spans.len();
        spans.all.push(index);
        let (to_ns, to_event) = (is_instant.then_some(time_ns), is_instant.then_some(at_event));
        let (from_ns, from_event) = (time_ns, at_event);
        self.spans.push(Span { device, from_ns, to_ns, from_event, to_event, name, depth, is_instant });
        if !is_instant {
            spans.open.insert(index);
            spans.open_by_name.entry(name).or_default().push(index);
        }
    }
}

/// Returns the name of the process that uses a device; empty for an unknown device.
fn process_of(info: &RecordingInfo, device: DeviceId) -> &str {
    info.device(device).map_or("", |info| info.process.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an annotation at a time; its moment is a tenth of the time.
    fn annotation(time_ns: u64, stage: AnnotationStage, name: u32) -> Annotation {
        Annotation { device: DeviceId(0), time_ns, at_event: time_ns / 10, stage, name: StringId(name) }
    }

    /// Returns the names of the spans that are open at a time, innermost first.
    fn names_at(marks: &Marks, time_ns: u64) -> Vec<u32> {
        let spans = marks.spans_at(&RecordingInfo::default(), DeviceId(0), time_ns);
        spans.iter().map(|span| span.name.0).collect()
    }

    #[test]
    fn spans_at_a_time_contain_that_time() {
        use AnnotationStage::{Begin, End, Instant};
        // Five nested spans, of which 2 ends after the enclosing span 1; a moment and an open span.
        let annotations = [
            (10, Begin, 1),
            (20, Begin, 2),
            (30, Begin, 3),
            (40, Begin, 3),
            (50, Begin, 4),
            (60, Instant, 5),
            (70, End, 4),
            (80, End, 3),
            (90, End, 1),
            (100, End, 3),
            (110, End, 2),
            (120, Begin, 6),
            (130, End, 9),
        ]
        .map(|(time_ns, stage, name)| annotation(time_ns, stage, name));
        let mut marks = Marks::default();
        marks.read_annotations(&annotations[..5]);
        marks.read_annotations(&annotations);
        for time_ns in 0..150 {
            let mut expected: Vec<&Span> = marks.spans().iter().filter(|span| span.contains(time_ns)).collect();
            expected.reverse();
            let expected: Vec<u32> = expected.iter().map(|span| span.name.0).collect();
            assert_eq!(names_at(&marks, time_ns), expected, "at {time_ns}");
        }
        assert_eq!(names_at(&marks, 55), [4, 3, 3, 2, 1]);
        assert_eq!((marks.depth(), marks.spans()[5].depth), (6, 5));
        assert_eq!(marks.spans()[3].event_numbers(20), 5..=8, "the innermost open span of a name ends first");
        assert_eq!(marks.spans()[6].event_numbers(20), 13..=20, "an open span lasts until the end");
    }

    #[test]
    fn late_annotation_is_inserted() {
        use AnnotationStage::{Begin, End};
        let [first, late, last] = [annotation(10, Begin, 1), annotation(20, Begin, 2), annotation(30, End, 1)];
        let mut marks = Marks::default();
        marks.read_annotations(&[first, last]);
        marks.read_annotations(&[first, late, last]);
        let mut expected = Marks::default();
        [first, late, last].iter().for_each(|one| expected.add(one));
        assert_eq!(marks.spans(), expected.spans());
        assert_eq!(names_at(&marks, 25), [2, 1]);
    }

    #[test]
    fn unmatched_spans_are_read_in_linear_time() {
        use AnnotationStage::{Begin, End};
        let begins = (0..100_000).map(|time_ns| annotation(time_ns, Begin, 1));
        let ends = (100_000..200_000).map(|time_ns| annotation(time_ns, End, 2));
        let annotations: Vec<Annotation> = begins.chain(ends).collect();
        let mut marks = Marks::default();
        marks.read_annotations(&annotations);
        assert_eq!((marks.spans().len(), marks.depth()), (100_000, 100_000));
    }
}
