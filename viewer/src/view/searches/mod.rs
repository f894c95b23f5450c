//! The state of the lists of events and allocations between frames: searches in progress, and the
//! row that is kept in view.

mod allocation_search;
mod event_search;
mod kept_in_view;
mod kept_matcher;
mod step_starts;

use vramscope_trace::Recording;

pub use allocation_search::{AllocationRequest, AllocationSearch, FoundAllocations};
pub use event_search::{EventSearch, FoundEvents};
pub use kept_in_view::KeptInView;
pub use kept_matcher::{KeptMatchers, ShownFilter};
pub use step_starts::{StepStarts, uses_steps};

/// Properties by which a recording is recognized while it grows and its oldest part is dropped:
/// start time and source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordingIdentity {
    epoch_unix_ns: u64,
    source: String,
}

impl RecordingIdentity {
    /// Returns the identity of `recording`.
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        let info = recording.info();
        Self { epoch_unix_ns: info.epoch_unix_ns, source: info.source.clone() }
    }
}

/// The searches of the lists of events and allocations, and the rows that the lists keep in view.
#[derive(Default)]
pub struct Searches {
    /// The list of events.
    pub events: EventSearch,
    /// The list of allocations.
    pub allocations: AllocationSearch,
    /// The allocations that used an address.
    pub address: AllocationSearch,
    /// The live allocations below the picture of all allocations.
    pub live: AllocationSearch,
    /// The row that the list of events keeps in view: that of the moment.
    pub events_row: KeptInView,
    /// The row that the list of allocations was last asked to show.
    pub allocations_row: KeptInView,
    /// The row that the address history keeps in view.
    pub address_row: KeptInView,
    /// Filters prepared for the recording.
    pub matchers: KeptMatchers,
    /// The filter of a list in a pane, if one is typed.
    pub shown_filter: Option<ShownFilter>,
    /// Where steps begin, for ages in steps.
    pub step_starts: StepStarts,
}
