//! Groups of entries that one request may have caused, and the possible interpretations of a group.
//!
//! A request ends in one entry: an allocated block or out of memory. The entries before it may be
//! segments allocated or released for the request. Releases and completed frees may also come from
//! earlier calls that leave no entry of their own: emptying the cache, or processing stream events.
//! So a group can have several *interpretations*. They are tried in a fixed order; the first under
//! which the pool makes the recorded decisions is used.

use vramscope_trace::{EventKind, MempoolId, SiteId};

use super::cursor::Assumptions;
use super::entry::{Entry, is_completed_free, is_release, site_of};

/// Consecutive recorded events that may belong to one request: releases and completed frees, new
/// memory, and the block or failure that ends the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryGroup {
    /// The index of the group's first entry.
    pub(super) start: usize,
    /// Whether the first two entries are the request and the completion of a free for which the
    /// group's request may have waited. In interpretations whose `request_start` is the completion,
    /// it did wait.
    pub(super) has_leading_free: bool,
    /// Only releases and completed frees come before this position; the request starts here at the
    /// latest.
    pub(super) latest_request_start: usize,
    /// The position of the entry that ends the request; `None` if there is no request.
    pub(super) request: Option<usize>,
    /// The index after the group's last entry.
    pub(super) end: usize,
}

/// One possible explanation of a group of recorded events: the index of the event at which its
/// request starts, the pool that serves the request, and the assumptions about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interpretation {
    /// The position where the request starts. Earlier entries of the group come from other calls.
    pub(super) request_start: usize,
    /// The pool that the request uses.
    pub(super) owner: MempoolId,
    pub(super) assumptions: Assumptions,
}

impl EntryGroup {
    /// Returns the group of entries that begins at `entries[start]` and ends with its request, or
    /// before an entry that belongs to no request. It has at least one entry.
    pub(super) fn at(entries: &[Entry], start: usize) -> Self {
        let kinds = || entries[start..].iter().map(|entry| &entry.kind);
        let latest_request_start =
            start + kinds().take_while(|kind| is_release(kind) || is_completed_free(kind)).count();
        let is_part = |kind: &&EventKind| {
            matches!(kind, EventKind::SegmentAllocated { .. } | EventKind::SegmentMapped { .. })
                || is_release(kind)
                || is_completed_free(kind)
        };
        let end = start + kinds().take_while(is_part).count();
        match entries.get(end).map(|entry| entry.kind) {
            Some(EventKind::BlockAllocated { .. } | EventKind::OutOfMemory { .. }) => {
                Self { start, has_leading_free: false, latest_request_start, request: Some(end), end: end + 1 }
            }
            // An emptied cache without a request directly after it. A segment that was allocated
            // without a request belongs to no call.
            _ => Self {
                start,
                has_leading_free: false,
                latest_request_start,
                request: None,
                end: latest_request_start.max(start + 1),
            },
        }
    }

    /// Returns the group that starts with the free requested at `entries[free]` and completed by
    /// the next entry; `None` if the entries after it do not show that a request waited.
    ///
    /// The free looks immediate, but another stream may have used the block, and the request after
    /// it may have waited for that stream. Only requests that found no memory wait.
    pub(super) fn with_leading_free(entries: &[Entry], free: usize) -> Option<Self> {
        if !matches!(entries.get(free + 2)?.kind, EventKind::OutOfMemory { .. })
            && !is_release(&entries[free + 2].kind)
            && !is_completed_free(&entries[free + 2].kind)
        {
            return None;
        }
        let group = Self::at(entries, free + 1);
        let failed = matches!(entries[group.request?].kind, EventKind::OutOfMemory { .. });
        let waited = failed || (group.start..group.end).any(|position| is_release(&entries[position].kind));
        waited.then_some(Self { start: free, has_leading_free: true, ..group })
    }

    /// Returns the index of the group's first entry that may come from its request or from a call
    /// directly before it. This is the group's first entry or, after the request of a leading free,
    /// its second.
    pub(super) fn calls_start(&self) -> usize {
        self.start + usize::from(self.has_leading_free)
    }

    /// Returns the indices of the entries at which the group's request may start, most likely
    /// first; only the group's end if it has no request.
    ///
    /// A request releases segments at its own site, other calls at theirs. Without recorded sites,
    /// first all releases are assumed to belong to the request, then none.
    pub(super) fn request_starts(&self, entries: &[Entry]) -> Vec<usize> {
        let Some(request) = self.request else { return vec![self.end] };
        let site = |position: usize| site_of(&entries[position].kind);
        let mut starts = Vec::new();
        if site(request) != SiteId(0) {
            let own = (self.calls_start()..self.latest_request_start)
                .rev()
                .take_while(|&position| site(position) == site(request))
                .count();
            starts.push(self.latest_request_start - own);
        }
        starts.extend([self.calls_start(), self.latest_request_start]);
        // One free may have been completed before the request, and the next while the request
        // waited.
        let is_between =
            |&position: &usize| site(position) != site(position - 1) || is_completed_free(&entries[position - 1].kind);
        starts.extend(
            (self.calls_start() + 1..self.latest_request_start).rev().filter(is_between).take(Self::MAX_STARTS),
        );
        let mut seen = Vec::with_capacity(starts.len());
        starts.retain(|start| !seen.contains(start) && (seen.push(*start), true).1);
        starts
    }

