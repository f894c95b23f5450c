//! The state of the lists of events and allocations between frames: searches in progress, and the
//! row that is kept in view.

mod allocation_search;
mod event_search;
mod identity;
mod kept_in_view;
mod kept_matcher;
mod shared;
mod step_starts;

pub use allocation_search::{AllocationRequest, AllocationSearch};
pub use event_search::{EventSearch, FoundEvents};
pub(crate) use identity::RecordingIdentity;
pub use kept_in_view::KeptInView;
pub use kept_matcher::ShownFilter;
pub(crate) use shared::Searches;
pub(crate) use shared::{depends_on_moment, shown_filter, step_starts};
