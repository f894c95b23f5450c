//! The properties of blocks that colors can show, and the inputs of a drawing of segments.

use vramscope_draw::{Color, Texture, Theme};
use vramscope_insight::group::GroupBy;
use vramscope_insight::pools::PartKind;
use vramscope_trace::{Block, Category, Definitions, DeviceState};

use super::groups::BlockGroups;
use crate::named::named;

named! {
    /// The property that a live block's color shows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum ColorBy {
        /// Whether the block is allocated or pending free.
        #[default]
        State = "state",
        /// The block's category.
        Category = "category",
        /// The block's site: the call stack, scope and category of its request.
        Site = "site",
        /// The scope path of the block's request.
        Module = "module",
        /// The block's stream.
        Stream = "stream",
        /// The block's segment pool.
        Pool = "pool",
        /// Time since the block was allocated, on a logarithmic scale.
        Age = "age",
        /// Time since the block was allocated or, if it is pending free, freed; on a logarithmic
        /// scale.
        LastChange = "last-change",
        /// The block's size, on a logarithmic scale.
        Size = "size",
    }
}

impl ColorBy {
    /// Returns the property by which the blocks in [`MapContent::groups`] must be grouped;
    /// `None` if the colors do not need groups. Colors by category work without groups too, but
    /// then show no inferred categories.
    #[must_use]
    pub const fn group_by(self) -> Option<GroupBy> {
        match self {
            Self::Category => Some(GroupBy::Category),
            Self::Site => Some(GroupBy::Site),
            Self::Module => Some(GroupBy::Module),
            Self::Stream => Some(GroupBy::Stream),
            Self::Pool => Some(GroupBy::Pool),
            Self::State | Self::Age | Self::Size | Self::LastChange => None,
        }
    }

    /// Returns true if the colors are those of [`Theme::sequential`], a scale from least to most.
    pub const fn is_ordered(self) -> bool {
        matches!(self, Self::Age | Self::Size | Self::LastChange)
    }
}

/// The unit in which ages of blocks are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AgeUnit {
    /// Number of events.
    #[default]
    Events,
    /// Nanoseconds of the recording's time.
    Time,
}

/// The logarithmic scale that maps ages of blocks to colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgeScale {
    /// The unit of ages.
    pub unit: AgeUnit,
    /// The moment on the screen, at which ages are measured: its event number, or its time in
    /// nanoseconds.
    pub now: u64,
    /// The age at the end of the scale: the recording's length, so that colors keep their meaning
    /// while the user scrubs.
    pub longest: u64,
}

impl AgeScale {
    /// Returns the moment at which a block was allocated: an event number, or nanoseconds.
    fn allocated_at(&self, block: &Block) -> u64 {
        match self.unit {
            // The event with index n leads to moment n + 1.
            AgeUnit::Events => block.since_event.saturating_add(1),
            AgeUnit::Time => block.since_ns,
        }
    }

    /// Returns the position of `age` on the scale, from 0 for age 0 to 1 for the longest age.
    pub(super) fn amount(&self, age: u64) -> f64 {
        (libm::log(1.0 + age as f64 / self.least()) / self.range()).min(1.0)
    }

    /// Returns the age at position `amount` (0 to 1): the inverse of [`amount`](Self::amount).
    pub(super) fn age_at(&self, amount: f64) -> u64 {
        ((libm::exp(amount * self.range()) - 1.0) * self.least()).round() as u64
    }

    /// Returns the age below which the scale is nearly linear: an event, or 10 microseconds.
    const fn least(&self) -> f64 {
        match self.unit {
            AgeUnit::Events => 1.0,
            AgeUnit::Time => 10_000.0,
        }
    }

    /// Returns the logarithm at the end of the scale, by which positions are divided.
    fn range(&self) -> f64 {
        libm::log(1.0 + self.longest.max(1) as f64 / self.least())
    }
}

/// Binary logarithm of the size in bytes at which the scale of sizes begins; smaller sizes have the
/// first color.
const SMALLEST_SIZE_EXPONENT: f64 = 9.0;
/// Binary logarithm of the size in bytes at which the scale of sizes ends; larger sizes have the
/// last color.
const LARGEST_SIZE_EXPONENT: f64 = 33.0;

