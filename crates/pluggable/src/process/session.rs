//! The recording of the process and the page that shows it.

use std::path::PathBuf;
use std::sync::Arc;

use vramscope_collector::session::{Log, ProcessRecording, RecordingOptions, serve};
use vramscope_collector::{Controls, Hub, RecorderHandle, Server};
use vramscope_trace::{AnnotationStage, DeviceId, Event, EventKind, RecordingInfo, Sink as _, SiteId};

/// Maximum number of open spans that are kept until the recording starts; further ones are left
/// out.
const MAX_OPEN_SPANS: usize = 1024;

/// A recording of the process with its options and page. The recording starts when the first pool
/// is created, whose settings are in its header.
#[derive(Default)]
pub(super) struct Session {
    options: RecordingOptions,
    hub: Option<Hub>,
    /// The commands that the page may give.
    controls: Controls,
    server: Option<Server>,
    /// `None` before the first pool, and if nothing is recorded.
    recording: Option<Arc<ProcessRecording>>,
    stage: Stage,
    /// The names of the open spans, outermost first, until the recording starts.
    open_spans: Vec<String>,
}

/// Records a mark, or the beginning or end of a span, on a device.
pub(super) fn record_mark(handle: &mut RecorderHandle, device: DeviceId, stage: AnnotationStage, name: &str) {
    let kind = EventKind::Mark { stage, name: handle.name(name), address: 0, site: SiteId(0) };
    let time_ns = handle.now_ns();
    handle.event(&Event { device, time_ns, kind });
}

/// Whether the recording of a session waits for a pool, has started, or was ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No pool exists yet.
    #[default]
    Waiting,
    /// The recording has started, or could not start.
    Started,
    /// The program has ended the recording.
    Ended,
}

impl Session {
    /// Opens a session, and serves its page if the options say so. With `keeps_history`, the newest
    /// part of the recording is kept in memory even if neither a page nor a push needs it.
    pub(super) fn open(options: RecordingOptions, keeps_history: bool, log: &Log) -> Self {
        let controls = Controls::default();
        let (hub, server) = options.listen.map(|address| serve(address, &options, &controls, log)).unzip();
        // A push needs a hub even without a page.
        let needs_hub = keeps_history || options.push.is_some();
        let hub = hub.flatten().or_else(|| needs_hub.then(Hub::default));
        Self { options, hub, controls, server: server.flatten(), ..Self::default() }
    }

    /// Returns true if something is recorded, or will be from the first pool on.
    pub(super) fn is_active(&self) -> bool {
        let is_wanted = self.hub.is_some() || self.options.record.is_some();
        match self.stage {
            Stage::Waiting => is_wanted,
            Stage::Started => self.recording.is_some(),
            Stage::Ended => self.server.is_some(),
        }
    }

    /// Returns the page's address with its token; `None` if no page is served.
    pub(super) fn url(&self) -> Option<String> {
        self.server.as_ref().map(Server::url)
    }

    /// Updates the list of open spans with a beginning or an end of a span before the recording
    /// starts. Once it starts, spans that are still open are recorded.
    pub(super) fn mark_early(&mut self, name: &str, stage: AnnotationStage) {
        if self.stage != Stage::Waiting || !self.is_active() {
            return;
        }
        match stage {
            AnnotationStage::Begin if self.open_spans.len() < MAX_OPEN_SPANS => self.open_spans.push(name.to_owned()),
            AnnotationStage::End => {
                let begun = self.open_spans.iter().rposition(|open| open == name);
                begun.map(|position| self.open_spans.remove(position));
            }
            AnnotationStage::Begin | AnnotationStage::Instant => {}
        }
    }

    /// Starts the recording, unless the session has started before. `info` is its header; the marks
    /// of the page and the spans that are open are recorded on `device`.
    pub(super) fn start(&mut self, info: impl FnOnce() -> RecordingInfo, device: DeviceId, log: &Log) {
        if self.stage != Stage::Waiting {
            return;
        }
        self.stage = Stage::Started;
        let hub = self.hub.as_ref();
        self.recording = ProcessRecording::start(&self.options, hub, info(), log).map(Arc::new);
        let open_spans = std::mem::take(&mut self.open_spans);
        let Some(recording) = &self.recording else { return };
        let mut handle = recording.handle();
        open_spans.iter().for_each(|name| record_mark(&mut handle, device, AnnotationStage::Begin, name));
        if let Some(hub) = hub {
            self.controls.offer_recording(hub, &handle, device, PathBuf::new());
        }
    }

    /// Returns a handle of the recording in progress; `None` if nothing is being recorded.
    pub(super) fn handle(&self) -> Option<RecorderHandle> {
        self.running().map(|recording| recording.handle())
    }

    /// Returns the recording in progress; `None` if nothing is being recorded.
    pub(super) fn running(&self) -> Option<&Arc<ProcessRecording>> {
        self.recording.as_ref().filter(|_| self.stage == Stage::Started)
    }

    /// Returns the recording in progress and the hub with its newest part; `None` if no recording
    /// is in progress or it goes only to a file.
    pub(super) fn history(&self) -> Option<(Arc<ProcessRecording>, Hub)> {
        self.running().cloned().zip(self.hub.clone())
    }

    /// Ends the recording. Returns true if its file is complete or none was requested, else false.
    pub(super) fn stop(&mut self) -> bool {
        match (self.stage, &self.recording) {
            (Stage::Waiting, _) => true,
            (_, Some(recording)) => {
                self.stage = Stage::Ended;
                recording.stop()
            }
            // A requested file could not be created.
            (_, None) => self.options.record.is_none(),
        }
    }

    /// Ends the recording, then the page's server once its viewers have received the rest of the
    /// recording. Returns what [`stop`](Self::stop) returns.
    pub(super) fn close(&mut self) -> bool {
        let is_complete = self.stop();
        *self = Self { stage: Stage::Ended, ..Self::default() };
        is_complete
    }
}
