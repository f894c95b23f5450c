//! The answer: settings from best to worst, the least memory, and how the recorded peak divides.

use vramscope_pool::rerun::RunSummary;

use super::capacity_search::SmallestCapacity;
use super::trial::Trial;

/// Minimum share of the reserved peak that settings must save to be worth a change.
const WORTHWHILE_SHARE: f64 = 0.01;

/// Advice for a recorded program: settings from best to worst, and the least memory that it needs.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The figures of the recorded run.
    pub recorded: RunSummary,
    /// Peak of the bytes of live requests, each rounded up to 512 bytes: the memory that the
    /// program itself needs.
    pub floor_bytes: u64,
    /// All settings tried, best first. Never empty.
    pub tried: Vec<Trial>,
    /// The least memory under the recorded settings; `None` if a request fails even without a
    /// limit.
    pub smallest_recorded: Option<SmallestCapacity>,
    /// The least memory under the best settings; `None` if these are the recorded ones, or a
    /// request fails even without a limit.
    pub smallest_best: Option<SmallestCapacity>,
    /// Height of an offline placement of the recorded requests, which the caller finds with a
    /// [`DevicePacker`](crate::packing::DevicePacker); `None` until then.
    pub packed_bytes: Option<u64>,
}

impl Advice {
    /// Returns the best settings with their figures.
    #[must_use]
    pub fn best(&self) -> &Trial {
        &self.tried[0]
    }

    /// Returns the simulated run under the recorded settings, with which others are compared. It
    /// differs from the recorded run if the recording began after memory was in use.
    #[must_use]
    pub fn baseline(&self) -> &Trial {
        self.tried.iter().find(|trial| trial.is_recorded).unwrap_or(self.best())
    }

    /// Returns the bytes by which the best settings lower the reserved peak. Negative if they
    /// reserve more, to avoid failed requests.
    #[must_use]
    pub fn saved_bytes(&self) -> i64 {
        let (before, after) = (self.baseline().predicted, self.best().predicted);
        let saved = i128::from(before.peak_reserved_bytes) - i128::from(after.peak_reserved_bytes);
        saved.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Returns true if the best settings avoid failed requests or lower the reserved peak by more
    /// than 1%.
    #[must_use]
    pub fn is_worthwhile(&self) -> bool {
        is_worthwhile(&self.tried)
    }

    /// Returns the simplest settings that are no more than 1% worse than the best; `None` if these
    /// are the best settings themselves.
    #[must_use]
    pub fn simpler(&self) -> Option<&Trial> {
        let best = self.best();
        let is_close = |trial: &&Trial| {
            let limit_bytes = best.predicted.peak_reserved_bytes as f64 * (1.0 + WORTHWHILE_SHARE);
            trial.predicted.ooms == best.predicted.ooms && trial.predicted.peak_reserved_bytes as f64 <= limit_bytes
        };
        let simplest = self.tried.iter().filter(is_close).min_by_key(|trial| trial.keys())?;
        (simplest.keys() < best.keys()).then_some(simplest)
    }

    /// Returns the least memory that the program runs in, under the recorded or the best settings.
    #[must_use]
    pub fn smallest(&self) -> Option<&SmallestCapacity> {
        let both = [&self.smallest_recorded, &self.smallest_best];
        both.into_iter().flatten().min_by_key(|smallest| smallest.capacity_bytes)
    }

    /// Returns the parts of the reserved peak.
    #[must_use]
    pub fn bounds(&self) -> MemoryBounds {
        MemoryBounds {
            floor_bytes: self.floor_bytes,
            packed_bytes: self.packed_bytes,
            best_bytes: self.best().predicted.peak_reserved_bytes,
            recorded_bytes: self.recorded.peak_reserved_bytes,
        }
    }
}

/// Returns true if the first of `ranked` avoids failed requests of the recorded settings or lowers
/// their reserved peak by more than 1%.
pub(super) fn is_worthwhile(ranked: &[Trial]) -> bool {
    let recorded = ranked.iter().find(|trial| trial.is_recorded);
    let (Some(best), Some(recorded)) = (ranked.first(), recorded) else { return false };
    let (after, before) = (best.predicted, recorded.predicted);
    let limit_bytes = before.peak_reserved_bytes as f64 * (1.0 - WORTHWHILE_SHARE);
    after.ooms < before.ooms || (after.peak_reserved_bytes as f64) < limit_bytes
}

/// Four amounts of memory of one program, in bytes, in ascending order: its live requests, an
/// offline placement, and the reserved bytes under the best and the recorded settings. The
/// difference between two of them is waste, caused by the order of requests or by the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBounds {
    /// Peak of the live requests: the program's own need.
    pub floor_bytes: u64,
    /// Height of the offline placement of the recorded lifetimes: the memory that an allocator that
    /// knows the future needs. `None` if it was not computed.
    pub packed_bytes: Option<u64>,
    /// Reserved peak under the best settings.
    pub best_bytes: u64,
    /// Reserved peak as recorded.
    pub recorded_bytes: u64,
}
