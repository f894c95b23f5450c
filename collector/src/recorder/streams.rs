//! What the recorder makes of the events: chunks for the viewers and chunks for the file.
//!
//! A viewer wants chunks at once, a file wants large ones, for those of a quiet program compress badly when they are
//! cut often. So long as nobody watches, both get the same chunks. While somebody does, and there is a file, events are
//! encoded twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use vramscope_trace::{
    Annotation, Chunk, Definition, DeviceId, DeviceInfo, DeviceState, Encoder, Event, EventKind, RecordingInfo, MemoryState,
    Sink,
};

use super::merge::Taker;
use super::{Outputs, Summary};
use crate::figures::{DeviceFigures, Figures};
use crate::file::{RecordingFile, is_of_the_recording};
use crate::hub::Hub;

/// How long events may wait before their chunk is cut for the file. With a round of the recorder at either end, and
/// what else the machine has to do, they are with the operating system within 250 ms.
const CUT_EVERY: Duration = Duration::from_millis(150);

/// How often the hub is told what the recording came to. It costs a look at every block.
const FIGURES_EVERY: Duration = Duration::from_secs(1);

/// The encoders, and where their chunks go.
pub(crate) struct Streams {
    outputs: Outputs,
    /// For the file, and for the hub unless there is the other.
    main: Encoder,
    /// For the hub, while somebody watches.
    live: Option<Encoder>,
    /// Bytes that were given to the file.
    appended: u64,
    /// A time before the first event that is in no chunk of the main encoder.
    since: Option<Instant>,
    pub(crate) summary: Summary,
    /// Events that were dropped and that no gap tells of yet.
    pub(crate) dropped: u64,
    info: RecordingInfo,
    /// When the hub was last told what the recording came to.
    figures_at: Option<Instant>,
}

impl Streams {
    /// Begins a recording; its head is written, so that there is one for whoever asks from now on.
    pub(crate) fn new(info: &RecordingInfo, outputs: Outputs) -> Self {
        let (main, summary) = (Encoder::new(info), Summary::default());
        let (info, figures_at) = (info.clone(), None);
        let (live, since, appended, dropped) = (None, None, 0, 0);
        let mut streams = Self { outputs, main, live, appended, since, summary, dropped, info, figures_at };
        let view = streams.outputs.file.as_ref().and_then(RecordingFile::view);
        if let Some((hub, view)) = streams.outputs.hub.as_ref().zip(view) {
            hub.set_file(view);
        }
        streams.pass_on();
        streams.flush_file();
        streams.join(true);
        streams
    }

    /// What a round brought has been taken. `since` is before the first of it, `None` where it was nothing; `at_once`
    /// says that all of it must be passed on.
    pub(crate) fn round(&mut self, since: Option<Instant>, at_once: bool) {
        let is_watched = self.is_watched();
        self.split_or_join(is_watched);
        self.since = self.since.or(since);
        if self.outputs.file.as_ref().is_some_and(RecordingFile::wants_state) {
            let state = self.main.state().clone();
            self.main.full_state(&state);
        }
        let shared = is_watched && self.live.is_none();
        let is_cut = at_once || shared || self.since.is_some_and(|since| since.elapsed() >= CUT_EVERY);
        if is_cut {
            self.main.flush();
            self.since = None;
        }
        if let Some(live) = &mut self.live {
            live.flush();
        }
        self.pass_on();
        if at_once {
            self.flush_file();
        }
        self.look_for_failure();
        self.join(is_cut || self.live.is_none());
        if at_once || self.figures_at.is_none_or(|at| at.elapsed() >= FIGURES_EVERY) {
            self.tell_figures();
        }
    }

    /// Whether there is any viewer.
    pub(crate) fn is_watched(&self) -> bool {
        self.outputs.hub.as_ref().is_some_and(Hub::is_watched)
    }

    /// Tells the hub what the recording came to so far.
    fn tell_figures(&mut self) {
        self.figures_at = Some(Instant::now());
        let Some(hub) = &self.outputs.hub else { return };
        let devices = self.main.state().devices().map(|(id, state)| {
            let info = self.info.devices.iter().find(|info| info.device == id.0).cloned();
            DeviceFigures::of(info.unwrap_or_else(|| DeviceInfo { device: id.0, ..DeviceInfo::default() }), state)
        });
        hub.set_figures(Figures {
            program: self.info.source.clone(),
            events: self.summary.events,
            lost_events: self.summary.lost_events + self.dropped,
            waits: self.summary.waits,
            waited: self.summary.waited,
            file_bytes: self.outputs.file.as_ref().map(RecordingFile::bytes),
            devices: devices.collect(),
        });
    }

