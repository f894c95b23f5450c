//! The pictures of known recordings, compared with those that a person has looked at. `UPDATE_GOLDEN=1 cargo test -p vramscope-viewer`
//! writes new ones; look at them before you commit them.
#![cfg(not(target_arch = "wasm32"))]

mod drawn;

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use drawn::{Drawing, recording};
use vramscope_viewer::bands::Band;
use vramscope_viewer::frame::{Color, Frame};
use vramscope_viewer::heatmap::{self, ColorBy, Highlight, Layout, View};
use vramscope_viewer::model::Model;
use vramscope_viewer::report::Report;
use vramscope_viewer::text::Typesetter;
use vramscope_viewer::theme::Theme;
use vramscope_viewer::timeline::{self, Look};

/// The share of pixels that may differ by more than [`CLOSE`]: floating point rounds differently on other machines.
const TOLERATED: f64 = 0.001;
/// How far apart two values of a color may be and still look the same.
const CLOSE: u8 = 24;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join("golden").join(format!("{name}.png"))
}

fn save(path: &Path, frame: &Frame) {
    let file = BufWriter::new(File::create(path).expect("the folder of golden pictures can be written"));
    let mut encoder = png::Encoder::new(file, frame.width() as u32, frame.height() as u32);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_compression(png::Compression::High);
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(frame.bytes()).expect("a picture");
}

fn load(path: &Path) -> (u32, u32, Vec<u8>) {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}; UPDATE_GOLDEN=1 makes it", path.display()));
    let mut reader = png::Decoder::new(BufReader::new(file)).read_info().expect("a picture");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a picture that fits in memory")];
    let info = reader.next_frame(&mut bytes).expect("a whole picture");
    bytes.truncate(info.buffer_size());
    (info.width, info.height, bytes)
}

#[track_caller]
fn check(name: &str, frame: &Frame) {
    let path = path(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        save(&path, frame);
        return;
    }
    let (width, height, expected) = load(&path);
    assert_eq!((width as i32, height as i32), (frame.width(), frame.height()), "the size of {name}");
    let differs = |(a, b): &(&[u8], &[u8])| a.iter().zip(*b).any(|(a, b)| a.abs_diff(*b) > CLOSE);
    let different = frame.bytes().chunks(4).zip(expected.chunks(4)).filter(differs).count();
    let share = different as f64 / f64::from(width * height);
    if share > TOLERATED {
        let seen = std::env::temp_dir().join(format!("{name}.png"));
        save(&seen, frame);
        panic!(
            "{:.2}% of {name} differ from the golden picture; what was drawn is at {}",
            share * 100.0,
            seen.display()
        );
    }
}

/// The timeline of a recording at a moment.
fn timeline(model: &Model, dark: bool, (width, height): (u32, u32), scale: f32) -> Frame {
    let theme = Theme::new(dark);
    let look = Look { theme: &theme, scale };
    let (mut frame, mut type_) = (Frame::new(width, height, Color::default()), Typesetter::new());
    let content = timeline::Content {
        recording: model.recording(),
        device: model.device(),
        marks: model.marks(),
        peaks: model.peaks(),
        bands: model.bands(),
        range: model.range(),
    };
    let geometry = timeline::draw(&mut frame, &mut type_, look, &content);
    timeline::draw_cursor(&mut frame, &mut type_, look, &geometry, model.recording(), model.time_ns());
    frame
}

/// The heatmap of a recording at a moment.
fn heatmap(model: &Model, dark: bool, (width, height): (u32, u32), scale: f32) -> Frame {
    let theme = Theme::new(dark);
    let (mut frame, mut type_) = (Frame::new(width, height, Color::default()), Typesetter::new());
    let device = model.device_state();
    let layout = Layout::new(device, (width, height), scale, View::default());
    let definitions = model.recording().definitions();
    let content = heatmap::Content { device, definitions, color_by: model.color_by, theme: &theme };
    heatmap::draw(&mut frame, &mut type_, &layout, content);
    if let Some(selected) = model.selected() {
        let range = (selected.address, selected.size);
        heatmap::draw_highlight(&mut frame, &layout, &theme, range, Highlight::Selected);
    }
    frame
}

