//! A program that is watched for long, by viewers that come and go over a network that fails, with a file that keeps its newest part: what it takes
//! must stay what it is.

use std::fmt::{self, Write as _};
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use vramscope_trace::digest;

use super::chaos::{address, through};
use super::{PATIENCE, whole_file};
use crate::http;
use crate::load::Load;
use crate::process::Taken;
use crate::proxy::{Fault, Proxy};
use crate::random::Random;
use crate::watcher::{Manner, Watcher};

/// Moments at which is looked what the program takes, at most.
const SAMPLES: u64 = 360;
/// Bytes by which memory may be more at the end than it was: pages that an allocator keeps are not a leak.
const MEMORY_SLACK_BYTES: u64 = 8 << 20;
/// And the same as a part of it.
const MEMORY_SLACK: f64 = 0.05;

/// How long, and how much.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Whatever is random is the same for the same seed, but for time.
    pub seed: u64,
    /// For how long.
    pub time: Duration,
    /// Events a second.
    pub rate: u64,
    /// Viewers at once, at most.
    pub viewers: usize,
    /// Bytes that the file keeps.
    pub keep_bytes: u64,
    /// Where a table of what was taken is written.
    pub table: Option<PathBuf>,
}

/// What the program took over time.
#[derive(Clone, Debug, Default)]
pub struct Soak {
    samples: Vec<Sample>,
    /// Viewers that came.
    came: u64,
    /// What was asked over HTTP beside.
    asked: u64,
    events: u64,
    file_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    seconds: f64,
    taken: Taken,
    /// Connections that were open.
    connections: u64,
    file_bytes: u64,
}

/// What something was in the second quarter of the time, when all that is kept is full, and in the last: medians.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// In the second quarter.
    pub early: u64,
    /// In the last.
    pub late: u64,
}

impl fmt::Display for Course {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.early, self.late)
    }
}

impl Soak {
    fn course(&self, of: impl Fn(&Sample) -> u64) -> Course {
        let quarter = self.samples.len() / 4;
        let median = |samples: &[Sample]| {
            let mut values: Vec<u64> = samples.iter().map(&of).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        Course { early: median(&self.samples[quarter..2 * quarter]), late: median(&self.samples[3 * quarter..]) }
    }

    /// Bytes of memory.
    #[must_use]
    pub fn memory(&self) -> Course {
        self.course(|sample| sample.taken.resident_bytes)
    }

    /// Open file descriptors, without those of the connections that are open anyway.
    #[must_use]
    pub fn files(&self) -> Course {
        self.course(|sample| sample.taken.files.saturating_sub(sample.connections))
    }

    /// Threads.
    #[must_use]
    pub fn threads(&self) -> Course {
        self.course(|sample| sample.taken.threads)
    }

    /// Whether all of it stayed what it was.
    #[must_use]
    pub fn is_flat(&self) -> bool {
        let (memory, files, threads) = (self.memory(), self.files(), self.threads());
        let slack = MEMORY_SLACK_BYTES.max((memory.early as f64 * MEMORY_SLACK) as u64);
        memory.late <= memory.early + slack && files.late <= files.early + 2 && threads.late <= threads.early
    }

    fn table(&self) -> String {
        let mut table = "seconds,resident_bytes,files,threads,cpu_ms,connections,file_bytes\n".to_owned();
        for Sample { seconds, taken, connections, file_bytes } in &self.samples {
            let Taken { resident_bytes, files, threads, cpu_ms } = taken;
            let _ =
                writeln!(table, "{seconds:.1},{resident_bytes},{files},{threads},{cpu_ms},{connections},{file_bytes}");
        }
        table
    }
}

impl fmt::Display for Soak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.samples.last().map_or(0.0, |sample| sample.seconds);
        let most = self.samples.iter().map(|sample| sample.taken.resident_bytes).max().unwrap_or(0);
        let Self { came, asked, events, file_bytes, .. } = self;
        write!(f, "{}: {seconds:.0} s, {events} events, ", if self.is_flat() { "flat" } else { "NOT FLAT" })?;
        write!(f, "{came} viewers came, {asked} requests beside; memory in bytes {}, at most {most}; ", self.memory())?;
        write!(f, "file descriptors but for connections {}; threads {}; ", self.files(), self.threads())?;
        write!(f, "the file has {file_bytes} bytes")
    }
}

/// Those who watch, and what happens to them.
struct Visitors {
    random: Random,
    proxy: Proxy,
    page: String,
    viewers: Vec<Watcher>,
    most: usize,
    came: u64,
}

