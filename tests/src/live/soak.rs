//! A long run with viewers that connect and leave over a faulty network, and a file that keeps
//! its newest part. Memory, files and threads of the program must stay constant.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use vramscope_trace::digest;

use super::chaos::{address, through};
use super::{TIMEOUT, read_complete_file};
use crate::http;
use crate::load::Load;
use crate::native_viewer::{FollowOptions, NativeViewer};
use crate::process::ProcessUsage;
use crate::proxy::{Fault, Proxy};
use fastrand::Rng;

/// Most samples of the program's usage.
const SAMPLES: u64 = 360;
/// Bytes by which memory may grow: pages that an allocator keeps are not a leak.
const MEMORY_SLACK_BYTES: u64 = 8 << 20;
/// Share by which memory may grow.
const MEMORY_SLACK: f64 = 0.05;

/// Extent of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of the random choices; timing still varies.
    pub seed: u64,
    /// Duration.
    pub time: Duration,
    /// Events a second.
    pub rate: u64,
    /// Most viewers at a time.
    pub viewers: usize,
    /// Size of the newest part that the file keeps, in bytes.
    pub keep_bytes: u64,
    /// File for a table of the samples.
    pub table: Option<PathBuf>,
}

/// Usage of the program over time.
#[derive(Clone, Debug, Default)]
pub struct Soak {
    samples: Vec<Sample>,
    /// Viewers that connected.
    viewers_started: u64,
    /// Other HTTP requests.
    requests: u64,
    events: u64,
    file_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    seconds: f64,
    usage: ProcessUsage,
    /// Open connections.
    connections: u64,
    file_bytes: u64,
}

/// Medians of a value in the second quarter of a run, when all buffers are full, and the last.
#[derive(Clone, Copy, Debug)]
pub struct Trend {
    /// Second quarter.
    pub early: u64,
    /// Last quarter.
    pub late: u64,
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.early, self.late)
    }
}

impl Soak {
    fn trend(&self, of: impl Fn(&Sample) -> u64) -> Trend {
        let quarter = self.samples.len() / 4;
        let median = |samples: &[Sample]| {
            let mut values: Vec<u64> = samples.iter().map(&of).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        Trend { early: median(&self.samples[quarter..2 * quarter]), late: median(&self.samples[3 * quarter..]) }
    }

    /// Returns the trend of the memory in bytes.
    #[must_use]
    pub fn memory(&self) -> Trend {
        self.trend(|sample| sample.usage.resident_bytes)
    }

    /// Returns the trend of open file descriptors, connections excluded.
    #[must_use]
    pub fn files(&self) -> Trend {
        self.trend(|sample| sample.usage.files.saturating_sub(sample.connections))
    }

    /// Returns the trend of the number of threads.
    #[must_use]
    pub fn threads(&self) -> Trend {
        self.trend(|sample| sample.usage.threads)
    }

    /// Returns true if memory, files and threads stayed constant.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        let (memory, files, threads) = (self.memory(), self.files(), self.threads());
        let slack = MEMORY_SLACK_BYTES.max((memory.early as f64 * MEMORY_SLACK) as u64);
        memory.late <= memory.early + slack && files.late <= files.early + 2 && threads.late <= threads.early
    }

    fn table(&self) -> String {
        let mut table = "seconds,resident_bytes,files,threads,cpu_ms,connections,file_bytes\n".to_owned();
        for Sample { seconds, usage, connections, file_bytes } in &self.samples {
            let ProcessUsage { resident_bytes, files, threads, cpu_ms } = usage;
            let _ =
                writeln!(table, "{seconds:.1},{resident_bytes},{files},{threads},{cpu_ms},{connections},{file_bytes}");
        }
        table
    }
}

impl fmt::Display for Soak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.samples.last().map_or(0.0, |sample| sample.seconds);
        let most = self.samples.iter().map(|sample| sample.usage.resident_bytes).max().unwrap_or(0);
        let Self { viewers_started, requests, events, file_bytes, .. } = self;
        write!(f, "{}: {seconds:.0} s, {events} events, ", if self.is_flat() { "flat" } else { "NOT FLAT" })?;
        write!(
            f,
            "{viewers_started} viewers, {requests} other requests; memory in bytes {}, at most {most}; ",
            self.memory()
        )?;
        write!(f, "file descriptors without connections {}; threads {}; ", self.files(), self.threads())?;
        write!(f, "the file has {file_bytes} bytes")
    }
}

/// Viewers that connect, stall and leave at random.
struct ViewerChurn {
    random: Rng,
    proxy: Proxy,
    page: String,
    viewers: Vec<NativeViewer>,
    most: usize,
    viewers_started: u64,
}

