//! The device map: every byte of a device to one scale, in address order within its owner.
//!
//! The memory is one [line](MemoryLine): the segments of the pool, then what this process holds
//! outside the pool, what other processes hold, and the driver's free memory. What the recording
//! does not say is unknown, and drawn as unknown. The map shows the line in rows that continue each
//! other like lines of text, so that areas can be compared everywhere. Each segment begins on a row
//! of its own if that takes little space.
//!
//! One zoom leads from the whole device to a block. A strip above the map always shows the whole
//! device, and which part of it the map shows.
//!
//! A pixel column stands for an equal number of bytes everywhere. A column with several kinds of
//! memory is divided among them, so that no byte vanishes. Blocks have the color of their category
//! or of another property. Free memory that shares a segment with blocks has the color of how stuck
//! it is: how much of the requested memory is in requests too large for it. Segments and pages that
//! the allocator can release are hatched.
//!
//! The line is computed once for a moment. Drawing visits the memory in view, and the strip all of
//! it.

mod block_colors;
mod cells;
mod draw;
mod groups;
mod hit;
mod labels;
mod layout;
mod legend;
mod memory_kind;
mod memory_line;
mod scene;
mod still;
mod strip;
mod style;
mod view;

pub use block_colors::{AgeScale, AgeUnit, ColorBy, Fill, FreedAt, MapContent};
pub use draw::{Highlight, draw_failure, draw_highlight, draw_on, draw_placement};
pub use groups::BlockGroups;
pub use hit::Hit;
pub(crate) use hit::hit_at;
pub use labels::{BlockName, MapTexts};
pub use layout::{Layout, MapControl, Row};
pub use legend::{LegendEntry, LegendSwatch, legend};
pub use memory_kind::{KindBytes, KindId, MemoryKind};
pub use memory_line::{LineContent, LinePart, MemoryLine};
pub use scene::MapScene;
pub use still::{StillMap, knows_categories};
pub use style::KindStyle;
pub use view::{SortBy, View};
