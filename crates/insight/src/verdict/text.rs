//! Verdicts in words.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{ByteSize, Count, Percent};

use super::answer::VerdictRemedy;
use super::held::HeldMemory;
use crate::autopsy::OutOfMemory;
use crate::diagnosis::{ExaminedDevice, Finding, Problem, Rule};
use crate::evidence::Evidence;
use crate::failures::{OomCause, ReservedCap};
use crate::group::BACKWARD_PASS;

/// The command that records a program from its start.
const RECORD_COMMAND: &str = "vramscope run train.py";
/// The calls by which a program records itself, without this command.
const RECORD_CALLS: [&str; 2] = [
    "torch.cuda.memory._record_memory_history(max_entries=1_000_000)  # at the start",
    "torch.cuda.memory._dump_snapshot(\"run.pickle\")  # at the end",
];

/// Returns the first sentence of some sentences.
fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |end| &text[..=end])
}

/// Returns the verdict on a failed request of the `failed` ones on its device: what filled the
/// memory, the limit, and whether the program went on.
pub(super) fn failure(
    oom: &OutOfMemory,
    finding: &Finding,
    growth: Option<&Finding>,
    failed: &[&OutOfMemory],
) -> String {
    let mut text = match growth {
        Some(growth) => failure_by_growth(oom, growth),
        None => first_sentence(&finding.summary).to_owned(),
    };
    let count: usize = failed.iter().map(|one| one.events.len()).sum();
    let goes_on = failed.iter().all(|one| one.is_continued);
    match (count, goes_on) {
        (2.., true) => text += &format!(" {count} requests failed in all, and the program went on."),
        (2.., false) => text += &format!(" {count} requests failed in all."),
        (_, true) => text += " The program went on.",
        (_, false) => {}
    }
    let is_inferred = !oom.cause.is_of_allocator() && !matches!(oom.cause, OomCause::NeverFits | OomCause::Outside);
    if is_inferred && oom.request_line.is_none() {
        text += " The cause follows from sizes and lifetimes only: the recording has no call stacks.";
    }
    text
}

/// Returns the sentence on a failed request that memory which grew explains.
fn failure_by_growth(oom: &OutOfMemory, growth: &Finding) -> String {
    let limit = match oom.cap {
        ReservedCap::Exact { bytes } => format!("the cap is {}", size(bytes)),
        cap @ ReservedCap::Bounds { .. } if oom.is_capped() => format!("the cap is {}", cap.label()),
        _ => format!("the pool could get {}", size(oom.obtainable_bytes())),
    };
    let subject = match growth.problem {
        Problem::GrowthOfOutputs => "outputs of the model that are kept",
        Problem::GrowthOfSummedLoss => "losses that are kept with their graphs",
        Problem::GrowthOfHooks => "tensors that hooks keep",
        Problem::GrowthOfOptimizers => "the state of optimizers that are kept",
        Problem::EvaluationPeak => "what an evaluation keeps",
        _ => "a list or cache that gets longer",
    };
    let grown = match growth.grown_to_bytes {
        Some(bytes) => format!("to {}", size(bytes)),
        None => format!("by {}", size(growth.bytes)),
    };
    format!("{} failed: {subject} ({}) grew {grown}; {limit}.", size(oom.failure.rounded_bytes), growth.site)
}

/// Returns the verdict on a problem without a failed request: its first sentence, with the call of
/// the program.
pub(super) fn problem(finding: &Finding) -> String {
    if let (Problem::OverReserved, Some(checked)) = (finding.problem, finding.checked) {
        let now_bytes = checked.peak_reserved_bytes.saturating_add(checked.saves_bytes);
        let remedy = finding.remedy.as_deref().unwrap_or_default();
        return format!(
            "{} wasted: {}{} would reserve {} instead of {} (simulated).",
            Percent::of(checked.saves_bytes, now_bytes),
            conf_of(remedy).unwrap_or("PyTorch's default settings"),
            needed_version(remedy),
            size(checked.peak_reserved_bytes),
            size(now_bytes)
        );
    }
    let sentence = first_sentence(&finding.summary);
    match sentence.strip_suffix('.') {
        Some(start) if names_line(finding) && !sentence.contains(&finding.site) => {
            let at = if finding.site.starts_with(BACKWARD_PASS) { "" } else { "at " };
            format!("{start} ({at}{}).", finding.site)
        }
        _ => sentence.to_owned(),
    }
}

