//! The recorded allocations of each site.

use std::collections::BTreeMap;

use vramscope_trace::{Churn, DeviceLifetimes, SiteId};

/// The recorded allocations of a site, freed ones included, and the bytes that the program
/// requested for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestedChurn {
    pub(crate) churn: Churn,
    pub(crate) requested_bytes: u64,
}

impl RequestedChurn {
    /// Adds the number and the bytes of other allocations.
    pub(crate) fn add_all(&mut self, other: Self) {
        self.churn.add_all(other.churn);
        self.requested_bytes = self.requested_bytes.saturating_add(other.requested_bytes);
    }
}

/// Returns a device's recorded allocations by site, freed ones included.
pub(crate) fn churn_by_site(lifetimes: Option<&DeviceLifetimes>) -> BTreeMap<SiteId, RequestedChurn> {
    let mut sums: BTreeMap<SiteId, RequestedChurn> = BTreeMap::new();
    for one in lifetimes.into_iter().flat_map(DeviceLifetimes::iter).filter(|one| one.start_observed) {
        let sum = sums.entry(one.site).or_default();
        sum.churn.add(one.size);
        sum.requested_bytes = sum.requested_bytes.saturating_add(one.requested);
    }
    sums
}
