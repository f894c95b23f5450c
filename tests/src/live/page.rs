//! The page while a program runs: events shown, response to keys, latency, and correctness.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramscope_trace::digest;

use super::TIMEOUT;
use crate::browser::{Browser, Window};
use crate::load::{Load, PoolSnapshot};
use crate::native_viewer::{FollowOptions, NativeViewer};
use crate::page::{Page, PageState};
use fastrand::Rng;

/// Records each frame, each long task, and each key that took 16 ms or more.
const INSTALL: &str = "
    const probe = window.probe = { frames: [], tasks: [], keys: [] };
    new PerformanceObserver(list => list.getEntries().forEach(entry => probe.tasks.push(entry.duration)))
        .observe({ type: 'longtask' });
    new PerformanceObserver(list => list.getEntries().forEach(entry => {
        if (entry.name === 'keydown') probe.keys.push(entry.duration);
    })).observe({ type: 'event', durationThreshold: 16 });
    const frame = () => {
        const { time_ns, event } = window.vramscope.state();
        probe.frames.push([Date.now(), time_ns, event]);
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    return true";

/// Returns the recorded times.
const COLLECT: &str = "return window.probe";

/// Keys that redraw the page: an earlier moment, zoom, another color, the newest moment.
const KEYS: [char; 6] = ['\u{e012}', 'w', 's', 'c', '\u{e012}', 'l'];
/// Interval between key presses.
const KEY_EVERY: Duration = Duration::from_millis(250);

/// Extent of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Events a second.
    pub rate: u64,
    /// Duration.
    pub time: Duration,
}

/// Sorted milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Times(Vec<f64>);

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    fn read(list: &Value) -> Self {
        Self::of(list.as_array().into_iter().flatten().filter_map(Value::as_f64).collect())
    }

    /// Returns a quantile; 0 if there are no times.
    #[must_use]
    pub fn at(&self, part: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * part).round() as usize).copied().unwrap_or(0.0)
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, most, longest) = (self.at(0.5), self.at(0.95), self.at(1.0));
        write!(f, "{} times, p50 {median:.0} ms, p95 {most:.0} ms, max {longest:.0} ms", self.0.len())
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Events a second that the program reached.
    pub rate: f64,
    /// Events that the page received.
    pub events: u64,
    /// Number of keys pressed.
    pub pressed: u64,
    /// From a key to its frame, for those that took 16 ms or more.
    pub keys: Times,
    /// Time between frames.
    pub frames: Times,
    /// Tasks of 50 ms and more.
    pub tasks: Times,
    /// From an event to the frame that shows it.
    pub latency: Times,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, events, pressed, keys, frames, tasks, latency } = self;
        write!(f, "{rate:.0} events a second, {events} in all, no gap; ")?;
        if *pressed > 0 {
            write!(f, "{pressed} keys pressed, from key to frame: {keys}; ")?;
        }
        write!(f, "from event to screen: {latency}; between frames: {frames}; long tasks: {tasks}")
    }
}

/// Returns the window of the measurements.
#[must_use]
pub fn window() -> Window {
    Window { width: 1600, height: 900, ..Window::default() }
}

/// Lets the page follow a program; with `keys`, while keys are pressed.
///
/// # Errors
/// Returns the first check that failed.
///
/// # Panics
/// Panics if the program, the browser or the page does not run.
pub fn follow(browser: &Browser, plan: Plan, keys: bool) -> Result<Figures, String> {
    let mut load = Load::start(&["--rate", &plan.rate.to_string()]);
    let page = Page::open(browser, load.url());
    page.wait_until("live events arrive", |state| state.live && state.events > 0);
    let epoch_ms = epoch_unix_ns(&load)? as f64 / 1e6;
    if keys {
        page.run("return window.vramscope.show('allocations').then(() => window.vramscope.show('sites'))");
    }
    // Start-up is not part of the measurement.
    thread::sleep(Duration::from_secs(1).min(plan.time));
    page.run(INSTALL);
    let (since, first) = (Instant::now(), event_count(&load.request("figures")));
    let mut pressed = 0;
    while since.elapsed() < plan.time {
        if keys {
            browser.press(KEYS[pressed as usize % KEYS.len()]);
            pressed += 1;
        }
        thread::sleep(KEY_EVERY.min(plan.time.saturating_sub(since.elapsed())));
    }
    let (probe, time) = (page.run(COLLECT), since.elapsed());
    let last = event_count(&load.request("figures"));
    let snapshot = load.pause();
    browser.press('l');
    let state = wait_for_page(page, &snapshot);
    check_complete(page, &state)?;
    let frames = frames(&probe["frames"]);
    Ok(Figures {
        rate: (last - first) as f64 / time.as_secs_f64(),
        events: state.events,
        pressed,
        keys: Times::read(&probe["keys"]),
        frames: Times::of(frames.windows(2).map(|pair| pair[1][0] - pair[0][0]).collect()),
        tasks: Times::read(&probe["tasks"]),
        latency: if keys { Times::default() } else { latency(&frames, epoch_ms) },
    })
}

