//! Scales, orders, zoom, colors and legend of the heatmap.

use std::collections::BTreeSet;

use vramscope_draw::{Bitmap, Color, Theme, Typesetter};
use vramscope_insight::group::Grouping;
use vramscope_trace::{
    Block, Definitions, DeviceId, DeviceState, MemoryState, MempoolId, PoolKey, PoolKind, Segment, SiteId, StreamId,
};
use vramscope_viewer::segment_map::{
    self, AgeScale, AgeUnit, BlockGroups, ColorBy, Fill, HeatmapContent, HeatmapScene, Layout, LegendSwatch, Scaling,
    SegmentBadges, SortBy, View,
};

use crate::testing::samples::{Sample, open_sample, states};

const MIB: u64 = 1 << 20;
const SIZE: (u32, u32) = (900, 360);

fn segment(address: u64, size: u64) -> Segment {
    let pool = PoolKey::default_of(if size > 2 * MIB { PoolKind::Large } else { PoolKind::Small });
    Segment { address, size, stream: StreamId(0), pool, expandable: false, site: SiteId(0), since_event: 0 }
}

fn block(address: u64, size: u64, since_event: u64) -> Block {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    Block { address, size, requested: size, stream, pool, site, pending_free: false, since_event, since_ns: 0 }
}

/// Returns a device with segments of default and private pools, of a stream, and an expandable
/// segment with a hole.
pub(crate) fn mixed_state() -> MemoryState {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    let private = PoolKey { kind: PoolKind::Large, owner: MempoolId(0, 1) };
    let base = 0x7f00_0000_0000;
    device.insert_segment(segment(base, 2 * MIB));
    device.insert_segment(segment(base + 4 * MIB, 2 * MIB));
    device.insert_segment(segment(base + 8 * MIB, 20 * MIB));
    device.insert_segment(Segment { pool: private, ..segment(base + 64 * MIB, 40 * MIB) });
    device.insert_segment(Segment { stream: StreamId(7), ..segment(base + 128 * MIB, 20 * MIB) });
    let expandable = Segment { expandable: true, pool: private, stream: StreamId(7), ..segment(0, 0) };
    for (at, size) in [(1024, 60), (1110, 30), (1160, 100)] {
        device.insert_segment(Segment { address: base + at * MIB, size: size * MIB, ..expandable });
    }
    for (index, at) in
        [0u64, 1, 4, 8, 12, 20, 64, 70, 90, 128, 140, 1024, 1040, 1112, 1160, 1200, 1230].iter().enumerate()
    {
        let size = if *at < 8 { MIB / 2 } else { (3 + index as u64 % 5) * MIB };
        let pending_free = index % 6 == 4;
        let requested = if index % 4 == 2 { size * 2 / 3 } else { size };
        let since_event = (index as u64).pow(3);
        device.insert_block(Block { pending_free, requested, ..block(base + at * MIB, size, since_event) });
    }
    state
}

fn device_of(state: &MemoryState) -> &DeviceState {
    state.device(DeviceId(0)).expect("the device has memory")
}

fn scene(content: HeatmapContent, view: View) -> HeatmapScene {
    let layout = Layout::new(content.device, SIZE, 1.0, view);
    HeatmapScene::new(layout, SIZE.0 as i32, content, &Typesetter::new())
}

fn draw(scene: &HeatmapScene, theme: &Theme) -> Bitmap {
    let mut frame = Bitmap::new(SIZE.0, SIZE.1, Color::default());
    segment_map::draw(scene, theme, &mut frame, &mut Typesetter::new());
    frame
}

const COMMON: View =
    View { zoom: 1.0, scroll: 0, column_zoom: 1.0, column_start: 0.0, scaling: Scaling::Common, sort: SortBy::Address };

