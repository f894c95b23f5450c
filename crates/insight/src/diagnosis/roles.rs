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
        .map(|one| (lines.category_of(&one), one))
        .collect();
    // The end of the step; without steps, the moment after which no temporary lives.
    let until = steps.at(moment).map_or(moment.saturating_add(TEMPORARY_EVENTS), |step| step.to_event);
    let last_step = steps.as_slice().last().map_or(end / 10 * 9, |step| step.from_event);
    if blocks.iter().any(|(category, _)| *category != Category::Unknown) {
        return by_category(&blocks, until, last_step);
    }
    let blocks: Vec<Allocation> = blocks.into_iter().map(|(_, one)| one).collect();
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

/// Finds roles by the categories of the blocks. The step ends at `until`; what lasts until
/// `last_step` lasts until the end.
fn by_category(blocks: &[(Category, Allocation)], until: u64, last_step: u64) -> Vec<(Role, Allocation)> {
    let is_parameter = |category: Category, one: &Allocation| match category {
        Category::Parameter => true,
        // A recording that began after the model was created does not show what its blocks are.
        Category::Unknown => !one.start_observed && lasts_until(one, last_step),
        _ => false,
    };
    let of_model = blocks.iter().filter(|(category, one)| is_parameter(*category, one));
    let parameters = size_counts(of_model.map(|(_, one)| one.size));
    let others = |category: Category| {
        let of_category = move |one: &&(Category, Allocation)| one.0 == category && !is_parameter(one.0, &one.1);
        blocks.iter().filter(of_category).map(|(_, one)| one)
    };
    let gradients = parameter_gradients(&parameters, others(Category::Gradient));
    let unknown_sizes = sizes_like_parameters(&parameters, others(Category::Unknown));
    let role = |&(category, one): &(Category, Allocation)| {
        let passing = if is_temporary(&one) { Role::Temporary } else { Role::Activation };
        let outlives = lasts_until(&one, until);
        let role = match category {
            _ if is_parameter(category, &one) => Role::Parameter,
            Category::OptimizerState => Role::OptimizerState,
            // An optimizer that the program itself defines: the memory that its step keeps is its
            // state.
            Category::Temporary if outlives => Role::OptimizerState,
            Category::Gradient if gradients.contains(&one.first_moment) => Role::Gradient,
            Category::Unknown if unknown_sizes.contains(&one.size) => match () {
                () if lasts_until(&one, last_step) => Role::OptimizerState,
                () if is_temporary(&one) => Role::Temporary,
                () => Role::Gradient,
            },
            Category::Gradient if is_temporary(&one) => Role::Temporary,
            Category::Activation | Category::Unknown if !outlives => passing,
            Category::Temporary => passing,
            _ => Role::Other,
        };
        (role, one)
    };
    blocks.iter().map(role).collect()
}

/// Returns the sizes that blocks of the parameters' sizes have: in the parameters' own type, and in
/// one of half or twice its width if at least half of the parameters have such a block. One block
/// of half a parameter's size may be anything, such as a workspace.
fn sizes_like_parameters<'a>(
    parameters: &BTreeMap<u64, u64>,
    blocks: impl Iterator<Item = &'a Allocation>,
) -> BTreeSet<u64> {
    let counts = size_counts(blocks.map(|one| one.size));
    let widths: [fn(u64) -> u64; 3] = [|size| size, |size| size / 2, |size| size.saturating_mul(2)];
    let all: u64 = parameters.values().sum();
    let matches = |width: &fn(u64) -> u64| {
        let of = |(size, count): (&u64, &u64)| counts.get(&width(*size)).map_or(0, |blocks| *blocks.min(count));
        parameters.iter().map(of).sum::<u64>()
    };
    let is_used = |(index, width): &(usize, &fn(u64) -> u64)| *index == 0 || matches(width) * 2 >= all;
    let used = widths.iter().enumerate().filter(is_used);
    used.flat_map(|(_, width)| parameters.keys().map(|&size| width(size))).collect()
}

/// Returns the gradients of parameters among blocks that the backward pass requested, by their
/// first moments: for each parameter the block of its size that lives longest, and further blocks
/// that live longer than temporaries.
fn parameter_gradients<'a>(
    parameters: &BTreeMap<u64, u64>,
    blocks: impl Iterator<Item = &'a Allocation> + Clone,
) -> BTreeSet<u64> {
    let sizes = sizes_like_parameters(parameters, blocks.clone());
    let mut candidates: Vec<&Allocation> = blocks.filter(|one| sizes.contains(&one.size)).collect();
    candidates.sort_by_key(|one| std::cmp::Reverse(one.allocated_until.unwrap_or(u64::MAX)));
    let mut expected = parameters.clone();
    let mut gradients = BTreeSet::new();
    for one in candidates {
        let left = expected.get_mut(&one.size).filter(|left| **left > 0);
        let is_expected = left.map(|left| *left -= 1).is_some();
        if is_expected || !is_temporary(one) {
            gradients.insert(one.first_moment);
        }
    }
    gradients
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
    let parameters = size_counts(blocks.iter().filter(|one| is_parameter(one)).map(|one| one.size));
    let is_model = parameters.len() >= MIN_PARAMETER_SIZES;
    let is_state = |one: &Allocation| {
        let sizes = [one.size, one.size / 2, one.size.saturating_mul(2)];
        let is_early = one.first_moment <= state_end;
        is_model && is_early && lasts_until(one, last_step) && sizes.iter().any(|size| parameters.contains_key(size))
    };
    let rest = blocks.iter().filter(|one| !is_parameter(one) && !is_state(one));
    let copies = if is_model { copies(&parameters, rest.map(|one| one.size)) } else { 0 };
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

/// Counts how often each size occurs.
pub(super) fn size_counts(sizes: impl Iterator<Item = u64>) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    for size in sizes {
        *counts.entry(size).or_default() += 1;
    }
    counts
}

/// Returns how many complete copies of the parameters' sizes (with their numbers) some blocks of
/// `sizes` contain: how often the sizes that make up most of the parameters' bytes occur.
pub(super) fn copies(parameters: &BTreeMap<u64, u64>, sizes: impl Iterator<Item = u64>) -> u64 {
    let counts = size_counts(sizes);
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
