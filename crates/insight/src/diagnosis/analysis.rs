//! Runs all rules over a recording, in steps.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use vramscope_pool::Settings;
use vramscope_trace::{DeviceId, DeviceState, FormatError, Peak, Recording, Replay};

use super::context::Context;
use super::copies::Copies;
use super::diagnosed::{Diagnosed, sort_by_severity};
use super::examined::ExaminedDevice;
use super::finding::{Finding, Problem, Severity};
use super::peak_categories::categories_at;
use super::profile::ProfileBuilder;
use super::remedy::settings_trials;
use super::rule::Rule;
use super::{
    copies, dead_weight, evaluation, growth, kept_exception, layer_buffers, optimizer_step, outside, peaks, pinned,
    private_pools, reserved, segments, server_growth, small_tensors,
};
use crate::autopsy::{Autopsy, Defect, OomCause, OutOfMemory, RecordingLines, defects};
use crate::evidence::Evidence;
use crate::group::DeviceCategories;
use crate::history::History;
use crate::pools::event_walk::{EventWalk, WalkStep};
use crate::pools::{ReservedBreakdown, device_usage};
use crate::spans::Marks;
use crate::steps::find_steps;

/// Finds the problems of a recording, in steps.
///
/// For a live recording that has grown, create another diagnosis.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    settings: Settings,
    walk: EventWalk,
    builders: BTreeMap<DeviceId, ProfileBuilder>,
}

