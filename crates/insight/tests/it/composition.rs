//! Live bytes by group over time, against the memory state at every moment.

use std::collections::BTreeMap;

use vramscope_insight::composition::{
    AllocationRows, AllocationSpan, Change, CompositionSeries, DeviceRows, LAYERS, OTHER_LAYER, RowGroups,
};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::history::History;
use vramscope_trace::{DecodedItem, Decoder, DeviceId, Encoder, Event, Recording, Relabel, Replay, Sink, SiteId};

use crate::recordings::snapshot;

/// An allocation made for a test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestRow {
    pub(crate) first_moment: u64,
    pub(crate) end: u64,
    pub(crate) size: u64,
    pub(crate) address: u64,
    pub(crate) group: u32,
}

/// Allocations made for a test, of which the first `known` changes are visible.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestRows {
    pub(crate) rows: Vec<TestRow>,
    changes: Vec<(u64, u32, bool)>,
    pub(crate) known: usize,
}

impl TestRows {
    /// Sorts the starts and ends of `rows`, which are in the order of their starts.
    pub(crate) fn new(rows: Vec<TestRow>) -> Self {
        let mut changes: Vec<(u64, u32, bool)> =
            (0..).zip(&rows).map(|(row, one)| (one.first_moment, row, true)).collect();
        let ended = (0..).zip(&rows).filter(|(_, one)| one.end < u64::MAX);
        changes.extend(ended.map(|(row, one)| (one.end, row, false)));
        changes.sort_by_key(|&(moment, _, is_start)| (moment, is_start));
        let known = changes.len();
        Self { rows, changes, known }
    }

    /// Makes `count` allocations of random sizes, lifetimes and `groups` groups, which do not
    /// overlap in memory, with one change at most moments from `first_moment` on.
    pub(crate) fn random(seed: u64, count: usize, groups: u32, first_moment: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut rows: Vec<TestRow> = Vec::new();
        let mut moment = first_moment;
        // Ends of live rows, and the blocks' addresses that are free again, by size.
        let mut ends: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let mut reusable: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut next_address = 1 << 30;
        for row in 0..count as u32 {
            moment += random.u64(0..4);
            while let Some((&end, _)) = ends.first_key_value().filter(|(end, _)| **end <= moment) {
                for row in ends.remove(&end).unwrap_or_default() {
                    let one = rows[row as usize];
                    reusable.entry(one.size).or_default().push(one.address);
                }
            }
            let size = 512 * (1 << random.u64(0..12)) + 512 * random.u64(0..3);
            let most = 4 << random.u64(0..14);
            let lifetime = 1 + random.u64(0..most);
            let end = if random.u8(..) < 2 { u64::MAX } else { moment + lifetime };
            let address = reusable.get_mut(&size).and_then(Vec::pop).unwrap_or_else(|| {
                next_address += size;
                next_address - size
            });
            rows.push(TestRow { first_moment: moment, end, size, address, group: random.u32(0..groups) });
            ends.entry(end).or_default().push(row);
        }
        // Ends after the last start are unknown yet.
        for one in &mut rows {
            one.end = if one.end > moment { u64::MAX } else { one.end };
        }
        Self::new(rows)
    }

    /// Returns the last moment.
    pub(crate) fn end_moment(&self) -> u64 {
        self.changes.last().map_or(0, |&(moment, _, _)| moment)
    }

    /// Returns the rows that are live at a moment, with their numbers.
    pub(crate) fn live_at(&self, moment: u64) -> impl Iterator<Item = (u32, &TestRow)> {
        (0..).zip(&self.rows).filter(move |(_, one)| one.first_moment <= moment && one.end > moment)
    }

    /// Returns the live bytes at every moment from `first` to the last one.
    fn totals(&self, first: u64) -> Vec<u64> {
        let mut totals = Vec::new();
        let (mut position, mut total) = (0, 0);
        for moment in first..=self.end_moment() {
            while let Some(&(_, row, is_start)) = self.changes.get(position).filter(|change| change.0 <= moment) {
                let size = self.rows[row as usize].size;
                total = if is_start { total + size } else { total - size };
                position += 1;
            }
            totals.push(total);
        }
        totals
    }
}

impl AllocationRows for TestRows {
    fn change_count(&self) -> usize {
        self.known
    }
    fn change(&self, position: usize) -> Change {
        let (moment, row, is_start) = self.changes[position];
        let TestRow { size, group, .. } = self.rows[row as usize];
        Change { moment, row, is_start, is_relabel: false, bytes: size, group }
    }
    fn span(&self, row: u32) -> AllocationSpan {
        let TestRow { first_moment, end, size, group, .. } = self.rows[row as usize];
        AllocationSpan { first_moment, end, size, group }
    }
    fn address(&self, row: u32) -> u64 {
        self.rows[row as usize].address
    }
}

