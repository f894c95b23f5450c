//! The cap of an allocator's reserved bytes: recorded, or inferred from its failures.

use std::fmt;

use vramscope_pool::Settings;
use vramscope_trace::ByteSize;

/// Base-2 logarithm of the smallest number of bytes to whose multiples [`ReservedCap::about_bytes`]
/// rounds.
const MIN_STEP_LOG2: u32 = 20;

/// The cap of an allocator's reserved bytes (`set_per_process_memory_fraction`), as far as it is
/// known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservedCap {
    /// No request failed because of a cap, and none is recorded.
    #[default]
    None,
    /// The cap is recorded or was given.
    Exact {
        /// The cap.
        bytes: u64,
    },
    /// The cap follows from the reserved bytes and the failed requests.
    Bounds {
        /// Peak of the reserved bytes: the cap is at least this.
        at_least_bytes: u64,
        /// The least bytes that a failed request would have reserved: the cap is less than this.
        below_bytes: u64,
    },
}

/// The bounds of the cap that follow from a failed request.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedReservation {
    /// Bytes reserved when the request failed.
    pub(super) reserved_bytes: u64,
    /// Bytes of the segment that it needed.
    pub(super) segment_bytes: u64,
    /// Free bytes of the device, as the driver reported.
    pub(super) device_free_bytes: u64,
}

impl FailedReservation {
    /// Returns true if the device had enough memory for the segment, so that a cap must have
    /// refused it.
    pub(super) fn shows_cap(&self) -> bool {
        self.device_free_bytes >= self.segment_bytes
    }

    /// Returns the bytes that would have been reserved with the segment.
    fn wanted_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_add(self.segment_bytes)
    }
}

impl ReservedCap {
    /// Returns the cap that settings contain, as bytes or as a share of the device's memory of
    /// `total_bytes` (0: unknown).
    #[must_use]
    pub fn recorded(settings: &Settings, total_bytes: u64) -> Option<u64> {
        let fraction = settings.per_process_memory_fraction;
        let share = (fraction < 1.0 && total_bytes > 0).then_some((fraction * total_bytes as f64) as u64);
        [share, settings.limit_bytes].into_iter().flatten().min()
    }

    /// Infers the cap from the failed reservations of a device and the peak of its reserved bytes.
    ///
    /// A failure shows a cap if the device had enough free memory for the segment: then reserved +
    /// segment was more than the cap. If the result contradicts the peak, the cap was changed, and
    /// `None` is returned.
    pub(super) fn inferred(peak_reserved_bytes: u64, failed: impl IntoIterator<Item = FailedReservation>) -> Self {
        let shown = failed.into_iter().filter(FailedReservation::shows_cap);
        match shown.map(|failed| failed.wanted_bytes()).min() {
            Some(below_bytes) if below_bytes > peak_reserved_bytes => {
                Self::Bounds { at_least_bytes: peak_reserved_bytes, below_bytes }
            }
            _ => Self::None,
        }
    }

    /// Returns the cap that follows from one failed reservation.
    pub(super) fn of_failure(failed: FailedReservation) -> Self {
        if failed.shows_cap() {
            Self::Bounds { at_least_bytes: failed.reserved_bytes, below_bytes: failed.wanted_bytes() }
        } else {
            Self::None
        }
    }