impl Diagnosis {
    /// Creates a diagnosis that has visited no event of the recording. `history` has all its
    /// lifetimes; `settings` are the allocator's, with the cap as `limit_bytes` if it is known.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn new(recording: &Recording, history: &History, settings: &Settings) -> Result<Self, FormatError> {
        let mut marks = Marks::default();
        marks.update(recording);
        let mut builders = BTreeMap::new();
        for device in recording.devices() {
            let Some(lifetimes) = history.lifetimes(device) else { continue };
            let steps = find_steps(recording, &marks, device, lifetimes, None, |moment| history.time_ns(moment));
            builders.insert(device, ProfileBuilder::new(recording, device, steps));
        }
        let walk = EventWalk::new(recording, recording.first_event())?;
        Ok(Self { settings: settings.clone(), walk, builders })
    }

    /// Visits up to `max_events` more events, 0.2 microseconds each. Returns true at the end.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn step(&mut self, recording: &Recording, max_events: u64) -> Result<bool, FormatError> {
        for _ in 0..max_events {
            match self.walk.next(recording)? {
                Some(WalkStep::Event(event)) => {
                    let state = self.walk.state();
                    let builder = self.builders.get_mut(&event.device);
                    if let Some((builder, device)) = builder.zip(state.device(event.device)) {
                        builder.event(state.event(), &event, device);
                    }
                }
                Some(WalkStep::Replaced) => self.builders.values_mut().for_each(ProfileBuilder::replaced),
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Applies the rules and returns the findings.
    ///
    /// # Errors
    /// If a chunk cannot be read.
    pub fn finish(self, recording: &Recording, history: &History) -> Result<Diagnosed, FormatError> {
        let mut lines = RecordingLines::new(recording);
        let mut autopsy = Autopsy::new(self.settings.clone());
        while !autopsy.step(recording, history)? {}
        // Which requests private pools served is not known without reconstructing the program.
        let defects = defects(recording, &self.settings, &mut |_| BTreeSet::new())?;
        let mut replay = Replay::new();
        let known = autopsy.categories().cloned();
        let categories = known.unwrap_or_else(|| history.all_categories(recording));
        let (mut findings, mut unproven, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for (device, builder) in self.builders {
            let (Some(lifetimes), Some(series)) = (history.lifetimes(device), recording.series(device)) else {
                continue;
            };
            let (steps, profile) = builder.finish();
            let (peak_allocated, peak_reserved) = (series.peak_allocated(), series.peak_reserved());
            let at_peak_reserved = served_peak(&mut replay, recording, device, peak_reserved)?;
            let at_last_step = match steps.as_slice().last() {
                Some(step) => replay.seek(recording, step.to_event)?.device(device).cloned(),
                None => None,
            };
            let categories = DeviceCategories::new(&categories, device);
            lines.set_categories(&categories);
            let peak_contents = categories_at(&categories, lifetimes, &steps, peak_allocated.event);
            let has_failure = autopsy.ooms().iter().any(|oom| oom.failure.device == device);
            let context = Context {
                recording,
                history,
                device,
                settings: &self.settings,
                lifetimes,
                steps,
                profile,
                peak_allocated,
                peak_reserved,
                peak_active_bytes: series.peak_active().bytes,
                at_peak_reserved,
                at_last_step,
                peak_contents,
                has_failure,
            };
            let of_device: Vec<&Defect> = defects.iter().filter(|defect| defect.device == device).collect();
            let mut applied = apply_rules(&context, &mut lines, &mut autopsy, &of_device);
            for one in applied.findings.iter_mut().filter(|one| one.trials.is_empty()) {
                one.trials = settings_trials(&context, one.problem);
            }
            let usage = context.at_last_step.as_ref().map(|state| device_usage(state, &self.settings));
            applied.examined.at_last_step = usage.map(|usage| ReservedBreakdown::from(&usage));
            findings.extend(applied.findings);
            unproven.extend(applied.unproven);
            devices.push(applied.examined);
        }
        sort_by_severity(&mut findings);
        Ok(Diagnosed { findings, autopsy, devices, unproven })
    }
}

/// The result of all rules for one device.
struct AppliedRules {
    findings: Vec<Finding>,
    /// Findings that only count once a simulation proves them.
    unproven: Vec<Finding>,
    examined: ExaminedDevice,
}

/// Applies the rules to a device that has `defects`. Failures in `autopsy` that memory which grew
/// explains get that cause.
fn apply_rules(
    context: &Context<'_>,
    lines: &mut RecordingLines<'_>,
    autopsy: &mut Autopsy,
    defects: &[&Defect],
) -> AppliedRules {
    let mut examined = context.examined();
    let (mut findings, mut unproven) = (Vec::new(), Vec::new());
    if !examined.evidence.has(Evidence::History) {
        // The state of one moment shows neither peaks nor growth.
        findings.extend(private_pools::find(context, lines, false));
        findings.retain(|one| examined.evidence.missing(Rule::of(one.problem).needs()).is_empty());
        return AppliedRules { findings, unproven, examined };
    }
    if !context.device.is_gpu() {
        // The other rules are about the allocator of device memory.
        findings.extend(failures(context, autopsy, &[]));
        findings.extend(growth::find(context, lines));
        findings.extend(pinned::find(context, lines));
        findings.retain(|one| examined.missing(Rule::of(one.problem)).is_empty());
        return AppliedRules { findings, unproven, examined };
    }
    let outside = outside::growth(context, lines);
    // Growth outside of the pool explains why the device was full.
    if let Some(outside) = &outside {
        autopsy.explain_by_outside(context.device, &outside.summary);
    }
    let periods = server_growth::periods(context, lines);
    let growth = match &periods {
        Some(periods) => server_growth::find(context, lines, periods),
        None => growth::find(context, lines),
    };
    // Of a short program, only much growth shows.
    examined.has_periods = periods.is_some() && (server_growth::is_long(context) || growth.is_some());
    let evaluation = evaluation::find(context, lines);
    if let Some(evaluation) = evaluation.as_ref().filter(|_| growth.is_none()) {
        let grown = (evaluation.site.as_str(), evaluation.bytes);
        autopsy.explain_by_growth(context.device, evaluation.events.0, grown, "in an evaluation");
    }
    let exceptions = if growth.is_some() { None } else { kept_exception::find(context, lines) };
    let is_explained = |one: &Finding| outside.is_some() && one.problem == Problem::OutOfMemory(OomCause::Outside);
    if let Some(growth) = &growth {
        let during = if periods.is_some() { "over time" } else { "from step to step" };
        autopsy.explain_by_growth(context.device, 0, (&growth.site, growth.bytes), during);
    }
    let private_pools = private_pools::find(context, lines, true);
    if let Some(unused) = private_pools.as_ref().filter(|found| found.problem == Problem::UnusedPool) {
        autopsy.explain_by_pool(context.device, unused.events.0, &unused.site, unused.bytes);
    }
    // A failure that the program handled matters less than what its exception keeps from then on.
    let handled = exceptions.as_ref().map_or(&[][..], |found| &found.steps);
    findings.extend(failures(context, autopsy, handled).into_iter().filter(|one| !is_explained(one)));
    let is_large = |one: &Finding| one.severity >= Severity::Medium;
    let has_kept_exception = exceptions.as_ref().is_some_and(|found| is_large(&found.finding));
    findings.extend(exceptions.map(|found| found.finding));
    findings.extend(outside);
    findings.extend(outside::other_processes(context));
    findings.extend(defects.iter().map(|defect| of_defect(context, lines, defect)));
    let has_growth = growth.is_some();
    findings.extend(growth);
    let pending = segments::pending(context, lines);
    let mut has_waste = pending.is_some();
    findings.extend(pending);
    // Several pools explain free memory of any amount, one pool only what it holds itself.
    let has_private_pools =
        private_pools.as_ref().is_some_and(|one| one.problem == Problem::PrivatePools || is_large(one));
    findings.extend(private_pools);
    // Free memory of private pools looks like fragmentation, and graphs empty the cache.
    if !has_private_pools {
        let recreated = segments::recreated(context, lines);
        has_waste |= recreated.is_some();
        findings.extend(recreated);
    }
    // What grows is kept on purpose, or the growth says why.
    if !has_growth {
        unproven.extend(dead_weight::find(context, lines));
    }
    // Rounding counts what small tensors lose, too.
    let rounding = match (small_tensors::find(context, lines), segments::rounding(context, lines)) {
        (Some(small), Some(rounding)) if small.bytes < rounding.bytes / 2 => Some(rounding),
        (small, rounding) => small.or(rounding),
    };
    if !has_waste && !has_private_pools && defects.is_empty() && rounding.is_none() {
        unproven.extend(reserved::over_reserved(context, lines));
    }
    findings.extend(rounding);
    let has_evaluation = evaluation.is_some();
    // Without a failure, it counts once a simulation proves that less would be reserved.
    if context.has_failure { &mut findings } else { &mut unproven }.extend(evaluation);
    if !context.has_failure && !has_private_pools && !has_kept_exception {
        let start = if has_evaluation { None } else { peaks::start(context, lines) };
        if start.is_none() {
            findings.extend(layer_buffers::find(context, lines));
            match copies::find(context, lines) {
                Some(Copies::Needless(finding)) => findings.push(finding),
                Some(Copies::Kept(finding)) => examined.kept_copies = Some(finding),
                None => {}
            }
            let optimizer_step = optimizer_step::temporaries(context, lines);
            has_waste |= optimizer_step.is_some();
            findings.extend(optimizer_step);
            // Pending or fragmented memory explains more than the requests' sizes.
            findings.extend(peaks::temporaries(context, lines).filter(|_| !has_waste));
            // Memory that grows makes up a large part of the peak in the end, whatever it is for.
            findings.extend(peaks::dominant(context, lines).filter(|_| !has_growth));
        }
        findings.extend(start);
    }
    let is_answered = |one: &Finding| examined.missing(Rule::of(one.problem)).is_empty();
    findings.retain(is_answered);
    unproven.retain(is_answered);
    AppliedRules { findings, unproven, examined }
}

/// Returns the state at the peak of the reserved bytes, after the request that obtained the last
/// segment has been served from it: before, the segment would count as free memory.
fn served_peak(
    replay: &mut Replay,
    recording: &Recording,
    device: DeviceId,
    peak: Peak,
) -> Result<DeviceState, FormatError> {
    let mut at = |event: u64| Ok(replay.seek(recording, event)?.device(device).cloned().unwrap_or_default());
    let served = at(peak.event.saturating_add(1).min(recording.end_event()))?;
    if served.counters().reserved == peak.bytes { Ok(served) } else { at(peak.event) }
}

/// Returns a finding for each cause and site of failed requests, except those that failed in one of
/// the `handled` ranges of events, after which the program goes on.
fn failures(context: &Context<'_>, autopsy: &Autopsy, handled: &[Range<u64>]) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let is_handled = |event: &u64| {
        let begun = handled.partition_point(|range| range.start <= *event);
        let range = begun.checked_sub(1).map(|index| &handled[index]);
        range.is_some_and(|range| range.contains(event) && context.goes_on_after(range.end))
    };
    let is_open = |oom: &&OutOfMemory| oom.failure.device == context.device && !oom.events.iter().all(is_handled);
    for oom in autopsy.ooms().iter().filter(is_open) {
        let problem = Problem::OutOfMemory(oom.cause);
        match found.iter_mut().find(|one| one.problem == problem && one.site == oom.site) {
            Some(earlier) => earlier.events.1 = oom.last_event(),
            None => {
                let (bytes, events) = (oom.failure.requested_bytes, (oom.failure.event, oom.last_event()));
                let mut finding = context.finding_at(problem, bytes, events, oom.site.clone(), oom.summary.clone());
                finding.severity = Severity::Critical;
                found.push(finding);
            }
        }
    }
    found
}

/// Returns the finding for a defect of PyTorch's allocator.
fn of_defect(context: &Context<'_>, lines: &RecordingLines<'_>, defect: &Defect) -> Finding {
    let problem = if defect.pytorch_issue == 193_400 { Problem::OversizeRanges } else { Problem::IgnoredThreshold };
    let blocks: Vec<_> = context.lifetimes.iter().filter(|one| one.first_moment <= defect.event).collect();
    let mut finding = context.finding(lines, problem, defect.bytes, &blocks, defect.summary.clone());
    finding.events = (defect.event, defect.event);
    finding.remedy = Some(defect.remedy.to_owned());
    finding
}
