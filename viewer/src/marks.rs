//! Marks on the time axis: spans and moments that the program recorded, out-of-memory errors, and
//! lost events.

use std::collections::HashMap;

use vramscope_trace::{Annotation, AnnotationStage, DeviceId, Incident, Recording, RecordingInfo, StringId};

/// Number of rows in which the timeline draws nested spans; deeper ones share the last row.
const MAX_DEPTH: usize = 3;

/// A named interval that the program recorded, drawn above the timeline. A named moment begins and
/// ends at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// A device of the process that recorded it.
    pub device: DeviceId,
    /// Start time.
    pub from_ns: u64,
    /// End time; `None` while the span is open.
    pub to_ns: Option<u64>,
    /// Name.
    pub name: StringId,
    /// Number of enclosing spans, limited to the rows that are drawn.
    pub depth: usize,
}

/// The spans (named intervals and moments), out-of-memory errors and gaps of a recording, updated
/// as it grows.
#[derive(Debug, Default)]
pub struct Marks {
    spans: Vec<Span>,
    /// Indices of the open spans of each device.
    open: HashMap<DeviceId, Vec<usize>>,
    annotations_read: usize,
    last_read: Option<Annotation>,
    incidents: Vec<Incident>,
}

impl Marks {
    /// Returns the spans of all processes, ordered by start time.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Iterates over the spans of the process that uses a device.
    ///
    /// In a recording of several processes each has its own spans; the devices of one process share
    /// them.
    pub fn spans_on<'a>(&'a self, info: &'a RecordingInfo, device: DeviceId) -> impl Iterator<Item = &'a Span> {
        let process_of = |id: DeviceId| {
            info.devices.iter().find(|info| info.device == id.0).map_or("", |info| info.process.as_str())
        };
        let process = process_of(device);
        // Consecutive spans nearly always have the same device, so the last answer is kept.
        let mut last = (device, true);
        self.spans.iter().filter(move |span| {
            if span.device != last.0 {
                last = (span.device, process_of(span.device) == process);
            }
            last.1
        })
    }

    /// Returns out-of-memory errors and gaps (missing events), ordered by time.
    #[must_use]
    pub fn incidents(&self) -> &[Incident] {
        &self.incidents
    }

    /// Returns the number of rows in which nested spans are drawn, at most 3; 0 without spans.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.spans.iter().map(|span| span.depth + 1).max().unwrap_or(0)
    }

    /// Reads the annotations and incidents that the recording has received since the last call.
    pub fn update(&mut self, recording: &Recording) {
        let annotations = recording.annotations();
        let last = self.annotations_read.checked_sub(1).and_then(|last| annotations.get(last).copied());
        if last != self.last_read {
            // An annotation arrived late and was inserted before those already read.
            self.spans.clear();
            self.open.clear();
            self.annotations_read = 0;
        }
        for annotation in annotations.get(self.annotations_read..).unwrap_or_default() {
            self.add(annotation);
        }
        self.annotations_read = annotations.len();
        self.last_read = annotations.last().copied();
        let known = self.incidents.len();
        self.incidents.extend_from_slice(recording.incidents().get(known..).unwrap_or_default());
    }

    /// Adds a named moment, opens a span, or closes the innermost open span of that name.
    fn add(&mut self, annotation: &Annotation) {
        let Annotation { device, time_ns, stage, name, .. } = *annotation;
        let open = self.open.entry(device).or_default();
        let depth = open.len().min(MAX_DEPTH - 1);
        match stage {
            AnnotationStage::Instant => {
                self.spans.push(Span { device, from_ns: time_ns, to_ns: Some(time_ns), name, depth })
            }
            AnnotationStage::Begin => {
                open.push(self.spans.len());
                self.spans.push(Span { device, from_ns: time_ns, to_ns: None, name, depth });
            }
            AnnotationStage::End => {
                let ended = open.iter().rposition(|&span| self.spans[span].name == name);
                if let Some(at) = ended {
                    let span = open.remove(at);
                    self.spans[span].to_ns = Some(time_ns);
                }
            }
        }
    }
}
