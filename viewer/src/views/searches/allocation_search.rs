//! The list of the allocations that match a filter, kept between frames.

use vramscope_insight::allocations::{AllocationList, AllocationOrder, AllocationSource, ListedAllocation, Scope};
use vramscope_insight::query::{Matcher, ScanProgress};
use vramscope_trace::DeviceId;

/// A request for a list of allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationRequest {
    /// The device.
    pub device: DeviceId,
    /// The filter as typed.
    pub filter: String,
    /// The allocations to which the filter is applied.
    pub scope: Scope,
    /// The order.
    pub order: AllocationOrder,
    /// Number of steps that the filter knows.
    pub steps: usize,
    /// The moment, if the result depends on it.
    pub moment: Option<u64>,
    /// The moment up to which the history is complete.
    pub until: u64,
}

impl AllocationRequest {
    /// Returns true if `other` differs at most in the moment and in how much of the recording is
    /// known.
    fn has_same_terms(&self, other: &Self) -> bool {
        let terms = |request: &Self| (request.device, request.scope, request.order);
        terms(self) == terms(other) && self.filter == other.filter
    }
}

/// A list, and the request that it answers.
type Kept = (AllocationRequest, AllocationList);

/// The allocations that match a filter, found in steps. While a list for another moment is being
/// made, the last one is shown.
#[derive(Default)]
pub struct AllocationSearch {
    shown: Option<Kept>,
    next: Option<Kept>,
}

/// The list to show, and whether it is the requested one.
pub struct FoundAllocations<'a> {
    list: Option<&'a mut AllocationList>,
    source: AllocationSource<'a>,
    /// Progress of the requested list; complete if it is the displayed list.
    pub progress: ScanProgress,
}

impl AllocationSearch {
    /// Visits up to about `max_rows` more allocations for the requested list, whose ages are
    /// counted from `moment`. `matcher` prepares the filter.
    pub fn advance<'a>(
        &'a mut self,
        request: &AllocationRequest,
        moment: u64,
        matcher: impl FnOnce() -> Matcher,
        source: AllocationSource<'a>,
        max_rows: u64,
    ) -> FoundAllocations<'a> {
        let history = source.history;
        self.shown =
            self.shown.take().filter(|(known, list)| known.device == request.device && !list.is_stale(history));
        let is_current = self.shown.as_ref().is_some_and(|(known, _)| known == request);
        let mut progress = ScanProgress { done: 1, total: 1 };
        if !is_current {
            let next =
                self.next.take().filter(|(known, list)| known.has_same_terms(request) && !list.is_stale(history));
            let (made, mut list) = next.unwrap_or_else(|| {
                let AllocationRequest { device, scope, order, .. } = *request;
                (request.clone(), AllocationList::new(device, matcher(), scope, order, moment))
            });
            progress = list.step(&source, max_rows);
            if progress.is_finished() {
                if made != *request {
                    progress.done = 0;
                }
                self.shown = Some((made, list));
            } else {
                self.next = Some((made, list));
            }
        }
        FoundAllocations { list: self.shown.as_mut().map(|(_, list)| list), source, progress }
    }
}

impl FoundAllocations<'_> {
    /// Returns true if the requested list is complete.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.progress.is_finished()
    }

    /// Returns the number of allocations in the list that is shown; `None` before there is one.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        self.list.as_ref().map(|list| list.len() as u64)
    }

    /// Returns the bytes of the allocations in the list, and the bytes of the list's allocations
    /// that are pending free.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.list.as_ref().map_or((0, 0), |list| (list.total_bytes(), list.pending_bytes()))
    }

    /// Returns up to `count` allocations from position `offset` on.
    pub fn rows(&mut self, offset: u64, count: u64) -> Vec<ListedAllocation> {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        self.list.as_mut().map_or_else(Vec::new, |list| list.rows(&self.source, size(offset), size(count)))
    }

    /// Returns the position of the allocation with a row number, or `None` if the list lacks it.
    #[must_use]
    pub fn position_of(&self, row: u32) -> Option<u64> {
        self.list.as_ref()?.position_of(row).map(|position| position as u64)
    }
}
