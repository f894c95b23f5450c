//! Encodes events into chunks for the file and for viewers.
//!
//! Viewers need chunks at once; a file needs large ones, because small chunks compress badly.
//! Without viewers, file and hub get the same chunks. While a program with a file has viewers,
//! events are encoded twice.

use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vramscope_trace::{
    Annotation, AnnotationStage, Chunk, Definition, DeviceId, DeviceInfo, DeviceState, Encoder, Event, EventKind,
    MemoryState, RecordingInfo, Relabel, Sink,
};

use super::merge::DeviceStateSink;
use super::outputs::{Outputs, Summary};
use crate::figures::{DeviceFigures, Figures, MarkFigures, count_mark};
use crate::file::{RecordingFile, is_of_the_recording};
use crate::hub::Hub;

/// Maximum age of events before their chunk is ended for the file. Together with the merge passes
/// around it, events reach the operating system within 250 ms.
const FILE_CHUNK_INTERVAL: Duration = Duration::from_millis(150);

/// Interval between updates of the figures that the hub publishes: memory of each device, number of
/// events, size of the file. Not shorter, because an update visits every block.
const FIGURES_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between updates of the figures while they are watched.
const WATCHED_FIGURES_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between updates of the figures, as a multiple of an update's duration: updates
/// take at most 2% of the recorder's time.
const FIGURES_SHARE: u32 = 50;

/// The recorder's outputs, a file and a hub, with the encoders of their chunks.
pub(crate) struct Streams {
    outputs: Outputs,
    /// Encodes for the file, and for the hub while they share chunks.
    main: Encoder,
    /// Encodes for the hub while it has viewers and there is a file.
    live: Option<Encoder>,
    /// Bytes passed to the file.
    appended: u64,
    /// A time before the first event in the incomplete chunk of `main`; `None` if that chunk has no
    /// events.
    since: Option<Instant>,
    pub(crate) summary: Summary,
    /// Number of dropped events that are not in a gap yet.
    pub(crate) dropped: u64,
    info: RecordingInfo,
    /// When the hub's totals are updated next; `None` before the first update.
    next_figures: Option<Instant>,
    /// Numbers of marks by name, for the figures; see [`Figures::marks`](crate::Figures::marks).
    marks: Vec<MarkFigures>,
}

impl Streams {
    /// Starts a recording. The header is written at once, so that viewers and readers of the file
    /// can start.
    pub(crate) fn new(info: &RecordingInfo, outputs: Outputs) -> Self {
        let (main, summary) = (Encoder::new(info), Summary::default());
        let (info, next_figures, marks) = (info.clone(), None, Vec::new());
        let (live, since, appended, dropped) = (None, None, 0, 0);
        let mut streams = Self { outputs, main, live, appended, since, summary, dropped, info, next_figures, marks };
        let view = streams.outputs.file.as_ref().and_then(RecordingFile::view);
        if let Some((hub, view)) = streams.outputs.hub.as_ref().zip(view) {
            hub.set_file(view);
        }
        streams.pass_on();
        streams.flush_file();
        streams.sync_file(true);
        streams
    }

    /// Ends a merge pass and passes complete chunks to the file and the hub. `since` is a time
    /// before the pass's first event, to limit that event's delay; `None` if the pass had no
    /// events. With `at_once`, the incomplete chunks are also ended and passed on.
    pub(crate) fn finish_pass(&mut self, since: Option<Instant>, at_once: bool) {
        let is_watched = self.is_watched();
        self.update_live_encoder(is_watched);
        self.since = self.since.or(since);
        if self.outputs.file.as_ref().is_some_and(RecordingFile::wants_state) {
            let state = self.main.state().clone();
            self.main.replace_state(&state);
        }
        let shared = is_watched && self.live.is_none();
        let is_cut = at_once || shared || self.since.is_some_and(|since| since.elapsed() >= FILE_CHUNK_INTERVAL);
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
        self.handle_file_failure();
        self.sync_file(is_cut || self.live.is_none());
        if at_once || self.next_figures.is_none_or(|next| Instant::now() >= next) {
            self.update_figures();
        }
    }

    /// Writes a full state of all devices to the file and the hub.
    pub(crate) fn write_state(&mut self) {
        let state = self.main.state().clone();
        self.replace_state(&state);
    }

    /// Iterates over the encoders that receive events: one, or two while viewers have their own.
    fn encoders(&mut self) -> impl Iterator<Item = &mut Encoder> {
        iter::once(&mut self.main).chain(&mut self.live)
    }

    /// Returns true if the hub has at least one viewer, which needs chunks at once; false without a
    /// hub.
    pub(crate) fn is_watched(&self) -> bool {
        self.outputs.hub.as_ref().is_some_and(Hub::is_watched)
    }

    /// Passes current figures to the hub: memory of each device, numbers of events, lost events and
    /// waits of the program, size of the file.
    fn update_figures(&mut self) {
        let start = Instant::now();
        self.next_figures = Some(start + FIGURES_INTERVAL);
        let Some(hub) = &self.outputs.hub else { return };
        let is_watched = hub.has_watched_figures();
        let devices = self.main.state().devices().map(|(id, state)| {
            let info = self.info.devices.iter().find(|info| info.device == id.0).cloned();
            let info = info.unwrap_or_else(|| DeviceInfo { device: id.0, ..DeviceInfo::default() });
            let figures = DeviceFigures::of(info, state);
            if is_watched { figures.with_largest_sites(state) } else { figures }
        });
        hub.set_figures(Figures {
            program: self.info.source.clone(),
            events: self.summary.events,
            lost_events: self.summary.lost_events + self.dropped,
            waits: self.summary.waits,
            waited: self.summary.waited,
            file_bytes: self.outputs.file.as_ref().map(RecordingFile::bytes),
            marks: self.marks.clone(),
            devices: devices.collect(),
        });
        if is_watched {
            self.next_figures = Some(start + WATCHED_FIGURES_INTERVAL.max(start.elapsed() * FIGURES_SHARE));
        }
    }