fn event_count(answer: &Value) -> u64 {
    answer["events"].as_u64().unwrap_or(0)
}

/// Returns the Unix time at which the recording's clock began.
fn epoch_unix_ns(load: &Load) -> Result<u64, String> {
    let watcher = NativeViewer::start(load.url(), FollowOptions::NEWEST);
    let seen = watcher.wait_for_event(1, TIMEOUT)?;
    Ok(seen.recording.info().epoch_unix_ns)
}

/// Returns for each frame its start, the time of its newest event, and that event's number.
fn frames(list: &Value) -> Vec<[f64; 3]> {
    let frames = list.as_array().into_iter().flatten();
    frames.map(|frame| [0, 1, 2].map(|at| frame[at].as_f64().unwrap_or(0.0))).collect()
}

/// Returns the age of events when their frame was certainly drawn, that is when the next frame
/// began. Events are evenly spaced, so one a millisecond is sampled.
fn latency(frames: &[[f64; 3]], epoch_ms: f64) -> Times {
    let mut ages = Vec::new();
    for three in frames.windows(3) {
        let [[_, shown_ns, _], [_, newest_ns, _], [drawn_ms, ..]] = [three[0], three[1], three[2]];
        let mut at_ms = newest_ns / 1e6;
        while at_ms > shown_ns / 1e6 {
            ages.push(drawn_ms - epoch_ms - at_ms);
            at_ms -= 1.0;
        }
    }
    Times::of(ages)
}

/// Waits until the page shows the program's newest event.
fn wait_for_page(page: Page<'_>, snapshot: &PoolSnapshot) -> PageState {
    let events = snapshot.events();
    page.wait_until("the page shows the newest event", |state| state.events >= events && state.event >= events)
}

/// Checks that the page missed no event.
fn check_complete(page: Page<'_>, state: &PageState) -> Result<(), String> {
    let all = page.run("return window.vramscope.state()");
    let missed = all["missed_events"].as_u64().unwrap_or(0);
    if (state.lost_events, missed) == (0, 0) {
        return Ok(());
    }
    Err(format!("{} events are lost on the page, {missed} of them missed", state.lost_events))
}

/// Compares the page's counters with the pool's.
fn check_counters(snapshot: &PoolSnapshot, state: &PageState) -> Result<(), String> {
    let pairs = [
        ("events", snapshot.events(), state.event),
        ("allocated", snapshot.number("allocated_bytes"), state.allocated_bytes),
        ("active", snapshot.number("active_bytes"), state.active_bytes),
        ("reserved", snapshot.number("reserved_bytes"), state.reserved_bytes),
        ("segments", snapshot.segment_count() as u64, state.segments),
        ("blocks", snapshot.block_count() as u64, state.blocks),
    ];
    for (what, pool, page) in pairs {
        if pool != page {
            return Err(format!("{what}: {page} on the page, {pool} in the pool"));
        }
    }
    let (pool, page) = (snapshot.fragmentation(), state.fragmentation);
    if (pool - page).abs() > 1e-9 {
        return Err(format!("fragmentation: {page} on the page, {pool} in the pool"));
    }
    Ok(())
}

/// Compares the page, a native viewer and the pool at `count` random moments of a run.
///
/// # Errors
/// Returns the first difference and its moment.
///
/// # Panics
/// Panics if the program, the browser or the page does not run.
pub fn moments(browser: &Browser, rate: u64, count: u64, seed: u64) -> Result<String, String> {
    let mut load = Load::start(&["--rate", &rate.to_string()]);
    let viewer = NativeViewer::start(load.url(), FollowOptions::WHOLE);
    let page = Page::open(browser, load.url());
    let mut random = Rng::with_seed(seed);
    for number in 0..count {
        thread::sleep(Duration::from_millis(random.u64(20..400)));
        let snapshot = load.pause();
        let state = wait_for_page(page, &snapshot);
        let located = |error: String| format!("moment {number}, after {} events: {error}", snapshot.events());
        check_counters(&snapshot, &state).map_err(located)?;
        let seen = viewer.wait_for_event(snapshot.events(), TIMEOUT)?;
        snapshot.check(seen.recording.end_state(), seen.recording.definitions()).map_err(located)?;
        let native = digest(seen.recording.end_state());
        drop(seen);
        let shown = page.digest();
        if shown != native {
            return Err(located(format!("digest {shown:x} on the page, {native:x} in a native viewer")));
        }
        check_complete(page, &state).map_err(located)?;
        load.resume();
    }
    let events = json!(load.pause().events());
    Ok(format!("seed {seed}: {count} moments of {events} events, page, native viewer and pool agree at each"))
}
