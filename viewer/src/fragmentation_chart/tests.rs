//! Checks that the painted pixels agree with `FragmentationScene::hit` and the columns' values.

use std::collections::HashMap;

use vramscope_draw::picture::chart_columns;
use vramscope_draw::{Bitmap, Canvas, Color, MomentAxis, Theme, Typesetter};
use vramscope_insight::pools::FragmentationColumn;
use vramscope_trace::FreeSpace;

use super::*;

/// Draws a scene on a bitmap.
fn draw(scene: &FragmentationScene, theme: &Theme, bitmap: &mut Bitmap, typesetter: &mut Typesetter) {
    scene.draw_on(&mut Canvas { bitmap, typesetter }, theme);
}

/// Returns the scene of random columns in a picture of `size` pixels; equal seeds give equal ones.
fn scene(seed: u64, size: (u32, u32), scale: f32) -> FragmentationScene {
    let mut random = fastrand::Rng::with_seed(seed);
    let (x0, x1) = chart_columns(size.0, scale);
    let edges: Vec<u64> = (0..=(x1 - x0) as u64).map(|column| 100 + 7 * column).collect();
    let columns: Vec<FragmentationColumn> = edges
        .windows(2)
        .map(|range| {
            let total = random.u64(0..4 << 30);
            let stuck_bytes = random.u64(0..=total);
            let free = FreeSpace { largest: random.u64(0..=total), total, blocks: 9 };
            let fragmentation = free.fragmentation();
            FragmentationColumn {
                moment: range[1],
                fragmentation,
                min_fragmentation: fragmentation * random.f64(),
                max_fragmentation: fragmentation + (1.0 - fragmentation) * random.f64(),
                free,
                stuck_bytes,
                releasable_bytes: total - stuck_bytes,
                largest_request_bytes: random.bool().then(|| random.u64(0..5 << 30)),
                ..FragmentationColumn::default()
            }
        })
        .collect();
    let content = FragmentationContent {
        axis: MomentAxis::new(x0, edges),
        columns,
        threshold: 0.8,
        crossing: Some((340, 0.83)),
        notice: "",
    };
    FragmentationScene::new(content, size, scale)
}

#[test]
fn hit_returns_the_part_painted_at_a_pixel() {
    let mut found: HashMap<Part, usize> = HashMap::new();
    for (seed, size, scale) in [(1, (900, 400), 1.0), (2, (500, 300), 1.0), (3, (1400, 900), 2.0)] {
        let mut scene = scene(seed, size, scale);
        // The mark of the crossing would cover other parts.
        scene.crossing = None;
        let theme = Theme::new(seed == 1);
        let mut bitmap = Bitmap::new(size.0, size.1, Color::default());
        draw(&scene, &theme, &mut bitmap, &mut Typesetter::new());
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..1_000 {
            let (x, y) = (random.i32(scene.upper.x0..scene.upper.x1), random.i32(scene.upper.y0..scene.requests.y1));
            let painted = bitmap.pixel(x, y).expect("inside of the picture");
            let Some(part) = scene.hit((x, y)) else {
                let charts = [scene.upper, scene.lower, scene.requests];
                assert!(charts.iter().all(|chart| !chart.contains(x, y)));
                continue;
            };
            *found.entry(part).or_default() += 1;
            let grid = |below: Color| below.mix(theme.dim, 0.22);
            let colors: &[Color] = match part {
                Part::Background => &[theme.well, grid(theme.well)],
                Part::Threshold => &[theme.alarm],
                Part::Fragmentation => &[theme.free],
                Part::Band => &[theme.well.mix(theme.free, 0.35)],
                Part::Stuck => &[theme.free, theme.free_hatch, grid(theme.free), grid(theme.free_hatch)],
                Part::Releasable => &[theme.cached, theme.cached_hatch, grid(theme.cached), grid(theme.cached_hatch)],
                Part::LargestFree => &[theme.text],
                Part::LargestRequest => &[theme.allocated],
            };
            assert!(colors.contains(&painted), "{part:?} at {x}, {y} is {painted:?}");
        }
    }
    for part in [Part::Background, Part::Fragmentation, Part::Band, Part::Stuck, Part::Releasable, Part::LargestFree] {
        assert!(found.get(&part).is_some_and(|&count| count > 20), "{part:?}: {found:?}");
    }
}

#[test]
fn painted_heights_are_proportional_to_the_bytes() {
    let scene = scene(5, (700, 500), 1.0);
    let height = |rows: (i32, i32)| f64::from(rows.1 - rows.0);
    let most = scene.columns.iter().map(|column| column.free.total).max().expect("columns");
    let of_most =
        scene.columns.iter().zip(&scene.rows).find(|(column, _)| column.free.total == most).expect("a column");
    let per_byte = (height(of_most.1.stuck) + height(of_most.1.releasable)) / most as f64;
    for (column, rows) in scene.columns.iter().zip(&scene.rows) {
        assert!((height(rows.stuck) - column.stuck_bytes as f64 * per_byte).abs() <= 2.0);
        assert!((height(rows.stuck) + height(rows.releasable) - column.free.total as f64 * per_byte).abs() <= 2.0);
    }
}

#[test]
fn values_describe_the_column_at_x() {
    let scene = scene(6, (300, 200), 1.0);
    let (moment, lines) = scene.values(scene.upper.x0 + 5).expect("a column");
    assert_eq!(moment, scene.columns[5].moment);
    let expected = vramscope_trace::Percent(scene.columns[5].fragmentation).to_string();
    assert!(lines[0].contains(&expected), "{lines:?}");
    assert_eq!(scene.values(scene.upper.x1), None);
    assert_eq!(scene.crossing.map(|(x, _)| x), scene.axis.x(340));
}

#[test]
fn tiny_and_empty_pictures_are_drawn() {
    for size in [(0, 0), (1, 1), (80, 9), (40, 600), (500, 30)] {
        for scene in [scene(7, size, 2.0), FragmentationScene::new(FragmentationContent::default(), size, 2.0)] {
            let mut bitmap = Bitmap::new(size.0, size.1, Color::default());
            draw(&scene, &Theme::new(true), &mut bitmap, &mut Typesetter::new());
            let _ = scene.hit((0, 0));
        }
    }
}
