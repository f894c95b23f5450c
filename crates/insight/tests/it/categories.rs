//! The categories of real programs, compared with what the programs noted about their blocks
//! (`tests/data/categories`).

use std::collections::BTreeMap;

use serde_json::Value;
use vramscope_insight::composition::{CompositionSeries, DeviceRows, RowGroups};
use vramscope_insight::flame::{FlameGraph, StackKeys, StackWeights};
use vramscope_insight::group::{GroupBy, Grouping, MemoryCategory};
use vramscope_insight::history::History;
use vramscope_insight::query::{Now, Query};
use vramscope_insight::sites::{groups_at, live_groups};
use vramscope_trace::{Allocation, Block, Category, DeviceId, DeviceLifetimes, DeviceState, Recording, Replay};

use crate::autopsy::without_stacks;
use crate::recordings::{recorded_in, recordings_in, snapshots};

/// Bytes that were found right, and all bytes.
type Share = (u64, u64);

/// Returns the percentage of a share.
fn percent((right, all): Share) -> f64 {
    100.0 * right as f64 / all.max(1) as f64
}

/// Returns what a program noted about the block of an allocation; `None` if it noted nothing.
fn noted<'a>(program: &'a Value, one: &Allocation) -> Option<&'a str> {
    let find = |blocks: &'a Value, has: &dyn Fn(&Value) -> bool| {
        let categories = blocks.as_object()?.iter();
        let mut found = categories.filter(|(_, blocks)| blocks.as_array().is_some_and(|blocks| blocks.iter().any(has)));
        found.next().map(|(category, _)| category.as_str())
    };
    match one.allocating_event().filter(|_| one.start_observed) {
        Some(event) => find(&program["events"], &|block| block.as_u64() == Some(event + 1)),
        None => find(&program["older"], &|block| block.as_str() == Some(&format!("{:#x}", one.address))),
    }
}

/// Returns true if a found category agrees with what the program noted. What it noted nothing about
/// is none of its tensors that live on: an activation that it does not need, or a temporary.
fn agrees(found: Category, noted: Option<&str>) -> bool {
    match noted {
        Some(noted) => found.name() == noted,
        None => matches!(found, Category::Activation | Category::Temporary),
    }
}

/// Adds the blocks at a recording's peak to the shares of each category.
fn add_peak(recording: &Recording, program: &Value, shares: &mut BTreeMap<String, Share>) -> Share {
    let history = History::of(recording).expect("the recording is complete");
    let device = DeviceId(0);
    let lifetimes = history.lifetimes(device).expect("the device has events");
    let categories = history.categories(device);
    let peak = recording.series(device).expect("the device has counters").peak_allocated().event;
    let (mut right, mut all) = (0, 0);
    let mut wrong: BTreeMap<(Option<&str>, &str), u64> = BTreeMap::new();
    for one in lifetimes.live_at(peak).filter(|one| one.is_allocated_at(peak)) {
        let found = categories.of_allocation(&one).map_or(Category::Unknown, |known| known.category);
        let noted = noted(program, &one);
        let is_right = agrees(found, noted);
        let right_bytes = if is_right { one.size } else { 0 };
        (right, all) = (right + right_bytes, all + one.size);
        let of_category = shares.entry(noted.unwrap_or("not noted").to_owned()).or_default();
        *of_category = (of_category.0 + right_bytes, of_category.1 + one.size);
        if !is_right {
            *wrong.entry((noted, found.name())).or_default() += one.size;
        }
    }
    for ((noted, found), bytes) in wrong.into_iter().filter(|(_, bytes)| *bytes * 100 > all) {
        println!("    {} MiB {} found as {found}", bytes >> 20, noted.unwrap_or("not noted"));
    }
    (right, all)
}

