//! The model's state, and the methods that move through the recording.

use std::cell::Cell;
use std::ops::Range;

use vramscope_insight::group::GroupBy;
use vramscope_insight::incremental::CompleteReplay;
use vramscope_insight::pools::FreeMemory;
use vramscope_insight::spans::Marks;
use vramscope_trace::{DeviceId, DeviceState, Event, FormatError, IncidentKind, MemoryState, Peak, Recording, Replay};

use super::comparison::Comparison;
use super::live_state::LiveState;
use crate::bands::{Band, BandChoice, VisibleBands};
use crate::link::Link;
use crate::open::LoadedFile;
use crate::playback::Playback;
use crate::span::TimeSpan;
use crate::timeline::{AxisKind, PeakMark, Scale, Stacking};

/// The origin of the recording on the page.
///
/// The model has no connection of its own: [`disconnect`](Model::disconnect) and
/// [`reconnect`](Model::reconnect) switch between `Live` and `Disconnected`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// No recording has been opened.
    #[default]
    Empty,
    /// A file or URL.
    File,
    /// A running program.
    Live,
    /// A program whose connection has ended.
    Disconnected,
}

/// The kind of a device's peak: of its allocated or of its reserved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeakKind {
    /// The peak of the allocated bytes.
    Allocated,
    /// The peak of the reserved bytes.
    Reserved,
}

/// The parts of the page that have changed, and must be computed and drawn again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Whether the timeline has changed: the recording, the range of time or the bands.
    pub timeline: bool,
    /// Whether anything that depends on the moment has changed: cursor, panes and texts.
    pub moment: bool,
}

/// A requested moment whose bytes are not loaded yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingMoment {
    /// The moment after this many events.
    Event(u64),
    /// The last moment at or before a time in nanoseconds; its event number is known once the
    /// events are loaded.
    Time(u64),
}

/// A peak of a counter, and the time (perhaps approximate) at which the timeline marks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FoundPeak {
    pub(super) peak: Peak,
    pub(super) mark: PeakMark,
    /// Whether the mark's time is only the start of the time slice that contains the peak.
    pub(super) is_approximate: bool,
}

/// Everything that the page shows: recording, moment, device, selection and view.
#[derive(Default)]
pub struct Model {
    pub(super) recording: Recording,
    pub(super) live: LiveState,
    /// A replay of the selected device up to the moment on the screen.
    replay: Replay,
    /// A replay of all devices up to the moment on the screen, made on demand.
    pub(super) complete_replay: CompleteReplay,
    /// Reads single events without moving the moment on the screen.
    pub(super) lookup: Replay,
    pub(super) marks: Marks,
    /// Peaks of the allocated and the reserved bytes.
    pub(super) peaks: [FoundPeak; 2],
    /// The file's name, or "live".
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) device: DeviceId,
    /// The range that the timeline shows, in positions of `scale`.
    pub(super) span: TimeSpan,
    /// The scale of the timeline's axis: its unit, and the steps on an axis of steps.
    pub(super) scale: Scale,
    /// The unit that the user chose for the timeline's axis. Until the recording has been read,
    /// `scale` may have another one.
    pub(super) axis: AxisKind,
    /// Whether the timeline leaves out idle time; `None` leaves it out if `is_mostly_idle`.
    pub(super) cuts_idle: Option<bool>,
    /// Whether most of the recording is known to be idle time.
    pub(super) is_mostly_idle: bool,
    /// Whether the page still shows the moment at which the recording was opened.
    pub(super) is_at_opening: bool,
    /// The areas of the timeline that the user chose; `None` for the usual ones.
    pub(super) stacking: Option<Stacking>,
    /// The property by which the timeline groups and stacks the live bytes unless the user chooses
    /// another one; `None` shows the counters.
    pub(super) usual_stack: Option<GroupBy>,
    /// The range of a link, in positions of `axis`, until this axis can be shown.
    pub(super) pending_part: Option<Range<u64>>,
    /// The times in nanoseconds that the timeline shows on an axis of events or steps.
    pub(super) shown_times: Range<u64>,
    /// Whether the next change of the moment leaves the timeline's range as it is, instead of
    /// scrolling to the moment.
    pub(super) holds_span: bool,
    /// Whether the page moves to each newest event of a live recording.
    pub(super) following: bool,
    /// A link into a part of a live recording that has not arrived yet.
    pub(super) pending_link: Option<Link>,
    /// The selected device address.
    pub(super) selection: Option<u64>,
    /// The event number from which the selected allocation exists.
    pub(super) selected_since: Option<u64>,
    /// First and last event number of the selected range.
    pub(super) selected_range: Option<(u64, u64)>,
    /// The selected group: what blocks are grouped by, and the group's number.
    pub(super) selected_group: Option<(GroupBy, u32)>,
    /// A cache of the free memory of a device at a moment (event number).
    pub(super) free_memory: Cell<Option<(DeviceId, u64, FreeMemory)>>,
    /// The moment that the page goes to once its bytes are loaded.
    pub(super) pending_moment: Option<PendingMoment>,
    /// Whether loading has stopped after an error.
    pub(super) fetching_failed: bool,
    /// Device, time range in nanoseconds and width in pixels of the last timeline whose columns
    /// were all exact.
    pub(super) complete_view: Option<(DeviceId, Range<u64>, usize)>,
    /// Whether the rest of the recording is not to be loaded in advance: it is loaded or too large.
    pub(super) is_rest_settled: bool,
    /// Whether [`last_event`](Self::last_event) found that the event is not loaded.
    pub(super) last_event_is_missing: bool,
    /// Width of the timeline's chart in pixels; every pixel column is loaded until it is exact.
    pub timeline_width: usize,
    /// The state and the speed of playback.
    pub playback: Playback,
    pub(super) band_choice: BandChoice,
    /// The second side of a comparison with the recording.
    pub comparison: Comparison,
    /// The state of every device before its first event.
    empty_device: DeviceState,
    pub(super) changes: Changes,
    /// Number of recordings opened so far; a live recording that is read again counts again.
    opened: u64,
}

