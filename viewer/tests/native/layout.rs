//! `Layout::hit` returns what is drawn at a pixel.

use proptest::prelude::*;
use vramscope_trace::{Block, Definitions, DeviceId, MemoryState, PoolKey, Segment, SiteId, StreamId};
use vramscope_viewer::frame::{Color, Frame};
use vramscope_viewer::heatmap::{self, ColorBy, HeatmapScene, Layout, View};
use vramscope_viewer::text::Typesetter;
use vramscope_viewer::theme::Theme;

use crate::samples::{Sample, states};

/// Checks for every pixel column that the hit matches the drawn color.
fn check(state: &MemoryState, size: (u32, u32), scale: f32, view: View) {
    let Some(device) = state.device(DeviceId(0)) else { return };
    let layout = Layout::new(device, size, scale, view);
    let theme = Theme::new(true);
    let (mut frame, mut typesetter) = (Frame::new(size.0, size.1, Color::default()), Typesetter::new());
    let definitions = Definitions::default();
    let content = heatmap::Content { device, definitions: &definitions, color_by: ColorBy::State };
    let scene = HeatmapScene::new(layout.clone(), size.0 as i32, content, &typesetter);
    heatmap::draw(&scene, &theme, &mut frame, &mut typesetter);
    let free = [theme.free, theme.free_hatch, theme.cached, theme.cached_hatch];
    for row in layout.visible() {
        let (top, bottom) = (row.y0.max(layout.map.y0), row.y1.min(layout.map.y1));
        for x in layout.map.x0..layout.map.x1 {
            let hits = [top, (top + bottom) / 2, bottom - 1].map(|y| layout.hit(device, x, y));
            let Some(hit) = hits.first().copied().flatten() else { panic!("nothing is hit at {x} in {row:?}") };
            assert!(hits.iter().all(|other| *other == Some(hit)), "a column of a row has one hit");
            assert_eq!(hit.segment, row.segment);
            let drawn: Vec<Color> = (top..bottom).filter_map(|y| frame.pixel(x, y)).collect();
            let is_free = |color: &Color| free.contains(color);
            // A row that is partly scrolled out may show only one part of a divided column.
            let is_whole = (top, bottom) == (row.y0, row.y1);
            let agrees = match hit.block {
                None => drawn.iter().any(is_free),
                Some(_) => !drawn.iter().all(is_free),
            };
            // The last line of a segment may end before the map does.
            let ratio = f64::from(x - layout.map.x0) / f64::from(layout.map.width());
            let is_inside = row.address() as f64 + ratio * (row.line_bytes as f64) < row.segment.end() as f64;
            assert!(
                agrees || !is_whole || !is_inside,
                "{hit:?} at {x} is drawn as {:?}",
                (drawn.first(), drawn.last())
            );
            let outline = layout.columns(row, hit.address, hit.size);
            let is_around = outline.is_some_and(|(x0, x1)| (x0 - 1..=x1).contains(&x));
            // A range thinner than a pixel may be outlined in the adjacent column, which at an edge
            // is on another line.
            let is_edge = x == layout.map.x0 || x == layout.map.x1 - 1;
            assert!(is_around || is_edge || !is_inside, "the outline {outline:?} is not around {x}");
        }
    }
    for (above, below) in layout.rows.iter().zip(layout.rows.iter().skip(1)) {
        assert!(above.y1 <= below.y0 && above.address() < below.address(), "rows overlap or are out of order");
    }
}

#[test]
fn hits_match_known_recordings() {
    for sample in [Sample::Training, Sample::Trouble, Sample::Crowd] {
        let states = states(sample);
        for state in states.iter().step_by(states.len() / 12 + 1).chain(states.last()) {
            check(state, (420, 260), 1.0, View::default());
            check(state, (500, 200), 1.5, View { zoom: 3.0, scroll: 77 });
        }
    }
}

/// A segment's size, and its blocks as gap before, size, and whether pending free. Sizes are in
/// units of 512 bytes.
type SegmentSpec = (u64, Vec<(u64, u64, bool)>);

fn segments() -> impl Strategy<Value = Vec<SegmentSpec>> {
    let block = (0..40u64, 1..60u64, any::<bool>());
    prop::collection::vec((1..5000u64, prop::collection::vec(block, 0..40)), 0..12)
}

fn state_of(segments: &[SegmentSpec]) -> MemoryState {
    let mut state = MemoryState::default();
    let device = state.device_mut(DeviceId(0));
    let mut address = 0x7f00_0000_0000;
    for (units, blocks) in segments {
        let size = units * 512;
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        device.insert_segment(Segment { address, size, stream, pool, expandable: false, site, since_event: 0 });
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
        address += size + 4096;
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn hits_match_generated_memory(
        segments in segments(), width in 300..700u32, height in 40..300u32, zoom in 1.0..6.0f32, scroll in 0..400i32,
    ) {
        check(&state_of(&segments), (width, height), 1.0, View { zoom, scroll });
    }
}
