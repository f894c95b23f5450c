//! Compares pictures of known recordings with golden pictures.

use std::fs;

use vramscope_draw::{Bitmap, Color, Theme, Typesetter};
use vramscope_insight::pools::DeviceOwners;
use vramscope_trace::{Definitions, DeviceId};
use vramscope_viewer::bands::Band;
use vramscope_viewer::device_map::{self, AgeScale, AgeUnit, ColorBy, Highlight, Layout, MapContent, SortBy, View};
use vramscope_viewer::model::Model;
use vramscope_viewer::timeline::{self, Cursor, TimelineScene};

use crate::device_map::{Map, mixed_state};
use crate::testing::golden_file::{check, crate_path, is_updating};
use crate::testing::samples::{Sample, open_sample};

/// Draws the timeline at the model's moment.
fn timeline(model: &Model, dark: bool, size: (u32, u32), scale: f32) -> Bitmap {
    let theme = Theme::new(dark);
    let (mut frame, mut typesetter) = (Bitmap::new(size.0, size.1, Color::default()), Typesetter::new());
    let content = timeline::TimelineContent {
        recording: model.recording(),
        device: model.device(),
        marks: model.marks(),
        peaks: model.peaks(),
        bands: model.bands(),
        range: model.range(),
    };
    let scene = TimelineScene::new(&content, size, scale, &typesetter);
    timeline::draw(&scene, &theme, &mut frame, &mut typesetter);
    let cursor = Cursor::new(&scene, model.recording(), model.timed_moment(), &typesetter);
    timeline::draw_cursor(&cursor, &theme, &mut frame, &mut typesetter);
    frame
}

/// Draws the device map at the model's moment.
fn map(model: &Model, dark: bool, size: (u32, u32), color_by: ColorBy) -> Bitmap {
    let theme = Theme::new(dark);
    let content = MapContent { color_by, ..MapContent::new(model.device_state(), model.recording().definitions()) };
    let map = Map::new(content);
    let layout = Layout::new(map.line(), size, 1.0, View::default());
    let mut picture = map.draw(layout.clone(), size, &theme);
    if let Some(selected) = model.selected() {
        let range = (selected.address, selected.size);
        device_map::draw_highlight(&mut picture, (map.line(), &layout), &theme, range, Highlight::Selected);
    }
    picture
}

#[test]
fn training_loop_matches_golden_pictures() {
    let mut model = open_sample(Sample::Training);
    check("training_timeline_dark", &timeline(&model, true, (900, 220), 1.0));
    check("training_timeline_light_x2", &timeline(&model, false, (1200, 360), 2.0));
    let address = model.device_state().blocks().nth(3).map(|block| block.address);
    model.select(address);
    check("training_map_dark", &map(&model, true, (900, 360), ColorBy::State));
    check("training_map_light", &map(&model, false, (900, 360), ColorBy::State));
    check("training_map_by_category", &map(&model, true, (900, 360), ColorBy::Category));
}

#[test]
fn first_moment_matches_golden_pictures() {
    let mut model = open_sample(Sample::Training);
    model.seek(0).expect("a loaded moment");
    check("beginning_timeline", &timeline(&model, false, (900, 160), 1.0));
    check("beginning_map", &map(&model, false, (900, 160), ColorBy::State));
}

#[test]
fn failures_and_lost_events_match_golden_pictures() {
    let model = open_sample(Sample::Trouble);
    check("trouble_timeline", &timeline(&model, true, (900, 220), 1.0));
    check("trouble_map_dark", &map(&model, true, (900, 300), ColorBy::State));
    check("trouble_map_light", &map(&model, false, (900, 300), ColorBy::State));
}

#[test]
fn many_segments_match_golden_pictures() {
    let model = open_sample(Sample::Crowd);
    check("crowd_map", &map(&model, true, (900, 300), ColorBy::State));
}

#[test]
fn zoomed_timeline_matches_golden_picture() {
    let mut model = open_sample(Sample::Training);
    let range = model.range();
    let middle = range.start + (range.end - range.start) / 2;
    model.zoom(0.1, middle);
    check("training_timeline_zoomed", &timeline(&model, true, (900, 220), 1.0));
}

#[test]
fn memory_outside_the_pool_matches_golden_pictures() {
    let mut model = open_sample(Sample::Shared);
    check("shared_timeline_dark", &timeline(&model, true, (900, 220), 1.0));
    model.toggle_band(Band::Others);
    check("shared_timeline_others_dark", &timeline(&model, true, (900, 220), 1.0));
    check("shared_timeline_others_light_x2", &timeline(&model, false, (1200, 360), 2.0));
    model.toggle_band(Band::Outside);
    model.zoom(0.4, model.time_ns());
    check("shared_timeline_zoomed", &timeline(&model, false, (900, 220), 1.0));
}