impl Model {
    /// Replaces the recording by an empty one called `name`. Keeps the settings of bands,
    /// the timeline's axis and the playback speed.
    pub fn reset(&mut self, name: &str, origin: Origin) {
        *self = Self {
            name: name.to_owned(),
            origin,
            following: origin == Origin::Live,
            band_choice: self.band_choice,
            axis: self.axis,
            cuts_idle: self.cuts_idle,
            stacking: self.stacking,
            timeline_width: self.timeline_width,
            playback: Playback::at_speed(self.playback.speed()),
            changes: Changes { timeline: true, moment: true },
            opened: self.opened + 1,
            ..Self::default()
        };
    }

    /// Shows the recording of the file called `name`: at its first failed request, else at the peak
    /// of its allocated bytes.
    ///
    /// # Errors
    /// If the recording cannot be read.
    pub fn show(&mut self, name: &str, file: LoadedFile) -> Result<(), FormatError> {
        self.reset(name, Origin::File);
        self.recording = file.recording;
        self.recording_changed()?;
        // Users mostly open a recording to find out why a request failed, or what used the memory.
        let mut incidents = self.recording.incidents().iter();
        let failure = incidents.find(|one| matches!(one.kind, IncidentKind::OutOfMemory { .. }));
        match failure.map(|failure| (failure.device, failure.at_event.saturating_add(1))) {
            Some((device, event)) => {
                self.set_device(device)?;
                self.seek(event)?;
            }
            None => self.seek(self.peak_event(PeakKind::Allocated))?,
        }
        self.is_at_opening = true;
        Ok(())
    }

    /// Notes that the user has done something since the recording was opened.
    pub fn leave_opening(&mut self) {
        self.is_at_opening = false;
    }

    /// Returns true if the page still shows the moment at which the recording was opened.
    pub fn is_at_opening(&self) -> bool {
        self.is_at_opening
    }

    /// Returns the parts of the page that have changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Returns true if any part of the page has changed since the last
    /// [`take_changes`](Self::take_changes).
    pub fn has_changed(&self) -> bool {
        self.changes.timeline || self.changes.moment
    }

