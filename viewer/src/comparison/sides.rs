//! The two moments of a comparison, and the memory at both.

use vramscope_insight::comparison::Alignment;
use vramscope_insight::difference::MatchingNames;
use vramscope_insight::group::{GroupBy, Groupings};
use vramscope_insight::history::History;
use vramscope_insight::incremental::{DeviceHistory, StepAnalysis};
use vramscope_insight::matching::MatchedSites;
use vramscope_insight::sites::{GroupRow, live_groups};
use vramscope_insight::steps::Step;
use vramscope_trace::{DeviceState, Recording, Replay};

use crate::comparison::{AxisUnit, ColumnsCache, ComparisonContent, ComparisonScene, NAMES, SideContent};
use crate::model::CompareWith;
use crate::view::Context;

use super::failed_request::FailedRequest;
use super::moments::{Moments, StepChoice};
use super::second::SecondAnalysis;
use super::side::{Side, named, recording_of, set_step};

/// Why there is no comparison to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// There is nothing to compare with.
    Nothing,
    /// The recordings are being read.
    Reading,
    /// The comparison is not possible: a sentence for the user.
    Impossible(String),
}

/// The memory at the moment of one side of a comparison, and the inputs of that moment.
#[derive(Default)]
struct SideReplay {
    /// The id and end of the recording, and the moment; `None` before the first.
    key: Option<(u64, u64, u64)>,
    replay: Replay,
}

/// Cached results of a comparison: its two sides, A and B, their memory, and the second recording's
/// analysis.
#[derive(Default)]
pub struct CompareCache {
    sides: Option<[Side; 2]>,
    /// Memory at the sides' moments where it is not that of the moment on the screen.
    replays: [SideReplay; 2],
    /// Whether each side shows the moment on the screen.
    is_current: [bool; 2],
    second: SecondAnalysis,
    /// The steps of the device on the screen, and of the other device of its recording.
    steps: [StepAnalysis; 2],
    /// The request that failed at side A's moment; `None` unless side B is a simulated run.
    failed_request: Option<FailedRequest>,
    /// The memory of a device before its first event.
    empty: DeviceState,
    /// The counters over time of both sides.
    columns: ColumnsCache,
    /// The unit of the chart's axis, and the positions of both sides' times on it.
    alignment: (AxisUnit, [Alignment; 2]),
    /// Whether another call continues a computation.
    pub(crate) is_unfinished: bool,
}

impl CompareCache {
    /// Determines both sides, A and B, and the memory at their moments. `wanted` is the unit that
    /// the user wants for the chart's axis.
    ///
    /// # Errors
    /// If there is nothing to compare with, or a moment is not known.
    pub fn update(
        &mut self,
        context: &Context<'_>,
        moments: Moments,
        wanted: AxisUnit,
    ) -> Result<&[Side; 2], Unavailable> {
        let subject = context.comparison.subject(context.recording, context.device, context.has_range);
        let Some(subject) = subject else {
            (self.sides, self.is_unfinished) = (None, false);
            return Err(Unavailable::Nothing);
        };
        self.update_with(context, subject, moments, wanted)
    }

    /// Determines both sides like [`update`](Self::update), with `subject` as B. Fails if a moment
    /// is not known.
    pub fn update_with(
        &mut self,
        context: &Context<'_>,
        subject: CompareWith,
        moments: Moments,
        wanted: AxisUnit,
    ) -> Result<&[Side; 2], Unavailable> {
        self.sides = None;
        self.is_unfinished = false;
        if let Some(second) = context.comparison.second() {
            self.second.update(second);
            self.second.read(&second.recording);
            self.is_unfinished |= !self.second.is_complete && self.second.error.is_none();
        }
        let sides = self.find_sides(context, subject, moments)?;
        self.alignment = self.align_axis(context, &sides, wanted);
        for (index, side) in sides.iter().enumerate() {
            self.is_current[index] = !side.is_second && side.device == context.device && side.event == context.moment;
            if !self.is_current[index] {
                self.seek(context, index, side)?;
            }
        }
        let run = context.comparison.second().filter(|second| sides[1].is_second && second.is_simulated);
        self.failed_request = run.and_then(|run| {
            let side = (&run.recording, sides[1].event, &mut self.replays[1].replay);
            FailedRequest::find(context, sides.each_ref().map(|side| side.device), side)
        });
        Ok(self.sides.insert(sides))
    }

