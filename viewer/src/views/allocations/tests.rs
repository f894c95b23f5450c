//! Checks that the painted pixels, the objects under them, and the layouts agree.

use vramscope_draw::{Bitmap, Canvas, Color, Rect, Theme, Typesetter};
use vramscope_insight::address_map::{AddressMap, SegmentSpans};
use vramscope_insight::bands::{BandIndex, BandLayout};
use vramscope_insight::composition::{
    AllocationRows, AllocationSpan, Change, CompositionColumn, CompositionSeries, LAYERS,
};
use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, SiteId, StreamId};

use super::draw::{EMPTY, FIRST_LAYER, band_codes, edge_code, layer_code, map_codes};
use super::labels::is_alternate;
use super::scene::AllocationsContent;
use super::*;
use crate::device_map::Highlight;

/// Draws a scene on a bitmap.
fn draw(scene: &AllocationsScene, theme: &Theme, bitmap: &mut Bitmap, typesetter: &mut Typesetter) {
    super::draw::draw_on(scene, theme, &mut Canvas { bitmap, typesetter });
}

/// Number of moments of the test history.
const MOMENTS: u64 = 4_000;
/// Address and size in bytes of the only segment of the test history.
const SEGMENT: (u64, u64) = (1 << 40, 1 << 28);

/// Random allocations at increasing addresses; they do not overlap.
struct TestRows {
    /// Span and address of each allocation; the index is the row number.
    rows: Vec<(AllocationSpan, u64)>,
    /// The starts and ends in ascending order: moment, row number, and true for a start.
    changes: Vec<(u64, u32, bool)>,
}

impl TestRows {
    /// Creates random allocations; equal seeds create equal ones.
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut address = SEGMENT.0;
        let mut rows = Vec::new();
        for first_moment in (1..MOMENTS).step_by(3) {
            let size = 512 << random.u32(0..16);
            let longest = 8 << random.u64(0..9);
            let end = first_moment + random.u64(1..longest);
            let end = if end < MOMENTS { end } else { u64::MAX };
            if address + size > SEGMENT.0 + SEGMENT.1 {
                break;
            }
            rows.push((AllocationSpan { first_moment, end, size, group: random.u32(0..40) }, address));
            address += size;
        }
        let starts = (0..).zip(&rows).map(|(row, (span, _))| (span.first_moment, row, true));
        let ends = (0..).zip(&rows).filter(|(_, (span, _))| span.end < u64::MAX);
        let mut changes: Vec<_> = starts.chain(ends.map(|(row, (span, _))| (span.end, row, false))).collect();
        changes.sort_unstable();
        Self { rows, changes }
    }
}

impl AllocationRows for TestRows {
    fn change_count(&self) -> usize {
        self.changes.len()
    }
    fn change(&self, position: usize) -> Change {
        let (moment, row, is_start) = self.changes[position];
        let AllocationSpan { size, group, .. } = self.span(row);
        Change { moment, row, is_start, is_relabel: false, bytes: size, group }
    }
    fn span(&self, row: u32) -> AllocationSpan {
        self.rows[row as usize].0
    }
    fn address(&self, row: u32) -> u64 {
        self.rows[row as usize].1
    }
}

/// A test history, the indexes over it, and the geometry of a picture of it.
struct TestView {
    rows: TestRows,
    series: CompositionSeries,
    index: BandIndex,
    segments: SegmentSpans,
    columns: Vec<CompositionColumn>,
    geometry: Geometry,
    size: (u32, u32),
}

impl TestView {
    /// Creates a view of a random history whose columns are `step` pixels wide.
    fn new(seed: u64, size: (u32, u32), scale: f32, step: u32) -> Self {
        let rows = TestRows::new(seed);
        let mut series = CompositionSeries::new(0);
        while !series.step(&rows, MOMENTS, 1_000) {}
        let mut index = BandIndex::new();
        while !index.step(&rows, 1_000) {}
        let geometry = Geometry::new(size, scale);
        let count = u64::from(geometry.width().div_ceil(step));
        let edges: Vec<u64> = (0..=count).map(|column| MOMENTS * column / count).collect();
        let columns = series.columns(&rows, &edges);
        let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
        let mut segments = SegmentSpans::new();
        let kind = EventKind::SegmentAllocated { address: SEGMENT.0, size: SEGMENT.1, stream, pool, site };
        segments.event(MOMENTS / 8, &Event { device: DeviceId(0), time_ns: 0, kind });
        Self { rows, series, index, segments, columns, geometry, size }
    }

    /// Computes the scene of a layout; allocations are named `allocation 3`, layers `layer 3`.
    fn scene(&self, layout: AllocationsLayout) -> AllocationsScene {
        let content = AllocationsContent {
            layout,
            styles: std::array::from_fn(|layer| match layer {
                layer if layer + 1 == LAYERS => GroupStyle::Other,
                layer => GroupStyle::Group(layer),
            }),
            name_of: &mut |row| format!("allocation {row}"),
            layer_name: &mut |layer| format!("layer {layer}"),
        };
        AllocationsScene::new(content, self.geometry, &Typesetter::new())
    }