    /// Maximum number of entries within a group that are tried as the start of its request, besides
    /// the most likely ones; others are not tried. Each costs a run of the pool; no known history
    /// needs more.
    const MAX_STARTS: usize = 16;

    /// Returns all interpretations of the group in which its request uses one of the pools
    /// `owners`, most likely first.
    pub(super) fn interpretations(&self, entries: &[Entry], owners: &[MempoolId]) -> Vec<Interpretation> {
        if !self.has_leading_free {
            return self.interpretations_of_request(entries, owners);
        }
        // The free was immediate, or the request waited for its completion.
        let mut interpretations = Self::at(entries, self.start + 2).interpretations_of_request(entries, owners);
        let mut waiting = self.interpretations_of_request(entries, owners);
        waiting.retain(|interpretation| {
            interpretation.request_start == self.calls_start() && !interpretation.assumptions.events_pass
        });
        interpretations.extend(waiting);
        // If a wait explains the entries, a private pool need not be assumed. So the waiting
        // interpretations of one pool come before all interpretations of a less likely pool.
        interpretations.sort_by_key(|interpretation| {
            let owner = owners.iter().position(|&owner| owner == interpretation.owner);
            (interpretation.assumptions.other_capture, owner)
        });
        interpretations
    }

    /// Returns all interpretations of the group's entries after its leading free, most likely
    /// first.
    fn interpretations_of_request(&self, entries: &[Entry], owners: &[MempoolId]) -> Vec<Interpretation> {
        let is_plain =
            |position: usize| !is_release(&entries[position].kind) && !is_completed_free(&entries[position].kind);
        if self.request.is_some() && (self.calls_start()..self.end).all(is_plain) {
            let interpretation =
                |owner, assumptions| Interpretation { request_start: self.calls_start(), owner, assumptions };
            let mut interpretations: Vec<Interpretation> =
                owners.iter().map(|&owner| interpretation(owner, Assumptions::DEFAULT)).collect();
            interpretations.extend(self.during_capture(entries, self.calls_start()));
            return interpretations;
        }
        let starts = self.request_starts(entries);
        let has_site = self.request.is_some_and(|request| site_of(&entries[request].kind) != SiteId(0));
        let mut interpretations = Vec::new();
        for &owner in owners {
            let mut push = |request_start, driver_may_refuse, events_pass| {
                let assumptions = Assumptions { driver_may_refuse, events_pass, other_capture: false };
                interpretations.push(Interpretation { request_start, owner, assumptions });
            };
            // If sites are recorded, the start of the request is more certain than the driver's
            // answers.
            let alternatives: Vec<(usize, bool)> = if has_site {
                starts.iter().flat_map(|&start| [(start, false), (start, true)]).collect()
            } else {
                [false, true]
                    .iter()
                    .flat_map(|&driver_may_refuse| starts.iter().map(move |&start| (start, driver_may_refuse)))
                    .collect()
            };
            for (start, driver_may_refuse) in alternatives {
                push(start, driver_may_refuse, true);
                // A request that released segments waited for other streams first. It may not have
                // noticed earlier that they had finished.
                if (start..self.end).any(|position| is_completed_free(&entries[position].kind)) {
                    push(start, driver_may_refuse, false);
                }
            }
        }
        interpretations.extend(starts.iter().filter_map(|&start| self.during_capture(entries, start)));
        interpretations
    }

    /// Returns the interpretation that the group's request failed because another stream was being
    /// captured, so that no cached memory could be released; `None` if the request did not fail.
    fn during_capture(&self, entries: &[Entry], request_start: usize) -> Option<Interpretation> {
        let failed = matches!(entries[self.request?].kind, EventKind::OutOfMemory { .. });
        let assumptions = Assumptions { other_capture: true, ..Assumptions::DEFAULT };
        failed.then_some(Interpretation { request_start, owner: MempoolId::default(), assumptions })
    }

    /// Returns the index after the first run of releases at one site in `entries[from..until]`;
    /// emptying the cache causes a run of releases. `None` if these entries have no release, only
    /// frees completed by processing stream events.
    pub(super) fn cache_release_end(entries: &[Entry], from: usize, until: usize) -> Option<usize> {
        let released = (from..until).find(|&position| is_release(&entries[position].kind))?;
        let site = site_of(&entries[released].kind);
        let is_in_run =
            |position: &usize| is_release(&entries[*position].kind) && site_of(&entries[*position].kind) == site;
        Some(released + (released..until).take_while(is_in_run).count())
    }
}
