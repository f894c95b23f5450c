//! Extent, targets and printed rows of the benchmark.

use serde_json::{Value, json};
use vramscope_tests::Browser;

use crate::scripts;

/// Number of repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) opens: usize,
    pub(crate) seeks: usize,
    pub(crate) scrub_ms: u32,
    /// True if the run is long enough to judge the targets.
    pub(crate) is_full: bool,
}

/// Longest time that is acceptable, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The longest time.
    Longest(f64),
    /// The 99th percentile.
    P99(f64),
}

impl Effort {
    /// Returns the target if this run is long enough to judge it.
    pub(crate) fn target(self, target: Target) -> Option<Target> {
        self.is_full.then_some(target)
    }
}

/// Runs a script that returns times and returns them sorted, in milliseconds.
pub(crate) fn times(browser: &Browser, script: &str, argument: Value) -> Vec<f64> {
    let script = format!("return (async function () {{ {script} }}).apply(null, arguments)");
    milliseconds(&browser.run(&script, &[argument]))
}

/// Measures seeks to random moments, and scrubbing.
pub(crate) fn seek_and_scrub(browser: &Browser, effort: Effort) {
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

/// Returns a list of milliseconds, sorted.
pub(crate) fn milliseconds(times: &Value) -> Vec<f64> {
    let times = times.as_array().expect("the script returns a list of times");
    let mut times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Prints a row: median, 99th percentile, longest, and the target.
pub(crate) fn row(what: &str, sorted: &[f64], target: Option<Target>) {
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
