//! Bytes, orders, zoom, colors and legend of the device map.

use vramscope_draw::{Bitmap, Canvas, Color, Theme, Typesetter};
use vramscope_insight::group::Grouping;
use vramscope_insight::pools::{DeviceOwners, RequestSizes};
use vramscope_pool::Settings;
use vramscope_trace::{
    Block, Definitions, DeviceId, DeviceState, MemoryState, MempoolId, PoolKey, PoolKind, Segment, SiteId, StreamId,
};
use vramscope_viewer::device_map::{
    self, AgeScale, AgeUnit, BlockGroups, ColorBy, Fill, Layout, LegendEntry, LegendSwatch, LineContent, MapContent,
    MapScene, MapTexts, MemoryKind, MemoryLine, SortBy, View,
};

use crate::testing::samples::{Sample, open_sample, states};

const MIB: u64 = 1 << 20;
const SIZE: (u32, u32) = (900, 360);
/// Address of the first segment of [`mixed_state`].
pub(crate) const BASE: u64 = 0x7f00_0000_0000;

pub(crate) fn segment(address: u64, size: u64) -> Segment {
    let pool = PoolKey::default_of(if size > 2 * MIB { PoolKind::Large } else { PoolKind::Small });
    Segment { address, size, stream: StreamId(0), pool, expandable: false, site: SiteId(0), since_event: 0 }
}

pub(crate) fn block(address: u64, size: u64, since_event: u64) -> Block {
    let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
    Block { address, size, requested: size, stream, pool, site, pending_free: false, since_event, since_ns: 0 }
}

/// Returns a device with segments of default and private pools, of a stream, and an expandable
/// segment with a hole.
pub(crate) fn mixed_state() -> MemoryState {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    let private = PoolKey { kind: PoolKind::Large, owner: MempoolId(0, 1) };
    device.insert_segment(segment(BASE, 2 * MIB));
    device.insert_segment(segment(BASE + 4 * MIB, 2 * MIB));
    device.insert_segment(segment(BASE + 8 * MIB, 20 * MIB));
    device.insert_segment(Segment { pool: private, ..segment(BASE + 64 * MIB, 40 * MIB) });
    device.insert_segment(Segment { stream: StreamId(7), ..segment(BASE + 128 * MIB, 20 * MIB) });
    let expandable = Segment { expandable: true, pool: private, stream: StreamId(7), ..segment(0, 0) };
    for (at, size) in [(1024, 60), (1110, 30), (1160, 100)] {
        device.insert_segment(Segment { address: BASE + at * MIB, size: size * MIB, ..expandable });
    }
    for (index, at) in
        [0u64, 1, 4, 8, 12, 20, 64, 70, 90, 128, 140, 1024, 1040, 1112, 1160, 1200, 1230].iter().enumerate()
    {
        let size = if *at < 8 { MIB / 2 } else { (3 + index as u64 % 5) * MIB };
        let pending_free = index % 6 == 4;
        let requested = if index % 4 == 2 { size * 2 / 3 } else { size };
        let since_event = (index as u64).pow(3);
        device.insert_block(Block { pending_free, requested, ..block(BASE + at * MIB, size, since_event) });
    }
    state
}

pub(crate) fn device_of(state: &MemoryState) -> &DeviceState {
    state.device(DeviceId(0)).expect("the device has memory")
}

/// A map, and the memory that it shows.
pub(crate) struct Map<'a> {
    device: &'a DeviceState,
    line: MemoryLine,
    legend: Vec<LegendEntry>,
    is_ordered: bool,
}

impl<'a> Map<'a> {
    /// Puts the memory of a device on a line: the pool, and what `owners` has.
    pub(crate) fn with_owners(mut content: MapContent<'a>, sort: SortBy, owners: DeviceOwners) -> Self {
        let device = content.device;
        let (unfit, settings) = (RequestSizes::of_blocks(device).unfit_shares(), Settings::default());
        let line = MemoryLine::new(
            &mut content,
            &LineContent { owners, largest_pool_bytes: 0, unfit: &unfit, settings: &settings, sort },
        );
        let legend = device_map::legend(&content, &line);
        Self { device, line, legend, is_ordered: content.color_by.is_ordered() }
    }

