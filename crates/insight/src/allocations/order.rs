//! The orders in which allocations are listed.

use vramscope_trace::Allocation;

use crate::history::History;
use crate::query::age_of;

/// The column by which a list of allocations is sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SortKey {
    /// Size, after rounding.
    #[default]
    Size,
    /// Requested size.
    Requested,
    /// Age at the list's moment; allocations that have not started have age 0.
    Age,
    /// Time from the request to the program's free; an allocation that is not freed is last.
    Lifetime,
    /// The first moment.
    Start,
    /// The moment at which the program freed it; an allocation that is not freed is last.
    End,
    /// Address.
    Address,
    /// The name of the site, see [`site_name`](vramscope_trace::site_name).
    Site,
}

impl SortKey {
    /// All keys.
    pub const ALL: [Self; 8] =
        [Self::Size, Self::Requested, Self::Age, Self::Lifetime, Self::Start, Self::End, Self::Address, Self::Site];

    /// Returns the key's name in links and scripts, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Requested => "requested",
            Self::Age => "age",
            Self::Lifetime => "lifetime",
            Self::Start => "start",
            Self::End => "end",
            Self::Address => "address",
            Self::Site => "site",
        }
    }

    /// Returns the value that orders an allocation at the moment `now`; for [`Self::Site`], the
    /// site's number.
    #[inline]
    pub(super) fn value(self, one: &Allocation, now: u64, history: &History) -> u64 {
        let elapsed_ns = |from: u64, to: u64| history.time_ns(to).saturating_sub(history.time_ns(from));
        match self {
            Self::Size => one.size,
            Self::Requested => one.requested,
            Self::Age => age_of(one, now).map_or(0, |(from, to)| elapsed_ns(from, to)),
            Self::Lifetime => one.allocated_until.map_or(u64::MAX, |until| elapsed_ns(one.first_moment, until)),
            Self::Start => one.first_moment,
            Self::End => one.allocated_until.unwrap_or(u64::MAX),
            Self::Address => one.address,
            Self::Site => u64::from(one.site.0),
        }
    }
}

/// The order of a list of allocations. Allocations with equal values are in the order of their
/// starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocationOrder {
    /// The column.
    pub key: SortKey,
    /// Whether the largest value comes first.
    pub is_descending: bool,
}

impl Default for AllocationOrder {
    /// Largest allocations first.
    fn default() -> Self {
        Self { key: SortKey::Size, is_descending: true }
    }
}
