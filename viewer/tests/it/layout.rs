//! `Layout::hit` returns what is drawn at a pixel.

use proptest::prelude::*;
use vramscope_draw::{Bitmap, Color, Theme, Typesetter};
use vramscope_trace::{Block, Definitions, DeviceId, MemoryState, PoolKey, Segment, SiteId, StreamId};
use vramscope_viewer::segment_map::{self, HeatmapScene, Layout, Scaling, SortBy, View};

use crate::testing::samples::{Sample, states};

/// Checks for every pixel column of every row that the hit matches the drawn color.
fn check(state: &MemoryState, size: (u32, u32), scale: f32, view: View) {
    let Some(device) = state.device(DeviceId(0)) else { return };
    let layout = Layout::new(device, size, scale, view);
    let theme = Theme::new(true);
    let (mut frame, mut typesetter) = (Bitmap::new(size.0, size.1, Color::default()), Typesetter::new());
    let definitions = Definitions::default();
    let content = segment_map::HeatmapContent::new(device, &definitions);
    let scene = HeatmapScene::new(layout.clone(), size.0 as i32, content, &typesetter);
    segment_map::draw(&scene, &theme, &mut frame, &mut typesetter);
    let free = [theme.free, theme.free_hatch, theme.cached, theme.cached_hatch];
    for row in &layout.rows {
        let (top, bottom) = (row.y0.max(layout.map.y0), row.y1.min(layout.map.y1));
        assert!(row.x0 >= layout.map.x0 && row.x1 <= layout.map.x1 && row.x0 < row.x1, "{row:?} is on the map");
        for x in row.x0..row.x1 {
            let hits = [top, (top + bottom) / 2, bottom - 1].map(|y| layout.hit(device, x, y));
            assert!(hits.iter().all(|other| *other == hits[0]), "a column of a row has one hit");
            let drawn: Vec<Color> = (top..bottom).filter_map(|y| frame.pixel(x, y)).collect();
            let Some(hit) = hits[0] else {
                let is_hole = |color: &Color| [theme.background, theme.faint].contains(color);
                assert!(drawn.iter().all(is_hole), "nothing is hit at {x} in {row:?}, which is not a hole");
                continue;
            };
            assert!(row.segment.address <= hit.address && hit.address < row.segment.end());
            let is_free = |color: &Color| free.contains(color);
            // A row that is partly scrolled out may show only one part of a divided column.
            let is_whole = (top, bottom) == (row.y0, row.y1);
            let agrees = match hit.block {
                None => drawn.iter().any(is_free),
                Some(_) => !drawn.iter().all(is_free),
            };
            // The last line of a segment may end before the map does.
            let offset = row.offset + f64::from(x - row.x0) * row.bytes_per_pixel;
            let is_inside = offset < row.segment.size as f64;
            assert!(
                agrees || !is_whole || !is_inside,
                "{hit:?} at {x} is drawn as {:?}",
                (drawn.first(), drawn.last())
            );
            let outline = layout.columns(row, hit.address, hit.size);
            let is_around = outline.is_some_and(|(x0, x1)| (x0 - 1..=x1).contains(&x));
            assert!(is_around || !is_inside, "the outline {outline:?} is not around {x}");
        }
    }
    for (above, below) in layout.rows.iter().zip(layout.rows.iter().skip(1)) {
        let is_beside = above.y0 == below.y0 && above.x1 < below.x0;
        assert!(above.y1 <= below.y0 || is_beside, "rows overlap or are out of order");
    }
}

#[test]
fn hits_match_known_recordings() {
    for sample in [Sample::Training, Sample::Trouble, Sample::Crowd] {
        let states = states(sample);
        for state in states.iter().step_by(states.len() / 12 + 1).chain(states.last()) {
            check(state, (420, 260), 1.0, View::default());
            check(state, (500, 200), 1.5, View { zoom: 3.0, scroll: 77, ..View::default() });
            check(state, (420, 260), 1.0, View { scaling: Scaling::Common, ..View::default() });
        }
    }
}

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
    let mut address = 0x7f00_0000_0000;
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
    fn hits_match_generated_memory(
        segments in segments(), width in 300..700u32, height in 40..300u32, zoom in 1.0..6.0f32, scroll in 0..400i32,
        column_zoom in 1.0..9.0f64, column_start in 0.0..1.0f64, is_common in any::<bool>(), sort in 0..4usize,
    ) {
        let scaling = if is_common { Scaling::Common } else { Scaling::EachSegment };
        let view = View { zoom, scroll, column_zoom, column_start, scaling, sort: SortBy::ALL[sort] };
        check(&state_of(&segments), (width, height), 1.0, view);
        check(&state_of(&segments), (width, height), 1.0, View { column_zoom: 1.0, zoom: 1.0, ..view });
    }
}
