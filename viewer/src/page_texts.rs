//! The texts and states of the page's elements, computed from the model.

use serde::{Deserialize, Serialize};
use vramscope_trace::{ByteSize, Count, EventKind, Percent};

use crate::bands::Band;
use crate::connection::ConnectionState;
use crate::details::{self, Details};
use crate::device_map::Hit;
use crate::model::{Model, Origin};
use crate::timeline;

/// The live connection's state, the page's delay behind the program, and the rate of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveStatus {
    /// The connection's state.
    pub connection: ConnectionState,
    /// Whole seconds that the page is behind the program; 0 if it keeps up.
    pub behind_s: u64,
    /// Number of events that arrive per second; `None` before it has been measured.
    pub events_per_s: Option<u64>,
    /// Minutes that the local time is ahead of UTC.
    pub utc_offset_min: i32,
}

/// The appearance of the header's connection badge: live, paused, lost (or behind), or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BadgeKind {
    /// The newest event is followed.
    Live,
    /// The program runs, and the page shows an earlier moment.
    Paused,
    /// The page is behind, or the connection is lost.
    Lost,
    /// The recording has ended.
    Ended,
}

/// The header's counters as text: bytes, and numbers of segments, blocks and events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterTexts {
    /// Allocated bytes.
    pub allocated: String,
    /// Active bytes.
    pub active: String,
    /// Reserved bytes.
    pub reserved: String,
    /// Free bytes beside live blocks, with their share of the reserved bytes.
    pub stuck: String,
    /// Free bytes that can be released, with their share of the reserved bytes.
    pub releasable: String,
    /// Number of segments.
    pub segments: String,
    /// Number of blocks.
    pub blocks: String,
    /// Events of the recording.
    pub events: String,
    /// Events that the program did not record; `None` if there are none.
    pub lost: Option<String>,
    /// Events that were skipped for this page; `None` if there are none.
    pub missed: Option<String>,
}

/// The header's text on a [`Band`] (memory outside the pool, or of other processes): its bytes, and
/// whether the timeline draws it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BandText {
    /// Bytes at the moment.
    pub bytes: String,
    /// Whether the timeline shows the band.
    pub is_shown: bool,
}

/// Texts and states of the controls for moving through time: play, speed, live, event and time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportTexts {
    /// Whether the recording is playing.
    pub is_playing: bool,
    /// Index of the speed.
    pub speed: usize,
    /// Whether the newest event is followed.
    pub is_following: bool,
    /// Whether there is a running program to follow, or was one.
    pub has_live: bool,
    /// Event number of the moment.
    pub event: String,
    /// Number of events: "of 1,000".
    pub event_count: String,
    /// The first event of a live recording whose start is not on the page.
    pub since: Option<String>,
    /// Time of the moment.
    pub time: String,
}

/// Texts and states of all elements of the page outside the timeline's and the map's pictures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageTexts {
    /// Whether there is something to show: a file, or a live recording with events.
    pub has_content: bool,
    /// Whether there is a recording to save.
    pub can_save: bool,
    /// Title of the document.
    pub title: String,
    /// Name of the file or program.
    pub source: String,
    /// State of the live connection; `None` for files.
    pub badge: Option<(BadgeKind, String)>,
    /// How many events arrive per second; empty unless the program is connected.
    pub rate: String,
    /// Counters at the moment.
    pub counters: CounterTexts,
    /// Bands of memory outside the pool; `None` without memory samples.
    pub bands: Option<[BandText; 2]>,
    /// Controls for moving through time.
    pub transport: TransportTexts,
    /// Devices to choose from, each with its name.
    pub devices: Vec<(u16, String)>,
    /// The selected device.
    pub device: u16,
    /// Heading above the event.
    pub moment_title: String,
    /// The event that led to the moment.
    pub moment_event: String,
    /// Content of the details panel.
    #[serde(skip)]
    pub details: Option<Details>,
    /// Whether the details are of the selection.
    pub is_selection: bool,
}

