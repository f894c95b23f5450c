//! Analyses for a caller that draws frames: of a device's lifetimes (steps, the peak, tables,
//! unfreed allocations, temporaries, the histogram of lifetimes), and searches for events and
//! allocations.
//!
//! Each stores its result, proceeds by a bounded part in every call, and begins again when its
//! inputs have changed. While a live recording grows, results lag behind by at most a sixteenth of
//! its events.

mod allocation_search;
mod compositions;
mod event_search;
mod kept_matchers;
mod lifetime_histogram;
mod peak;
mod recording_identity;
mod step_starts;
mod steps;
mod tables;
mod temporaries;
mod unfreed;

use std::collections::HashMap;

use vramscope_trace::{DeviceId, DeviceLifetimes, Recording};

use crate::group::SiteCategory;
use crate::history::History;
use crate::spans::Marks;

pub use allocation_search::{AllocationRequest, AllocationSearch, FoundAllocations};
pub use compositions::{Composition, Compositions};
pub use event_search::{EventSearch, FoundEvents};
pub use kept_matchers::KeptMatchers;
pub use lifetime_histogram::{Cell, Histogram, HistogramKey, HistogramScan, LifeUnit, Sum};
pub use peak::{NextPeaks, PeakAnalysis, PeakGroups};
pub use recording_identity::RecordingIdentity;
pub use step_starts::{StepStarts, uses_steps};
pub use steps::StepAnalysis;
pub use tables::TableAnalysis;
pub use temporaries::{TemporaryRows, TemporaryScan, TemporarySearch};
pub use unfreed::{UnfreedAnalysis, UnfreedRows};

/// The history of a device as far as it has been read.
#[derive(Clone, Copy)]
pub struct DeviceHistory<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// The recording's spans and incidents.
    pub marks: &'a Marks,
    /// Lifetimes and times of all events read so far.
    pub history: &'a History,
    /// Whether `history` contains all events of the recording.
    pub is_complete: bool,
    /// The device.
    pub device: DeviceId,
    /// The device's allocations.
    pub lifetimes: &'a DeviceLifetimes,
    /// The name of the span that the user chose as a step; `None` to recognize steps.
    pub step_span: Option<&'a str>,
}

/// The category that all allocations of a group have, by group number; `None` if they differ.
#[derive(Clone, Debug, Default)]
struct Categories(HashMap<u32, Option<SiteCategory>>);

impl Categories {
    /// Adds the category of an allocation of a group.
    fn add(&mut self, group: u32, category: SiteCategory) {
        let common = self.0.entry(group).or_insert(Some(category));
        *common = common.filter(|&common| common == category);
    }

    /// Returns the category of a group's allocations; `None` if they differ.
    fn get(&self, group: u32) -> Option<SiteCategory> {
        self.0.get(&group).copied().flatten()
    }
}
