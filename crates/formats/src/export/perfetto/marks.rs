//! Marks and annotations: moments on one track, spans on as many as it takes for them to be nested.
//!
//! An end belongs to the innermost open span of its name, so spans of different names may overlap. A span goes to the first lane on
//! which it lies inside another or beside it. They are written before everything else: a reader sorts by time.

use std::cmp::Reverse;
use std::collections::HashMap;

use vramscope_trace::{Annotation, DeviceId, Recording, Stage, StringId};

use super::proto::{INSTANT, MERGE_BY_KEY, SLICE_BEGIN, TrackDescriptor};
use super::texts::Text;
use super::{Argument, Trace, rank};
use crate::export::ExportError;

/// Spans that may overlap at a time without being nested.
const LANES: usize = 64;

/// A span, or a moment where it has no length of its own.
struct Span {
    name: StringId,
    begin_ns: u64,
    /// The greatest number where it does not end.
    end_ns: u64,
    at_event: u64,
}

/// Writes the marks of a device under its process.
pub(super) fn write(
    recording: &Recording,
    device: DeviceId,
    process: u64,
    trace: &mut Trace<'_>,
) -> Result<(), ExportError> {
    let annotations = recording.annotations().iter().filter(|annotation| annotation.device == device);
    let (moments, mut spans) = sort(annotations);
    if !moments.is_empty() {
        let track = trace.track_under(process, "marks", rank::MARKS)?;
        for annotation in moments {
            let arguments = [("event", Argument::Number(annotation.at_event))];
            trace.named(INSTANT, (track, annotation.time_ns), Text::Defined(annotation.name), &arguments)?;
        }
    }
    spans.sort_by_key(|span| (span.begin_ns, Reverse(span.end_ns)));
    let mut lanes: Vec<Lane> = Vec::new();
    let mut left_out = 0u64;
    for span in &spans {
        let place = match lanes.iter_mut().position(|lane| lane.has_place(span)) {
            Some(place) => place,
            None if lanes.len() == LANES => {
                left_out += 1;
                continue;
            }
            None => {
                lanes.push(Lane { track: lane_track(trace, process)?, open: Vec::new() });
                lanes.len() - 1
            }
        };
        lanes[place].begin(trace, span)?;
    }
    for lane in &mut lanes {
        lane.end(trace, u64::MAX - 1)?;
    }
    if left_out > 0 {
        let track = trace.track_under(process, "left out", rank::LEFT_OUT)?;
        let arguments = [("spans", Argument::Number(left_out))];
        trace.named(INSTANT, (track, recording.end_ns()), Text::Word("spans without a slice"), &arguments)?;
    }
    Ok(())
}

/// Finds which begin and end belong together. An end without a beginning is a moment.
fn sort<'a>(annotations: impl Iterator<Item = &'a Annotation>) -> (Vec<&'a Annotation>, Vec<Span>) {
    let mut moments = Vec::new();
    let mut spans: Vec<Span> = Vec::new();
    let mut open: HashMap<StringId, Vec<usize>> = HashMap::new();
    for annotation in annotations {
        let &Annotation { name, time_ns, at_event, .. } = annotation;
        match annotation.stage {
            Stage::Instant => moments.push(annotation),
            Stage::Begin => {
                open.entry(name).or_default().push(spans.len());
                spans.push(Span { name, begin_ns: time_ns, end_ns: u64::MAX, at_event });
            }
            Stage::End => match open.get_mut(&name).and_then(Vec::pop) {
                Some(begun) => spans[begun].end_ns = time_ns.max(spans[begun].begin_ns),
                None => moments.push(annotation),
            },
        }
    }
    (moments, spans)
}

fn lane_track(trace: &mut Trace<'_>, process: u64) -> Result<u64, ExportError> {
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
    /// Whether a span that begins no earlier than those before it is inside or beside all of them.
    fn has_place(&self, span: &Span) -> bool {
        let around = self.open.iter().rev().find(|&&end_ns| end_ns > span.begin_ns);
        around.is_none_or(|&end_ns| end_ns >= span.end_ns)
    }

    fn begin(&mut self, trace: &mut Trace<'_>, span: &Span) -> Result<(), ExportError> {
        self.end(trace, span.begin_ns)?;
        self.open.push(span.end_ns);
        let arguments = [("event", Argument::Number(span.at_event))];
        trace.named(SLICE_BEGIN, (self.track, span.begin_ns), Text::Defined(span.name), &arguments)
    }

    /// Ends what ends by then.
    fn end(&mut self, trace: &mut Trace<'_>, by_ns: u64) -> Result<(), ExportError> {
        while let Some(end_ns) = self.open.pop_if(|end_ns| *end_ns <= by_ns) {
            trace.end_slice(self.track, end_ns)?;
        }
        Ok(())
    }
}