impl PageTexts {
    /// Computes all texts. `hovered` is the block or free range under the pointer on the map,
    /// `last_step` the reserved, stuck and releasable bytes at the end of the last complete step.
    pub fn update(&mut self, model: &mut Model, hovered: Option<Hit>, status: LiveStatus, last_step: Option<[u64; 3]>) {
        let origin = model.origin();
        // A live page without events still waits for them; a file without events is shown.
        self.has_content = origin == Origin::File || model.recording().devices().next().is_some();
        self.can_save = origin != Origin::Empty;
        self.source = model.source().to_owned();
        self.title = match model.source() {
            "" => "vramscope".to_owned(),
            source => format!("{source} · vramscope"),
        };
        self.badge = badge(origin, model.is_following(), status);
        let rate = status.events_per_s.filter(|_| origin == Origin::Live);
        self.rate = rate.map(|rate| format!("{} events/s", Count(rate))).unwrap_or_default();
        self.counters = counters(model, last_step);
        self.bands = bands(model);
        self.transport = transport(model, status.connection);
        self.devices =
            model.recording().devices().map(|id| (id.0, model.recording().info().device_label(id))).collect();
        self.device = model.device().0;
        (self.moment_title, self.moment_event) = moment(model);
        self.update_details(model, hovered);
    }

    /// Updates the details panel: it describes the selection, else the object under the pointer,
    /// else the device.
    fn update_details(&mut self, model: &Model, hovered: Option<Hit>) {
        let (device, recording, selected) = (model.device_state(), model.recording(), model.selected());
        self.is_selection = selected.is_some();
        self.details = Some(match selected.or(hovered) {
            Some(hit) => details::of_hit(&hit, model.state(), device, recording),
            None => details::of_device(model.device(), recording, device, model.free_memory()),
        });
    }
}

/// Returns appearance and text of the header's connection badge; `None` for files and before a
/// connection.
fn badge(origin: Origin, is_following: bool, status: LiveStatus) -> Option<(BadgeKind, String)> {
    if origin == Origin::File {
        return None;
    }
    let (kind, text) = match (status.connection, is_following) {
        (ConnectionState::None, _) => return None,
        (ConnectionState::Live, true) if status.behind_s > 0 => {
            return Some((BadgeKind::Lost, format!("Live · {} s behind", status.behind_s)));
        }
        (ConnectionState::Live, true) => (BadgeKind::Live, "Live"),
        (ConnectionState::Live, false) => (BadgeKind::Paused, "Paused · program is live"),
        (ConnectionState::Reconnecting, _) => (BadgeKind::Lost, "Reconnecting…"),
        (ConnectionState::Ended, _) => (BadgeKind::Ended, "Ended"),
        (ConnectionState::Disconnected, _) => (BadgeKind::Lost, "Disconnected"),
    };
    Some((kind, text.to_owned()))
}

/// Returns the texts of the header's counters at the moment on the screen. While the newest event
/// is followed, stuck and releasable bytes are those of `last_step`: they vary within a step.
fn counters(model: &Model, last_step: Option<[u64; 3]>) -> CounterTexts {
    let device = model.device_state();
    let counters = device.counters();
    // Only a live page knows the number of lost events that it missed itself.
    let missed = if model.origin() == Origin::File { 0 } else { model.missed_events() };
    let lost = model.lost_events() - missed;
    let free = model.free_memory();
    let now = [counters.reserved, free.stuck_bytes, free.space.total.saturating_sub(free.stuck_bytes)];
    let is_live = model.origin() == Origin::Live && model.is_following();
    let [reserved, stuck, releasable] = last_step.filter(|_| is_live).unwrap_or(now);
    let share = |bytes: u64| format!("{} ({})", ByteSize(bytes), Percent::of(bytes, reserved));
    CounterTexts {
        allocated: ByteSize(counters.allocated).to_string(),
        active: ByteSize(counters.active).to_string(),
        reserved: ByteSize(counters.reserved).to_string(),
        stuck: share(stuck),
        releasable: share(releasable),
        segments: Count(device.segments().len() as u64).to_string(),
        blocks: Count(device.blocks().len() as u64).to_string(),
        events: recorded_events(model),
        lost: (lost > 0).then(|| Count(lost).to_string()),
        missed: (missed > 0).then(|| format!("{} missed", Count(missed))),
    }
}