/// Returns the position of a size in bytes on the logarithmic scale of sizes, from 0 (512 bytes) to
/// 1 (8 GiB).
fn size_amount(size: u64) -> f64 {
    let exponent = libm::log2(size.max(1) as f64);
    ((exponent - SMALLEST_SIZE_EXPONENT) / (LARGEST_SIZE_EXPONENT - SMALLEST_SIZE_EXPONENT)).clamp(0.0, 1.0)
}

/// Returns the size in bytes at position `amount` (0 to 1) on the logarithmic scale of sizes.
pub(super) fn size_at(amount: f64) -> u64 {
    libm::exp2(SMALLEST_SIZE_EXPONENT + amount * (LARGEST_SIZE_EXPONENT - SMALLEST_SIZE_EXPONENT)) as u64
}

/// A function that returns the moment at which a block that is pending free was freed, in the unit
/// of an [`AgeScale`]; `None` if the moment is not known.
pub type FreedAt<'a> = &'a dyn Fn(&Block) -> Option<u64>;

/// The inputs of a map: a device's memory, and the property that its colors show.
///
/// ```
/// # use vramscope_trace::{Definitions, DeviceState};
/// use vramscope_viewer::device_map::{ColorBy, MapContent};
/// # fn example(device: &DeviceState, definitions: &Definitions) {
/// let content = MapContent { color_by: ColorBy::Size, ..MapContent::new(device, definitions) };
/// # }
/// ```
pub struct MapContent<'a> {
    /// The device's memory.
    pub device: &'a DeviceState,
    /// The recording's names and sites.
    pub definitions: &'a Definitions,
    /// The property that colors show.
    pub color_by: ColorBy,
    /// The scale of ages for [`ColorBy::Age`] and [`ColorBy::LastChange`].
    pub ages: AgeScale,
    /// The moments at which blocks pending free were freed, for [`ColorBy::LastChange`]. If it is
    /// `None`, these blocks are colored by the time since their allocation.
    pub freed_at: Option<FreedAt<'a>>,
    /// The groups of blocks by the property of [`ColorBy::group_by`]; `None` if colors do not show
    /// groups.
    pub groups: Option<&'a mut BlockGroups>,
    /// Returns true for highlighted blocks; all others are dimmed. If it is `None`, no block is
    /// highlighted or dimmed.
    pub highlight: Option<&'a dyn Fn(&Block) -> bool>,
    /// The memory beside blocks that is highlighted, too; [`Reserved`](PartKind::Reserved) for all
    /// free memory of the pool, [`Device`](PartKind::Device) for all memory.
    pub highlighted_part: Option<PartKind>,
}

impl<'a> MapContent<'a> {
    /// Creates the inputs for colors by state, without highlighted blocks.
    pub fn new(device: &'a DeviceState, definitions: &'a Definitions) -> Self {
        Self {
            device,
            definitions,
            color_by: ColorBy::State,
            ages: AgeScale::default(),
            freed_at: None,
            groups: None,
            highlight: None,
            highlighted_part: None,
        }
    }

    /// Returns true if something is highlighted, and none of `parts` is.
    pub(super) fn is_dimmed(&self, parts: &[PartKind]) -> bool {
        self.highlight.is_some() && !self.highlighted_part.is_some_and(|part| parts.contains(&part))
    }

    /// Returns the fill of a live block.
    pub(super) fn fill_of(&mut self, block: &Block) -> Fill {
        let by_state = if block.pending_free { Fill::Pending } else { Fill::Allocated };
        match self.color_by {
            ColorBy::State => by_state,
            ColorBy::Category => Fill::Category(self.category_index(block)),
            ColorBy::Site | ColorBy::Module | ColorBy::Stream | ColorBy::Pool => match &mut self.groups {
                Some(groups) => Fill::Group(groups.index_of(block)),
                None => by_state,
            },
            ColorBy::Age => Fill::amount(self.ages.amount(self.age(block))),
            // The newest change is the most conspicuous.
            ColorBy::LastChange => Fill::amount(1.0 - self.ages.amount(self.time_since_change(block))),
            ColorBy::Size => Fill::amount(size_amount(block.size)),
        }
    }

