//! Results of the view of fragmentation, computed in steps: the first moment above a value, the
//! largest requests, and metrics over time.

use std::ops::Range;

use vramscope_insight::placement::recorded_settings;
use vramscope_insight::pools::{
    FirstAbove, FragmentationColumn, FragmentationColumns, FragmentationCrossing, LargestRequests,
    fragmentation_columns, sampled_fragmentation_columns,
};
use vramscope_trace::{ByteSize, Count, DeviceId, DeviceState, FormatError, Percent, Replay, even_part, site_name};

use crate::details;
use crate::fragmentation_chart::DEFAULT_PERCENT;
use crate::timeline::moment_text;
use crate::ui::{Element, Tag};

use crate::view::{Context, Options, event_link};

/// Work of the search for the first crossing of the threshold in one frame, in units of about 0.2
/// microseconds.
pub(super) const SEARCH_WORK: u64 = 16_384;
/// Number of allocations that the collection of the largest requests visits in one frame, at about
/// 10 ns each.
const ROWS_PER_FRAME: u32 = 262_144;
/// Divisor of a growing recording's size: the largest requests are collected again once it has
/// grown by the quotient.
pub(super) const GROWTH_DIVISOR: u64 = 16;

/// The inputs of a cached result on fragmentation: device, generation of the history, and the last
/// moment read.
pub(super) type FragmentationKey = (DeviceId, u64, u64);

/// The moment at which fragmentation first exceeded the threshold, and the event that caused it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Crossing {
    /// The moment.
    pub crossing: FragmentationCrossing,
    /// The event that led to it, with the site of its request; `None` if that is the recording's
    /// first moment.
    pub(super) what: Option<String>,
    /// Free memory right after it.
    pub(super) after: String,
    /// Names of the spans that were open, outermost first.
    pub(super) spans: Vec<String>,
}

/// The state of the search for the moment at which fragmentation first exceeded the threshold.
pub(super) struct Search {
    pub(super) device: DeviceId,
    pub(super) generation: u64,
    pub(super) percent: u64,
    pub(super) search: FirstAbove,
    /// The last moment of the recording when it had been searched completely.
    pub(super) searched_until: Option<u64>,
    pub(super) crossing: Option<Crossing>,
}

/// The cached table of fragmentation metrics over time, with its inputs.
pub(super) struct OverTime {
    pub(super) source: FragmentationKey,
    /// The moment up to which the largest requests were known.
    pub(super) requests_until: Option<u64>,
    /// Whether it is of the whole recording.
    pub(super) is_whole: bool,
    pub(super) edges: Vec<u64>,
    pub(super) columns: Vec<FragmentationColumn>,
}

impl OverTime {
    /// Returns true if the table has the columns between `edges`. The table of a whole, growing
    /// recording stays current until the recording has grown by a sixteenth.
    pub(super) fn is_current(
        &self,
        (device, generation, until): FragmentationKey,
        is_whole: bool,
        edges: &[u64],
    ) -> bool {
        let (of_device, of_generation, known) = self.source;
        let is_same_source = (of_device, of_generation) == (device, generation);
        let has_grown = until > known + known / GROWTH_DIVISOR;
        let is_same = self.edges == edges && until == known;
        let is_similar = self.is_whole && is_whole && !has_grown && self.edges.len() == edges.len();
        is_same_source && (is_same || is_similar)
    }
}

/// The cached results of the view "Fragmentation".
#[derive(Default)]
pub(super) struct FragmentationCache {
    pub(super) search: Option<Search>,
    /// Why the search cannot go on.
    pub(super) error: Option<String>,
    /// Byte ranges of the recording's file that the search needs.
    pub(super) missing: Vec<Range<u64>>,
    pub(super) requests: Option<(FragmentationKey, LargestRequests)>,
    /// Largest requests that are being collected, to take their place.
    next_requests: Option<(FragmentationKey, LargestRequests)>,
    /// The table over time.
    pub(super) over_time: Option<OverTime>,
}

/// Returns the threshold of fragmentation, in percent (at most 100), whose first crossing is
/// searched.
pub(super) fn threshold_percent<M>(options: &Options<M>) -> u64 {
    options.number.unwrap_or(DEFAULT_PERCENT).min(100)
}

