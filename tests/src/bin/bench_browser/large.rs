//! A recording of 4,000,000 events, on the page (which reads it by ranges) and in wasm alone.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, Page, Program, synthetic, vramscope};

use crate::measure::{Effort, Target, milliseconds, row, seek_and_scrub, times};
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

/// Measures the page and the wasm module.
pub(crate) fn measure(browser: &Browser, effort: Effort) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("big.vram");
    let is_big = make(&path, effort);
    let bytes = fs::read(&path).expect("the file was just written");
    println!("\n{}, {} bytes, 1600x900, headless Chromium\n", if is_big { "big" } else { "synthetic" }, bytes.len());

    let view = Program::start(["view".as_ref(), path.as_os_str()]);
    let page = Page::open(browser, view.url());
    let end = page.wait_until("the recording is open", |state| state.events > 0).events;
    assert!(!is_big || end == 4_000_000, "{end} events");
    let requested = times_of(&browser.run(&script(scripts::REQUESTED), &[]));
    println!("read to open and look: {} bytes of {} in {} requests", requested[0], bytes.len(), requested[1]);
    on_the_page(browser, page, effort, is_big);
    page.keep_file("big.vram", &bytes);
    row("open(file) until usable", &times(browser, scripts::OPEN, json!(effort.opens)), None);
    // Last, because it holds the whole recording in memory.
    in_wasm(browser, effort);
}

fn script(body: &str) -> String {
    format!("return (async function () {{ {body} }}).apply(null, arguments)")
}

fn times_of(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().filter_map(Value::as_f64).collect()
}

fn on_the_page(browser: &Browser, page: Page<'_>, effort: Effort, is_big: bool) {
    let opened = times(browser, scripts::OPEN_URL, json!(effort.opens));
    row("open(URL) until usable", &opened, effort.target(Target::Longest(1000.0)));
    seek_and_scrub(browser, effort);
    let zoomed = times(browser, scripts::ZOOM, json!(effort.seeks));
    row("one zoom step", &zoomed, None);
    let memory = times_of(&browser.run(&script(scripts::MEMORY), &[]));
    println!("memory: {:.0} MB of scripts, {:.0} MB of wasm", memory[0] / 1e6, memory[1] / 1e6);
    if is_big {
        let median = |sorted: &[f64]| sorted[sorted.len() / 2];
        println!(
            "memory_viz: {:.0} times as long to open, {:.0} times for a zoom step, {:.1} times the memory; {} events",
            memory_viz::FIRST_PAINT_MS / median(&opened),
            memory_viz::ZOOM_STEP_MS / median(&zoomed),
            memory_viz::HEAP_BYTES / (memory[0] + memory[1]),
            page.state().events,
        );
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
    let figures = browser.run(
        &script(&format!("{js}\n{}", scripts::WASM)),
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

/// Writes the recording with an index. Returns true if it is `big`.
fn make(path: &Path, effort: Effort) -> bool {
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
    big.is_some()
}