    /// Returns the index in [`Category::ALL`] of a block's category: the recorded one, or the
    /// inferred one if there are groups.
    fn category_index(&self, block: &Block) -> u8 {
        let category = match &self.groups {
            Some(groups) => groups.category_of(block),
            None => self.definitions.site(block.site).category,
        };
        Category::ALL.iter().position(|&other| other == category).unwrap_or(0) as u8
    }

    /// Returns the time since a block was allocated, in the unit of the age scale.
    fn age(&self, block: &Block) -> u64 {
        self.ages.now.saturating_sub(self.ages.allocated_at(block))
    }

    /// Returns the time since a block was allocated or, if it is pending free, freed, in the unit
    /// of the age scale.
    fn time_since_change(&self, block: &Block) -> u64 {
        let freed_at = self.freed_at.filter(|_| block.pending_free).and_then(|freed_at| freed_at(block));
        freed_at.map_or_else(|| self.age(block), |freed_at| self.ages.now.saturating_sub(freed_at))
    }
}

/// The fill of a live block, from which a theme chooses color and texture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// The fill of allocated blocks in colors by state.
    Allocated,
    /// The fill of blocks pending free in colors by state.
    Pending,
    /// The fill of a category, by its index in `Category::ALL`.
    Category(u8),
    /// The fill of a group, by its index in the order of [`BlockGroups`].
    Group(u32),
    /// A position on a color scale, from 0 (least) to 255 (most).
    Amount(u8),
}

impl Fill {
    /// Returns the fill at position `value` (0 to 1) of a color scale.
    pub(super) fn amount(value: f64) -> Self {
        Self::Amount((value * 255.0).round() as u8)
    }

    /// Returns the fill's number: each fill has another one.
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Allocated => 0,
            Self::Pending => 1,
            Self::Category(index) => 2 + index as u32,
            Self::Amount(amount) => 258 + amount as u32,
            Self::Group(index) => 514 + if index < 1 << 29 { index } else { (1 << 29) - 1 },
        }
    }

    /// Returns the fill with a number.
    pub(super) const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Allocated,
            1 => Self::Pending,
            2..258 => Self::Category((number - 2) as u8),
            258..514 => Self::Amount((number - 258) as u8),
            _ => Self::Group(number - 514),
        }
    }

    /// Returns the fill's color in a theme.
    #[must_use]
    pub fn color(self, theme: &Theme) -> Color {
        match self {
            Self::Allocated => theme.allocated,
            Self::Pending => theme.pending,
            Self::Category(index) => theme.categories.get(usize::from(index)).copied().unwrap_or(theme.allocated),
            Self::Group(index) => theme.group_color(index as usize),
            Self::Amount(amount) => theme.sequential(f32::from(amount) / 255.0),
        }
    }

    /// Returns the texture that a theme draws on the fill's color.
    #[must_use]
    pub fn texture(self, theme: &Theme) -> Texture {
        match self {
            Self::Allocated | Self::Amount(_) => Texture::None,
            Self::Pending => theme.pending_texture(),
            Self::Category(index) => theme.category_texture(usize::from(index)),
            Self::Group(index) => theme.group_texture(index as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_identify_their_properties() {
        for color_by in ColorBy::ALL {
            assert_eq!(ColorBy::from_name(color_by.name()), Some(color_by));
        }
        assert_eq!(ColorBy::from_name("color"), None);
    }

    #[test]
    fn scale_positions_convert_back_to_ages_and_sizes() {
        for (unit, longest) in [(AgeUnit::Events, 1_000_000), (AgeUnit::Time, 60_000_000_000), (AgeUnit::Time, 0)] {
            let ages = AgeScale { unit, now: longest, longest };
            assert_eq!((ages.amount(0), ages.amount(longest.max(1)), ages.amount(u64::MAX)), (0.0, 1.0, 1.0));
            for amount in [0.25, 0.5, 0.75] {
                let age = ages.age_at(amount);
                assert!(longest == 0 || (ages.amount(age) - amount).abs() < 0.02, "{unit:?} {amount}: {age}");
            }
        }
        assert_eq!(
            (size_amount(0), size_amount(512), size_amount(1 << 33), size_amount(u64::MAX)),
            (0.0, 0.0, 1.0, 1.0)
        );
        assert_eq!((size_at(0.0), size_at(0.5), size_at(1.0)), (512, 2 << 20, 8 << 30));
    }
}
