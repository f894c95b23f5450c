//! Measures the page in headless Chromium: how long a recording takes to open, a seek to be on the screen, and the longest frame
//! while a person scrubs; and the same of a recording of 4,000,000 events, with what that costs in wasm alone. `--small` does little of each on
//! small recordings, to show that the benchmark still runs.
#![forbid(unsafe_code)]

mod large;
mod scripts;

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

/// How long something may take.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// The longest time.
    Longest(f64),
    /// The time within which 99 of 100 are.
    P99(f64),
}

impl Effort {
    /// A target, where there is enough to judge by.
    fn target(self, target: Target) -> Option<Target> {
        self.judged.then_some(target)
    }
}

const FULL: Effort = Effort { opens: 5, seeks: 200, scrub_ms: 4000, judged: true };
const SMALL: Effort = Effort { opens: 1, seeks: 10, scrub_ms: 300, judged: false };

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
    let effort = if small { SMALL } else { FULL };
    measure(&browser, page, &fixture, &other, effort);
    large::measure(&browser, effort);
    ExitCode::SUCCESS
}

/// Runs a script that times something, and gives back the sorted times.
fn times(browser: &Browser, script: &str, argument: Value) -> Vec<f64> {
    let script = format!("return (async function () {{ {script} }}).apply(null, arguments)");
    milliseconds(&browser.run(&script, &[argument]))
}

fn measure(browser: &Browser, page: Page<'_>, fixture: &Fixture, other: &Fixture, effort: Effort) {
    page.keep_file(&fixture.file_name(), &fixture.bytes());
    let open = times(browser, scripts::OPEN, json!(effort.opens));
    let events = page.state().events;
    println!("{}, {events} events, 1600x900, headless Chromium\n", fixture.file_name());
    row("open(file) until usable", &open, effort.target(Target::Longest(1000.0)));
    page.open_file(&other.file_name(), &other.bytes());
    row("drop until usable", &times(browser, scripts::DROP, json!(events)), effort.target(Target::Longest(1000.0)));
    seek_and_scrub(browser, effort);
}

/// To random moments of what is open, and through it.
fn seek_and_scrub(browser: &Browser, effort: Effort) {
    row(
        "seek until on the screen",
        &times(browser, scripts::SEEK, json!(effort.seeks)),
        effort.target(Target::Longest(50.0)),
    );
    row(
        "scrub, between frames",
        &times(browser, scripts::SCRUB, json!(effort.scrub_ms)),
        effort.target(Target::Longest(50.0)),
    );
}

fn milliseconds(times: &Value) -> Vec<f64> {
    let times = times.as_array().expect("the script returns a list of times");
    let mut times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Prints one row: the median, the 99th percentile and the longest, beside what there should be.
fn row(what: &str, sorted: &[f64], target: Option<Target>) {
    let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part).round() as usize];
    let (median, most, longest) = (at(0.5), at(0.99), at(1.0));
    let verdict = |name: &str, is: f64, target: f64| {
        format!("   target{name} {target} ms: {}", if is <= target { "met" } else { "MISSED" })
    };
    let verdict = match target {
        None => String::new(),
        Some(Target::Longest(target)) => verdict("", longest, target),
        Some(Target::P99(target)) => verdict(" p99", most, target),
    };
    let times = sorted.len();
    println!("{what:25} {times:5} times   p50 {median:7.1} ms   p99 {most:7.1} ms   max {longest:7.1} ms{verdict}");
}
