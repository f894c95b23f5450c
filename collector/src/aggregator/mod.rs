//! Merges the recordings of several processes into one (`vramscope serve`).
//!
//! Each process connects, identifies itself and pushes its recording. The merged recording
//! renumbers devices and sites, orders all events by the machine's clock, and goes to a [`Hub`] and
//! optionally a file. A malformed stream ends its own connection only.
//!
//! `renumber` maps a process's sites and strings to the merged recording's, `source` decodes one
//! process's stream, and `merge` orders the events of all.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vramscope_trace::{MemoryState, RecordingInfo};

use crate::controls::Controls;
use crate::hub::Hub;
use crate::process::Process;
use crate::recorder::{Outputs, Streams, Summary};

mod merge;
mod received_state;
mod renumber;
mod source;
#[cfg(test)]
mod tests;

pub use merge::JoinError;
use merge::{MAX_PROCESSES, Merger, MergerConnection, Output};

/// Interval between merge passes: 20 ms, as in the recorder.
const MERGE_INTERVAL: Duration = Duration::from_millis(20);

/// Whether the merged recording has not started, is running, or has stopped. The merger exists only
/// while it is running.
enum MergeState {
    NotStarted,
    /// The hub is ended when the recording stops.
    Running(Box<Merger<Streams>>, Option<Hub>),
    Stopped,
}

impl MergeState {
    /// Returns the merger, or an error text that says why the recording is not running.
    fn merger(&mut self) -> Result<&mut Merger<Streams>, String> {
        match self {
            Self::NotStarted => Err("the server is still starting; try again".to_owned()),
            Self::Running(merger, _) => Ok(merger),
            Self::Stopped => Err("the server is stopping".to_owned()),
        }
    }
}

/// State that the clones of an [`Aggregator`] and its merge thread share.
struct AggregatorState {
    state: Mutex<MergeState>,
    /// Monotonic start time and the Unix time it corresponds to, in nanoseconds. Later changes of
    /// the system clock have no effect.
    start: (Instant, u64),
    /// Devices of the connected processes after the last merge pass. Kept separately so that
    /// readers never wait for `state`.
    connected_devices: Mutex<BTreeSet<u16>>,
}

impl AggregatorState {
    /// Locks the state, also after a thread that held the lock has panicked.
    fn lock(&self) -> MutexGuard<'_, MergeState> {
        // A panic concerns one process's stream; the other processes continue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current time in nanoseconds since 1970, unaffected by changes of the system
    /// clock since the start.
    fn now_unix_ns(&self) -> u64 {
        let (start, start_unix_ns) = self.start;
        start_unix_ns.saturating_add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Merges the recordings of several processes into one. Clones share the same merger.
///
/// It logs which processes connect and disconnect.
#[derive(Clone)]
pub struct Aggregator(Arc<AggregatorState>);

impl Default for Aggregator {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aggregator").finish_non_exhaustive()
    }
}

impl Aggregator {
    /// The most processes that are connected at once.
    pub const MAX_PROCESSES: usize = MAX_PROCESSES;

    /// Creates an aggregator that accepts no process until [`begin`](Self::begin).
    #[must_use]
    pub fn new() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(0);
        Self(Arc::new(AggregatorState {
            state: Mutex::new(MergeState::NotStarted),
            start: (Instant::now(), unix_ns),
            connected_devices: Mutex::default(),
        }))
    }

