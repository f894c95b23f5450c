//! Verdicts in words.

use vramscope_trace::{ByteSize, Count, Percent};

use super::answer::{UnansweredRule, VerdictRemedy};
use super::held::HeldMemory;
use crate::autopsy::OutOfMemory;
use crate::diagnosis::{ExaminedDevice, Finding, Problem};
use crate::evidence::Evidence;
use crate::failures::ReservedCap;

/// The command that records a program from its start.
const RECORD_COMMAND: &str = "vramscope run train.py";
/// The call that makes PyTorch keep a history, for programs that write snapshots themselves.
const RECORD_CALL: &str = "torch.cuda.memory._record_memory_history(max_entries=1_000_000)";

/// Returns the first sentence of some sentences.
fn first_sentence(text: &str) -> &str {
    text.find(". ").map_or(text, |end| &text[..=end])
}

/// Returns the verdict on a failed request: what filled the memory, and the limit.
pub(super) fn failure(oom: &OutOfMemory, finding: &Finding, growth: Option<&Finding>) -> String {
    let Some(growth) = growth else { return first_sentence(&finding.summary).to_owned() };
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
        _ => "a list or cache that gets longer",
    };
    format!(
        "{} failed: {subject} ({}) grew by {}; {limit}.",
        size(oom.failure.rounded_bytes),
        growth.site,
        size(growth.bytes)
    )
}

/// Returns the verdict on a problem without a failed request: its first sentence, with the call of
/// the program.
pub(super) fn problem(finding: &Finding) -> String {
    if let (Problem::OverReserved, Some(checked)) = (finding.problem, finding.checked) {
        let now_bytes = checked.peak_reserved_bytes.saturating_add(checked.saves_bytes);
        let change = remedy(finding).and_then(|remedy| conf_of(&remedy.text).map(str::to_owned));
        return format!(
            "{} wasted: {} would reserve {} instead of {} (simulated).",
            Percent::of(checked.saves_bytes, now_bytes),
            change.as_deref().unwrap_or("PyTorch's default settings"),
            size(checked.peak_reserved_bytes),
            size(now_bytes)
        );
    }
    let sentence = first_sentence(&finding.summary);
    match sentence.strip_suffix('.') {
        Some(start) if !finding.site.is_empty() && !sentence.contains(&finding.site) => {
            format!("{start} (at {}).", finding.site)
        }
        _ => sentence.to_owned(),
    }
}

/// Returns the remedy of a finding, with lines to copy where there are any.
pub(super) fn remedy(finding: &Finding) -> Option<VerdictRemedy> {
    let text = finding.remedy.clone()?;
    let lines = match conf_of(&text) {
        Some(conf) => vec![format!("export PYTORCH_CUDA_ALLOC_CONF={conf}")],
        None => code(finding.problem).iter().map(|&line| line.to_owned()).collect(),
    };
    Some(VerdictRemedy { text, lines, saves_bytes: finding.checked.map(|checked| checked.saves_bytes) })
}

/// Returns the settings in a remedy that sets `PYTORCH_CUDA_ALLOC_CONF`; `None` in another remedy.
fn conf_of(remedy: &str) -> Option<&str> {
    let conf = remedy.split_whitespace().find_map(|word| word.strip_prefix("PYTORCH_CUDA_ALLOC_CONF="))?;
    Some(conf.trim_end_matches('.'))
}

