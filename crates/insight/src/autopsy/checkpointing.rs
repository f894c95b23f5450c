//! Module calls whose activations could be computed again in the backward pass.

use std::collections::BTreeMap;

use vramscope_trace::{Allocation, Definitions, SiteId};

use super::contents::module_calls;
use crate::frames::frame_label;

/// Maximum number of lines whose activations a trial computes again.
const MAX_TRIED: usize = 3;

/// One line of the program that calls modules several times in a step, such as
/// `for block in self.blocks: x = block(x)`.
#[derive(Clone, Debug)]
pub(crate) struct ModuleCall {
    /// The scope of the activations, or the line with its function.
    pub(crate) name: String,
    /// Bytes of its activations that are live at the failure.
    pub(crate) bytes: u64,
    /// Number of calls in the failed step.
    pub(crate) calls: usize,
    /// All activations, by call in order.
    by_call: Vec<Vec<Allocation>>,
}

/// The activations of a step and the step before it, grouped by the program line that calls the
/// module that made them.
pub(crate) struct ModuleCalls {
    found: Vec<ModuleCall>,
}

impl ModuleCalls {
    /// Finds the lines that call modules several times after event `from`, the begin of a step.
    /// `activations` are the activations of this step and others, in order; `failed` is the number
    /// of the failed event, or of the one after the examined moment.
    pub(crate) fn new(
        definitions: &Definitions,
        activations: impl Iterator<Item = Allocation>,
        from: u64,
        failed: u64,
    ) -> Self {
        let mut lines_of_site: BTreeMap<SiteId, Vec<(u32, u32, u32)>> = BTreeMap::new();
        let mut labels: BTreeMap<(u32, u32, u32), String> = BTreeMap::new();
        let mut by_line: BTreeMap<(u32, u32, u32), Vec<Allocation>> = BTreeMap::new();
        for one in activations {
            let lines = lines_of_site.entry(one.site).or_insert_with(|| {
                let key = |frame: vramscope_trace::Frame| {
                    let key = (frame.file.0, frame.function.0, frame.line);
                    labels.entry(key).or_insert_with(|| frame_label(definitions, frame));
                    key
                };
                module_calls(definitions, one.site).into_iter().map(key).collect()
            });
            for line in lines.iter() {
                by_line.entry(*line).or_default().push(one);
            }
        }
        let mut found = Vec::new();
        for (line, all) in by_line {
            // A call begins with the site that the first call began with, which may make several
            // requests.
            let first = all.first().map(|one| one.site);
            let mut by_call: Vec<Vec<Allocation>> = Vec::new();
            for one in all {
                let is_begin = |call: &&mut Vec<Allocation>| {
                    Some(one.site) == first && call.last().is_some_and(|last| Some(last.site) != first)
                };
                match by_call.last_mut().filter(|call| !is_begin(call)) {
                    Some(call) => call.push(one),
                    None => by_call.push(vec![one]),
                }
            }
            let live = |call: &Vec<Allocation>| {
                let live = call.iter().filter(|one| one.is_active_at(failed.saturating_sub(1)));
                live.fold(0u64, |sum, one| sum.saturating_add(one.size))
            };
            let is_of_step = |call: &&Vec<Allocation>| call.first().is_some_and(|first| first.first_moment > from);
            let held: Vec<u64> = by_call.iter().filter(is_of_step).map(live).filter(|&bytes| bytes > 0).collect();
            if held.len() > 1 {
                let scope = common_scope(definitions, &by_call);
                let label = labels.get(&line).cloned().unwrap_or_default();
                let name = scope.map_or_else(
                    || format!("the modules that {label} calls"),
                    |scope| format!("the modules in {scope}, which {label} calls"),
                );
                let bytes = held.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
                found.push(ModuleCall { name, bytes, calls: held.len(), by_call });
            }
        }
        found.sort_by(|one, other| (other.bytes, &one.name).cmp(&(one.bytes, &other.name)));
        found.truncate(MAX_TRIED);
        Self { found }
    }

    /// Returns at most three lines: those with most bytes, largest first.
    pub(crate) fn largest(&self) -> &[ModuleCall] {
        &self.found
    }
}

/// Returns the innermost scope that contains all activations; `None` without scopes.
fn common_scope(definitions: &Definitions, calls: &[Vec<Allocation>]) -> Option<String> {
    let mut common: Option<Vec<&str>> = None;
    for one in calls.iter().flatten() {
        let scope: Vec<&str> = definitions.string(definitions.site(one.site).scope).split('/').collect();
        common = Some(match common {
            None => scope,
            Some(common) => {
                let equal = common.iter().zip(&scope).take_while(|(one, other)| one == other).count();
                common[..equal].to_vec()
            }
        });
    }
    common.map(|parts| parts.join("/")).filter(|scope| !scope.is_empty())
}

/// Returns the activations that checkpointing frees after their call and requests again: all but
/// the last of a call, which is the next call's input. Each has three event numbers: its request,
/// the end of its call, and the event before which it is requested again (`u64::MAX` for never).
///
/// They are requested again when the backward pass has finished with the next call or, for the last
/// call, when it first frees one of them. In the failed step they are not requested again before
/// event `failed`.
pub(crate) fn checkpointed(call: &ModuleCall, failed: u64) -> Vec<(u64, u64, u64)> {
    let mut changes = Vec::new();
    for (index, activations) in call.by_call.iter().enumerate() {
        let next = call.by_call.get(index + 1);
        let next = next.filter(|next| is_of_same_step(activations, next));
        let end = |one: &Allocation| one.allocated_until.filter(|&end| end < failed);
        let Some((_, inner)) = activations.split_last() else { continue };
        let after = activations.last().map_or(0, |last| last.first_moment.saturating_add(1));
        let again = match next {
            Some(next) => next.iter().map(end).max().flatten(),
            None => inner.iter().filter_map(end).min(),
        };
        let again = again.unwrap_or(u64::MAX);
        for one in inner.iter().filter(|one| one.allocated_until.is_none_or(|end| end > after)) {
            changes.push((one.first_moment, after, again));
        }
    }
    changes
}

/// Returns true if the call `next` begins before the backward pass frees the activations of `call`.
fn is_of_same_step(call: &[Allocation], next: &[Allocation]) -> bool {
    let begin = next.first().map_or(u64::MAX, |one| one.first_moment);
    call.iter().any(|one| one.allocated_until.is_none_or(|end| end > begin))
}
