//! A recording of 4,000,000 events, on the page (which reads it by ranges) and in wasm alone.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use vramscope_formats::{Limits, unpack};
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, Page, Program, Window, synthetic, vramscope};

use crate::measure::{Effort, FULL, Target, WINDOW, actions, long_tasks, milliseconds, navigate, row, run, times};
use crate::scripts;

/// PyTorch's own page (memory_viz as of May 2026) with `big`, in the browser and on the machine of
/// `docs/benchmarks.md`.
mod memory_viz {
    pub(super) const FIRST_PAINT_MS: f64 = 21_500.0;
    pub(super) const ZOOM_STEP_MS: f64 = 3_209.0;
    pub(super) const HEAP_BYTES: f64 = 1_154e6;
}

/// Events of the synthetic recording, used if `big` is missing.
const SYNTHETIC_EVENTS: u64 = 4_000_000;
/// Events of the brief run: more than the page reads as a whole.
const SMALL_EVENTS: u64 = 300_000;

/// Devices, segments and live blocks of the recording of many devices.
const MANY: (u16, u64, u64) = (8, 10_000, 1_000_000);
/// The brief run's.
const SMALL_MANY: (u16, u64, u64) = (8, 100, 10_000);
/// Events of the longest recording.
const LONGEST_EVENTS: u64 = 40_000_000;

/// Measures recordings of many devices and blocks, and of [`LONGEST_EVENTS`], which the page reads
/// by ranges.
pub(crate) fn scale(browser: &Browser, effort: Effort) {
    let (devices, segments, blocks) = if effort.is_full { MANY } else { SMALL_MANY };
    let many = synthetic::devices(devices, segments, blocks);
    other(browser, effort, &format!("{devices} devices, {segments} segments, {blocks} blocks"), many, 3000.0);
    if effort.is_full {
        let longest = synthetic::program(LONGEST_EVENTS);
        other(browser, effort, &format!("{LONGEST_EVENTS} events"), longest, 6000.0);
    }
}

/// Measures another recording; every view must be shown within `views_ms` after opening.
fn other(browser: &Browser, effort: Effort, what: &str, recording: Vec<u8>, views_ms: f64) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("other.vram");
    let recording = synthetic::with_index(recording);
    fs::write(&path, &recording).expect("the file can be written");
    println!("\n{what}: {} bytes\n", recording.len());
    drop(recording);
    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let page = Page::open(browser, view.url());
    page.wait_until("the recording is open", |state| state.events > 0);
    run(browser, scripts::WATCH_TASKS, &[]);
    row(
        "open(URL), first picture",
        &times(browser, scripts::OPEN_URL, json!(effort.opens)),
        effort.target(Target::Longest(200.0)),
    );
    every_view(browser, effort, views_ms);
    run(browser, SHOW_PANES, &[]);
    navigate(browser, effort, 2.0);
    long_tasks(browser, "all of this");
    memory(browser, effort, 400e6);
}

/// Measures the page and the wasm module.
pub(crate) fn measure(browser: &Browser, effort: Effort) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("big.vram");
    let big = make(&path, effort);
    let bytes = fs::read(&path).expect("the file was just written");
    let name = if big.is_some() { "big" } else { "synthetic" };
    println!("\n{name}, {} bytes, 1600x900, headless Chromium\n", bytes.len());

    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let page = Page::open(browser, view.url());
    let end = page.wait_until("the recording is open", |state| state.events > 0).events;
    assert!(big.is_none() || end == 4_000_000, "{end} events");
    let read = page.run("return window.vramscope.state().read_bytes");
    println!("read to open and look: {read} bytes of {}", bytes.len());
    run(browser, scripts::WATCH_TASKS, &[]);
    long_tasks(browser, "opening the page");
    on_the_page(browser, page, effort, big.is_some());
    page.keep_file("big.vram", &bytes);
    row("open(file) until usable", &times(browser, scripts::OPEN, json!(effort.opens)), None);
    // Last of those in this page, because it holds the whole recording in memory.
    in_wasm(browser, effort);
    if let Some(big) = big {
        imports(&big);
    }
}

