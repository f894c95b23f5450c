//! The exact allocated and pending bytes of a device at every moment, from its lifetimes.

use vramscope_trace::{DeviceLifetimes, SiteId};

/// Number of moments that one call of [`AllocatedCurve::advance`] covers. It takes 24 bytes of
/// memory for each. Each call visits the live allocations, so shorter windows cost more.
const WINDOW_MOMENTS: u64 = 1 << 19;

/// The bytes of a device at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CurvePoint {
    /// The moment.
    pub(crate) event: u64,
    /// Bytes of allocated blocks.
    pub(crate) allocated_bytes: u64,
    /// Bytes of blocks that are pending free.
    pub(crate) pending_bytes: u64,
    /// The site of the allocation that begins at the moment, if one does.
    pub(crate) site: Option<SiteId>,
}

/// The change of a device's bytes at one moment. Sums wrap, so that the intermediate values of
/// increments and decrements in any order are exact; sizes of 2⁶⁴ bytes in total do not exist.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    allocated: u64,
    pending: u64,
}

/// Computes the allocated and pending bytes of a device over a range of moments, one window of
/// moments at a time.
#[derive(Clone, Debug)]
pub(crate) struct AllocatedCurve {
    /// First moment of the next window; `None` at the end.
    next: Option<u64>,
    to_event: u64,
    changes: Vec<Change>,
    /// Sites of the allocations that begin at the moments of the window.
    sites: Vec<Option<SiteId>>,
}

impl AllocatedCurve {
    /// Creates a computation for the moments from `from_event` to `to_event`, both included.
    pub(crate) fn new(from_event: u64, to_event: u64) -> Self {
        let next = (from_event <= to_event).then_some(from_event);
        Self { next, to_event, changes: Vec::new(), sites: Vec::new() }
    }

    /// Returns true once every moment has been visited.
    pub(crate) fn is_finished(&self) -> bool {
        self.next.is_none()
    }

    /// Calls `visit` for the first moment of the next window and each moment of it at which the
    /// bytes change, in order. Does nothing at the end. Moments at which nothing changes are
    /// skipped: a recording may lack any number of events.
    ///
    /// The cost is linear in the allocations that are active in the window.
    pub(crate) fn advance(&mut self, lifetimes: &DeviceLifetimes, visit: &mut impl FnMut(CurvePoint)) {
        let Some(from) = self.next else { return };
        let to = self.to_event.min(from.saturating_add(WINDOW_MOMENTS - 1));
        let moments = (to - from) as usize + 1;
        self.changes.clear();
        self.changes.resize(moments, Change::default());
        self.sites.clear();
        self.sites.resize(moments, None);
        for one in lifetimes.active_between(from, to) {
            // Offsets in the window; `None` after its end.
            let offset = |moment: u64| (moment <= to).then(|| moment.saturating_sub(from) as usize);
            let start = offset(one.first_moment);
            let freed = one.allocated_until.and_then(offset);
            let completed = one.active_until.and_then(offset);
            if let Some(start) = start {
                let change = &mut self.changes[start];
                change.allocated = change.allocated.wrapping_add(one.size);
                if one.first_moment >= from {
                    self.sites[start] = Some(one.site);
                }
            }
            if let Some(freed) = freed {
                let change = &mut self.changes[freed];
                change.allocated = change.allocated.wrapping_sub(one.size);
                change.pending = change.pending.wrapping_add(one.size);
            }
            if let Some(completed) = completed {
                let change = &mut self.changes[completed];
                change.pending = change.pending.wrapping_sub(one.size);
            }
        }
        let mut point = CurvePoint::default();
        for (offset, (change, site)) in self.changes.iter().zip(&self.sites).enumerate() {
            if offset > 0 && change.allocated == 0 && change.pending == 0 {
                continue;
            }
            point = CurvePoint {
                event: from + offset as u64,
                allocated_bytes: point.allocated_bytes.wrapping_add(change.allocated),
                pending_bytes: point.pending_bytes.wrapping_add(change.pending),
                site: *site,
            };
            visit(point);
        }
        let follows = |next: &u64| *next <= self.to_event;
        self.next = if point.event > from {
            to.checked_add(1).filter(follows)
        } else {
            next_change(lifetimes, to).filter(follows)
        };
    }
}

/// Returns the first moment after `after` at which an allocation begins, is freed or ends.
fn next_change(lifetimes: &DeviceLifetimes, after: u64) -> Option<u64> {
    let is_later = |moment: &u64| *moment > after;
    let mut next = None;
    // First the live allocations, then those that begin later, in order.
    for one in lifetimes.active_between(after, u64::MAX) {
        let ends = [one.allocated_until, one.active_until].into_iter().flatten();
        let earliest = ends.chain([one.first_moment]).filter(is_later).min();
        next = next.into_iter().chain(earliest).min();
        if is_later(&one.first_moment) {
            break;
        }
    }
    next
}
