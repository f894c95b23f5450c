//! Allocations as bands and by address, against all allocations that are live at a moment.

use vramscope_insight::address_map::{AddressHit, AddressMap, MapPixel, SegmentHistory, SegmentSpans};
use vramscope_insight::bands::{BandHit, BandIndex, BandLayout};
use vramscope_insight::composition::{AllocationRows, CompositionSeries, DeviceRows, LAYERS, RowGroups};
use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, Replay, SiteId, StreamId};

use crate::composition::{TestRows, edges, history_of, series_of};
use crate::recordings::snapshot;

/// Builds the index of `rows` in small steps.
fn index_of(rows: &impl AllocationRows) -> BandIndex {
    let mut index = BandIndex::new();
    while !index.step(rows, 991) {}
    index
}

/// Checks every column of a layout: its bands are the live allocations of at least the least size,
/// in the order of their starts, and the layers below are all others.
fn check_layout(rows: &TestRows, series: &CompositionSeries, layout: &BandLayout) {
    for column in 0..layout.column_count() {
        let (moment, total) = layout.column(column).expect("it is a column");
        let mut small = [0; LAYERS];
        let mut large = Vec::new();
        for (row, one) in rows.live_at(moment) {
            if one.size >= layout.min_size() {
                large.push(row);
            } else {
                small[usize::from(series.layer_of(one.group))] += one.size;
            }
        }
        let (mut found_small, mut found_large, mut top) = ([0; LAYERS], Vec::new(), 0);
        for cell in layout.cells(column) {
            assert_eq!(cell.bottom, top, "column {column} has no gaps");
            top = cell.top;
            match cell.content {
                BandHit::Small { layer } => found_small[usize::from(layer)] += cell.top - cell.bottom,
                BandHit::Band(band) => {
                    let band = layout.bands()[band as usize];
                    assert_eq!((band.size, band.layer), (cell.top - cell.bottom, cell.layer));
                    assert!((band.first_column..band.end_column).contains(&(column as u32)));
                    found_large.push(band.row);
                }
            }
        }
        assert_eq!((top, found_small, found_large), (total, small, large), "column {column} at {moment}");
    }
}

#[test]
fn bands_and_layers_are_all_live_allocations() {
    for (seed, count, first) in [(1, 400, 0), (2, 4_000, 1 << 40), (3, 20_000, 5)] {
        let rows = TestRows::random(seed, count, 50, first);
        let (series, index) = (series_of(&rows, first, rows.end_moment()), index_of(&rows));
        let mut random = fastrand::Rng::with_seed(seed);
        for round in 0..30 {
            let last = rows.end_moment();
            let start = random.u64(first..=last);
            let end = (start + random.u64(0..=(last - first) >> (round % 12))).min(last);
            let columns = series.columns(&rows, &edges(start, end, random.u64(1..40)));
            let highest = columns.iter().map(|column| column.total).max().unwrap_or(0);
            let visible = if round % 3 == 0 { highest / 3..highest / 2 } else { 0..highest };
            let layout = BandLayout::new((&index, &rows), &series, &columns, &visible, random.u32(1..300));
            assert!(layout.min_size() as f64 >= layout.scale().bytes_per_row().floor());
            check_layout(&rows, &series, &layout);
        }
    }
}

