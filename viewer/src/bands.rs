//! The bands above the reserved bytes: what the driver said is in use outside of the pool, by this process and by others.
//!
//! **The rule.** The pool is what a person came to see, and no band may squash it unasked. What this process holds outside of the pool
//! is drawn from the start where that leaves the pool half of the height or more. What other processes hold says nothing of this program
//! and is often many times as much, so it is drawn when somebody asks for it. The legend has both in figures all the time, and turns
//! either on and off. A recording without a sample has neither band nor legend.

use vramscope_trace::{Column, MemorySample, Series};

use crate::frame::Color;
use crate::theme::Theme;
use crate::timeline::Content;

/// Memory in use that is not the pool's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// Held by this process: its context, modules, what libraries take for themselves.
    Outside,
    /// Held by other processes.
    Others,
}

impl Band {
    /// Both, from the lower one up.
    pub const ALL: [Self; 2] = [Self::Outside, Self::Others];

    /// What it is called in a link.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::Others => "others",
        }
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(self, sample: &MemorySample) -> u64 {
        match self {
            Self::Outside => sample.used_by_context,
            Self::Others => sample.used_by_others,
        }
    }

    fn color(self, theme: &Theme) -> Color {
        match self {
            Self::Outside => theme.outside,
            Self::Others => theme.others,
        }
    }
}

/// Which bands a person wants to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice([Option<bool>; 2]);

impl Choice {
    /// What was chosen for a band; `None` where it is left to the rule.
    #[must_use]
    pub const fn of(self, band: Band) -> Option<bool> {
        self.0[band as usize]
    }

    /// Chooses for a band.
    pub const fn set(&mut self, band: Band, shown: bool) {
        self.0[band as usize] = Some(shown);
    }

    /// What is drawn of a GPU's series: what was chosen, and else what the rule says.
    #[must_use]
    pub fn bands(self, series: Option<&Series>) -> Bands {
        let Some((series, used)) = series.and_then(|series| Some((series, series.used_peaks()?))) else {
            return Bands::default();
        };
        let fits = used.by_process <= series.peak_reserved().bytes.saturating_mul(2);
        Bands([self.of(Band::Outside).unwrap_or(fits), self.of(Band::Others).unwrap_or(false)])
    }
}

/// The bands that are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bands([bool; 2]);

impl Bands {
    /// Whether a band is drawn.
    #[must_use]
    pub const fn shows(self, band: Band) -> bool {
        self.0[band as usize]
    }
}

/// The device's memory; the greatest number where it is not known.
fn total_bytes(content: &Content) -> u64 {
    let devices = &content.recording.info().devices;
    let about = devices.iter().find(|about| about.device == content.device.0);
    about.map(|about| about.total_bytes).filter(|&bytes| bytes > 0).unwrap_or(u64::MAX)
}

/// How far up the timeline reaches, and the device's memory where that is the top.
pub(crate) fn top(content: &Content) -> (u64, Option<u64>) {
    let total = total_bytes(content);
    let used = content.recording.series(content.device).and_then(Series::used_peaks).unwrap_or_default();
    let used = match content.bands {
        bands if bands.shows(Band::Others) => used.in_all,
        bands if bands.shows(Band::Outside) => used.by_process,
        _ => 0,
    };
    // A sample holds until the next one, by which time the memory may have changed hands; there is never more than the device has.
    let most = content.peaks[1].bytes.max(content.peaks[0].bytes).max(used.min(total));
    // With everybody's memory in the picture what is left of the device can be seen too, unless that is most of it.
    if content.bands.shows(Band::Others) && most <= total && total / 2 <= most {
        return (total, Some(total));
    }
    (most.saturating_add(most / 12).max(1 << 20), None)
}

/// A band's color, and where it ends above each column; 0 where nothing is known of it.
pub(crate) type Drawn = (Color, Vec<u64>);

/// The bands that are drawn, the higher one first. Each reaches down to what stands below it.
pub(crate) fn stacked(content: &Content, theme: &Theme, columns: &[Column], range: (u64, u64), top: u64) -> Vec<Drawn> {
    let shown: Vec<Band> = Band::ALL.into_iter().filter(|&band| content.bands.shows(band)).collect();
    if shown.is_empty() {
        return Vec::new();
    }
    let series = content.recording.series(content.device);
    let samples = series.map(|series| series.samples(range.0, range.1, columns.len())).unwrap_or_default();
    let top = top.min(total_bytes(content));
    let mut ends: Vec<u64> = columns.iter().map(|column| column.max.reserved).collect();
    let mut drawn = Vec::with_capacity(shown.len());
    for band in shown {
        for (end, sample) in ends.iter_mut().zip(&samples) {
            *end = sample.map_or(0, |sample| end.saturating_add(band.bytes(&sample.max)).min(top));
        }
        drawn.push((band.color(theme), ends.clone()));
    }
    drawn.reverse();
    drawn
}