/// Compares the categories at the peaks of all programs with what these noted; with or without the
/// recorded stacks. Returns the share of all bytes, and of each category.
fn check(with_stacks: bool) -> (Share, BTreeMap<String, Share>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/categories/truth.json");
    let truth: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("the file exists")).expect("JSON");
    let (mut sum, mut shares) = ((0, 0), BTreeMap::new());
    for (name, recording) in recorded_in("../../tests/data/categories") {
        let name = name.trim_end_matches(".pickle.zst");
        let recording = if with_stacks { recording } else { without_stacks(&recording) };
        let share = add_peak(&recording, &truth[name], &mut shares);
        println!("{name}: {:.1}% of {} MiB", percent(share), share.1 >> 20);
        sum = (sum.0 + share.0, sum.1 + share.1);
    }
    for (category, share) in &shares {
        println!("{category}: {:.1}% of {} MiB", percent(*share), share.1 >> 20);
    }
    println!("all: {:.2}%", percent(sum));
    (sum, shares)
}

#[test]
fn categories_agree_with_what_programs_noted() {
    let (all, shares) = check(true);
    assert!(percent(all) >= 95.0, "{:.1}% of the bytes are right", percent(all));
    for (category, share) in shares {
        assert!(percent(share) >= 90.0, "{category}: {:.1}% of the bytes are right", percent(share));
    }
}

#[test]
fn categories_without_stacks_agree_mostly() {
    let (all, _) = check(false);
    assert!(percent(all) >= 80.0, "{:.1}% of the bytes are right", percent(all));
}

/// The bytes of live blocks by category.
type CategoryBytes = BTreeMap<MemoryCategory, u64>;

/// A device of a recording at one moment.
struct Shown<'a> {
    recording: &'a Recording,
    history: &'a History,
    device: DeviceId,
    lifetimes: &'a DeviceLifetimes,
    state: &'a DeviceState,
    moment: u64,
}

