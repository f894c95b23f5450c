//! The views of the page: their names and contents.
//!
//! A view computes its [`ViewContent`] from a [`Context`]: controls, texts and one
//! [`Table`](table::Table), which the page shows and scripts read.

pub mod about;
pub mod address;
pub mod allocations;
pub mod compare;
pub mod events;
pub mod failures;
pub mod flame;
pub mod fragmentation;
pub mod heatmap;
mod kind;
pub mod leaks;
pub mod list;
pub mod memory_table;
pub mod peak;
pub mod segments;
pub mod sites;
pub mod steps;
pub mod temporaries;
pub mod what_if;

pub use kind::ViewKind;
use vramscope_insight::evidence::Evidence;

use crate::comparison::CompareCache;
use crate::view::caches::SharedCaches;
use crate::view::context::{Context, ViewContent, ViewOptions};
use allocations::AllocationsCache;
use flame::FlameCache;
use fragmentation::FragmentationCache;

/// Cached results of all views about a recording.
#[derive(Default)]
pub struct ViewCaches {
    /// Results that several views use.
    pub shared: SharedCaches,
    /// Allocations over time.
    pub allocations: AllocationsCache,
    /// The flame graph.
    pub flame: FlameCache,
    /// Fragmentation over time.
    pub fragmentation: FragmentationCache,
    /// The moments that are compared.
    pub compare: CompareCache,
    /// The recording and the simulated run beside it.
    pub what_if: CompareCache,
}

impl ViewCaches {
    /// Returns the cache of the two compared sides that the picture of a view, "Compare" or "What
    /// if", shows.
    pub fn compared(&mut self, view: ViewKind) -> &mut CompareCache {
        if view == ViewKind::WhatIf { &mut self.what_if } else { &mut self.compare }
    }
}

/// Returns the content of a view beside its picture. A view that is about events says so if the
/// recording has none.
#[must_use]
pub fn content(view: ViewKind, context: &Context<'_>, options: &ViewOptions, caches: &mut ViewCaches) -> ViewContent {
    let shared = &mut caches.shared;
    let recording = context.recording;
    let has_history = recording.end_event() > recording.first_event() || recording.devices().next().is_none();
    let content = match view {
        ViewKind::Heatmap => heatmap::content(context, options, shared),
        ViewKind::Sites => sites::content(context, options, shared),
        ViewKind::Table => memory_table::content(context, options, shared),
        ViewKind::Events => events::content(context, options, shared),
        ViewKind::List => list::content(context, options, shared),
        ViewKind::Address => address::content(context, options, shared),
        ViewKind::Allocations => allocations::content(context, options, shared),
        ViewKind::Flame => flame::content(context, options, shared, &mut caches.flame),
        ViewKind::Fragmentation => fragmentation::content(context, options, shared, &mut caches.fragmentation),
        ViewKind::Failures => failures::content(context, shared),
        ViewKind::Segments => segments::content(context, options, shared),
        ViewKind::Peak => peak::content(context, options, shared),
        ViewKind::Steps => steps::content(context, options, shared),
        ViewKind::Leaks => leaks::content(context, options, shared),
        ViewKind::Temporaries => temporaries::content(context, options, shared),
        ViewKind::Compare => compare::content(context, options, shared, &mut caches.compare),
        ViewKind::WhatIf => what_if::content(context, options, &mut caches.what_if),
        ViewKind::About => about::content(context, shared),
    };
    if has_history || !view.is_about_events() {
        return content;
    }
    let (missing, how_to_record) = (Evidence::History.missing(), Evidence::History.how_to_record());
    let message = format!("Unknown: this recording has {missing}. {how_to_record}");
    // Scripts get the empty table.
    ViewContent { table: content.table, ..ViewContent::message(message) }
}
