//! What is under a pixel of the device map, and how long a frame takes.

use proptest::prelude::*;
use vramscope_draw::Theme;
use vramscope_insight::pools::DeviceOwners;
use vramscope_trace::{Block, Definitions, DeviceId, DeviceState, MemoryState, PoolKey, Segment, SiteId, StreamId};
use vramscope_viewer::device_map::{Layout, MapContent, MapControl, MemoryLine, SortBy, View};

use crate::device_map::{BASE, Map, block, device_of, segment};

/// A segment's size, whether it is expandable, and its blocks as gap before, size, and whether
/// pending free. Sizes are in units of 512 bytes.
type SegmentSpec = (u64, bool, Vec<(u64, u64, bool)>);

fn segments() -> impl Strategy<Value = Vec<SegmentSpec>> {
    let block = (0..40u64, 1..60u64, any::<bool>());
    prop::collection::vec((1..5000u64, any::<bool>(), prop::collection::vec(block, 0..40)), 0..12)
}

fn state_of(segments: &[SegmentSpec]) -> MemoryState {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    let mut address = BASE;
    for (units, expandable, blocks) in segments {
        let size = units * 512;
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        device.insert_segment(Segment { address, size, stream, pool, expandable: *expandable, site, since_event: 0 });
        let (mut at, end) = (address, address + size);
        for &(gap, units, pending_free) in blocks {
            at += gap * 512;
            let size = units * 512;
            let requested = size - size / 3;
            let block =
                Block { address: at, size, requested, stream, pool, site, pending_free, since_event: 0, since_ns: 0 };
            if at + size <= end {
                device.insert_block(block);
            }
            at += size;
        }
        address += size + (units % 7) * 70_000;
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn hits_and_rows_match_generated_memory(
        segments in segments(), width in 40..700u32, height in 20..300u32, zoom in 0.0..60.0f64, scroll in 0..400i32,
        sort in 0..4usize, device_bytes in proptest::option::of(any::<u64>()), scale in 1.0..3.0f32,
    ) {
        let (state, definitions) = (state_of(&segments), Definitions::default());
        let Some(device) = state.device(DeviceId(0)) else { return Ok(()) };
        let reserved_bytes = device.segments().map(|segment| segment.size).sum();
        let device_bytes = device_bytes.filter(|&bytes| bytes >= reserved_bytes);
        let owners = DeviceOwners { device_bytes, reserved_bytes, ..DeviceOwners::default() };
        let map = Map::with_owners(MapContent::new(device, &definitions), SortBy::ALL[sort], owners);
        let view = View { zoom: Some(zoom), scroll, ..View::default() };
        let layout = Layout::new(map.line(), (width, height), scale, view);
        for pair in layout.rows.windows(2) {
            // Positions of more than 2^53 bytes are rounded.
            let tolerance = 1.0 + pair[0].end * f64::EPSILON * 4.0;
            prop_assert!(pair[0].y1 <= pair[1].y0 && pair[0].end <= pair[1].start + tolerance);
        }
        for (x, y) in (0..width as i32).step_by(7).zip((0..height as i32).step_by(5).cycle()) {
            let Some(position) = layout.position_at(x, y) else { continue };
            let hit = layout.hit(map.line(), device, x, y);
            prop_assert_eq!(hit.is_some(), position < map.line().pool_bytes());
            let Some(hit) = hit else { continue };
            let start = map.line().position_of(hit.address).expect("the hit is in the pool");
            let half = layout.bytes_per_column() as u64 + 1;
            prop_assert!(start <= position + half && position <= start + hit.size + half);
        }
        let picture = map.draw(layout, (width, height), &Theme::new(false));
        prop_assert_eq!(picture.width(), width as i32);
    }
}

#[test]
fn column_at_the_end_of_the_pool_shows_a_block() {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    for address in (BASE..BASE + (3 << 20)).step_by(96 << 10) {
        device.insert_segment(segment(address, 96 << 10));
        (0..24).for_each(|index| device.insert_block(block(address + index * 4096, 4096, 0)));
    }
    let (device, definitions) = (device_of(&state), Definitions::default());
    let owners = DeviceOwners { device_bytes: Some(80 << 30), reserved_bytes: 3 << 20, ..DeviceOwners::default() };
    let map = Map::with_owners(MapContent::new(device, &definitions), SortBy::Address, owners);
    let layout = Layout::new(map.line(), (900, 360), 1.0, View { zoom: Some(0.0), ..View::default() });
    let (x, y) = (layout.map.x0, layout.map.y0);
    assert!(!layout.has_own_rows() && layout.position_at(x, y).is_some_and(|position| position < 3 << 20));
    assert!(layout.hit(map.line(), device, x, y).is_some_and(|hit| hit.block.is_some()));
    assert_eq!(layout.hit(map.line(), device, x + 1, y), None);
}

/// Returns the memory of a device of 128 MiB on a line.
fn map_of(device: &DeviceState, definitions: &Definitions) -> MemoryLine {
    let owners = DeviceOwners { device_bytes: Some(128 << 20), reserved_bytes: 64 << 20, ..DeviceOwners::default() };
    Map::with_owners(MapContent::new(device, definitions), SortBy::Address, owners).line().clone()
}

#[test]
fn memory_in_view_stays_when_segments_come() {
    let segments = |indexes: &[u64]| {
        let mut state = MemoryState::default();
        let device = state.device_mut(DeviceId(0));
        indexes.iter().for_each(|index| device.insert_segment(segment(BASE + index * (8 << 20), 4 << 20)));
        state
    };
    let (before, after) = (segments(&[2, 3, 5, 6, 7]), segments(&[0, 1, 2, 3, 4, 5, 6, 7]));
    let (definitions, size) = (Definitions::default(), (900, 360));
    let [old, new] = [&before, &after].map(|state| map_of(device_of(state), &definitions));
    let address = BASE + 5 * (8 << 20) + (1 << 20);
    let view = View { zoom: Some(40.0), ..View::default() };
    let layout = Layout::new(&old, size, 1.0, view);
    let view = layout.centered(&old, old.position_of(address).expect("the address is in a segment"));
    let layout = Layout::new(&old, size, 1.0, view);
    let followed = Layout::new(&new, size, 1.0, layout.followed(&old, &new, size));
    assert!((layout.row_bytes - followed.row_bytes).abs() < 1e-3, "the scale stays");
    let first = |layout: &Layout, line: &MemoryLine| line.address_at(layout.rows[0].start as u64).expect("in the pool");
    let moved_by = first(&layout, &old).abs_diff(first(&followed, &new));
    assert!((moved_by as f64) < layout.row_bytes, "less than a row: {moved_by}");
    // A map without zoom shows everything before and after.
    let whole = Layout::new(&old, size, 1.0, View::default());
    assert_eq!(whole.followed(&old, &new, size), View::default());
}

#[test]
fn strip_and_scroll_bar_move_the_map() {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    (0..16).for_each(|index| device.insert_segment(segment(BASE + index * (4 << 20), 4 << 20)));
    let (definitions, size) = (Definitions::default(), (900, 360));
    let line = map_of(device_of(&state), &definitions);
    let whole = Layout::new(&line, size, 1.0, View::default());
    let on_strip = (i32::midpoint(whole.strip.x0, whole.strip.x1), whole.strip.y0 + 3);
    assert_eq!(whole.control_at(on_strip), None, "all memory is in view");
    let layout = Layout::new(&line, size, 1.0, View { zoom: Some(8.0), ..View::default() });
    assert_eq!(layout.control_at(on_strip), Some(MapControl::Strip));
    let view = layout.moved_to(&line, MapControl::Strip, on_strip);
    let (first, last) = Layout::new(&line, size, 1.0, view).shown();
    assert!(first < f64::from(64 << 20) && f64::from(64 << 20) < last, "{first} to {last}");
    let on_bar = (layout.map.x1 + 4, layout.map.y1 - 1);
    assert_eq!(layout.control_at(on_bar), Some(MapControl::ScrollBar));
    let view = layout.moved_to(&line, MapControl::ScrollBar, on_bar);
    assert_eq!(view.scroll, layout.max_scroll);
    assert_eq!(layout.control_at((layout.map.x0 + 5, layout.map.y0 + 5)), None);
}

/// Returns a device with `segments` segments of 100 blocks each.
fn crowded(segments: u64) -> MemoryState {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    for index in 0..segments {
        let (address, size) = ((1 << 40) + index * (64 << 20), [2, 20, 2, 34][(index % 4) as usize] << 20);
        device.insert_segment(segment(address, size));
        for at in 0..100 {
            device.insert_block(block(address + at * (size / 100 / 512 * 512), size / 130, index * 100 + at));
        }
    }
    state
}

/// Prints the times of a frame: `cargo test --release -p vramscope-viewer --test it
/// device_map_hits::speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn speed() {
    let state = crowded(10_000);
    let (device, definitions) = (device_of(&state), Definitions::default());
    let (size, theme) = ((1600, 700), Theme::new(true));
    for zoom in [1.0, 50.0] {
        let mut best = [std::time::Duration::MAX; 4];
        for _ in 0..20 {
            let start = std::time::Instant::now();
            let map = Map::new(MapContent::new(device, &definitions));
            let line = start.elapsed();
            let layout = Layout::new(map.line(), size, 1.0, View { zoom: Some(zoom), scroll: 3000, ..View::default() });
            let laid_out = start.elapsed();
            let scene = map.scene(layout.clone());
            let computed = start.elapsed();
            drop(scene);
            let _ = map.draw(layout, size, &theme);
            for (best, time) in best.iter_mut().zip([line, laid_out, computed, start.elapsed()]) {
                *best = (*best).min(time);
            }
        }
        println!("zoom {zoom}: line, with layout, with scene, with another scene and drawing: {best:?}");
    }
}