    /// Computes the scene of the stacked layout.
    fn stacked(&self) -> AllocationsScene {
        let highest = self.columns.iter().map(|column| column.total).max().unwrap_or(0);
        let visible = 0..highest + highest / 12;
        let source = (&self.index, &self.rows);
        let layout = BandLayout::new(source, &self.series, &self.columns, &visible, self.geometry.height());
        self.scene(AllocationsLayout::Stacked(layout))
    }

    /// Computes the scene of the completely painted address map.
    fn by_address(&self) -> AllocationsScene {
        let moments = self.columns.iter().map(|column| column.moment).collect();
        let mut map = AddressMap::new(&self.segments, moments, None, self.geometry.height());
        while !map.step((&self.index, &self.rows), &self.series, 500) {}
        self.scene(AllocationsLayout::ByAddress(map))
    }
}

/// Returns the pixel codes of a scene, the lowest row first.
fn codes(scene: &AllocationsScene) -> Vec<u8> {
    let (width, height) = (scene.geometry.width() as usize, scene.geometry.height() as usize);
    match &scene.layout {
        AllocationsLayout::Stacked(layout) => band_codes(scene, layout, width, height),
        AllocationsLayout::ByAddress(map) => map_codes(scene, map, width, height),
    }
}

#[test]
fn painted_heights_add_up_to_the_live_bytes() {
    for (seed, scale, step) in [(1, 1.0, 1), (2, 2.0, 1), (3, 1.0, 2), (4, 1.5, 3)] {
        let view = TestView::new(seed, (500, 260), scale, step);
        let scene = view.stacked();
        let AllocationsLayout::Stacked(layout) = scene.layout() else { panic!("it is stacked") };
        let codes = codes(&scene);
        let width = view.geometry.width() as usize;
        for pixel in 0..width {
            let column =
                view.geometry.column(view.geometry.plot.x0 + pixel as i32, view.columns.len()).expect("inside");
            let painted = codes.chunks(width).filter(|row| row[pixel] != EMPTY).count();
            assert_eq!(painted, layout.scale().row(view.columns[column].total) as usize, "column {column}");
        }
    }
}

#[test]
fn hit_returns_the_object_painted_at_a_pixel() {
    for (seed, scale, step) in [(5, 1.0, 1), (6, 2.0, 1), (7, 1.0, 2)] {
        let view = TestView::new(seed, (400, 300), scale, step);
        let plot = view.geometry.plot;
        let mut random = fastrand::Rng::with_seed(seed);
        for scene in [view.stacked(), view.by_address()] {
            let codes = codes(&scene);
            let mut allocations = 0;
            for _ in 0..1_000 {
                let (x, y) = (random.i32(plot.x0..plot.x1), random.i32(plot.y0..plot.y1));
                let row = view.geometry.pixel_row(y).expect("inside") as usize;
                let code = codes[row * view.geometry.width() as usize + (x - plot.x0) as usize];
                match scene.hit((x, y)) {
                    Some(Target::Allocation { row }) => {
                        allocations += 1;
                        let layer = view.series.layer_of(view.rows.span(row).group);
                        assert!(
                            code == edge_code(layer) || code == layer_code(layer, is_alternate(row)),
                            "{row} at {x}, {y}"
                        );
                        let span = view.rows.span(row);
                        let moment = scene.moment(x).expect("inside");
                        assert!(span.first_moment <= moment && moment < span.end);
                    }
                    Some(Target::Small { layer, bytes }) => {
                        assert!(code == edge_code(layer) || code == layer_code(layer, false));
                        assert!(bytes > 0);
                    }
                    Some(Target::Free | Target::NotReserved) | None => assert!(code < FIRST_LAYER),
                }
            }
            assert!(allocations > 30, "{allocations} points show an allocation");
            assert_eq!((scene.hit((plot.x0 - 1, plot.y0)), scene.hit((plot.x0, plot.y1))), (None, None));
        }
    }
}

#[test]
fn outline_encloses_the_pixels_of_its_allocation() {
    let view = TestView::new(8, (400, 300), 1.0, 1);
    let plot = view.geometry.plot;
    let mut typesetter = Typesetter::new();
    let theme = Theme::new(true);
    for scene in [view.stacked(), view.by_address()] {
        let mut random = fastrand::Rng::with_seed(8);
        for _ in 0..50 {
            let point = (random.i32(plot.x0..plot.x1), random.i32(plot.y0..plot.y1));
            let Some(Target::Allocation { row }) = scene.hit(point) else { continue };
            let outline = scene.outline(&view.rows, row);
            let contains = |&(x, y0, y1): &(i32, i32, i32)| x == point.0 && (y0..y1).contains(&point.1);
            assert!(outline.columns.iter().any(contains), "row {row} at {point:?}");
            let mut bitmap = Bitmap::new(view.size.0, view.size.1, theme.background);
            draw(&scene, &theme, &mut bitmap, &mut typesetter);
            super::draw::draw_outline(&mut bitmap, &scene, &theme, &outline, Highlight::Selected);
            let &(x, y0, _) = &outline.columns[0];
            assert_eq!(bitmap.pixel(x, y0), Some(theme.cursor));
        }
    }
}

