//! Who holds the memory: the rows for scripts, the bars in the details panel, and the pixels of the
//! device map, which must all agree.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fastrand::Rng;
use serde_json::Value;
use vramscope_trace::Category;
use vramscope_viewer::app::{PageFacts, Session, SessionReport};
use vramscope_viewer::device_map::{Fill, MemoryKind};
use vramscope_viewer::model::Origin;
use vramscope_viewer::protocol::{FrameRequest, Screen, Surface};
use vramscope_viewer::ui::{Attribute, Element, Tag};
use vramscope_viewer::views::device::Device;

use crate::testing::page::{attribute, elements, run, text};
use crate::testing::rows::{number, rows};
use crate::testing::samples::Sample;
use crate::testing::{chunks, command, open, open_bytes, sample_session};

/// Number of moments of each recording that are compared.
const MOMENTS: u32 = 20;
/// Recordings of programs in this repository.
const RECORDINGS: [&str; 20] = [
    "accumulate-with",
    "adam_8bit-without",
    "allocators-caching",
    "batch_search-without",
    "checkpoint_blocks-with",
    "empty_cache-every_step",
    "gradients_kept-with",
    "graph_pools-own_pools",
    "growing_list-without",
    "int8_weights-with",
    "keep_outputs-without",
    "kv_cache-without",
    "loading-eager",
    "mixed_precision-bf16",
    "offload-with",
    "optimizers-adamw",
    "record_stream-with",
    "variable_lengths-default",
    "variable_lengths-expandable_segments",
    "zero_gradients-to_none",
];

/// Returns a text of a row.
fn string<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_else(|| panic!("{name} of {row} is not a text"))
}

/// Asserts that the rows below each path add up to its row.
fn check_sums(rows: &[Value]) {
    let mut below: BTreeMap<(u64, &str), u64> = BTreeMap::new();
    for row in rows {
        if let Some((parent, _)) = string(row, "path").rsplit_once('/') {
            *below.entry((number(row, "device"), parent)).or_default() += number(row, "bytes");
        }
    }
    for ((device, path), sum) in below {
        let is_parent = |row: &&Value| number(row, "device") == device && string(row, "path") == path;
        let parent = rows.iter().find(is_parent).expect("a row for each path");
        assert_eq!(number(parent, "bytes"), sum, "{path}");
    }
}

/// Returns the bytes of the live blocks by category.
fn bytes_by_category(blocks: &[Value]) -> BTreeMap<&str, u64> {
    let mut bytes = BTreeMap::new();
    for block in blocks {
        let category = string(block, "category").trim_end_matches(" (inferred)");
        *bytes.entry(category).or_default() += number(block, "bytes");
    }
    bytes
}

/// Asserts that the map's pixels of each category stand for its bytes, to within a row of pixels.
fn check_pixels(session: &Session, bytes: &BTreeMap<&str, u64>) {
    let view = session.views.of_type::<Device>().expect("a view");
    let scene = view.scene().expect("a picture");
    let bytes_per_pixel = scene.layout.bytes_per_column() / f64::from(scene.layout.row_pixels());
    let mut pixels: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in scene.pixels_by_kind() {
        let (MemoryKind::Live(Fill::Category(index)) | MemoryKind::Rounding(Fill::Category(index))) = kind else {
            continue;
        };
        *pixels.entry(Category::ALL[usize::from(index)].name()).or_default() += count;
    }
    for category in Category::ALL.map(Category::name) {
        let expected = bytes.get(category).copied().unwrap_or(0) as f64 / bytes_per_pixel;
        let drawn = pixels.get(category).copied().unwrap_or(0) as f64;
        let width = f64::from(scene.layout.map.width());
        assert!((drawn - expected).abs() <= width, "{category}: {drawn} pixels instead of {expected}");
    }
}

#[test]
fn bars_rows_and_pixels_agree_at_random_moments() {
    let mut random = Rng::with_seed(39);
    for name in RECORDINGS {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/pytorch/recordings");
        let file = std::fs::read(folder.join(name).with_extension("vram")).expect("the repository contains the file");
        let mut session = open_bytes(name, &file);
        let screen = Screen { sizes: [(900, 100), (900, 420), (0, 0)], ..Screen::default() };
        let actions = vec![command("color category")];
        let request = FrameRequest { screen: Some(screen), actions, ..FrameRequest::default() };
        let _ = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
        let end = session.model.recording().end_event();
        for _ in 0..MOMENTS {
            let event = random.u64(1..=end);
            let _ = run(&mut session, &[&format!("seek {event}")]);
            let blocks = rows(&mut session, "blocks", "{}");
            let bytes = bytes_by_category(&blocks);
            let owners = rows(&mut session, "owners", "{}");
            check_sums(&owners);
            let device = u64::from(session.model.device().0);
            for category in Category::ALL.map(Category::name) {
                let is_category = |row: &&Value| string(row, "kind") == "category" && string(row, "owner") == category;
                let row = owners.iter().filter(|row| number(row, "device") == device).find(is_category);
                let expected = bytes.get(category).copied().unwrap_or(0);
                assert_eq!(row.map_or(0, |row| number(row, "bytes")), expected, "{name} at {event}: {category}");
            }
            if !blocks.is_empty() {
                check_pixels(&session, &bytes);
            }
        }
    }
}

