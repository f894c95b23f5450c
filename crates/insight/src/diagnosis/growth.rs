//! Growth from step to step, and its likely cause.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use vramscope_trace::{
    Allocation, ByteSize, Category, Count, Definitions, Frame, FrameOrigin, SiteId, StackId, frame_origin,
};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Problem, Severity};
use super::remedy::{allocated_once, freed_in_step, omitted};
use crate::autopsy::{Growing, RecordingLines};
use crate::frames::{frame_label, innermost_own_frame};
use crate::group::{MergedSites, Phase};
use crate::steps::{GroupsByStep, MIN_GROWTH_STEPS, Steps};

/// Divisor: growth counts if it is at least a twentieth of the peak.
pub(super) const MIN_SHARE: u64 = 20;
/// Minimum number of compared steps in which growth every few steps is recognized.
const MIN_STAIRCASE_STEPS: usize = 6;
/// Minimum number of different sites and sizes of kept blocks by which a kept autograd graph is
/// recognized.
const MIN_GRAPH_KINDS: usize = 3;
/// Maximum size in bytes of a tensor that counts as a single number, such as a loss.
const SCALAR_BYTES: u64 = 8;
/// Maximum distance, in events, between the allocations of two blocks of an optimizer's state: a
/// segment may be obtained between them.
const STATE_EVENTS: u64 = 2;
/// Maximum number of steps until growth reaches the capacity for the finding to have high severity.
const SOON_STEPS: u64 = 100;
/// What helps against tensors that each step replaces by longer ones.
const PREALLOCATE: &str = "Allocate the cache once for the longest sequence (transformers: \
                           cache_implementation=\"static\"), or in pages of a fixed length: concatenation also \
                           needs the old and the new tensor at once.";
/// Lines of a program that allocate a cache once.
const PREALLOCATE_CODE: &[&str] = &[
    "keys = torch.empty(batch, heads, longest, width, device=\"cuda\")",
    "keys[:, :, length] = key  # not: keys = torch.cat((keys, key), dim=2)",
];
/// Maximum number of steps of a forecast; longer ones are left out, because programs change.
const MAX_FORECAST_STEPS: u64 = 100_000;

/// Finds growth that lasts until the last step.
pub(super) fn find(context: &Context<'_>, lines: &mut RecordingLines<'_>) -> Option<Finding> {
    let steps = context.steps.as_slice();
    let warm_up = context.steps.default_warm_up();
    let compared = steps.get(warm_up..).filter(|steps| steps.len() >= MIN_GROWTH_STEPS)?;
    let (first, last) = (compared.first()?, compared.last()?);
    let growth = growing_lines(context, lines, &context.steps)?;
    let mut grown = growth.blocks(context, lines, first.to_event..last.from_event, last.to_event);
    let mut grown_bytes = total_bytes(&grown);
    // The last versions of tensors that each step replaces by longer ones.
    let mut replaced = None;
    if let GrowingLines::Lines(growing) = &growth {
        let latest = growth.blocks(context, lines, last.from_event..last.to_event, last.to_event);
        let latest_bytes = growing.bytes.saturating_sub(grown_bytes).min(total_bytes(&latest));
        if latest_bytes > grown_bytes {
            grown_bytes = grown_bytes.saturating_add(latest_bytes);
            grown.extend(&latest);
            replaced = Some(latest);
        }
    }
    let is_concatenated = replaced.is_some();
    if grown_bytes < context.peak_allocated.bytes / MIN_SHARE || grown_bytes == 0 {
        return None;
    }
    let per_step = grown_bytes / (compared.len() as u64 - 1).max(1);
    let problem = match is_concatenated {
        true => Problem::GrowthOfCache,
        false => pattern(context, lines, &grown, compared.len()),
    };
    // Sizes alone suggest a cause, and do not show it.
    let likelihood = if has_stacks(context.recording.definitions(), &grown) { "" } else { "probably, " };
    let summary = format!(
        "{} more are held after each step, {} after {}: {likelihood}{}.",
        ByteSize(per_step),
        ByteSize(grown_bytes),
        Count(compared.len() as u64 - 1).of("step", "steps"),
        cause(problem, is_concatenated)
    );
    let mut finding = context.finding(lines, problem, grown_bytes, &grown, summary);
    if matches!(growth, GrowingLines::Lines(_)) {
        finding.grown_to_bytes = Some(total_bytes(&growth.blocks(context, lines, 0..last.to_event, last.to_event)));
    }
    if problem == Problem::GrowthOfHooks
        && let Some(hook) = hook_label(context.recording.definitions(), &grown)
    {
        finding.site = hook;
    }
    if let Some(capacity_bytes) = context.capacity_bytes().filter(|_| !context.has_failure) {
        let left = capacity_bytes.saturating_sub(context.peak_reserved.bytes) / per_step.max(1);
        finding.steps_left = Some(left);
        if left <= SOON_STEPS {
            finding.severity = Severity::High;
        }
        if left <= MAX_FORECAST_STEPS {
            let capacity = ByteSize(capacity_bytes);
            finding.summary += &match left {
                0 => format!(" It has reached the {capacity} that the pool can get."),
                _ => {
                    let steps = Count(left).of("step", "steps");
                    format!(" In about {steps} it reaches the {capacity} that the pool can get.")
                }
            };
        }
    }
    finding.remedy = Some(if is_concatenated { PREALLOCATE } else { remedy(problem) }.to_owned());
    if let Some(last) = replaced {
        finding.code = PREALLOCATE_CODE;
        finding.trials = vec![allocated_once(context, &versions_before(context, &last), &last)];
        return Some(finding);
    }
    // The trial changes all blocks of the growing lines. If only the sum of all lines grows, it
    // leaves out blocks of the first steps, which may be anything, such as the state of the only
    // optimizer.
    let is_of_any_line = matches!(growth, GrowingLines::Sum) && problem != Problem::GrowthOfOptimizers;
    let from = if is_of_any_line { first.to_event } else { 0 };
    let kept = growth.blocks(context, lines, from..last.to_event, last.to_event);
    finding.trials = vec![if problem == Problem::GrowthOfOptimizers {
        omitted(context, after_first_step(context, kept))
    } else {
        freed_in_step(context, &context.steps, kept)
    }];
    Some(finding)
}

