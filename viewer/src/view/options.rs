//! The options of views: grouping, variant, order, filter, number, and the rows in view.

use vramscope_insight::group::GroupBy;
use vramscope_insight::query::Query;

use crate::command::OptionChange;
use crate::link::PaneLink;

/// Number of rows of a long list that are computed before the page has reported how many it shows.
const FIRST_ROWS: u64 = 100;

/// The variants of a view, such as the layouts of a picture.
pub trait ViewMode: Clone + PartialEq + 'static {
    /// Returns the variant with a name in commands and links, or `None`.
    fn from_name(name: &str) -> Option<Self>;

    /// Returns the name in commands and links.
    fn name(&self) -> String;
}

/// A view without variants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoMode {}

impl ViewMode for NoMode {
    fn from_name(_: &str) -> Option<Self> {
        None
    }

    fn name(&self) -> String {
        match *self {}
    }
}

/// Defines the variants of a view: for each its name in commands and links, and its text in the
/// menu.
macro_rules! modes {
    ($(#[$doc:meta])* $mode:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal, $text:literal;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $mode { $($(#[$variant_doc])* $variant),+ }

        impl $mode {
            /// All variants, with their names and their texts in the menu.
            pub(super) const MENU: &[(Self, &'static str, &'static str)] = &[$((Self::$variant, $name, $text)),+];
        }

        impl $crate::view::ViewMode for $mode {
            fn from_name(name: &str) -> Option<Self> {
                Self::MENU.iter().find(|(_, known, _)| *known == name).map(|(mode, ..)| *mode)
            }

            fn name(&self) -> String {
                let entry = Self::MENU.iter().find(|(mode, ..)| mode == self);
                entry.map(|(_, name, _)| (*name).to_owned()).unwrap_or_default()
            }
        }
    };
}
pub(crate) use modes;

/// The options of a view whose variants are `M`: how it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Options<M = NoMode> {
    /// Grouping of its rows; `None` for the view's default.
    pub by: Option<GroupBy>,
    /// The view's variant; `None` for the default.
    pub mode: Option<M>,
    /// Name of the column to sort by, and whether the largest comes first; `None` for the default.
    pub sort: Option<(String, bool)>,
    /// The filter as typed.
    pub filter: String,
    /// A number that the view's controls set, such as the length of a temporary's life.
    pub number: Option<u64>,
    /// The rows to compute.
    pub rows: RowWindow,
}

impl<M> Default for Options<M> {
    fn default() -> Self {
        Self { by: None, mode: None, sort: None, filter: String::new(), number: None, rows: RowWindow::default() }
    }
}

/// The rows of a long list to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowWindow {
    /// The first row in view, and the number of rows.
    pub in_view: (u64, u64),
    /// Most rows to compute if all are wanted, by scripts; `None` on the page, which computes the
    /// rows in view.
    pub limit: Option<u64>,
}

impl RowWindow {
    /// Returns the first row to compute and the number of rows.
    #[must_use]
    pub fn window(self) -> (u64, u64) {
        match (self.limit, self.in_view) {
            (Some(limit), _) => (0, limit),
            (None, (first, 0)) => (first, FIRST_ROWS),
            (None, rows) => rows,
        }
    }
}

impl<M> Options<M> {
    /// Parses the view's filter.
    ///
    /// # Errors
    /// If the filter is invalid: a message for the user.
    pub fn query(&self) -> Result<Query, String> {
        Query::parse(&self.filter).map_err(|error| error.to_string())
    }

    /// Returns true if the rows are for a script, which gets all of them.
    pub fn is_for_script(&self) -> bool {
        self.rows.limit.is_some()
    }
}

/// The options of any view, as links and commands state them.
pub trait StoredOptions {
    /// Returns the options as a pane of a link to the view called `view`.
    fn pane_link(&self, view: &'static str) -> PaneLink;

    /// Sets the options to those of a link's pane; options that it omits get their defaults.
    /// Returns true if they have changed.
    fn open(&mut self, pane: &PaneLink) -> bool;

    /// Changes an option.
    ///
    /// # Errors
    /// If the view has no such variant or order: a message for the user.
    fn change(&mut self, change: OptionChange) -> Result<(), String>;

    /// Returns the filter as typed.
    fn filter(&self) -> &str;

    /// Returns the rows to compute, mutably.
    fn rows(&mut self) -> &mut RowWindow;
}

impl<M: ViewMode> StoredOptions for Options<M> {
    fn pane_link(&self, view: &'static str) -> PaneLink {
        PaneLink {
            view: view.to_owned(),
            by: self.by,
            mode: self.mode.as_ref().map(M::name),
            sort: self.sort.clone(),
            filter: self.filter.clone(),
            number: self.number,
        }
    }

    fn open(&mut self, pane: &PaneLink) -> bool {
        let options = Self {
            by: pane.by,
            mode: pane.mode.as_deref().and_then(M::from_name),
            sort: pane.sort.clone(),
            filter: pane.filter.clone(),
            number: pane.number,
            rows: self.rows,
        };
        let has_changed = *self != options;
        *self = options;
        has_changed
    }

    fn change(&mut self, change: OptionChange) -> Result<(), String> {
        match change {
            OptionChange::By(by) => self.by = Some(by),
            OptionChange::Mode(mode) => {
                self.mode = Some(M::from_name(&mode).ok_or_else(|| format!("the view has no mode {mode:?}"))?);
            }
            OptionChange::Filter(filter) => self.filter = filter,
            OptionChange::Number(number) => self.number = number,
            OptionChange::Sort(column) => {
                let is_descending = self.sort.as_ref().is_none_or(|(by, order)| *by != column || !order);
                self.sort = Some((column, is_descending));
            }
        }
        Ok(())
    }

    fn filter(&self) -> &str {
        &self.filter
    }

    fn rows(&mut self) -> &mut RowWindow {
        &mut self.rows
    }
}