impl FragmentationCache {
    /// Continues the search for the first moment with a fragmentation above `percent` by one
    /// frame's work. Returns true if it can be continued at once.
    pub(super) fn search(&mut self, context: &Context<'_>, percent: u64) -> bool {
        let (recording, device, generation) = (context.recording, context.device, context.history.generation());
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
        match search.step(context) {
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
    pub(super) fn wait_for(&mut self, missing: Vec<Range<u64>>, error: &FormatError) {
        if missing.is_empty() {
            self.error = Some(error.to_string());
        }
        self.missing = missing;
    }

    /// Returns the first crossing of the threshold; `None` if it has not been found.
    pub(super) fn crossing(&self) -> Option<&Crossing> {
        self.search.as_ref().and_then(|search| search.crossing.as_ref())
    }

    /// Computes the fragmentation in chart columns between the moments `edges`, with the largest
    /// requests once they are collected.
    pub(super) fn columns(&self, context: &Context<'_>, edges: &[u64]) -> FragmentationColumns {
        let settings = recorded_settings(context.recording.info());
        let requests = context.lifetimes().zip(self.requests.as_ref().map(|(_, requests)| requests));
        fragmentation_columns(context.recording, context.device, edges, &settings, requests)
    }

    /// Computes chart columns like [`columns`](Self::columns), but approximately where exact
    /// columns take long.
    pub(super) fn quick_columns(&self, context: &Context<'_>, edges: &[u64]) -> FragmentationColumns {
        let requests = self.requests.as_ref().map(|(_, requests)| requests);
        sampled_fragmentation_columns(context.recording, context.device, edges, requests)
    }

    /// Continues collecting the largest requests by one frame's work if they are not known, or the
    /// recording has grown much. Returns true if the rest must be collected in the next frame.
    pub(super) fn update_requests(&mut self, context: &Context<'_>) -> bool {
        let (generation, until) = (context.history.generation(), context.history.until());
        let is_current = self.requests.as_ref().is_some_and(|((device, of, known), _)| {
            (*device, *of) == (context.device, generation) && until <= known + known / GROWTH_DIVISOR
        });
        let (true, Some(lifetimes)) = (context.is_history_complete && !is_current, context.lifetimes()) else {
            return false;
        };
        let source = (context.device, generation, until);
        self.requests = self.requests.take().filter(|((device, of, _), _)| (*device, *of) == (source.0, source.1));
        let kept = self.next_requests.take().filter(|(known, _)| *known == source);
        let (_, mut requests) = kept.unwrap_or_default();
        let is_done = requests.step(context.recording, context.device, lifetimes, ROWS_PER_FRAME);
        let slot = if is_done { &mut self.requests } else { &mut self.next_requests };
        *slot = Some((source, requests));
        !is_done
    }

    /// Returns a number that changes when the picture's largest requests change; `None` before they
    /// are known.
    pub(super) fn requests_until(&self) -> Option<u64> {
        self.requests.as_ref().map(|((_, _, until), _)| *until)
    }

    /// Returns the columns of the table of metrics over time, at most `rows`.
    pub(super) fn over_time(&mut self, context: &Context<'_>, rows: u64) -> &[FragmentationColumn] {
        let source = (context.device, context.history.generation(), context.history.until());
        let (from, to) = context.range;
        let (from_ns, to_ns) = (context.history.time_ns(from), context.history.time_ns(to));
        let at = |index: u64| {
            let part = even_part(to_ns.saturating_sub(from_ns), index, rows);
            context.history.moment_at(from_ns.saturating_add(part)).clamp(from, to)
        };
        let mut edges: Vec<u64> = (0..=rows).map(at).collect();
        if let Some(last) = edges.last_mut() {
            *last = to;
        }
        let is_whole = !context.has_range;
        let requests_until = self.requests_until();
        let is_current =
            |known: &OverTime| known.requests_until == requests_until && known.is_current(source, is_whole, &edges);
        if !self.over_time.as_ref().is_some_and(is_current) {
            let columns = self.columns(context, &edges).columns;
            self.over_time = Some(OverTime { source, requests_until, is_whole, edges, columns });
        }
        self.over_time.as_ref().map_or(&[], |known| &known.columns)
    }
}

impl Search {
    /// Continues the search for the first crossing by one frame's work. Returns true once it is
    /// finished.
    pub(super) fn step(&mut self, context: &Context<'_>) -> Result<bool, FormatError> {
        let end = context.recording.end_event();
        if self.crossing.is_some() || self.searched_until == Some(end) {
            return Ok(true);
        }
        let is_done = self.search.step(context.recording, SEARCH_WORK)?;
        if let Some(crossing) = self.search.found() {
            self.crossing = Some(Crossing::new(context, crossing)?);
        }
        self.searched_until = is_done.then_some(end);
        Ok(is_done)
    }
}

impl Crossing {
    /// Describes the event that led to a crossing.
    pub(super) fn new(context: &Context<'_>, crossing: FragmentationCrossing) -> Result<Self, FormatError> {
        let (recording, definitions) = (context.recording, context.definitions());
        let mut replay = Replay::of_device(context.device);
        let event = match crossing.event.checked_sub(1).filter(|&index| index >= recording.first_event()) {
            Some(index) => replay.event(recording, index)?,
            None => None,
        };
        let what = event.map(|event| {
            let text = details::of_event(&event, definitions);
            match event.kind.site() {
                Some(site) => format!("{text}, by {}", site_name(definitions, site)),
                None => text,
            }
        });
        let state = replay.seek(recording, crossing.event)?;
        let free = state.device(context.device).map(DeviceState::free_space).unwrap_or_default();
        let after = format!(
            "{} free in {}, the largest {}",
            ByteSize(free.total),
            Count(free.blocks).of("block", "blocks"),
            ByteSize(free.largest)
        );
        let mut spans: Vec<String> = context
            .marks
            .names_at(recording, context.device, crossing.time_ns)
            .into_iter()
            .map(str::to_owned)
            .collect();
        spans.reverse();
        Ok(Self { crossing, what, after, spans })
    }

    /// Returns sentences about when and why fragmentation first exceeded `percent`.
    pub(super) fn element(&self, context: &Context<'_>, percent: u64) -> Element {
        let FragmentationCrossing { event, time_ns, fragmentation } = self.crossing;
        let text = Element::new(Tag::P).with_class("summary");
        let text = match self.what {
            Some(_) => text.with_text(format!("Fragmentation first passed {percent}% at ")),
            None => text.with_text(format!("Fragmentation is above {percent}% from the beginning, ")),
        };
        let mut rest = format!(" ({})", moment_text(context.recording, time_ns));
        if !self.spans.is_empty() {
            rest += &format!(" in {}", self.spans.join(" › "));
        }
        if let Some(what) = &self.what {
            rest += &format!(": {what}");
        }
        rest += &format!(". It was {} then: {}.", Percent(fragmentation), self.after);
        text.with_child(event_link(event)).with_text(rest)
    }
}