    /// Returns the two sides, A and B, of the last comparison; `None` if there was nothing to
    /// compare.
    pub fn sides(&self) -> Option<&[Side; 2]> {
        self.sides.as_ref()
    }

    /// Returns the request that failed at side A's moment, if side B is a simulated run, and the
    /// memory that serves it there.
    pub fn failed_request(&self) -> Option<FailedRequest> {
        self.failed_request
    }

    /// Computes the memory at the moment of side A (`index` 0) or B (1).
    fn seek(&mut self, context: &Context<'_>, index: usize, side: &Side) -> Result<(), Unavailable> {
        let recording = recording_of(context, side).ok_or(Unavailable::Nothing)?;
        let id = self.recording_id(side);
        let key = (id, recording.end_event(), side.event);
        let device = side.device;
        let SideReplay { key: known, replay } = &mut self.replays[index];
        if *known == Some(key) && replay.device() == Some(device) {
            return Ok(());
        }
        if known.take().is_none_or(|(known_id, ..)| known_id != id) || replay.device() != Some(device) {
            *replay = Replay::of_device(device);
        }
        if !recording.missing(side.event).is_empty() {
            return Err(Unavailable::Reading);
        }
        replay.seek(recording, side.event).map_err(|error| Unavailable::Impossible(error.to_string()))?;
        *known = Some(key);
        Ok(())
    }

    /// Returns the time of side A (0) or B (1), in nanoseconds of its recording.
    pub fn time_ns(&self, side: usize, context: &Context<'_>) -> u64 {
        if self.is_current[side] { context.time_ns } else { self.replays[side].replay.state().time_ns() }
    }

    /// Returns the memory of the device at side A (0) or B (1); `current` is the memory of the
    /// device on the screen.
    pub fn device<'a>(&'a self, side: usize, current: &'a DeviceState) -> &'a DeviceState {
        if self.is_current[side] {
            return current;
        }
        let device = self.sides.as_ref().map(|sides| sides[side].device);
        device.and_then(|device| self.replays[side].replay.state().device(device)).unwrap_or(&self.empty)
    }

    /// Returns the live bytes by group of side A (`index` 0) or B (1), largest first. `groupings`
    /// are the groupings of the recording on the page.
    pub(crate) fn live_groups(
        &mut self,
        context: &Context<'_>,
        index: usize,
        by: GroupBy,
        groupings: &mut Groupings,
    ) -> Vec<GroupRow> {
        let Some(side) = self.sides.as_ref().map(|sides| &sides[index]) else { return Vec::new() };
        let Some(recording) = recording_of(context, side) else { return Vec::new() };
        let replay = &self.replays[index].replay;
        let other = || replay.state().device(side.device).unwrap_or(&self.empty);
        let device = if self.is_current[index] { context.state } else { other() };
        let categories = self.history_of(context, side).categories(side.device);
        let groupings = if side.is_second { &mut self.second.groupings } else { groupings };
        groupings.set_categories(&categories);
        let rows = live_groups(device, recording.definitions(), groupings.get(by, recording));
        if !side.is_second {
            groupings.set_categories(&context.history.categories(context.device));
        }
        rows
    }

    /// Returns the history of a side's recording.
    fn history_of<'a>(&'a self, context: &Context<'a>, side: &Side) -> &'a History {
        if side.is_second { &self.second.history } else { context.history }
    }

