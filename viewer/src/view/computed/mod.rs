//! Results from the lifetimes of a device that are kept between frames: steps, the peak, tables,
//! unfreed allocations, and temporaries.
//!
//! Each computation proceeds by a bounded part in every frame, and begins again when its inputs
//! have changed. While a live recording grows, results lag behind by at most a sixteenth of its
//! events.

mod compositions;
mod peak;
mod steps;
mod tables;
mod temporaries;
mod unfreed;

use std::collections::HashMap;

use vramscope_insight::group::SiteCategory;
use vramscope_insight::history::History;
use vramscope_insight::spans::Marks;
use vramscope_trace::{DeviceId, DeviceLifetimes, Recording};

pub use compositions::{Composition, Compositions};
pub use peak::{NextPeaks, PeakAnalysis, PeakGroups};
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
