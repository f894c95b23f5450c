//! The flame graph that was computed last, and its inputs.

use vramscope_insight::flame::{FlameGraph, FlameNode, FlameNodeKind, StackKeys, StackWeights};
use vramscope_insight::group::GroupBy;
use vramscope_trace::DeviceId;

use super::scene::{BoxStyle, box_styles};

use crate::linked_memory::LinkedMemory;
use crate::view::{Context, LitBlocks, Options, SharedCaches, ViewMode, group_styles};

/// Suffix of a flame graph's mode that shows every library frame instead of folding them.
pub(super) const UNFOLDED: &str = "-unfolded";
/// The blocks whose bytes a flame graph shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Moment {
    /// Blocks that are live at the moment on the screen.
    #[default]
    Shown,
    /// Blocks that are live at the peak of the allocated bytes.
    Peak,
    /// Blocks that were allocated in the selected range.
    Range,
}

impl Moment {
    /// All values, in the order of the menu.
    pub(super) const ALL: [Self; 3] = [Self::Shown, Self::Peak, Self::Range];

    /// Returns the name as a part of the view's mode.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Shown => "moment",
            Self::Peak => "peak",
            Self::Range => "range",
        }
    }

    /// Returns the text in the menu.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Shown => "this moment",
            Self::Peak => "the peak",
            Self::Range => "allocated in the range",
        }
    }

    /// Returns a description of the graph's bytes.
    pub(super) const fn description(self) -> &'static str {
        match self {
            Self::Shown => "live at this moment",
            Self::Peak => "live at the peak of the allocated bytes",
            Self::Range => "allocated in the selected range",
        }
    }
}

/// The mode of the view "Flame graph": the blocks whose bytes it shows, and whether library frames
/// are folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) moment: Moment,
    pub(super) is_folded: bool,
}

impl Mode {
    /// Returns the chosen mode, or the default.
    pub(super) fn of(options: &Options<Self>) -> Self {
        options.mode.unwrap_or(Self { moment: Moment::default(), is_folded: true })
    }
}

impl ViewMode for Mode {
    fn from_name(name: &str) -> Option<Self> {
        let (base, is_folded) = name.strip_suffix(UNFOLDED).map_or((name, true), |base| (base, false));
        let moment = Moment::ALL.into_iter().find(|moment| moment.name() == base)?;
        Some(Self { moment, is_folded })
    }

    fn name(&self) -> String {
        format!("{}{}", self.moment.name(), if self.is_folded { "" } else { UNFOLDED })
    }
}

/// The inputs of a flame graph, which is computed again when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlameKey {
    pub(super) device: DeviceId,
    pub(super) mode: Mode,
    pub(super) by: GroupBy,
    /// First and last moment.
    pub(super) moments: (u64, u64),
    /// The state of the recording: its start, the number of sites, and the last read event of the
    /// history (if the graph uses it) or the live bytes.
    pub(super) recording: (u64, usize, u64, u64),
    /// The generation of the categories, if blocks are grouped by them.
    pub(super) categories: u64,
}

/// The cached flame graph that was computed last, with its inputs.
#[derive(Default)]
pub(super) struct FlameCache {
    pub(super) key: Option<FlameKey>,
    pub(super) graph: FlameGraph,
    /// How its nodes are painted.
    pub(super) styles: Vec<BoxStyle>,
    pub(super) revision: u64,
    /// What the graph tells apart.
    keys: StackKeys,
    /// The lit memory, the graph's revision, the generation of the categories, and the lit bytes of
    /// each node.
    lit: (Option<(LinkedMemory, u64, u64)>, Vec<u64>),
}

/// Returns the grouping that the options of the view "Flame graph" set: by call stack unless the
/// user chose another.
pub(super) fn grouping_of(options: &Options<Mode>) -> GroupBy {
    options.by.unwrap_or(GroupBy::Stack)
}

/// Returns the grouping by which a flame graph divides each group of grouping `by`.
const fn parts_of(by: GroupBy) -> GroupBy {
    match by {
        GroupBy::Category | GroupBy::Function | GroupBy::Line => GroupBy::Site,
        _ => GroupBy::Line,
    }
}