#[test]
fn index_grows_with_a_live_recording() {
    let mut rows = TestRows::random(9, 8_000, 30, 0);
    let all = rows.clone();
    let mut index = BandIndex::new();
    // An end that is not known yet is not visible in the rows either.
    let mut known = 0;
    while known < all.known {
        known = (known + 700).min(all.known);
        rows.known = known;
        let moment = all.change(known - 1).moment;
        for (one, complete) in rows.rows.iter_mut().zip(&all.rows) {
            one.end = if complete.end > moment { u64::MAX } else { complete.end };
        }
        // The last known change may be one of several at its moment.
        if known < all.known && all.change(known).moment == moment {
            known = known.saturating_sub(350);
            continue;
        }
        while !index.step(&rows, 100) {}
        let series = series_of(&rows, 0, moment);
        let columns = series.columns(&rows, &edges(0, moment, 20));
        let layout = BandLayout::new((&index, &rows), &series, &columns, &(0..columns[19].total.max(1)), 100);
        for column in 0..20 {
            let (moment, _) = layout.column(column).expect("it is a column");
            let live = rows
                .live_at(moment)
                .filter(|(row, one)| one.size >= layout.min_size() && (0..known).any(|at| rows.change(at).row == *row));
            let bands = layout.cells(column).filter(|cell| matches!(cell.content, BandHit::Band(_)));
            assert_eq!(bands.count(), live.count(), "column {column} after {known} changes");
        }
    }
}

#[test]
fn hit_returns_the_content_of_the_pixel() {
    let rows = TestRows::random(4, 5_000, 30, 0);
    let (series, index) = (series_of(&rows, 0, rows.end_moment()), index_of(&rows));
    let columns = series.columns(&rows, &edges(0, rows.end_moment(), 200));
    let highest = columns.iter().map(|column| column.total).max().unwrap_or(0);
    let layout = BandLayout::new((&index, &rows), &series, &columns, &(0..highest), 250);
    let mut random = fastrand::Rng::with_seed(4);
    for _ in 0..1_000 {
        let (column, row) = (random.usize(0..200), random.u32(0..250));
        let scale = layout.scale();
        let filled = layout.cells(column).find(|cell| (scale.row(cell.bottom)..scale.row(cell.top)).contains(&row));
        assert_eq!(layout.hit(column, row), filled);
        assert_eq!(filled.is_some(), row < scale.row(columns[column].total));
        if let Some(BandHit::Band(band)) = filled.map(|cell| cell.content) {
            let (_, rows) = layout.rows_of(band).find(|&(at, _)| at as usize == column).expect("the band is there");
            assert!(rows.contains(&row));
            assert_eq!(layout.band_of(layout.bands()[band as usize].row), Some(band));
        }
    }
    assert_eq!(layout.hit(200, 0), None);
}

#[test]
fn magnified_layouts_are_bounded() {
    let rows = TestRows::random(5, 60_000, 30, 0);
    let (series, index) = (series_of(&rows, 0, rows.end_moment()), index_of(&rows));
    let columns = series.columns(&rows, &edges(0, rows.end_moment(), 2_000));
    let layout = BandLayout::new((&index, &rows), &series, &columns, &(0..1), 4_000);
    let cells: usize = (0..2_000).map(|column| layout.cells(column).count()).sum();
    assert!(cells <= (2 << 20) + 2_000 * LAYERS, "{cells} cells");
    for (at, column) in columns.iter().enumerate() {
        let top = layout.cells(at).last().map_or(0, |cell| cell.top);
        assert_eq!(top, column.total);
    }
}

/// Returns spans of two segments that contain all test allocations, the second one freed at
/// `freed`.
fn test_segments(freed: u64) -> SegmentSpans {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    let mut segments = SegmentSpans::new();
    for (moment, kind) in [
        (1, EventKind::SegmentAllocated { address: 1 << 30, size: 1 << 30, stream, pool, site }),
        (1, EventKind::SegmentAllocated { address: 1 << 40, size: 1 << 28, stream, pool, site }),
        (freed, EventKind::SegmentFreed { address: 1 << 40, size: 1 << 28, site }),
    ] {
        segments.event(moment, &Event { device: DeviceId(0), time_ns: 0, kind });
    }
    segments
}

