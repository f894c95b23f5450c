//! Which calls the next entries of a history may come from.
//!
//! An allocation ends in one entry, a block or an out-of-memory; before it come the segments that were made or given back for it. But
//! segments may also have been given back, and late frees completed, by calls that the program made before it and that leave no entry
//! of their own: emptying the cache, or looking at finished work. So there may be several *readings* of the same entries. Their order
//! here is fixed; the first under which the pool makes the recorded decisions is taken.

use vramscope_trace::{EventKind, MempoolId, SiteId};

use super::history::{Entry, site_of};
use super::script::Manner;

/// Entries that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) begin: usize,
    /// It begins with a free, not counted in what follows, whose completion the request waited for.
    pub(super) has_free: bool,
    /// Before this stand only segments given back and frees completed; from here on it is certainly the request.
    pub(super) sure: usize,
    /// The entry that answers the request, where there is a request.
    pub(super) request: Option<usize>,
    pub(super) end: usize,
}

/// One way to understand a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The request begins here; what stands before it in the group, other calls did.
    pub(super) request_from: usize,
    /// The pool that the request asks.
    pub(super) owner: MempoolId,
    pub(super) manner: Manner,
}

fn is_given_back(kind: &EventKind) -> bool {
    matches!(kind, EventKind::SegmentFreed { .. } | EventKind::SegmentUnmapped { .. })
}

fn is_completed(kind: &EventKind) -> bool {
    matches!(kind, EventKind::FreeCompleted { .. })
}

impl Group {
    /// The entries from `begin` on that belong together; at least one.
    pub(super) fn at(entries: &[Entry], begin: usize) -> Self {
        let kinds = || entries[begin..].iter().map(|entry| &entry.kind);
        let sure = begin + kinds().take_while(|kind| is_given_back(kind) || is_completed(kind)).count();
        let is_part = |kind: &&EventKind| {
            matches!(kind, EventKind::SegmentAllocated { .. } | EventKind::SegmentMapped { .. })
                || is_given_back(kind)
                || is_completed(kind)
        };
        let end = begin + kinds().take_while(is_part).count();
        match entries.get(end).map(|entry| entry.kind) {
            Some(EventKind::BlockAllocated { .. } | EventKind::OutOfMemory { .. }) => {
                Self { begin, has_free: false, sure, request: Some(end), end: end + 1 }
            }
            // Given back by emptying the cache, and then something else. A segment made for no request is no call's doing.
            _ => Self { begin, has_free: false, sure, request: None, end: sure.max(begin + 1) },
        }
    }

    /// The same with the free at `free` in front, which was completed by the next entry: it looks like one that was completed at once,
    /// but another stream may have been using the block, and the request behind it waited for that. Only requests that found no room
    /// wait.
    pub(super) fn with_free(entries: &[Entry], free: usize) -> Option<Self> {
        if !matches!(entries.get(free + 2)?.kind, EventKind::OutOfMemory { .. })
            && !is_given_back(&entries[free + 2].kind)
            && !is_completed(&entries[free + 2].kind)
        {
            return None;
        }
        let group = Self::at(entries, free + 1);
        let failed = matches!(entries[group.request?].kind, EventKind::OutOfMemory { .. });
        let waited = failed || (group.begin..group.end).any(|place| is_given_back(&entries[place].kind));
        waited.then_some(Self { begin: free, has_free: true, ..group })
    }

    /// Where its calls begin, behind the free if it has one.
    pub(super) fn calls_from(&self) -> usize {
        self.begin + usize::from(self.has_free)
    }

    /// The readings of a group with a free in front.
    pub(super) fn waiting_readings(&self, entries: &[Entry], owners: &[MempoolId]) -> Vec<Reading> {
        let mut readings = self.readings(entries, owners);
        readings.retain(|reading| reading.request_from == self.calls_from() && !reading.manner.passes);
        readings
    }