    /// Returns the names under which A's groups appear in B's recording. `groupings` are the
    /// groupings of the recording on the page.
    pub(crate) fn matching_names(
        &mut self,
        context: &Context<'_>,
        by: GroupBy,
        groupings: &mut Groupings,
    ) -> MatchingNames {
        let is_second = self.sides.as_ref().is_some_and(|[_, b]| b.is_second);
        let Some(second) = context.comparison.second().filter(|_| is_second) else {
            return MatchingNames::default();
        };
        let (a, b) = (context.recording, &second.recording);
        let sites = [a, b].map(|recording| recording.definitions().site_count());
        let SecondAnalysis { names, groupings: second_groupings, .. } = &mut self.second;
        let known = names.get_or_insert_with(by, Default::default);
        if known.0 != sites {
            // By stacks alone: the search by allocations exceeds the page's transfer budget.
            let matched = MatchedSites::by_stacks(a.definitions(), b.definitions());
            let of_a = (a.definitions(), groupings.get(by, a));
            *known = (sites, MatchingNames::new(&matched, of_a, (b.definitions(), second_groupings.get(by, b))));
        }
        known.1.clone()
    }

    /// Returns the number of a side's recording: the second recording's id, or 0 for the recording
    /// on the page.
    fn recording_id(&self, side: &Side) -> u64 {
        if side.is_second { self.second.id } else { 0 }
    }

    /// Returns numbers that identify the inputs of the comparison's picture, which is drawn again
    /// when they change.
    pub fn picture_numbers(&self, context: &Context<'_>) -> Vec<u64> {
        let numbers = |side: &Side| {
            let end_event = recording_of(context, side).map_or(0, Recording::end_event);
            [self.recording_id(side), side.device.0.into(), side.event, side.origin_ns, end_event]
        };
        let categories = [context.history, &self.second.history].map(History::categories_generation);
        let others = [self.alignment.0 as u64].into_iter().chain(categories);
        self.sides.iter().flatten().flat_map(numbers).chain(others).collect()
    }

    /// Returns the unit of the chart's axis.
    pub fn axis_unit(&self) -> AxisUnit {
        self.alignment.0
    }

    /// Computes the positions of both sides' times on the chart's axis in the unit `wanted`. An
    /// axis of steps needs steps on both sides, and an axis of events needs all events; otherwise
    /// the next possible unit is used.
    fn align_axis(&mut self, context: &Context<'_>, sides: &[Side; 2], wanted: AxisUnit) -> (AxisUnit, [Alignment; 2]) {
        let has_one_device = !sides[1].is_second && sides[0].device == sides[1].device;
        let lacks_times = sides.iter().filter_map(|side| recording_of(context, side)).any(|one| one.info().lacks_times);
        if lacks_times || (wanted != AxisUnit::Time && !has_one_device) {
            let mut found = [0, 1].map(|index| {
                let recording = recording_of(context, &sides[index])?;
                let range = (recording.start_ns(), recording.end_ns());
                let (steps, history) = self.updated_steps(context, index, &sides[index]).ok()?;
                let by_steps = (wanted == AxisUnit::Steps && !steps.steps().is_empty())
                    .then(|| Alignment::by_steps(steps.steps().as_slice(), range));
                let events = (recording.first_event(), history.until().max(recording.first_event()));
                Some((by_steps, Alignment::by_events(events, &|event| history.time_ns(event))))
            });
            if let [Some(a), Some(b)] = &mut found {
                if let (Some(a), Some(b)) = (a.0.take(), b.0.take()) {
                    return (AxisUnit::Steps, [a, b]);
                }
                return (AxisUnit::Events, [&mut a.1, &mut b.1].map(std::mem::take));
            }
        }
        let by_time = |side: &Side| {
            let recording = recording_of(context, side).unwrap_or(context.recording);
            Alignment::by_time((recording.start_ns(), recording.end_ns()), side.origin_ns)
        };
        (AxisUnit::Time, sides.each_ref().map(by_time))
    }

