//! The fragmentation heatmap: every segment a row, every block at its address.
//!
//! If each segment has its own scale, every row is as wide as the map, and the row's height grows
//! with the square root of the segment's size: large segments look large, small ones stay visible.
//! Rows fill the map's height; if they do not fit at their minimum height, the map scrolls. If few
//! segments leave space, a large one continues over several lines, like text.
//!
//! With the common scale, every pixel stands for equally many bytes, so that areas can be compared
//! across segments. Long segments continue on the next line; small ones share a line.
//!
//! A pixel column of a row stands for an equal part of its segment. A column with both live blocks
//! and free space is divided in proportion, live above and free below, and each part gets at least
//! a pixel: nothing vanishes, and colors are never mixed. Free space is orange and hatched; a
//! segment without live blocks, which the allocator could release to the driver, is hatched less
//! prominently. Rounding, the part of a block beyond the requested size, is the darker end of the
//! block where it is at least a pixel wide. Unmapped parts of expandable segments are dark and
//! dotted.
//!
//! Left of a row, an edge shows private pools, streams and expandable segments. Right of it are its
//! segment's fragmentation (1 − largest free block ÷ free bytes) as a color, and its used
//! percentage.
//!
//! Drawing visits only the blocks in view; the rows' positions depend only on the segments.

mod badges;
mod block_colors;
mod draw;
mod groups;
mod labels;
mod layout;
mod legend;
mod placement;
mod regions;
mod row;
mod scene;
mod slices;
mod view;

pub use badges::SegmentBadges;
pub use block_colors::{AgeScale, AgeUnit, ColorBy, Fill, FreedAt, HeatmapContent};
pub use draw::{Highlight, draw, draw_highlight, draw_on, draw_placement};
pub use groups::BlockGroups;
pub(crate) use layout::hit_at;
pub use layout::{Hit, Layout};
pub use legend::{LegendEntry, LegendSwatch};
pub use row::Row;
pub use scene::HeatmapScene;
pub use view::{Scaling, SortBy, View};
