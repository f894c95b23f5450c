//! The page while a program runs: whether it keeps up, answers keys meanwhile, shows an event soon, and shows what the pool holds.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vramscope_trace::digest;

use super::PATIENCE;
use crate::browser::{Browser, Window};
use crate::load::{Load, Moment};
use crate::page::{Page, PageState};
use crate::random::Random;
use crate::watcher::{Manner, Watcher};

/// Writes down each frame, each task that kept the page busy for long, and each key that was not answered at once.
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

/// What was written down.
const COLLECT: &str = "return window.probe";

/// Keys that each ask for something else to be drawn: an earlier moment, zooming, another colour, the newest moment.
const KEYS: [char; 6] = ['\u{e012}', 'w', 's', 'c', '\u{e012}', 'l'];
/// How often one is pressed.
const KEY_EVERY: Duration = Duration::from_millis(250);

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Events a second.
    pub rate: u64,
    /// For how long.
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

    /// The one within which this part of them is; 0 where there is none.
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

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Events a second there really were.
    pub rate: f64,
    /// Events that the page has shown.
    pub events: u64,
    /// Keys that were pressed.
    pub pressed: u64,
    /// From a key until the frame that answers it, of those that took 16 ms or more.
    pub keys: Times,
    /// Between frames.
    pub frames: Times,
    /// Tasks of 50 ms and more.
    pub tasks: Times,
    /// From an event until the frame with it is drawn.
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

/// What a browser is shown at full size.
#[must_use]
pub fn window() -> Window {
    Window { width: 1600, height: 900, ..Window::default() }
}

/// The page follows; with `keys`, while somebody types.
///
/// # Errors
/// What is not as it should be.
///
/// # Panics
/// Where the program, the browser or the page does not run.
pub fn follow(browser: &Browser, plan: Plan, keys: bool) -> Result<Figures, String> {
    let mut load = Load::start(&["--rate", &plan.rate.to_string()]);
    let page = Page::open(browser, load.url());
    page.wait_until("live events come", |state| state.live && state.events > 0);
    let epoch_ms = epoch_unix_ns(&load)? as f64 / 1e6;
    // What it takes to begin is not what it takes to follow.
    thread::sleep(Duration::from_secs(1).min(plan.time));
    page.run(INSTALL);
    let (since, first) = (Instant::now(), counted(&load.ask("figures")));
    let mut pressed = 0;
    while since.elapsed() < plan.time {
        if keys {
            browser.press(KEYS[pressed as usize % KEYS.len()]);
            pressed += 1;
        }
        thread::sleep(KEY_EVERY.min(plan.time.saturating_sub(since.elapsed())));
    }
    let (probe, time) = (page.run(COLLECT), since.elapsed());
    let last = counted(&load.ask("figures"));
    let moment = load.moment();
    browser.press('l');
    let state = arrived(page, &moment);
    check_whole(page, &state)?;
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

fn counted(answer: &Value) -> u64 {
    answer["events"].as_u64().unwrap_or(0)
}

/// When the recording's time began.
fn epoch_unix_ns(load: &Load) -> Result<u64, String> {
    let watcher = Watcher::start(load.url(), Manner::NEWEST);
    let seen = watcher.wait_for_event(1, PATIENCE)?;
    Ok(seen.recording.info().epoch_unix_ns)
}

/// Of each: when it began, the time of the newest event in it, that event's number.
fn frames(list: &Value) -> Vec<[f64; 3]> {
    let frames = list.as_array().into_iter().flatten();
    frames.map(|frame| [0, 1, 2].map(|at| frame[at].as_f64().unwrap_or(0.0))).collect()
}

/// How old each event was when it had surely been drawn: when the frame after the one that shows it began. One event a millisecond stands for
/// all, for they come evenly.
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

/// What the page shows once it is where the program stands.
fn arrived(page: Page<'_>, moment: &Moment) -> PageState {
    let events = moment.events();
    page.wait_until("the page is where the program stands", |state| state.events >= events && state.event >= events)
}

/// That the page lacks nothing since it began.
fn check_whole(page: Page<'_>, state: &PageState) -> Result<(), String> {
    let all = page.run("return window.vramscope.state()");
    let missed = all["missed_events"].as_u64().unwrap_or(0);
    if (state.lost_events, missed) == (0, 0) {
        return Ok(());
    }
    Err(format!("{} events are lost on the page, {missed} of them missed", state.lost_events))
}

/// That the page's counters are the pool's.
fn check_counters(moment: &Moment, state: &PageState) -> Result<(), String> {
    let pairs = [
        ("events", moment.events(), state.event),
        ("allocated", moment.number("allocated_bytes"), state.allocated_bytes),
        ("active", moment.number("active_bytes"), state.active_bytes),
        ("reserved", moment.number("reserved_bytes"), state.reserved_bytes),
        ("segments", moment.segment_count() as u64, state.segments),
        ("blocks", moment.block_count() as u64, state.blocks),
    ];
    for (what, pool, page) in pairs {
        if pool != page {
            return Err(format!("{what}: {page} on the page, {pool} in the pool"));
        }
    }
    let (pool, page) = (moment.fragmentation(), state.fragmentation);
    if (pool - page).abs() > 1e-9 {
        return Err(format!("fragmentation: {page} on the page, {pool} in the pool"));
    }
    Ok(())
}

/// Compares the page, a native viewer and the pool at so many random moments of a run.
///
/// # Errors
/// What is not the same, and when.
///
/// # Panics
/// Where the program, the browser or the page does not run.
pub fn moments(browser: &Browser, rate: u64, count: u64, seed: u64) -> Result<String, String> {
    let mut load = Load::start(&["--rate", &rate.to_string()]);
    let viewer = Watcher::start(load.url(), Manner::WHOLE);
    let page = Page::open(browser, load.url());
    let mut random = Random::new(seed);
    for number in 0..count {
        thread::sleep(Duration::from_millis(random.between(20, 400)));
        let moment = load.moment();
        let state = arrived(page, &moment);
        let here = |error: String| format!("moment {number}, after {} events: {error}", moment.events());
        check_counters(&moment, &state).map_err(here)?;
        let seen = viewer.wait_for_event(moment.events(), PATIENCE)?;
        moment.check(seen.recording.end_state(), seen.recording.definitions()).map_err(here)?;
        let native = digest(seen.recording.end_state());
        drop(seen);
        let shown = page.digest();
        if shown != native {
            return Err(here(format!("digest {shown:x} on the page, {native:x} in a native viewer")));
        }
        check_whole(page, &state).map_err(here)?;
        load.go();
    }
    let events = json!(load.moment().events());
    Ok(format!("seed {seed}: {count} moments of {events} events, page, native viewer and pool the same at each"))
}
