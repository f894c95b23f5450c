//! Recognizes steps by the names of spans.

use std::collections::HashMap;

use vramscope_trace::sort::{sort_by, sort_by_key};
use vramscope_trace::{Definitions, StringId};

use super::step::{Step, StepSource, Steps};
use crate::spans::Span;

/// Prefix of the name that `torch.profiler` gives to each step.
const PROFILER_STEP: &str = "ProfilerStep";
/// Names of steps, with or without a number, in lower case.
const STEP_NAMES: [&str; 5] = ["step", "train_step", "training_step", "iteration", "iter"];
/// Prefix of the name that PyTorch gives to the step of an optimizer.
const OPTIMIZER_STEP: &str = "Optimizer.step#";
/// Prefix of the name that PyTorch gives to the call that frees or clears gradients.
const OPTIMIZER_ZERO_GRAD: &str = "Optimizer.zero_grad#";
/// Minimum number of numbered spans of any other name that count as steps.
const MIN_SERIES: usize = 3;

/// How a span's name marks steps. Earlier kinds take precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum StepNameKind {
    /// The name that the user chose, or that name with a number.
    Chosen,
    /// `ProfilerStep#N`.
    Profiler,
    /// `step N`, `iteration N` and the like.
    NumberedStep,
    /// `step`, `train_step` and the like.
    Step,
    /// `Optimizer.step#Adam.step`: a step ends with it.
    Optimizer,
    /// Another name with a number.
    Series,
}

/// The parts of a span's name.
#[derive(Clone, Debug)]
struct ParsedName {
    kind: StepNameKind,
    /// The name without its number.
    base: String,
    number: Option<u64>,
}

/// The range of moments and times in which steps are searched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) from_event: u64,
    pub(super) to_event: u64,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

impl Bounds {
    /// Returns the moment in the range that is nearest to `event`. Annotations of a damaged
    /// recording may be anywhere.
    fn clamp(&self, event: u64) -> u64 {
        event.min(self.to_event).max(self.from_event)
    }
}

/// Splits a number off the end of a name: `step 3` into `step` and 3.
pub(crate) fn split_number(name: &str) -> (&str, Option<u64>) {
    let base = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    match name[base.len()..].parse() {
        Ok(number) => (base.trim_end_matches([' ', '#', ':', '_', '-', '=', '/', '.']), Some(number)),
        Err(_) => (name, None),
    }
}

/// Returns the parts of a name that marks steps, or `None` if it does not mark steps. `chosen` is
/// the name that the user chose.
fn parse(name: &str, chosen: Option<&str>) -> Option<ParsedName> {
    let (base, number) = split_number(name);
    let parsed = |kind, base: &str| Some(ParsedName { kind, base: base.to_owned(), number });
    if let Some(chosen) = chosen {
        let is_chosen = name == chosen || base == split_number(chosen).0;
        return if is_chosen { parsed(StepNameKind::Chosen, base) } else { None };
    }
    if name.starts_with(OPTIMIZER_STEP) {
        return parsed(StepNameKind::Optimizer, name);
    }
    let is_step = STEP_NAMES.contains(&base.to_ascii_lowercase().as_str());
    match number {
        Some(_) if base == PROFILER_STEP => parsed(StepNameKind::Profiler, base),
        Some(_) if is_step => parsed(StepNameKind::NumberedStep, base),
        Some(_) if !base.is_empty() => parsed(StepNameKind::Series, base),
        None if is_step => parsed(StepNameKind::Step, base),
        _ => None,
    }
}

/// Returns the number of the step that a running program is in, from its last marks: names and how
/// often each was made, the newest first. `None` if no name marks steps.
///
/// The result is the number in a numbered name; of any other name, how often it was made.
#[must_use]
pub fn current_step<'a>(marks: impl IntoIterator<Item = (&'a str, u64)>) -> Option<u64> {
    let parsed = marks.into_iter().filter_map(|(name, count)| Some((parse(name, None)?, count)));
    // The first of equal kinds is the newest.
    let (name, count) = parsed.min_by_key(|(name, _)| name.kind)?;
    Some(name.number.unwrap_or(count))
}

