//! Every function of the page as a [`Command`] with typed arguments.
//!
//! Buttons, keys, the command list, undo and scripts run commands. A command has a text, such as
//! `seek 17`: elements of the page carry it, and [`Command::parse`] reads it where it enters the
//! viewer.

mod field;
mod text;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use vramscope_insight::group::GroupBy;
use vramscope_trace::DeviceId;

use crate::bands::Band;
use crate::device_map::ColorBy;
use crate::editor_link::EditorTemplate;
use crate::linked_memory::LinkedMemory;
use crate::model::{CompareWith, PeakKind};
use crate::open::SaveFormat;
use crate::pane_sizes::Splitter;
use crate::saved_picture::PictureFormat;
use crate::timeline::{AxisKind, Stacking};

pub use field::Field;

/// The name of a view in commands and links, such as `flame`.
pub type ViewName = Cow<'static, str>;

/// A direction: in time, in a list, or through the values of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the previous one.
    Back,
    /// To the next one.
    Forward,
}

impl Direction {
    /// Returns true for [`Forward`](Self::Forward).
    #[must_use]
    pub fn is_forward(self) -> bool {
        self == Self::Forward
    }
}

/// A change of a view's options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionChange {
    /// Groups its rows by another property.
    By(GroupBy),
    /// Shows another variant of the view.
    Mode(String),
    /// Sets its filter as typed.
    Filter(String),
    /// Sets its number; `None` restores the default.
    Number(Option<u64>),
    /// Sorts its rows by a column, the largest first; in the other order if they are.
    Sort(String),
}

/// A function of the page with its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Command {
    /// Plays the recording, or pauses.
    Play,
    /// Goes forward by this many events of the device, or back.
    Step(i64),
    /// Goes to the next or previous begin of a span, or named moment.
    Mark(Direction),
    /// Goes to the moment after this many events; `None`, for a text that is no number, shows the
    /// current one again.
    Seek(Option<u64>),
    /// Goes to the first or the last event.
    GoToEdge(Direction),
    /// Goes to the peak of a counter, and explains that of the allocated bytes.
    GoToPeak(PeakKind),
    /// Goes to the next or previous out-of-memory error and explains it.
    Failure(Direction),
    /// Follows the newest event of a live recording.
    Follow,
    /// Loads a live recording from its beginning.
    LoadAll,
    /// Plays at the next slower or faster speed.
    ChangeSpeed(Direction),
    /// Plays at another kind of speed.
    SpeedKind,
    /// Plays at the speed with this index.
    Speed(usize),

    /// Makes the timeline show a shorter range.
    ZoomIn,
    /// Makes the timeline show a longer range.
    ZoomOut,
    /// Moves the timeline's range to earlier or later times.
    Pan(Direction),
    /// Shows the selected range on the timeline, or the whole recording.
    Fit,
    /// Shows the whole recording on the timeline.
    FitAll,
    /// Begins the selected range at the moment.
    RangeStart,
    /// Ends the selected range at the moment.
    RangeEnd,
    /// Clears the selected range.
    RangeClear,
    /// Selects the range of the selected allocation, or of the span at the moment.
    RangeOfSelection,
    /// Selects the range between two moments.
    Range(u64, u64),
    /// Sets the unit of the timeline's axis; `None` for the next one.
    Axis(Option<AxisKind>),
    /// Hides idle time, or shows it.
    CutIdle,
    /// Shows the lanes of devices, or hides them.
    Lanes,
    /// Stacks the timeline's live bytes by a property; `None` for the next one.
    Stack(Option<Stacking>),
    /// Shows a band of memory outside the pool, or hides it.
    Band(Band),

    /// Selects the next or previous block or free range.
    SelectNeighbor(Direction),
    /// Selects the first block of the next or previous segment.
    SelectSegment(Direction),
    /// Selects the block or free range at an address.
    SelectAddress(u64),
    /// Selects an allocation.
    SelectAllocation(AllocationId),
    /// Clears the selection of an allocation.
    DeselectAllocation,
    /// Clears the last selection: of a range, of an allocation, or of a group.
    Deselect,
    /// Selects a group of blocks, or clears its selection; with a moment, goes there.
    Group(GroupBy, u32, Option<u64>),
    /// Lights up the memory that the element under the pointer stands for; `None` when the pointer
    /// leaves it.
    Light(Option<LinkedMemory>),
    /// Keeps memory lit when the pointer leaves its element, or no longer keeps it.
    KeepLight(LinkedMemory),
    /// Goes to the next or previous event of the selection.
    Event(Direction),
    /// Shows a device.
    Device(DeviceId),
    /// Shows the next device.
    NextDevice,

    /// Shows a view.
    View(ViewName),
    /// Shows all uses of the selected address.
    AddressUses,
    /// Shows a view that can be searched.
    SearchView,
    /// Shows a view in the left (0) or right (1) pane.
    Pane(usize, ViewName),
    /// Changes the options of a view.
    Set(ViewName, OptionChange),
    /// Shows what the allocator would do with settings, beside what was recorded.
    Try(String),
    /// Sets a setting of the simulated allocator, given by its key, to a value.
    Setting(String, String),
    /// Sets the name of the span that is a step; `None` recognizes steps.
    StepSpan(Option<String>),
    /// Reports the rows of a pane's list that are in view: the pane, the first one and their
    /// number.
    Scroll(usize, u64, u64),
    /// Scrolls a view's list to the moment; `None` for the view that was used last.
    Reveal(Option<ViewName>),
    /// Exchanges the panes' views.
    Swap,
    /// Shows one pane or two.
    Split,
    /// Colors blocks by a property; `None` for the next one.
    Color(Option<ColorBy>),
    /// Colors blocks by the previous property.
    PreviousColor,
    /// Changes the layout of a view's picture.
    Layout,
    /// Enlarges a view's picture around the selection.
    EnlargePicture,
    /// Reduces a view's picture.
    ReducePicture,
    /// Shows the whole picture of a view.
    FitPicture,
    /// Pins the moment, to compare others with it.
    PinMoment,
    /// Compares with a recording, device or moment.
    CompareWith(CompareWith),
    /// Closes the second recording.
    CloseSecond,
    /// Compares with the recording at a URL.
    CompareUrl(String),
    /// Looks for problems.
    FindProblems,
    /// Saves the recording when a new problem appears, or does not.
    SaveFindings,
    /// Shows what the finding with this index is about.
    Finding(usize),

    /// Copies the table of a view; `None` for the view that was used last.
    CopyTable(Option<ViewName>),
    /// Copies the content of the details panel.
    CopyDetails,
    /// Copies the call stack in the details panel.
    CopyStack,
    /// Saves a picture: of a view, of the timeline, or (`None`) of the view that was used last.
    SavePicture(PictureFormat, Option<ViewName>),
    /// Sets the template for links to files; `None` removes it.
    EditorTemplate(Option<EditorTemplate>),
    /// Undoes the last change of the view.
    Undo,
    /// Redoes the last change that was undone.
    Redo,

    /// A command of the page's main thread.
    Page(PageCommand),
}

