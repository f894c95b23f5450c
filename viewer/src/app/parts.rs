//! The parts of a session, without the session.

use std::ops::Range;
use std::sync::Arc;

use vramscope_insight::group::GroupBy;
use vramscope_insight::history::{History, Progress};
use vramscope_insight::pools::MemoryPart;
use vramscope_trace::{DeviceId, Recording, SiteId};

use crate::command::Direction;
use crate::connection::ConnectionState;
use crate::details::owners::LineCalls;
use crate::device_map::Hit;
use crate::editor_link::EditorTemplate;
use crate::jobs::Jobs;
use crate::linked_memory::LinkedMemory;
use crate::page_texts::{LiveStatus, PageTexts};
use crate::protocol::{PaneContent, Surface, Tooltip};
use crate::timeline::{Overlay, RangeTotals, StepScale, TimelineScene};
use crate::ui::Node;
use crate::view::SharedCaches;
use crate::views::ViewId;

/// Maximum memory for the history of a recording, in bytes. A page has 4 GiB at most, and the
/// views' results may need the history's memory again.
pub(super) const HISTORY_LIMIT_BYTES: usize = 1 << 30;

/// The history of the recording as far as it has been read, and results that views share.
#[derive(Default)]
pub(super) struct Analysis {
    pub(super) history: History,
    pub(super) progress: Progress,
    pub(super) shared: SharedCaches,
    pub(super) jobs: Jobs,
    pub(super) job_clock: JobClock,
    /// The name of the span that the user chose as a step; `None` to recognize steps.
    pub(super) step_span: Option<String>,
    /// Number of events that the history had when the panes were last updated.
    pub(super) shown_events: u64,
    /// The direction of the search for the next event that matches, while it goes on.
    pub(super) event_search: Option<Direction>,
    /// Whether the history has reached its limit of memory, and ends before the recording.
    pub(super) is_at_limit: bool,
    /// Maximum memory of a file's history, in bytes; `None` for 1 GiB.
    pub(super) limit_bytes: Option<usize>,
    /// Messages for the user.
    pub(super) messages: Vec<String>,
    /// Whether a view or a script needs the whole history.
    pub(super) is_wanted: bool,
    /// The number of the recording that the views show.
    pub(super) opened: u64,
}

/// When the last job began, and when the next analysis of a live recording may begin, by the
/// page's clock.
#[derive(Default)]
pub(super) struct JobClock {
    pub(super) next_ms: f64,
    pub(super) started_ms: f64,
    /// The number of the recording that the jobs are about.
    pub(super) opened: u64,
}

impl Analysis {
    /// Returns the share of the recording's events that have been read, 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        self.progress.events as f64 / self.progress.known_events.max(1) as f64
    }

    /// Returns true if all events have been read.
    pub(super) fn is_complete(&self) -> bool {
        self.progress.is_complete
    }

    /// Infers categories from the part of the recording that was read, because no more can be read.
    /// Returns false if they were inferred before.
    pub(super) fn infer_categories_of_part(&mut self, recording: &Recording) -> bool {
        let is_due = self.history.inferred_categories().is_none() && self.history.until() > self.history.first_event();
        if is_due {
            self.history.infer_categories(recording);
        }
        is_due
    }

    /// Gives the views the inferred categories of the device that is shown.
    pub(super) fn share_categories(&mut self, device: DeviceId) {
        self.shared.set_categories(&self.history.categories(device));
    }

    /// Returns true if the views need no more of the recording than has been read.
    pub(super) fn is_settled(&self) -> bool {
        self.progress.is_complete || self.is_at_limit
    }
}

/// The memory that pictures and tables light up.
#[derive(Clone, Debug, Default)]
pub(super) struct Lights {
    /// The memory of the element under the pointer, or the memory that contains the block under it;
    /// the most specific first.
    pub(super) hovered: Vec<LinkedMemory>,
    /// The picture under the pointer, which outlines what is there and does not light it up.
    pub(super) source: Option<Surface>,
    /// The memory of the element that was clicked, by all its names.
    pub(super) kept: Vec<LinkedMemory>,
}

impl Lights {
    /// Returns the memory that the page lights up: that under the pointer, else the kept one.
    pub(super) fn lit(&self) -> &[LinkedMemory] {
        if self.hovered.is_empty() { &self.kept } else { &self.hovered }
    }

    /// Returns the memory that a picture lights up.
    pub(super) fn lit_on(&self, surface: Option<Surface>) -> &[LinkedMemory] {
        match surface.is_some() && surface == self.source {
            true => &self.kept,
            false => self.lit(),
        }
    }
}

/// The memory of the device as a tree, and the lines that call the line with nearly all of it.
pub(super) type Owners = (MemoryPart, LineCalls);