fn on_the_page(browser: &Browser, page: Page<'_>, effort: Effort, is_big: bool) {
    let opened = times(browser, scripts::OPEN_URL, json!(effort.opens));
    row("open(URL), first picture", &opened, effort.target(Target::Longest(100.0)));
    every_view(browser, effort, 1500.0);
    memory(browser, effort, 150e6);
    run(browser, SHOW_PANES, &[]);
    println!("with timeline, allocations and map of the device:");
    navigate(browser, effort, 1.0);
    long_tasks(browser, "all of this");
    if effort.is_full {
        println!("at 3840x2160:");
        browser.emulate(Window { width: 3840, height: 2160, ..WINDOW });
        actions(browser, "scrub, between frames", scripts::SCRUB, &[json!(effort.scrub_ms)], effort, 4.0);
        browser.emulate(WINDOW);
    }
    let sorted = run(browser, scripts::SORT, &[json!(effort.opens)]);
    row("sort all allocations", &milliseconds(&sorted[0]), effort.target(Target::Longest(200.0)));
    row("filter all allocations", &milliseconds(&sorted[1]), effort.target(Target::Longest(200.0)));
    long_tasks(browser, "sorting and filtering");
    memory(browser, effort, 150e6);
    if is_big {
        let median = opened[opened.len() / 2];
        println!(
            "memory_viz: {:.0} times as long to open; {:.0} ms for a zoom step, {:.0} MB of scripts; {} events",
            memory_viz::FIRST_PAINT_MS / median,
            memory_viz::ZOOM_STEP_MS,
            memory_viz::HEAP_BYTES / 1e6,
            page.state().events,
        );
    }
}

/// Shows the map of the device and the allocations over time.
const SHOW_PANES: &str = "
    location.hash = '#panes=device,allocations';
    const shown = side => document.querySelector(`#controls-${side} select`)?.value;
    while (shown('left') !== 'device' || shown('right') !== 'allocations') await new Promise(requestAnimationFrame);
    return [];";

/// Opens the recording and shows every view; prints the slowest views and the time of all.
fn every_view(browser: &Browser, effort: Effort, target_ms: f64) {
    let shown = run(browser, scripts::VIEWS, &[]);
    let mut views: Vec<(String, f64)> = serde_json::from_value(shown).expect("names and times");
    let (_, all) = views.pop().expect("the time of all");
    views.sort_by(|one, other| other.1.total_cmp(&one.1));
    let slowest: Vec<String> = views.iter().take(4).map(|(name, time)| format!("{name} {time:.0} ms")).collect();
    row("open, then every view", &[all], effort.target(Target::Longest(target_ms)));
    println!("  the slowest: {}", slowest.join(", "));
    long_tasks(browser, "showing every view");
}

/// Prints the memory of the page against a target in bytes.
fn memory(browser: &Browser, effort: Effort, target: f64) {
    let parts = run(browser, scripts::MEMORY, &[]);
    let [scripts, wasm] = [&parts[0], &parts[1]].map(|bytes| bytes.as_f64().unwrap_or_default());
    let process =
        browser.renderer_bytes().map_or(String::new(), |bytes| format!(", {:.0} MB the process", bytes as f64 / 1e6));
    let verdict = match effort.is_full {
        true if scripts + wasm <= target => format!("   target {:.0} MB: met", target / 1e6),
        true => format!("   target {:.0} MB: MISSED", target / 1e6),
        false => String::new(),
    };
    println!("memory: {:.0} MB of scripts, {:.0} MB of wasm{process}{verdict}", scripts / 1e6, wasm / 1e6);
}