/// Returns the blocks that the sites of `last` requested earlier: the shorter versions of tensors
/// that each step replaces by longer ones.
fn versions_before(context: &Context<'_>, last: &[Allocation]) -> Vec<Allocation> {
    let sites: BTreeSet<SiteId> = last.iter().map(|one| one.site).collect();
    let moments: BTreeSet<u64> = last.iter().map(|one| one.first_moment).collect();
    let end = moments.last().copied().unwrap_or(0);
    let is_earlier =
        |one: &Allocation| one.first_moment < end && sites.contains(&one.site) && !moments.contains(&one.first_moment);
    context.lifetimes.iter().filter(is_earlier).collect()
}

/// Returns the blocks that were allocated after the step of the first block: the state of all
/// optimizers except the first.
fn after_first_step(context: &Context<'_>, blocks: Vec<Allocation>) -> impl Iterator<Item = Allocation> {
    let first = blocks.iter().map(|one| one.first_moment).min();
    let end = first.and_then(|first| context.steps.at(first)).map_or(u64::MAX, |step| step.to_event);
    blocks.into_iter().filter(move |one| one.first_moment > end)
}

/// The memory that grows from step to step.
pub(super) enum GrowingLines {
    /// Some lines of the program.
    Lines(Growing),
    /// The sum of all lines, while no line grows by itself.
    Sum,
}

/// Finds the lines that grow from step to step, or else their sum; `None` if neither does.
pub(super) fn growing_lines(
    context: &Context<'_>,
    lines: &mut RecordingLines<'_>,
    steps: &Steps,
) -> Option<GrowingLines> {
    if let Some(growing) = lines.growth(context.lifetimes, steps, u64::MAX) {
        return Some(GrowingLines::Lines(growing));
    }
    let mut by_step = GroupsByStep::new(steps, steps.default_warm_up());
    while !by_step.step(context.lifetimes, |_| 0) {}
    let rows = by_step.rows();
    let live_bytes: Vec<u64> = rows.first()?.steps.iter().map(|step| step.live_bytes).collect();
    let grows = !by_step.growing(&MergedSites::default()).as_slice().is_empty() || grows_now_and_then(&live_bytes);
    grows.then_some(GrowingLines::Sum)
}

impl GrowingLines {
    /// Returns the blocks of the growing memory that were allocated in the moments `made` and are
    /// still allocated at the moment `at`.
    pub(super) fn blocks(
        &self,
        context: &Context<'_>,
        lines: &mut RecordingLines<'_>,
        made: Range<u64>,
        at: u64,
    ) -> Vec<Allocation> {
        let mut grows = |one: &Allocation| match self {
            Self::Lines(growing) => growing.contains(lines.group_of_allocation(one)),
            Self::Sum => true,
        };
        let live = context.lifetimes.live_at(at).filter(|one| made.contains(&one.first_moment));
        live.filter(|one| one.is_allocated_at(at) && grows(one)).collect()
    }
}

