//! Weights or an optimizer's state that exist more than once.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{Allocation, ByteSize, Category, Count, Definitions, SiteId};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Problem, Severity, is_share};
use super::peak_categories::copies;
use super::remedy::omitted;
use crate::autopsy::RecordingLines;
use crate::categories::{SizeCounts, count};
use crate::group::Phase;

/// Minimum share of the allocated peak, in percent.
const MIN_PERCENT: u64 = 10;
/// Minimum bytes of the copies.
const MIN_BYTES: u64 = 32 << 20;
/// Minimum number of tensors of a model or a state: a few blocks of equal sizes may be anything.
const MIN_TENSORS: u64 = 4;
/// The file of `torch.load`.
const LOAD: &str = "torch/serialization.py";
/// The file of `copy.deepcopy`.
const DEEP_COPY: &str = "/copy.py";
/// Number of copies of the parameters' sizes in the state of one model's optimizer, such as Adam.
const STATE_COPIES: u64 = 2;

/// Copies of a model's weights, or of an optimizer's state.
pub(super) enum Copies {
    /// The program does not need them.
    Needless(Finding),
    /// Steps may use them, which does not show: an average of the weights looks like a forgotten
    /// copy.
    Kept(Finding),
}

/// Finds complete copies of a model's weights that were made before the first pass through it or
/// loaded from a file, and an optimizer's state that was loaded while another was in use.
pub(super) fn find(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Copies> {
    let definitions = context.recording.definitions();
    let (loaded, deep_copied) = (loaded_sites(definitions), sites_of(definitions, DEEP_COPY));
    let is_of_pass = |one: &Allocation| {
        one.start_observed && matches!(lines.phase(one.site), Some(Phase::Forward | Phase::Backward))
    };
    let first_pass = context.lifetimes.iter().find(is_of_pass)?.first_moment;
    let model = Model::find(context, lines, first_pass)?;
    let is_copy = |one: &Allocation| {
        let is_early = one.first_moment < first_pass && !model.contains(one, lines);
        one.start_observed && (is_early || loaded.contains(&one.site))
    };
    let mut groups: BTreeMap<Vec<(u32, u32)>, Vec<Allocation>> = BTreeMap::new();
    for one in context.lifetimes.iter().filter(is_copy) {
        groups.entry(lines.calls(one.site)).or_default().push(one);
    }
    let state = model_state(context, lines, &loaded);
    let (mut number, mut blocks, mut is_state) = (0, Vec::new(), false);
    for group in groups.into_values() {
        let of_state = state.as_ref().filter(|_| group.iter().all(|one| loaded.contains(&one.site)));
        let of_state = of_state.map_or(0, |state| copies(state, group.iter().map(|one| one.requested)));
        let of_model = copies(&model.sizes, group.iter().map(|one| one.requested));
        let sizes = if of_state > 0 { state.as_ref() } else { Some(&model.sizes) };
        if of_state.max(of_model) > 0 {
            is_state |= of_state > 0;
            number += of_state.max(of_model);
            blocks
                .extend(group.into_iter().filter(|one| sizes.is_some_and(|sizes| sizes.contains_key(&one.requested))));
        }
    }
    let bytes = total_bytes(&blocks);
    let is_small = bytes < MIN_BYTES || !is_share(bytes, MIN_PERCENT, context.peak_allocated.bytes);
    if is_small || (!is_state && model.has_trained_copies(context, lines)) {
        return None;
    }
    let is_gone = |one: &Allocation| one.allocated_until.is_some_and(|until| until <= first_pass);
    let is_needless = |one: &Allocation| is_gone(one) || loaded.contains(&one.site);
    // A second model that no line of the program calls. An average of the weights is deep-copied.
    let is_built =
        |one: &Allocation| lines.named_category(one) == Category::Parameter && !deep_copied.contains(&one.site);
    let is_unused = blocks.iter().all(is_built) && called_lines(context, lines) < 2;
    let finding = finding(context, lines, &blocks, number, is_state, first_pass);
    let is_needless = is_unused || blocks.iter().all(is_needless);
    Some(if is_needless { Copies::Needless(finding) } else { Copies::Kept(finding) })
}

/// Returns the number of lines of the program, outside of modules, that call a module in the last
/// step.
fn called_lines(context: &Context<'_>, lines: &RecordingLines<'_>) -> usize {
    let from = context.steps.as_slice().last().map_or(0, |step| step.from_event);
    let latest = context.lifetimes.iter().filter(|one| one.first_moment > from);
    let activations = latest.filter(|one| lines.phase(one.site) == Some(Phase::Forward));
    let calls: BTreeSet<(u32, u32)> = activations.filter_map(|one| lines.outer_module_call(one.site)).collect();
    calls.len()
}

/// Returns the finding about the blocks of `number` copies.
fn finding(
    context: &Context<'_>,
    lines: &RecordingLines<'_>,
    blocks: &[Allocation],
    number: u64,
    is_state: bool,
    first_pass: u64,
) -> Finding {
    let last_step = context.steps.as_slice().last().map_or(u64::MAX, |step| step.from_event);
    let ends = |moment: u64| blocks.iter().all(|one| one.allocated_until.is_some_and(|until| until <= moment));
    let end = match () {
        () if ends(first_pass) => "freed before the first pass through the model",
        () if ends(last_step) => "freed later",
        () => "kept to the end",
    };
    let (problem, what, remedy) = if is_state {
        (
            Problem::CopiedOptimizerState,
            "a loaded state of an optimizer, beside the state in use".to_owned(),
            "Load the file with map_location=\"cpu\", and delete the loaded object after load_state_dict.",
        )
    } else {
        (
            Problem::CopiedWeights,
            Count(number).of("further copy of the weights", "further copies of the weights"),
            "Unless each step uses it: load files with map_location=\"cpu\", copy weights to the CPU, and drop the \
             references before training.",
        )
    };
    let bytes = total_bytes(blocks);
    let summary = format!("{} are {what}, {end}.", ByteSize(bytes));
    // A copy that was loaded says more than the code that all copies have in common.
    let loaded = loaded_sites(context.recording.definitions());
    let of_load: Vec<Allocation> = blocks.iter().filter(|one| loaded.contains(&one.site)).copied().collect();
    let named = if of_load.is_empty() { blocks } else { &of_load };
    let mut finding = context.finding(lines, problem, bytes, named, summary);
    finding.severity = Severity::Low;
    finding.remedy = Some(remedy.to_owned());
    finding.trials = vec![omitted(context, blocks.iter().copied())];
    finding
}

/// The first model of a program.
struct Model {
    /// The sizes of its parameters.
    sizes: SizeCounts,
    /// The calls of the program that created it; `None` if it is older than the recording.
    calls: Option<Vec<(u32, u32)>>,
}

impl Model {
    /// Finds the first model: the blocks that are older than the recording and stay, or the
    /// parameters that the first call creates.
    fn find(context: &Context<'_>, lines: &RecordingLines<'_>, first_pass: u64) -> Option<Self> {
        let stays = |one: &Allocation| one.allocated_until.is_none_or(|until| until > first_pass);
        let early = || context.lifetimes.iter().take_while(|one| one.first_moment < first_pass).filter(stays);
        let of = |model: Self| Some(model).filter(|model| model.sizes.values().sum::<u64>() >= MIN_TENSORS);
        let older = requested_counts(early().filter(|one| !one.start_observed));
        if let Some(model) = of(Self { sizes: older, calls: None }) {
            return Some(model);
        }
        let parameters = || early().filter(|one| lines.named_category(one) == Category::Parameter);
        let calls = lines.calls(parameters().next()?.site);
        let sizes = requested_counts(parameters().filter(|one| lines.calls(one.site) == calls));
        of(Self { sizes, calls: Some(calls) })
    }

    /// Returns true for a block of the model.
    fn contains(&self, one: &Allocation, lines: &RecordingLines<'_>) -> bool {
        let calls = self.calls.as_ref();
        calls.is_some_and(|calls| lines.named_category(one) == Category::Parameter && lines.calls(one.site) == *calls)
    }

    /// Returns true if the peak has gradients or the optimizer's state of several models of these
    /// sizes: then none of them is a copy that nothing needs.
    fn has_trained_copies(&self, context: &Context<'_>, lines: &RecordingLines<'_>) -> bool {
        let state = context.peak_contents.iter().map(|(_, one)| one);
        let state = state.filter(|one| lines.named_category(one) == Category::OptimizerState);
        let state_copies = copies(&self.sizes, state.map(|one| one.requested));
        let at_peak =
            |category: Category| copies(&self.sizes, context.of_category(category).iter().map(|one| one.requested));
        at_peak(Category::Gradient) > 1 || state_copies > STATE_COPIES
    }
}

/// Returns the sizes of the optimizer's state that steps created, not loaded; `None` if they are
/// few.
fn model_state(context: &Context<'_>, lines: &RecordingLines<'_>, loaded: &BTreeSet<SiteId>) -> Option<SizeCounts> {
    let is_state =
        |one: &Allocation| lines.named_category(one) == Category::OptimizerState && !loaded.contains(&one.site);
    let sizes = requested_counts(context.lifetimes.iter().filter(is_state));
    (sizes.values().sum::<u64>() >= MIN_TENSORS).then_some(sizes)
}

/// Counts the requested sizes of some blocks.
fn requested_counts(blocks: impl Iterator<Item = Allocation>) -> SizeCounts {
    count(blocks.map(|one| one.requested))
}

/// Returns the sites whose requests were made by `torch.load`.
pub(super) fn loaded_sites(definitions: &Definitions) -> BTreeSet<SiteId> {
    sites_of(definitions, LOAD)
}

/// Returns the sites whose stack has a frame of a library's file.
fn sites_of(definitions: &Definitions, file: &str) -> BTreeSet<SiteId> {
    let has_frame = |&site: &SiteId| {
        let mut frames = definitions.stack(definitions.site(site).stack);
        frames.any(|frame| definitions.string(frame.file).replace('\\', "/").ends_with(file))
    };
    let sites = (1..=definitions.site_count()).filter_map(|site| u32::try_from(site).ok()).map(SiteId);
    sites.filter(has_frame).collect()
}