    /// Marks the timeline, and everything that depends on the moment, to be computed and drawn
    /// again, for example after a new recording was opened.
    pub fn everything_changed(&mut self) {
        self.changes = Changes { timeline: true, moment: true };
    }

    /// Marks everything that depends on the moment (cursor, map, texts) as changed.
    pub fn moment_changed(&mut self) {
        self.changes.moment = true;
    }

    // Methods that change the moment on the screen.

    /// Goes to the moment after `event` events, or to the nearest one in the recording: now, or
    /// once its bytes are loaded. Does not stop following.
    pub(super) fn go_to(&mut self, event: u64) -> Result<(), FormatError> {
        if self.load_moment(PendingMoment::Event(event)) {
            return Ok(());
        }
        if event != self.state().event() {
            self.complete_replay.restart();
        }
        self.free_memory.set(None);
        if self.replay.device() == Some(self.device) {
            self.replay.seek(&self.recording, event)?;
        } else {
            let mut replay = Replay::of_device(self.device).with_checkpoints();
            replay.seek(&self.recording, event)?;
            self.replay = replay;
        }
        self.changes.moment = true;
        if !std::mem::take(&mut self.holds_span) {
            let position = self.scale.position(self.timed_moment());
            self.changes.timeline |= self.span.scroll_to(position, self.whole());
        }
        Ok(())
    }

    /// Stops following the newest event, and stops waiting for a link's moment to arrive.
    fn stop_following(&mut self) {
        self.following = false;
        self.pending_link = None;
        self.live.linked_event = None;
    }