/// Checks every `stride`-th pixel of a complete map against the allocations that are live then.
fn check_map(rows: &TestRows, map: &AddressMap, stride: usize) {
    let scale = map.scale();
    for x in (0..map.moments().len()).step_by(stride) {
        let live: Vec<_> = rows.live_at(map.moments()[x]).collect();
        for y in (0..scale.rows() as usize).step_by(stride) {
            let part = |address: u64, size: u64| {
                let on_axis = map.axis().locate(address, size).expect("it is in a segment");
                let position = |bytes: u64| bytes as f64 / scale.bytes_per_row();
                (position(on_axis.end).min(y as f64 + 1.0) - position(on_axis.start).max(y as f64)).max(0.0)
            };
            let parts: Vec<(f64, u32)> = live.iter().map(|&(row, one)| (part(one.address, one.size), row)).collect();
            let largest = parts.iter().map(|&(part, _)| part).fold(0.0, f64::max);
            match map.row(x, y) {
                Some(row) => {
                    let (shown, _) =
                        parts.iter().find(|&&(_, other)| other == row).expect("a live allocation is shown");
                    assert!(*shown > 0.0 && *shown >= largest / 2.0 - 1e-6, "{shown} of {largest} at {x}, {y}");
                    assert!(matches!(map.pixel(x, y), MapPixel::Allocation { .. }));
                }
                None => assert!(largest < 1e-6, "{largest} at {x}, {y} is not shown"),
            }
        }
    }
}

#[test]
fn every_covered_pixel_shows_a_large_cover() {
    for (seed, count, height) in [(1, 300, 400), (2, 8_000, 300), (3, 30_000, 50)] {
        let rows = TestRows::random(seed, count, 50, 1);
        let (series, index) = (series_of(&rows, 1, rows.end_moment()), index_of(&rows));
        let moments: Vec<u64> =
            series.columns(&rows, &edges(1, rows.end_moment(), 120)).iter().map(|column| column.moment).collect();
        let segments = test_segments(rows.end_moment() / 2);
        let whole = AddressMap::new(&segments, moments.clone(), None, height);
        let used = rows.rows.iter().map(|one| one.address + one.size).max().unwrap_or(0) - (1 << 30);
        for visible in [None, Some(0..used), Some(used / 4..used / 3)] {
            let mut map = AddressMap::new(&segments, moments.clone(), visible.clone(), height);
            assert_eq!(map.axis(), whole.axis());
            let mut steps = 0;
            while !map.step((&index, &rows), &series, 200) {
                steps += 1;
            }
            assert!(steps > 0 && map.is_complete());
            for large in map.large_rectangles() {
                let middle = |range: &std::ops::Range<usize>| range.start.midpoint(range.end);
                assert_eq!(map.row(middle(&large.columns), middle(&large.pixel_rows)), Some(large.row));
            }
            if visible.is_none_or(|visible| visible.start == 0) {
                check_map(&rows, &map, 3);
            }
        }
    }
}

#[test]
fn map_distinguishes_free_and_unreserved_memory() {
    let rows = TestRows::random(6, 3_000, 50, 1);
    let (series, index) = (series_of(&rows, 1, rows.end_moment()), index_of(&rows));
    let freed = rows.end_moment() / 2;
    let segments = test_segments(freed);
    let moments: Vec<u64> =
        series.columns(&rows, &edges(1, rows.end_moment(), 100)).iter().map(|column| column.moment).collect();
    let mut map = AddressMap::new(&segments, moments, None, 500);
    while !map.step((&index, &rows), &series, 10_000) {}
    let mut seen = [false; 4];
    for x in 0..100 {
        let moment = map.moments()[x];
        for y in 0..500 {
            let hit = map.hit((&index, &rows), &segments, (x, y));
            match (map.pixel(x, y), hit) {
                (MapPixel::Gap, None) => seen[0] = true,
                (MapPixel::NotReserved, Some(AddressHit::NotReserved { address, .. })) => {
                    assert!(address >= 1 << 40 && moment >= freed);
                    seen[1] = true;
                }
                (MapPixel::Free, Some(AddressHit::Free { address, size, moment: at })) => {
                    assert_eq!(at, moment);
                    let overlaps = rows
                        .live_at(moment)
                        .any(|(_, one)| one.address < address + size && address < one.address + one.size);
                    assert!(!overlaps && size > 0);
                    let is_end = |end: u64| end == 1 << 31 || end == (1 << 40) + (1 << 28);
                    assert!(
                        is_end(address + size) || rows.live_at(moment).any(|(_, one)| one.address == address + size)
                    );
                    seen[2] = true;
                }
                (MapPixel::Allocation { layer }, Some(AddressHit::Allocation { row })) => {
                    assert_eq!(layer, series.layer_of(rows.span(row).group));
                    let (columns, pixel_rows) = map.outline(&rows, row).expect("it is in the map");
                    assert!(columns.contains(&x) && pixel_rows.contains(&y));
                    seen[3] = true;
                }
                other => panic!("{other:?} at {x}, {y}"),
            }
        }
    }
    assert_eq!(seen, [true; 4]);
}