/// Measures opening the snapshot itself, as zstd and plain, chosen as a file on a fresh page.
fn imports(big: &Fixture) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let plain = folder.path().join("big.pickle");
    let packed = big.bytes();
    let unpacked = unpack(&packed, &Limits::default()).expect("a valid zstd file");
    fs::write(&plain, unpacked).expect("the file can be written");
    let small = Fixture::small("tiny_inference");
    for path in [&big.path, &plain] {
        let view = Program::start(["view".as_ref(), small.path.as_os_str()]);
        let browser = Browser::start(WINDOW);
        let page = Page::open(&browser, view.url());
        page.wait_until("the page is open", |state| state.events > 0);
        run(&browser, scripts::WATCH_TASKS, &[]);
        let bytes = fs::metadata(path).map_or(0, |metadata| metadata.len());
        println!("\n{}, {bytes} bytes, chosen as a file\n", path.file_name().unwrap_or_default().display());
        let start = Instant::now();
        browser.choose_file("#file", path);
        // The state is asked for about every 50 ms.
        let peak = Cell::new(browser.renderer_bytes());
        page.wait_until("the snapshot is open", |state| {
            peak.set(peak.get().max(browser.renderer_bytes()));
            state.events == 4_000_000
        });
        row("until usable", &[start.elapsed().as_secs_f64() * 1e3], Some(Target::Longest(4000.0)));
        if let Some(bytes) = peak.get() {
            println!("memory while converting: at most {:.0} MB the process", bytes as f64 / 1e6);
        }
        long_tasks(&browser, "converting");
        memory(&browser, FULL, 400e6);
    }
}

/// Measures decoding and seeking in wasm without drawing.
fn in_wasm(browser: &Browser, effort: Effort) {
    let Some(folder) = std::env::var_os("VRAMSCOPE_MEASURED").map(PathBuf::from) else {
        println!("SKIPPED: wasm without a page: `cargo xtask bench-browser` builds the module for it");
        return;
    };
    let read = |name: &str| fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let js = String::from_utf8(read("measured.js")).expect("a script");
    let wasm: String = read("measured_bg.wasm").into_iter().map(char::from).collect();
    let figures = run(
        browser,
        &format!("{js}\n{}", scripts::WASM),
        &[json!(wasm), json!(effort.opens), json!(effort.seeks * effort.seeks / 4)],
    );
    let number = |name: &str| figures[name].as_f64().unwrap_or_else(|| panic!("{name} in {figures}"));
    println!("\nin wasm, without a page; {} bytes are read to open by the index\n", number("read"));
    let decoded = milliseconds(&figures["decoded"]);
    let played = milliseconds(&figures["played"]);
    row("decode, with counters", &decoded, None);
    row("decode and replay", &played, None);
    for (what, sorted) in [("decoded with counters", &decoded), ("decoded and replayed", &played)] {
        let rate = |time_ms: f64| number("events") / time_ms / 1e3;
        let (fastest, median) = (rate(sorted[0]), rate(sorted[sorted.len() / 2]));
        println!("{what}: {median:.1} million events a second, {fastest:.1} the fastest time");
    }
    row("open by the index", &milliseconds(&figures["opened"]), None);
    row("seek, nothing drawn", &milliseconds(&figures["seeks"]), effort.target(Target::P99(8.0)));
    println!("memory: {:.0} MB of wasm", number("memory") / 1e6);
}

/// Writes the recording with an index. Returns `big` if it was made from it.
fn make(path: &Path, effort: Effort) -> Option<Fixture> {
    let big = if effort.is_full { Fixture::large("big") } else { None };
    let bytes = match &big {
        Some(big) => {
            let import = vramscope().arg("import").arg(&big.path).arg("-o").arg(path).output();
            let import = import.expect("vramscope starts");
            assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
            fs::read(path).expect("the import has written the file")
        }
        None => synthetic::program(if effort.is_full { SYNTHETIC_EVENTS } else { SMALL_EVENTS }),
    };
    fs::write(path, synthetic::with_index(bytes)).expect("the file can be written");
    big
}