/// Finds steps by the names of `spans`, which must be ordered by start time. Without steps the
/// result is empty. [`super`] documents which names count.
///
/// `allocations_until` returns, for each of some moments in ascending order, how many allocations
/// the device made by then. `chosen` is the name that the user chose; other names then do not
/// count.
pub(super) fn find<'a>(
    spans: impl Iterator<Item = &'a Span> + Clone,
    definitions: &Definitions,
    bounds: Bounds,
    chosen: Option<&str>,
    allocations_until: &dyn Fn(&[u64]) -> Vec<u64>,
) -> Steps {
    let mut names: HashMap<StringId, Option<ParsedName>> = HashMap::new();
    // Number of spans of each kind and, only for series, of each name.
    let mut counts: HashMap<(StepNameKind, &str), (usize, usize)> = HashMap::new();
    for span in spans.clone() {
        names.entry(span.name).or_insert_with(|| parse(definitions.string(span.name), chosen));
    }
    for (index, span) in spans.clone().enumerate() {
        let Some(Some(parsed)) = names.get(&span.name) else { continue };
        if parsed.kind != StepNameKind::Series || span.depth == 0 {
            let base = if parsed.kind == StepNameKind::Series { parsed.base.as_str() } else { "" };
            counts.entry((parsed.kind, base)).or_insert((0, index)).0 += 1;
        }
    }
    let found = counts
        .iter()
        .filter(|&(&(kind, _), &(count, _))| kind != StepNameKind::Series || count >= MIN_SERIES)
        .min_by_key(|&(&(kind, _), &(count, first))| (kind, std::cmp::Reverse(count), first));
    let Some((&(kind, base), _)) = found else { return Steps::default() };
    let is_wanted = |span: &Span| {
        names.get(&span.name).and_then(Option::as_ref).is_some_and(|parsed| {
            parsed.kind == kind && (kind != StepNameKind::Series || (span.depth == 0 && parsed.base == base))
        })
    };
    let wanted: Vec<&Span> = spans.clone().filter(|span| is_wanted(span)).collect();
    let Some(first) = wanted.first().and_then(|span| names.get(&span.name)?.as_ref()) else {
        return Steps::default();
    };
    let shown_name = match (kind, first.number) {
        (StepNameKind::Profiler, _) => format!("{PROFILER_STEP}#N"),
        (StepNameKind::Optimizer, _) | (_, None) => first.base.clone(),
        (_, Some(_)) => format!("{} N", first.base),
    };
    let source = StepSource::Span(shown_name);
    if kind == StepNameKind::Optimizer {
        let zero_grads = spans.filter(|span| definitions.string(span.name).starts_with(OPTIMIZER_ZERO_GRAD));
        return Steps::new(source, optimizer_steps(&wanted, zero_grads, bounds, allocations_until));
    }
    let number_of = |span: &Span| names.get(&span.name).and_then(Option::as_ref).and_then(|parsed| parsed.number);
    Steps::new(source, steps_of(&wanted, bounds, number_of))
}

/// Returns a step for each of `spans`. If all spans are single moments, each step lasts until the
/// next moment, and the last step until the end; a last moment without an event after it ends the
/// previous step and begins none.
fn steps_of(spans: &[&Span], bounds: Bounds, number_of: impl Fn(&Span) -> Option<u64>) -> Vec<Step> {
    let only_instants = spans.iter().all(|span| span.is_instant);
    let intervals: Vec<&Span> = spans.iter().copied().filter(|span| only_instants || !span.is_instant).collect();
    let step = |(index, span): (usize, &&Span)| {
        let next = intervals.get(index + 1).filter(|_| only_instants);
        let (to_event, to_ns) = match next {
            Some(next) => (Some(next.from_event), Some(next.from_ns)),
            None if only_instants => (None, None),
            None => (span.to_event, span.to_ns),
        };
        Step {
            number: number_of(span).unwrap_or(index as u64 + 1),
            from_event: bounds.clamp(span.from_event),
            to_event: bounds.clamp(to_event.unwrap_or(bounds.to_event)),
            from_ns: span.from_ns,
            to_ns: to_ns.unwrap_or(bounds.to_ns),
        }
    };
    let mut steps: Vec<Step> = intervals.iter().enumerate().map(step).collect();
    // A mark is an event, too; its step begins at the moment before it.
    let is_mark_only = |step: &Step| step.to_event <= step.from_event.saturating_add(1);
    if only_instants && steps.len() > 1 && steps.last().is_some_and(is_mark_only) {
        steps.pop();
    }
    steps
}

