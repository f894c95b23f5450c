//! Fragmentation of a device: the first moment above a value, the largest requests, and metrics
//! over time.

use std::ops::Range;

use vramscope_trace::{DeviceId, DeviceState, Event, FormatError, FreeSpace, Recording, Replay, even_part};

use super::GROWTH_DIVISOR;
use crate::history::History;
use crate::placement::recorded_settings;
use crate::pools::{
    FirstAbove, FragmentationColumn, FragmentationColumns, FragmentationCrossing, LargestRequests,
    fragmentation_columns, sampled_fragmentation_columns,
};
use crate::spans::Marks;

/// Work of the search for the first crossing of the threshold in one call, in units of about 0.2
/// microseconds.
const SEARCH_WORK: u64 = 16_384;
/// Number of allocations that the collection of the largest requests visits in one call, at about
/// 10 ns each.
const ROWS_PER_CALL: u32 = 262_144;

/// A device of a recording, as far as its history has been read.
#[derive(Clone, Copy)]
pub struct FragmentationSource<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// Lifetimes and times of all events read so far.
    pub history: &'a History,
    /// The recording's spans.
    pub marks: &'a Marks,
    /// The device.
    pub device: DeviceId,
}

/// The inputs of a cached result on fragmentation: device, generation of the history, and the last
/// moment read.
type FragmentationKey = (DeviceId, u64, u64);

/// The moment at which fragmentation first exceeded a threshold, and the event that caused it.
#[derive(Clone, Debug, PartialEq)]
pub struct FirstCrossing {
    /// The moment.
    pub crossing: FragmentationCrossing,
    /// The event that led to it; `None` if that is the recording's first moment.
    pub event: Option<Event>,
    /// Free memory right after it.
    pub free: FreeSpace,
    /// Names of the spans that were open, outermost first.
    pub spans: Vec<String>,
}

/// The state of the search for the first moment above a threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CrossingSearch<'a> {
    /// It cannot begin before a part of the recording is loaded.
    Waiting,
    /// Events searched so far, and all events.
    Searching(u64, u64),
    /// The moment was found.
    Found(&'a FirstCrossing),
    /// No moment is above the threshold.
    NotFound,
}

/// The search for the moment at which fragmentation first exceeded a threshold.
struct Search {
    device: DeviceId,
    generation: u64,
    percent: u64,
    search: FirstAbove,
    /// The last moment of the recording when it had been searched completely.
    searched_until: Option<u64>,
    crossing: Option<FirstCrossing>,
}

/// The table of fragmentation metrics over time, with its inputs.
struct OverTime {
    source: FragmentationKey,
    /// The moment up to which the largest requests were known.
    requests_until: Option<u64>,
    /// Whether it is of the whole recording.
    is_whole: bool,
    edges: Vec<u64>,
    columns: Vec<FragmentationColumn>,
}

impl OverTime {
    /// Returns true if the table has the columns between `edges`. The table of a whole, growing
    /// recording stays current until the recording has grown by a sixteenth.
    fn is_current(&self, (device, generation, until): FragmentationKey, is_whole: bool, edges: &[u64]) -> bool {
        let (of_device, of_generation, known) = self.source;
        let is_same_source = (of_device, of_generation) == (device, generation);
        let has_grown = until > known + known / GROWTH_DIVISOR;
        let is_same = self.edges == edges && until == known;
        let is_similar = self.is_whole && is_whole && !has_grown && self.edges.len() == edges.len();
        is_same_source && (is_same || is_similar)
    }
}

/// The fragmentation of a device, computed in parts.
#[derive(Default)]
pub struct FragmentationAnalysis {
    search: Option<Search>,
    /// Why the search cannot go on.
    pub error: Option<String>,
    /// Byte ranges of the recording's file that the search needs.
    pub missing: Vec<Range<u64>>,
    requests: Option<(FragmentationKey, LargestRequests)>,
    /// Largest requests that are being collected, to take their place.
    next_requests: Option<(FragmentationKey, LargestRequests)>,
    over_time: Option<OverTime>,
}

impl FragmentationAnalysis {
    /// Continues the search for the first moment with a fragmentation above `percent`. Returns true
    /// if another call can continue it at once.
    pub fn search(&mut self, source: &FragmentationSource<'_>, percent: u64) -> bool {
        let FragmentationSource { recording, history, device, .. } = *source;
        let generation = history.generation();
        self.error = None;
        let is_same = |one: &Search| (one.device, one.generation, one.percent) == (device, generation, percent);
        if !self.search.as_ref().is_some_and(is_same) {
            self.search = None;
            match FirstAbove::new(recording, device, percent as f64 / 100.0) {
                Ok(search) => {
                    let (searched_until, crossing) = (None, None);
                    self.search = Some(Search { device, generation, percent, search, searched_until, crossing });
                }
                Err(error) => self.wait_for(recording.missing(recording.first_event()), &error),
            }
        }
        let Some(search) = &mut self.search else { return false };
        match search.step(source) {
            Ok(is_done) => !is_done,
            Err(error) => {
                let missing = recording.missing(search.search.moment().saturating_add(1));
                self.wait_for(missing, &error);
                false
            }
        }
    }

    /// Handles an `error` of the search: it waits for the byte ranges `missing` to be loaded, or
    /// stops for good if there are none.
    fn wait_for(&mut self, missing: Vec<Range<u64>>, error: &FormatError) {
        if missing.is_empty() {
            self.error = Some(error.to_string());
        }
        self.missing = missing;
    }

