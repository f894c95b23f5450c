//! Slow growth of a program without steps, such as a server.

use std::collections::BTreeSet;

use vramscope_trace::{Allocation, ByteSize, Count, DurationNs};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Problem, Severity};
use super::growth::{MIN_SHARE, growing_lines};
use super::remedy::freed_in_step;
use crate::autopsy::RecordingLines;
use crate::group::Phase;
use crate::steps::{AllocatedCurve, MIN_GROWTH_STEPS, Step, StepSource, Steps};

/// Minimum number of allocations of a server: in fewer, a wave of load may look like growth.
const MIN_ALLOCATIONS: usize = 100_000;
/// Minimum growth, in bytes.
const MIN_BYTES: u64 = 8 << 20;
/// Number of periods that are compared.
const PERIODS: u64 = 32;
/// Minimum number of allocations of a shorter program without steps.
const MIN_SHORT_ALLOCATIONS: usize = 200;
/// Divisor: growth of a shorter program counts if it is at least half of the peak. Less may be what
/// any program sets up.
const MIN_SHORT_SHARE: u64 = 2;
/// Number of periods of a shorter program that are compared.
const SHORT_PERIODS: u64 = 8;
/// Number of steps inferred from repeated allocations from which on they are requests to a server,
/// if no backward pass runs.
const MANY_STEPS: usize = 1000;
/// Duration of a forecast, in nanoseconds, within which the severity is high: a day.
const SOON_NS: u64 = 24 * 3600 * 1_000_000_000;
/// Maximum duration of a forecast, in nanoseconds: a year; longer ones are left out.
const MAX_FORECAST_NS: u64 = 365 * SOON_NS;

/// Returns the periods of a program without steps, of equal numbers of events; `None` if it has
/// steps or too few allocations. Each ends at the moment of least allocated memory in it, when the
/// fewest requests are in flight.
pub(super) fn periods(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Steps> {
    let steps = &context.steps;
    let has_steps = match steps.source() {
        None => false,
        Some(StepSource::Inferred { .. }) => {
            (steps.default_warm_up() + MIN_GROWTH_STEPS..MANY_STEPS).contains(&steps.len())
        }
        Some(StepSource::Span(_)) => true,
    };
    let is_long = is_long(context);
    let is_trained = |one: Allocation| lines.phase(one.site) == Some(Phase::Backward);
    let has_steps = has_steps || (!steps.is_empty() && context.lifetimes.iter().any(is_trained));
    if has_steps || (!is_long && context.lifetimes.len() < MIN_SHORT_ALLOCATIONS) {
        return None;
    }
    let count = if is_long { PERIODS } else { SHORT_PERIODS };
    // What follows the last request is the end of the program, which frees all.
    let end = context.lifetimes.iter().map(|one| one.first_moment).max()?;
    let first = context.recording.first_event();
    let length = (end - first).div_ceil(count).max(1);
    // The start of a short program, which makes its model, must not look like growth.
    if !is_long && !have_passes(context, lines, first, length, count) {
        return None;
    }
    // The least allocated bytes in each period, and their moment.
    let mut quietest: Vec<(u64, u64)> = Vec::new();
    let mut curve = AllocatedCurve::new(first, end);
    while !curve.is_finished() {
        curve.advance(context.lifetimes, &mut |point| {
            let period = usize::try_from((point.event - first) / length).unwrap_or(usize::MAX);
            let this = (point.allocated_bytes, point.event);
            match quietest.get_mut(period) {
                Some(least) if this.0 < least.0 => *least = this,
                Some(_) => {}
                None => quietest.resize(quietest.len().max(period.saturating_add(1).min(count as usize)), this),
            }
        });
    }
    let time_ns = |event: u64| context.history.time_ns(event);
    let steps = quietest.windows(2).zip(1..).map(|(pair, number)| Step {
        number,
        from_event: pair[0].1,
        to_event: pair[1].1,
        from_ns: time_ns(pair[0].1),
        to_ns: time_ns(pair[1].1),
    });
    Some(Steps::new(StepSource::Span("period".to_owned()), steps))
}

/// Returns true if each of `count` periods of `length` events after the event `first` has a pass
/// through a model whose activations are freed.
fn have_passes(context: &Context<'_>, lines: &RecordingLines<'_>, first: u64, length: u64, count: u64) -> bool {
    let is_of_pass = |one: &Allocation| {
        one.start_observed && one.active_until.is_some() && lines.phase(one.site) == Some(Phase::Forward)
    };
    let passes = context.lifetimes.iter().filter(is_of_pass);
    let periods: BTreeSet<u64> = passes.map(|one| one.first_moment.saturating_sub(first) / length).collect();
    (0..count).all(|period| periods.contains(&period))
}

/// Returns true if a history without steps is long enough to show any growth.
pub(super) fn is_long(context: &Context<'_>) -> bool {
    context.lifetimes.len() >= MIN_ALLOCATIONS
}

/// Finds memory that grows from period to period until the end.
pub(super) fn find(context: &Context<'_>, lines: &mut RecordingLines<'_>, periods: &Steps) -> Option<Finding> {
    let compared = periods.as_slice().get(periods.default_warm_up()..)?;
    let (first, last) = (compared.first()?, compared.last()?);
    let growth = growing_lines(context, lines, periods)?;
    let grown = growth.blocks(context, lines, first.to_event..last.to_event, last.to_event);
    let bytes = total_bytes(&grown);
    let min_share = if is_long(context) { MIN_SHARE } else { MIN_SHORT_SHARE };
    if bytes < context.peak_allocated.bytes / min_share || bytes < MIN_BYTES {
        return None;
    }
    let made: Vec<u64> = context.lifetimes.counts_until([first.to_event, last.to_event].into_iter()).collect();
    let allocations = made.last().zip(made.first()).map_or(0, |(last, first)| last - first);
    let duration_ns = last.to_ns.saturating_sub(first.to_ns);
    let mut summary = format!(
        "Memory keeps growing: {} more are held after {} in {}.",
        ByteSize(bytes),
        Count(allocations).of("allocation", "allocations"),
        DurationNs(duration_ns)
    );
    let scaled = |amount: u64, left: u64| {
        u64::try_from(u128::from(amount) * u128::from(left) / u128::from(bytes)).unwrap_or(u64::MAX)
    };
    let mut severity = Severity::Medium;
    if let Some(capacity_bytes) = context.capacity_bytes() {
        let left_bytes = capacity_bytes.saturating_sub(context.peak_reserved.bytes);
        let left_ns = scaled(duration_ns, left_bytes);
        if left_ns <= MAX_FORECAST_NS {
            summary += &format!(
                " At this rate, the {} that the pool can get are full in {} ({} more).",
                ByteSize(capacity_bytes),
                DurationNs(left_ns),
                Count(scaled(allocations, left_bytes)).of("allocation", "allocations")
            );
        }
        if left_ns <= SOON_NS {
            severity = Severity::High;
        }
    }
    let mut finding = context.finding(lines, Problem::GrowthOfServer, bytes, &grown, summary);
    finding.severity = finding.severity.max(severity);
    finding.remedy = Some(
        "Bound what is kept (a cache with a maximum size), drop it with its request, or keep it on the CPU.".to_owned(),
    );
    let kept: Vec<Allocation> = growth.blocks(context, lines, 0..last.to_event, last.to_event);
    finding.trials = vec![freed_in_step(context, periods, kept)];
    Some(finding)
}
