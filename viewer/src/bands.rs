//! The bands above the reserved bytes: device memory in use outside the pool, by this process and
//! by others, as the driver reported it.
//!
//! By default the pool stays legible: memory of this process outside the pool is drawn if that
//! leaves the pool at least half of the height. Memory of other processes is often many times as
//! much and says nothing about this program, so it is drawn on request only. The page's header
//! always shows both numbers, and toggles either band. A recording without memory samples has
//! neither.

use vramscope_trace::{CounterSeries, MemorySample};

/// A band of the timeline, stacked on the reserved bytes: device memory that this process holds
/// outside the pool (`Outside`), or that other processes hold (`Others`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// Held by this process: CUDA context, modules, memory that libraries allocate.
    Outside,
    /// Held by other processes.
    Others,
}

impl Band {
    /// Both bands in the order in which the timeline stacks them on the reserved bytes, from the
    /// bottom.
    pub const ALL: [Self; 2] = [Self::Outside, Self::Others];

    /// Returns the band's name in links: `outside` or `others`.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Others => "others",
        }
    }

    /// Returns the height of the band at a memory sample of the driver, in bytes.
    #[must_use]
    pub const fn bytes(self, sample: &MemorySample) -> u64 {
        match self {
            Self::Outside => sample.used_by_context,
            Self::Others => sample.used_by_others,
        }
    }
}

/// The user's choice for each [`Band`]: show it, hide it, or none yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandChoice([Option<bool>; 2]);

impl BandChoice {
    /// Returns `Some(true)` if the user chose to show a band, `Some(false)` if to hide it, and
    /// `None` before any choice.
    #[must_use]
    pub const fn get(self, band: Band) -> Option<bool> {
        self.0[band as usize]
    }

    /// Stores that the user chose to show (`is_shown`) or to hide a band.
    pub const fn set(&mut self, band: Band, is_shown: bool) {
        self.0[band as usize] = Some(is_shown);
    }

    /// Returns the bands to draw. Without a choice of the user, `Others` is hidden, and `Outside`
    /// is shown if the reserved bytes still get half of the chart's height. `series` has the
    /// device's counters and memory samples over time; without samples, no band is drawn.
    #[must_use]
    pub fn visible(self, series: Option<&CounterSeries>) -> VisibleBands {
        let Some((series, used)) = series.and_then(|series| Some((series, series.used_memory_peaks()?))) else {
            return VisibleBands::default();
        };
        let leaves_half = used.by_process <= series.peak_reserved().bytes.saturating_mul(2);
        VisibleBands([self.get(Band::Outside).unwrap_or(leaves_half), self.get(Band::Others).unwrap_or(false)])
    }
}

/// The subset of [`Band::ALL`] that the timeline draws.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VisibleBands([bool; 2]);

impl VisibleBands {
    /// Returns true if the timeline draws `band`.
    #[must_use]
    pub const fn contains(self, band: Band) -> bool {
        self.0[band as usize]
    }
}