impl Visitors {
    fn happen(&mut self) {
        let ms = |random: &mut Random, least, most| Duration::from_millis(random.between(least, most));
        let full = self.viewers.len() >= self.most;
        match self.random.below(8) {
            0 | 1 if !full => {
                let history = ["", "recent", "all"][self.random.below(3) as usize];
                let manner = Manner { history, resumes: self.random.below(2) == 0 };
                self.viewers.push(Watcher::start(&self.page, manner));
                self.came += 1;
            }
            0..=2 if !self.viewers.is_empty() => {
                let at = self.random.below(self.viewers.len() as u64) as usize;
                self.viewers.swap_remove(at);
            }
            3 if !self.viewers.is_empty() => {
                let at = self.random.below(self.viewers.len() as u64) as usize;
                self.viewers[at].stall(ms(&mut self.random, 100, 20_000));
            }
            4 => self.proxy.afflict(self.random.below(1000), Fault::Cut),
            5 => self.proxy.afflict(self.random.below(1000), Fault::Reset),
            6 => self.proxy.afflict(self.random.below(1000), Fault::Stall),
            _ => self.proxy.heal(),
        }
    }
}

/// What a person, or a tool that looks every now and then, asks for. Says how much that was.
fn ask_beside(page: &str, number: u64) -> Result<u64, String> {
    let wanted: &[(&str, &str, &str)] = match number % 3 {
        0 => &[("GET", "/metrics", ""), ("GET", "/healthz", "")],
        1 => &[("GET", "/", ""), ("POST", "/commands/mark", "{\"name\": \"soak\"}")],
        _ => &[("GET", "/trace.vram", ""), ("GET", "/commands", "")],
    };
    for (method, path, body) in wanted {
        let answer = http::ask(page, method, path, body)?;
        if answer.status >= 500 {
            return Err(format!("{method} {path}: {}", answer.status));
        }
    }
    Ok(wanted.len() as u64)
}

/// Watches it.
///
/// # Errors
/// What is not as it should be; that it is not flat is in the answer.
///
/// # Panics
/// Where the program does not run.
pub fn soak(plan: &Plan) -> Result<Soak, String> {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("load.vram");
    let (rate, keep) = (plan.rate.to_string(), plan.keep_bytes.to_string());
    let mut load = Load::start(&["--rate", &rate, "--record", &path.to_string_lossy(), "--keep-bytes", &keep]);
    let proxy = Proxy::start(address(load.url()));
    let page = through(&proxy, load.url());
    let random = Random::new(plan.seed);
    let mut visitors = Visitors { random, proxy, page, viewers: Vec::new(), most: plan.viewers, came: 0 };
    let (mut soak, since) = (Soak::default(), Instant::now());
    let samples = plan.time.as_secs().clamp(20, SAMPLES) as u32;
    let every = plan.time / samples;
    for number in 1..=samples {
        let until = every * number;
        while since.elapsed() < until {
            visitors.happen();
            let most_ms = (every.as_millis() as u64 / 3).clamp(2, 3000);
            let pause = Duration::from_millis(visitors.random.below(most_ms));
            thread::sleep(pause.min(until.saturating_sub(since.elapsed())));
        }
        soak.asked += ask_beside(load.url(), u64::from(number))?;
        soak.samples.push(Sample {
            seconds: since.elapsed().as_secs_f64(),
            taken: Taken::by(load.pid()).ok_or("the program is gone")?,
            connections: visitors.proxy.connections() as u64,
            file_bytes: fs::metadata(&path).map_or(0, |file| file.len()),
        });
        if let Some(table) = &plan.table {
            fs::write(table, soak.table()).map_err(|error| format!("{}: {error}", table.display()))?;
        }
    }
    finish(&mut load, visitors, &path, &mut soak)?;
    Ok(soak)
}

/// All that are there must show what the pool holds, and the file, too.
fn finish(load: &mut Load, mut visitors: Visitors, path: &std::path::Path, soak: &mut Soak) -> Result<(), String> {
    visitors.proxy.heal();
    visitors.viewers.push(Watcher::start(&visitors.page, Manner::NEWEST));
    let moment = load.moment();
    let mut digests = Vec::new();
    for viewer in &visitors.viewers {
        let seen = viewer.wait_for_event(moment.events(), PATIENCE)?;
        moment.check(seen.recording.end_state(), seen.recording.definitions())?;
        digests.push(digest(seen.recording.end_state()));
    }
    load.stop();
    let (recording, file_bytes) = whole_file(path)?;
    moment.check(recording.end_state(), recording.definitions()).map_err(|error| format!("the file: {error}"))?;
    if recording.lost_events() > 0 {
        return Err(format!("{} events are lost in the file", recording.lost_events()));
    }
    digests.push(digest(recording.end_state()));
    digests.dedup();
    (soak.came, soak.events, soak.file_bytes) = (visitors.came, moment.events(), file_bytes);
    if digests.len() == 1 { Ok(()) } else { Err(format!("not all the same: {digests:x?}")) }
}