#[test]
fn common_scale_shows_all_bytes_in_proportion() {
    let crowd = states(Sample::Crowd).pop().expect("a state");
    for state in [&mixed_state(), &crowd] {
        let device = device_of(state);
        for zoom in [1.0, 2.7, 60.0] {
            let view = View { column_zoom: zoom, ..COMMON };
            let mut columns = std::collections::BTreeMap::new();
            let mut scroll = 0;
            loop {
                let layout = Layout::new(device, SIZE, 1.0, View { scroll, ..view });
                let bytes_per_pixel = layout.common_bytes_per_pixel.expect("a common scale");
                for row in &layout.rows {
                    assert_eq!(row.bytes_per_pixel, bytes_per_pixel);
                    columns
                        .insert((row.segment.address, row.line), (row.x1 - row.x0, row.segment.size, bytes_per_pixel));
                }
                if scroll >= layout.max_scroll {
                    break;
                }
                scroll += 100;
            }
            let addresses: BTreeSet<u64> = columns.keys().map(|&(address, _)| address).collect();
            for address in addresses {
                let of_segment = columns.range((address, 0)..=(address, u32::MAX));
                let total: i64 = of_segment.clone().map(|(_, &(columns, ..))| i64::from(columns)).sum();
                let Some((_, &(_, size, bytes_per_pixel))) = of_segment.clone().next() else { continue };
                let expected = (size as f64 / bytes_per_pixel).max(2.0);
                assert!((total as f64 - expected).abs() <= 1.0, "{total} columns instead of {expected}");
            }
        }
    }
}

#[test]
fn small_segments_share_lines_only_without_room() {
    let mixed = mixed_state();
    let layout = Layout::new(device_of(&mixed), SIZE, 1.0, COMMON);
    assert!(layout.rows.iter().all(|row| row.x0 == layout.map.x0), "each of few segments begins on a line");
    assert_eq!(layout.max_scroll, 0);
    let crowd = states(Sample::Crowd).pop().expect("a state");
    let layout = Layout::new(device_of(&crowd), SIZE, 1.0, COMMON);
    assert!(layout.rows.iter().any(|row| row.x0 > layout.map.x0), "many segments share lines");
    assert_eq!(layout.max_scroll, 0, "everything fits");
    let address = |row: &&segment_map::Row| row.segment.address;
    let shown: BTreeSet<u64> = layout.rows.iter().map(|row| address(&row)).collect();
    assert_eq!(shown.len(), layout.segment_count());
    let gap = layout.rows.iter().find(|row| row.x0 > layout.map.x0).expect("a shared line");
    assert_eq!(layout.hit(device_of(&crowd), gap.x0 - 1, gap.y0), None, "nothing is between segments");
}

#[test]
fn rows_are_sorted() {
    let mixed = mixed_state();
    let device = device_of(&mixed);
    for scaling in Scaling::ALL {
        let order = |sort| {
            let layout = Layout::new(device, SIZE, 1.0, View { scaling, sort, ..View::default() });
            let mut rows: Vec<_> = layout.rows.iter().map(|row| (row.segment, row.mapped_bytes)).collect();
            rows.dedup();
            rows
        };
        let by_address = order(SortBy::Address);
        assert!(by_address.is_sorted_by_key(|(segment, _)| segment.address));
        assert!(order(SortBy::Size).is_sorted_by_key(|&(_, bytes)| std::cmp::Reverse(bytes)));
        assert!(order(SortBy::Pool).is_sorted_by_key(|(segment, _)| (segment.pool.owner.1, segment.stream)));
        let free = |address: u64, end: u64, mapped: u64| {
            let live: u64 =
                device.blocks().filter(|one| (address..end).contains(&one.address)).map(|one| one.size).sum();
            1.0 - live as f64 / mapped as f64
        };
        let shares: Vec<f64> = order(SortBy::FreeShare)
            .into_iter()
            .map(|(segment, mapped)| free(segment.address, segment.end(), mapped))
            .collect();
        assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
        assert_eq!(by_address.len(), 6, "the parts of the expandable segment are one row");
    }
}

#[test]
fn zoom_keeps_the_address_under_the_pointer() {
    let mut random = fastrand::Rng::with_seed(7);
    let crowd = states(Sample::Crowd).pop().expect("a state");
    for state in [&mixed_state(), &crowd] {
        let device = device_of(state);
        for _ in 0..60 {
            let scaling = Scaling::ALL[random.usize(..2)];
            let view =
                View { scaling, column_zoom: 1.0 + 9.0 * random.f64(), column_start: random.f64(), ..View::default() };
            let layout = Layout::new(device, SIZE, 1.0, view);
            let (x, y) = (random.i32(layout.map.x0..layout.map.x1), random.i32(layout.map.y0..layout.map.y1));
            let Some(row) = layout.row_at(x, y) else { continue };
            let address = |row: &segment_map::Row, x: i32| {
                row.segment.address as f64 + row.offset + f64::from(x - row.x0) * row.bytes_per_pixel
            };
            let pointed = address(row, x);
            if pointed >= row.segment.end() as f64 {
                continue;
            }
            let zoomed = Layout::new(device, SIZE, 1.0, layout.zoom_columns(device, 1.5, (x, y)));
            assert!((zoomed.view.column_zoom / layout.view.column_zoom - 1.5).abs() < 1e-6);
            if scaling == Scaling::EachSegment {
                let row = zoomed.row_at(x, y).expect("rows stay where they are");
                let error = (address(row, x) - pointed).abs() / row.bytes_per_pixel;
                assert!(error < 1.0 || zoomed.view.column_start == 0.0, "moved by {error} pixels");
            } else if zoomed.scroll > 0 && zoomed.scroll < zoomed.max_scroll {
                let rows: Vec<_> = zoomed.rows_of(pointed as u64).collect();
                let row = rows.iter().rfind(|row| row.address() <= pointed as u64).expect("the address is in view");
                assert!((row.y0 - y).abs() <= row.y1 - row.y0 + 1, "the address is at this height");
            }
        }
    }
}