    /// Begins the merged recording, which goes to the file and the hub in `outputs`, and accepts
    /// processes from now on.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn begin(&self, outputs: Outputs) -> io::Result<()> {
        let unix_ns = self.0.now_unix_ns();
        let info =
            RecordingInfo { epoch_unix_ns: unix_ns, source: "vramscope serve".to_owned(), ..RecordingInfo::default() };
        let hub = outputs.hub.clone();
        let merger = Merger::new(Streams::new(&info, outputs), unix_ns);
        *self.0.lock() = MergeState::Running(Box::new(merger), hub);
        let state = Arc::downgrade(&self.0);
        let run = move || report_panic(|| merge_loop(&state));
        std::thread::Builder::new().name("vramscope-merge".into()).spawn(run).map(drop)
    }

    /// Returns the numbers, in the merged recording, of the connected processes' devices, without
    /// waiting for the merge thread.
    #[cfg_attr(not(feature = "metrics"), expect(dead_code, reason = "only `/metrics` reads it"))]
    pub(crate) fn connected_devices(&self) -> BTreeSet<u16> {
        self.0.connected_devices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Offers the commands `record` and `mark`.
    ///
    /// `record` writes what `hub` holds to a new file in `folder`; `hub` must be the hub that the
    /// recording goes to. `mark` adds a mark to the first device of each connected process.
    pub fn offer_recording(&self, controls: &Controls, hub: &Hub, folder: impl Into<PathBuf>) {
        let aggregator = self.clone();
        controls.offer_file(hub, folder.into(), move || {
            if let Ok(merger) = aggregator.0.lock().merger() {
                merger.output.finish_pass(None, true);
            }
        });
        let aggregator = self.clone();
        controls.offer_mark(move |name| {
            let now_unix_ns = aggregator.0.now_unix_ns();
            match aggregator.0.lock().merger()?.mark_all(name, now_unix_ns) {
                0 => Err("no connected process has recorded anything yet".to_owned()),
                1 => Ok("added the mark to the recording".to_owned()),
                count => Ok(format!("added the mark to the recording for each of {count} processes")),
            }
        });
    }

    /// Connects a process.
    ///
    /// # Errors
    /// If [`MAX_PROCESSES`](Self::MAX_PROCESSES) are connected, the process's stream was refused
    /// before, or the merged recording has not begun or has ended.
    pub fn join(&self, process: Process) -> Result<ProcessConnection, JoinError> {
        let name = format!("{} ({process})", process.short_name());
        let name = if process.rank.is_some() { name } else { process.to_string() };
        let now_unix_ns = self.0.now_unix_ns();
        let mut state = self.0.lock();
        let merger = state.merger().map_err(JoinError::Refused)?;
        let joined = merger.join(process, now_unix_ns)?;
        let connected = merger.connected();
        drop(state);
        let verb = if joined.is_reconnect { "reconnected" } else { "joined" };
        tracing::info!("{name} {verb}; {connected} connected");
        Ok(ProcessConnection { aggregator: self.clone(), joined, name, failure: None, is_paused: false })
    }

    /// Ends the merged recording and returns its number of events, size and file error; `None` if
    /// it has not begun or has already ended.
    pub fn stop(&self) -> Option<Summary> {
        let MergeState::Running(merger, hub) = std::mem::replace(&mut *self.0.lock(), MergeState::Stopped) else {
            return None;
        };
        let mut streams = merger.finish(self.0.now_unix_ns());
        streams.summary.events = streams.state().event();
        streams.finish_pass(None, true);
        let summary = streams.finish();
        if let Some(hub) = hub {
            hub.end();
        }
        Some(summary)
    }
}

/// A connection of a process that pushes its recording. Dropping it disconnects the process.
#[derive(Debug)]
pub struct ProcessConnection {
    aggregator: Aggregator,
    joined: MergerConnection,
    name: String,
    /// Why the process's stream was refused.
    failure: Option<String>,
    /// True if the server itself ends the connection.
    is_paused: bool,
}

impl ProcessConnection {
    /// Returns the number of the first chunk that the server does not have; the process sends from
    /// there.
    #[must_use]
    pub fn resume(&self) -> u64 {
        self.joined.resume
    }

    /// Takes whole chunks of the process's recording; `next` is the number of the chunk that
    /// follows `bytes`.
    ///
    /// Blocks while too many of the process's events wait for those of other processes.
    ///
    /// # Errors
    /// If the chunks are invalid or exceed a limit. The process's stream is refused from then on.
    pub fn push(&mut self, bytes: &[u8], next: u64) -> Result<(), String> {
        let state = &self.aggregator.0;
        let mut taken =
            state.lock().merger().and_then(|merger| merger.push(&self.joined, bytes, next, state.now_unix_ns()));
        while taken == Ok(false) {
            std::thread::sleep(MERGE_INTERVAL / 4);
            taken = state.lock().merger().and_then(|merger| merger.resume_push(&self.joined, state.now_unix_ns()));
        }
        self.failure = taken.as_ref().err().cloned();
        taken.map(drop)
    }

