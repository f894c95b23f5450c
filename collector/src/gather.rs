//! The recordings of several processes as one: what `vramscope serve` does.
//!
//! Each process pushes its recording here, and says who it is. Its devices become devices of the one recording, its sites are known by the
//! numbers of all, and its events take their place on the machine's clock. What comes of it goes to a [`Hub`](crate::Hub) and a file, as
//! a single program's recording does. Nothing that one process says touches what is known of another.
//!
//! `numbers.rs` is what sites and strings are called, `source.rs` one process, `merge.rs` the order of all.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vramscope_trace::{RecordingInfo, MemoryState};

use crate::controls::Controls;
use crate::hub::Hub;
use crate::process::Process;
use crate::recorder::{Outputs, Streams, Summary};

mod merge;
mod numbers;
mod source;
#[cfg(test)]
mod tests;

use merge::{Joined, Merge, Output};

/// How often what is ready is told. As a recorder does.
const ROUND_EVERY: Duration = Duration::from_millis(20);

/// Is told, in a sentence, that a process has come or gone.
type Tell = Box<dyn Fn(&str) + Send + Sync>;

/// Everything, once it has begun and until it has been stopped.
enum Stage {
    Before,
    Now(Box<Merge<Streams>>, Option<Hub>),
    After,
}

struct Shared {
    stage: Mutex<Stage>,
    /// A time and the same since 1970, so that a clock that is set has no say.
    began: (Instant, u64),
    tell: Tell,
    /// The devices of those that are connected, as of the last round: to be had without waiting for what is done to the stage.
    here: Mutex<BTreeSet<u16>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        // Whoever panicked here did so over one process; the others go on.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_unix_ns(&self) -> u64 {
        let (began, unix_ns) = self.began;
        unix_ns.saturating_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Several processes' recordings on their way into one. Clones are the same.
#[derive(Clone)]
pub struct Aggregator(Arc<Shared>);

impl fmt::Debug for Aggregator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aggregator").finish_non_exhaustive()
    }
}

impl Aggregator {
    /// Nobody may come yet. `tell` is told, in a sentence, that a process has come or gone.
    #[must_use]
    pub fn new(tell: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(0);
        let (stage, began) = (Mutex::new(Stage::Before), (Instant::now(), unix_ns));
        Self(Arc::new(Shared { stage, began, tell: Box::new(tell), here: Mutex::default() }))
    }

    /// Begins the recording; from now on processes may come.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn begin(&self, outputs: Outputs) -> io::Result<()> {
        let unix_ns = self.0.now_unix_ns();
        let info = RecordingInfo { epoch_unix_ns: unix_ns, source: "vramscope serve".to_owned(), ..RecordingInfo::default() };
        let hub = outputs.hub.clone();
        let merge = Merge::new(Streams::new(&info, outputs), unix_ns);
        *self.0.lock() = Stage::Now(Box::new(merge), hub);
        let theirs = Arc::downgrade(&self.0);
        let run = move || or_tell(&theirs, || rounds(&theirs));
        std::thread::Builder::new().name("vramscope-gather".into()).spawn(run).map(drop)
    }

    /// The devices of those that are connected. Waits for nothing.
    pub(crate) fn here(&self) -> BTreeSet<u16> {
        self.0.here.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Offers to write what `hub` holds, to which the recording goes, to a new file in `folder`, and to put a mark on the first device of every
    /// process that is connected.
    pub fn offer_recording(&self, controls: &Controls, hub: &Hub, folder: impl Into<PathBuf>) {
        let theirs = self.clone();
        controls.offer_file(hub, folder.into(), move || {
            if let Ok(merge) = theirs.0.lock().merge() {
                merge.output.round(None, true);
            }
        });
        let theirs = self.clone();
        controls.offer_mark(move |name| {
            let now_unix_ns = theirs.0.now_unix_ns();
            match theirs.0.lock().merge()?.mark_all(name, now_unix_ns) {
                0 => Err("there is no process yet that did anything".to_owned()),
                1 => Ok("the mark is in the recording".to_owned()),
                count => Ok(format!("the mark is in the recording, for each of {count} processes")),
            }
        });
    }

    /// A process is there that said `json` of itself.
    ///
    /// # Errors
    /// Where it may not come.
    pub(crate) fn join(&self, process: Process) -> Result<Pushed, String> {
        let name = format!("{} ({process})", process.short());
        let name = if process.rank.is_some() { name } else { process.to_string() };
        let now_unix_ns = self.0.now_unix_ns();
        let mut stage = self.0.lock();
        let merge = stage.merge()?;
        let joined = merge.join(process, now_unix_ns)?;
        let connected = merge.connected();
        drop(stage);
        let came = if joined.is_back { "is back" } else { "is here" };
        self.tell(&format!("{name} {came}; {connected} connected"));
        Ok(Pushed { gather: self.clone(), joined, name, failed: None })
    }

    fn tell(&self, sentence: &str) {
        (self.0.tell)(sentence);
    }

    /// Ends the recording; says what was recorded, and what became of the file. `None` where that was done before.
    pub fn stop(&self) -> Option<Summary> {
        let Stage::Now(merge, hub) = std::mem::replace(&mut *self.0.lock(), Stage::After) else { return None };
        let mut streams = merge.finish(self.0.now_unix_ns());
        streams.summary.events = streams.state().event();
        streams.round(None, true);
        let summary = streams.finish();
        if let Some(hub) = hub {
            hub.end();
        }
        Some(summary)
    }
}