    pub(crate) fn new(content: MapContent<'a>) -> Self {
        Self::with_owners(content, SortBy::Address, DeviceOwners::default())
    }

    fn layout(&self, view: View) -> Layout {
        Layout::new(&self.line, SIZE, 1.0, view)
    }

    pub(crate) fn scene(&self, layout: Layout) -> MapScene {
        let mut name = |block: &Block| format!("train.py:{}", block.since_event);
        MapScene::new(
            &self.line,
            layout,
            (self.device, self.is_ordered),
            MapTexts { name: &mut name, failed: None },
            &Typesetter::new(),
        )
    }

    pub(crate) fn draw(&self, layout: Layout, size: (u32, u32), theme: &Theme) -> Bitmap {
        let (mut bitmap, mut typesetter) = (Bitmap::new(size.0, size.1, Color::default()), Typesetter::new());
        let mut canvas = Canvas { bitmap: &mut bitmap, typesetter: &mut typesetter };
        device_map::draw_on(&self.scene(layout), theme, &mut canvas);
        bitmap
    }

    pub(crate) fn line(&self) -> &MemoryLine {
        &self.line
    }

    fn texts(&self) -> Vec<&str> {
        self.legend.iter().map(|entry| entry.text.as_str()).collect()
    }
}

/// Checks that the pixels of each kind stand for its bytes, to within a row of pixels, and that the
/// bytes add up.
fn check_pixels(map: &Map<'_>) {
    let bytes = map.line.bytes();
    let all: u64 = bytes.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(all, map.line.end());
    let active: u64 = map.device.blocks().map(|block| block.size).sum();
    let live = bytes.iter().filter(|(kind, _)| matches!(kind, MemoryKind::Live(_) | MemoryKind::Rounding(_)));
    assert_eq!(live.map(|(_, bytes)| bytes).sum::<u64>(), active);
    check_pixels_of(map, View::default());
}

/// Checks that the pixels of each kind stand for its bytes in a view that shows all.
fn check_pixels_of(map: &Map<'_>, view: View) {
    let scene = map.scene(map.layout(view));
    assert_eq!(scene.layout.max_scroll, 0, "all is in view");
    let bytes_per_pixel = scene.layout.bytes_per_column() / f64::from(scene.layout.row_pixels());
    let pixels = scene.pixels_by_kind();
    for (kind, bytes) in map.line.bytes().iter() {
        let drawn = pixels.iter().find(|(known, _)| *known == kind).map_or(0, |&(_, pixels)| pixels);
        let expected = bytes as f64 / bytes_per_pixel;
        let width = f64::from(scene.layout.map.width());
        assert!((drawn as f64 - expected).abs() <= width, "{kind:?}: {drawn} pixels instead of {expected}");
    }
}

#[test]
fn pixels_stand_for_bytes() {
    let model = open_sample(Sample::Training);
    let definitions = model.recording().definitions();
    for sample in [Sample::Training, Sample::Trouble, Sample::Crowd] {
        let states = states(sample);
        for state in states.iter().step_by(states.len() / 25 + 1).chain(states.last()) {
            let Some(device) = state.device(DeviceId(0)).filter(|device| device.segments().len() > 0) else { continue };
            for color_by in [ColorBy::State, ColorBy::Category, ColorBy::Size] {
                check_pixels(&Map::new(MapContent { color_by, ..MapContent::new(device, definitions) }));
            }
        }
    }
}