#[test]
fn emphasis_dims_all_other_layers() {
    let view = TestView::new(9, (400, 300), 1.0, 1);
    let mut scene = view.stacked();
    scene.labels.clear();
    let theme = Theme::new(false);
    let picture = |scene: &AllocationsScene| {
        let mut bitmap = Bitmap::new(view.size.0, view.size.1, theme.background);
        draw(scene, &theme, &mut bitmap, &mut Typesetter::new());
        bitmap
    };
    let before = picture(&scene);
    scene.emphasized = Some(3);
    let after = picture(&scene);
    let codes = codes(&scene);
    let plot = view.geometry.plot;
    let (mut same, mut different) = (0, 0);
    for y in plot.y0..plot.y1 {
        for x in plot.x0..plot.x1 {
            let row = view.geometry.pixel_row(y).expect("inside") as usize;
            let code = codes[row * view.geometry.width() as usize + (x - plot.x0) as usize];
            let is_same = before.pixel(x, y) == after.pixel(x, y);
            let third = [layer_code(3, false), layer_code(3, true), edge_code(3)];
            let is_emphasized = code < FIRST_LAYER || third.contains(&code);
            assert_eq!(is_same, is_emphasized, "code {code} at {x}, {y}");
            (same, different) = (same + usize::from(is_same), different + usize::from(!is_same));
        }
    }
    assert!(same > 1_000 && different > 1_000);
}

#[test]
fn names_lie_inside_their_bands() {
    let view = TestView::new(10, (900, 600), 1.0, 1);
    let (stacked, by_address) = (view.stacked(), view.by_address());
    assert!(!stacked.labels.is_empty());
    let scenes = [&stacked, &by_address];
    for (scene, label) in scenes.into_iter().flat_map(|scene| scene.labels.iter().map(move |label| (scene, label))) {
        let Rect { x0, y0, x1, y1 } = label.area;
        let first = scene.hit((x0, y0)).expect("a band is there");
        for point in [(x1 - 1, y0), (x0, y1 - 1), (x1 - 1, y1 - 1), ((x0 + x1) / 2, (y0 + y1) / 2)] {
            match (first, scene.hit(point)) {
                (Target::Allocation { row }, Some(Target::Allocation { row: other })) => assert_eq!(row, other),
                (Target::Small { layer, .. }, Some(Target::Small { layer: other, .. })) => assert_eq!(layer, other),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn address_axis_is_labelled_at_both_ends_and_between() {
    let view = TestView::new(13, (400, 300), 1.0, 1);
    let (axis, plot) = (view.by_address().axis, view.geometry.plot);
    let mut labels: Vec<(i32, &str)> =
        axis.labels.iter().map(|(value, text)| (axis.row(plot, *value), text.as_str())).collect();
    labels.sort_by_key(|(y, _)| std::cmp::Reverse(*y));
    let found = [0, labels.len() - 1].map(|index| labels[index]);
    assert_eq!(found, [(plot.y1 - 1, "0x10000…"), (plot.y0, "0x10010…")]);
    assert!(labels.len() >= 4, "{labels:?}");
    assert!(labels.windows(2).all(|pair| pair[0].0 - pair[1].0 >= 13 && pair[0].1 < pair[1].1), "{labels:?}");
}

#[test]
fn empty_view_shows_a_notice() {
    let view = TestView::new(11, (400, 200), 1.0, 1);
    let empty = BandLayout::new((&view.index, &view.rows), &view.series, &[], &(0..1), view.geometry.height());
    let scene = view.scene(AllocationsLayout::Stacked(empty));
    assert!(scene.notice.is_some() && scene.axis.labels.is_empty());
    assert_eq!(scene.hit((200, 100)), None);
    let mut bitmap = Bitmap::new(400, 200, Color::hex(0));
    draw(&scene, &Theme::new(true), &mut bitmap, &mut Typesetter::new());
    let full = view.stacked();
    assert!(full.notice.is_none() && full.axis.labels.len() > 2);
}

#[test]
fn tiny_pictures_are_drawn() {
    for size in [(0, 0), (1, 1), (70, 12), (90, 400)] {
        let view = TestView::new(12, size, 2.0, 1);
        for scene in [view.stacked(), view.by_address()] {
            let mut bitmap = Bitmap::new(size.0, size.1, Color::hex(0));
            draw(&scene, &Theme::new(true), &mut bitmap, &mut Typesetter::new());
        }
    }
}
