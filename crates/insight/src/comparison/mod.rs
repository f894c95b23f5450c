//! The difference between two recordings, or two moments of one: figures of each device, and memory
//! by site, exact to the byte.
//!
//! [`compare`] takes two recordings with their histories, a [`Moment`] of each, and which devices
//! to pair; both may be one recording. Its rows' changes add up to the difference of the devices'
//! live bytes.
//!
//! # When two sites match
//!
//! Site numbers are only valid within one recording, so sites are matched by content: scope,
//! category and whole call stack. Between two runs code changes: lines move, functions are renamed,
//! files are in other directories. [`MatchedSites`] finds out which function and which line of one
//! recording is which of the other, from the allocations that were made there.
//!
//! # Which site comes first
//!
//! Of two recordings of programs that differ in one line, the changed line often does not have the
//! largest change: a wider layer makes the optimizer's state larger than the weights. `ranking`
//! therefore lets the first difference between the programs' requests, from `first_difference`,
//! decide which site comes first, if it changed as much as others did.
//!
//! Two programs that make equal requests may still end differently, because the pool of one could
//! get less memory: [`LessMemory`] says so.
//!
//! An [`Alignment`] maps the times of a recording to an axis that another one shares.
//!
//! [`difference`](crate::difference) compares the groups of two moments by name, as the page does.

mod alignment;
mod compare;
mod device_totals;
mod first_difference;
mod less_memory;
mod moment;
mod ranking;
mod recording_label;
mod site_changes;
#[cfg(test)]
mod tests;

pub use alignment::{Alignment, STEP_LENGTH};
pub use compare::{Comparison, ComparisonError, DeviceComparison, Side, compare};
pub use device_totals::{DeviceTotals, UNUSABLE_REQUEST_BYTES};
pub use first_difference::{FirstDifference, FirstDifferenceKind, RequestAt};
pub use less_memory::LessMemory;
pub use moment::{Moment, MomentError, ParseMomentError};
pub use recording_label::RecordingLabel;
pub use site_changes::{BlockTotals, SiteChange};

#[cfg(doc)]
use crate::matching::MatchedSites;
