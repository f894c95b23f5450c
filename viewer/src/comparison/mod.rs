//! The "Compare" view's picture: the allocated and reserved bytes of both sides over time on one
//! axis, and below it the heatmaps of both moments side by side.
//!
//! The axis shows steps if both sides have some, so that steps with equal numbers are at one
//! position; else events from each recording's start. By time, times count from each recording's
//! start, or from the start of the step that is compared. [`ComparisonScene::new`] computes
//! positions and texts, and [`draw`] paints it.

mod axis;
mod draw;
mod scene;

use crate::bitmap::Color;
use crate::theme::Theme;

pub use axis::{Alignment, AxisUnit};
pub use draw::draw;
pub use scene::{ColumnsCache, ComparisonContent, ComparisonScene, SideContent};

/// Names of the two sides.
pub const NAMES: [&str; 2] = ["A", "B"];

/// Returns the color of side A (0) or B (1).
#[must_use]
pub fn side_color(theme: &Theme, side: usize) -> Color {
    theme.sides[side]
}