    /// The places in front of its request where the request may begin, the likeliest first.
    ///
    /// A request gives segments back at its own site, and other calls do so at theirs. Where sites were not recorded, the order is
    /// fixed: all that is given back belongs to the request, or nothing.
    pub(super) fn request_begins(&self, entries: &[Entry]) -> Vec<usize> {
        let Some(request) = self.request else { return vec![self.end] };
        let site = |place: usize| site_of(&entries[place].kind);
        let mut begins = Vec::new();
        if site(request) != SiteId(0) {
            let own = (self.calls_from()..self.sure).rev().take_while(|&place| site(place) == site(request)).count();
            begins.push(self.sure - own);
        }
        begins.extend([self.calls_from(), self.sure]);
        // A free may have been completed before the request, and the next one while it waited.
        let is_between = |&place: &usize| site(place) != site(place - 1) || is_completed(&entries[place - 1].kind);
        begins.extend((self.calls_from() + 1..self.sure).rev().filter(is_between).take(Self::MOST_BEGINS));
        let mut seen = Vec::with_capacity(begins.len());
        begins.retain(|begin| !seen.contains(begin) && (seen.push(*begin), true).1);
        begins
    }

    /// No history needs more, and each is a run of the pool.
    const MOST_BEGINS: usize = 16;

    /// All readings under which the request asks one of `owners`, the likeliest first.
    pub(super) fn readings(&self, entries: &[Entry], owners: &[MempoolId]) -> Vec<Reading> {
        let is_plain = |place: usize| !is_given_back(&entries[place].kind) && !is_completed(&entries[place].kind);
        if self.request.is_some() && (self.calls_from()..self.end).all(is_plain) {
            let reading = |owner, manner| Reading { request_from: self.calls_from(), owner, manner };
            let mut readings: Vec<Reading> = owners.iter().map(|&owner| reading(owner, Manner::FREELY)).collect();
            readings.extend(self.captured(entries, self.calls_from()));
            return readings;
        }
        let begins = self.request_begins(entries);
        let site_known = self.request.is_some_and(|request| site_of(&entries[request].kind) != SiteId(0));
        let mut readings = Vec::new();
        for &owner in owners {
            let mut push = |request_from, refuses, passes| {
                let manner = Manner { refuses, passes, captured: false };
                readings.push(Reading { request_from, owner, manner });
            };
            // Whether the driver refused is less sure than where the request begins only if its site says so.
            let orders: Vec<(usize, bool)> = if site_known {
                begins.iter().flat_map(|&begin| [(begin, false), (begin, true)]).collect()
            } else {
                [false, true].iter().flat_map(|&refuses| begins.iter().map(move |&begin| (begin, refuses))).collect()
            };
            for (begin, refuses) in orders {
                push(begin, refuses, true);
                // A request that gave segments back waited for the other streams first, and did not see before that they were done.
                if (begin..self.end).any(|place| is_completed(&entries[place].kind)) {
                    push(begin, refuses, false);
                }
            }
        }
        readings.extend(begins.iter().filter_map(|&begin| self.captured(entries, begin)));
        readings
    }

    /// A request for which there was no room, while another stream was captured.
    fn captured(&self, entries: &[Entry], request_from: usize) -> Option<Reading> {
        let failed = matches!(entries[self.request?].kind, EventKind::OutOfMemory { .. });
        let manner = Manner { captured: true, ..Manner::FREELY };
        failed.then_some(Reading { request_from, owner: MempoolId::default(), manner })
    }

    /// The call in front of the request that the entries from `from` on come from: to empty the cache where segments are given back,
    /// with the end of those; else only to look at finished work.
    pub(super) fn call_before(entries: &[Entry], from: usize, until: usize) -> Option<usize> {
        let given_back = (from..until).find(|&place| is_given_back(&entries[place].kind))?;
        let site = site_of(&entries[given_back].kind);
        let same = |place: &usize| is_given_back(&entries[*place].kind) && site_of(&entries[*place].kind) == site;
        Some(given_back + (given_back..until).take_while(same).count())
    }
}
