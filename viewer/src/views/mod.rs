//! The views of the page: a folder for each, and the list of all.
//!
//! A view's folder has its facts ([`ViewInfo`]), options, cached results, content, picture, pointer
//! input and tests, behind the interface [`View`]. Only `REGISTRY` names the views.

pub mod about;
pub mod address;
pub mod allocations;
pub mod compare;
pub mod events;
pub mod failures;
pub mod flame;
pub mod fragmentation;
pub mod heatmap;
pub mod leaks;
pub mod list;
pub mod memory_table;
pub mod peak;
pub mod segments;
pub mod sites;
pub mod steps;
pub mod temporaries;
pub mod what_if;

use std::any::Any;

use crate::view::{Registered, Topic, View, ViewInfo};

/// All views, in the order in which they are offered. A session begins with the first and the
/// third.
const REGISTRY: [Registration; 18] = [
    of::<heatmap::Heatmap>(),
    of::<allocations::Allocations>(),
    of::<sites::Sites>(),
    of::<memory_table::MemoryTable>(),
    of::<flame::Flame>(),
    of::<fragmentation::Fragmentation>(),
    of::<peak::PeakView>(),
    of::<steps::StepsView>(),
    of::<leaks::Leaks>(),
    of::<temporaries::Temporaries>(),
    of::<events::Events>(),
    of::<list::AllocationList>(),
    of::<address::AddressHistory>(),
    of::<failures::FailuresView>(),
    of::<segments::Segments>(),
    of::<compare::Compare>(),
    of::<what_if::WhatIf>(),
    of::<about::About>(),
];

/// A view in the [`REGISTRY`]: its facts, and how it is created.
struct Registration {
    info: ViewInfo,
    create: fn() -> Box<dyn View>,
}

/// Returns the registration of a view.
const fn of<V: Registered>() -> Registration {
    Registration { info: V::INFO, create: || Box::new(V::default()) }
}

/// A view of the page, by its place in the list of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId(u8);

impl ViewId {
    /// The views in the panes of a new session: left and right.
    pub const FIRST: [Self; 2] = [Self(0), Self(2)];

    /// Iterates over all views, in the order in which they are offered.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..REGISTRY.len() as u8).map(Self)
    }

    /// Returns the facts about the view.
    #[must_use]
    pub fn info(self) -> &'static ViewInfo {
        const { &REGISTRY }.get(usize::from(self.0)).map_or(&REGISTRY[0].info, |one| &one.info)
    }

    /// Returns the name in links, commands and scripts.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// Returns the view with a name.
    ///
    /// # Errors
    /// If there is no such view: a message for the user.
    pub fn named(name: &str) -> Result<Self, String> {
        Self::all().find(|view| view.name() == name).ok_or_else(|| format!("there is no view called {name:?}"))
    }

    /// Returns the view whose rows scripts request by `name`, which may be one of its
    /// [`row_names`](ViewInfo::row_names); `None` for an unknown name.
    #[must_use]
    pub fn for_rows(name: &str) -> Option<Self> {
        let has_alias = |view: &Self| view.info().row_names.contains(&name);
        Self::all().find(has_alias).or_else(|| Self::named(name).ok())
    }

    /// Returns the view that answers a question.
    ///
    /// # Panics
    /// If no view answers it; a test finds out.
    #[must_use]
    pub fn about(topic: Topic) -> Self {
        Self::all().find(|view| view.info().topic == Some(topic)).expect("a view for each topic")
    }
}

/// The views of a session, each with its options and results.
pub struct Views(Vec<Box<dyn View>>);

impl Default for Views {
    fn default() -> Self {
        Self(REGISTRY.iter().map(|one| (one.create)()).collect())
    }
}

impl Views {
    /// Returns a view.
    #[must_use]
    pub fn get(&self, view: ViewId) -> &dyn View {
        &*self.0[usize::from(view.0)]
    }

    /// Returns a view mutably.
    pub fn get_mut(&mut self, view: ViewId) -> &mut dyn View {
        &mut *self.0[usize::from(view.0)]
    }

    /// Returns the view of a type; `None` if there is no such view.
    #[must_use]
    pub fn of_type<V: View>(&self) -> Option<&V> {
        self.0.iter().find_map(|view| (&**view as &dyn Any).downcast_ref())
    }

    /// Iterates over all views mutably.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn View>> {
        self.0.iter_mut()
    }

    /// Iterates over all views.
    pub fn iter(&self) -> impl Iterator<Item = &dyn View> {
        self.0.iter().map(|view| &**view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_topics_identify_views() {
        for view in ViewId::all() {
            assert_eq!(ViewId::named(view.name()), Ok(view));
            if let Some(topic) = view.info().topic {
                assert_eq!(ViewId::about(topic), view);
            }
        }
        assert!(ViewId::named("nothing").is_err());
    }
}