/// Returns the texts of the bands of memory outside the pool, in the order of [`Band::ALL`]; `None`
/// if the recording has no samples of device memory.
fn bands(model: &Model) -> Option<[BandText; 2]> {
    let series = model.recording().series(model.device());
    series?.used_memory_peaks()?;
    let sample = model.device_state().sample();
    Some(Band::ALL.map(|band| BandText {
        bytes: sample.map_or("–".to_owned(), |sample| ByteSize(band.bytes(&sample)).to_string()),
        is_shown: model.bands().contains(band),
    }))
}

/// Returns the number of recorded events as text; for a file that holds a part of a recording, the
/// first and the last event number, as in `1,200–3,400`.
fn recorded_events(model: &Model) -> String {
    let (first, end) = (model.recording().first_event(), Count(model.recording().end_event()));
    if model.origin() == Origin::File && first > 0 { format!("{}–{end}", Count(first)) } else { end.to_string() }
}

/// Returns the states and texts of the controls for play, speed, live, event and time.
fn transport(model: &Model, connection: ConnectionState) -> TransportTexts {
    let recording = model.recording();
    let first = recording.first_event();
    let starts_late = model.origin() == Origin::Live && first > 0;
    TransportTexts {
        is_playing: model.playback.is_playing(),
        speed: model.playback.speed(),
        is_following: model.is_following(),
        has_live: matches!(model.origin(), Origin::Live | Origin::Disconnected) && connection != ConnectionState::Ended,
        event: model.state().event().to_string(),
        event_count: format!("of {}", Count(recording.end_event())),
        since: starts_late.then(|| format!("since event {}", Count(first))),
        time: timeline::moment_text(recording, model.time_ns()),
    }
}

/// Returns the heading (`After event 3 of 9`) and the description of the event that led to the
/// moment on the screen.
fn moment(model: &mut Model) -> (String, String) {
    let (event, end) = (model.state().event(), model.recording().end_event());
    let title = format!("After event {} of {}", Count(event), Count(end));
    let text = match model.last_event() {
        Some((_, event)) => {
            let mut text = details::of_event(&event, model.recording().definitions());
            if matches!(event.kind, EventKind::OutOfMemory { .. }) && event.device == model.device() {
                // With the first two, this shows whether a cap was the cause.
                let reserved = ByteSize(model.device_state().counters().reserved);
                text = format!("{text}, {reserved} reserved");
            }
            let device = || model.recording().info().device_short_label(event.device);
            if event.device == model.device() { text } else { format!("{}: {text}", device()) }
        }
        None if event > model.recording().first_event() => "loading…".to_owned(),
        None => details::of_first_moment(model.recording()).to_owned(),
    };
    (title, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn badge_shows_the_connection_state() {
        let check = |connection, is_following, behind_s, expected: Option<(BadgeKind, &str)>| {
            let status = LiveStatus { connection, behind_s, events_per_s: Some(5), ..LiveStatus::default() };
            let badge = badge(Origin::Live, is_following, status);
            assert_eq!(badge, expected.map(|(kind, text)| (kind, text.to_owned())));
        };
        check(ConnectionState::None, true, 0, None);
        check(ConnectionState::Live, true, 0, Some((BadgeKind::Live, "Live")));
        check(ConnectionState::Live, true, 7, Some((BadgeKind::Lost, "Live · 7 s behind")));
        check(ConnectionState::Live, false, 7, Some((BadgeKind::Paused, "Paused · program is live")));
        check(ConnectionState::Reconnecting, false, 0, Some((BadgeKind::Lost, "Reconnecting…")));
        check(ConnectionState::Ended, true, 0, Some((BadgeKind::Ended, "Ended")));
        check(ConnectionState::Disconnected, true, 0, Some((BadgeKind::Lost, "Disconnected")));
        assert_eq!(
            badge(Origin::File, true, LiveStatus { connection: ConnectionState::Live, ..LiveStatus::default() }),
            None
        );
    }

    #[test]
    fn empty_model_has_empty_texts() {
        let mut texts = PageTexts::default();
        texts.update(&mut Model::default(), None, LiveStatus::default(), None);
        assert!(!texts.has_content && !texts.can_save && texts.bands.is_none());
        assert_eq!((texts.title.as_str(), texts.moment_event.as_str()), ("vramscope", "start of the recording"));
        assert_eq!(texts.counters.allocated, "0 B");
    }
}
