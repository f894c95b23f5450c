//! The picture of a comparison: the allocated and reserved bytes of both sides over time on one
//! axis, and below it the maps of both moments side by side.
//!
//! By default the axis shows training steps if both sides have some, and steps with equal numbers
//! are at one position; otherwise it shows events, counted from each recording's start. The user
//! can choose time instead, counted from each recording's start or from the start of the compared
//! step. Two moments of one device are always shown by time.
//!
//! [`ComparisonScene::new`] computes positions and texts, and `draw` paints them.

mod axis;
mod draw;
mod failed_request;
mod moments;
mod picture;
mod scene;
mod second;
mod side;
mod sides;

pub use axis::AxisUnit;
pub use failed_request::FailedRequest;
pub use moments::Moments;
pub use picture::ComparisonPicture;
pub use scene::{ColumnsCache, ComparisonContent, ComparisonScene, SideContent};
pub use side::Side;
pub(crate) use side::recording_of;
pub use sides::{CompareCache, Unavailable};
use vramscope_draw::{Color, Theme};

/// Names of the two sides of a comparison.
pub const NAMES: [&str; 2] = ["A", "B"];

/// Returns the color of a side: A for 0, B for 1. Panics for other numbers.
pub fn side_color(theme: &Theme, side: usize) -> Color {
    theme.sides[side]
}
