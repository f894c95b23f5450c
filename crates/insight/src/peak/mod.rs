//! The composition of a device's peak, and how far the peak falls if it is lowered.
//!
//! [`explain_peak`] describes the moment of the peak: live bytes by group, the blocks that were
//! live before the first step, and lasting memory. [`PlateauSearch`] finds the next-highest moments
//! of the recording.

mod plateaus;

use std::collections::HashMap;

use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Allocation, DeviceLifetimes, Peak};

pub use plateaus::{Plateau, PlateauSearch, Plateaus};

use crate::steps::{Step, Steps};

/// Divisor: an allocation that is live for at least a quarter of the recording's moments is
/// *lasting*: weights and the optimizer's state are, activations and gradients are not.
const LASTING_DIVISOR: u64 = 4;
/// Divisor: a dip that separates plateaus is at least a tenth of the peak's temporary bytes deep.
const DIP_DIVISOR: u64 = 10;

/// The live blocks of a group at the peak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakGroup {
    /// The group's number, as the caller's grouping defines it.
    pub group: u32,
    /// Live bytes (allocated and pending free).
    pub bytes: u64,
    /// The part of `bytes` that is pending free.
    pub pending_bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
    /// Bytes of the largest block.
    pub largest_bytes: u64,
    /// The part of `bytes` that was live before the first step; 0 without steps.
    pub before_steps_bytes: u64,
}

impl PeakGroup {
    /// Adds a block that is live at the peak, the moment `event`.
    fn add(&mut self, one: &Allocation, event: u64, first_step: Option<u64>) {
        self.bytes = self.bytes.saturating_add(one.size);
        self.blocks += 1;
        self.largest_bytes = self.largest_bytes.max(one.size);
        if !one.is_allocated_at(event) {
            self.pending_bytes = self.pending_bytes.saturating_add(one.size);
        }
        if first_step.is_some_and(|first| one.first_moment <= first) {
            self.before_steps_bytes = self.before_steps_bytes.saturating_add(one.size);
        }
    }
}

/// The composition of a device's memory at its peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeakComposition {
    /// The moment of the peak: the number of the event that reached it.
    pub event: u64,
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Bytes that are pending free, in addition.
    pub pending_bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
    /// Allocated bytes that are live for at least a quarter of the recording's moments, such as
    /// weights.
    pub lasting_bytes: u64,
    /// Live bytes that were live before the first step; `None` without steps.
    pub before_steps_bytes: Option<u64>,
    /// The position (from 0) of the step that contains the peak's event, and the step; `None` if it
    /// is outside of every step.
    pub step: Option<(usize, Step)>,
    /// Live bytes by group, most first. They add up to the allocated and pending bytes.
    pub groups: Vec<PeakGroup>,
}

impl PeakComposition {
    /// Returns the bytes by which allocated memory must fall between two plateaus: a tenth of what
    /// is allocated at the peak and not lasting, at least 1.
    #[must_use]
    pub fn dip_bytes(&self) -> u64 {
        (self.allocated_bytes.saturating_sub(self.lasting_bytes) / DIP_DIVISOR).max(1)
    }
}

/// Describes a device's memory at `peak`, which comes from
/// [`CounterSeries::peak_allocated`](vramscope_trace::CounterSeries::peak_allocated); any other
/// moment can be described, too.
///
/// `recording` holds the first and the last moment of the recording. `group_of` returns the group
/// of an allocation. The cost is linear in the number of live allocations.
pub fn explain_peak(
    lifetimes: &DeviceLifetimes,
    peak: Peak,
    recording: (u64, u64),
    steps: &Steps,
    mut group_of: impl FnMut(&Allocation) -> u32,
) -> PeakComposition {
    let event = peak.event;
    let lasting_events = (recording.1.saturating_sub(recording.0) / LASTING_DIVISOR).max(1);
    let first_step = steps.as_slice().first().map(|step| step.from_event);
    let mut groups: HashMap<u32, PeakGroup> = HashMap::new();
    let mut all = PeakGroup::default();
    let mut lasting_bytes = 0u64;
    for one in lifetimes.live_at(event) {
        let group = group_of(&one);
        groups.entry(group).or_insert(PeakGroup { group, ..PeakGroup::default() }).add(&one, event, first_step);
        all.add(&one, event, first_step);
        let until = one.allocated_until.unwrap_or(recording.1);
        if one.is_allocated_at(event) && until.saturating_sub(one.first_moment) >= lasting_events {
            lasting_bytes = lasting_bytes.saturating_add(one.size);
        }
    }
    let mut groups: Vec<PeakGroup> = groups.into_values().collect();
    sort_by_key(&mut groups, |one| (std::cmp::Reverse((one.bytes, one.blocks)), one.group));
    let step = steps.position_of(event).and_then(|position| Some((position, *steps.as_slice().get(position)?)));
    PeakComposition {
        event,
        allocated_bytes: all.bytes.saturating_sub(all.pending_bytes),
        pending_bytes: all.pending_bytes,
        blocks: all.blocks,
        lasting_bytes,
        before_steps_bytes: first_step.map(|_| all.before_steps_bytes),
        step,
        groups,
    }
}