/// Returns the steps that end with `optimizer_spans`. Another optimizer's step and the call that
/// clears the gradients belong to the step before them if nothing is allocated between.
fn optimizer_steps<'a>(
    optimizer_spans: &[&'a Span],
    zero_grads: impl Iterator<Item = &'a Span>,
    bounds: Bounds,
    allocations_until: &dyn Fn(&[u64]) -> Vec<u64>,
) -> Vec<Step> {
    let ended = |span: &Span, is_step| {
        Some((bounds.clamp(span.from_event), bounds.clamp(span.to_event?), span.to_ns?, is_step))
    };
    let mut spans: Vec<(u64, u64, u64, bool)> = optimizer_spans.iter().filter_map(|span| ended(span, true)).collect();
    spans.extend(zero_grads.filter_map(|span| ended(span, false)));
    sort_by_key(&mut spans, |&(_, to_event, to_ns, _)| (to_event, to_ns));
    let mut moments: Vec<u64> = spans.iter().flat_map(|span| [span.0, span.1]).collect();
    moments.push(bounds.from_event);
    sort_by(&mut moments, Ord::cmp);
    moments.dedup();
    let counts = allocations_until(&moments);
    let allocated_by =
        |moment: u64| moments.binary_search(&moment).ok().and_then(|index| counts.get(index)).copied().unwrap_or(0);
    let allocates = |from_event: u64, to_event: u64| allocated_by(to_event) > allocated_by(from_event);
    let mut steps: Vec<Step> = Vec::new();
    for (begin, to_event, to_ns, is_step) in spans {
        let (from_event, from_ns) =
            steps.last().map_or((bounds.from_event, bounds.from_ns), |last| (last.to_event, last.to_ns));
        match steps.last_mut() {
            Some(last) if !allocates(from_event, begin) => (last.to_event, last.to_ns) = (to_event, to_ns),
            _ if is_step && allocates(from_event, to_event) => {
                let number = steps.len() as u64 + 1;
                steps.push(Step { number, from_event, to_event, from_ns, to_ns });
            }
            _ => {}
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_split_off_names() {
        let cases = [
            ("step 3", "step", Some(3)),
            ("ProfilerStep#12", "ProfilerStep", Some(12)),
            ("iteration_007", "iteration", Some(7)),
            ("step", "step", None),
            ("42", "", Some(42)),
            ("step 99999999999999999999", "step 99999999999999999999", None),
            ("", "", None),
        ];
        for (name, base, number) in cases {
            assert_eq!(split_number(name), (base, number), "{name}");
        }
    }

    #[test]
    fn current_step_is_that_of_the_best_name() {
        assert_eq!(current_step([]), None);
        assert_eq!(current_step([("forward", 7)]), None);
        assert_eq!(current_step([("forward", 7), ("step 41", 1), ("step 40", 1), ("epoch 3", 1)]), Some(41));
        assert_eq!(current_step([("Optimizer.step#AdamW.step", 12), ("epoch 3", 1)]), Some(12));
        assert_eq!(current_step([("epoch 3", 1), ("step", 9)]), Some(9));
    }

    #[test]
    fn step_names_are_recognized() {
        let check = |name: &str, chosen: Option<&str>, expected: Option<StepNameKind>| {
            assert_eq!(parse(name, chosen).map(|parsed| parsed.kind), expected, "{name}");
        };
        check("ProfilerStep#1", None, Some(StepNameKind::Profiler));
        check("Step 1", None, Some(StepNameKind::NumberedStep));
        check("iteration 4", None, Some(StepNameKind::NumberedStep));
        check("train_step", None, Some(StepNameKind::Step));
        check("Optimizer.step#Adam.step", None, Some(StepNameKind::Optimizer));
        check("epoch 4", None, Some(StepNameKind::Series));
        check("forward", None, None);
        check("step 1", Some("epoch"), None);
        check("epoch 1", Some("epoch"), Some(StepNameKind::Chosen));
        check("epoch 1", Some("epoch 7"), Some(StepNameKind::Chosen));
        check("forward", Some("forward"), Some(StepNameKind::Chosen));
    }
}