    /// Returns the cap as one number: the roundest number of bytes between the bounds, which are
    /// usually close. `None` without a cap.
    #[must_use]
    pub fn about_bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Exact { bytes } => Some(bytes),
            Self::Bounds { at_least_bytes, below_bytes } => {
                let steps = (MIN_STEP_LOG2..64).rev().map(|log2| 1u64 << log2);
                let round = steps.filter_map(|step| at_least_bytes.checked_next_multiple_of(step));
                Some(round.into_iter().find(|&bytes| bytes > 0 && bytes < below_bytes).unwrap_or(at_least_bytes))
            }
        }
    }

    /// Returns the bytes above which no reservation can succeed; `None` without a cap.
    #[must_use]
    pub fn most_bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Exact { bytes } => Some(bytes),
            Self::Bounds { below_bytes, .. } => Some(below_bytes.saturating_sub(1)),
        }
    }

    /// Returns the cap for a list of facts, with how it is known: `about 3 GiB (inferred)`.
    #[must_use]
    pub fn label(self) -> String {
        match (self, self.about_bytes()) {
            (Self::Exact { bytes }, _) => format!("{} (recorded)", ByteSize(bytes)),
            (Self::Bounds { at_least_bytes, below_bytes }, _) if !self.is_close() => {
                format!("between {} and {} (inferred)", ByteSize(at_least_bytes), ByteSize(below_bytes))
            }
            (_, Some(bytes)) => format!("about {} (inferred)", ByteSize(bytes)),
            (..) => "none known".to_owned(),
        }
    }

    /// Returns true if the bounds are within an eighth of each other, so that one number describes
    /// the cap.
    fn is_close(self) -> bool {
        match self {
            Self::Bounds { at_least_bytes, below_bytes } => below_bytes - at_least_bytes <= at_least_bytes / 8,
            _ => true,
        }
    }
}

impl fmt::Display for ReservedCap {
    /// Writes the cap as a phrase: `a cap of at least 2.98 GiB and below 3.02 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Exact { bytes } => write!(f, "the cap of {}", ByteSize(bytes)),
            Self::Bounds { at_least_bytes, below_bytes } => {
                let (at_least, below) = (ByteSize(at_least_bytes).to_string(), ByteSize(below_bytes).to_string());
                if at_least == below {
                    let range = ByteSize(below_bytes.saturating_sub(at_least_bytes));
                    write!(f, "a cap of at least {at_least} and less than {range} above it")
                } else {
                    write!(f, "a cap of at least {at_least} and below {below}")
                }
            }
            Self::None => f.write_str("no known cap"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// Returns a failed reservation with these figures.
    fn failed(reserved_bytes: u64, segment_bytes: u64, device_free_bytes: u64) -> FailedReservation {
        FailedReservation { reserved_bytes, segment_bytes, device_free_bytes }
    }

    #[test]
    fn cap_lies_between_the_peak_and_the_smallest_refused_reservation() {
        let refused = [failed(2900 * MIB, 200 * MIB, 130 * GIB), failed(2 * GIB, 2 * GIB, 130 * GIB)];
        let cap = ReservedCap::inferred(3000 * MIB, refused);
        assert_eq!(cap, ReservedCap::Bounds { at_least_bytes: 3000 * MIB, below_bytes: 3100 * MIB });
        assert_eq!(cap.about_bytes(), Some(3 * GIB));
        assert_eq!(cap.to_string(), "a cap of at least 2.93 GiB and below 3.03 GiB");
        assert_eq!(cap.label().replace('\u{a0}', " "), "about 3 GiB (inferred)");
    }

    #[test]
    fn full_device_shows_no_cap() {
        assert_eq!(ReservedCap::inferred(GIB, [failed(GIB, 2 * GIB, GIB)]), ReservedCap::None);
    }

    #[test]
    fn contradictory_bounds_are_not_combined() {
        assert_eq!(ReservedCap::inferred(4 * GIB, [failed(GIB, GIB, 9 * GIB)]), ReservedCap::None);
        let cap = ReservedCap::of_failure(failed(GIB, GIB, 9 * GIB));
        assert_eq!(cap.to_string(), "a cap of at least 1 GiB and below 2 GiB");
    }

    #[test]
    fn recorded_cap_is_the_smaller_of_bytes_and_share() {
        let share = Settings { per_process_memory_fraction: 0.5, ..Settings::default() };
        assert_eq!(ReservedCap::recorded(&share, 8 * GIB), Some(4 * GIB));
        assert_eq!(ReservedCap::recorded(&share, 0), None);
        let both = Settings { limit_bytes: Some(3 * GIB), ..share };
        assert_eq!(ReservedCap::recorded(&both, 8 * GIB), Some(3 * GIB));
    }
}
