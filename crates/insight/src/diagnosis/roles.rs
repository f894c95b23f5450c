//! What the blocks at a peak are for.
//!
//! The category of a block's site tells, recorded or inferred from its stack. Where no category is
//! known, lifetimes and sizes do:
//!
//! - Memory that lives from before the first step until the end are *parameters*; memory that is
//!   allocated later and lives until the end is the *optimizer's state*. A pass through the model
//!   lies between.
//! - *Gradients* come in complete copies of the parameters' sizes.
//! - Other blocks are freed in the step: *temporaries* soon, *activations* later.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{Allocation, Category, DeviceLifetimes};

use crate::autopsy::RecordingLines;
use crate::steps::Steps;

/// Maximum lifetime of a temporary, in events: some operations, not a pass through the model.
const TEMPORARY_EVENTS: u64 = 64;
/// Minimum number of different sizes of parameters; with fewer, blocks of these sizes are not taken
/// for gradients or the optimizer's state.
const MIN_PARAMETER_SIZES: usize = 3;
/// Minimum bytes of blocks with the parameters' sizes to count as a copy, in percent of the
/// parameters' bytes.
const MIN_COPY_PERCENT: u64 = 80;

/// The role of a live allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Role {
    Parameter,
    Gradient,
    OptimizerState,
    /// Kept from the forward to the backward pass of a step.
    Activation,
    /// Freed within [`TEMPORARY_EVENTS`].
    Temporary,
    Other,
}

/// Finds the roles of the blocks that are allocated at `moment`; `end` is the recording's last
/// moment.
pub(super) fn roles(
    lines: &RecordingLines<'_>,
    lifetimes: &DeviceLifetimes,
    steps: &Steps,
    moment: u64,
    end: u64,
) -> Vec<(Role, Allocation)> {
    let blocks: Vec<(Category, Allocation)> = lifetimes
        .live_at(moment)
        .filter(|one| one.is_allocated_at(moment))
        .map(|one| (lines.category(one.site), one))
        .collect();
    // The end of the step; without steps, the moment after which no temporary lives.
    let until = steps.at(moment).map_or(moment.saturating_add(TEMPORARY_EVENTS), |step| step.to_event);
    if blocks.iter().any(|(category, _)| *category != Category::Unknown) {
        return by_category(&blocks, until);
    }
    let blocks: Vec<Allocation> = blocks.into_iter().map(|(_, one)| one).collect();
    let last_step = steps.as_slice().last().map_or(end / 10 * 9, |step| step.from_event);
    // The first steps create the optimizer's state; memory that later steps keep is growth.
    let state_end = steps.as_slice().get(1).map_or(u64::MAX, |step| step.to_event);
    by_lifetime(&blocks, until, last_step, state_end)
}

/// Returns true if the program frees an allocation within [`TEMPORARY_EVENTS`] events.
pub(super) fn is_temporary(one: &Allocation) -> bool {
    one.allocated_until.is_some_and(|until| until.saturating_sub(one.first_moment) <= TEMPORARY_EVENTS)
}

/// Returns true if an allocation is still allocated at `moment`.
fn lasts_until(one: &Allocation, moment: u64) -> bool {
    one.allocated_until.is_none_or(|until| until > moment)
}

/// Finds roles by the categories of the blocks. The step ends at `until`.
fn by_category(blocks: &[(Category, Allocation)], until: u64) -> Vec<(Role, Allocation)> {
    // The sizes of parameters in their own type, and in one of half or twice its width.
    let parameters = blocks.iter().filter(|(category, _)| *category == Category::Parameter);
    let sizes: BTreeSet<u64> =
        parameters.flat_map(|(_, one)| [one.size / 2, one.size, one.size.saturating_mul(2)]).collect();
    let role = |&(category, one): &(Category, Allocation)| {
        let passing = if is_temporary(&one) { Role::Temporary } else { Role::Activation };
        let outlives = lasts_until(&one, until);
        let role = match category {
            Category::Parameter => Role::Parameter,
            Category::OptimizerState => Role::OptimizerState,
            // An optimizer that the program itself defines: the memory that its step keeps is its
            // state.
            Category::Temporary if outlives => Role::OptimizerState,
            Category::Gradient | Category::Unknown if sizes.contains(&one.size) => {
                let is_never_freed = one.allocated_until.is_none();
                if category == Category::Unknown && is_never_freed { Role::OptimizerState } else { Role::Gradient }
            }
            Category::Gradient if is_temporary(&one) => Role::Temporary,
            Category::Activation | Category::Unknown if !outlives => passing,
            Category::Temporary => passing,
            _ => Role::Other,
        };
        (role, one)
    };
    blocks.iter().map(role).collect()
}

