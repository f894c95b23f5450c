//! Checksums of pictures that must be equal on every target: native tests and tests in a browser
//! compare them with the same numbers.

use vramscope_draw::picture::text_color;
use vramscope_draw::{Bitmap, Canvas, Color, Theme, Typesetter};
use vramscope_insight::pools::{DeviceOwners, RequestSizes};
use vramscope_pool::Settings;
use vramscope_viewer::device_map::{
    self, AgeScale, AgeUnit, ColorBy, Layout, LineContent, MapContent, MapScene, MapTexts, MemoryLine, SortBy, View,
};
use vramscope_viewer::timeline::{self, TimelineContent, TimelineScene};

use crate::samples::{Sample, open_sample};

/// Names of the pictures and their checksums. After an intended change, the failure of a test shows
/// the new ones.
const EXPECTED: [(&str, u64); 5] = [
    ("timeline at scale 1", 0x5691_187a_a118_2d0a),
    ("timeline at scale 1.5", 0x196d_41a4_0983_58f7),
    ("map by age", 0x2e59_5a67_d90a_859f),
    ("map by size", 0x3368_e351_3f12_0e5d),
    ("colors of texts", 0x6cf6_2d48_9194_24b9),
];

/// Draws the pictures and compares their checksums.
pub(crate) fn check() {
    let model = open_sample(Sample::Training);
    let timeline = |scale: f32| {
        let theme = Theme::new(true);
        let (mut picture, mut typesetter) = (Bitmap::new(700, 240, Color::default()), Typesetter::new());
        let content = TimelineContent {
            recording: model.recording(),
            device: model.device(),
            marks: model.marks(),
            peaks: model.peaks(),
            bands: model.bands(),
            range: model.range(),
        };
        let scene = TimelineScene::new(&content, (700, 240), scale, &typesetter);
        timeline::draw(&scene, &theme, &mut picture, &mut typesetter);
        checksum(picture.bytes())
    };
    let map = |color_by: ColorBy| {
        let (theme, size) = (Theme::new(false), (700, 300));
        let (mut picture, mut typesetter) = (Bitmap::new(size.0, size.1, Color::default()), Typesetter::new());
        let device = model.device_state();
        let ages = AgeScale { unit: AgeUnit::Events, now: model.state().event(), longest: 1_000_003 };
        let mut content = MapContent { color_by, ages, ..MapContent::new(device, model.recording().definitions()) };
        let (unfit, settings) = (RequestSizes::of_blocks(device).unfit_shares(), Settings::default());
        let (owners, sort) = (DeviceOwners::default(), SortBy::Address);
        let line = MemoryLine::new(
            &mut content,
            &LineContent { owners, largest_pool_bytes: 0, unfit: &unfit, settings: &settings, sort },
        );
        let layout = Layout::new(&line, size, 1.0, View { zoom: Some(2.3), ..View::default() });
        let scene = MapScene::new(
            &line,
            layout,
            (device, true),
            MapTexts { name: &mut |_| "train.py".to_owned(), failed: None },
            &typesetter,
        );
        let mut canvas = Canvas { bitmap: &mut picture, typesetter: &mut typesetter };
        device_map::draw_on(&scene, &theme, &mut canvas);
        checksum(picture.bytes())
    };
    let drawn = [
        ("timeline at scale 1", timeline(1.0)),
        ("timeline at scale 1.5", timeline(1.5)),
        ("map by age", map(ColorBy::Age)),
        ("map by size", map(ColorBy::Size)),
        ("colors of texts", text_colors()),
    ];
    assert_eq!(drawn, EXPECTED);
}

/// Returns a checksum of the text colors on a quarter of a million fill colors.
fn text_colors() -> u64 {
    let levels = || (0..=255u8).step_by(4);
    let fills = levels().flat_map(|r| levels().flat_map(move |g| levels().map(move |b| Color { r, g, b })));
    let texts: Vec<u8> = fills.map(|fill| text_color(fill).r).collect();
    checksum(&texts)
}

/// Returns the 64-bit FNV-1a hash of bytes.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
