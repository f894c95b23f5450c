//! Chooses what to say first about a recording, from all findings and the evidence behind them.

use vramscope_trace::{DeviceId, Recording};

use super::answer::{UnansweredRule, VerdictRemedy};
use super::cause::{Cause, Confidence, Status};
use super::held::HeldMemory;
use super::text;
use crate::diagnosis::{Diagnosed, ExaminedDevice, Finding, Problem, Rule};
use crate::evidence::Evidence;
use crate::failures::OomCause;

/// Minimum share of the reserved peak, in percent, that a simulated remedy must save for a verdict
/// to be sure by that alone.
const MIN_PROOF_PERCENT: u64 = 10;
/// Maximum share of the reserved peak, in percent, that no live request needs, of a program that is
/// called healthy.
const MAX_HEALTHY_WASTE_PERCENT: u64 = 15;

/// What to say first about a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Whether the recording shows a problem.
    pub status: Status,
    /// What the verdict says, as a type.
    pub cause: Cause,
    /// What the verdict says, as one sentence or two.
    pub summary: String,
    /// What helps, if something is known.
    pub remedy: Option<VerdictRemedy>,
    /// How certain it is.
    pub confidence: Confidence,
    /// The device; `None` in a recording without devices.
    pub device: Option<DeviceId>,
    /// The number of the event that shows it best.
    pub event: Option<u64>,
    /// The call of the program at fault, if it is known.
    pub site: Option<String>,
    /// The bytes that the problem costs.
    pub bytes: Option<u64>,
    /// What the memory state at the end shows, if the recording has no history.
    pub held: Option<HeldMemory>,
    /// The rules that cannot answer, each with what the recording lacks.
    pub unanswered: Vec<UnansweredRule>,
}

impl Verdict {
    /// Decides what to say first about a recording.
    #[must_use]
    pub fn new(recording: &Recording, diagnosed: &Diagnosed) -> Self {
        let unanswered = unanswered_rules(&diagnosed.devices);
        let verdict = match diagnosed.findings.first() {
            Some(first) => of_finding(diagnosed, first),
            None => without_finding(recording, diagnosed, &unanswered),
        };
        Self { unanswered, ..verdict }
    }
}

/// Returns the rules that lack evidence on every device, each with what is missing on the first.
fn unanswered_rules(devices: &[ExaminedDevice]) -> Vec<UnansweredRule> {
    let of_rule = |rule: Rule| {
        let mut missing = devices.iter().map(|device| device.evidence.missing(rule.needs()));
        let first = missing.next().unwrap_or_else(|| vec![Evidence::History]);
        let is_unanswered = !first.is_empty() && missing.all(|one| !one.is_empty()) && !rule.needs().is_empty();
        is_unanswered.then_some(UnansweredRule { rule, missing: first })
    };
    Rule::ALL.into_iter().filter_map(of_rule).collect()
}

/// Returns the verdict about the most serious finding.
fn of_finding(diagnosed: &Diagnosed, first: &Finding) -> Verdict {
    let growth = growth_behind(diagnosed, first);
    let cause = match growth {
        Some(growth) => Cause::FailureByGrowth { growth: growth.problem },
        None => Cause::Problem(first.problem),
    };
    let oom = first.failure_in(&diagnosed.autopsy);
    let summary = match (oom, growth) {
        (Some(oom), growth) => text::failure(oom, first, growth),
        (None, _) => text::problem(first),
    };
    let (remedy, site) = match growth {
        // The failure's own remedies treat the last request, not what fills the memory.
        Some(growth) => (growth.remedy.as_ref().map(|_| growth).or(Some(first)), growth.site.clone()),
        None => (Some(first), first.site.clone()),
    };
    let device = diagnosed.devices.iter().find(|one| one.device == first.device);
    Verdict {
        status: Status::Found,
        cause,
        summary,
        remedy: remedy.and_then(text::remedy),
        confidence: device.map_or(Confidence::Possible, |device| confidence(device, first, oom.is_some())),
        device: Some(first.device),
        event: Some(if oom.is_some() { first.events.0 } else { first.events.1 }),
        site: Some(site).filter(|site| !site.is_empty() && device.is_some_and(names_program)),
        bytes: Some(first.bytes),
        held: None,
        unanswered: Vec::new(),
    }
}