    /// Creates the separate encoder for viewers when the first viewer connects, and removes it when
    /// the last one has left. Without a file, one encoder serves both.
    fn update_live_encoder(&mut self, is_watched: bool) {
        let is_split = self.live.is_some();
        let must_split = is_watched && self.outputs.file.is_some();
        if is_split == must_split {
            return;
        }
        if must_split {
            // Complete chunks go to both. The current one goes to the viewers now, and to the file
            // when it is larger.
            self.pass_on();
            self.live = Some(self.main.clone());
            return;
        }
        // Both end a chunk at the same event, so that one encoder can continue for both.
        self.main.flush();
        self.since = None;
        if let Some(live) = &mut self.live {
            live.flush();
        }
        self.pass_on();
        self.live = None;
    }

    /// Passes complete chunks to the file and the hub, and tells the hub the size of the file.
    fn pass_on(&mut self) {
        let shared = |chunks: Vec<Chunk>| chunks.into_iter().map(Arc::new).collect::<Vec<_>>();
        let chunks = shared(self.main.take_output());
        let live_chunks = self.live.as_mut().map(|live| shared(live.take_output()));
        if let Some(hub) = &self.outputs.hub {
            let mut to_hub: Vec<_> = live_chunks.as_ref().unwrap_or(&chunks).clone();
            // Viewers get no index chunks, because an index refers to positions in the file.
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

    /// Tells the hub how much of the file is written. `is_sync_point` is true if file and hub have
    /// been given equal events, so that a viewer can switch from the file to the hub.
    fn sync_file(&self, is_sync_point: bool) {
        if let Some(hub) = self.outputs.hub.as_ref().filter(|_| self.outputs.file.is_some()) {
            hub.sync_file(is_sync_point.then_some(self.appended));
        }
    }

    /// Blocks until everything passed to the file has been written.
    fn flush_file(&self) {
        if let Some(file) = &self.outputs.file {
            file.flush();
        }
    }

    /// Stops using the file if it has failed, and reports the error. The recording continues for
    /// the hub.
    fn handle_file_failure(&mut self) {
        let Some(file) = &self.outputs.file else { return };
        let Some(error) = file.failure() else { return };
        self.summary.bytes = file.bytes();
        self.outputs.file = None;
        if let Some(hub) = &self.outputs.hub {
            hub.file_ended();
        }
        if let Some(callback) = self.outputs.on_file_error.take() {
            callback(&error);
        }
        self.summary.file_error = Some(error);
    }

    /// Ends the recording: closes the file and returns the recording's number of events, size,
    /// waits and file error.
    pub(crate) fn finish(mut self) -> Summary {
        self.handle_file_failure();
        if let Some(file) = self.outputs.file.take() {
            self.summary.bytes = file.bytes();
            match file.finish() {
                Ok(bytes) => self.summary.bytes = bytes,
                Err(error) => {
                    if let Some(callback) = self.outputs.on_file_error.take() {
                        callback(&error);
                    }
                    self.summary.file_error = Some(error);
                }
            }
        }
        self.summary
    }
}

impl Streams {
    /// Replaces the recording's header: program, devices, start time, settings.
    #[cfg(feature = "server")]
    pub(crate) fn update_info(&mut self, info: &RecordingInfo) {
        self.encoders().for_each(|encoder| encoder.update_info(info));
        self.info = info.clone();
    }

    /// Returns the segments and blocks of all devices after all events so far.
    #[cfg(feature = "server")]
    pub(crate) fn state(&self) -> &MemoryState {
        self.main.state()
    }
}

impl DeviceStateSink for Streams {
    fn device_state(&mut self, device: DeviceId, device_state: &DeviceState) {
        let mut state = self.main.state().clone();
        let (event, time_ns) = (state.event(), state.time_ns());
        state.device_mut(device).resync(device_state, event, time_ns);
        self.replace_state(&state);
    }
}

impl Sink for Streams {
    fn event(&mut self, event: &Event) {
        if let EventKind::Gap { lost } = event.kind {
            self.summary.lost_events += lost;
        }
        if let EventKind::Mark { stage: AnnotationStage::Instant | AnnotationStage::Begin, name, .. } = event.kind {
            count_mark(&mut self.marks, name, event.time_ns);
        }
        self.encoders().for_each(|encoder| encoder.event(event));
    }
    fn define(&mut self, definition: &Definition) {
        self.encoders().for_each(|encoder| encoder.define(definition));
    }
    fn annotation(&mut self, annotation: &Annotation) {
        self.encoders().for_each(|encoder| encoder.annotation(annotation));
    }
    fn relabel(&mut self, relabel: &Relabel) {
        self.encoders().for_each(|encoder| encoder.relabel(relabel));
    }
    fn replace_state(&mut self, state: &MemoryState) {
        self.encoders().for_each(|encoder| encoder.replace_state(state));
    }
}