#[test]
fn owners_and_the_unknown_rest_are_on_the_line() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let reserved_bytes = device.segments().map(|segment| segment.size).sum();
    let owners = DeviceOwners { device_bytes: Some(1 << 30), reserved_bytes, ..DeviceOwners::default() };
    let map = Map::with_owners(MapContent::new(device, &definitions), SortBy::Address, owners);
    assert_eq!(map.line.end(), 1 << 30);
    assert_eq!(map.line.bytes().of(MemoryKind::Unknown), (1 << 30) - reserved_bytes);
    assert!(map.texts().contains(&"not recorded"), "{:?}", map.texts());
    let first = map.layout(View::default());
    assert_eq!((first.zoom, first.max_scroll), (1.0, 0), "a small pool fills the map");
    let whole = map.layout(View { zoom: Some(0.0), ..View::default() });
    assert!(whole.zoom < 1.0 && whole.max_scroll == 0, "the whole device fits: {whole:?}");
    let known = DeviceOwners {
        outside_bytes: Some(300 * MIB),
        others_bytes: Some(100 * MIB),
        free_bytes: Some((1 << 30) - reserved_bytes - 400 * MIB),
        ..owners
    };
    let map = Map::with_owners(MapContent::new(device, &definitions), SortBy::Address, known);
    let of = |kind| map.line.bytes().of(kind);
    assert_eq!((of(MemoryKind::Outside), of(MemoryKind::Others), of(MemoryKind::Unknown)), (300 * MIB, 100 * MIB, 0));
    check_pixels_of(&map, View { zoom: Some(0.0), ..View::default() });
}

#[test]
fn segments_are_sorted() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let order = |sort| {
        let map = Map::with_owners(MapContent::new(device, &definitions), sort, DeviceOwners::default());
        let addresses: Vec<u64> =
            (0..map.line.end()).step_by(MIB as usize).filter_map(|at| map.line.address_at(at)).collect();
        let mut segments: Vec<Segment> =
            addresses.iter().filter_map(|&address| device.segment_at(address).copied()).collect();
        segments.dedup();
        for &address in &addresses {
            let position = map.line.position_of(address).expect("the pool has the address");
            assert_eq!(map.line.address_at(position), Some(address));
        }
        segments
    };
    assert!(order(SortBy::Address).is_sorted_by_key(|segment| segment.address));
    assert!(order(SortBy::Size).is_sorted_by_key(|segment| std::cmp::Reverse(segment.size)));
    assert!(order(SortBy::Pool).is_sorted_by_key(|segment| (segment.pool.owner.1, segment.stream)));
    let free = |segment: &Segment| {
        let free = device.extents(segment).filter(|extent| extent.block.is_none()).map(|extent| extent.size);
        free.sum::<u64>() as f64 / segment.size as f64
    };
    let shares: Vec<f64> = order(SortBy::FreeShare).iter().map(free).collect();
    assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
}

#[test]
fn zoom_keeps_the_height_of_the_byte_under_the_pointer() {
    let mut random = fastrand::Rng::with_seed(7);
    let crowd = states(Sample::Crowd).pop().expect("a state");
    let definitions = Definitions::default();
    for state in [&mixed_state(), &crowd] {
        let map = Map::new(MapContent::new(device_of(state), &definitions));
        for _ in 0..60 {
            let layout = map.layout(View {
                zoom: Some(1.0 + 9.0 * random.f64()),
                scroll: random.i32(0..900),
                ..View::default()
            });
            let (x, y) = (random.i32(layout.map.x0..layout.map.x1), random.i32(layout.map.y0..layout.map.y1));
            let Some(position) = layout.position_at(x, y) else { continue };
            let zoomed = map.layout(layout.zoomed(&map.line, SIZE, 1.5, (x, y)));
            assert!((zoomed.zoom / layout.zoom - 1.5).abs() < 1e-6);
            if zoomed.scroll > 0 && zoomed.scroll < zoomed.max_scroll {
                let area = zoomed.areas(position, 1).next().expect("the byte is in view");
                assert!((area.y0 - y).abs() <= 2 * (area.y1 - area.y0 + 1), "{area:?} instead of {y}");
            }
        }
    }
}

