//! Writes marks and annotations: instants on one track, spans on as many tracks as nesting
//! requires.
//!
//! An end belongs to the innermost open span of its name, so spans of different names may overlap.
//! A span goes to the first lane where it is nested in another span or follows it. All of them are
//! written before the events; readers sort by time.

use std::cmp::Reverse;
use std::collections::HashMap;

use vramscope_trace::{Annotation, AnnotationStage, DeviceId, Recording, StringId};

use super::proto::{INSTANT, MERGE_BY_KEY, SLICE_BEGIN, TrackDescriptor};
use super::texts::{Argument, Text};
use super::writer::{TraceWriter, rank};
use crate::export::error::ExportError;

/// Maximum number of overlapping spans that are not nested.
const MAX_LANES: usize = 64;

/// A span of time with a name.
struct Span {
    name: StringId,
    begin_ns: u64,
    /// `u64::MAX` if the span does not end.
    end_ns: u64,
    at_event: u64,
}

/// Writes the marks of a device under its process.
pub(super) fn write(
    recording: &Recording,
    device: DeviceId,
    process: u64,
    trace: &mut TraceWriter<'_>,
) -> Result<(), ExportError> {
    let annotations = recording.annotations().iter().filter(|annotation| annotation.device == device);
    let (instants, mut spans) = match_spans(annotations);
    if !instants.is_empty() {
        let track = trace.track_under(process, "marks", rank::MARKS)?;
        for annotation in instants {
            let arguments = [("event", Argument::Number(annotation.at_event))];
            trace.write_named(INSTANT, (track, annotation.time_ns), Text::String(annotation.name), &arguments)?;
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

/// Matches begins with ends. An end without a begin becomes an instant.
fn match_spans<'a>(annotations: impl Iterator<Item = &'a Annotation>) -> (Vec<&'a Annotation>, Vec<Span>) {
    let mut instants = Vec::new();
    let mut spans: Vec<Span> = Vec::new();
    let mut open: HashMap<StringId, Vec<usize>> = HashMap::new();
    for annotation in annotations {
        let &Annotation { name, time_ns, at_event, .. } = annotation;
        match annotation.stage {
            AnnotationStage::Instant => instants.push(annotation),
            AnnotationStage::Begin => {
                open.entry(name).or_default().push(spans.len());
                spans.push(Span { name, begin_ns: time_ns, end_ns: u64::MAX, at_event });
            }
            AnnotationStage::End => match open.get_mut(&name).and_then(Vec::pop) {
                Some(begin) => spans[begin].end_ns = time_ns.max(spans[begin].begin_ns),
                None => instants.push(annotation),
            },
        }
    }
    (instants, spans)
}

fn lane_track(trace: &mut TraceWriter<'_>, process: u64) -> Result<u64, ExportError> {
    trace.track(TrackDescriptor {
        name: Some("spans".to_owned()),
        parent_uuid: Some(process),
        sibling_order_rank: Some(rank::SPANS),
        sibling_merge_behavior: Some(MERGE_BY_KEY),
        sibling_merge_key_int: Some(0),
        ..TrackDescriptor::default()
    })
}

/// A track, and the ends of the spans that are open on it, the innermost last.
struct Lane {
    track: u64,
    open: Vec<u64>,
}

impl Lane {
    /// Returns true if a span can be added: it is nested in the innermost open span, or none is
    /// open. Spans must be added in order of their begin.
    fn fits(&self, span: &Span) -> bool {
        let enclosing = self.open.iter().rev().find(|&&end_ns| end_ns > span.begin_ns);
        enclosing.is_none_or(|&end_ns| end_ns >= span.end_ns)
    }

    fn begin(&mut self, trace: &mut TraceWriter<'_>, span: &Span) -> Result<(), ExportError> {
        self.end(trace, span.begin_ns)?;
        self.open.push(span.end_ns);
        let arguments = [("event", Argument::Number(span.at_event))];
        trace.write_named(SLICE_BEGIN, (self.track, span.begin_ns), Text::String(span.name), &arguments)
    }

    /// Ends the spans that end at `by_ns` or earlier.
    fn end(&mut self, trace: &mut TraceWriter<'_>, by_ns: u64) -> Result<(), ExportError> {
        while let Some(end_ns) = self.open.pop_if(|end_ns| *end_ns <= by_ns) {
            trace.write_slice_end(self.track, end_ns)?;
        }
        Ok(())
    }
}