/// Returns lines of a program that show the remedy of a problem; empty if a sentence says it all.
const fn code(problem: Problem) -> &'static [&'static str] {
    match problem {
        Problem::GrowthOfOutputs => &["outputs.append(output.detach().cpu())"],
        Problem::GrowthOfSummedLoss => &["total += loss.item()  # not: total += loss"],
        Problem::GrowthOfHooks => &["handle = module.register_forward_hook(hook)", "handle.remove()  # after use"],
        Problem::GrowthOfCache => &["cache = collections.deque(maxlen=100)  # or: cache.clear() after each step"],
        Problem::OptimizerStepPeak => &[
            "torch.optim.AdamW(model.parameters(), fused=True)",
            "torch.optim.AdamW(model.parameters(), foreach=False)",
        ],
        Problem::CopiedWeights => &[
            "model.load_state_dict(torch.load(path, map_location=\"cpu\"))",
            "copy = {name: one.cpu() for name, one in model.state_dict().items()}",
        ],
        Problem::CopiedOptimizerState => {
            &["state = torch.load(path, map_location=\"cpu\")", "optimizer.load_state_dict(state); del state"]
        }
        Problem::StartPeak => &["state = torch.load(path, map_location=\"cpu\")"],
        Problem::PendingFrees => {
            &["torch.cuda.current_stream().wait_stream(other)  # not: tensor.record_stream(other)"]
        }
        Problem::PrivatePools => &["torch.cuda.graph(graph, pool=first_graph.pool())"],
        _ => &[],
    }
}

/// Returns the verdict on a recording without a problem. `is_lean` tells whether little of the
/// reserved peak is waste, `is_whole` whether the history begins with the program.
pub(super) fn healthy(device: &ExaminedDevice, is_lean: bool, is_whole: bool) -> String {
    let waste = Percent::of(device.waste_bytes(), device.peak_reserved.bytes);
    let since = if is_whole { "" } else { " since recording began" };
    let peak = size(device.peak_allocated.bytes);
    let copies = device.kept_copies.as_ref().map_or_else(String::new, |copies| format!(" {}", problem(copies)));
    if is_lean {
        return format!("Healthy: {peak} at the peak{since}, {waste} waste.{copies}");
    }
    let settings = match device.is_reproduced {
        Some(true) => "no setting that was simulated reserves much less",
        _ => "whether other settings reserve less is unknown, because the simulation does not reproduce the recording",
    };
    format!(
        "No problem found: {peak} at the peak{since}. {waste} of the reserved {} was never needed at once; \
         {settings}.{copies}",
        size(device.peak_reserved.bytes)
    )
}

/// Returns the verdict on a memory state without history.
pub(super) fn without_history(held: &HeldMemory) -> String {
    let mut text = format!("{} is allocated", size(held.allocated_bytes));
    match held.device_bytes {
        Some(bytes) => text += &format!(" on a device of {}", size(bytes)),
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

/// Returns the verdict on a recording without a problem in which essential rules lack evidence.
pub(super) fn partly_unknown(device: &ExaminedDevice, unanswered: &[&UnansweredRule]) -> String {
    let subjects: Vec<&str> = unanswered.iter().map(|one| one.rule.subject()).collect();
    let reasons: std::collections::BTreeSet<Evidence> =
        unanswered.iter().flat_map(|one| one.missing.iter().copied()).collect();
    let reasons: Vec<&str> = reasons.into_iter().map(Evidence::missing).collect();
    format!(
        "No failure found: {} at the peak, {} waste. Cannot tell about {}: the recording has {}.",
        size(device.peak_allocated.bytes),
        Percent::of(device.waste_bytes(), device.peak_reserved.bytes),
        subjects.join(" and "),
        reasons.join(" and ")
    )
}

/// Returns how to record what the rules lack, with two lines to copy.
pub(super) fn how_to_record(unanswered: &[&UnansweredRule]) -> VerdictRemedy {
    let missing: std::collections::BTreeSet<Evidence> =
        unanswered.iter().flat_map(|one| one.missing.iter().copied()).collect();
    let sentences: Vec<&str> = missing.iter().map(|one| one.how_to_record()).collect();
    let lines = if missing.contains(&Evidence::Steps) {
        vec!["import vramscope".to_owned(), "vramscope.mark(\"step\")  # at the start of each step".to_owned()]
    } else {
        vec![RECORD_COMMAND.to_owned(), RECORD_CALL.to_owned()]
    };
    VerdictRemedy { text: sentences.join(" "), lines, saves_bytes: None }
}

/// Returns a size for a sentence.
fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}
