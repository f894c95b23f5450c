//! The interface of views, and what several views use: inputs, options, controls, tables, pictures
//! and cached results.
//!
//! A [`View`] is what a pane shows. Each is one folder of [`views`](crate::views), which alone
//! knows its options, its cached results and its picture; the session calls it only through this
//! interface.

mod allocation_table;
mod caches;
mod context;
mod controls;
mod filters;
pub(crate) mod fit;
mod groups;
mod kept_in_view;
mod lit_blocks;
mod options;
mod picture;
mod table;
mod table_builder;

use std::any::Any;

use vramscope_draw::{Canvas, MomentAxis, Theme};
use vramscope_insight::events::MatchSearch;
use vramscope_trace::{DeviceId, DeviceState, FormatError};

use crate::command::{Command, Direction};
use crate::device_map::{ColorBy, Hit};
use crate::jobs::{Job, Jobs};
use crate::link::Link;
use crate::linked_memory::LinkedMemory;

pub(crate) use allocation_table::{
    FoundTable, ROWS_PER_FRAME, SORT_COLUMNS, allocation_category, cell_or_empty, is_selected, live_allocations,
    order_of, select_command, site_grouping, stream_cell, table_of,
};
pub use caches::SharedCaches;
pub use context::{Context, ViewContent};
pub(crate) use controls::{
    category_cell, choice, event_link, filter_field, group_choice, group_title, linked_item, mode_choice, number_field,
    parse_filter, progress_text, search_field, select,
};
pub use filters::ShownFilter;
pub(crate) use filters::{depends_on_moment, shown_filter, step_starts};
pub(crate) use groups::{group_called, group_styles, paint_groups};
pub use kept_in_view::KeptInView;
pub(crate) use lit_blocks::{LitBlocks, memory_of};
pub(crate) use options::modes;
pub use options::{NoMode, Options, RowWindow, StoredOptions, ViewMode};
pub use picture::{PictureFrame, PictureInput};
pub(crate) use picture::{PictureKey, QUIET_FRAMES};
pub use table::{Cell, Column, ColumnWidth, Row, Sorting, Table};
pub(crate) use table_builder::{TableBuilder, group_cell, growth_cell};

/// A question that a view answers; commands and findings show the view that answers theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Which allocations are there?
    Allocations,
    /// What happened?
    Events,
    /// Which allocations used an address?
    AddressUses,
    /// Who holds the live bytes?
    Holders,
    /// What makes up the peak of the allocated bytes?
    Peak,
    /// Why did requests fail?
    Failures,
    /// What grows, and what is never freed?
    Growth,
    /// What is freed soon?
    Temporaries,
    /// How does fragmentation develop?
    Fragmentation,
    /// What do pools hold?
    Pools,
    /// What differs between two recordings, devices or moments?
    Comparison,
    /// What would other allocator settings do?
    Settings,
}