/// Returns true if the call stacks about a device name lines of the program.
fn names_program(device: &ExaminedDevice) -> bool {
    device.evidence.has(Evidence::ProgramFrames)
}

/// Returns the growth that explains a failed request, if `failure` is one and memory had grown.
fn growth_behind<'a>(diagnosed: &'a Diagnosed, failure: &Finding) -> Option<&'a Finding> {
    if failure.problem != Problem::OutOfMemory(OomCause::Leak) {
        return None;
    }
    let of_device = diagnosed.findings.iter().filter(|one| one.device == failure.device);
    of_device.filter(|one| Rule::of(one.problem) == Rule::Growth).max_by_key(|one| one.bytes)
}

/// Returns how certain a finding about a device is.
fn confidence(device: &ExaminedDevice, finding: &Finding, is_failure: bool) -> Confidence {
    let evidence = &device.evidence;
    let missing = evidence.missing(Rule::of(finding.problem).needs());
    let is_proven = finding.checked.is_some_and(|checked| {
        let peak = u128::from(device.peak_reserved.bytes);
        u128::from(checked.saves_bytes) * 100 >= peak * u128::from(MIN_PROOF_PERCENT)
    });
    let has_stacks = evidence.has(Evidence::ProgramFrames);
    match () {
        () if !missing.is_empty() => Confidence::Possible,
        () if is_failure && (has_stacks || finding.checked.is_some()) => Confidence::Sure,
        () if is_proven && has_stacks => Confidence::Sure,
        () if has_stacks || is_proven || is_failure => Confidence::Likely,
        () => Confidence::Possible,
    }
}

/// Returns the verdict about a recording in which no rule found a problem.
fn without_finding(recording: &Recording, diagnosed: &Diagnosed, unanswered: &[UnansweredRule]) -> Verdict {
    // The device with most memory stands for all.
    let device = diagnosed.devices.iter().max_by_key(|one| (one.peak_reserved.bytes, std::cmp::Reverse(one.device)));
    let essential: Vec<&UnansweredRule> = unanswered.iter().filter(|one| one.rule.is_essential()).collect();
    let lacks_history = essential.iter().any(|one| one.missing.contains(&Evidence::History));
    let held = device.filter(|_| lacks_history).map(|one| HeldMemory::at_end(recording, one.device));
    let (cause, summary, confidence) = match (device, &held) {
        (_, Some(held)) => (Cause::NoHistory, text::without_history(held), Confidence::Sure),
        (Some(device), _) if !essential.is_empty() => {
            (Cause::Unknown, text::partly_unknown(device, &essential), Confidence::Likely)
        }
        (Some(device), _) => {
            let is_lean = u128::from(device.waste_bytes()) * 100
                <= u128::from(device.peak_reserved.bytes) * u128::from(MAX_HEALTHY_WASTE_PERCENT);
            let is_whole = device.evidence.has(Evidence::Beginning);
            let confidence = if is_lean && is_whole { Confidence::Sure } else { Confidence::Likely };
            (Cause::Healthy, text::healthy(device, is_lean, is_whole), confidence)
        }
        (None, _) => (Cause::NoHistory, "The recording is empty.".to_owned(), Confidence::Sure),
    };
    let status = if cause == Cause::Healthy { Status::Nothing } else { Status::CannotTell };
    let remedy = (status == Status::CannotTell).then(|| text::how_to_record(&essential));
    Verdict {
        status,
        cause,
        summary,
        remedy,
        confidence,
        device: device.map(|one| one.device),
        event: None,
        site: None,
        bytes: None,
        held,
        unanswered: Vec::new(),
    }
}
