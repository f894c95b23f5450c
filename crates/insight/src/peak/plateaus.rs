//! The highest moments of a device's allocated bytes apart from its peak.

use vramscope_trace::{DeviceLifetimes, SiteId};

use crate::steps::{AllocatedCurve, CurvePoint};

/// Minimum bytes of a plateau that counts as reaching the peak again, in percent of the peak's
/// bytes.
const RECURRENCE_PERCENT: u128 = 99;

/// The highest moment between two dips of the allocated bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plateau {
    /// Its highest moment; the first if several are equal.
    pub event: u64,
    /// Allocated bytes then.
    pub bytes: u64,
    /// Where the allocation was requested that reached it; `None` if memory was already allocated
    /// when the recording began.
    pub site: Option<SiteId>,
}

/// The plateaus of a device's allocated bytes, compared with its peak.
///
/// The allocated bytes rise and fall. A plateau ends where they fall by at least `dip_bytes` below
/// its highest moment; the next begins once they have risen by as much from the lowest moment
/// since. Two plateaus are thus separated by a dip of at least that depth. The peak is the highest
/// plateau.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plateaus {
    /// Least depth of a dip between two plateaus.
    pub dip_bytes: u64,
    /// The peak; `None` if nothing was allocated.
    pub peak: Option<Plateau>,
    /// The highest of the other plateaus, the first of equal ones. If only the moment of the peak
    /// needed less memory, the peak would fall to this one.
    pub next: Option<Plateau>,
    /// The highest plateau that another site reaches. If the code that reaches the peak needed less
    /// memory in every step, the peak would fall to this one.
    pub next_of_other_site: Option<Plateau>,
    /// Number of other plateaus that the peak's site reaches and that have at least 99% of the
    /// peak's bytes.
    pub recurrences: u64,
}

/// Finds the plateaus of a device's allocated bytes, a part at a time.
///
/// One pass compares all plateaus with the peak, if the peak was given. Otherwise, or if the given
/// one is not the highest moment, an earlier pass finds the highest moment.
#[derive(Clone, Debug)]
pub struct PlateauSearch {
    from_event: u64,
    to_event: u64,
    curve: AllocatedCurve,
    current: Current,
    /// The highest moment of this pass, the first if several are equal.
    highest: Option<Plateau>,
    result: Plateaus,
}

/// The part of the curve since the last dip.
#[derive(Clone, Copy, Debug)]
enum Current {
    /// Above the last dip; the highest moment since.
    Plateau(Option<Plateau>),
    /// In a dip; the least bytes since the last plateau.
    Dip(u64),
}

impl PlateauSearch {
    /// Creates a search over the moments from `from_event` to `to_event`, both included. Dips of
    /// less than `dip_bytes` do not separate plateaus. `peak` is the recording's peak, if the
    /// caller knows it: then the search takes half the time.
    #[must_use]
    pub fn new(from_event: u64, to_event: u64, dip_bytes: u64, peak: Option<Plateau>) -> Self {
        Self {
            from_event,
            to_event,
            curve: AllocatedCurve::new(from_event, to_event),
            current: Current::Plateau(None),
            highest: None,
            result: Plateaus { dip_bytes: dip_bytes.max(1), peak, ..Plateaus::default() },
        }
    }

    /// Continues the search; returns the plateaus once it is complete. A call visits about 260,000
    /// moments and takes a few milliseconds for each 100,000 allocations in them.
    pub fn step(&mut self, lifetimes: &DeviceLifetimes) -> Option<Plateaus> {
        let Self { curve, current, highest, result, .. } = self;
        curve.advance(lifetimes, &mut |point| {
            if point.allocated_bytes > highest.map_or(0, |highest| highest.bytes) {
                *highest = Some(Plateau::of(point, lifetimes));
            }
            if let Some(plateau) = current.advance(point, result.dip_bytes, lifetimes) {
                result.compare(plateau);
            }
        });
        if !curve.is_finished() {
            return None;
        }
        if let Some(last) = std::mem::replace(current, Current::Plateau(None)).highest() {
            result.compare(last);
        }
        if *highest == result.peak {
            return Some(*result);
        }
        *self = Self::new(self.from_event, self.to_event, result.dip_bytes, *highest);
        None
    }
}

impl Plateau {
    /// Creates the plateau whose highest moment is `point`.
    fn of(point: CurvePoint, lifetimes: &DeviceLifetimes) -> Self {
        let site = point.origin.and_then(|number| lifetimes.origin(number)).map(|origin| origin.site);
        Self { event: point.event, bytes: point.allocated_bytes, site }
    }
}

impl Current {
    /// Returns the highest moment since the last dip, or `None` in a dip.
    fn highest(self) -> Option<Plateau> {
        match self {
            Self::Plateau(highest) => highest,
            Self::Dip(_) => None,
        }
    }

    /// Adds the bytes at the next moment. Returns a plateau that ends there.
    fn advance(&mut self, point: CurvePoint, dip_bytes: u64, lifetimes: &DeviceLifetimes) -> Option<Plateau> {
        let bytes = point.allocated_bytes;
        match *self {
            Self::Plateau(Some(highest)) if highest.bytes >= bytes => {
                if highest.bytes - bytes < dip_bytes {
                    return None;
                }
                *self = Self::Dip(bytes);
                return Some(highest);
            }
            Self::Dip(lowest) if bytes < lowest.saturating_add(dip_bytes) => *self = Self::Dip(lowest.min(bytes)),
            Self::Plateau(_) | Self::Dip(_) => {
                *self = Self::Plateau(Some(Plateau::of(point, lifetimes)));
            }
        }
        None
    }
}

impl Plateaus {
    /// Compares a plateau with the peak and the highest others.
    fn compare(&mut self, plateau: Plateau) {
        let Some(peak) = self.peak.filter(|peak| peak.event != plateau.event) else { return };
        let is_higher = |than: Option<Plateau>| plateau.bytes > than.map_or(0, |than| than.bytes);
        if is_higher(self.next) {
            self.next = Some(plateau);
        }
        if plateau.site != peak.site {
            if is_higher(self.next_of_other_site) {
                self.next_of_other_site = Some(plateau);
            }
        } else if u128::from(plateau.bytes) * 100 >= u128::from(peak.bytes) * RECURRENCE_PERCENT {
            self.recurrences += 1;
        }
    }
}