#[test]
fn every_address_can_be_revealed() {
    let mut random = fastrand::Rng::with_seed(9);
    let crowd = states(Sample::Crowd).pop().expect("a state");
    for state in [&mixed_state(), &crowd] {
        let device = device_of(state);
        let blocks: Vec<&Block> = device.blocks().collect();
        for _ in 0..80 {
            let view = View {
                zoom: 1.0 + 5.0 * random.f32(),
                scroll: random.i32(..4000),
                column_zoom: 1.0 + 30.0 * random.f64(),
                column_start: random.f64(),
                scaling: Scaling::ALL[random.usize(..2)],
                sort: SortBy::ALL[random.usize(..4)],
            };
            let layout = Layout::new(device, SIZE, 1.0, view);
            let block = blocks[random.usize(..blocks.len())];
            let revealed = layout.reveal(block.address).expect("a block is in a segment");
            let shown = Layout::new(device, SIZE, 1.0, revealed);
            let is_shown = shown.rows_of(block.address).any(|row| {
                let is_in_map = row.y0 >= shown.map.y0 - 1 && row.y1 <= shown.map.y1 + 1;
                // A row can be higher than the map.
                let is_high = row.y1 - row.y0 >= shown.map.height() - 1;
                shown.columns(row, block.address, 1).is_some() && (is_in_map || is_high)
            });
            assert!(is_shown, "{block:?} is not shown by {revealed:?}");
            assert_eq!(shown.reveal(block.address), Some(revealed), "nothing moves if it is in view");
            assert_eq!(layout.reveal(1), None);
        }
    }
}

#[test]
fn hole_of_an_expandable_segment_is_shown_and_holds_nothing() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let scene = scene(HeatmapContent::new(device, &definitions), View::default());
    let layout = &scene.layout;
    let hole = 0x7f00_0000_0000 + 1090 * MIB;
    let row = layout.rows_of(hole).find(|row| layout.columns(row, hole, MIB).is_some()).expect("a row has the hole");
    assert_eq!(row.mapped_bytes, 190 * MIB);
    let (x0, _) = layout.columns(row, hole, MIB).expect("the hole is in view");
    assert_eq!(layout.hit(device, x0, row.y0 + 2), None);
    let texts: Vec<&str> = scene.legend.iter().map(|entry| entry.text.as_str()).collect();
    for text in ["unmapped", "private (0, 1)", "stream 7", "private (0, 1), stream 7, expandable"] {
        assert!(texts.contains(&text), "{text} is missing in {texts:?}");
    }
    let badges = SegmentBadges::new(&row.segment);
    assert_eq!(badges.names(), ["private (0, 1)", "stream 7", "expandable"]);
}

#[test]
fn group_colors_do_not_depend_on_the_moment() {
    let model = open_sample(Sample::Training);
    for color_by in ColorBy::ALL {
        let Some(by) = color_by.group_by() else { continue };
        let grouping = Grouping::of(by, model.recording());
        let mut groups = BlockGroups::new(grouping, Some(model.device_state()));
        let mut first = std::collections::HashMap::new();
        let bytes = |groups: &mut BlockGroups, index| -> u64 {
            let blocks: Vec<Block> = model.device_state().blocks().copied().collect();
            blocks.iter().filter(|block| groups.index_of(block) == index).map(|block| block.size).sum()
        };
        assert!(bytes(&mut groups, 0) >= bytes(&mut groups, 1), "the largest group is the first");
        for state in states(Sample::Training).iter().rev().step_by(9) {
            let Some(device) = state.device(DeviceId(0)) else { continue };
            for block in device.blocks() {
                let index = groups.index_of(block);
                let name = groups.name(model.recording().definitions(), index);
                assert!(!name.is_empty());
                assert_eq!(*first.entry(name).or_insert(index), index);
            }
        }
    }
}