#[test]
fn a_training_loop() {
    let mut model = recording(Drawing::Training);
    check("training_timeline_dark", &timeline(&model, true, (900, 220), 1.0));
    check("training_timeline_light_x2", &timeline(&model, false, (1200, 360), 2.0));
    let address = model.device_state().blocks().nth(3).map(|block| block.address);
    model.select(address);
    check("training_heatmap_dark", &heatmap(&model, true, (900, 360), 1.0));
    check("training_heatmap_light", &heatmap(&model, false, (900, 360), 1.0));
    model.color_by = ColorBy::Category;
    check("training_heatmap_by_category", &heatmap(&model, true, (900, 360), 1.0));
}

#[test]
fn a_moment_before_everything() {
    let mut model = recording(Drawing::Training);
    model.seek(0).expect("a moment");
    check("beginning_timeline", &timeline(&model, false, (900, 160), 1.0));
    check("beginning_heatmap", &heatmap(&model, false, (900, 160), 1.0));
}

#[test]
fn out_of_memory_and_lost_events() {
    let model = recording(Drawing::Trouble);
    check("trouble_timeline", &timeline(&model, true, (900, 220), 1.0));
    check("trouble_heatmap_dark", &heatmap(&model, true, (900, 300), 1.0));
    check("trouble_heatmap_light", &heatmap(&model, false, (900, 300), 1.0));
}

#[test]
fn more_segments_than_fit() {
    let model = recording(Drawing::Crowd);
    check("crowd_heatmap", &heatmap(&model, true, (900, 300), 1.0));
}

#[test]
fn a_zoomed_timeline() {
    let mut model = recording(Drawing::Training);
    let range = model.range();
    let middle = range.start + (range.end - range.start) / 2;
    model.zoom(0.1, middle);
    check("training_timeline_zoomed", &timeline(&model, true, (900, 220), 1.0));
}

#[test]
fn memory_outside_the_pool() {
    let mut model = recording(Drawing::Shared);
    check("shared_timeline_dark", &timeline(&model, true, (900, 220), 1.0));
    model.toggle_band(Band::Others);
    check("shared_timeline_others_dark", &timeline(&model, true, (900, 220), 1.0));
    check("shared_timeline_others_light_x2", &timeline(&model, false, (1200, 360), 2.0));
    model.toggle_band(Band::Outside);
    model.zoom(0.4, model.time_ns());
    check("shared_timeline_zoomed", &timeline(&model, false, (900, 220), 1.0));
}

#[test]
fn every_golden_picture_has_a_test() {
    let known = [
        "beginning_heatmap",
        "beginning_timeline",
        "crowd_heatmap",
        "report_training",
        "report_trouble",
        "shared_timeline_dark",
        "shared_timeline_others_dark",
        "shared_timeline_others_light_x2",
        "shared_timeline_zoomed",
        "training_heatmap_by_category",
        "training_heatmap_dark",
        "training_heatmap_light",
        "training_timeline_dark",
        "training_timeline_light_x2",
        "training_timeline_zoomed",
        "trouble_heatmap_dark",
        "trouble_heatmap_light",
        "trouble_timeline",
    ];
    let mut found: Vec<String> = fs::read_dir(path("x").parent().expect("a folder"))
        .expect("the folder of golden pictures can be read")
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    found.sort();
    if std::env::var_os("UPDATE_GOLDEN").is_none() {
        assert_eq!(found, known);
    }
}

#[test]
fn a_report() {
    for (name, drawing) in [("report_training", Drawing::Training), ("report_trouble", Drawing::Trouble)] {
        let model = recording(drawing);
        let report = Report::new(model.recording(), "a file's name", None).expect("a device");
        check(name, &report.frame().expect("a picture"));
    }
}