/// Draws the map of segments of several pools and streams.
fn mixed_map(dark: bool, color_by: ColorBy, view: View) -> Bitmap {
    let state = mixed_state();
    let device = state.device(DeviceId(0)).expect("the device has memory");
    let (size, theme, definitions) = ((900, 360), Theme::new(dark), Definitions::default());
    let ages = AgeScale { unit: AgeUnit::Events, now: 5000, longest: 5000 };
    let reserved_bytes = device.segments().map(|segment| segment.size).sum();
    let owners = DeviceOwners {
        device_bytes: Some(1 << 30),
        reserved_bytes,
        outside_bytes: Some(200 << 20),
        ..DeviceOwners::default()
    };
    let content = MapContent { color_by, ages, ..MapContent::new(device, &definitions) };
    let map = Map::with_owners(content, view.sort, owners);
    let layout = Layout::new(map.line(), size, 1.0, view);
    let mut picture = map.draw(layout.clone(), size, &theme);
    let proposed = (0x7f00_0000_0000 + (96 << 20), 6 << 20);
    device_map::draw_placement(&mut picture, (map.line(), &layout), &theme, proposed);
    picture
}

#[test]
fn maps_of_pools_and_streams_match_golden_pictures() {
    let whole = View { zoom: Some(0.0), ..View::default() };
    check("pools_map_dark", &mixed_map(true, ColorBy::State, View::default()));
    check("pools_map_whole_device_light", &mixed_map(false, ColorBy::State, whole));
    check("pools_map_age_dark", &mixed_map(true, ColorBy::Age, whole));
    let zoomed = View { zoom: Some(4.0), scroll: 300, sort: SortBy::Size, ..View::default() };
    check("pools_map_zoomed_light", &mixed_map(false, ColorBy::Size, zoomed));
}

#[test]
fn every_golden_picture_has_a_test() {
    let known = [
        "allocations_by_address_dark",
        "allocations_by_address_light",
        "allocations_dark",
        "allocations_light",
        "beginning_map",
        "beginning_timeline",
        "crowd_map",
        "events_timeline_dark",
        "events_timeline_light",
        "flame_dark",
        "flame_light",
        "fragmentation_dark",
        "fragmentation_light",
        "idle_timeline_light",
        "lanes_timeline_light",
        "pools_map_age_dark",
        "pools_map_dark",
        "pools_map_whole_device_light",
        "pools_map_zoomed_light",
        "shared_timeline_dark",
        "shared_timeline_others_dark",
        "shared_timeline_others_light_x2",
        "shared_timeline_zoomed",
        "stacked_timeline_dark",
        "stacked_timeline_light",
        "steps_timeline_dark",
        "steps_timeline_light",
        "training_map_by_category",
        "training_map_dark",
        "training_map_light",
        "training_timeline_arrow",
        "training_timeline_dark",
        "training_timeline_light_x2",
        "training_timeline_zoomed",
        "trouble_map_dark",
        "trouble_map_light",
        "trouble_timeline",
    ];
    let mut found: Vec<String> = fs::read_dir(crate_path("tests/golden"))
        .expect("the folder of golden pictures can be read")
        .filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned()))
        .collect();
    found.sort();
    if !is_updating() {
        assert_eq!(found, known);
    }
}

/// `tests/web.rs` draws the same pictures in a browser.
#[test]
fn pictures_have_the_checksums_of_every_target() {
    crate::checksums::check();
}

/// Returns the names of the files in a folder of the crate; empty if there is no such folder.
fn names_in(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(crate_path(folder)).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn every_picture_of_a_view_has_a_test() {
    if is_updating() {
        return;
    }
    let views = names_in("src/views").into_iter().map(|view| (format!("src/views/{view}"), "page_tests.rs"));
    for (folder, tests) in views.chain([("src/timeline".to_owned(), "../../tests/it/timeline.rs")]) {
        let files = names_in(&format!("{folder}/golden"));
        let mut of_name = std::collections::BTreeMap::<&str, usize>::new();
        for file in &files {
            let [_, _, name] = file.rsplitn(3, '_').collect::<Vec<_>>()[..] else { panic!("{folder}: {file}") };
            *of_name.entry(name).or_default() += 1;
        }
        for (name, count) in of_name {
            assert_eq!(count, 8, "{folder}: pictures of {name} at four sizes in both color schemes");
            let tests = std::fs::read_to_string(crate_path(&format!("{folder}/{tests}"))).expect("the view has tests");
            assert!(tests.contains(&format!("\"{name}\"")), "{folder}: no test draws {name}");
        }
        let code = std::fs::read_to_string(crate_path(&format!("{folder}/mod.rs"))).unwrap_or_default();
        assert!(files.is_empty() != code.contains("picture_label: Some") || folder == "src/timeline", "{folder}");
    }
}
