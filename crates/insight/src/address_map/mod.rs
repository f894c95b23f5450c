//! Every allocation in a plane of time and device addresses.
//!
//! Time runs across and addresses run up. The vertical axis ([`AddressAxis`]) shows the segments
//! that exist at any of the columns' moments, by address; the addresses between them are left out.
//! A pixel shows the allocation that covers most of it, or free memory of a segment, or memory that
//! is not reserved at that moment.
//!
//! A [`SegmentHistory`] knows which memory is reserved when. An [`AddressMap`] is painted in steps,
//! large allocations first.

mod axis;
mod map;
mod painted_rows;
mod segment_history;
mod segment_spans;

pub use axis::{AddressAxis, AddressRange};
pub use map::{AddressHit, AddressMap, LargeRectangle, MapPixel};
pub use segment_history::SegmentHistory;
pub use segment_spans::{SegmentSpan, SegmentSpans};
