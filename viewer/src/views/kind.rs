//! The names of the views.

/// A view that a pane can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ViewKind {
    /// Every segment as a row, every block at its address.
    Heatmap,
    /// Every allocation as a band over time, stacked or by address.
    Allocations,
    /// Live bytes by site, as a table.
    Sites,
    /// Live bytes, peaks and allocations by group, and the memory around phases and spans.
    Table,
    /// Live bytes as a flame graph of call stacks or groups.
    Flame,
    /// Fragmentation and free memory over time.
    Fragmentation,
    /// The composition of the peak.
    Peak,
    /// The steps of a training run side by side.
    Steps,
    /// Allocations of a range that are never freed.
    Leaks,
    /// Allocations that are freed soon.
    Temporaries,
    /// All events.
    Events,
    /// All allocations.
    List,
    /// Every allocation that used an address.
    Address,
    /// Out-of-memory errors.
    Failures,
    /// Pools and segments.
    Segments,
    /// Two recordings or moments.
    Compare,
    /// The recorded requests under other allocator settings.
    WhatIf,
    /// Program, versions, settings and counters.
    About,
}

/// The views with their names, titles, and the descriptions of their pictures for screen readers.
const VIEWS: [(ViewKind, &str, &str, Option<&str>); 18] = [
    (ViewKind::Heatmap, "heatmap", "Heatmap", Some("One row per segment, every block at its address")),
    (ViewKind::Allocations, "allocations", "Allocations over time", Some("Every allocation as a band over time")),
    (ViewKind::Sites, "sites", "Who holds it", None),
    (ViewKind::Table, "table", "Memory table", None),
    (ViewKind::Flame, "flame", "Flame graph", Some("Bytes by call stack, or by group")),
    (ViewKind::Fragmentation, "fragmentation", "Fragmentation", Some("Free memory and its fragmentation over time")),
    (ViewKind::Peak, "peak", "Peak", None),
    (ViewKind::Steps, "steps", "Steps", None),
    (ViewKind::Leaks, "leaks", "Leaks and growth", None),
    (ViewKind::Temporaries, "temporaries", "Temporaries", None),
    (ViewKind::Events, "events", "Events", None),
    (ViewKind::List, "list", "List of allocations", None),
    (ViewKind::Address, "address", "Address history", None),
    (ViewKind::Failures, "failures", "Out of memory", None),
    (ViewKind::Segments, "segments", "Pools and segments", None),
    (
        ViewKind::Compare,
        "compare",
        "Compare",
        Some("Allocated and reserved bytes of both sides over time, and their heatmaps"),
    ),
    (
        ViewKind::WhatIf,
        "whatif",
        "What if",
        Some("Allocated and reserved bytes, recorded and simulated, over time, and both heatmaps"),
    ),
    (ViewKind::About, "about", "About", None),
];

impl ViewKind {
    /// All views, in the order in which they are offered.
    pub const ALL: [Self; VIEWS.len()] = {
        let (mut all, mut index) = ([Self::Heatmap; VIEWS.len()], 0);
        while index < all.len() {
            all[index] = VIEWS[index].0;
            assert!(all[index] as usize == index, "the views stand in the order of their declaration");
            index += 1;
        }
        all
    };

    /// Returns true for a view whose filter selects single allocations or events; the page's search
    /// uses it.
    #[must_use]
    pub const fn is_searched(self) -> bool {
        matches!(self, Self::List | Self::Events | Self::Address)
    }

    /// Returns the name in links, commands and scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        VIEWS[self as usize].1
    }

    /// Returns the view with this [`name`](Self::name), or `None`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.name() == name)
    }

    /// Returns the view whose rows scripts request by `name`: the name of the view, or an alias
    /// such as `allocations`. `None` for an unknown name.
    #[must_use]
    pub fn for_rows(name: &str) -> Option<Self> {
        match name {
            "allocations" => Some(Self::List),
            "ooms" => Some(Self::Failures),
            "metrics" => Some(Self::Fragmentation),
            _ => Self::from_name(name),
        }
    }

    /// Returns the title in the pane's header.
    #[must_use]
    pub const fn title(self) -> &'static str {
        VIEWS[self as usize].2
    }

    /// Returns true if the view needs the lifetimes of the whole recording.
    #[must_use]
    pub const fn needs_history(self) -> bool {
        !matches!(
            self,
            Self::Heatmap | Self::Sites | Self::Flame | Self::Failures | Self::Segments | Self::WhatIf | Self::About
        )
    }

    /// Returns true if the view shows nothing that a memory state without events has.
    #[must_use]
    pub const fn is_about_events(self) -> bool {
        matches!(
            self,
            Self::Events | Self::Failures | Self::Leaks | Self::Peak | Self::Steps | Self::Temporaries | Self::WhatIf
        )
    }

    /// Returns a description of the view's picture, for screen readers; `None` if the view has no
    /// picture.
    #[must_use]
    pub const fn picture_label(self) -> Option<&'static str> {
        VIEWS[self as usize].3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_identify_views() {
        for view in ViewKind::ALL {
            assert_eq!(ViewKind::from_name(view.name()), Some(view));
        }
        assert_eq!(ViewKind::from_name("nothing"), None);
    }
}