#[test]
fn every_address_can_be_revealed() {
    let mut random = fastrand::Rng::with_seed(9);
    let crowd = states(Sample::Crowd).pop().expect("a state");
    let definitions = Definitions::default();
    for state in [&mixed_state(), &crowd] {
        let device = device_of(state);
        let blocks: Vec<&Block> = device.blocks().collect();
        for _ in 0..80 {
            let sort = SortBy::ALL[random.usize(..4)];
            let map = Map::with_owners(MapContent::new(device, &definitions), sort, DeviceOwners::default());
            let view =
                View { zoom: Some(1.0 + 30.0 * random.f64()), scroll: random.i32(..4000), sort, ..View::default() };
            let layout = map.layout(view);
            let block = blocks[random.usize(..blocks.len())];
            let revealed = layout.reveal(&map.line, block.address).expect("a block is in a segment");
            let shown = map.layout(revealed);
            let position = map.line.position_of(block.address).expect("a position");
            let area = shown.areas(position, 1).next().expect("the block is in view");
            assert!(area.y0 >= shown.map.y0 && area.y1 <= shown.map.y1, "{area:?} in {:?}", shown.map);
            assert_eq!(shown.reveal(&map.line, block.address), Some(revealed), "nothing moves if it is in view");
            assert_eq!(layout.reveal(&map.line, 1), None);
        }
    }
}

#[test]
fn unmapped_parts_of_expandable_segments_are_no_memory() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let map = Map::new(MapContent::new(device, &definitions));
    assert_eq!(map.line.position_of(BASE + 1090 * MIB), None);
    assert_eq!(map.line.pool_bytes(), device.segments().map(|segment| segment.size).sum::<u64>());
}