    /// Computes the comparison's picture of `size` pixels with `scale` pixels per unit; `None` if
    /// there is no comparison. `range` is the part of A's time to show, in nanoseconds; `None` for
    /// all.
    pub fn scene(
        &mut self,
        context: &Context<'_>,
        range: Option<(u64, u64)>,
        size: (u32, u32),
        scale: f32,
    ) -> Option<ComparisonScene> {
        let mut columns = std::mem::take(&mut self.columns);
        let content = |index: usize| {
            let side = &self.sides.as_ref()?[index];
            Some(SideContent {
                recording: recording_of(context, side)?,
                recording_id: self.recording_id(side),
                device: side.device,
                state: self.device(index, context.state),
                categories: self.history_of(context, side).categories(side.device),
                time_ns: self.time_ns(index, context),
                alignment: &self.alignment.1[index],
            })
        };
        let sides = content(0).zip(content(1));
        let scene = sides.map(|(a, b)| {
            let failed_request = self.failed_request;
            let content = ComparisonContent { sides: [a, b], unit: self.alignment.0, range, failed_request };
            ComparisonScene::new(&content, &mut columns, size, scale, context.typesetter)
        });
        self.columns = columns;
        scene
    }

    /// Returns both sides, A and B, of the comparison with `subject` at the chosen moments.
    fn find_sides(
        &mut self,
        context: &Context<'_>,
        subject: CompareWith,
        moments: Moments,
    ) -> Result<[Side; 2], Unavailable> {
        let side = |device, event, when: &str| Side {
            is_second: false,
            device,
            event,
            origin_ns: context.recording.start_ns(),
            name: String::new(),
            when: when.to_owned(),
        };
        let now = side(context.device, context.moment, "this moment");
        match subject {
            CompareWith::Pinned => {
                let (device, event) = context.comparison.pinned.ok_or(Unavailable::Nothing)?;
                let first = context.recording.first_event();
                let pinned = side(device, event.clamp(first, context.recording.end_event()), "pinned moment");
                Ok(named([pinned, now], |device| context.recording.info().device_label(device)))
            }
            CompareWith::Range => {
                let (from, to) = context.range;
                let ends = [("beginning of the range", from), ("end of the range", to)];
                Ok(ends.map(|(when, event)| side(context.device, event, when)))
            }
            CompareWith::Device(other) => {
                let mut sides = [now, side(other, context.moment, "this moment")];
                self.align(context, moments, &mut sides)?;
                Ok(named(sides, |device| context.recording.info().device_label(device)))
            }
            CompareWith::Recording(other) => {
                let second = context.comparison.second().ok_or(Unavailable::Nothing)?;
                let from_start_ns = context.time_ns.saturating_sub(context.recording.start_ns());
                let start_ns = second.start_of(context.recording);
                let event = second.recording.event_at_time(start_ns.saturating_add(from_start_ns));
                let same_time = Side {
                    is_second: true,
                    origin_ns: start_ns,
                    ..side(other, event, "at the same time from its start")
                };
                let mut sides = [Side { when: "at this moment".to_owned(), ..now }, same_time];
                self.align(context, moments, &mut sides)?;
                let label = |recording: &Recording, side: &Side| match recording.devices().count() {
                    0 | 1 => String::new(),
                    _ => format!(", {}", recording.info().device_label(side.device)),
                };
                sides[0].name = format!("{}{}", context.source, label(context.recording, &sides[0]));
                sides[1].name = format!("{}{}", second.name, label(&second.recording, &sides[1]));
                Ok(sides)
            }
        }
    }