impl ViewerChurn {
    fn step(&mut self) {
        let ms = |random: &mut Rng, least, most| Duration::from_millis(random.u64(least..most));
        let full = self.viewers.len() >= self.most;
        match self.random.u64(..8) {
            0 | 1 if !full => {
                let history = ["", "recent", "all"][self.random.u64(..3) as usize];
                let options = FollowOptions { history, resumes: self.random.u64(..2) == 0 };
                self.viewers.push(NativeViewer::start(&self.page, options));
                self.viewers_started += 1;
            }
            0..=2 if !self.viewers.is_empty() => {
                let at = self.random.u64(..self.viewers.len() as u64) as usize;
                self.viewers.swap_remove(at);
            }
            3 if !self.viewers.is_empty() => {
                let at = self.random.u64(..self.viewers.len() as u64) as usize;
                self.viewers[at].stall(ms(&mut self.random, 100, 20_000));
            }
            4 => self.proxy.inject(self.random.u64(..1000), Fault::Cut),
            5 => self.proxy.inject(self.random.u64(..1000), Fault::Reset),
            6 => self.proxy.inject(self.random.u64(..1000), Fault::Stall),
            _ => self.proxy.clear_faults(),
        }
    }
}

/// Sends requests that a person or a monitoring tool would send. Returns their number.
fn request_pages(page: &str, number: u64) -> Result<u64, String> {
    let wanted: &[(&str, &str, &str)] = match number % 3 {
        0 => &[("GET", "/metrics", ""), ("GET", "/healthz", "")],
        1 => &[("GET", "/", ""), ("POST", "/commands/mark", "{\"name\": \"soak\"}")],
        _ => &[("GET", "/trace.vram", ""), ("GET", "/commands", "")],
    };
    for (method, path, body) in wanted {
        let answer = http::request(page, method, path, body)?;
        if answer.status >= 500 {
            return Err(format!("{method} {path}: {}", answer.status));
        }
    }
    Ok(wanted.len() as u64)
}

/// Runs the plan and checks the result; growth is part of the result, not an error.
///
/// # Errors
/// Returns the first check that failed.
///
/// # Panics
/// Panics if the program does not run.
pub fn soak(plan: &Plan) -> Result<Soak, String> {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("load.vram");
    let (rate, keep) = (plan.rate.to_string(), plan.keep_bytes.to_string());
    let mut load = Load::start(&["--rate", &rate, "--record", &path.to_string_lossy(), "--keep-bytes", &keep]);
    let proxy = Proxy::start(address(load.url()));
    let page = through(&proxy, load.url());
    let random = Rng::with_seed(plan.seed);
    let mut churn = ViewerChurn { random, proxy, page, viewers: Vec::new(), most: plan.viewers, viewers_started: 0 };
    let (mut soak, since) = (Soak::default(), Instant::now());
    let samples = plan.time.as_secs().clamp(20, SAMPLES) as u32;
    let every = plan.time / samples;
    for number in 1..=samples {
        let until = every * number;
        while since.elapsed() < until {
            churn.step();
            let most_ms = (every.as_millis() as u64 / 3).clamp(2, 3000);
            let pause = Duration::from_millis(churn.random.u64(..most_ms));
            thread::sleep(pause.min(until.saturating_sub(since.elapsed())));
        }
        soak.requests += request_pages(load.url(), u64::from(number))?;
        soak.samples.push(Sample {
            seconds: since.elapsed().as_secs_f64(),
            usage: ProcessUsage::of(load.pid()).ok_or("the program has ended")?,
            connections: churn.proxy.connections() as u64,
            file_bytes: fs::metadata(&path).map_or(0, |file| file.len()),
        });
        if let Some(table) = &plan.table {
            fs::write(table, soak.table()).map_err(|error| format!("{}: {error}", table.display()))?;
        }
    }
    finish(&mut load, churn, &path, &mut soak)?;
    Ok(soak)
}

/// Compares all viewers and the file with the pool.
fn finish(load: &mut Load, mut churn: ViewerChurn, path: &std::path::Path, soak: &mut Soak) -> Result<(), String> {
    churn.proxy.clear_faults();
    churn.viewers.push(NativeViewer::start(&churn.page, FollowOptions::NEWEST));
    let snapshot = load.pause();
    let mut digests = Vec::new();
    for viewer in &churn.viewers {
        let seen = viewer.wait_for_event(snapshot.events(), TIMEOUT)?;
        snapshot.check(seen.recording.end_state(), seen.recording.definitions())?;
        digests.push(digest(seen.recording.end_state()));
    }
    load.stop();
    let (recording, file_bytes) = read_complete_file(path)?;
    snapshot.check(recording.end_state(), recording.definitions()).map_err(|error| format!("the file: {error}"))?;
    if recording.lost_events() > 0 {
        return Err(format!("{} events are lost in the file", recording.lost_events()));
    }
    digests.push(digest(recording.end_state()));
    digests.dedup();
    (soak.viewers_started, soak.events, soak.file_bytes) = (churn.viewers_started, snapshot.events(), file_bytes);
    if digests.len() == 1 { Ok(()) } else { Err(format!("digests differ: {digests:x?}")) }
}