#[test]
fn legend_counts_the_bytes_in_view() {
    let model = open_sample(Sample::Training);
    let (device, definitions) = (model.device_state(), model.recording().definitions());
    for color_by in [ColorBy::Category, ColorBy::Site, ColorBy::Module] {
        for scaling in Scaling::ALL {
            let by = color_by.group_by().expect("a grouping");
            let mut groups = BlockGroups::new(Grouping::of(by, model.recording()), Some(device));
            let content =
                HeatmapContent { color_by, groups: Some(&mut groups), ..HeatmapContent::new(device, definitions) };
            let scene = scene(content, View { scaling, ..View::default() });
            let bytes: u64 = scene.legend.iter().filter_map(|entry| entry.bytes).sum();
            let active = device.counters().active;
            assert!(bytes.abs_diff(active) < active / 50, "{bytes} of {active} bytes by {color_by:?}");
            assert!(scene.legend.iter().all(|entry| !entry.text.is_empty()));
        }
    }
}

#[test]
fn legend_sums_up_small_groups() {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    device.insert_segment(segment(1 << 40, 64 * MIB));
    for stream in 0..40 {
        let at = (1 << 40) + stream * MIB;
        device.insert_block(Block { stream: StreamId(stream), ..block(at, 4096 + stream * 8192, 0) });
    }
    let device = device_of(&state);
    let grouping = Grouping::new(ColorBy::Stream.group_by().expect("a grouping"), 0);
    let mut groups = BlockGroups::new(grouping, Some(device));
    let definitions = Definitions::default();
    let content = HeatmapContent {
        color_by: ColorBy::Stream,
        groups: Some(&mut groups),
        ..HeatmapContent::new(device, &definitions)
    };
    let scene = scene(content, View::default());
    let named = scene.legend.iter().filter(|entry| matches!(entry.swatch, LegendSwatch::Fill(Fill::Group(_)))).count();
    assert_eq!(named, 10);
    let others = scene.legend.iter().find(|entry| entry.swatch == LegendSwatch::OtherGroups).expect("others");
    assert_eq!(others.text, "30 others");
}

#[test]
fn highlighted_blocks_keep_their_color_and_others_are_dimmed() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let chosen = 0x7f00_0000_0000 + 64 * MIB;
    let highlight = |block: &Block| block.address == chosen;
    for theme in [Theme::new(true), Theme::new(false)] {
        let plain = scene(HeatmapContent::new(device, &definitions), View::default());
        let content = HeatmapContent { highlight: Some(&highlight), ..HeatmapContent::new(device, &definitions) };
        let dimmed = scene(content, View::default());
        let (before, after) = (draw(&plain, &theme), draw(&dimmed, &theme));
        for block in device.blocks().filter(|block| block.size > MIB) {
            for row in plain.layout.rows_of(block.address) {
                let Some((x0, x1)) = plain.layout.columns(row, block.address, block.requested) else { continue };
                let is_same = ((x0 + 2)..(x1 - 2)).all(|x| before.pixel(x, row.y0 + 3) == after.pixel(x, row.y0 + 3));
                assert_eq!(is_same, block.address == chosen || x1 - x0 < 5, "{block:?}");
            }
        }
    }
}

#[test]
fn proposed_range_is_outlined() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let (theme, range) = (Theme::new(true), (0x7f00_0000_0000 + 100 * MIB, 3 * MIB));
    for scaling in Scaling::ALL {
        let scene = scene(HeatmapContent::new(device, &definitions), View { scaling, ..View::default() });
        let plain = draw(&scene, &theme);
        let mut frame = plain.clone();
        segment_map::draw_placement(&mut frame, &scene.layout, &theme, range);
        let row = scene.layout.rows_of(range.0).find(|row| scene.layout.columns(row, range.0, range.1).is_some());
        let row = row.expect("the range is in view");
        let (x0, x1) = scene.layout.columns(row, range.0, range.1).expect("the range is in view");
        let changed = (x0..x1).filter(|&x| frame.pixel(x, row.y0 + 2) != plain.pixel(x, row.y0 + 2)).count();
        assert_eq!(changed, (x1 - x0) as usize, "the range is tinted");
        assert_eq!(frame.pixel(x0 - 8, row.y0 + 2), plain.pixel(x0 - 8, row.y0 + 2));
    }
}