    /// Moves both sides from the moment on the screen to the chosen kind of moments.
    fn align(&mut self, context: &Context<'_>, moments: Moments, sides: &mut [Side; 2]) -> Result<(), Unavailable> {
        match moments {
            Moments::Now => {}
            Moments::Peaks | Moments::Ends => {
                for side in sides {
                    let recording = recording_of(context, side).ok_or(Unavailable::Nothing)?;
                    let peak = recording.series(side.device).map_or(0, |series| series.peak_allocated().event);
                    let (event, when) = match moments {
                        Moments::Peaks => (peak.max(recording.first_event()), "at its peak"),
                        _ => (recording.end_event(), "at its end"),
                    };
                    (side.event, side.when) = (event, when.to_owned());
                }
            }
            Moments::Step => {
                let (first, peak) = self.peak_of_step(context, 0, &sides[0], StepChoice::At(context.moment))?;
                set_step(&mut sides[0], first, peak);
                let choice = StepChoice::Number(first.number);
                let (step, peak) = self.peak_of_step(context, 1, &sides[1], choice)?;
                set_step(&mut sides[1], step, peak);
            }
        }
        Ok(())
    }

    /// Returns the chosen step of a side (`index` 0 for A, 1 for B), and the moment of the peak of
    /// allocated bytes in it.
    fn peak_of_step(
        &mut self,
        context: &Context<'_>,
        index: usize,
        side: &Side,
        choice: StepChoice,
    ) -> Result<(Step, u64), Unavailable> {
        let (steps, history) = self.updated_steps(context, index, side)?;
        if steps.steps().is_empty() {
            return Err(no_steps(index));
        }
        let table = history.lifetimes(side.device).and_then(|lifetimes| steps.table(lifetimes));
        let Some(table) = table else {
            self.is_unfinished = true;
            return Err(Unavailable::Reading);
        };
        let rows = table.rows();
        let found = match choice {
            StepChoice::At(event) => rows.iter().rev().find(|row| row.step.from_event < event).or(rows.first()),
            StepChoice::Number(number) => rows.iter().find(|row| row.step.number == number),
        };
        found.map(|row| (row.step, row.peak_event)).ok_or_else(|| {
            let numbers = rows.first().zip(rows.last()).map(|(first, last)| (first.step.number, last.step.number));
            let (first, last) = numbers.unwrap_or_default();
            let wanted = if let StepChoice::Number(number) = choice { number } else { 0 };
            let name = NAMES[index];
            Unavailable::Impossible(format!("{name} has no step {wanted}: its steps are {first} to {last}."))
        })
    }

    /// Returns the steps of a side (`index` 0 for A, 1 for B) once they are known, and the history
    /// in which they were found.
    fn updated_steps<'a>(
        &'a mut self,
        context: &Context<'a>,
        index: usize,
        side: &Side,
    ) -> Result<(&'a mut StepAnalysis, &'a History), Unavailable> {
        let recording = recording_of(context, side).ok_or(Unavailable::Nothing)?;
        let second = &mut self.second;
        if let Some(error) = second.error.clone().filter(|_| side.is_second) {
            return Err(Unavailable::Impossible(error));
        }
        let (history, marks, is_complete) = match side.is_second {
            true => (&second.history, &second.marks, second.is_complete),
            false => (context.history, context.marks, context.is_history_complete),
        };
        let Some(lifetimes) = history.lifetimes(side.device) else {
            self.is_unfinished |= side.is_second && !is_complete;
            return Err(if is_complete { no_steps(index) } else { Unavailable::Reading });
        };
        let step_span = context.step_span;
        let source =
            DeviceHistory { recording, marks, history, is_complete, device: side.device, lifetimes, step_span };
        let steps = if side.is_second { &mut second.steps } else { &mut self.steps[index] };
        let is_outdated = steps.update(&source);
        self.is_unfinished |= is_outdated || (side.is_second && !is_complete);
        if !steps.is_known() {
            return Err(Unavailable::Reading);
        }
        Ok((steps, history))
    }
}

/// Returns the error that side A (`index` 0) or B (1) has no steps.
fn no_steps(index: usize) -> Unavailable {
    Unavailable::Impossible(format!("{} has no steps. Compare other moments.", NAMES[index]))
}
