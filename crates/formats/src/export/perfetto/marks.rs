//! Writes marks and annotations: instants on one track, spans on as many tracks as nesting
//! requires.
//!
//! An end belongs to the innermost open span of its name, so spans of different names may overlap.
//! A span goes to the first lane in which it is nested in the open span, or no span is open. All
//! tracks are written after the events; readers sort by time.

use std::cmp::Reverse;
use std::collections::HashMap;

use vramscope_trace::{AnnotationStage, Recording, StringId};

use super::proto::{INSTANT, MERGE_BY_KEY, SLICE_BEGIN, TrackDescriptor};
use super::texts::{Argument, Text};
use super::writer::{TraceWriter, rank};
use crate::export::error::Result;

/// Maximum number of tracks for the spans of a device. A span for which a further track would be
/// needed is left out and only counted.
const MAX_LANES: usize = 64;

/// A named moment of a device, or the begin or end of a named interval: from a mark or an
/// annotation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// Nanoseconds since the recording's time 0.
    pub(super) time_ns: u64,
    /// The event number of the mark, or of the moment that the annotation belongs to.
    pub(super) event: u64,
    /// Whether it begins a span, ends one, or is a single moment.
    pub(super) stage: AnnotationStage,
    /// Its name.
    pub(super) name: StringId,
}

/// A named interval that the program marked with a begin and an end.
struct Span {
    name: StringId,
    begin_ns: u64,
    /// `u64::MAX` if the span does not end.
    end_ns: u64,
    /// Number of the event that begins it.
    event: u64,
}

/// Writes the marks and annotations of a device, in the order of their events, as tracks below
/// `process`, the number of the device's track.
pub(super) fn write(recording: &Recording, mut marks: Vec<Mark>, process: u64, trace: &mut TraceWriter<'_>) -> Result {
    marks.sort_by_key(|mark| mark.time_ns);
    let (instants, mut spans) = match_spans(&marks);
    if !instants.is_empty() {
        let track = trace.track_under(process, "marks", rank::MARKS)?;
        for mark in instants {
            let arguments = [("event", Argument::Number(mark.event))];
            trace.write_named(INSTANT, (track, mark.time_ns), Text::String(mark.name), &arguments)?;
        }
    }
    spans.sort_by_key(|span| (span.begin_ns, Reverse(span.end_ns)));
    let mut lanes: Vec<Lane> = Vec::new();
    let mut omitted = 0u64;
    for span in &spans {
        let lane = match lanes.iter_mut().position(|lane| lane.fits(span)) {
            Some(lane) => lane,
            None if lanes.len() == MAX_LANES => {
                omitted += 1;
                continue;
            }
            None => {
                lanes.push(Lane { track: lane_track(trace, process)?, open: Vec::new() });
                lanes.len() - 1
            }
        };
        lanes[lane].begin(trace, span)?;
    }
    for lane in &mut lanes {
        lane.end(trace, u64::MAX - 1)?;
    }
    if omitted > 0 {
        let track = trace.track_under(process, "left out", rank::OMITTED)?;
        let arguments = [("spans", Argument::Number(omitted))];
        trace.write_named(INSTANT, (track, recording.end_ns()), Text::Constant("spans without a slice"), &arguments)?;
    }
    Ok(())
}

/// Matches each end mark with the last begin mark of its name that is still open. Returns the marks
/// to draw as single moments, which include ends without a begin, and the spans. A begin without an
/// end becomes a span that stays open.
fn match_spans(marks: &[Mark]) -> (Vec<Mark>, Vec<Span>) {
    let mut instants = Vec::new();
    let mut spans: Vec<Span> = Vec::new();
    let mut open: HashMap<StringId, Vec<usize>> = HashMap::new();
    for &mark in marks {
        let Mark { time_ns, event, stage, name } = mark;
        match stage {
            AnnotationStage::Instant => instants.push(mark),
            AnnotationStage::Begin => {
                open.entry(name).or_default().push(spans.len());
                spans.push(Span { name, begin_ns: time_ns, end_ns: u64::MAX, event });
            }
            AnnotationStage::End => match open.get_mut(&name).and_then(Vec::pop) {
                Some(begin) => spans[begin].end_ns = time_ns.max(spans[begin].begin_ns),
                None => instants.push(mark),
            },
        }
    }
    (instants, spans)
}

/// Writes a track for spans below the track `process` and returns its number. Perfetto draws all
/// tracks for spans as one.
fn lane_track(trace: &mut TraceWriter<'_>, process: u64) -> Result<u64> {
    trace.track(TrackDescriptor {
        name: Some("spans".to_owned()),
        parent_uuid: Some(process),
        sibling_order_rank: Some(rank::SPANS),
        sibling_merge_behavior: Some(MERGE_BY_KEY),
        sibling_merge_key_int: Some(0),
        ..TrackDescriptor::default()
    })
}

/// One track for spans: its number, and the end times of the spans that are open on it, innermost
/// last.
struct Lane {
    track: u64,
    open: Vec<u64>,
}

impl Lane {
    /// Returns true if a span can be drawn on this track: no span is open at its begin, or the
    /// innermost open span encloses it. False if it would overlap that span. Spans must be tested
    /// in order of their begin.
    fn fits(&self, span: &Span) -> bool {
        let enclosing = self.open.iter().rev().find(|&&end_ns| end_ns > span.begin_ns);
        enclosing.is_none_or(|&end_ns| end_ns >= span.end_ns)
    }

    /// Writes the ends of the spans that end before `span` begins, and then the begin of `span`.
    fn begin(&mut self, trace: &mut TraceWriter<'_>, span: &Span) -> Result {
        self.end(trace, span.begin_ns)?;
        self.open.push(span.end_ns);
        let arguments = [("event", Argument::Number(span.event))];
        trace.write_named(SLICE_BEGIN, (self.track, span.begin_ns), Text::String(span.name), &arguments)
    }

    /// Writes the ends of the open spans that end at `by_ns` or earlier.
    fn end(&mut self, trace: &mut TraceWriter<'_>, by_ns: u64) -> Result {
        while let Some(end_ns) = self.open.pop_if(|end_ns| *end_ns <= by_ns) {
            trace.write_slice_end(self.track, end_ns)?;
        }
        Ok(())
    }
}