impl FlameCache {
    /// Returns the flame graph for the options, computed again if its inputs have changed; `None`
    /// until the history that it needs has been read.
    pub(super) fn update(
        &mut self,
        context: &Context<'_>,
        options: &Options<Mode>,
        caches: &mut SharedCaches,
    ) -> Option<&FlameGraph> {
        let (mode, by) = (Mode::of(options), grouping_of(options));
        let (recording, first_event) = (context.recording, context.recording.first_event());
        let moments = match mode.moment {
            Moment::Shown => (context.moment, context.moment),
            Moment::Peak => {
                let peak = recording.series(context.device).map_or(first_event, |series| series.peak_allocated().event);
                (peak, peak)
            }
            Moment::Range => context.range,
        };
        let sites = context.definitions().site_count();
        let read = match mode.moment {
            Moment::Shown => (context.state.counters().active, context.state.blocks().len() as u64),
            Moment::Peak | Moment::Range => (context.history.generation(), context.history.until().min(moments.1)),
        };
        let of_recording = (recording.start_ns(), sites, read.0, read.1);
        let categories = if by == GroupBy::Category { context.history.categories_generation() } else { 0 };
        let key = FlameKey { device: context.device, mode, by, moments, recording: of_recording, categories };
        if self.key != Some(key) {
            let keys = StackKeys::of(caches.groupings.get(by, recording));
            let weights = match (mode.moment, context.lifetimes()) {
                (Moment::Shown, _) => StackWeights::live(context.state, &keys),
                (_, None) => return None,
                (Moment::Peak, Some(lifetimes)) => StackWeights::live_at(lifetimes, moments.0, &keys),
                (Moment::Range, Some(lifetimes)) => {
                    StackWeights::allocated_between(lifetimes, moments.0, moments.1, &keys)
                }
            };
            let definitions = context.definitions();
            let SharedCaches { groupings, block_groups, .. } = caches;
            let pair = groupings.pair(by, parts_of(by), context.recording).filter(|_| by != GroupBy::Stack);
            if let Some([grouping, parts]) = pair {
                self.graph = FlameGraph::by_group(definitions, &weights, grouping, parts, mode.is_folded);
                let groups: Vec<u32> = (0..grouping.len() as u32).collect();
                let state = (context.recording, context.all_devices);
                let styles = group_styles(block_groups, state, grouping, &groups);
                self.styles = box_styles(&self.graph, definitions, &mut |node: &FlameNode| match node.group {
                    Some((of, group)) if of == by && by != GroupBy::Category && grouping.is_unknown(group) => {
                        Some(BoxStyle::NoStack)
                    }
                    Some((of, group)) if of == by => styles.get(group as usize).map(|style| BoxStyle::Group(*style)),
                    // The outer parts of names stand for no group.
                    _ => matches!(node.kind, FlameNodeKind::Part(_)).then_some(BoxStyle::Root),
                });
            } else {
                self.graph = FlameGraph::new(definitions, &weights, mode.is_folded);
                self.styles = box_styles(&self.graph, definitions, &mut |_| None);
            }
            (self.key, self.keys) = (Some(key), keys);
            self.revision += 1;
        }
        Some(&self.graph)
    }

    /// Returns the lit bytes of each node of the flame graph that was computed last; `None` if no
    /// memory is lit, or all of it.
    pub(super) fn lit_bytes(&mut self, context: &Context<'_>, caches: &mut SharedCaches) -> Option<&[u64]> {
        let (memory, graph) = (context.lit.filter(|memory| !memory.is_whole())?, self.key?);
        let key = Some((memory, self.revision, context.history.categories_generation()));
        if self.lit.0 != key {
            let sources = (&mut caches.groupings, &mut caches.lit_sites);
            let mut lit = LitBlocks::new(memory, context.recording, sources);
            let keys = &self.keys;
            let weights = match (graph.mode.moment, context.lifetimes()) {
                (Moment::Shown, _) => StackWeights::live_among(context.state, keys, |block| lit.has(block)),
                (_, None) => StackWeights::default(),
                (Moment::Peak, Some(lifetimes)) => {
                    StackWeights::live_at_among(lifetimes, graph.moments.0, keys, |one| lit.has(one))
                }
                (Moment::Range, Some(lifetimes)) => {
                    let has_row = |origin: &_, row: &_| lit.has((lifetimes, origin, row));
                    StackWeights::allocated_among(lifetimes, graph.moments, keys, has_row)
                }
            };
            self.lit = (key, self.graph.bytes_of(&weights));
        }
        Some(&self.lit.1)
    }

    /// Returns the flame graph that was computed last.
    pub(super) fn graph(&self) -> &FlameGraph {
        &self.graph
    }

    /// Returns the fill of each node's box in the flame graph that was computed last.
    pub(super) fn styles(&self) -> &[BoxStyle] {
        &self.styles
    }

    /// Returns a number that increases each time a flame graph is computed.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }
}