#[test]
fn free_memory_that_fits_no_request_is_most_stuck() {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    device.insert_segment(segment(BASE, 64 * MIB));
    // Free ranges of 1 and 30 MiB beside blocks of 10 MiB.
    for at in [0, 11, 21] {
        device
            .insert_block(Block { pool: PoolKey::default_of(PoolKind::Large), ..block(BASE + at * MIB, 10 * MIB, 0) });
    }
    device.insert_segment(segment(BASE + 128 * MIB, 20 * MIB));
    let definitions = Definitions::default();
    let map = Map::new(MapContent::new(device_of(&state), &definitions));
    let of = |kind| map.line.bytes().of(kind) / MIB;
    assert_eq!((of(MemoryKind::Stuck(15)), of(MemoryKind::Stuck(0)), of(MemoryKind::Releasable)), (1, 33, 20));
    let texts = map.texts();
    assert!(texts.contains(&"stuck: most requests do not fit"), "{texts:?}");
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
fn legend_counts_all_bytes_of_the_device() {
    let model = open_sample(Sample::Training);
    let (device, definitions) = (model.device_state(), model.recording().definitions());
    for color_by in [ColorBy::State, ColorBy::Category, ColorBy::Site, ColorBy::Module] {
        let by = color_by.group_by();
        let mut groups = by.map(|by| BlockGroups::new(Grouping::of(by, model.recording()), Some(device)));
        let content = MapContent { color_by, groups: groups.as_mut(), ..MapContent::new(device, definitions) };
        let map = Map::new(content);
        let entries = map.legend.iter().filter(|entry| entry.text != "of which rounding");
        let bytes: u64 = entries.filter_map(|entry| entry.bytes).sum();
        assert_eq!(bytes, device.counters().reserved, "by {color_by:?}");
        assert!(map.legend.iter().all(|entry| !entry.text.is_empty()));
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
    let content =
        MapContent { color_by: ColorBy::Stream, groups: Some(&mut groups), ..MapContent::new(device, &definitions) };
    let legend = Map::new(content).legend;
    let is_group = |entry: &&LegendEntry| matches!(entry.swatch, LegendSwatch::Kind(MemoryKind::Live(Fill::Group(_))));
    assert_eq!(legend.iter().filter(is_group).count(), 10);
    let others = legend.iter().find(|entry| entry.swatch == LegendSwatch::OtherGroups).expect("others");
    let small: u64 = (0..30).map(|stream| 4096 + stream * 8192).sum();
    assert_eq!((others.text.as_str(), others.bytes), ("others", Some(small)));
}

/// Returns the pixel in the middle of a block's first row, left of its text.
fn pixel_of(map: &Map<'_>, picture: &Bitmap, address: u64, size: u64) -> Option<Color> {
    let layout = map.layout(View::default());
    let area = layout.areas(map.line.position_of(address)?, size).max_by_key(|area| area.width())?;
    picture.pixel(area.x0 + 2, area.y0 + 1).filter(|_| area.width() > 4)
}

#[test]
fn highlighted_blocks_keep_their_color_and_others_are_dimmed() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let chosen = BASE + 64 * MIB;
    let highlight = |block: &Block| block.address == chosen;
    for theme in [Theme::new(true), Theme::new(false)] {
        let plain = Map::new(MapContent::new(device, &definitions));
        let dimmed = Map::new(MapContent { highlight: Some(&highlight), ..MapContent::new(device, &definitions) });
        let [before, after] = [&plain, &dimmed].map(|map| map.draw(map.layout(View::default()), SIZE, &theme));
        for block in device.blocks().filter(|block| block.size > MIB && !block.pending_free) {
            let [one, other] =
                [&before, &after].map(|picture| pixel_of(&plain, picture, block.address, block.requested));
            assert_eq!(one == other, block.address == chosen, "{block:?}");
        }
    }
}

#[test]
fn proposed_range_is_outlined() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let (theme, range) = (Theme::new(true), (BASE + 100 * MIB, 3 * MIB));
    let map = Map::new(MapContent::new(device, &definitions));
    let layout = map.layout(View::default());
    let plain = map.draw(layout.clone(), SIZE, &theme);
    let mut frame = plain.clone();
    device_map::draw_placement(&mut frame, (&map.line, &layout), &theme, range);
    let position = map.line.position_of(range.0).expect("the pool has the range");
    let area = layout.areas(position, range.1).next().expect("the range is in view");
    let y = area.y0 + 4;
    let changed = (area.x0..area.x1).filter(|&x| frame.pixel(x, y) != plain.pixel(x, y)).count();
    assert_eq!(changed, area.width() as usize, "the range is tinted");
    assert_eq!(frame.pixel(area.x0 - 8, y), plain.pixel(area.x0 - 8, y));
}

#[test]
fn ages_and_sizes_are_on_an_ordered_scale() {
    let mixed = mixed_state();
    let (device, definitions) = (device_of(&mixed), Definitions::default());
    let ages = AgeScale { unit: AgeUnit::Events, now: 5000, longest: 5000 };
    for color_by in [ColorBy::Age, ColorBy::LastChange, ColorBy::Size] {
        let map = Map::new(MapContent { color_by, ages, ..MapContent::new(device, &definitions) });
        let is_amount =
            |entry: &&LegendEntry| matches!(entry.swatch, LegendSwatch::Kind(MemoryKind::Live(Fill::Amount(_))));
        assert_eq!(map.legend.iter().filter(is_amount).count(), 5);
        let picture = map.draw(map.layout(View::default()), SIZE, &Theme::new(true));
        let color = |address| pixel_of(&map, &picture, address, MIB / 2).expect("in view");
        assert_ne!(color(BASE), color(BASE + 20 * MIB), "{color_by:?}");
    }
    let texts = |color_by| {
        let map = Map::new(MapContent { color_by, ages, ..MapContent::new(device, &definitions) });
        map.legend.into_iter().map(|entry| entry.text).collect::<Vec<_>>()
    };
    assert_eq!(&texts(ColorBy::Age)[..2], ["now", "7 events ago"]);
    assert_eq!(texts(ColorBy::LastChange)[4], "now");
    assert_eq!(&texts(ColorBy::Size)[..5], ["512 B", "32 KiB", "2 MiB", "128 MiB", "8 GiB"]);
}
