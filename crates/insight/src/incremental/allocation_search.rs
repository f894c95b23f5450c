//! The list of the allocations that match a filter, kept between calls.

use vramscope_trace::DeviceId;

use crate::allocations::{AllocationList, AllocationOrder, AllocationSource, ListedAllocation, Scope};
use crate::history::History;
use crate::query::{Matcher, Query, ScanProgress};

/// The inputs of a filtered list of allocations: device, filter, scope and order.
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
    /// The generation of the categories, if the filter is about them.
    pub categories: u64,
    /// The moment, if the result depends on it.
    pub moment: Option<u64>,
    /// The moment up to which the history is complete.
    pub until: u64,
}

impl AllocationRequest {
    /// Creates the request for a list of a device's allocations. The list does not depend on the
    /// moment unless the caller sets `moment`.
    #[must_use]
    pub fn new(history: &History, device: DeviceId, query: &Query, scope: Scope, order: AllocationOrder) -> Self {
        let categories = if query.has_categories() { history.categories_generation() } else { 0 };
        let (filter, until) = (query.text().to_owned(), history.until());
        Self { device, filter, scope, order, steps: 0, categories, moment: None, until }
    }

    /// Returns true if `other` differs at most in the moment and in how much of the recording is
    /// known.
    fn has_same_terms(&self, other: &Self) -> bool {
        let terms = |request: &Self| (request.device, request.scope, request.order, request.categories);
        terms(self) == terms(other) && self.filter == other.filter
    }
}

/// A list of allocations, with the request that it answers.
type Kept = (AllocationRequest, AllocationList);

/// A search for the allocations that match a filter, continued in parts. While the list for
/// another moment is incomplete, the last complete list is shown.
#[derive(Default)]
pub struct AllocationSearch {
    shown: Option<Kept>,
    next: Option<Kept>,
}

/// The list of allocations to show, with the progress of the requested list.
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

    /// Returns the bytes of all allocations in the list, and the bytes of those that are pending
    /// free.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        self.list.as_ref().map_or((0, 0), |list| (list.total_bytes(), list.pending_bytes()))
    }

    /// Returns up to `count` allocations of the list from position `offset` (from 0) on.
    pub fn rows(&mut self, offset: u64, count: u64) -> Vec<ListedAllocation> {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        self.list.as_mut().map_or_else(Vec::new, |list| list.rows(&self.source, size(offset), size(count)))
    }

    /// Returns the position in the list of allocation `row` of the device; `None` if the list lacks
    /// it.
    #[must_use]
    pub fn position_of(&self, row: u32) -> Option<u64> {
        self.list.as_ref()?.position_of(row).map(|position| position as u64)
    }
}