    /// Returns the state of the [search](Self::search) in `recording`.
    #[must_use]
    pub fn searched(&self, recording: &Recording) -> CrossingSearch<'_> {
        match &self.search {
            Some(Search { crossing: Some(crossing), .. }) => CrossingSearch::Found(crossing),
            Some(Search { searched_until: Some(_), .. }) => CrossingSearch::NotFound,
            Some(Search { search, .. }) => {
                let first = recording.first_event();
                CrossingSearch::Searching(search.moment() - first, recording.end_event() - first)
            }
            None => CrossingSearch::Waiting,
        }
    }

    /// Returns the first crossing of the threshold; `None` if it has not been found.
    #[must_use]
    pub fn crossing(&self) -> Option<FragmentationCrossing> {
        Some(self.search.as_ref()?.crossing.as_ref()?.crossing)
    }

    /// Computes the fragmentation in chart columns between the moments `edges`, with the largest
    /// requests once they are collected.
    #[must_use]
    pub fn columns(&self, source: &FragmentationSource<'_>, edges: &[u64]) -> FragmentationColumns {
        let settings = recorded_settings(source.recording.info());
        let requests = self.requests.as_ref().map(|(_, requests)| requests);
        let requests = source.history.lifetimes(source.device).zip(requests);
        fragmentation_columns(source.recording, source.device, edges, &settings, requests)
    }

    /// Computes chart columns like [`columns`](Self::columns), but approximately where exact
    /// columns take long.
    #[must_use]
    pub fn quick_columns(&self, source: &FragmentationSource<'_>, edges: &[u64]) -> FragmentationColumns {
        let requests = self.requests.as_ref().map(|(_, requests)| requests);
        sampled_fragmentation_columns(source.recording, source.device, edges, requests)
    }

    /// Continues collecting the largest requests if they are not known, or the recording has grown
    /// much. The history must be complete. Returns true if another call must continue.
    pub fn update_requests(&mut self, source: &FragmentationSource<'_>) -> bool {
        let FragmentationSource { recording, history, device, .. } = *source;
        let (generation, until) = (history.generation(), history.until());
        let is_current = self.requests.as_ref().is_some_and(|((of_device, of, known), _)| {
            (*of_device, *of) == (device, generation) && until <= known + known / GROWTH_DIVISOR
        });
        let Some(lifetimes) = history.lifetimes(device).filter(|_| !is_current) else { return false };
        let key = (device, generation, until);
        self.requests = self.requests.take().filter(|((of_device, of, _), _)| (*of_device, *of) == (key.0, key.1));
        let kept = self.next_requests.take().filter(|(known, _)| *known == key);
        let (_, mut requests) = kept.unwrap_or_default();
        let is_done = requests.step(recording, device, lifetimes, ROWS_PER_CALL);
        let slot = if is_done { &mut self.requests } else { &mut self.next_requests };
        *slot = Some((key, requests));
        !is_done
    }

    /// Returns a number that changes when the largest requests change; `None` before they are
    /// known.
    #[must_use]
    pub fn requests_until(&self) -> Option<u64> {
        self.requests.as_ref().map(|((_, _, until), _)| *until)
    }

    /// Returns at most `rows` columns of metrics between two moments; `is_whole` says that they are
    /// the recording's first and last, which a growing recording moves.
    pub fn over_time(
        &mut self,
        source: &FragmentationSource<'_>,
        (from, to): (u64, u64),
        is_whole: bool,
        rows: u64,
    ) -> &[FragmentationColumn] {
        let history = source.history;
        let key = (source.device, history.generation(), history.until());
        let (from_ns, to_ns) = (history.time_ns(from), history.time_ns(to));
        let at = |index: u64| {
            let part = even_part(to_ns.saturating_sub(from_ns), index, rows);
            history.moment_at(from_ns.saturating_add(part)).clamp(from, to)
        };
        let mut edges: Vec<u64> = (0..=rows).map(at).collect();
        if let Some(last) = edges.last_mut() {
            *last = to;
        }
        let requests_until = self.requests_until();
        let is_current =
            |known: &OverTime| known.requests_until == requests_until && known.is_current(key, is_whole, &edges);
        if !self.over_time.as_ref().is_some_and(is_current) {
            let columns = self.columns(source, &edges).columns;
            self.over_time = Some(OverTime { source: key, requests_until, is_whole, edges, columns });
        }
        self.over_time.as_ref().map_or(&[], |known| &known.columns)
    }
}

impl Search {
    /// Continues the search for the first crossing. Returns true once it is finished.
    fn step(&mut self, source: &FragmentationSource<'_>) -> Result<bool, FormatError> {
        let end = source.recording.end_event();
        if self.crossing.is_some() || self.searched_until == Some(end) {
            return Ok(true);
        }
        let is_done = self.search.step(source.recording, SEARCH_WORK)?;
        if let Some(crossing) = self.search.found() {
            self.crossing = Some(FirstCrossing::new(source, crossing)?);
        }
        self.searched_until = is_done.then_some(end);
        Ok(is_done)
    }
}

impl FirstCrossing {
    /// Reads the event that led to a crossing, and the memory after it.
    fn new(source: &FragmentationSource<'_>, crossing: FragmentationCrossing) -> Result<Self, FormatError> {
        let (recording, device) = (source.recording, source.device);
        let mut replay = Replay::of_device(device);
        let event = match crossing.event.checked_sub(1).filter(|&index| index >= recording.first_event()) {
            Some(index) => replay.event(recording, index)?,
            None => None,
        };
        let state = replay.seek(recording, crossing.event)?;
        let free = state.device(device).map(DeviceState::free_space).unwrap_or_default();
        let spans = source.marks.names_at(recording, device, crossing.time_ns);
        let spans = spans.into_iter().rev().map(str::to_owned).collect();
        Ok(Self { crossing, event, free, spans })
    }
}