/// Returns true if the bytes never fall and increase in each third of the steps. Memory that is
/// kept every few steps, not in each, grows in this way.
fn grows_now_and_then(live_bytes: &[u64]) -> bool {
    let third = live_bytes.len() / 3;
    let increases = |from: usize| {
        let part = live_bytes.get(from..=from + third);
        part.is_some_and(|part| part.first() < part.last())
    };
    live_bytes.len() >= MIN_STAIRCASE_STEPS
        && live_bytes.is_sorted()
        && [0, third, live_bytes.len() - 1 - third].into_iter().all(increases)
}

/// Returns the problem that most likely explains the growth by the blocks `grown` over `steps`
/// steps.
fn pattern(context: &Context<'_>, lines: &RecordingLines<'_>, grown: &[Allocation], steps: usize) -> Problem {
    let definitions = context.recording.definitions();
    let all_bytes = total_bytes(grown);
    let most = |bytes: u64| bytes > all_bytes / 2;
    let state = total_bytes(grown.iter().filter(|one| lines.named_category(one) == Category::OptimizerState));
    let is_of_forward_pass = |one: &&Allocation| {
        lines.phase(one.site) == Some(Phase::Forward) || lines.named_category(one) == Category::Activation
    };
    let of_forward_pass = || total_bytes(grown.iter().filter(is_of_forward_pass));
    let has_stacks = has_stacks(definitions, grown);
    let looks_like_state = !has_stacks && look_like_state(context, grown);
    if most(state) || looks_like_state {
        return Problem::GrowthOfOptimizers;
    }
    let mut hooked = 0u64;
    let mut kinds = BTreeSet::new();
    for one in grown {
        let stack = definitions.site(one.site).stack;
        kinds.insert((stack, is_scalar(one)));
        if is_called_by_hook(definitions, stack) {
            hooked = hooked.saturating_add(one.size);
        }
    }
    if most(hooked) {
        return Problem::GrowthOfHooks;
    }
    let (recurring, blocks) = in_one_step(context, grown);
    let kinds = if has_stacks { kinds.len() } else { recurring };
    let is_graph = kinds >= MIN_GRAPH_KINDS && (!has_stacks || most(of_forward_pass()));
    if is_graph {
        let scalars = grown.iter().filter(|one| is_scalar(one)).count();
        let of_losses = grown.iter().filter(|one| is_called_by_loss(definitions, definitions.site(one.site).stack));
        let losses = scalars.max(of_losses.count());
        return if losses * 2 >= steps { Problem::GrowthOfSummedLoss } else { Problem::GrowthOfOutputs };
    }
    let is_training = !context.of_category(Category::Gradient).is_empty()
        || !context.of_category(Category::OptimizerState).is_empty();
    // Hooks keep a block of several modules in each step, a list keeps one result.
    let are_activations = blocks > 1 && (!has_stacks || most(of_forward_pass()));
    if are_activations && is_training {
        return Problem::GrowthOfHooks;
    }
    Problem::GrowthOfCache
}

/// Returns true if a request of some blocks has a call stack.
fn has_stacks(definitions: &Definitions, blocks: &[Allocation]) -> bool {
    blocks.iter().any(|one| definitions.stack(definitions.site(one.site).stack).next().is_some())
}

/// Returns true if blocks look like the state of an optimizer: nearly all have sizes of parameters,
/// and they were allocated one after the other.
fn look_like_state(context: &Context<'_>, grown: &[Allocation]) -> bool {
    let sizes: BTreeSet<u64> = context.of_category(Category::Parameter).iter().map(|one| one.size).collect();
    let of_parameters = total_bytes(grown.iter().filter(|one| sizes.contains(&one.size)));
    let in_order: Vec<u64> = grown.iter().map(|one| one.first_moment).collect();
    let at_once = in_order.windows(2).filter(|pair| pair[1].abs_diff(pair[0]) <= STATE_EVENTS).count();
    of_parameters >= total_bytes(grown) / 10 * 9 && at_once * 10 >= grown.len().saturating_sub(1) * 9
}

