//! Analyses for a caller that draws frames: each stores its result between calls, and begins again
//! when its inputs have changed.
//!
//! - Of a device's lifetimes: [`StepAnalysis`], [`PeakAnalysis`], [`TableAnalysis`],
//!   [`UnfreedAnalysis`], [`TemporaryScan`], [`LifetimeScan`], [`Compositions`] and
//!   [`AllocationIndexes`]. They proceed by a bounded part in every call. While a live recording
//!   grows, results lag behind by at most a sixteenth of its events.
//! - Of a recording: [`FragmentationAnalysis`] proceeds in parts, too. [`FailureAnalysis`] reads
//!   all failures at once, about 2 ms each. [`CompleteReplay`] replays all devices, in parts or at
//!   once.
//! - [`EventSearch`] and [`AllocationSearch`] continue the lists of a filter; [`KeptMatchers`] and
//!   [`StepStarts`] store what filters need.

mod allocation_indexes;
mod allocation_search;
mod complete_replay;
mod compositions;
mod event_search;
mod failures;
mod fragmentation;
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

use crate::group::MemoryCategory;
use crate::history::History;
use crate::spans::Marks;

pub use allocation_indexes::AllocationIndexes;
pub use allocation_search::{AllocationRequest, AllocationSearch, FoundAllocations};
pub use complete_replay::CompleteReplay;
pub use compositions::{Composition, Compositions};
pub use event_search::{EventSearch, FoundEvents};
pub use failures::FailureAnalysis;
pub use fragmentation::{CrossingSearch, FirstCrossing, FragmentationAnalysis, FragmentationSource};
pub use kept_matchers::KeptMatchers;
pub use lifetime_histogram::{AllocationSum, LifeUnit, LifetimeCell, LifetimeHistogram, LifetimeScan, LifetimeScanKey};
pub use peak::{NextPeaks, PeakAnalysis, PeakGroups};
pub use recording_identity::RecordingIdentity;
pub use step_starts::{StepStarts, uses_steps};
pub use steps::StepAnalysis;
pub use tables::TableAnalysis;
pub use temporaries::{TemporaryRows, TemporaryScan, TemporarySearch};
pub use unfreed::{UnfreedAnalysis, UnfreedRows};

/// Divisor of a growing recording's size: results are computed again once it has grown by the
/// quotient.
const GROWTH_DIVISOR: u64 = 16;
/// Number of events whose allocations one call counts.
const EVENTS_PER_CALL: u64 = 1 << 17;

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
struct Categories(HashMap<u32, Option<MemoryCategory>>);

impl Categories {
    /// Adds the category of an allocation of a group.
    fn add(&mut self, group: u32, category: MemoryCategory) {
        let common = self.0.entry(group).or_insert(Some(category));
        *common = common.filter(|&common| common == category);
    }

    /// Returns the category of a group's allocations; `None` if they differ.
    fn get(&self, group: u32) -> Option<MemoryCategory> {
        self.0.get(&group).copied().flatten()
    }
}
