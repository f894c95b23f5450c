//! A recording on one page, for an issue or a mail: an SVG or PNG picture, made without a browser.
//!
//! A report draws the viewer's timeline and map, in its font and colors, on another surface. It
//! does not run in a browser; the page saves pictures of single views. The page of a report is
//! light, 1000 units wide and as high as needed. Each device has a block of key figures, its memory
//! and fragmentation over time, its segments at the peak of the allocated bytes, and the sites that
//! hold the most at that moment. Equal recordings give equal bytes.
#![forbid(unsafe_code)]

mod comparison;
mod contents;
mod page;
mod render;
mod summary;

pub use comparison::ComparisonReport;
pub use contents::{MAX_DEVICES, RecordingReport, ReportError};