#[test]
fn segment_spans_equal_the_memory_state_of_recordings() {
    for name in [
        "mlp_train.pickle.zst",
        "frag_a_expandable.pickle.zst",
        "ring_graphs_expandable.pickle.gz",
        "two_devices.pickle.gz",
    ] {
        let recording = snapshot(name);
        let history = history_of(&recording);
        let (first, last) = (recording.first_event(), recording.end_event());
        let mut replay = Replay::new();
        let mut segments = SegmentHistory::new();
        while !segments.step(&recording, 777).expect("the recording is valid") {}
        assert_eq!(segments.moment(), last);
        for (id, lifetimes) in history.all_lifetimes().devices() {
            let spans = segments.device(id);
            let mut grouping = Grouping::of(GroupBy::Site, &recording);
            let mut groups = RowGroups::default();
            groups.update(&mut grouping, lifetimes);
            let rows = DeviceRows { lifetimes, groups: &groups };
            let (series, index) = (series_of(&rows, first, last), index_of(&rows));
            let columns = series.columns(&rows, &edges(first, last, 50));
            for column in &columns {
                let state = replay.seek(&recording, column.moment).expect("the recording is valid");
                let Some(device) = state.device(id) else { continue };
                let reserved: u64 = spans
                    .between(column.moment, column.moment)
                    .filter(|span| span.first_moment <= column.moment && span.end > column.moment)
                    .map(|span| span.size)
                    .sum();
                assert_eq!(reserved, device.counters().reserved, "{name} at {}", column.moment);
            }
            let highest = columns.iter().map(|column| column.total).max().unwrap_or(0);
            let layout = BandLayout::new((&index, &rows), &series, &columns, &(0..highest), 200);
            for (at, column) in columns.iter().enumerate() {
                let state = replay.seek(&recording, column.moment).expect("the recording is valid");
                let Some(device) = state.device(id) else { continue };
                let large = device.blocks().filter(|block| block.size >= layout.min_size());
                let bands = layout.cells(at).filter(|cell| matches!(cell.content, BandHit::Band(_)));
                assert_eq!(bands.count(), large.count(), "{name} at {}", column.moment);
                assert_eq!(layout.cells(at).last().map_or(0, |cell| cell.top), device.counters().active);
            }
            let moments = columns.iter().map(|column| column.moment).collect();
            let mut map = AddressMap::new(spans, moments, None, 200);
            while !map.step((&index, &rows), &series, 5_000) {}
            for x in (0..50).step_by(7) {
                let moment = map.moments()[x];
                let state = replay.seek(&recording, moment).expect("the recording is valid").clone();
                for y in (0..200).step_by(3) {
                    let hit = map.hit((&index, &rows), spans, (x, y));
                    let Some(AddressHit::Free { address, size, .. }) = hit else { continue };
                    let device = state.device(id).expect("memory is reserved");
                    let segment = device.segment_at(address).expect("free memory is in a segment");
                    let mut extents = device.extents(segment).filter(|extent| extent.block.is_none());
                    let is_same = extents.any(|extent| (extent.address, extent.size) == (address, size));
                    assert!(is_same, "{name}: {address:x} + {size} at {moment} is no free range of a segment");
                }
            }
        }
    }
}