impl Stage {
    fn merge(&mut self) -> Result<&mut Merge<Streams>, String> {
        match self {
            Self::Before => Err("the hub has not begun yet".to_owned()),
            Self::Now(merge, _) => Ok(merge),
            Self::After => Err("the hub stops".to_owned()),
        }
    }
}

/// A process that is connected. It is gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Pushed {
    gather: Aggregator,
    joined: Joined,
    name: String,
    failed: Option<String>,
}

impl Pushed {
    /// The number of the first chunk that was not taken.
    pub(crate) fn resume(&self) -> u64 {
        self.joined.resume
    }

    /// Takes whole chunks; the next one will be number `next`. It may take a while: what is not next among all must wait for its turn.
    ///
    /// # Errors
    /// Where they cannot be taken, and nothing more will be.
    pub(crate) fn take(&mut self, bytes: &[u8], next: u64) -> Result<(), String> {
        let shared = &self.gather.0;
        let mut taken =
            shared.lock().merge().and_then(|merge| merge.take(&self.joined, bytes, next, shared.now_unix_ns()));
        while taken == Ok(false) {
            std::thread::sleep(ROUND_EVERY / 4);
            taken = shared.lock().merge().and_then(|merge| merge.go_on(&self.joined, shared.now_unix_ns()));
        }
        self.failed = taken.as_ref().err().cloned();
        taken.map(drop)
    }

    /// That was all.
    pub(crate) fn end(&mut self) {
        let now_unix_ns = self.gather.0.now_unix_ns();
        if let Ok(merge) = self.gather.0.lock().merge() {
            merge.end(&self.joined, now_unix_ns);
        }
    }
}

impl Drop for Pushed {
    fn drop(&mut self) {
        let now_unix_ns = self.gather.0.now_unix_ns();
        let mut stage = self.gather.0.lock();
        let Ok(merge) = stage.merge() else { return };
        let left = merge.leave(&self.joined, now_unix_ns);
        let connected = merge.connected();
        drop(stage);
        let Some(left) = left else { return };
        let why = match &self.failed {
            Some(reason) => format!(" is not listened to any more: {reason}"),
            None if left.has_ended => " has ended".to_owned(),
            None => " has gone, and may come back".to_owned(),
        };
        let lost = if left.lost > 0 { format!("; {} of its events are missing", left.lost) } else { String::new() };
        self.gather.tell(&format!("{}{why}{lost}; {connected} connected", self.name));
    }
}

/// Does what must not end by a panic that nobody hears of.
fn or_tell(shared: &Weak<Shared>, work: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(work)).is_err()
        && let Some(shared) = shared.upgrade()
    {
        (shared.tell)(
            "the hub is broken, which is a mistake in it; what is pushed comes late or not at all from now on, so start it again",
        );
    }
}

/// Tells what is ready, again and again, until nobody has the recordings any more.
fn rounds(shared: &Weak<Shared>) {
    let mut begun = Instant::now();
    loop {
        std::thread::sleep(ROUND_EVERY);
        let Some(shared) = shared.upgrade() else { return };
        let now_unix_ns = shared.now_unix_ns();
        let mut stage = shared.lock();
        let Ok(merge) = stage.merge() else { return };
        let before = std::mem::replace(&mut begun, Instant::now());
        merge.turn(now_unix_ns, false);
        *shared.here.lock().unwrap_or_else(PoisonError::into_inner) = merge.here();
        let events = merge.output.state().event();
        let is_new = std::mem::replace(&mut merge.output.summary.events, events) != events;
        merge.output.round(is_new.then_some(before), false);
    }
}

#[cfg(test)]
impl Aggregator {
    /// Does something while nobody else gets at the recordings.
    pub(crate) fn while_busy(&self, work: impl FnOnce()) {
        let _stage = self.0.lock();
        work();
    }

    /// What is told of a thread that panics.
    pub(crate) fn panic_in_a_thread(&self) {
        or_tell(&Arc::downgrade(&self.0), || panic!("as it may"));
    }
}

impl Output for Streams {
    fn head(&mut self, info: &RecordingInfo) {
        Streams::head(self, info);
    }
    fn state(&self) -> &MemoryState {
        Streams::state(self)
    }
}