    /// Returns the numbers of the process's devices in the merged recording; empty before its first
    /// events.
    #[must_use]
    pub fn devices(&self) -> Vec<u16> {
        let mut state = self.aggregator.0.lock();
        state.merger().map_or_else(|_| Vec::new(), |merger| merger.devices(&self.joined))
    }

    /// Disconnects a process whose events the server does not want for now. The recording gets no
    /// mark of a lost connection.
    pub fn pause(mut self) {
        self.is_paused = true;
    }

    /// Marks the process's recording as complete, at the process's request.
    pub fn end(&mut self) {
        let now_unix_ns = self.aggregator.0.now_unix_ns();
        if let Ok(merger) = self.aggregator.0.lock().merger() {
            merger.end(&self.joined, now_unix_ns);
        }
    }
}

impl Drop for ProcessConnection {
    fn drop(&mut self) {
        let now_unix_ns = self.aggregator.0.now_unix_ns();
        let mut state = self.aggregator.0.lock();
        let Ok(merger) = state.merger() else { return };
        let left = match self.is_paused {
            true => merger.pause(&self.joined, now_unix_ns),
            false => merger.leave(&self.joined, now_unix_ns),
        };
        let connected = merger.connected();
        drop(state);
        let Some(left) = left else { return };
        let name = &self.name;
        let (is_expected, message) = match &self.failure {
            Some(reason) => (false, format!("disconnected {name}: {reason}")),
            None if left.has_ended => (left.lost == 0, format!("{name} has ended")),
            None if self.is_paused => (true, format!("{name} is no longer read")),
            None => (false, format!("{name} disconnected; waiting for it to reconnect")),
        };
        let lost = if left.lost > 0 { format!("; {} of its events are missing", left.lost) } else { String::new() };
        if is_expected {
            tracing::info!("{message}{lost}; {connected} connected");
        } else {
            tracing::warn!("{message}{lost}; {connected} connected");
        }
    }
}

/// Runs `work` on the merge thread, and writes an error to the log if it panics: no other thread
/// would notice.
fn report_panic(work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        tracing::error!(
            "internal error in the merge thread; pushed data is delayed or lost: restart `vramscope serve` and \
             report this"
        );
    }
}

/// Merges every [`MERGE_INTERVAL`] until the aggregator is stopped or dropped.
fn merge_loop(state: &Weak<AggregatorState>) {
    let mut pass_start = Instant::now();
    loop {
        std::thread::sleep(MERGE_INTERVAL);
        let Some(shared) = state.upgrade() else { return };
        let now_unix_ns = shared.now_unix_ns();
        let mut state = shared.lock();
        let Ok(merger) = state.merger() else { return };
        let previous_start = std::mem::replace(&mut pass_start, Instant::now());
        merger.merge(now_unix_ns, false);
        *shared.connected_devices.lock().unwrap_or_else(PoisonError::into_inner) = merger.connected_devices();
        let events = merger.output.state().event();
        let has_new_events = std::mem::replace(&mut merger.output.summary.events, events) != events;
        merger.output.finish_pass(has_new_events.then_some(previous_start), false);
    }
}

#[cfg(test)]
impl Aggregator {
    /// Runs `work` while the merger is locked.
    pub(crate) fn while_locked(&self, work: impl FnOnce()) {
        let _state = self.0.lock();
        work();
    }

    /// Panics and catches the panic as the merge thread does, which writes an error to the log.
    pub(crate) fn panic_in_merge_thread() {
        report_panic(|| panic!("test panic"));
    }
}

impl Output for Streams {
    fn update_info(&mut self, info: &RecordingInfo) {
        Streams::update_info(self, info);
    }

    fn state(&self) -> &MemoryState {
        Streams::state(self)
    }
}