    /// Goes to the moment after `event` events, or to the nearest one in the recording, and stops
    /// following the newest event.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn seek(&mut self, event: u64) -> Result<(), FormatError> {
        self.stop_following();
        self.playback.restart_clock();
        self.holds_span = false;
        self.is_at_opening = false;
        self.go_to(event)
    }

    /// Goes to the moment after `event` events like [`seek`](Self::seek), but keeps the timeline's
    /// range, which the link states as well.
    pub(super) fn seek_linked(&mut self, event: u64) -> Result<(), FormatError> {
        self.is_at_opening = false;
        self.stop_following();
        self.playback.restart_clock();
        self.holds_span = true;
        self.go_to(event)
    }

    /// Goes to the last moment at or before `time_ns` (nanoseconds of the recording's time), and
    /// stops following the newest event.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn seek_time(&mut self, time_ns: u64) -> Result<(), FormatError> {
        let event = self.replay.event_at_time(&self.recording, time_ns);
        self.seek(event)?;
        if self.is_loading() {
            self.pending_moment = Some(PendingMoment::Time(time_ns));
        }
        Ok(())
    }

    /// Goes to the last moment of the recording if `end`, else to the first one, and stops
    /// following the newest event.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_to_edge(&mut self, end: bool) -> Result<(), FormatError> {
        self.seek(if end { self.recording.end_event() } else { self.recording.first_event() })
    }

    /// Goes to the first moment at which the selected device reaches a peak, and pauses playback.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_to_peak(&mut self, kind: PeakKind) -> Result<(), FormatError> {
        self.playback.pause();
        self.seek(self.peak_event(kind))
    }

    /// Goes to the recording's last event, and follows the newest event of a live recording.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn follow(&mut self) -> Result<(), FormatError> {
        self.playback.pause();
        self.pending_link = None;
        self.following = self.origin == Origin::Live;
        self.span.scroll_to_end(self.whole());
        self.changes.timeline = true;
        self.go_to(self.recording.end_event())
    }

    /// Starts playback, or pauses it if it is playing. At the last moment, playback starts from the
    /// recording's beginning. `clock_ms` is the time of the page's clock in milliseconds.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn play_or_pause(&mut self, clock_ms: f64) -> Result<(), FormatError> {
        self.changes.moment = true;
        if self.playback.is_playing() {
            self.playback.pause();
            return Ok(());
        }
        if self.target_event() == self.recording.end_event() {
            self.go_to_edge(false)?;
        }
        self.stop_following();
        self.playback.play(clock_ms, self.time_ns());
        if self.is_loading() {
            self.playback.restart_clock();
        }
        Ok(())
    }

    /// Advances playback to the time `clock_ms` of the page's clock, in milliseconds. Returns true
    /// while it is playing.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn tick(&mut self, clock_ms: f64) -> Result<bool, FormatError> {
        if self.is_loading() {
            self.playback.skip_time_to(clock_ms);
            return Ok(self.playback.is_playing());
        }
        let (first, end) = (self.recording.first_event(), self.recording.end_event());
        if let Some(events) = self.playback.advance_events(clock_ms, end - first) {
            let event = self.state().event().saturating_add(events).min(end);
            if event == end {
                self.playback.pause();
            }
            if events > 0 {
                self.go_to(event)?;
            }
            self.changes.moment = true;
            return Ok(self.playback.is_playing());
        }
        let now_ns = self.time_ns();
        let Some(time_ns) = self.playback.advance(clock_ms, now_ns) else { return Ok(false) };
        if time_ns >= self.recording.end_ns() {
            self.playback.pause();
            self.go_to(self.recording.end_event())?;
            return Ok(false);
        }
        let event = self.replay.event_at_time(&self.recording, time_ns);
        if !self.load_moment(PendingMoment::Time(time_ns)) && event > self.state().event() {
            self.go_to(event)?;
        }
        self.changes.moment = true;
        Ok(true)
    }

    /// Shows a band of the timeline (device memory beyond the reserved bytes) if it is hidden, or
    /// hides it if it is shown.
    pub fn toggle_band(&mut self, band: Band) {
        let is_shown = self.bands().contains(band);
        self.band_choice.set(band, !is_shown);
        self.changes.timeline = true;
    }

    // Methods that return what the page shows.

    /// Returns the recording on the page.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Returns the memory state at the moment on the screen, which has only the selected device.
    ///
    /// For the memory of all devices see [`all_devices`](Self::all_devices).
    pub fn state(&self) -> &MemoryState {
        self.replay.state()
    }

    /// Returns the time of the moment on the screen, in nanoseconds of the recording's time. During
    /// playback it may be between two events.
    pub fn time_ns(&self) -> u64 {
        self.playback.time_ns().unwrap_or_else(|| self.state().time_ns()).max(self.recording.start_ns())
    }

    /// Returns the memory of the selected device; empty before its first event.
    pub fn device_state(&self) -> &DeviceState {
        self.state().device(self.device).unwrap_or(&self.empty_device)
    }

    /// Returns the last event before the moment on the screen, with its index from 0.
    ///
    /// Returns `None` at the start of the recording, and while the event is not loaded.
    pub fn last_event(&mut self) -> Option<(u64, Event)> {
        let number = self.state().event().checked_sub(1)?;
        let event = self.replay.event(&self.recording, number);
        self.last_event_is_missing = event.is_err();
        event.ok().flatten().map(|event| (number, event))
    }

    /// Returns the recording's spans (named intervals and moments), out-of-memory errors and gaps.
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Returns the selected device's peak of the allocated bytes and its peak of the reserved
    /// bytes.
    pub fn peaks(&self) -> [PeakMark; 2] {
        self.peaks.map(|found| found.mark)
    }

    /// Returns the bands that the timeline draws on the reserved bytes: this process's memory
    /// outside the pool, other processes' memory, both or none.
    pub fn bands(&self) -> VisibleBands {
        self.band_choice.visible(self.recording.series(self.device))
    }

    /// Returns the event number of the first moment at which the selected device reaches a peak.
    pub fn peak_event(&self, kind: PeakKind) -> u64 {
        self.peaks[usize::from(kind == PeakKind::Reserved)].peak.event
    }

    /// Returns the name of the file; for a live recording, the name of the program.
    pub fn source(&self) -> &str {
        let program = self.recording.info().source.as_str();
        if self.origin == Origin::File || program.is_empty() { &self.name } else { program }
    }

    /// Returns the number of recordings opened so far. It changes whenever the recording on the
    /// page is replaced or read again.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Returns the origin of the recording on the page.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns true while the page moves to each newest event of a live recording.
    pub fn is_following(&self) -> bool {
        self.following
    }

    /// Returns the selected device.
    pub fn device(&self) -> DeviceId {
        self.device
    }
}