/// An allocation, by its address and the event number from which it exists, and a moment to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationId {
    /// Its address.
    pub address: u64,
    /// The event number from which it exists.
    pub since: u64,
    /// The moment to go to; `None` stays.
    pub moment: Option<u64>,
}

/// A command that concerns dialogs, files, the clipboard or the layout of the page; the page's main
/// thread executes it.
#[derive(Clone, Debug, PartialEq)]
pub enum PageCommand {
    /// Goes back or forward in the browser's history.
    History(Direction),
    /// Moves a splitter by this many percent of the page.
    Size(Splitter, f64),
    /// Restores the default sizes.
    ResetSizes,
    /// Moves the focus to a search field.
    Search,
    /// Shows the command list.
    Commands,
    /// Opens a file.
    Open,
    /// Opens a second file and compares.
    Compare,
    /// Saves the recording.
    Save(SaveFormat),
    /// Copies a link to the view.
    CopyLink,
    /// Saves a recording of the selected or visible range (first), without names (second).
    SaveExcerpt(bool, bool),
    /// A command of the start page with its argument, such as `recent 0`.
    StartPage(&'static str, String),
    /// Copies the lines that record a PyTorch program.
    CopyLines,
    /// Copies a text.
    Copy(String),
    /// Shows the dialog for the editor's link template.
    Editor,
    /// Marks the moment in the running program; in a file, selects the range of the selection.
    MarkNow,
    /// Switches between light, dark and system colors.
    Theme,
    /// Closes what is open, or clears the selection.
    Escape,
    /// Shows all keys, or hides them.
    Help,
}

/// How a command that changes the view enters the histories of views: of undo and of the browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryEffect {
    /// Not at all: it concerns no view, or restores one.
    None,
    /// As a gesture that lasts, such as playback.
    Gesture,
    /// As a small step: repetitions are undone as one, and the browser does not go back to it.
    Step,
    /// As a change of its own.
    Change,
}

impl Command {
    /// Returns how the command enters the histories of views.
    pub fn history_effect(&self) -> HistoryEffect {
        match self {
            Self::Undo | Self::Redo | Self::Scroll(..) | Self::EditorTemplate(_) | Self::Light(_) => {
                HistoryEffect::None
            }
            Self::Play => HistoryEffect::Gesture,
            Self::Step(_)
            | Self::ZoomIn
            | Self::ZoomOut
            | Self::Pan(_)
            | Self::EnlargePicture
            | Self::ReducePicture
            | Self::ChangeSpeed(_) => HistoryEffect::Step,
            _ => HistoryEffect::Change,
        }
    }

    /// Creates the command that selects an allocation.
    pub fn select_allocation(address: u64, since: u64) -> Self {
        Self::SelectAllocation(AllocationId { address, since, moment: None })
    }

    /// Creates the command that goes to a moment.
    pub fn seek(event: u64) -> Self {
        Self::Seek(Some(event))
    }
}