#[test]
fn rows_name_process_device_and_moment() {
    let mut session = sample_session(Sample::Training);
    let at = |session: &mut Session, options: &str| rows(session, "owners", options);
    let first = at(&mut session, r#"{"event": 1}"#);
    let last = at(&mut session, r#"{"event": 1000000000}"#);
    assert_ne!(first, last, "each moment has its own rows");
    assert_eq!(at(&mut session, r#"{"limit": 2}"#).len(), 2);
    let kinds: Vec<&str> = last.iter().map(|row| string(row, "kind")).collect();
    assert!(kinds.contains(&"category") && kinds.contains(&"line"), "{kinds:?}");
    assert!(last.iter().any(|row| !string(row, "process").is_empty()), "{last:?}");
}

#[test]
fn bars_light_up_their_memory() {
    let mut session = sample_session(Sample::Training);
    let screen = Screen { sizes: [(900, 100), (900, 420), (0, 0)], ..Screen::default() };
    let request = FrameRequest { screen: Some(screen), ..FrameRequest::default() };
    let frame = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
    let label = &frame.panes[0].as_ref().expect("the map").picture_label;
    assert!(label.starts_with("Map of the device's memory: ") && label.contains("activation "), "{label}");
    let shown = text(&frame.details.expect("details"));
    assert!(shown.contains("Where ") && shown.contains("Who holds it"), "{shown}");
    let pixels = |session: &mut Session, commands: &[&str]| {
        let _ = run(session, commands);
        session.pixels(Surface::Left).to_vec()
    };
    let plain = pixels(&mut session, &[]);
    let lit = pixels(&mut session, &["light category activation"]);
    assert!(lit != plain);
    assert!(pixels(&mut session, &["light"]) == plain, "the light goes out");
    assert!(pixels(&mut session, &["light reserved"]) == plain, "all of the pool is lit");
    let _ = pixels(&mut session, &["light"]);
    let actions = vec![command("keep-light category activation")];
    let request = FrameRequest { actions, ..FrameRequest::default() };
    let frame = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
    assert!(session.pixels(Surface::Left) == lit);
    let rows = frame.details.expect("the bar is marked");
    let is_kept = |row: &Element| attribute(row, Attribute::AriaPressed) == Some("true");
    let kept: Vec<String> =
        elements(&rows, Tag::Button).into_iter().filter(|row| is_kept(row)).map(Element::text_content).collect();
    assert!(kept.len() == 1 && kept[0].starts_with("activation"), "{kept:?}");
    assert!(pixels(&mut session, &["light stuck"]) != lit, "the pointer comes first");
    assert!(pixels(&mut session, &["light", "deselect"]) == plain);
}

#[test]
fn every_device_has_rows_without_a_moment() {
    let mut session = open("two_devices.pickle.gz");
    let owners = rows(&mut session, "owners", "{}");
    check_sums(&owners);
    let with_lines =
        |device: u64| owners.iter().any(|row| number(row, "device") == device && string(row, "kind") == "line");
    assert!(with_lines(0) && with_lines(1), "{owners:?}");
}

#[test]
fn failures_are_visited_in_a_circle() {
    let mut session = open("tour/oom_frag.vram");
    let failures: Vec<u64> = session.model.marks().incidents().iter().map(|one| one.at_event + 1).collect();
    assert_eq!(session.model.state().event(), failures[0], "the recording opens at its first failure");
    let _ = run(&mut session, &["last", "failure 1"]);
    assert_eq!(session.model.state().event(), failures[0]);
    let _ = run(&mut session, &["first", "failure -1"]);
    assert_eq!(Some(&session.model.state().event()), failures.last());
}

#[test]
fn live_texts_change_twice_a_second() {
    let mut session = Session::default();
    session.model.reset("live", Origin::Live);
    let screen = Screen { sizes: [(900, 100), (900, 420), (0, 0)], ..Screen::default() };
    let mut screen = Some(screen);
    let mut sent = Vec::new();
    for (number, chunk) in (1u32..).zip(chunks(150_000)) {
        session.model.push(&chunk.bytes).expect("a valid recording");
        let clock_ms = 20.0 * f64::from(number);
        let request = FrameRequest { clock_ms, screen: screen.take(), ..FrameRequest::default() };
        let frame = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
        assert!(!frame.pictures.is_empty(), "pictures change with every frame");
        assert_eq!(frame.texts.is_none(), frame.next_frame_ms.is_some(), "late texts are announced");
        sent.extend(frame.texts.map(|_| clock_ms));
    }
    let pauses: Vec<f64> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() >= 4 && pauses.iter().all(|pause| (500.0..=520.0).contains(pause)), "{sent:?}");
    // Without further events, the texts follow once their time has come.
    let request = FrameRequest { clock_ms: 1e6, ..FrameRequest::default() };
    let frame = session.frame(&request, &PageFacts::default(), &mut SessionReport::default());
    assert!(frame.texts.is_some() && frame.next_frame_ms.is_none());
}