/// Finds roles by the lifetimes and sizes of the blocks. The step ends at `until`; what lasts until
/// `last_step` lasts until the end. The optimizer's state is created until `state_end`.
fn by_lifetime(blocks: &[Allocation], until: u64, last_step: u64, state_end: u64) -> Vec<(Role, Allocation)> {
    let mut lasting: Vec<u64> =
        blocks.iter().filter(|one| lasts_until(one, last_step)).map(|one| one.first_moment).collect();
    lasting.sort_unstable();
    // The first pass through the model is the first long pause between the starts of two lasting
    // blocks.
    let pauses = || lasting.windows(2).map(|pair| (pair[0], pair[1] - pair[0]));
    let longest = pauses().map(|(_, pause)| pause).max().unwrap_or(0);
    let first_long = pauses().find(|(_, pause)| *pause > TEMPORARY_EVENTS / 2 && *pause >= longest / 2);
    let created = first_long.map_or(u64::MAX, |(moment, _)| moment);
    let is_parameter = |one: &Allocation| lasts_until(one, last_step) && one.first_moment <= created;
    let mut parameters: BTreeMap<u64, u64> = BTreeMap::new();
    for one in blocks.iter().filter(|one| is_parameter(one)) {
        *parameters.entry(one.size).or_default() += 1;
    }
    let is_model = parameters.len() >= MIN_PARAMETER_SIZES;
    let is_state = |one: &Allocation| {
        let sizes = [one.size, one.size / 2, one.size.saturating_mul(2)];
        let is_early = one.first_moment <= state_end;
        is_model && is_early && lasts_until(one, last_step) && sizes.iter().any(|size| parameters.contains_key(size))
    };
    let rest = blocks.iter().filter(|one| !is_parameter(one) && !is_state(one));
    let copies = if is_model { copies(&parameters, rest) } else { 0 };
    let mut left: BTreeMap<u64, u64> =
        parameters.iter().map(|(size, count)| (*size, count.saturating_mul(copies))).collect();
    let mut role = |one: &Allocation| {
        if is_parameter(one) {
            return Role::Parameter;
        }
        if is_state(one) {
            return Role::OptimizerState;
        }
        if let Some(left) = left.get_mut(&one.size).filter(|left| **left > 0) {
            *left -= 1;
            return Role::Gradient;
        }
        match (lasts_until(one, until), is_temporary(one)) {
            (_, true) => Role::Temporary,
            (false, false) => Role::Activation,
            (true, false) => Role::Other,
        }
    };
    blocks.iter().map(|one| (role(one), *one)).collect()
}

/// Returns how many complete copies of the parameters' sizes some blocks contain: how often the
/// sizes that make up most of the parameters' bytes occur.
fn copies<'a>(parameters: &BTreeMap<u64, u64>, blocks: impl Iterator<Item = &'a Allocation>) -> u64 {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for one in blocks {
        *counts.entry(one.size).or_default() += 1;
    }
    let bytes = |size: u64, count: u64| size.saturating_mul(count);
    let all = parameters.iter().fold(0u64, |sum, (size, count)| sum.saturating_add(bytes(*size, *count)));
    let mut ratios: Vec<(u64, u64)> = parameters
        .iter()
        .map(|(size, count)| (counts.get(size).copied().unwrap_or(0) / count.max(&1), bytes(*size, *count)))
        .collect();
    ratios.sort_unstable_by_key(|&(ratio, bytes)| (std::cmp::Reverse(ratio), bytes));
    let mut covered = 0u64;
    for (ratio, bytes) in ratios {
        covered = covered.saturating_add(bytes);
        if u128::from(covered) * 100 >= u128::from(all) * u128::from(MIN_COPY_PERCENT) {
            return ratio;
        }
    }
    0
}
