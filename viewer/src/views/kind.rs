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

impl ViewKind {
    /// All views, in the order in which they are offered.
    pub const ALL: [Self; 18] = [
        Self::Heatmap,
        Self::Allocations,
        Self::Sites,
        Self::Table,
        Self::Flame,
        Self::Fragmentation,
        Self::Peak,
        Self::Steps,
        Self::Leaks,
        Self::Temporaries,
        Self::Events,
        Self::List,
        Self::Address,
        Self::Failures,
        Self::Segments,
        Self::Compare,
        Self::WhatIf,
        Self::About,
    ];

    /// Returns true for a view with a filter of single allocations or events, which a search uses.
    #[must_use]
    pub const fn is_searched(self) -> bool {
        matches!(self, Self::List | Self::Events | Self::Address)
    }

    /// Returns the name in links, commands and scripts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Heatmap => "heatmap",
            Self::Allocations => "allocations",
            Self::Sites => "sites",
            Self::Table => "table",
            Self::Flame => "flame",
            Self::Fragmentation => "fragmentation",
            Self::Peak => "peak",
            Self::Steps => "steps",
            Self::Leaks => "leaks",
            Self::Temporaries => "temporaries",
            Self::Events => "events",
            Self::List => "list",
            Self::Address => "address",
            Self::Failures => "failures",
            Self::Segments => "segments",
            Self::Compare => "compare",
            Self::WhatIf => "whatif",
            Self::About => "about",
        }
    }

    /// Returns the view with this [`name`](Self::name), or `None`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.name() == name)
    }

    /// Returns the view whose rows scripts get under a name: that of the view, or another name of
    /// what it lists.
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
        match self {
            Self::Heatmap => "Heatmap",
            Self::Allocations => "Allocations over time",
            Self::Sites => "Who holds it",
            Self::Table => "Memory table",
            Self::Flame => "Flame graph",
            Self::Fragmentation => "Fragmentation",
            Self::Peak => "Peak",
            Self::Steps => "Steps",
            Self::Leaks => "Leaks and growth",
            Self::Temporaries => "Temporaries",
            Self::Events => "Events",
            Self::List => "List of allocations",
            Self::Address => "Address history",
            Self::Failures => "Out of memory",
            Self::Segments => "Pools and segments",
            Self::Compare => "Compare",
            Self::WhatIf => "What if",
            Self::About => "About",
        }
    }

    /// Returns true if the view needs the lifetimes of the whole recording.
    #[must_use]
    pub const fn needs_history(self) -> bool {
        !matches!(
            self,
            Self::Heatmap | Self::Sites | Self::Flame | Self::Failures | Self::Segments | Self::WhatIf | Self::About
        )
    }

    /// Returns a description of the view's picture, for screen readers; `None` if the view has no
    /// picture.
    #[must_use]
    pub const fn picture_label(self) -> Option<&'static str> {
        match self {
            Self::Heatmap => Some("One row per segment, every block at its address"),
            Self::Allocations => Some("Every allocation as a band over time"),
            Self::Flame => Some("Bytes by call stack, or by group"),
            Self::Fragmentation => Some("Free memory and its fragmentation over time"),
            Self::WhatIf => Some("Allocated and reserved bytes, recorded and simulated, over time, and both heatmaps"),
            Self::Compare => Some("Allocated and reserved bytes of both sides over time, and their heatmaps"),
            _ => None,
        }
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