#[test]
fn ages_and_sizes_are_on_an_ordered_scale() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let ages = AgeScale { unit: AgeUnit::Events, now: 5000, longest: 5000 };
    for color_by in [ColorBy::Age, ColorBy::LastChange, ColorBy::Size] {
        let content = HeatmapContent { color_by, ages, ..HeatmapContent::new(device, &definitions) };
        let scene = scene(content, View::default());
        let scale = scene.legend.iter().filter(|entry| matches!(entry.swatch, LegendSwatch::Fill(Fill::Amount(_))));
        assert_eq!(scale.count(), 5);
        let theme = Theme::new(true);
        let frame = draw(&scene, &theme);
        let color = |address: u64| {
            let row = scene.layout.rows_of(address).next().expect("a row");
            let (x0, _) = scene.layout.columns(row, address, MIB).expect("in view");
            frame.pixel(x0 + 4, row.y0 + 3)
        };
        let base = 0x7f00_0000_0000;
        assert_ne!(color(base), color(base + 20 * MIB), "{color_by:?}");
    }
    let texts = |color_by| {
        let content = HeatmapContent { color_by, ages, ..HeatmapContent::new(device, &definitions) };
        scene(content, View::default()).legend.into_iter().map(|entry| entry.text).collect::<Vec<_>>()
    };
    assert_eq!(&texts(ColorBy::Age)[..2], ["now", "7 events ago"]);
    assert_eq!(texts(ColorBy::LastChange)[4], "now");
    assert_eq!(&texts(ColorBy::Size)[..5], ["512 B", "32 KiB", "2 MiB", "128 MiB", "8 GiB"]);
}

/// Returns a device with `segments` segments of 100 blocks each.
fn crowded(segments: u64) -> MemoryState {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    for index in 0..segments {
        let (address, size) = ((1 << 40) + index * 64 * MIB, [2, 20, 2, 34][(index % 4) as usize] * MIB);
        device.insert_segment(segment(address, size));
        for at in 0..100 {
            device.insert_block(block(address + at * (size / 100 / 512 * 512), size / 130, index * 100 + at));
        }
    }
    state
}

#[test]
fn cost_depends_on_the_part_in_view() {
    let state = crowded(10_000);
    let (device, definitions) = (device_of(&state), Definitions::default());
    assert_eq!(device.blocks().len(), 1_000_000);
    let visited = |scaling, column_zoom| {
        let view = View { scaling, column_zoom, scroll: 3000, ..View::default() };
        let (size, typesetter) = ((1600, 700), Typesetter::new());
        let layout = Layout::new(device, size, 1.0, view);
        HeatmapScene::new(layout, 1600, HeatmapContent::new(device, &definitions), &typesetter).visited()
    };
    // Rows of 100 blocks and 100 free ranges, each visited for its columns and its fragmentation.
    assert!(visited(Scaling::EachSegment, 1.0) <= 120_000);
    assert!(visited(Scaling::EachSegment, 50.0) <= 70_000);
    assert!(visited(Scaling::Common, 50.0) <= 90_000);
    assert!(visited(Scaling::Common, 1.0) <= 2_100_000, "everything is in view, and visited once");
}

/// Prints the times of a frame: `cargo test --release -p vramscope-viewer --test it
/// heatmap::speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    let state = crowded(10_000);
    let (device, definitions) = (device_of(&state), Definitions::default());
    let (size, theme) = ((1600, 700), Theme::new(true));
    let (mut frame, mut typesetter) = (Bitmap::new(size.0, size.1, Color::default()), Typesetter::new());
    for (scaling, column_zoom) in
        [(Scaling::EachSegment, 1.0), (Scaling::EachSegment, 50.0), (Scaling::Common, 50.0), (Scaling::Common, 1.0)]
    {
        let view = View { scaling, column_zoom, scroll: 3000, ..View::default() };
        let mut best = [std::time::Duration::MAX; 3];
        for _ in 0..20 {
            let start = std::time::Instant::now();
            let layout = Layout::new(device, size, 1.0, view);
            let laid_out = start.elapsed();
            let scene = HeatmapScene::new(layout, 1600, HeatmapContent::new(device, &definitions), &typesetter);
            let computed = start.elapsed();
            segment_map::draw(&scene, &theme, &mut frame, &mut typesetter);
            for (best, time) in best.iter_mut().zip([laid_out, computed, start.elapsed()]) {
                *best = (*best).min(time);
            }
        }
        println!("{scaling:?}, columns ×{column_zoom}: layout, with scene, with drawing: {best:?}");
    }
}