    /// An encoder for the viewers comes with the first and goes with the last.
    fn split_or_join(&mut self, is_watched: bool) {
        let is_split = self.live.is_some();
        let shall_be = is_watched && self.outputs.file.is_some();
        if is_split == shall_be {
            return;
        }
        if shall_be {
            // What is complete is everyone's; what is begun the viewers get now, and the file when it is larger.
            self.pass_on();
            self.live = Some(self.main.clone());
            return;
        }
        // Both at the same event, so that one can go on for both.
        self.main.flush();
        self.since = None;
        if let Some(live) = &mut self.live {
            live.flush();
        }
        self.pass_on();
        self.live = None;
    }

    /// Gives the chunks that are complete to the file and the viewers.
    fn pass_on(&mut self) {
        let shared = |chunks: Vec<Chunk>| chunks.into_iter().map(Arc::new).collect::<Vec<_>>();
        let chunks = shared(self.main.take_output());
        let fresh = self.live.as_mut().map(|live| shared(live.take_output()));
        if let Some(hub) = &self.outputs.hub {
            let mut to_hub: Vec<_> = fresh.as_ref().unwrap_or(&chunks).clone();
            // An index speaks of places in the file.
            to_hub.retain(|chunk| is_of_the_recording(chunk.kind));
            if !to_hub.is_empty() {
                hub.publish(&to_hub);
            }
        }
        if self.outputs.file.is_none() && self.summary.file_error.is_none() {
            self.summary.bytes += chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
        }
        for chunk in chunks {
            if let Some(file) = &self.outputs.file {
                self.appended += chunk.bytes.len() as u64;
                file.append(chunk);
            }
        }
    }

    /// Lets the hub know how far the file is; `is_junction` says that it and the hub were given the same, in whatever chunks.
    fn join(&self, is_junction: bool) {
        if let Some(hub) = self.outputs.hub.as_ref().filter(|_| self.outputs.file.is_some()) {
            hub.join(is_junction.then_some(self.appended));
        }
    }

    fn flush_file(&self) {
        if let Some(file) = &self.outputs.file {
            file.flush();
        }
    }

    /// A file that failed is given up; the viewers go on.
    fn look_for_failure(&mut self) {
        let Some(file) = &self.outputs.file else { return };
        let Some(error) = file.failure() else { return };
        self.summary.bytes = file.bytes();
        self.outputs.file = None;
        if let Some(hub) = &self.outputs.hub {
            hub.file_is_over();
        }
        if let Some(tell) = self.outputs.on_file_error.take() {
            tell(&error);
        }
        self.summary.file_error = Some(error);
    }

    /// Ends the recording.
    pub(crate) fn finish(mut self) -> Summary {
        self.look_for_failure();
        if let Some(file) = self.outputs.file.take() {
            self.summary.bytes = file.bytes();
            match file.finish() {
                Ok(bytes) => self.summary.bytes = bytes,
                Err(error) => {
                    if let Some(tell) = self.outputs.on_file_error.take() {
                        tell(&error);
                    }
                    self.summary.file_error = Some(error);
                }
            }
        }
        self.summary
    }
}

impl Streams {
    /// What the recording says of itself from now on.
    pub(crate) fn head(&mut self, info: &RecordingInfo) {
        self.main.update_info(info);
        if let Some(live) = &mut self.live {
            live.update_info(info);
        }
        self.info = info.clone();
    }

    /// The memory after everything taken so far.
    pub(crate) fn state(&self) -> &MemoryState {
        self.main.state()
    }
}

impl Taker for Streams {
    fn seen(&mut self, device: DeviceId, seen: &DeviceState) {
        let mut state = self.main.state().clone();
        let (event, time_ns) = (state.event(), state.time_ns());
        state.device_mut(device).resync(seen, event, time_ns);
        self.full_state(&state);
    }
}

impl Sink for Streams {
    fn event(&mut self, event: &Event) {
        if let EventKind::Gap { lost } = event.kind {
            self.summary.lost_events += lost;
        }
        self.main.event(event);
        if let Some(live) = &mut self.live {
            live.event(event);
        }
    }
    fn define(&mut self, definition: &Definition) {
        self.main.define(definition);
        if let Some(live) = &mut self.live {
            live.define(definition);
        }
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.main.annotation(annotation);
        if let Some(live) = &mut self.live {
            live.annotation(annotation);
        }
    }
    fn full_state(&mut self, state: &MemoryState) {
        self.main.full_state(state);
        if let Some(live) = &mut self.live {
            live.full_state(state);
        }
    }
}
