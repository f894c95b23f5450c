//! The heatmap's legend: the meaning of the colors and textures in view.

use vramscope_draw::{Color, Texture, Theme};
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{ByteSize, Category, Count, DurationNs};

use super::badges::SegmentBadges;
use super::block_colors::{AgeUnit, ColorBy, Fill, HeatmapContent, size_at};

/// Maximum number of groups with an entry of their own in the legend; all others share one entry.
const MAX_GROUPS: usize = 10;

/// A color sample in the heatmap's legend, named after the memory that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegendSwatch {
    /// Live blocks with this fill.
    Fill(Fill),
    /// Rounding of live blocks with this fill.
    Rounding(Fill),
    /// All groups without an entry of their own.
    OtherGroups,
    /// Free space in segments with live blocks.
    Free,
    /// Free space in segments with live blocks, in a paler color: used with block colors on a scale
    /// from least to most, which include a similar color.
    SubduedFree,
    /// Segments without live blocks.
    FreeSegment,
    /// Unmapped parts of expandable segments.
    Hole,
    /// The bar left of segments with these badges.
    Badges(SegmentBadges),
}

impl LegendSwatch {
    /// Returns the sample's color in a theme; for badges without a color, the dim text color.
    #[must_use]
    pub fn color(self, theme: &Theme) -> Color {
        match self {
            Self::Fill(fill) => fill.color(theme),
            Self::Rounding(fill) => theme.rounding(fill.color(theme)),
            Self::OtherGroups => theme.faint,
            Self::Free => theme.free,
            Self::SubduedFree => theme.free_colors(true).0,
            Self::FreeSegment => theme.cached,
            Self::Hole => theme.background,
            Self::Badges(badges) => badges.color_index().map_or(theme.dim, |index| theme.group_color(index)),
        }
    }

    /// Returns the sample's texture in a theme and the texture's color. [`Texture::None`] for free
    /// space, although the heatmap hatches it: no [`Texture`] has this hatching.
    #[must_use]
    pub fn texture(self, theme: &Theme) -> (Texture, Color) {
        match self {
            Self::Fill(fill) => (fill.texture(theme), theme.texture_ink(fill.color(theme))),
            Self::Hole => (Texture::Dots, theme.faint),
            _ => (Texture::None, self.color(theme)),
        }
    }
}

/// Live bytes in view of each category and each group.
#[derive(Debug, Default)]
pub(super) struct FillBytes {
    /// Bytes of each category, by its index in `Category::ALL`.
    categories: [f64; Category::ALL.len()],
    /// Bytes of each group, by its index in the order of `BlockGroups`.
    groups: Vec<f64>,
}

impl FillBytes {
    /// Adds the live bytes in view of a block with this fill. Ignores fills other than categories
    /// and groups.
    #[inline]
    pub(super) fn add(&mut self, fill: Fill, bytes: f64) {
        let sum = match fill {
            Fill::Category(index) => self.categories.get_mut(usize::from(index)),
            Fill::Group(index) => {
                let index = index as usize;
                if self.groups.len() <= index {
                    self.groups.resize(index + 1, 0.0);
                }
                self.groups.get_mut(index)
            }
            Fill::Allocated | Fill::Pending | Fill::Amount(_) => None,
        };
        if let Some(sum) = sum {
            *sum += bytes;
        }
    }

    /// Iterates over the categories and groups with bytes in view, as (fill, bytes).
    fn iter(&self) -> impl Iterator<Item = (Fill, f64)> + '_ {
        let categories = (0..).zip(self.categories).map(|(index, bytes)| (Fill::Category(index), bytes));
        let groups = (0..).zip(&self.groups).map(|(index, &bytes)| (Fill::Group(index), bytes));
        categories.chain(groups).filter(|&(_, bytes)| bytes > 0.0)
    }
}

/// An entry of the heatmap's legend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegendEntry {
    /// The color sample.
    pub swatch: LegendSwatch,
    /// The meaning of the sample, such as `pending free` or a group's name.
    pub text: String,
    /// Live bytes in view of a category or group; `None` for other entries. A pixel column with
    /// several blocks counts as its largest block.
    pub bytes: Option<u64>,
}

impl LegendEntry {
    /// Creates an entry without bytes.
    fn new(swatch: LegendSwatch, text: impl Into<String>) -> Self {
        Self { swatch, text: text.into(), bytes: None }
    }
}

