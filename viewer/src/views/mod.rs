//! The views of the page: a folder for each, and the list of all.
//!
//! A view's folder has its facts ([`ViewInfo`]), options, cached results, content, picture, pointer
//! input and tests, behind the interface [`View`]. Only `REGISTRY` names the views.

pub mod about;
pub mod address;
pub mod allocations;
pub mod compare;
pub mod device;
pub mod events;
pub mod failures;
pub mod flame;
pub mod fragmentation;
pub mod leaks;
pub mod lifetimes;
pub mod list;
pub mod memory_table;
pub mod peak;
pub mod segments;
pub mod sites;
pub mod steps;
pub mod temporaries;
pub mod what_if;

use std::any::Any;

use crate::later::is_loaded;
use crate::view::{Registered, Topic, View, ViewInfo};

/// All views, in the order in which they are offered. A session shows the `first` views; the page
/// loads what the `later` ones compute and draw [after](crate::later) its first picture.
static REGISTRY: &[Registration] = &[
    first::<device::Device>(),
    later::<allocations::Allocations>(),
    first::<sites::Sites>(),
    later::<memory_table::MemoryTable>(),
    later::<flame::Flame>(),
    later::<fragmentation::Fragmentation>(),
    later::<peak::PeakView>(),
    later::<steps::StepsView>(),
    later::<leaks::Leaks>(),
    later::<temporaries::Temporaries>(),
    later::<lifetimes::Lifetimes>(),
    later::<events::Events>(),
    later::<list::AllocationList>(),
    later::<address::AddressHistory>(),
    later::<failures::FailuresView>(),
    later::<segments::Segments>(),
    later::<compare::Compare>(),
    later::<what_if::WhatIf>(),
    later::<about::About>(),
];

/// Names of views in links and scripts of former versions, and the present ones.
const FORMER_NAMES: [(&str, &str); 1] = [("heatmap", "device")];

/// A view in the [`REGISTRY`]: its facts, and how it is created.
struct Registration {
    info: ViewInfo,
    create: fn() -> Box<dyn View>,
    is_first: bool,
}

/// Returns the registration of a view that a new session shows.
const fn first<V: Registered>() -> Registration {
    Registration { is_first: true, ..later::<V>() }
}

/// Returns the registration of any other view.
const fn later<V: Registered>() -> Registration {
    Registration { info: V::INFO, create: || Box::new(V::default()), is_first: false }
}

/// A view of the page, by its place in the list of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId(u8);

impl ViewId {
    /// Returns the views in the panes of a new session: left and right.
    ///
    /// # Panics
    /// If the registry has fewer `first` views; a test finds out.
    pub fn first() -> [Self; 2] {
        let mut first = Self::all().filter(|view| view.is_first());
        [(); 2].map(|()| first.next().expect("two first views"))
    }

    /// Returns true if the view is one of the [`first`](Self::first).
    #[must_use]
    pub fn is_first(self) -> bool {
        REGISTRY[usize::from(self.0)].is_first
    }

    /// Iterates over all views, in the order in which they are offered.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..REGISTRY.len() as u8).map(Self)
    }

    /// Returns true if the view can compute and draw; see [`later`](crate::later).
    #[must_use]
    pub fn is_loaded(self) -> bool {
        self.is_first() || is_loaded()
    }

    /// Returns the facts about the view.
    #[must_use]
    pub fn info(self) -> &'static ViewInfo {
        &REGISTRY[usize::from(self.0)].info
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
        let name = FORMER_NAMES.iter().find(|(former, _)| *former == name).map_or(name, |(_, name)| name);
        Self::all().find(|view| view.name() == name).ok_or_else(|| format!("there is no view called {name:?}"))
    }

    /// Returns the view whose rows scripts request by `name`, which may be one of its
    /// [`row_names`](ViewInfo::row_names); `None` for an unknown name.
    pub fn for_rows(name: &str) -> Option<Self> {
        let has_alias = |view: &Self| view.info().row_names.contains(&name);
        Self::all().find(has_alias).or_else(|| Self::named(name).ok())
    }

    /// Returns the view that answers a question.
    ///
    /// # Panics
    /// If no view answers it; a test finds out.
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
    pub fn get(&self, view: ViewId) -> &dyn View {
        &*self.0[usize::from(view.0)]
    }

    /// Returns a view mutably.
    pub fn get_mut(&mut self, view: ViewId) -> &mut dyn View {
        &mut *self.0[usize::from(view.0)]
    }

    /// Returns the view of a type; `None` if there is no such view.
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
        let [left, right] = ViewId::first();
        assert_ne!(left, right);
        for view in ViewId::all() {
            assert_eq!(ViewId::named(view.name()), Ok(view));
            if let Some(topic) = view.info().topic {
                assert_eq!(ViewId::about(topic), view);
            }
        }
        assert!(ViewId::named("nothing").is_err());
    }
}
