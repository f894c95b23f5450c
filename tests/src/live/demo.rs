//! The default demo on the host: how soon a viewer sees it, and how many steps a second it trains.

use std::fmt;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use vramscope_trace::{Annotation, AnnotationStage, Recording};

use super::{TIMEOUT, read_complete_file};
use crate::browser::Browser;
use crate::page::Page;
use crate::program::Program;

/// Returns true once the heat map shows memory: it has pixels of many colors.
const HAS_HEAT_MAP: &str = "
    const canvas = document.getElementById('picture-left');
    if (!(window.vramscope.state().events > 0 && canvas.width > 0 && canvas.height > 0)) return false;
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext('2d');
    copy.drawImage(canvas, 0, 0);
    const pixels = new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels).size > 16";

/// Steps that warm up the processor's caches and reserve memory.
const WARM_UP: usize = 10;

/// Steps of one run.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    /// Steps a second, at most 25: the demo sleeps after shorter steps, so that a viewer can
    /// follow.
    pub rate: f64,
    /// Sorted times of steps without their sleep, in milliseconds.
    pub times_ms: Vec<f64>,
}

impl Steps {
    /// Returns a quantile of the times; 0 without steps.
    fn at(&self, part: f64) -> f64 {
        let last = self.times_ms.len().saturating_sub(1);
        self.times_ms.get((last as f64 * part).round() as usize).copied().unwrap_or(0.0)
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, most) = (self.at(0.5), self.at(0.95));
        write!(f, "{:.1} steps a second (p50 {median:.1} ms, p95 {most:.1} ms without the sleep)", self.rate)
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Seconds from the start of the process until it prints its address.
    pub listening: f64,
    /// Seconds from the start of the process until the page, opened at once in a running browser,
    /// has drawn a heat map of live events.
    pub first_picture: f64,
    /// Steps while the page follows.
    pub watched: Steps,
    /// Steps of another run without a viewer.
    pub unwatched: Steps,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listening, first_picture, watched, unwatched } = self;
        write!(f, "listening after {listening:.2} s, first picture after {first_picture:.2} s; ")?;
        write!(f, "with the page: {watched}; without: {unwatched}")
    }
}

/// Runs the demo with and without a page, each for `time`.
///
/// # Errors
/// Returns why a recording cannot be read, or that it has too few steps.
///
/// # Panics
/// Panics if the demo, the browser or the page does not run.
pub fn demo(browser: &Browser, time: Duration) -> Result<Figures, String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let start_demo = |name: &str| {
        let path = folder.path().join(name);
        let arguments = ["demo", "--device", "host", "--overflow", "drop", "--record"].map(Into::into);
        let start = Instant::now();
        (start, Program::start(arguments.into_iter().chain([path.clone().into_os_string()])), path)
    };
    let (start, mut program, path) = start_demo("watched.vram");
    let listening = start.elapsed().as_secs_f64();
    let page = Page::open(browser, program.url());
    page.wait("a heat map of live events is drawn", HAS_HEAT_MAP);
    let first_picture = start.elapsed().as_secs_f64();
    thread::sleep(time);
    wait_for_steps(&path)?;
    program.interrupt();
    let (watched, _) = (steps(&path)?, page);
    browser.open("about:blank");
    let (_, mut program, path) = start_demo("unwatched.vram");
    thread::sleep(time);
    wait_for_steps(&path)?;
    program.interrupt();
    Ok(Figures { listening, first_picture, watched, unwatched: steps(&path)? })
}

/// Waits until a file that is written has more steps than the [`WARM_UP`]: a busy machine trains
/// slowly.
fn wait_for_steps(path: &std::path::Path) -> Result<(), String> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let mut recording = Recording::new();
        // The last chunk may be incomplete.
        let is_valid = fs::read(path).is_ok_and(|bytes| recording.push(&bytes).is_ok());
        let is_step = |one: &&Annotation| {
            one.stage == AnnotationStage::Begin && recording.definitions().string(one.name).starts_with("step ")
        };
        let steps = recording.annotations().iter().filter(is_step).count();
        if is_valid && steps > WARM_UP + 1 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{}: only {steps} steps after {TIMEOUT:?}", path.display()));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Reads the times of the training steps from a recording.
fn steps(path: &std::path::Path) -> Result<Steps, String> {
    let (recording, _) = read_complete_file(path)?;
    let definitions = recording.definitions();
    let mut begins = Vec::new();
    let mut times_ms = Vec::new();
    for annotation in recording.annotations() {
        let name = definitions.string(annotation.name);
        match (annotation.stage, name.starts_with("step ")) {
            (AnnotationStage::Begin, true) => begins.push(annotation.time_ns),
            (AnnotationStage::End, true) => {
                let begin = begins.last().copied().unwrap_or(annotation.time_ns);
                times_ms.push((annotation.time_ns - begin) as f64 / 1e6);
            }
            _ => {}
        }
    }
    let (Some(&first), Some(&last)) = (begins.get(WARM_UP), begins.last()) else {
        return Err(format!("{}: only {} steps", path.display(), begins.len()));
    };
    let rate = (begins.len() - 1 - WARM_UP) as f64 / ((last - first) as f64 / 1e9);
    let mut times_ms = times_ms.split_off(WARM_UP.min(times_ms.len()));
    times_ms.sort_by(f64::total_cmp);
    Ok(Steps { rate, times_ms })
}
