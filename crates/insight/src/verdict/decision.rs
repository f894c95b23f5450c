//! Chooses what to say first about a recording, from all findings and the evidence behind them.

use vramscope_trace::{DeviceId, Recording};

use super::answer::{UnansweredRule, VerdictRemedy};
use super::cause::{Cause, Confidence, Status};
use super::held::HeldMemory;
use super::text;
use crate::autopsy::OutOfMemory;
use crate::diagnosis::{Diagnosed, ExaminedDevice, Finding, Problem, Rule};
use crate::evidence::Evidence;
use crate::failures::OomCause;

/// Minimum share of the reserved peak, in percent, that a simulated remedy must save for a verdict
/// to be sure by that alone.
const MIN_PROOF_PERCENT: u64 = 10;

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
        let unanswered = unanswered_rules(diagnosed);
        let verdict = match diagnosed.findings.first() {
            Some(first) => of_finding(diagnosed, first),
            None => without_finding(recording, diagnosed),
        };
        let summary = match verdict.device {
            Some(device) if used(&diagnosed.devices).count() > 1 => {
                format!("Device {}: {}", device.0, verdict.summary)
            }
            _ => verdict.summary,
        };
        Self { unanswered, summary, ..verdict }
    }
}

/// Returns the devices on which memory was reserved.
fn used(devices: &[ExaminedDevice]) -> impl Iterator<Item = &ExaminedDevice> {
    devices.iter().filter(|one| one.peak_reserved.bytes > 0 || one.peak_allocated.bytes > 0)
}

/// Returns the rules that lack evidence about a device and found nothing on it, each once if it
/// lacks the same evidence about all devices.
fn unanswered_rules(diagnosed: &Diagnosed) -> Vec<UnansweredRule> {
    let devices: Vec<&ExaminedDevice> = used(&diagnosed.devices).collect();
    let mut unanswered = Vec::new();
    for rule in Rule::ALL.into_iter().filter(|rule| !rule.needs().is_empty()) {
        let missing = |device: &&ExaminedDevice| {
            let missing = [device.missing(rule), device.evidence.missing(rule.needs_for_no())];
            let missing = missing.into_iter().find(|missing| !missing.is_empty())?;
            (!is_answered(diagnosed, rule, device.device)).then_some((device.device, missing))
        };
        let lacking: Vec<(DeviceId, Vec<Evidence>)> = devices.iter().filter_map(missing).collect();
        match lacking.first() {
            None if devices.is_empty() => {
                unanswered.push(UnansweredRule { rule, missing: vec![Evidence::History], device: None });
            }
            Some((_, first)) if lacking.len() == devices.len() && lacking.iter().all(|(_, one)| one == first) => {
                unanswered.push(UnansweredRule { rule, missing: first.clone(), device: None });
            }
            _ => {
                let of_device = |(device, missing)| UnansweredRule { rule, missing, device: Some(device) };
                unanswered.extend(lacking.into_iter().map(of_device));
            }
        }
    }
    unanswered
}

/// Returns true if a finding about a device answers a rule. Failures because of memory outside of
/// the pool also answer the question about that memory.
fn is_answered(diagnosed: &Diagnosed, rule: Rule, device: DeviceId) -> bool {
    let mut found = diagnosed.findings.iter().filter(|one| one.device == device).map(|one| one.problem);
    found.any(|one| Rule::of(one) == rule || (rule == Rule::Outside && one == Problem::OutOfMemory(OomCause::Outside)))
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
        (Some(oom), growth) => {
            let of_device = diagnosed.autopsy.ooms().iter().filter(|one| one.failure.device == first.device);
            let failed: Vec<&OutOfMemory> = of_device.collect();
            text::failure(oom, first, growth, &failed)
        }
        (None, _) => text::problem(first),
    };
    let (remedy, site) = match growth {
        // A checked remedy of the failure frees what grows. Others treat the last request, not what
        // fills the memory.
        Some(growth) if first.checked.is_some() => {
            let lines = growth.code.iter().map(|&line| line.to_owned()).collect();
            (text::remedy(first).map(|remedy| VerdictRemedy { lines, ..remedy }), growth.site.clone())
        }
        Some(growth) => (text::remedy(growth).or_else(|| text::remedy(first)), growth.site.clone()),
        None => (text::remedy(first), first.site.clone()),
    };
    let device = diagnosed.devices.iter().find(|one| one.device == first.device);
    Verdict {
        status: Status::Found,
        cause,
        summary,
        remedy,
        confidence: device.map_or(Confidence::Possible, |device| confidence(device, first, oom.is_some())),
        device: Some(first.device),
        event: Some(if oom.is_some() { first.events.0 } else { first.events.1 }),
        site: Some(site).filter(|site| !site.is_empty() && first.names_call && device.is_some_and(names_program)),
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
    of_device.filter(|one| matches!(Rule::of(one.problem), Rule::Growth | Rule::Evaluation)).max_by_key(|one| one.bytes)
}

/// Returns how certain a finding about a device is.
fn confidence(device: &ExaminedDevice, finding: &Finding, is_failure: bool) -> Confidence {
    let evidence = &device.evidence;
    let missing = device.missing(Rule::of(finding.problem));
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

/// Returns the rules that must have an answer before a device is called healthy, and lack evidence
/// about it.
fn essential_unknown(device: &ExaminedDevice) -> Vec<(Rule, Vec<Evidence>)> {
    let essential = Rule::ALL.into_iter().filter(|rule| rule.is_essential());
    essential.map(|rule| (rule, device.missing(rule))).filter(|(_, missing)| !missing.is_empty()).collect()
}

/// Returns the verdict about a recording in which no rule found a problem.
fn without_finding(recording: &Recording, diagnosed: &Diagnosed) -> Verdict {
    // The device about which least is known stands for all, and of several the one with most
    // memory.
    let device = used(&diagnosed.devices).max_by_key(|one| {
        let unknown = essential_unknown(one);
        let lacks_history = unknown.iter().any(|(_, missing)| missing.contains(&Evidence::History));
        (lacks_history, !unknown.is_empty(), one.peak_reserved.bytes, std::cmp::Reverse(one.device))
    });
    let essential = device.map(essential_unknown).unwrap_or_default();
    let lacks_history = essential.iter().any(|(_, missing)| missing.contains(&Evidence::History));
    let held = device.filter(|_| lacks_history).map(|one| HeldMemory::at_end(recording, one));
    let (cause, summary, confidence) = match (device, &held) {
        (_, Some(held)) => (Cause::NoHistory, text::without_history(held), Confidence::Sure),
        (Some(device), _) if !essential.is_empty() => {
            (Cause::Unknown, text::partly_unknown(device, &essential), Confidence::Likely)
        }
        (Some(device), _) => {
            let is_certain = device.is_lean() && device.evidence.has(Evidence::Beginning);
            let confidence = if is_certain { Confidence::Sure } else { Confidence::Likely };
            (Cause::Healthy, text::healthy(device), confidence)
        }
        (None, _) => (Cause::NoHistory, "The recording is empty.".to_owned(), Confidence::Sure),
    };
    let status = if cause == Cause::Healthy { Status::Nothing } else { Status::CannotTell };
    let remedy = match status {
        Status::CannotTell => {
            Some(text::how_to_record(essential.iter().flat_map(|(_, missing)| missing.iter().copied())))
        }
        _ => device.and_then(|one| one.kept_copies.as_ref()).and_then(text::remedy),
    };
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
