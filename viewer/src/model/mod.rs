//! What is being looked at: the recording, the moment, the range of time, the selection. Every change is a method here that takes
//! what it needs as arguments, the clock too; nothing here knows of a page.

mod growth;
mod links;
mod peaks;
mod reads;

use std::ops::Range;

use vramscope_trace::{DeviceId, DeviceState, Event, FormatError, MemoryState, Recording, Replay};

use crate::bands::{Band, Bands, Choice};
use crate::heatmap::{ColorBy, Hit, View, hit_at};
use crate::link::Link;
use crate::marks::Marks;
use crate::open::Opened;
use crate::playback::Playback;
use crate::span::{TimeSpan, whole};
use crate::timeline::PeakMark;
use growth::Growth;
pub use growth::{LIVE_LIMIT_BYTES, WHOLE_LIMIT_BYTES};
use peaks::Found;
pub use reads::Fetch;
use reads::Wish;

/// Where the recording comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// There is none yet.
    #[default]
    Nowhere,
    /// A file, dropped, picked or named in the address.
    File,
    /// A training program that is running.
    Live,
    /// One that was, until the connection ended.
    Disconnected,
}

/// Which peak to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeakOf {
    /// Allocated bytes.
    Allocated,
    /// Reserved bytes.
    Reserved,
}

/// What must be drawn anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stale {
    /// The timeline's picture: other data, another range.
    pub timeline: bool,
    /// Everything that shows the moment.
    pub moment: bool,
}

/// Everything that a page shows.
#[derive(Default)]
pub struct Model {
    recording: Recording,
    growth: Growth,
    replay: Replay,
    /// Looks things up elsewhere in the recording without moving the moment.
    scout: Replay,
    marks: Marks,
    /// The peaks of the allocated and the reserved bytes.
    peaks: [Found; 2],
    name: String,
    notes: Vec<String>,
    origin: Origin,
    device: DeviceId,
    span: TimeSpan,
    following: bool,
    /// Where a link leads, while the live recording has not come that far.
    awaited: Option<Link>,
    selection: Option<u64>,
    /// The moment that is waited for, while its bytes are read.
    wish: Option<Wish>,
    /// Whether bytes could not be had.
    gave_up: bool,
    /// The timeline's device, range and width for which all is here that it is drawn from.
    complete_view: Option<(DeviceId, Range<u64>, usize)>,
    /// Whether the event that led to the moment was asked for before it was here.
    lacks_last_event: bool,
    /// How many pixels wide the timeline's chart is.
    pub timeline_width: usize,
    /// How the transport runs.
    pub playback: Playback,
    /// What the color of a block says.
    pub color_by: ColorBy,
    band_choice: Choice,
    /// How the heatmap is looked at.
    pub heatmap_view: View,
    /// What a GPU holds at a moment before its first event.
    nothing: DeviceState,
    stale: Stale,
}

impl Model {
    /// Begins with an empty recording called `name`, to be filled by [`push`](Self::push).
    pub fn begin(&mut self, name: &str, origin: Origin) {
        *self = Self {
            name: name.to_owned(),
            origin,
            following: origin == Origin::Live,
            color_by: self.color_by,
            band_choice: self.band_choice,
            timeline_width: self.timeline_width,
            playback: Playback::at_speed(self.playback.speed()),
            stale: Stale { timeline: true, moment: true },
            ..Self::default()
        };
    }