/// Returns true if the site of a finding is the call of the program at fault. Memory outside of the
/// pool has none.
fn names_line(finding: &Finding) -> bool {
    finding.names_call && !finding.site.is_empty() && finding.problem != Problem::GrowthOutside
}

/// Returns the remedy of a finding with what it saves, and lines to copy where there are any.
pub(super) fn remedy(finding: &Finding) -> Option<VerdictRemedy> {
    let mut text = finding.remedy.clone()?;
    // The sentence about settings says what they save.
    if let Some(check) = finding.check_text().filter(|_| finding.problem != Problem::OverReserved) {
        text += &format!(" {check}");
    }
    let lines = match conf_of(&text) {
        Some(conf) => vec![format!("export PYTORCH_CUDA_ALLOC_CONF={conf}")],
        None => finding.code.iter().map(|&line| line.to_owned()).collect(),
    };
    // A growing program has no amount of memory that is enough, so nothing to compare with.
    let saves = finding.checked.filter(|_| finding.problem != Problem::OutOfMemory(OomCause::Leak));
    Some(VerdictRemedy {
        text,
        lines,
        is_checked: finding.checked.is_some(),
        saves_bytes: saves.map(|checked| checked.saves_bytes),
    })
}

/// Returns the settings in a remedy that sets `PYTORCH_CUDA_ALLOC_CONF`; `None` in another remedy.
fn conf_of(remedy: &str) -> Option<&str> {
    let conf = remedy.split_whitespace().find_map(|word| word.strip_prefix("PYTORCH_CUDA_ALLOC_CONF="))?;
    Some(conf.trim_end_matches('.'))
}

/// Returns the mark of settings that need a newer version of PyTorch, ` (needs PyTorch 2.11)`;
/// empty for others.
fn needed_version(remedy: &str) -> &str {
    let mark = remedy.find(" (needs PyTorch ").and_then(|start| remedy.get(start..));
    mark.and_then(|mark| mark.get(..=mark.find(')')?)).unwrap_or_default()
}

/// Returns the verdict on a device without a problem.
pub(super) fn healthy(device: &ExaminedDevice) -> String {
    let (peak, waste) =
        (size(device.peak_allocated.bytes), Percent::of(device.waste_bytes(), device.peak_reserved.bytes));
    let since = since(device);
    let copies = device.kept_copies.as_ref().map_or_else(String::new, |copies| {
        format!(" {} Steps may use them, as an average of the weights.", problem(copies))
    });
    match settings(device) {
        settings if device.is_lean() => format!("Healthy: {peak} at the peak{since}, {waste} waste.{settings}{copies}"),
        settings => format!(
            "No problem found: {peak} at the peak{since}. {waste} of the reserved {} was never needed at \
             once.{settings}{copies}",
            size(device.peak_reserved.bytes)
        ),
    }
}

/// Returns the end of a phrase about the peak of a device: since when it is known.
fn since(device: &ExaminedDevice) -> &'static str {
    if device.evidence.has(Evidence::Beginning) { "" } else { " since recording began" }
}

