//! The timeline: allocated, active and reserved bytes over time, memory outside the pool above
//! them, and marks on top.
//!
//! Every position goes through one [`XAxis`], which shows time, events or steps.
//!
//! A [`TimelineScene`] depends on the recording, the range of time and the picture's size, not on
//! the moment on the screen: it is computed and drawn once, and an [`Overlay`] (cursor, selection,
//! pointer) is added to a copy of the picture.

mod columns;
mod content;
mod draw;
mod flags;
mod geometry;
mod hover;
mod lanes;
mod measure;
mod overlay;
mod overview;
mod scale;
mod scene;
mod span_boxes;
mod stack;
mod x_axis;

pub use content::{PeakMark, TimelineContent};
pub use draw::{draw, draw_cursor, draw_on, draw_overlay};
pub use geometry::{Geometry, span_rows};
pub use hover::{Hover, HoverGroup};
pub use lanes::{MAX_LANES, lanes_in_view};
pub use overlay::{Cursor, Overlay, RangeTotals, SelectionBand};
pub use scale::{AxisKind, Scale, StepAt, StepScale, TimedMoment};
pub use scene::{Options, QUICK_EVENTS, Target, TimelineScene, moment_text};
pub use stack::{Stack, StackLayer, Stacking};
pub use x_axis::XAxis;