/// Returns how many sizes of blocks occur in at least half of the steps, and how many blocks of the
/// largest sizes a typical step has.
fn in_one_step(context: &Context<'_>, grown: &[Allocation]) -> (usize, usize) {
    let mut blocks_by_step: BTreeMap<usize, usize> = BTreeMap::new();
    let mut steps_by_size: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    let large_bytes = grown.iter().map(|one| one.size).max().unwrap_or(0) / 4;
    for one in grown {
        // What follows a step, such as an evaluation, counts for that step.
        let step = context.steps.begun_before(one.first_moment);
        *blocks_by_step.entry(step).or_default() += usize::from(one.size >= large_bytes);
        steps_by_size.entry(one.size).or_default().insert(step);
    }
    let recurring = steps_by_size.values().filter(|steps| steps.len() * 2 >= blocks_by_step.len()).count();
    let mut blocks: Vec<usize> = blocks_by_step.into_values().collect();
    blocks.sort_unstable();
    (recurring, blocks.get(blocks.len() / 2).copied().unwrap_or(0))
}

/// Returns true for a tensor of one number.
fn is_scalar(one: &Allocation) -> bool {
    one.requested <= SCALAR_BYTES
}

/// Returns true if the innermost function of the program was called by a module and is not its
/// `forward`: a hook.
fn is_called_by_hook(definitions: &Definitions, stack: StackId) -> bool {
    /// The functions of PyTorch that call a module's `forward` and its hooks.
    const MODULE_CALL: [&str; 2] = ["_call_impl", "inner"];
    let mut innermost: Option<Frame> = None;
    for frame in definitions.stack(stack) {
        let is_own = frame_origin(definitions, frame, true) == FrameOrigin::Own;
        match innermost {
            None if is_own => innermost = Some(frame),
            None => {}
            Some(own) => {
                let caller = definitions.string(frame.function);
                let caller = caller.rsplit('.').next().unwrap_or(caller);
                return MODULE_CALL.contains(&caller) && !definitions.string(own.function).ends_with("forward");
            }
        }
    }
    false
}

/// Returns the label of the hook that requested most bytes of `grown`; `None` if no hook did.
fn hook_label(definitions: &Definitions, grown: &[Allocation]) -> Option<String> {
    let mut hooks: BTreeMap<String, u64> = BTreeMap::new();
    for one in grown.iter().filter(|one| is_called_by_hook(definitions, definitions.site(one.site).stack)) {
        let label = innermost_own_frame(definitions, one.site).map(|frame| frame_label(definitions, frame));
        let sum = hooks.entry(label?).or_default();
        *sum = sum.saturating_add(one.size);
    }
    hooks.into_iter().max_by_key(|&(_, bytes)| bytes).map(|(label, _)| label)
}

/// Returns true if the operation that the program called is a loss function.
fn is_called_by_loss(definitions: &Definitions, stack: StackId) -> bool {
    let called =
        definitions.stack(stack).take_while(|&frame| frame_origin(definitions, frame, true) != FrameOrigin::Own);
    let mut names =
        called.map(|frame| definitions.string(frame.function).rsplit(['.', ':']).next().unwrap_or_default());
    names.any(|name| name == "cross_entropy" || name.ends_with("_loss"))
}

/// Returns why memory grows, as the end of a sentence. `is_concatenated` tells whether each step
/// replaces tensors by longer ones.
fn cause(problem: Problem, is_concatenated: bool) -> &'static str {
    match problem {
        Problem::GrowthOfCache if is_concatenated => {
            "a cache, such as one of keys and values, is replaced by a longer one in each step"
        }
        Problem::GrowthOfOutputs => "outputs of the model are kept, and with them what their backward pass needs",
        Problem::GrowthOfSummedLoss => {
            "numbers such as losses are added up or kept as tensors, and with them what their backward pass needs"
        }
        Problem::GrowthOfCache => "a list or cache of tensors gets longer",
        Problem::GrowthOfHooks => "hooks of modules keep tensors",
        Problem::GrowthOfOptimizers => "optimizers are created again while the state of the old ones is kept",
        _ => "what is allocated in a step is kept",
    }
}

/// Returns what helps against growth, as one sentence.
fn remedy(problem: Problem) -> &'static str {
    match problem {
        Problem::GrowthOfOutputs => "Keep output.detach().cpu(): it keeps neither the graph nor memory of the GPU.",
        Problem::GrowthOfSummedLoss => "Add up loss.item(), or loss.detach().",
        Problem::GrowthOfCache => {
            "Move the tensors to the CPU at the end of each step; bounding how many are kept saves less."
        }
        Problem::GrowthOfHooks => {
            "Remove the hooks after use (handle.remove()), or clear what they keep after each step."
        }
        Problem::GrowthOfOptimizers => "Create the optimizer once, or drop all references to the old one.",
        _ => "Free it at the end of the step.",
    }
}
