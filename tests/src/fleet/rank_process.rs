//! A simulated rank in a process of its own, which tests can kill.
//!
//! The process pushes all its events until its standard input ends. There it reads commands, a line
//! each; it writes [`Report`]s as lines of JSON to standard output.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use vramscope_collector::HubLimits;
use vramscope_fleet::subjects;

use super::expected_rank::ExpectedRank;
use super::log::print_log_and;
use super::pushing_rank::PushingRank;
use crate::process::ProcessUsage;

/// Interval between two training steps.
const STEP_INTERVAL: Duration = Duration::from_millis(20);
/// Events of a training step.
pub(super) const STEP_EVENTS: u64 = 20;
/// Limits of a rank that loses events while the broker cannot be reached.
const SMALL_LIMITS: HubLimits = HubLimits { history_bytes: 200_000, lag_bytes: 100_000 };
/// Longest wait for a report.
const TIMEOUT: Duration = Duration::from_secs(300);

const PAUSE: &str = "pause";
const RESUME: &str = "resume";

/// A message from a rank's process to its parent.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    /// The process pushes.
    Started { identity: String },
    /// The broker has acknowledged this many messages of the process, without a gap.
    Acknowledged { messages: u64 },
    /// The process does not train until the command [`RESUME`].
    Paused(PausedRank),
}

/// The state and figures of a paused rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PausedRank {
    pub(super) expected: ExpectedRank,
    /// Events so far.
    pub(super) events: u64,
    /// Events that its history could not keep until the broker had them.
    pub(super) missed_events: u64,
    /// The longest time of a training step.
    pub(super) longest_step: Duration,
}

/// A running rank. Dropping it kills its process.
pub(super) struct RankProcess {
    child: Child,
    commands: ChildStdin,
    reports: Receiver<Report>,
    /// Reads reports until the process ends.
    reader: Option<JoinHandle<()>>,
    acknowledged: Arc<AtomicU64>,
    rank: u32,
    identity: String,
}

impl RankProcess {
    /// Starts a rank that pushes to the server at `url`, with the program `fleet`. Its history is
    /// small if `is_small`: then it loses events while the broker cannot be reached.
    ///
    /// # Panics
    /// Panics if the program does not start.
    pub(super) fn start(program: &Path, rank: u32, url: &str, is_small: bool) -> Self {
        let mut child = Command::new(program)
            .args([format!("rank={rank}"), format!("small={}", u8::from(is_small))])
            .env(vramscope_collector::PUSH_VARIABLE, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        let commands = child.stdin.take().expect("standard input is piped");
        let output = BufReader::new(child.stdout.take().expect("standard output is piped"));
        let (sender, reports) = mpsc::channel();
        let acknowledged = Arc::new(AtomicU64::new(0));
        let shared = Arc::clone(&acknowledged);
        let reader = thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // Part of a line, if the process was killed.
                let Ok(report) = serde_json::from_str(&line) else { return };
                match report {
                    Report::Acknowledged { messages } => shared.store(messages, Ordering::Relaxed),
                    // The rank may have been dropped.
                    report => drop(sender.send(report)),
                }
            }
        });
        let mut started =
            Self { child, commands, reports, reader: Some(reader), acknowledged, rank, identity: String::new() };
        match started.next_report() {
            Report::Started { identity } => started.identity = identity,
            report => panic!("rank {rank} begins with {report:?}"),
        }
        started
    }

    /// Returns the number of the rank.
    pub(super) fn rank(&self) -> u32 {
        self.rank
    }

    /// Pauses the training until [`resume`](Self::resume); the push goes on. Called again, returns
    /// the present figures.
    ///
    /// # Panics
    /// Panics if the process has ended or does not answer.
    pub(super) fn pause(&mut self) -> PausedRank {
        self.command(PAUSE);
        match self.next_report() {
            Report::Paused(paused) => paused,
            report => panic!("rank {} does not pause: {report:?}", self.rank),
        }
    }

    /// Lets the rank train again.
    ///
    /// # Panics
    /// Panics if the process has ended.
    pub(super) fn resume(&mut self) {
        self.command(RESUME);
    }

    /// Returns the subject of the process's messages in a run, and how many of them the broker has
    /// acknowledged.
    pub(super) fn acknowledged(&self, run: &str) -> (String, u64) {
        (subjects::events(run, Some(self.rank), &self.identity), self.acknowledged.load(Ordering::Relaxed))
    }

    /// Returns the memory of the process, in bytes.
    pub(super) fn memory(&self) -> u64 {
        ProcessUsage::of(self.child.id()).map_or(0, |usage| usage.resident_bytes)
    }

    /// Kills the process, and reads what it reported before that.
    pub(super) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }

    fn command(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap_or_else(|error| panic!("rank {} has ended: {error}", self.rank));
    }

    fn next_report(&self) -> Report {
        self.reports.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("rank {} does not answer: {error}", self.rank))
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Writes a report, unless the parent has ended.
fn write(report: &Report) {
    if let Ok(line) = serde_json::to_string(report) {
        let _ = writeln!(io::stdout().lock(), "{line}");
    }
}

/// Reports what the broker has acknowledged, from what the library logs.
struct AcknowledgedLayer;

impl<S: Subscriber> Layer<S> for AcknowledgedLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut AcknowledgedVisitor);
    }
}

struct AcknowledgedVisitor;

impl Visit for AcknowledgedVisitor {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "acknowledged_messages" {
            write(&Report::Acknowledged { messages: value });
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

/// Runs the process of a rank: trains and pushes all events to the server at `url` until standard
/// input ends.
///
/// # Panics
/// Panics if the address is invalid.
pub fn run_rank_process(rank: u32, url: &str, is_small: bool) {
    print_log_and(AcknowledgedLayer);
    let limits = if is_small { SMALL_LIMITS } else { HubLimits::default() };
    let mut pushing = PushingRank::with_limits(rank, url, limits);
    write(&Report::Started { identity: pushing.identity() });
    let (sender, commands) = mpsc::channel();
    thread::spawn(move || io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let (mut longest_step, mut is_paused) = (Duration::ZERO, false);
    loop {
        let command = match is_paused {
            true => commands.recv().map_err(RecvTimeoutError::from),
            false => commands.recv_timeout(STEP_INTERVAL),
        };
        match command {
            Err(RecvTimeoutError::Timeout) => {
                let start = Instant::now();
                pushing.program.run(STEP_EVENTS);
                longest_step = longest_step.max(start.elapsed());
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(command) => is_paused = command == PAUSE,
        }
        if is_paused {
            write(&Report::Paused(PausedRank {
                expected: ExpectedRank::from(&pushing),
                events: pushing.program.events(),
                missed_events: pushing.program.hub().missed_events(),
                longest_step,
            }));
        }
    }
}