/// The details panel and the texts beside the pictures, and what they are about.
#[derive(Default)]
pub(super) struct DetailsPanel {
    /// Texts and states of the page's elements.
    pub(super) texts: PageTexts,
    /// The block or free range under the pointer.
    pub(super) hovered: Option<Hit>,
    /// The page's clock from which texts and tables of a followed live recording may change again.
    pub(super) next_texts_ms: f64,
    /// The state of the connection that the texts tell.
    pub(super) shown_connection: ConnectionState,
    /// Whether texts and tables are older than the pictures.
    pub(super) are_texts_late: bool,
    /// The bar with the verdict that the page has.
    pub(super) verdict: Option<Vec<Node>>,
    /// The memory that pictures and tables light up.
    pub(super) lights: Lights,
    /// The memory of the device as a tree, and its inputs.
    pub(super) owners: Option<([u64; 6], Owners)>,
    /// The content of the panel that the page has.
    pub(super) sent: Option<Vec<Node>>,
    /// Where the event with this index of this recording freed a block; `None` if it freed none.
    pub(super) free_site: Option<((u64, u64), Option<SiteId>)>,
    /// The user's template for links to files.
    pub(super) editor: Option<EditorTemplate>,
    /// The group of a link, by its name, until a block of it is found.
    pub(super) pending_group: Option<(GroupBy, String)>,
}

/// The inputs of the timeline's steps (their revision, and the last moment), and the steps; `None`
/// if the recording has none.
type KnownSteps = ((u64, u64), Option<Arc<StepScale>>);
/// The device and range of event numbers that totals were computed for, and the totals.
type KnownTotals = ((DeviceId, (u64, u64)), RangeTotals);

/// The timeline on the page: its scene, and what is not part of the scene, such as the lanes in
/// view.
#[derive(Default)]
pub(super) struct TimelinePanel {
    /// The timeline without the cursor; `None` before the first frame.
    pub(super) scene: Option<TimelineScene>,
    /// The cursor, the selected range, and the column under the pointer.
    pub(super) overlay: Overlay,
    /// The steps of the axis, and their inputs: the revision of the steps and the last moment.
    pub(super) steps: Option<KnownSteps>,
    /// The totals of the selected range, with their inputs.
    pub(super) totals: Option<KnownTotals>,
    /// The times of the selected range's ends, as far as they are known.
    pub(super) selected_times: Option<((u64, u64), (u64, u64))>,
    /// Number of frames for which the view must stay unchanged before its counters are exact;
    /// `None` if they are, or cannot be.
    pub(super) frames_until_exact: Option<u32>,
    /// Whether the composition of the stacked timeline has to be built further.
    pub(super) is_stack_due: bool,
    /// The tooltip and the bar above the timeline that the page has.
    pub(super) sent: SentTimeline,
    /// The number of the recording of which it has been found out whether most of it is idle time.
    pub(super) idle_checked: Option<u64>,
    /// The number of the recording for which the usual areas of the timeline have been decided.
    pub(super) stack_decided: Option<u64>,
    /// The moment for which the bytes of other devices may be computed between frames: the last one
    /// that the page has shown for a while.
    pub(super) rested_at: Option<u64>,
    /// Whether the user has hidden the lanes of devices.
    pub(super) hides_lanes: bool,
    /// The moment, or `None` for the newest one that is followed, and the shown positions before a
    /// pointer was last pressed.
    pub(super) before_press: Option<(Option<u64>, Range<u64>)>,
    /// The index of the first device with a lane in view.
    pub(super) first_lane: usize,
    /// The device whose lane has been scrolled into view.
    pub(super) lane_device: Option<DeviceId>,
}

/// The last bar above the timeline and tooltip on it that were sent to the page.
#[derive(Default)]
pub(super) struct SentTimeline {
    pub(super) bar: Option<Vec<Node>>,
    pub(super) tooltip: Option<Tooltip>,
}

impl SentTimeline {
    /// Forgets the contents that were sent, because the page has lost them.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The panes' contents and pictures that the page has.
#[derive(Default)]
pub(super) struct SentPanes {
    /// The last content of each pane, so that only changes are sent.
    pub(super) contents: [Option<PaneContent>; 2],
    /// The view whose picture each pane shows.
    pub(super) drawn: [Option<ViewId>; 2],
    /// The texts drawn under the pointer.
    pub(super) pointer_text: [Vec<String>; 2],
}

/// Facts about the live connection that only its owner knows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConnectionFacts {
    /// Name of the connection's state.
    pub name: &'static str,
    /// Bytes of the recording received so far.
    pub received_bytes: f64,
    /// Bytes that wait to be decoded.
    pub waiting_bytes: u32,
    /// Bytes of files that have been read so far.
    pub read_bytes: f64,
    /// Ages in milliseconds of the newest and of the oldest event that the last frame showed first.
    pub latency_ms: Option<[f64; 2]>,
}

/// Facts about connection and speed that the session's owner provides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PageFacts {
    /// The live connection, for the header's badge.
    pub status: LiveStatus,
    /// The live connection, for scripts.
    pub connection: ConnectionFacts,
    /// Duration of the last frame in milliseconds.
    pub frame_ms: f64,
    /// Size of the memory of the WebAssembly module that runs the session, in bytes.
    pub memory_bytes: f64,
}
