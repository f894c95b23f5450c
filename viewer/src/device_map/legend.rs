//! The map's legend: what each color stands for, and how many bytes of the whole device have it.

use std::cmp::Reverse;

use vramscope_draw::Theme;
use vramscope_insight::pools::PartKind;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{ByteSize, Category, Count, DurationNs};

use super::block_colors::{AgeUnit, ColorBy, Fill, MapContent, size_at};
use super::memory_kind::{KindBytes, MemoryKind, STUCK_LEVELS};
use super::memory_line::MemoryLine;
use super::style::KindStyle;
use crate::linked_memory::LinkedMemory;

/// Maximum number of groups with an entry of their own in the legend; all others share one entry.
const MAX_GROUPS: usize = 10;
/// The first level of stuck memory into which most of the requested memory does not fit.
const FIRST_UNFIT_LEVEL: u8 = STUCK_LEVELS / 2;

/// A color sample in the map's legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegendSwatch {
    /// A kind of memory.
    Kind(MemoryKind),
    /// All groups without an entry of their own.
    OtherGroups,
}

impl LegendSwatch {
    /// Returns the sample's color and strokes in a theme.
    #[must_use]
    pub fn style(self, theme: &Theme) -> KindStyle {
        match self {
            Self::Kind(kind) => KindStyle::new(kind, theme),
            Self::OtherGroups => KindStyle::plain(theme.faint),
        }
    }
}

/// An entry of the map's legend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegendEntry {
    /// The color sample.
    pub swatch: LegendSwatch,
    /// The meaning of the sample, such as `pending free` or a group's name.
    pub text: String,
    /// Bytes of the whole device; `None` for entries of a color scale.
    pub bytes: Option<u64>,
    /// The memory that the entry stands for; `None` if no single name stands for it.
    pub memory: Option<LinkedMemory>,
}

/// Returns the legend's entries: blocks, free memory and other owners.
#[must_use]
pub fn legend(content: &MapContent<'_>, line: &MemoryLine) -> Vec<LegendEntry> {
    let bytes = line.bytes();
    let of = |kind: MemoryKind, text: &str, bytes: u64| LegendEntry {
        swatch: LegendSwatch::Kind(kind),
        text: text.to_owned(),
        bytes: Some(bytes),
        memory: linked_memory(content, kind),
    };
    let mut entries = match content.color_by {
        ColorBy::State => vec![
            of(MemoryKind::Live(Fill::Allocated), "allocated", bytes.of_fill(Fill::Allocated)),
            of(MemoryKind::Live(Fill::Pending), "pending free", bytes.of_fill(Fill::Pending)),
        ],
        ColorBy::Category | ColorBy::Site | ColorBy::Module | ColorBy::Stream | ColorBy::Pool => {
            group_entries(content, bytes)
        }
        ColorBy::Age | ColorBy::LastChange | ColorBy::Size => scale_entries(content),
    };
    let levels = |levels: std::ops::Range<u8>| levels.map(|level| bytes.of(MemoryKind::Stuck(level))).sum();
    let (usable, stuck) = (levels(0..FIRST_UNFIT_LEVEL), levels(FIRST_UNFIT_LEVEL..STUCK_LEVELS));
    let rounding =
        bytes.iter().filter(|(kind, _)| matches!(kind, MemoryKind::Rounding(_))).map(|(_, bytes)| bytes).sum();
    // Rounding is a part of the blocks' bytes; colors by state show it apart.
    if content.color_by == ColorBy::State && rounding > 0 {
        entries.push(of(MemoryKind::Rounding(Fill::Allocated), "of which rounding", rounding));
    }
    let plain = |kind: MemoryKind| of(kind, kind.name(), bytes.of(kind));
    let free = [
        of(MemoryKind::MOST_STUCK, "stuck: most requests do not fit", stuck),
        of(MemoryKind::Stuck(0), "stuck: most requests fit", usable),
        plain(MemoryKind::Releasable),
        plain(MemoryKind::Outside),
        plain(MemoryKind::Others),
        plain(MemoryKind::Unknown),
        plain(MemoryKind::DriverFree),
    ];
    entries.extend(free.into_iter().filter(|one| one.bytes.is_some_and(|bytes| bytes > 0)));
    entries
}

/// Returns the memory that a kind of memory is, or is a part of.
fn linked_memory(content: &MapContent<'_>, kind: MemoryKind) -> Option<LinkedMemory> {
    let part = match kind {
        MemoryKind::Live(Fill::Category(index)) => PartKind::Category(*Category::ALL.get(usize::from(index))?),
        MemoryKind::Live(Fill::Group(index)) => {
            let group = content.groups.as_ref()?.group_at(index)?;
            return Some(LinkedMemory::Group(content.color_by.group_by()?, group));
        }
        MemoryKind::Stuck(_) => PartKind::Stuck,
        MemoryKind::Releasable => PartKind::Releasable,
        MemoryKind::Outside => PartKind::Outside,
        MemoryKind::Others => PartKind::OtherProcesses,
        MemoryKind::DriverFree => PartKind::Free,
        MemoryKind::Unknown => PartKind::Unknown,
        MemoryKind::Live(_) | MemoryKind::Rounding(_) => return None,
    };
    Some(LinkedMemory::Part(part))
}

/// Returns the entries of the categories or groups with the most bytes, and one for all others.
fn group_entries(content: &MapContent<'_>, bytes: &KindBytes) -> Vec<LegendEntry> {
    let mut fills: Vec<(Fill, u64)> = Vec::new();
    for (kind, more) in bytes.iter() {
        let (MemoryKind::Live(fill) | MemoryKind::Rounding(fill)) = kind else { continue };
        match fills.last_mut().filter(|(known, _)| *known == fill) {
            Some((_, sum)) => *sum += more,
            None => fills.push((fill, more)),
        }
    }
    sort_by_key(&mut fills, |&(fill, bytes)| (Reverse(bytes), fill.number()));
    let others = fills.split_off(fills.len().min(MAX_GROUPS));
    let others = others.iter().map(|&(_, bytes)| bytes).fold(0, u64::saturating_add);
    // In a fixed order, so that entries stay at their places while the user scrubs.
    sort_by_key(&mut fills, |&(fill, _)| fill.number());
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
            let kind = MemoryKind::Live(fill);
            let memory = linked_memory(content, kind);
            LegendEntry { swatch: LegendSwatch::Kind(kind), text, bytes: Some(bytes), memory }
        })
        .collect();
    if others > 0 {
        let (swatch, text) = (LegendSwatch::OtherGroups, "others".to_owned());
        entries.push(LegendEntry { swatch, text, bytes: Some(others), memory: None });
    }
    entries
}

/// Returns entries for five evenly spaced positions of the color scale, from its first color to its
/// last.
fn scale_entries(content: &MapContent<'_>) -> Vec<LegendEntry> {
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
    let entry = |amount: f64| {
        let swatch = LegendSwatch::Kind(MemoryKind::Live(Fill::amount(amount)));
        LegendEntry { swatch, text: text(amount), bytes: None, memory: None }
    };
    [0.0, 0.25, 0.5, 0.75, 1.0].map(entry).into()
}
