//! The exact allocated and pending bytes of a device at every moment, from its lifetimes.

use vramscope_trace::DeviceLifetimes;

/// Minimum number of moments that one call of [`AllocatedCurve::advance`] covers.
const MOMENTS_PER_CALL: u64 = 1 << 18;
/// Minimum number of moments in a window: their changes take 1.3 MB, which fits into a processor's
/// cache.
const MIN_WINDOW: u64 = 1 << 16;
/// Minimum number of moments in a window for each live allocation: every window visits all live
/// allocations.
const MOMENTS_PER_LIVE: u64 = 4;
/// The value of [`AllocatedCurve::origins`] for a moment at which no recorded allocation begins.
const NO_ORIGIN: u32 = u32::MAX;

/// The bytes of a device at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CurvePoint {
    /// The moment.
    pub(crate) event: u64,
    /// Bytes of allocated blocks.
    pub(crate) allocated_bytes: u64,
    /// Bytes of blocks that are pending free.
    pub(crate) pending_bytes: u64,
    /// The number of the origin of the allocation that begins at the moment, if one does and its
    /// event was recorded.
    pub(crate) origin: Option<u32>,
}

/// The change of a device's bytes at one moment. Sums wrap, so that the intermediate values of
/// increments and decrements in any order are exact; sizes of 2⁶⁴ bytes in total do not exist.
#[derive(Clone, Copy, Debug, Default)]
struct Change {
    allocated: u64,
    pending: u64,
}

/// The allocated bytes of a device over a range of moments, and its pending bytes, which are freed
/// but wait for a stream. They are computed for one window of moments at a time.
#[derive(Clone, Debug)]
pub(crate) struct AllocatedCurve {
    /// First moment of the next window; `None` at the end.
    next: Option<u64>,
    to_event: u64,
    /// Number of moments in the next window.
    window: u64,
    changes: Vec<Change>,
    /// The numbers of the origins of the recorded allocations that begin at the moments of the
    /// window, or [`NO_ORIGIN`].
    origins: Vec<u32>,
}

impl AllocatedCurve {
    /// Creates a computation for the moments from `from_event` to `to_event`, both included.
    pub(crate) fn new(from_event: u64, to_event: u64) -> Self {
        let next = (from_event <= to_event).then_some(from_event);
        Self { next, to_event, window: MIN_WINDOW, changes: Vec::new(), origins: Vec::new() }
    }

    /// Returns true once every moment has been visited.
    pub(crate) fn is_finished(&self) -> bool {
        self.next.is_none()
    }

    /// Calls `visit` for the next moments at which the bytes change or an allocation begins, in
    /// order, and for the first moment of each window. Covers about 260,000 moments; does nothing
    /// at the end. Moments at which nothing changes are skipped: a recording may lack any number of
    /// events.
    ///
    /// The cost is linear in the allocations that are active then.
    pub(crate) fn advance(&mut self, lifetimes: &DeviceLifetimes, visit: &mut dyn FnMut(CurvePoint)) {
        let mut covered = 0;
        while let Some(from) = self.next.filter(|_| covered < MOMENTS_PER_CALL) {
            let to = self.to_event.min(from.saturating_add(self.window - 1));
            covered += self.window;
            let has_changes = self.visit_window(lifetimes, (from, to), visit);
            let next = if has_changes { to.checked_add(1) } else { next_change(lifetimes, to) };
            self.next = next.filter(|next| *next <= self.to_event);
        }
    }

    /// Calls `visit` for the moment `from` and each moment up to `to` at which the bytes change or
    /// an allocation begins. Returns true if there is one after `from`.
    fn visit_window(
        &mut self,
        lifetimes: &DeviceLifetimes,
        (from, to): (u64, u64),
        visit: &mut dyn FnMut(CurvePoint),
    ) -> bool {
        let Self { changes, origins, .. } = self;
        let moments = (to - from) as usize + 1;
        changes.clear();
        changes.resize(moments, Change::default());
        origins.clear();
        origins.resize(moments, NO_ORIGIN);
        let mut live = 0;
        // Offsets in the window; `None` after its end.
        let offset = |moment: u64| (moment <= to).then(|| moment.saturating_sub(from) as usize);
        lifetimes.for_each_active_row(from, to, |one| {
            live += u64::from(one.first_moment <= from);
            if let Some(start) = offset(one.first_moment) {
                let change = &mut changes[start];
                change.allocated = change.allocated.wrapping_add(one.size);
                if one.first_moment >= from && one.start_observed {
                    origins[start] = one.origin;
                }
            }
            if let Some(freed) = one.allocated_until.and_then(offset) {
                let change = &mut changes[freed];
                change.allocated = change.allocated.wrapping_sub(one.size);
                change.pending = change.pending.wrapping_add(one.size);
            }
            if let Some(completed) = one.active_until.and_then(offset) {
                let change = &mut changes[completed];
                change.pending = change.pending.wrapping_sub(one.size);
            }
        });
        self.window = (live * MOMENTS_PER_LIVE).clamp(MIN_WINDOW, MOMENTS_PER_CALL);
        let mut point = CurvePoint::default();
        for (index, (change, &origin)) in self.changes.iter().zip(&self.origins).enumerate() {
            if index > 0 && change.allocated == 0 && change.pending == 0 && origin == NO_ORIGIN {
                continue;
            }
            point = CurvePoint {
                event: from + index as u64,
                allocated_bytes: point.allocated_bytes.wrapping_add(change.allocated),
                pending_bytes: point.pending_bytes.wrapping_add(change.pending),
                origin: (origin != NO_ORIGIN).then_some(origin),
            };
            visit(point);
        }
        point.event > from
    }
}

/// Returns the first moment after `after` at which an allocation begins, is freed or ends.
fn next_change(lifetimes: &DeviceLifetimes, after: u64) -> Option<u64> {
    let is_later = |moment: &u64| *moment > after;
    let mut next = None;
    // First the live allocations, then the allocations that begin later, in order.
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
