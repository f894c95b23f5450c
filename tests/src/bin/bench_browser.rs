//! Measures the page in headless Chromium: how long a recording takes to open, a seek to be on the screen, and the longest frame
//! while a person scrubs. `--small` does little of each on a small recording, to show that the benchmark still runs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use serde_json::{Value, json};
use vramscope_tests::fixtures::Fixture;
use vramscope_tests::{Browser, Page, Program, Window};

/// How much is done.
#[derive(Clone, Copy, Debug)]
struct Effort {
    opens: usize,
    seeks: usize,
    scrub_ms: u32,
    /// Whether that is enough to say that a target is met.
    judged: bool,
}

const FULL: Effort = Effort { opens: 5, seeks: 200, scrub_ms: 4000, judged: true };
const SMALL: Effort = Effort { opens: 1, seeks: 10, scrub_ms: 300, judged: false };

/// Opens the file again and again; milliseconds from the call until the frame after the promise is on the screen.
const OPEN: &str = "
    const frame = () => new Promise(requestAnimationFrame);
    const times = [];
    for (let i = 0; i < arguments[0]; i++) {
        await frame();
        const start = performance.now();
        await window.vramscope.open(window.benchFile);
        await frame();
        times.push(performance.now() - start);
    }
    return times;";

/// Drops the file; milliseconds until the whole recording can be asked for.
const DROP: &str = "
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(window.benchFile);
    const target = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
    const frame = () => new Promise(requestAnimationFrame);
    const start = performance.now();
    for (const type of ['dragenter', 'dragover', 'drop']) {
        target.dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true, composed: true }));
    }
    const name = window.benchFile.name.split('.')[0];
    const isOpen = state => state.source.includes(name) && state.events === arguments[0];
    while (!isOpen(window.vramscope.state())) await frame();
    await frame();
    return [performance.now() - start];";

/// Seeks to random events, one after the other; milliseconds from the call until its promise says that it is on the screen.
const SEEK: &str = "
    const events = window.vramscope.state().events;
    const times = [];
    let random = 1;
    for (let i = 0; i < arguments[0]; i++) {
        random = (random * 48271) % 2147483647;
        const event = random % (events + 1);
        const start = performance.now();
        await window.vramscope.seek(event);
        times.push(performance.now() - start);
        if (window.vramscope.state().event !== event) throw new Error(`asked for ${event}`);
    }
    return times;";

/// Drags the pointer over the timeline, forth and back, a little every frame; milliseconds between frames.
const SCRUB: &str = "
    const timeline = document.getElementById('timeline');
    const box = timeline.getBoundingClientRect();
    const frame = () => new Promise(requestAnimationFrame);
    const point = (type, part) => timeline.dispatchEvent(new PointerEvent(type, {
        clientX: box.left + 1 + (box.width - 2) * part, clientY: box.top + box.height / 2,
        pointerId: 1, button: 0, buttons: 1, isPrimary: true, bubbles: true, cancelable: true, composed: true,
    }));
    const gaps = [];
    const seen = new Set();
    point('pointerdown', 0);
    const start = await frame();
    let before = start;
    while (before - start < arguments[0]) {
        const turn = (before - start) / arguments[0] * 2;
        point('pointermove', turn < 1 ? turn : 2 - turn);
        const now = await frame();
        gaps.push(now - before);
        before = now;
        seen.add(window.vramscope.state().event);
    }
    point('pointerup', 0);
    if (seen.size < 5) throw new Error(`${gaps.length} frames showed ${seen.size} moments`);
    return gaps;";

fn main() -> ExitCode {
    let small = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [only] if only == "--small" => true,
        other => {
            eprintln!("unknown arguments {other:?}; usage: bench_browser [--small]");
            return ExitCode::from(2);
        }
    };
    let large = if small { None } else { Fixture::large("gpt_varlen") };
    let fixture = large.unwrap_or_else(|| Fixture::small("frag_a_expandable"));
    let other = Fixture::small("tiny_inference");

    let view = Program::start(["view".as_ref(), other.path.as_os_str()]);
    let browser = Browser::start(Window { width: 1600, height: 900, ..Window::default() });
    let page = Page::open(&browser, view.url());
    measure(&browser, page, &fixture, &other, if small { SMALL } else { FULL });
    ExitCode::SUCCESS
}

fn measure(browser: &Browser, page: Page<'_>, fixture: &Fixture, other: &Fixture, effort: Effort) {
    page.keep_file(&fixture.file_name(), &fixture.bytes());
    let times = |script: &str, argument: Value| {
        let script = format!("return (async function () {{ {script} }}).apply(null, arguments)");
        milliseconds(&browser.run(&script, &[argument]))
    };
    let open = times(OPEN, json!(effort.opens));
    let events = page.state().events;
    println!("{}, {events} events, 1600x900, headless Chromium\n", fixture.file_name());
    let row = |what, times: &[f64], target_ms| row(what, times, effort.judged.then_some(target_ms));
    row("open(file) until usable", &open, 1000.0);
    page.open_file(&other.file_name(), &other.bytes());
    row("drop until usable", &times(DROP, json!(events)), 1000.0);
    row("seek until on the screen", &times(SEEK, json!(effort.seeks)), 50.0);
    row("scrub, between frames", &times(SCRUB, json!(effort.scrub_ms)), 50.0);
}

fn milliseconds(times: &Value) -> Vec<f64> {
    let times = times.as_array().expect("the script returns a list of times");
    let mut times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Prints one row: the median, the 99th percentile and the longest, beside the longest there should be.
fn row(what: &str, sorted: &[f64], target_ms: Option<f64>) {
    let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part).round() as usize];
    let (median, most, longest) = (at(0.5), at(0.99), at(1.0));
    let verdict = target_ms.map_or_else(String::new, |target| {
        format!("   target {target} ms: {}", if longest <= target { "met" } else { "MISSED" })
    });
    let times = sorted.len();
    println!("{what:25} {times:4} times   p50 {median:7.1} ms   p99 {most:7.1} ms   max {longest:7.1} ms{verdict}");
}
