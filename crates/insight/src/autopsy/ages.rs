//! The ages of the blocks that are live at a failure.

use std::collections::BTreeSet;

use vramscope_trace::{Allocation, DeviceLifetimes};

/// How much was allocated and freed before a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ages {
    /// Bytes of all allocations that began before the failure.
    pub(super) allocated_bytes: u64,
    /// Bytes of the blocks that were freed before it.
    pub(super) freed_bytes: u64,
    /// Bytes of live allocations that were made since the failed step began.
    pub(super) young_bytes: u64,
}

impl Ages {
    /// Computes the ages at the moment before event number `failed`, whose step began at the moment
    /// `step_began`. The cost is linear in the number of allocations.
    pub(super) fn new(lifetimes: &DeviceLifetimes, failed: u64, step_began: u64) -> Self {
        let moment = failed.saturating_sub(1);
        let mut ages = Self::default();
        for one in lifetimes.iter().take_while(|one| one.first_moment <= moment) {
            ages.allocated_bytes = ages.allocated_bytes.saturating_add(one.size);
            if one.allocated_until.is_some_and(|end| end <= moment) {
                ages.freed_bytes = ages.freed_bytes.saturating_add(one.size);
            } else if one.first_moment > step_began {
                ages.young_bytes = ages.young_bytes.saturating_add(one.size);
            }
        }
        ages
    }
}

/// Returns the bytes of live blocks that look like an optimizer's state that is being created: the
/// blocks made after the last free, if nearly all have sizes of the oldest blocks (the parameters).
/// Returns 0 if they have not, or if the failed request of `requested` bytes has no such size.
/// `failed` is its event number.
///
/// Used where stacks are missing.
pub(super) fn state_like_bytes(lifetimes: &DeviceLifetimes, failed: u64, requested: u64) -> u64 {
    let moment = failed.saturating_sub(1);
    let first_free = lifetimes.iter().filter_map(|one| one.allocated_until).min().unwrap_or(u64::MAX);
    let live: Vec<Allocation> = lifetimes.live_at(moment).collect();
    let oldest: BTreeSet<u64> = live.iter().filter(|one| one.first_moment < first_free).map(|one| one.size).collect();
    if !oldest.contains(&requested) {
        return 0;
    }
    // The state follows the last free, because nothing is freed while it is created.
    let last_free = lifetimes
        .iter()
        .filter_map(|one| one.allocated_until.filter(|&end| end <= moment).map(|end| (end, one.size)))
        .filter(|&(_, size)| oldest.contains(&size) || size > 1 << 20)
        .map(|(end, _)| end)
        .max();
    let Some(last_free) = last_free else { return 0 };
    let newest = live.iter().filter(|one| one.first_moment > last_free);
    let (mut bytes, mut other_bytes) = (0u64, 0u64);
    for one in newest {
        let sum = if oldest.contains(&one.size) { &mut bytes } else { &mut other_bytes };
        *sum = sum.saturating_add(one.size);
    }
    if other_bytes > bytes / 8 { 0 } else { bytes }
}
