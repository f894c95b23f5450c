//! What the blocks at a peak are for.

use std::collections::BTreeSet;

use vramscope_trace::{Allocation, Category, DeviceLifetimes};

use crate::categories::{SizeCounts, count};
use crate::group::{Confidence, DeviceCategories, KnownCategory};
use crate::steps::Steps;

/// Maximum lifetime of a temporary, in events: some operations, not a pass through the model.
const TEMPORARY_EVENTS: u64 = 64;
/// Minimum bytes of blocks with the parameters' sizes to count as a copy, in percent of the
/// parameters' bytes.
const MIN_COPY_PERCENT: u64 = 80;

/// Returns the blocks that are allocated at `moment` with their categories. Where no category is
/// known, blocks that the step frees are temporaries if it frees them soon, else activations. What
/// a step frees soon after its forward pass, such as logits, is a temporary for this purpose.
pub(super) fn categories_at(
    categories: &DeviceCategories,
    lifetimes: &DeviceLifetimes,
    steps: &Steps,
    moment: u64,
) -> Vec<(Category, Allocation)> {
    // The end of the step; without steps, the moment after which no temporary lives.
    let until = steps.at(moment).map_or(moment.saturating_add(TEMPORARY_EVENTS), |step| step.to_event);
    let is_freed = |one: &Allocation| one.allocated_until.is_some_and(|end| end <= until);
    let blocks = lifetimes.live_at(moment).filter(|one| one.is_allocated_at(moment));
    let blocks: Vec<_> = blocks.map(|one| (categories.of_allocation(&one), one)).collect();
    let is_parameter = |known: &Option<KnownCategory>| known.is_some_and(|known| known.category == Category::Parameter);
    let parameters = blocks.iter().filter(|(known, _)| is_parameter(known));
    let parameter_sizes: BTreeSet<u64> = parameters.map(|(_, one)| one.size).collect();
    // Programs may record gradients of activations, too; the rules are about those of parameters.
    let is_of_activation = |known: KnownCategory, one: &Allocation| {
        let is_recorded = known.category == Category::Gradient && known.confidence == Confidence::Recorded;
        is_recorded && !parameter_sizes.is_empty() && !parameter_sizes.contains(&one.size)
    };
    let with_category = |(known, one): (Option<KnownCategory>, Allocation)| {
        let category = match known {
            Some(known) if is_of_activation(known, &one) && !is_temporary(&one) => Category::Unknown,
            Some(known) if is_of_activation(known, &one) => Category::Temporary,
            Some(KnownCategory { category: Category::Activation, .. }) if is_temporary(&one) => Category::Temporary,
            Some(known) => known.category,
            None if is_temporary(&one) => Category::Temporary,
            None if is_freed(&one) => Category::Activation,
            None => Category::Unknown,
        };
        (category, one)
    };
    blocks.into_iter().map(with_category).collect()
}

/// Returns true if the program frees an allocation within [`TEMPORARY_EVENTS`] events.
pub(super) fn is_temporary(one: &Allocation) -> bool {
    one.allocated_until.is_some_and(|until| until.saturating_sub(one.first_moment) <= TEMPORARY_EVENTS)
}

/// Returns how many complete copies of the parameters' sizes (with their numbers) some blocks of
/// `sizes` contain: how often the sizes that make up most of the parameters' bytes occur.
pub(super) fn copies(parameters: &SizeCounts, sizes: impl Iterator<Item = u64>) -> u64 {
    let counts = count(sizes);
    let bytes = |size: u64, number: u64| size.saturating_mul(number);
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