/// Returns the legend's entries. `bytes_by_fill` has the live bytes in view; `has_holes` is true if
/// unmapped parts are in view; `badges` are the badges of the segments in view, each once.
pub(super) fn entries(
    content: &HeatmapContent,
    bytes_by_fill: &FillBytes,
    has_holes: bool,
    badges: &[SegmentBadges],
) -> Vec<LegendEntry> {
    let mut entries = match content.color_by {
        ColorBy::State => vec![
            LegendEntry::new(LegendSwatch::Fill(Fill::Allocated), "allocated"),
            LegendEntry::new(LegendSwatch::Rounding(Fill::Allocated), "rounding"),
            LegendEntry::new(LegendSwatch::Fill(Fill::Pending), "pending free"),
        ],
        ColorBy::Category | ColorBy::Site | ColorBy::Module | ColorBy::Stream | ColorBy::Pool => {
            group_entries(content, bytes_by_fill)
        }
        ColorBy::Age | ColorBy::LastChange | ColorBy::Size => scale_entries(content),
    };
    let free = if content.color_by.is_ordered() { LegendSwatch::SubduedFree } else { LegendSwatch::Free };
    entries.push(LegendEntry::new(free, "free in segments"));
    entries.push(LegendEntry::new(LegendSwatch::FreeSegment, "free segment"));
    entries.extend(has_holes.then(|| LegendEntry::new(LegendSwatch::Hole, "unmapped")));
    for badges in badges.iter().filter(|badges| **badges != SegmentBadges::default()) {
        entries.push(LegendEntry::new(LegendSwatch::Badges(*badges), badges.names().join(", ")));
    }
    entries
}

/// Returns the entries of the categories or groups with the most bytes in view, and one for all
/// others.
fn group_entries(content: &HeatmapContent, bytes_by_fill: &FillBytes) -> Vec<LegendEntry> {
    let mut fills: Vec<(Fill, u64)> = bytes_by_fill.iter().map(|(fill, bytes)| (fill, bytes.round() as u64)).collect();
    let order = |fill: Fill| match fill {
        Fill::Category(index) => u32::from(index),
        Fill::Group(index) => index,
        Fill::Allocated | Fill::Pending | Fill::Amount(_) => u32::MAX,
    };
    sort_by_key(&mut fills, |&(fill, bytes)| (std::cmp::Reverse(bytes), order(fill)));
    let others = fills.split_off(fills.len().min(MAX_GROUPS));
    // In a fixed order, so that entries stay at their places while the user scrubs.
    sort_by_key(&mut fills, |&(fill, _)| order(fill));
    let mut entries: Vec<LegendEntry> = fills
        .into_iter()
        .map(|(fill, bytes)| {
            let text = match fill {
                Fill::Category(index) => Category::ALL.get(usize::from(index)).map_or("", |one| one.name()).to_owned(),
                Fill::Group(index) => {
                    content.groups.as_ref().map(|groups| groups.name(content.definitions, index)).unwrap_or_default()
                }
                Fill::Pending => "pending free".to_owned(),
                Fill::Allocated | Fill::Amount(_) => "allocated".to_owned(),
            };
            LegendEntry { swatch: LegendSwatch::Fill(fill), text, bytes: Some(bytes) }
        })
        .collect();
    if !others.is_empty() {
        let bytes = others.iter().map(|&(_, bytes)| bytes).fold(0, u64::saturating_add);
        let text = format!("{} others", Count(others.len() as u64));
        entries.push(LegendEntry { swatch: LegendSwatch::OtherGroups, text, bytes: Some(bytes) });
    }
    entries
}

/// Returns entries for five evenly spaced positions of the color scale, from its first color to its
/// last.
fn scale_entries(content: &HeatmapContent) -> Vec<LegendEntry> {
    let text = |amount: f64| {
        let age = |amount: f64| {
            let age = content.ages.age_at(amount);
            match content.ages.unit {
                AgeUnit::Events if age == 1 => "1 event ago".to_owned(),
                AgeUnit::Events => format!("{} events ago", Count(age)),
                AgeUnit::Time => format!("{} ago", DurationNs(age)),
            }
        };
        match content.color_by {
            ColorBy::Size => ByteSize(size_at(amount)).to_string(),
            ColorBy::LastChange if amount < 1.0 => age(1.0 - amount),
            ColorBy::Age if amount > 0.0 => age(amount),
            _ => "now".to_owned(),
        }
    };
    let amounts = [0.0, 0.25, 0.5, 0.75, 1.0];
    amounts.map(|amount| LegendEntry::new(LegendSwatch::Fill(Fill::amount(amount)), text(amount))).into()
}
