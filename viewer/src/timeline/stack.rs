//! The areas of the stacked timeline: live bytes by group in each pixel column.

use std::sync::Arc;

use vramscope_draw::{Color, Texture};
use vramscope_insight::composition::{CompositionColumn, LAYERS, LayerBytes, OTHER_LAYER};
use vramscope_insight::group::GroupBy;
use vramscope_trace::sort::sort_by_key;

use crate::linked_memory::LinkedMemory;

/// The areas that the timeline shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stacking {
    /// The counters.
    Counters,
    /// Live bytes, stacked by group.
    By(GroupBy),
}

impl Stacking {
    /// Name of [`Counters`](Self::Counters) in commands and links.
    pub const COUNTERS: &str = "counters";

    /// Returns the name in commands and links.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counters => Self::COUNTERS,
            Self::By(by) => by.name(),
        }
    }

    /// Returns the areas with a name; `None` if there are none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name == Self::COUNTERS { Some(Self::Counters) } else { GroupBy::from_name(name).map(Self::By) }
    }

    /// Returns the property by which live bytes are grouped; `None` for the counters.
    #[must_use]
    pub const fn group_by(self) -> Option<GroupBy> {
        if let Self::By(by) = self { Some(by) } else { None }
    }
}

/// A layer of the stacked timeline: the name, color and texture of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct StackLayer {
    /// Name of the group.
    pub name: Arc<str>,
    /// Number of the group; `None` for the layer of all other groups.
    pub group: Option<u32>,
    /// Fill color.
    pub color: Color,
    /// Texture on the fill.
    pub texture: Texture,
    /// The memory that the layer shows; `None` for the layer of all other groups.
    pub memory: Option<LinkedMemory>,
    /// Whether other memory is lit.
    pub is_dimmed: bool,
}

/// The areas of the stacked timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// The groups from the bottom up, the layer of all others last.
    pub layers: Vec<StackLayer>,
    /// One for each pixel column.
    pub columns: Vec<CompositionColumn>,
    /// The bytes of each layer's lit blocks in each column; empty unless lit memory is a part of
    /// layers.
    pub lit: Vec<LayerBytes>,
}

impl Stack {
    /// Returns the bytes of a layer in a column; 0 for one that does not exist.
    pub fn bytes(&self, column: usize, layer: usize) -> u64 {
        self.columns.get(column).map_or(0, |column| column.layers[self.source_of(layer)])
    }

    /// Returns the bytes of a layer's lit blocks in a column; 0 unless lit memory is a part of
    /// layers.
    pub fn lit_bytes(&self, column: usize, layer: usize) -> u64 {
        self.lit.get(column).map_or(0, |layers| layers[self.source_of(layer)])
    }

    /// Returns the lowest layer in a column for whose upper end, in bytes, `reaches` returns true.
    pub fn layer_at(&self, column: usize, reaches: impl Fn(u64) -> bool) -> Option<&StackLayer> {
        let mut end = 0u64;
        self.layers.iter().enumerate().find_map(|(index, layer)| {
            end = end.saturating_add(self.bytes(column, index));
            reaches(end).then_some(layer)
        })
    }

    /// Returns the index of a layer in a [`CompositionColumn`]; the layer of all other groups is
    /// always the last one there.
    fn source_of(&self, layer: usize) -> usize {
        let is_other = self.layers.get(layer).is_some_and(|layer| layer.group.is_none());
        if is_other { usize::from(OTHER_LAYER) } else { layer.min(LAYERS - 1) }
    }

    /// Returns the groups in a pixel column with their bytes, largest first. Groups without bytes
    /// there are omitted.
    pub fn groups_in(&self, column: usize) -> Vec<(&StackLayer, u64)> {
        let bytes = |(index, layer)| (layer, self.bytes(column, index));
        let mut groups: Vec<(&StackLayer, u64)> = self.layers.iter().enumerate().map(bytes).collect();
        groups.retain(|(_, bytes)| *bytes > 0);
        sort_by_key(&mut groups, |(_, bytes)| std::cmp::Reverse(*bytes));
        groups
    }

    /// Returns the layers in view with their highest bytes in any column, highest first and the
    /// layer of all others last. Layers without bytes in view are omitted.
    pub fn largest(&self) -> Vec<(&StackLayer, u64)> {
        let most = |index: usize| (0..self.columns.len()).map(|column| self.bytes(column, index)).max().unwrap_or(0);
        let mut layers: Vec<(&StackLayer, u64)> =
            self.layers.iter().enumerate().map(|(index, layer)| (layer, most(index))).collect();
        layers.retain(|(_, bytes)| *bytes > 0);
        // The layer of all others comes last.
        sort_by_key(&mut layers, |(layer, bytes)| (layer.group.is_none(), std::cmp::Reverse(*bytes)));
        layers
    }
}