/// Builds the series of `rows` in small steps.
pub(crate) fn series_of(rows: &impl AllocationRows, first_moment: u64, end_moment: u64) -> CompositionSeries {
    let mut series = CompositionSeries::new(first_moment);
    while !series.step(rows, end_moment, 997) {}
    series
}

/// Returns `columns` + 1 edges between two moments.
pub(crate) fn edges(first: u64, last: u64, columns: u64) -> Vec<u64> {
    (0..=columns).map(|column| first + (last - first) * column / columns).collect()
}

/// Checks columns between random moments: their moment is the first of the most live bytes, and
/// their layers are those of the live rows then.
fn check_columns(rows: &TestRows, series: &CompositionSeries, first: u64, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let totals = rows.totals(first);
    let last = rows.end_moment();
    for round in 0..40 {
        let start = random.u64(first..=last);
        let end = (start + random.u64(0..=(last - first) >> (round % 16))).min(last);
        let edges = edges(start, end, random.u64(1..60));
        for (pair, column) in edges.windows(2).zip(series.columns(rows, &edges)) {
            let range = &totals[(pair[0] - first) as usize..=(pair[1] - first) as usize];
            let highest = *range.iter().max().expect("a column has a moment");
            let at = range.iter().position(|&total| total == highest).expect("it is there") as u64;
            assert_eq!((column.total, column.moment), (highest, pair[0] + at), "column {pair:?}");
            assert_eq!(column.layers.iter().sum::<u64>(), column.total);
        }
        let moment = random.u64(first..=last);
        let mut layers = [0; LAYERS];
        for (_, one) in rows.live_at(moment) {
            layers[usize::from(series.layer_of(one.group))] += one.size;
        }
        assert_eq!(series.at(rows, moment).layers, layers, "moment {moment}");
    }
}

#[test]
fn columns_show_the_most_live_bytes_of_random_histories() {
    for (seed, count, groups) in [(1, 300, 4), (2, 5_000, 60), (3, 60_000, 300)] {
        for first in [0, 1 << 40] {
            let rows = TestRows::random(seed, count, groups, first);
            let series = series_of(&rows, first, rows.end_moment());
            check_columns(&rows, &series, first, seed);
            assert_eq!(series.peak().1, *rows.totals(first).iter().max().expect("there are moments"));
        }
    }
}

#[test]
fn series_grows_with_a_live_recording() {
    let mut rows = TestRows::random(7, 30_000, 40, 0);
    let all = rows.known;
    let mut series = CompositionSeries::new(0);
    rows.known = 0;
    assert!(series.step(&rows, 0, 100));
    for known in (0..all).step_by(977).chain([all]) {
        rows.known = known;
        let moment = known.checked_sub(1).map_or(0, |last| rows.change(last).moment);
        while !series.step(&rows, moment, 100) {}
        assert_eq!(series.moments(), (0, moment));
    }
    check_columns(&rows, &series, 0, 7);
}

#[test]
fn groups_with_the_highest_peaks_have_layers() {
    let row =
        |group: u32, size: u64| TestRow { first_moment: u64::from(group), end: u64::MAX, size, address: 0, group };
    let rows = TestRows::new((0..100).map(|group| row(group, 1000 + u64::from(group * 37 % 100))).collect());
    let series = series_of(&rows, 0, 100);
    let mut expected: Vec<u32> = (0..100).collect();
    expected.sort_by_key(|group| std::cmp::Reverse(group * 37 % 100));
    expected.truncate(LAYERS - 1);
    assert_eq!(series.groups(), expected);
    assert_eq!(series.layer_of(expected[3]), 3);
    assert_eq!(series.layer_of(12_345), OTHER_LAYER);
    assert!(!series.is_outdated());
}

#[test]
fn series_is_outdated_once_another_group_holds_much_more() {
    let row =
        |moment: u64, group: u32, size: u64| TestRow { first_moment: moment, end: u64::MAX, size, address: 0, group };
    let mut all: Vec<TestRow> = (0..30).map(|group| row(u64::from(group), group, 1000)).collect();
    all.extend((30..60).map(|moment| row(moment, 29, 100)));
    let mut rows = TestRows::new(all);
    rows.known = 30;
    let mut series = series_of(&rows, 0, 30);
    assert_eq!(series.layer_of(29), OTHER_LAYER);
    assert!(!series.is_outdated());
    rows.known = 60;
    while !series.step(&rows, 60, 7) {}
    assert!(series.is_outdated());
    assert!(series_of(&rows, 0, 60).layer_of(29) < OTHER_LAYER);
}