impl Shown<'_> {
    /// Returns a grouping that knows the inferred categories.
    fn grouping(&self, by: GroupBy) -> Grouping {
        Grouping::of(by, self.recording).with_categories(&self.history.categories(self.device))
    }

    /// Returns the bytes by category that the map shows.
    fn on_map(&self) -> CategoryBytes {
        let grouping = self.grouping(GroupBy::Site);
        let mut bytes = CategoryBytes::new();
        self.state.blocks().for_each(|block| *bytes.entry(grouping.category_of(block)).or_default() += block.size);
        bytes
    }

    /// Checks that every block has the category of its allocation, in lists and filters too.
    fn check_blocks(&self, name: &str) {
        let (mut by_category, by_site) = (self.grouping(GroupBy::Category), self.grouping(GroupBy::Site));
        let now = Now::new(self.moment, self.history);
        let filters = Category::ALL.map(|category| {
            let query = format!("category:{}", category.name().replace(' ', "_"));
            let query = Query::parse(&query).expect("the name is a keyword's value");
            query.compile(self.recording, &[], self.history.inferred_categories())
        });
        for block in self.state.blocks() {
            let category = by_site.category_of(block);
            let context = format!("{name}: {block:?} at {}", self.moment);
            let found = self.lifetimes.find(block.address, self.moment);
            let (row, one) = found.unwrap_or_else(|| panic!("{context}: it has a lifetime"));
            let Block { site, .. } = *block;
            // Lifetimes have the site of the last relabel.
            if one.site == site {
                assert_eq!(by_site.category_of_allocation(&one), category, "{context}");
                let times = self.lifetimes.row_times(row).expect("the row exists");
                let origin = self.lifetimes.origin(times.origin).expect("the origin exists");
                assert_eq!(by_site.category_of_row(self.lifetimes, &origin, &times), category, "{context}");
                let group = by_category.group_of_row(self.lifetimes, &origin, &times);
                assert_eq!(by_category.group_of(block), group, "{context}");
                for (filter, of_filter) in filters.iter().zip(Category::ALL) {
                    let is_matched = filter.matches_allocation(self.device, &one, &now);
                    assert_eq!(is_matched, of_filter == category.category, "{context}");
                }
            }
            let group = by_category.group_of(block);
            assert_eq!(by_category.category_at(group), category.category, "{context}");
            for (filter, of_filter) in filters.iter().zip(Category::ALL) {
                let is_matched = filter.matches_block(self.device, block, &now);
                assert_eq!(is_matched, of_filter == category.category, "{context}");
            }
        }
    }

    /// Returns the bytes of known categories that a table, a flame graph and the timeline show.
    fn in_views(&self) -> [CategoryBytes; 4] {
        let mut grouping = self.grouping(GroupBy::Category);
        let definitions = self.recording.definitions();
        let of_rows = |rows: Vec<vramscope_insight::sites::GroupRow>| {
            let rows = rows.into_iter().flat_map(|row| row.categories);
            let mut bytes = CategoryBytes::new();
            rows.for_each(|(category, size)| *bytes.entry(category).or_default() += size);
            bytes
        };
        let table = of_rows(live_groups(self.state, definitions, &mut self.grouping(GroupBy::Line)));
        let table_at = of_rows(groups_at(self.lifetimes, self.moment, definitions, &mut self.grouping(GroupBy::Line)));

        let weights = StackWeights::live(self.state, &StackKeys::of(&grouping));
        let mut parts = self.grouping(GroupBy::Site);
        let graph = FlameGraph::by_group(definitions, &weights, &mut grouping, &mut parts, true);
        let mut flame = CategoryBytes::new();
        for node in &graph.nodes {
            if let Some((GroupBy::Category, group)) = node.group {
                *flame.entry(by_name(&grouping.group_name(definitions, group))).or_default() += node.bytes;
            }
        }

        let mut groups = RowGroups::default();
        groups.update(&mut grouping, self.lifetimes);
        let rows = DeviceRows { lifetimes: self.lifetimes, groups: &groups };
        let mut series = CompositionSeries::new(self.history.first_event());
        while !series.step(&rows, self.history.until(), usize::MAX) {}
        let mut timeline = CategoryBytes::new();
        for (layer, group) in series.groups().iter().enumerate() {
            let bytes = series.at(&rows, self.moment).layers[layer];
            if bytes > 0 {
                *timeline.entry(by_name(&grouping.group_name(definitions, *group))).or_default() += bytes;
            }
        }
        [table, table_at, flame, timeline]
    }
}

/// Returns the category with a name; all groups of other names are of unknown memory.
fn by_name(name: &str) -> MemoryCategory {
    let all = Category::ALL.into_iter().flat_map(|one| [MemoryCategory::recorded(one), MemoryCategory::inferred(one)]);
    let mut found = all.filter(|one| one.category != Category::Unknown && one.name() == name);
    found.next().unwrap_or(MemoryCategory::inferred(Category::Unknown))
}

#[test]
fn block_has_one_category_in_all_places() {
    let all = snapshots()
        .chain(recorded_in("../../tests/data/categories"))
        .chain(recordings_in("../../examples/pytorch/recordings"));
    for (name, recording) in all {
        let history = History::of(&recording).expect("the recording is complete");
        let mut replay = Replay::new();
        for (device, lifetimes) in history.all_lifetimes().devices() {
            let (first, end) = (recording.first_event(), recording.end_event());
            let peak = recording.series(device).map_or(end, |series| series.peak_allocated().event);
            for moment in [first, first.midpoint(end), peak, end] {
                let state = replay.seek(&recording, moment).expect("the recording is complete");
                let Some(state) = state.device(device) else { continue };
                let shown = Shown { recording: &recording, history: &history, device, lifetimes, state, moment };
                shown.check_blocks(&name);
                let mut on_map = shown.on_map();
                for (view, mut bytes) in
                    ["table", "table of lifetimes", "flame graph", "timeline"].iter().zip(shown.in_views())
                {
                    bytes.retain(|_, bytes| *bytes > 0);
                    assert_eq!(bytes, on_map, "{name}: the {view} on {device} at {moment}");
                }
                on_map.clear();
            }
        }
    }
}
