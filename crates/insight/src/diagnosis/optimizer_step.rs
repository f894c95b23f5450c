//! Temporaries of an optimizer's step at the peak.
//!
//! PyTorch's optimizers update all parameters at once by default on a GPU (`foreach=True`), with a
//! temporary for each parameter (`torch/optim/adamw.py`, `_multi_tensor_adamw`). `fused=True` needs
//! none, and `foreach=False` one at a time. An optimizer that the program itself defines may need
//! temporaries, too; its step is the function that creates state of the parameters' sizes.

use std::collections::BTreeSet;

use vramscope_trace::{
    Allocation, ByteSize, Category, Definitions, FrameOrigin, Percent, SiteId, StringId, frame_origin,
};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Problem, Severity, is_share};
use super::peak_categories::is_temporary;
use super::remedy::omitted;
use crate::autopsy::RecordingLines;

/// Minimum share of the peak, in percent.
const MIN_PERCENT: u64 = 15;
/// Minimum bytes of the temporaries.
const MIN_BYTES: u64 = 64 << 20;

/// Maximum lifetime of a temporary, in events, where the recording shows no steps.
const MAX_STEP_EVENTS: u64 = 4096;

/// A line of an own optimizer that needs no temporary.
const IN_PLACE: &[&str] = &["state.mul_(beta).add_(gradient)  # not: state = beta * state + gradient"];

/// Who wrote the optimizer whose step needs temporaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Author {
    PyTorch,
    /// The program itself.
    Program,
}

/// Finds large temporaries of an optimizer's step at the peak.
pub(super) fn temporaries(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let own = own_steps(context);
    let definitions = context.recording.definitions();
    let is_own = |one: &Allocation| own_function(definitions, one.site).is_some_and(|function| own.contains(&function));
    of_author(context, lines, Author::PyTorch, |one| is_multi_tensor(definitions, one.site))
        .or_else(|| of_author(context, lines, Author::Program, |one| is_own(one) && is_temporary(one)))
}

/// Returns the finding about the temporaries at the peak for which `is_of_step` is true.
fn of_author(
    context: &Context<'_>,
    lines: &RecordingLines<'_>,
    author: Author,
    is_of_step: impl Fn(&Allocation) -> bool,
) -> Option<Finding> {
    let peak = context.peak_allocated;
    let is_freed = |one: &Allocation| ends_in_step(context, one) && is_of_step(one);
    let blocks: Vec<Allocation> =
        context.peak_contents.iter().map(|(_, one)| *one).filter(|one| is_freed(one)).collect();
    let bytes = total_bytes(&blocks);
    if bytes < MIN_BYTES || !is_share(bytes, MIN_PERCENT, peak.bytes) {
        return None;
    }
    let share =
        format!("{} of the peak of {} ({})", ByteSize(bytes), ByteSize(peak.bytes), Percent::of(bytes, peak.bytes));
    let replacement = blocks.iter().find_map(|one| replacement(context.recording.definitions(), one.site));
    let (summary, remedy) = match author {
        Author::PyTorch => (
            format!(
                "{share} are temporaries of the optimizer's multi-tensor step, which updates all parameters at once."
            ),
            match replacement {
                Some((false, _)) => "Create the optimizer with foreach=False, which updates one parameter at a time.",
                _ => {
                    "Create the optimizer with fused=True, or with foreach=False, which updates one parameter at a \
                     time."
                }
            },
        ),
        Author::Program => (
            format!(
                "{share} are temporaries in the step of the program's own optimizer, beside {} of its state.",
                ByteSize(total_bytes(&context.of_category(Category::OptimizerState)))
            ),
            "Update in place (mul_, add_, addcdiv_ instead of new tensors), or use an optimizer of PyTorch with \
             fused=True.",
        ),
    };
    let mut finding = context.finding(lines, Problem::OptimizerStepPeak, bytes, &blocks, summary);
    finding.events = (peak.event, peak.event);
    finding.severity = Severity::Low;
    finding.remedy = Some(remedy.to_owned());
    finding.code = replacement.map_or(IN_PLACE, |(_, code)| code);
    finding.trials = vec![omitted(context, context.lifetimes.iter().filter(is_freed))];
    Some(finding)
}

/// Returns true if an allocation is freed in the step that requested it. SGD's step also creates
/// its state, which stays.
fn ends_in_step(context: &Context<'_>, one: &Allocation) -> bool {
    let end = context.steps.at(one.first_moment).map(|step| step.to_event);
    let end = end.unwrap_or(one.first_moment.saturating_add(MAX_STEP_EVENTS));
    one.allocated_until.is_some_and(|until| until <= end)
}

/// Returns true if a request was made by a multi-tensor step of an optimizer of PyTorch.
fn is_multi_tensor(definitions: &Definitions, site: SiteId) -> bool {
    let mut frames = definitions.stack(definitions.site(site).stack);
    frames.any(|frame| {
        let function = definitions.string(frame.function);
        function.rsplit('.').next().unwrap_or(function).starts_with("_multi_tensor_")
    })
}

/// Returns how to create the optimizer of PyTorch whose multi-tensor step made a request without
/// temporaries, and whether that needs `fused=True`. SGD, Adam and AdamW have a fused step on GPUs;
/// AdamW calls Adam's function since PyTorch 2.8.
fn replacement(definitions: &Definitions, site: SiteId) -> Option<(bool, &'static [&'static str])> {
    definitions.stack(definitions.site(site).stack).find_map(|frame| {
        let function = definitions.string(frame.function);
        match function.rsplit('.').next().unwrap_or(function).strip_prefix("_multi_tensor_")? {
            "adam" | "adamw" => {
                Some((true, &["torch.optim.AdamW(model.parameters(), fused=True)  # or torch.optim.Adam"] as &[_]))
            }
            "sgd" => Some((true, &["torch.optim.SGD(model.parameters(), lr=lr, fused=True)"])),
            _ => Some((false, &["optimizer = Optimizer(model.parameters(), foreach=False)  # the one in use"])),
        }
    })
}

/// Returns the functions of the program that create an optimizer's state: the step of an optimizer
/// that the program itself defines.
fn own_steps(context: &Context<'_>) -> BTreeSet<(StringId, StringId)> {
    let definitions = context.recording.definitions();
    let category = |one: &Allocation| definitions.site(one.site).category;
    let state = context.of_category(Category::OptimizerState).into_iter();
    let unmarked = state.filter(|one| category(one) == Category::Unknown && !is_multi_tensor(definitions, one.site));
    unmarked.filter_map(|one| own_function(definitions, one.site)).collect()
}

/// Returns the file and the name of the program's innermost function in a request's stack; `None`
/// if PyTorch's optimizer or a module made the request for it.
fn own_function(definitions: &Definitions, site: SiteId) -> Option<(StringId, StringId)> {
    let frame = definitions.stack(definitions.site(site).stack).next()?;
    (frame_origin(definitions, frame, true) == FrameOrigin::Own).then_some((frame.file, frame.function))
}