/// Builds the whole history of a recording.
pub(crate) fn history_of(recording: &Recording) -> History {
    let mut history = History::new();
    while !history.extend(recording, 3_000).expect("the recording is valid").is_complete {}
    history.infer_categories(recording);
    history
}

/// Returns a copy of a recording in which live blocks get other sites of it over time.
fn relabeled(recording: &Recording) -> Recording {
    let mut decoder = Decoder::new();
    recording.bytes_in_memory().for_each(|bytes| decoder.push(&bytes));
    let mut encoder = Encoder::new(recording.info());
    let mut random = fastrand::Rng::with_seed(3);
    let sites = recording.definitions().site_count() as u32;
    while let Some(item) = decoder.next_item().expect("the recording is valid") {
        match item {
            DecodedItem::Define(definition) => encoder.define(&definition),
            DecodedItem::FullState(state) if encoder.state().event() == 0 => encoder.replace_state(&state),
            DecodedItem::Event(event) => {
                encoder.event(&event);
                let Event { device, time_ns, .. } = event;
                let blocks = encoder.state().device(device).map_or(0, |state| state.blocks().len());
                if blocks > 0 && random.u32(0..9) == 0 {
                    let index = random.usize(0..blocks);
                    let block = encoder.state().device(device).and_then(|state| state.blocks().nth(index).copied());
                    let address = block.expect("the index is below the number of blocks").address;
                    encoder.relabel(&Relabel { device, time_ns, address, site: SiteId(random.u32(0..=sites)) });
                }
            }
            _ => {}
        }
    }
    encoder.flush();
    let mut relabeled = Recording::new();
    for chunk in encoder.take_output() {
        relabeled.push(&chunk.bytes).expect("an encoder writes valid chunks");
    }
    relabeled
}

#[test]
fn layers_equal_the_memory_state_of_recordings() {
    for name in
        ["mlp_train.pickle.zst", "ring.pickle.zst", "streams.pickle.gz", "graphs.pickle.zst", "two_devices.pickle.gz"]
    {
        let plain = snapshot(name);
        let relabeled = relabeled(&plain);
        check_layers(&plain, true);
        check_layers(&relabeled, false);
    }
}

/// Checks the layers of every device of a recording with several groupings. Unless `is_plain`,
/// blocks change their groups.
fn check_layers(recording: &Recording, is_plain: bool) {
    let history = history_of(recording);
    let (first, last) = (recording.first_event(), recording.end_event());
    for (id, lifetimes) in history.all_lifetimes().devices() {
        for by in [GroupBy::Site, GroupBy::Category, GroupBy::Size, GroupBy::Stream, GroupBy::Pool] {
            let mut grouping = Grouping::of(by, recording).with_categories(&history.categories(id));
            let mut groups = RowGroups::default();
            groups.update(&mut grouping, lifetimes);
            let rows = DeviceRows { lifetimes, groups: &groups };
            let series = series_of(&rows, first, last);
            check_recording(recording, id, &rows, &series, &mut grouping);
            if is_plain {
                check_counted_layers(&rows, &series, &edges(first, last, 12));
            }
        }
    }
}

/// Checks that the layers of the allocations of one half and those of the other add up.
fn check_counted_layers(rows: &DeviceRows, series: &CompositionSeries, edges: &[u64]) {
    let columns = series.columns(rows, edges);
    let moments: Vec<u64> = columns.iter().map(|column| column.moment).collect();
    let [even, odd] = [0, 1].map(|half| series.layers_at(rows, &moments, |row| row.size / 512 % 2 == half));
    for ((column, even), odd) in columns.iter().zip(even).zip(odd) {
        let sums: Vec<u64> = even.iter().zip(odd).map(|(even, odd)| even + odd).collect();
        assert_eq!(column.layers[..], sums, "at {}", column.moment);
    }
}

/// Checks some columns of a recording against its memory states.
fn check_recording(
    recording: &Recording,
    id: DeviceId,
    rows: &DeviceRows,
    series: &CompositionSeries,
    grouping: &mut Grouping,
) {
    let mut replay = Replay::new();
    for column in series.columns(rows, &edges(recording.first_event(), recording.end_event(), 12)) {
        let state = replay.seek(recording, column.moment).expect("the recording is valid");
        let Some(device) = state.device(id) else { continue };
        assert_eq!(column.total, device.counters().active, "at {}", column.moment);
        let mut layers = [0; LAYERS];
        for block in device.blocks() {
            layers[usize::from(series.layer_of(grouping.group_of(block)))] += block.size;
        }
        assert_eq!(column.layers, layers, "at {}", column.moment);
    }
}
