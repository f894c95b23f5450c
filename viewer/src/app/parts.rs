//! The parts of a session's state that only the session's own modules use.

use std::ops::Range;
use std::sync::Arc;

use vramscope_insight::group::GroupBy;
use vramscope_insight::history::{History, Progress};
use vramscope_trace::DeviceId;

use crate::comparison::ComparisonScene;
use crate::draw::picture::MomentAxis;
use crate::jobs::Jobs;
use crate::page_texts::LiveStatus;
use crate::protocol::{PaneContent, Tooltip};
use crate::timeline::{RangeTotals, StepScale, TimedMoment};
use crate::ui::Node;
use crate::view::context::ViewOptions;
use crate::view::small_map::SmallMap;
use crate::views::allocations::AllocationsScene;
use crate::views::flame::FlameScene;
use crate::views::fragmentation::FragmentationScene;
use crate::views::{ViewCaches, ViewKind};

/// Maximum memory for the history of a recording, in bytes. A page has 4 GiB at most, and the
/// views' results may need the history's memory again.
pub(super) const HISTORY_LIMIT_BYTES: usize = 1 << 30;

/// The history of the recording as far as it has been read, and how the views are shown.
#[derive(Default)]
pub(super) struct Analysis {
    pub(super) history: History,
    pub(super) progress: Progress,
    pub(super) caches: ViewCaches,
    pub(super) jobs: Jobs,
    pub(super) options: SmallMap<ViewKind, ViewOptions>,
    /// The name of the span that the user chose as a step; `None` to recognize steps.
    pub(super) step_span: Option<String>,
    /// Number of events that the history had when the panes were last updated.
    pub(super) shown_events: u64,
    /// The direction of the search for the next event that matches, while it goes on: true is
    /// forward.
    pub(super) event_search: Option<bool>,
    /// Whether the history has reached its limit of memory, and ends before the recording.
    pub(super) is_at_limit: bool,
    /// Messages for the user.
    pub(super) messages: Vec<String>,
    /// Whether a view or a script needs the whole history.
    pub(super) is_wanted: bool,
}

impl Analysis {
    /// Returns the options of a view, mutably.
    pub(super) fn options(&mut self, view: ViewKind) -> &mut ViewOptions {
        self.options.get_or_insert_with(view, ViewOptions::default)
    }

    /// Returns the share of the recording's events that have been read, 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        self.progress.events as f64 / self.progress.known_events.max(1) as f64
    }

    /// Returns true if all events have been read.
    pub(super) fn is_complete(&self) -> bool {
        self.progress.is_complete
    }
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

/// The state of the heatmap that is not part of the model: a link's group, and the size typed last.
#[derive(Default)]
pub(super) struct HeatmapControl {
    /// The group of a link, by its name, until a block of it is found.
    pub(super) pending_group: Option<(GroupBy, String)>,
    /// The typed size whose placement was last scrolled to.
    pub(super) revealed_size: String,
}

/// The scene of a pane's picture: its layout and state, ready to draw.
#[derive(Default)]
pub(super) enum PaneScene {
    /// No picture, or the heatmap, which is part of the [`Scene`](crate::scene::Scene).
    #[default]
    Empty,
    /// The text of a picture that cannot be computed yet.
    Waiting(String),
    /// Fragmentation over time.
    Fragmentation(Box<FragmentationScene>),
    /// Every allocation over time, and the moments of its columns.
    Allocations(Box<AllocationsScene>, MomentAxis),
    /// Bytes by call stack.
    Flame(Box<FlameScene>),
    /// Two recordings, devices or moments.
    Comparison(Box<ComparisonScene>),
}

/// The inputs of a picture's base, the picture without cursor and highlights; the base is drawn
/// again when they change.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PictureBaseKey {
    pub(super) view: ViewKind,
    pub(super) size: (u32, u32),
    pub(super) scale: f32,
    pub(super) is_dark: bool,
    /// Further numbers that the view's picture depends on.
    pub(super) numbers: Vec<u64>,
    /// The moments of a chart's columns.
    pub(super) edges: Vec<u64>,
}

/// The picture of a pane, apart from the heatmap's.
#[derive(Default)]
pub(super) struct PanePicture {
    pub(super) key: Option<PictureBaseKey>,
    pub(super) scene: PaneScene,
    /// When the scene was computed, by the page's clock, in milliseconds.
    pub(super) drawn_ms: f64,
    /// Frames after which fragmentation is computed from the events; `None` if it has been.
    pub(super) frames_until_exact: Option<u32>,
    /// Pixels by which a flame graph is scrolled down.
    pub(super) scroll: i32,
    /// The text drawn under the pointer; no lines without a pointer.
    pub(super) pointer_text: Vec<String>,
}

impl PanePicture {
    /// Returns the axis of a chart; `None` for other pictures.
    pub(super) fn axis(&self) -> Option<&MomentAxis> {
        match &self.scene {
            PaneScene::Fragmentation(scene) => Some(&scene.axis),
            PaneScene::Allocations(_, axis) => Some(axis),
            PaneScene::Empty | PaneScene::Waiting(_) | PaneScene::Flame(_) | PaneScene::Comparison(_) => None,
        }
    }
}

/// The effect of dragging on a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Drag {
    /// Changes the moment.
    Scrub,
    /// Moves the timeline's range.
    Pan { last_x: f64 },
    /// Moves the timeline's range with the overview strip; the pointer holds the range `offset`
    /// after its start.
    Overview { offset: u64 },
    /// Selects a range on the timeline, or goes to a moment if the pointer does not move.
    Brush { start_x: f64, start: TimedMoment, has_moved: bool },
    /// Moves the heatmap; pixels of the pointer's last position.
    Heatmap { last_x: f64, last_y: f64 },
    /// Scrolls a picture with a finger.
    Scroll { last_y: f64 },
    /// Selects the object under the pointer when it is released there.
    Press { x: f64, y: f64 },
}

/// The properties by which the stacked timeline can group live bytes, in the order in which a
/// command cycles through them.
pub(super) const STACKS: [GroupBy; 6] =
    [GroupBy::Category, GroupBy::Site, GroupBy::Module, GroupBy::Stream, GroupBy::Pool, GroupBy::Size];

/// The inputs of the timeline's steps (their revision, and the last moment), and the steps; `None`
/// if the recording has none.
type KnownSteps = ((u64, u64), Option<Arc<StepScale>>);
/// The device and range of event numbers that totals were computed for, and the totals.
type KnownTotals = ((DeviceId, (u64, u64)), RangeTotals);

/// The state of the timeline that is not part of its scene, such as the lanes in view.
#[derive(Default)]
pub(super) struct TimelineState {
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

/// The last contents of both panes that were sent to the page, so that only changes are sent.
#[derive(Debug, Default)]
pub(super) struct SentPanes(pub(super) [Option<PaneContent>; 2]);

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
