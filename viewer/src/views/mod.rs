//! The views of the page: their names and contents.
//!
//! A view computes its [`ViewContent`] from a [`Context`]: controls, texts and one
//! [`Table`](table::Table), which the page shows and scripts read.

pub mod about;
pub mod address;
pub mod allocations;
pub mod caches;
pub mod compare;
pub mod computed;
pub mod context;
pub mod controls;
pub mod details;
pub mod events;
pub mod failures;
pub mod findings;
pub mod fit;
pub mod flame;
mod flame_cache;
pub mod fragmentation;
mod fragmentation_cache;
pub mod groups;
pub mod heatmap;
mod kind;
pub mod leaks;
pub mod list;
pub mod memory_table;
pub mod peak;
pub mod searches;
pub mod segments;
pub mod sites;
pub(crate) mod small_map;
pub mod steps;
pub mod table;
pub mod temporaries;
pub mod what_if;

pub use kind::ViewKind;

use caches::Caches;
use context::{Context, ViewContent, ViewOptions};

/// Returns the content of a view beside its picture.
#[must_use]
pub fn content(view: ViewKind, context: &Context<'_>, options: &ViewOptions, caches: &mut Caches) -> ViewContent {
    match view {
        ViewKind::Heatmap => heatmap::content(context, options, caches),
        ViewKind::Sites => sites::content(context, options, caches),
        ViewKind::Table => memory_table::content(context, options, caches),
        ViewKind::Events => events::content(context, options, caches),
        ViewKind::List => list::content(context, options, caches),
        ViewKind::Address => address::content(context, options, caches),
        ViewKind::Allocations => allocations::content(context, options, caches),
        ViewKind::Flame => flame::content(context, options, caches),
        ViewKind::Fragmentation => fragmentation::content(context, options, caches),
        ViewKind::Failures => failures::content(context, caches),
        ViewKind::Segments => segments::content(context, options, caches),
        ViewKind::Peak => peak::content(context, options, caches),
        ViewKind::Steps => steps::content(context, options, caches),
        ViewKind::Leaks => leaks::content(context, options, caches),
        ViewKind::Temporaries => temporaries::content(context, options, caches),
        ViewKind::Compare => compare::content(context, options, caches),
        ViewKind::WhatIf => what_if::content(context, options, caches),
        ViewKind::About => about::content(context, caches),
    }
}