    /// Shows the recording of the file called `name`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn show(&mut self, name: &str, opened: Opened) -> Result<(), FormatError> {
        self.begin(name, Origin::File);
        self.recording = opened.recording;
        self.notes = opened.notes;
        self.after_growth()?;
        // What a person opens a recording for is most often where its memory went.
        self.seek(self.peak_event(PeakOf::Allocated))
    }

    /// What must be drawn anew since the last call.
    pub fn take_stale(&mut self) -> Stale {
        std::mem::take(&mut self.stale)
    }

    /// Marks everything as in need of drawing.
    pub fn redraw(&mut self) {
        self.stale = Stale { timeline: true, moment: true };
    }

    /// Marks what shows the moment as in need of drawing.
    pub fn redraw_moment(&mut self) {
        self.stale.moment = true;
    }

    // The moment.

    /// Goes to a moment, now or when what it takes has come.
    fn go_to(&mut self, event: u64) -> Result<(), FormatError> {
        if self.wait_for(Wish::Event(event)) {
            return Ok(());
        }
        self.replay.seek(&self.recording, event)?;
        self.stale.moment = true;
        self.stale.timeline |= self.span.show(self.replay.state().time_ns(), self.whole());
        Ok(())
    }

    /// The person looks where they like from now on, and not where the recording or a link leads.
    fn stop_following(&mut self) {
        self.following = false;
        self.awaited = None;
        self.growth.linked = None;
    }

    /// Goes to a moment by the number of events before it, and stops following.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn seek(&mut self, event: u64) -> Result<(), FormatError> {
        self.stop_following();
        self.playback.settle();
        self.go_to(event)
    }

    /// Goes to the last moment at or before a time.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn seek_time(&mut self, time_ns: u64) -> Result<(), FormatError> {
        self.seek(self.recording.event_at_time(time_ns))?;
        if self.is_waiting() {
            self.wish = Some(Wish::Time(time_ns));
        }
        Ok(())
    }

    /// Goes forward or back by a number of events.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn step(&mut self, events: i64) -> Result<(), FormatError> {
        self.playback.pause();
        self.seek(self.moment().saturating_add_signed(events))
    }

    /// Goes to the first or the last moment.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_to_edge(&mut self, end: bool) -> Result<(), FormatError> {
        self.seek(if end { self.recording.end_event() } else { self.recording.first_event() })
    }

    /// Goes to the first moment at which a peak is reached.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn go_to_peak(&mut self, of: PeakOf) -> Result<(), FormatError> {
        self.playback.pause();
        self.seek(self.peak_event(of))
    }

    /// Sticks to the newest event, or no longer.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn follow(&mut self) -> Result<(), FormatError> {
        self.playback.pause();
        self.awaited = None;
        self.following = self.origin == Origin::Live;
        self.span.slide_to_end(self.whole());
        self.stale.timeline = true;
        self.go_to(self.recording.end_event())
    }

    /// Starts or stops playing; from the beginning if the moment is the last.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn play_or_pause(&mut self, clock_ms: f64) -> Result<(), FormatError> {
        self.stale.moment = true;
        if self.playback.is_playing() {
            self.playback.pause();
            return Ok(());
        }
        if self.moment() == self.recording.end_event() {
            self.go_to_edge(false)?;
        }
        self.stop_following();
        self.playback.play(clock_ms, self.time_ns());
        if self.is_waiting() {
            self.playback.settle();
        }
        Ok(())
    }

    /// Lets the recording run on if it is playing. Says whether it still is.
    ///
    /// # Errors
    /// If the recording cannot be read there.
    pub fn tick(&mut self, clock_ms: f64) -> Result<bool, FormatError> {
        if self.is_waiting() {
            self.playback.hold(clock_ms);
            return Ok(self.playback.is_playing());
        }
        let now_ns = self.time_ns();
        let Some(time_ns) = self.playback.advance(clock_ms, now_ns) else { return Ok(false) };
        if time_ns >= self.recording.end_ns() {
            self.playback.pause();
            self.go_to(self.recording.end_event())?;
            return Ok(false);
        }
        let event = self.recording.event_at_time(time_ns);
        if !self.wait_for(Wish::Time(time_ns)) && event > self.state().event() {
            self.go_to(event)?;
        }
        self.stale.moment = true;
        Ok(true)
    }

    // The range of time.

    /// The time that the timeline shows.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.span.of(self.whole())
    }

    fn whole(&self) -> Range<u64> {
        whole(self.recording.start_ns(), self.recording.end_ns())
    }

    /// Changes the time that the timeline shows.
    fn set_span(&mut self, change: impl FnOnce(&mut TimeSpan, Range<u64>)) {
        let whole = self.whole();
        change(&mut self.span, whole);
        self.gave_up = false;
        self.redraw();
    }

    /// Shows the whole recording.
    pub fn fit(&mut self) {
        self.set_span(|span, _| *span = TimeSpan::default());
    }

    /// Shows `factor` times as much time, keeping `around_ns` where it is.
    pub fn zoom(&mut self, factor: f64, around_ns: u64) {
        self.set_span(|span, whole| span.zoom(factor, around_ns, whole));
    }

    /// Moves the range by a share of its length.
    pub fn pan(&mut self, share: f64) {
        self.set_span(|span, whole| span.pan(share, whole));
    }

    /// Draws a band that is not drawn, or no longer one that is.
    pub fn toggle_band(&mut self, band: Band) {
        let shown = self.bands().shows(band);
        self.band_choice.set(band, !shown);
        self.stale.timeline = true;
    }

    // The device and the selection.

    /// Shows another GPU.
    ///
    /// # Errors
    /// If the recording cannot be read.
    pub fn set_device(&mut self, device: DeviceId) -> Result<(), FormatError> {
        if self.recording.series(device).is_some() && device != self.device {
            self.device = device;
            self.selection = None;
            self.heatmap_view = View::default();
            self.peaks = Default::default();
            self.find_peaks();
            self.redraw();
        }
        Ok(())
    }

    /// Keeps the details of what is at an address, whatever becomes of it; `None` lets go of it.
    pub fn select(&mut self, address: Option<u64>) {
        self.selection = address;
        self.stale.moment = true;
    }

    /// Selects the stretch before or behind the selected one, or the first of the segment before or behind.
    pub fn select_neighbor(&mut self, forward: bool, whole_segments: bool) {
        let device = self.device_state();
        let mut stops: Box<dyn Iterator<Item = u64>> = if whole_segments {
            Box::new(device.segments().map(|segment| segment.address))
        } else {
            Box::new(device.segments().flat_map(|segment| device.extents(segment)).map(|extent| extent.address))
        };
        let here = self.selected().map(|hit| if whole_segments { hit.segment.address } else { hit.address });
        let next = match here {
            None => stops.next(),
            Some(here) if forward => stops.find(|&stop| stop > here),
            Some(here) => stops.by_ref().take_while(|&stop| stop < here).last(),
        };
        drop(stops);
        if next.is_some() {
            self.select(next);
        }
    }

    /// What is at the selected address now.
    #[must_use]
    pub fn selected(&self) -> Option<Hit> {
        hit_at(self.device_state(), self.selection?)
    }

    // What there is to be seen.

    /// The recording.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// The memory at the moment on the screen.
    #[must_use]
    pub fn state(&self) -> &MemoryState {
        self.replay.state()
    }

    /// The time of the moment on the screen; while the recording runs, also between two events.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.playback.time_ns().unwrap_or_else(|| self.state().time_ns()).max(self.recording.start_ns())
    }

    /// The memory of the GPU on the screen; nothing at a moment before its first event.
    #[must_use]
    pub fn device_state(&self) -> &DeviceState {
        self.state().device(self.device).unwrap_or(&self.nothing)
    }

    /// The event that led to the moment on the screen, with its number.
    pub fn last_event(&mut self) -> Option<(u64, Event)> {
        let number = self.state().event().checked_sub(1)?;
        let event = self.scout.event(&self.recording, number);
        self.lacks_last_event = event.is_err();
        event.ok().flatten().map(|event| (number, event))
    }

    /// Marks on the time axis.
    #[must_use]
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// The peaks of the allocated and the reserved bytes.
    #[must_use]
    pub fn peaks(&self) -> [PeakMark; 2] {
        self.peaks.map(|found| found.mark)
    }

    /// What is drawn of the memory outside of the pool.
    #[must_use]
    pub fn bands(&self) -> Bands {
        self.band_choice.bands(self.recording.series(self.device))
    }

    /// The first moment at which a peak is reached.
    #[must_use]
    pub fn peak_event(&self, of: PeakOf) -> u64 {
        self.peaks[usize::from(of == PeakOf::Reserved)].peak.event
    }

    /// The recorded program, or else the file's name.
    #[must_use]
    pub fn source(&self) -> &str {
        let told = self.recording.info().source.as_str();
        if self.origin == Origin::File || told.is_empty() { &self.name } else { told }
    }

    /// What a person should know of the file that was read.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Where the recording comes from.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether the newest event is followed.
    #[must_use]
    pub fn is_following(&self) -> bool {
        self.following
    }

    /// The GPU on the screen.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The address that is selected.
    #[must_use]
    pub fn selection(&self) -> Option<u64> {
        self.selection
    }
}
