//! Lists of events, read in windows.
//!
//! An [`EventList`] without a query has every event of the recording, and reads only the chunks
//! that a window touches. With a query it finds the matching events in steps, from the cursor
//! forward first and then from the start. [`event_rows`] returns the rows of any event numbers.

mod error;
mod freed_blocks;
mod list;
mod matches;
mod row;

pub use error::EventListError;
pub use freed_blocks::freed_allocation;
pub use list::{EventList, MatchSearch};
pub use row::{EventRow, event_rows, window};
