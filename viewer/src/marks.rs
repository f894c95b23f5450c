//! What is marked on the time axis: spans and moments from annotations, failed requests, lost events.

use std::collections::HashMap;

use vramscope_trace::{Annotation, DeviceId, Incident, Info, Recording, Stage, StringId};

/// Nesting beyond this is not told apart.
const DEEPEST: usize = 3;

/// A stretch of time with a name. A moment begins and ends at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The GPU whose program made it.
    pub device: DeviceId,
    /// When it begins.
    pub from_ns: u64,
    /// When it ends; `None` while nothing has ended it.
    pub to_ns: Option<u64>,
    /// What it is called.
    pub name: StringId,
    /// How many spans it lies within.
    pub depth: usize,
}

/// Everything marked in a recording, kept up as it grows.
#[derive(Debug, Default)]
pub struct Marks {
    spans: Vec<Span>,
    open: HashMap<DeviceId, Vec<usize>>,
    annotations_taken: usize,
    last_taken: Option<Annotation>,
    incidents: Vec<Incident>,
}

impl Marks {
    /// The spans, in the order in which they begin.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The spans of the program that a device is of: of several programs in one recording each has its own, and the devices of one program
    /// have them together.
    pub fn spans_on<'a>(&'a self, info: &'a Info, device: DeviceId) -> impl Iterator<Item = &'a Span> {
        let process = |id: DeviceId| {
            info.devices.iter().find(|about| about.device == id.0).map_or("", |about| about.process.as_str())
        };
        let here = process(device);
        // Nearly always the same as the one before: a list of devices is not gone through for each of very many spans.
        let mut known = (device, true);
        self.spans.iter().filter(move |span| {
            if span.device != known.0 {
                known = (span.device, process(span.device) == here);
            }
            known.1
        })
    }

    /// What went wrong, in order.
    #[must_use]
    pub fn incidents(&self) -> &[Incident] {
        &self.incidents
    }

    /// How many rows of spans there are.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.spans.iter().map(|span| span.depth + 1).max().unwrap_or(0)
    }

    /// Takes in what the recording has got since the last call.
    pub fn update(&mut self, recording: &Recording) {
        let annotations = recording.annotations();
        let before = self.annotations_taken.checked_sub(1).and_then(|last| annotations.get(last).copied());
        if before != self.last_taken {
            // One was put in among those taken before: it came late.
            self.spans.clear();
            self.open.clear();
            self.annotations_taken = 0;
        }
        for annotation in annotations.get(self.annotations_taken..).unwrap_or_default() {
            self.take(annotation);
        }
        self.annotations_taken = annotations.len();
        self.last_taken = annotations.last().copied();
        let known = self.incidents.len();
        self.incidents.extend_from_slice(recording.incidents().get(known..).unwrap_or_default());
    }

    fn take(&mut self, annotation: &Annotation) {
        let Annotation { device, time_ns, stage, name, .. } = *annotation;
        let open = self.open.entry(device).or_default();
        let depth = open.len().min(DEEPEST - 1);
        match stage {
            Stage::Instant => self.spans.push(Span { device, from_ns: time_ns, to_ns: Some(time_ns), name, depth }),
            Stage::Begin => {
                open.push(self.spans.len());
                self.spans.push(Span { device, from_ns: time_ns, to_ns: None, name, depth });
            }
            Stage::End => {
                let ended = open.iter().rposition(|&span| self.spans[span].name == name);
                if let Some(at) = ended {
                    let span = open.remove(at);
                    self.spans[span].to_ns = Some(time_ns);
                }
            }
        }
    }
}