/// The facts about a view that do not change.
#[derive(Clone, Copy, Debug)]
pub struct ViewInfo {
    /// Name in links, commands and scripts.
    pub name: &'static str,
    /// Title in the pane's header.
    pub title: &'static str,
    /// The command that shows the view: its description, and its keys.
    pub command: (&'static str, &'static [&'static str]),
    /// Description of the view's picture, for screen readers; `None` for a view without a picture.
    pub picture_label: Option<&'static str>,
    /// Whether the view needs the lifetimes of the whole recording.
    pub needs_history: bool,
    /// Whether the view shows nothing that a memory state without events has.
    pub is_about_events: bool,
    /// The question that the view answers, if a command or a finding leads to it.
    pub topic: Option<Topic>,
    /// Further names by which scripts request the view's rows.
    pub row_names: &'static [&'static str],
    /// Whether the view's filter selects single allocations or events; the page's search uses it.
    pub is_searched: bool,
    /// Whether pictures outline the blocks that match the view's filter.
    pub outlines_matches: bool,
}

impl ViewInfo {
    /// Creates the facts about a view without a picture that needs only the moment's memory state.
    pub const fn new(
        name: &'static str,
        title: &'static str,
        command: (&'static str, &'static [&'static str]),
    ) -> Self {
        Self {
            name,
            title,
            command,
            picture_label: None,
            needs_history: false,
            is_about_events: false,
            topic: None,
            row_names: &[],
            is_searched: false,
            outlines_matches: false,
        }
    }
}

/// A pixel of a picture: columns and rows from its upper left corner.
pub type Pixel = (i32, i32);

/// The moment on the screen and the selected range of moments, as event numbers.
pub type ShownMoment = (u64, Option<(u64, u64)>);

/// A view with its options, its cached results and its picture.
///
/// Only [`options`](Self::options) and [`content`](Self::content) are required. Coordinates are
/// pixels from the upper left corner of the view's picture.
pub trait View: Any {
    /// Returns the view's options.
    fn options(&mut self) -> &mut dyn StoredOptions;

    /// Returns the content beside the picture: controls, legend, texts and the table.
    fn content(&mut self, context: &Context<'_>, shared: &mut SharedCaches) -> ViewContent;

    /// Returns the rows that scripts request by `name`: the view's name or one of its
    /// [`row_names`](ViewInfo::row_names). `None` for the table of the view's content.
    fn rows(&mut self, _name: &str, _context: &Context<'_>, _shared: &mut SharedCaches) -> Option<Table> {
        None
    }

    /// Forgets all results about the recording, because another one is shown.
    fn forget(&mut self) {}

    /// Returns true if the view with its present options needs the lifetimes of the whole
    /// recording, although its kind does not.
    fn wants_history(&self) -> bool {
        false
    }

    /// Continues computations, while a pane shows the view, by about `max_events` events.
    ///
    /// # Errors
    /// If the recording cannot be read.
    fn work(
        &mut self,
        _context: &Context<'_>,
        _shared: &mut SharedCaches,
        _max_events: u64,
    ) -> Result<Work, FormatError> {
        Ok(Work::default())
    }

    /// Returns the computation over the whole recording that the view waits for, if any.
    fn wanted_job(&self, _device: DeviceId, _jobs: &Jobs) -> Option<Job> {
        None
    }

    /// Sets a setting of the simulated allocator; `recorded` are the recorded settings.
    ///
    /// # Errors
    /// If the value is invalid: a message for the user.
    fn set_setting(&mut self, _key: &str, _value: &str, _recorded: &str, _jobs: &mut Jobs) -> Result<(), String> {
        Ok(())
    }

    /// Returns the row that the view's long list keeps in view; `None` without such a list.
    fn kept_row(&mut self) -> Option<&mut KeptInView> {
        None
    }

    /// Scrolls the view's list to its first row, because its rows have changed; a list that follows
    /// the moment on the screen scrolls to the moment's row instead.
    fn rows_changed(&mut self) {
        self.options().rows().in_view.0 = 0;
        if let Some(row) = self.kept_row() {
            row.resume();
        }
    }

    /// Continues the search for the next or previous event that matches the view's filter.
    ///
    /// # Errors
    /// If the filter is invalid, or events cannot be read: a message for the user.
    fn find_match(
        &mut self,
        _context: &Context<'_>,
        _shared: &mut SharedCaches,
        _direction: Direction,
    ) -> Result<MatchSearch, String> {
        Ok(MatchSearch::NotFound)
    }

    /// Reacts to another grouping of the view's rows.
    fn regrouped(&mut self) {}

    /// Returns true if the view can use a typed filter; else the list of allocations gets it.
    fn accepts_filter(&self, _filter: &str) -> bool {
        true
    }

    /// Clears what the user has selected within the view. Returns false if there is nothing to
    /// clear.
    fn deselect(&mut self) -> bool {
        false
    }

    /// Adds the options that links state apart from panes.
    fn add_to_link(&self, _link: &mut Link) {}

    /// Sets the options that links state apart from panes; with `is_complete`, options that the
    /// link omits get their defaults.
    fn open_link(&mut self, _link: &Link, _is_complete: bool) {}

    /// Computes the picture if its inputs have changed. Returns true if the picture's base (without
    /// cursor and highlights) must be drawn again.
    fn update_picture(
        &mut self,
        _context: &Context<'_>,
        _shared: &mut SharedCaches,
        _frame: &PictureFrame<'_>,
    ) -> bool {
        false
    }

    /// Returns false while there is no picture to draw.
    fn has_picture(&self) -> bool {
        false
    }

    /// Draws the picture's base.
    fn draw(&self, _canvas: &mut Canvas<'_>, _theme: &Theme) {}

    /// Updates the highlights for the pixel under the pointer, `None` if the pointer is elsewhere.
    /// Returns the lines of text that the picture shows beside the pointer.
    fn hover(&mut self, _context: &Context<'_>, _shared: &mut SharedCaches, _point: Option<Pixel>) -> Vec<String> {
        Vec::new()
    }

    /// Returns the memory that a pixel of the picture stands for, the most specific part first;
    /// other pictures and the tables light it up.
    fn linked(&mut self, context: &Context<'_>, shared: &mut SharedCaches, point: Pixel) -> Vec<LinkedMemory> {
        let block = self.hit(context.state, point).and_then(|hit| hit.block);
        let memory = block.map(|block| memory_of(&mut shared.groupings, context.recording, &block));
        memory.unwrap_or_default()
    }

    /// Draws the highlights, and on a chart the moment and the selected range, on the drawn base.
    fn draw_highlights(&self, _canvas: &mut Canvas<'_>, _theme: &Theme, _moment: ShownMoment) {}

    /// Returns the command that a click on a pixel runs; `None` if it runs none.
    fn click(&mut self, _context: &Context<'_>, _shared: &mut SharedCaches, _point: Pixel) -> Option<Command> {
        None
    }

    /// Returns the axis of moments of a chart, on which the pointer works as on the timeline;
    /// `None` for other pictures.
    fn moment_axis(&self) -> Option<&MomentAxis> {
        None
    }

    /// Handles the wheel, dragging, two fingers or a zoom command on the picture. Returns false if
    /// the view does nothing.
    fn input(&mut self, _device: &DeviceState, _input: PictureInput) -> bool {
        false
    }

    /// Shows the picture in its other layout. Returns false if it has one only.
    fn change_layout(&mut self) -> bool {
        false
    }

    /// Returns the property that the picture's colors show; `None` for a picture without a choice.
    fn color_by(&self) -> Option<ColorBy> {
        None
    }

    /// Sets the property that the picture's colors show.
    fn set_color(&mut self, _color_by: ColorBy) {}

    /// Returns the memory that the picture shows at a pixel.
    fn hit(&self, _device: &DeviceState, _point: Pixel) -> Option<Hit> {
        None
    }

    /// Scrolls the picture to an address.
    fn reveal(&mut self, _device: &DeviceState, _address: u64) {}

    /// Resets zoom and scroll position, because another device is shown.
    fn device_changed(&mut self) {}
}

/// A view that the list of all views has.
pub trait Registered: View + Default {
    /// The facts about it.
    const INFO: ViewInfo;
}

/// The result of a [slice of work](View::work).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Whether more can be done at once.
    pub has_more: bool,
    /// Whether the view shows something new.
    pub has_changed: bool,
}