/// Returns a sentence on what other settings would reserve, with a space before it; empty if
/// nothing was simulated.
fn settings(device: &ExaminedDevice) -> String {
    let saving = device.lesser_saving.as_ref().and_then(|one| Some((one.checked?, one.remedy.as_deref()?)));
    match saving {
        Some((checked, remedy)) => format!(
            " {}{} would reserve {} less, {} (simulated).",
            conf_of(remedy).unwrap_or("PyTorch's default settings"),
            needed_version(remedy),
            size(checked.saves_bytes),
            size(checked.peak_reserved_bytes)
        ),
        None if device.is_reproduced == Some(true) && !device.is_lean() => {
            " No setting that was simulated saves a twentieth of it.".to_owned()
        }
        None => String::new(),
    }
}

/// Returns the verdict on a memory state without history.
pub(super) fn without_history(held: &HeldMemory) -> String {
    let mut text = format!("{} is allocated", size(held.allocated_bytes));
    match held.capacity_bytes {
        Some(bytes) => text += &format!(" of the {} that the pool can get", size(bytes)),
        None => text += &format!(" of the reserved {}", size(held.reserved_bytes)),
    }
    let mut add = |part: String| text += &part;
    match (held.lines.first(), held.families.first()) {
        (Some((line, bytes)), _) => add(format!(", most by {line} ({})", size(*bytes))),
        (None, Some(family)) if family.bytes() >= held.allocated_bytes / 8 => {
            let blocks = Count(family.blocks).of("block", "blocks");
            add(format!(", {} of it in {blocks} of {}", size(family.bytes()), size(family.size)));
        }
        _ => {}
    }
    add(format!(", and {} of the reserved memory is free", size(held.free_bytes)));
    text + ". No history: leaks, steps and failures cannot be seen."
}

/// Returns the verdict on a device without a problem, of which essential rules lack evidence:
/// `unknown` has each with what is missing.
pub(super) fn partly_unknown(device: &ExaminedDevice, unknown: &[(Rule, Vec<Evidence>)]) -> String {
    let mut by_reason: BTreeMap<&[Evidence], Vec<&str>> = BTreeMap::new();
    for (rule, missing) in unknown {
        by_reason.entry(missing.as_slice()).or_default().push(rule.subject());
    }
    let part = |(missing, subjects): (&[Evidence], Vec<&str>)| {
        let reasons: Vec<&str> = missing.iter().map(|one| one.missing()).collect();
        format!("{} ({})", subjects.join(", "), reasons.join(", "))
    };
    let parts: Vec<String> = by_reason.into_iter().map(part).collect();
    let waste = Percent::of(device.waste_bytes(), device.peak_reserved.bytes);
    let waste = if device.evidence.has(Evidence::Counters) { format!(", {waste} waste") } else { String::new() };
    format!(
        "No failure found: {} at the peak{}{waste}.{} Cannot tell: {}.",
        size(device.peak_allocated.bytes),
        since(device),
        settings(device),
        parts.join("; ")
    )
}

/// Returns how to record the `missing` evidence, with two lines to copy.
pub(super) fn how_to_record(missing: impl Iterator<Item = Evidence>) -> VerdictRemedy {
    let missing: BTreeSet<Evidence> = missing.collect();
    let sentences: Vec<&str> = missing.iter().map(|one| one.how_to_record()).collect();
    let lines = match () {
        () if missing.contains(&Evidence::Steps) && !missing.contains(&Evidence::History) => {
            vec!["import vramscope".to_owned(), "vramscope.mark(\"step\")  # at the start of each step".to_owned()]
        }
        () if missing.contains(&Evidence::History) => RECORD_CALLS.map(str::to_owned).to_vec(),
        () if missing.contains(&Evidence::Reproduction) => {
            vec!["export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".to_owned(), RECORD_COMMAND.to_owned()]
        }
        () => vec![RECORD_COMMAND.to_owned()],
    };
    let program = if missing.contains(&Evidence::History) { " Or in the program:" } else { "" };
    VerdictRemedy { text: sentences.join(" ") + program, lines, is_checked: false, saves_bytes: None }
}

/// Returns a size for a sentence.
fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}
