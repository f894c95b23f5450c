//! Extent, targets and printed rows of the benchmark.

use serde_json::{Value, json};
use vramscope_tests::{Browser, ColorScheme, Window};

use crate::scripts;

/// Size of the page in the measurements.
pub(crate) const WINDOW: Window = Window { width: 1600, height: 900, scale: 1, colors: ColorScheme::Light };
/// The run that judges the targets.
pub(crate) const FULL: Effort = Effort { opens: 5, seeks: 200, scrub_ms: 4000, is_full: true };
/// The run that shows that the benchmark works.
pub(crate) const SMALL: Effort = Effort { opens: 1, seeks: 10, scrub_ms: 300, is_full: false };

/// Number of repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) opens: usize,
    pub(crate) seeks: usize,
    pub(crate) scrub_ms: u32,
    /// True if the run is long enough to judge the targets.
    pub(crate) is_full: bool,
}

/// Longest acceptable times, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The longest time.
    Longest(f64),
    /// The 99th percentile.
    P99(f64),
    /// The 95th and the 99th percentile.
    P95AndP99(f64, f64),
}

impl Effort {
    /// Returns the target if this run is long enough to judge it.
    pub(crate) fn target(self, target: Target) -> Option<Target> {
        self.is_full.then_some(target)
    }
}

/// Runs a script with arguments and returns what it returns.
pub(crate) fn run(browser: &Browser, script: &str, arguments: &[Value]) -> Value {
    browser.run(&format!("return (async function () {{ {script} }}).apply(null, arguments)"), arguments)
}

/// Runs a script that returns times and returns them sorted, in milliseconds.
pub(crate) fn times(browser: &Browser, script: &str, argument: Value) -> Vec<f64> {
    milliseconds(&run(browser, script, &[argument]))
}

/// Runs a script that returns the times of actions and of the engine's work for their frames, and
/// prints a row for each. `factor` multiplies the targets.
pub(crate) fn actions(browser: &Browser, what: &str, script: &str, arguments: &[Value], effort: Effort, factor: f64) {
    let measured = run(browser, script, arguments);
    let is_judged = [scripts::SEEK, scripts::HOVER].contains(&script);
    let target = is_judged.then_some(Target::P99(33.0 * factor));
    row(what, &milliseconds(&measured[0]), target.and_then(|target| effort.target(target)));
    let frames = effort.target(Target::P95AndP99(12.0 * factor, 25.0 * factor));
    row("  own work a frame", &milliseconds(&measured[1]), frames);
}

/// Measures seeks to random moments, scrubbing, zooming and moving the timeline, zooming the map,
/// and lighting memory up. `factor` multiplies the targets.
pub(crate) fn navigate(browser: &Browser, effort: Effort, factor: f64) {
    let act = |what, script, arguments: &[Value]| actions(browser, what, script, arguments, effort, factor);
    act("seek until on the screen", scripts::SEEK, &[json!(effort.seeks)]);
    act("scrub, between frames", scripts::SCRUB, &[json!(effort.scrub_ms)]);
    act("one zoom step", scripts::ZOOM, &[json!(effort.seeks), json!(false)]);
    act("one step sideways", scripts::ZOOM, &[json!(effort.seeks), json!(true)]);
    act("one zoom step of the map", scripts::MAP_ZOOM, &[json!(effort.seeks)]);
    act("linked hover until lit", scripts::HOVER, &[json!(effort.seeks)]);
    // The whole recording again.
    browser.run("document.getElementById('fit').click(); return true", &[]);
}

/// Prints the tasks of the main thread of 50 ms and more since the last call.
pub(crate) fn long_tasks(browser: &Browser, during: &str) {
    let tasks = times(browser, scripts::TASKS, json!(null));
    let longest = tasks.last().map_or(String::new(), |longest| format!(", the longest {longest:.0} ms"));
    println!("tasks of 50 ms and more on the main thread, {during}: {}{longest}", tasks.len());
}

/// Returns a list of milliseconds, sorted.
pub(crate) fn milliseconds(times: &Value) -> Vec<f64> {
    let times = times.as_array().expect("the script returns a list of times");
    let mut times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Prints a row: median, 95th and 99th percentile, longest, and the target.
pub(crate) fn row(what: &str, sorted: &[f64], target: Option<Target>) {
    let at = |part: f64| sorted[((sorted.len() - 1) as f64 * part).round() as usize];
    let (median, high, most, longest) = (at(0.5), at(0.95), at(0.99), at(1.0));
    let verdict = |name: &str, is_met: bool| format!("   target{name} ms: {}", if is_met { "met" } else { "MISSED" });
    let verdict = match target {
        None => String::new(),
        Some(Target::Longest(target)) => verdict(&format!(" {target}"), longest <= target),
        Some(Target::P99(target)) => verdict(&format!(" p99 {target}"), most <= target),
        Some(Target::P95AndP99(first, second)) => {
            verdict(&format!(" p95 {first}, p99 {second}"), high <= first && most <= second)
        }
    };
    let times = sorted.len();
    println!(
        "{what:26} {times:5} times   p50 {median:7.1} ms   p95 {high:7.1} ms   p99 {most:7.1} ms   max {longest:7.1} ms\
         {verdict}"
    );
}
