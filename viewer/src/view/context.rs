//! The inputs of views.

use vramscope_draw::{Theme, Typesetter};
use vramscope_insight::group::GroupBy;
use vramscope_insight::history::History;
use vramscope_insight::incremental::DeviceHistory;
use vramscope_insight::sites::GroupRow;
use vramscope_insight::spans::Marks;
use vramscope_trace::{ByteSize, Count, Definitions, DeviceId, DeviceLifetimes, DeviceState, Percent, Recording};

use crate::device_map::Hit;
use crate::editor_link::EditorTemplate;
use crate::jobs::Jobs;
use crate::linked_memory::LinkedMemory;
use crate::model::{AllDevices, Comparison};
use crate::ui::{Element, Node, Tag};

use super::table::{Cell, Table};

/// The inputs of a view: device, moment, selected range and others.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The recording.
    pub recording: &'a Recording,
    /// The selected device.
    pub device: DeviceId,
    /// The device's memory at the moment.
    pub state: &'a DeviceState,
    /// The memory of all devices at the moment.
    pub all_devices: AllDevices<'a>,
    /// The moment, as an event number.
    pub moment: u64,
    /// The recording's time at the moment, in nanoseconds.
    pub time_ns: u64,
    /// First and last event number of the selected range; the whole recording without a selection.
    pub range: (u64, u64),
    /// Whether a range is selected.
    pub has_range: bool,
    /// Lifetimes and times of all events read so far.
    pub history: &'a History,
    /// Whether `history` contains all events of the recording.
    pub is_history_complete: bool,
    /// The spans (named intervals and moments), out-of-memory errors and gaps.
    pub marks: &'a Marks,
    /// The name of the span that the user chose as a step; `None` to recognize steps.
    pub step_span: Option<&'a str>,
    /// The address and, if a block is there, the event number from which the selected allocation
    /// exists.
    pub selection: Option<(u64, Option<u64>)>,
    /// The selected block or free range; `None` if it is not live at the moment.
    pub selected: Option<Hit>,
    /// Whether the timeline's axis counts events instead of time.
    pub counts_events: bool,
    /// Name of the file, or of the running program.
    pub source: &'a str,
    /// Computations over the whole recording, and their results.
    pub jobs: &'a Jobs,
    /// The second side of a comparison with the recording.
    pub comparison: &'a Comparison,
    /// The selected group: what blocks are grouped by, and the group's number.
    pub selected_group: Option<(GroupBy, u32)>,
    /// The memory that pictures and tables light up.
    pub lit: Option<LinkedMemory>,
    /// The memory that a click on an element keeps lit, by all its names.
    pub kept: &'a [LinkedMemory],
    /// The colors.
    pub theme: &'a Theme,
    /// Measures texts in pictures.
    pub typesetter: &'a Typesetter,
    /// The user's template for links to files.
    pub editor: Option<&'a EditorTemplate>,
}

impl<'a> Context<'a> {
    /// Returns the cell of a duration of `ns` nanoseconds; an empty one if the recording has no
    /// times.
    pub fn duration(&self, ns: u64) -> Cell {
        Cell::duration(self.recording.info(), ns)
    }

    /// Returns the text to show in a view that has no rows: how much of the recording has been
    /// read, or that nothing was allocated on the device.
    pub fn reading_text(&self) -> String {
        if self.is_history_complete {
            return "Nothing was allocated on this device.".to_owned();
        }
        let first = self.recording.first_event();
        let read = self.history.until().saturating_sub(first);
        let known = self.recording.end_event().saturating_sub(first);
        format!("Reading the recording: {}", Percent::of(read, known))
    }

    /// Returns the names and sites of the recording.
    pub fn definitions(&self) -> &'a Definitions {
        self.recording.definitions()
    }

    /// Returns the lifetimes of the device's allocations; `None` before any were read.
    pub fn lifetimes(&self) -> Option<&'a DeviceLifetimes> {
        self.history.lifetimes(self.device)
    }

    /// Returns the history of the device as far as it has been read; `None` before any allocation
    /// of it was read.
    pub fn device_history(&self) -> Option<DeviceHistory<'a>> {
        Some(DeviceHistory {
            recording: self.recording,
            marks: self.marks,
            history: self.history,
            is_complete: self.is_history_complete,
            device: self.device,
            lifetimes: self.lifetimes()?,
            step_span: self.step_span,
        })
    }
}

/// The content of a view beside its picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ViewContent {
    /// Controls in the pane's header.
    pub controls: Vec<Node>,
    /// Meaning of the picture's colors.
    pub legend: Vec<Node>,
    /// Texts and tables, from top to bottom.
    pub content: Vec<Node>,
    /// Short text of the picture's content, for screen readers; `None` for the view's usual label.
    pub picture_text: Option<String>,
    /// Whether the view has no picture now, although its kind has one.
    pub hides_picture: bool,
    /// The table that scripts read and users copy.
    pub table: Option<Table>,
}

impl ViewContent {
    /// Creates content of a single text, for example why there is nothing to show.
    pub fn message(text: impl Into<String>) -> Self {
        Self::default().with_message(text)
    }

    /// Creates content with these controls and nothing else.
    pub fn with_controls(controls: impl IntoIterator<Item = Element>) -> Self {
        Self { controls: controls.into_iter().map(Node::from).collect(), ..Self::default() }
    }

    /// Appends an element to the content.
    #[must_use]
    pub fn with_element(mut self, element: Element) -> Self {
        self.content.push(element.into());
        self
    }

    /// Appends a text that says why there are no rows or figures.
    #[must_use]
    pub fn with_message(self, text: impl Into<String>) -> Self {
        self.with_element(Element::text(Tag::P, text).with_class("nothing"))
    }

    /// Appends a long list with `summary` above it, which stays in view. A list without rows is
    /// replaced by the text `nothing`. Scripts read the list and users copy it.
    #[must_use]
    pub fn with_list(mut self, summary: impl Into<String>, list: Table, nothing: &str) -> Self {
        let summary = Element::text(Tag::P, summary).with_class("summary");
        self.legend.push(summary.into());
        if list.window.is_some_and(|(rows, _)| rows == 0) {
            return Self { table: Some(list), ..self.with_message(nothing) };
        }
        self.with_table(list)
    }

    /// Appends a table, which scripts read and users copy, to the content.
    #[must_use]
    pub fn with_table(mut self, table: Table) -> Self {
        self.content.push(table.element().into());
        self.table = Some(table);
        self
    }

    /// Appends a sentence with the sums of the rows in `groups`; `when` names their moment.
    #[must_use]
    pub fn with_summary(mut self, groups: &[GroupRow], when: &str) -> Self {
        let sum = |value: fn(&GroupRow) -> u64| groups.iter().map(value).fold(0, u64::saturating_add);
        let (bytes, pending, blocks) = (sum(|row| row.bytes), sum(|row| row.pending_bytes), sum(|row| row.blocks));
        let mut text = format!("{} in {} {when}", ByteSize(bytes), Count(blocks).of("block", "blocks"));
        if pending > 0 {
            text += &format!(", of which {} are pending free", ByteSize(pending));
        }
        self.content.push(Element::text(Tag::P, text).with_class("summary").into());
        self
    }
}
