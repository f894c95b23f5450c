//! Writes the archive of a run: recordings of processes and roll-ups of their summaries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vramscope_collector::Process;
use vramscope_insight::fleet::{ProcessDescription, Summary};

use super::address::ArchiveAddress;
use super::byte_budget::ByteBudget;
use super::error::ArchiveError;
use super::layout::{Table, is_identity};
use super::manifest::{Manifest, RankEntry};
use super::manifest_sync::ManifestSync;
use super::recording_parts::{PartLimits, RecordingPart, RecordingParts};
use super::rollups::RollupBuilder;
use super::store::ArchiveStore;
use super::table_parts::TableParts;
use super::uploads::{Upload, UploadQueue};
use crate::runtime::BackgroundRuntime;

/// Maximum number of summaries that wait to be combined into roll-ups. Further summaries wait at
/// the broker.
const MAX_WAITING_SUMMARIES: usize = 4096;
/// Interval at which adding a summary is tried again while too many wait.
const SUMMARY_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum memory for the definitions of one process, in bytes, as in the aggregator.
const MAX_DEFINITION_BYTES: usize = 64 << 20;
/// Maximum memory for the definitions of all processes together, in bytes, as in the aggregator.
const MAX_ALL_DEFINITION_BYTES: usize = 512 << 20;
/// Minimum memory of a recording's open part, in bytes, at which it may be ended early.
const MIN_EARLY_BYTES: usize = 1 << 20;
/// Interval at which the parts of recordings and tables are checked for their age.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time that [`ArchiveWriter::finish`] waits for the object store.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

/// How an archive is divided into objects, and how much may wait for the object store.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveOptions {
    /// Size of a part of a recording at which it ends, in bytes.
    pub part_bytes: u64,
    /// Time after which a part of a recording ends. A server that is killed loses at most what it
    /// received in this time and cannot read from the broker again.
    pub part_duration: Duration,
    /// Time after which a part of a table ends. It must be less than the time for which the broker
    /// keeps summaries.
    pub table_duration: Duration,
    /// The most bytes in temporary files that wait for the object store. Further objects are
    /// dropped and counted.
    pub pending_bytes: u64,
    /// The most bytes of memory that all open parts of recordings take. Beyond it, the largest
    /// parts are ended early, but none that takes less than 1 MiB.
    pub memory_bytes: usize,
}

impl Default for ArchiveOptions {
    /// Returns the default: parts of recordings of 64 MiB or 10 minutes, parts of tables of
    /// 1 minute, 4 GiB of waiting objects, and 512 MiB of memory.
    fn default() -> Self {
        let (part_duration, table_duration) = (Duration::from_secs(600), Duration::from_secs(60));
        let (part_bytes, pending_bytes, memory_bytes) = (64 << 20, 4 << 30, 512 << 20);
        Self { part_bytes, part_duration, table_duration, pending_bytes, memory_bytes }
    }
}

/// Totals of a finished archive: stored and lost objects, and lost summaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArchiveSummary {
    /// Number of stored objects.
    pub objects: u64,
    /// Total size of the stored objects in bytes.
    pub bytes: u64,
    /// Number of lost objects: too many were waiting, or a temporary file could not be written.
    pub lost_objects: u64,
    /// Number of lost summaries: they came too late for their second, or there were too many
    /// processes.
    pub lost_summaries: u64,
    /// Number of summaries that were left out because the broker has no description of their
    /// process.
    pub unknown_summaries: u64,
}

/// A summary of one process for one second, which is not yet part of a roll-up.
struct StoredSummary {
    identity: String,
    description: ProcessDescription,
    summary: Summary,
    stored_ns: u64,
}

impl StoredSummary {
    fn new(identity: &str, description: &ProcessDescription, summary: &Summary, stored_ns: u64) -> Self {
        let (description, summary) = (description.clone(), summary.clone());
        Self { identity: identity.to_owned(), description, summary, stored_ns }
    }
}

/// State that the handles of an archive share with its roll-up thread and its upload task.
#[derive(Debug)]
struct Shared {
    options: ArchiveOptions,
    queue: Arc<UploadQueue>,
    /// For each process, by identity, the moment up to which its recording is archived or waits to
    /// be stored.
    archived: Mutex<BTreeMap<String, u64>>,
    /// The recordings that are being archived.
    open: Mutex<Vec<Weak<Mutex<ProcessState>>>>,
    unknown_summaries: AtomicU64,
    /// The limit on memory for the definitions of all processes.
    definition_memory: Arc<ByteBudget>,
    /// True once no further chunks are archived. Set before the last parts are ended, each under
    /// its process's lock.
    is_finished: AtomicBool,
    /// The second at which an earlier server's roll-ups end, since 1970; 0 if there are none.
    rollups_end_unix_s: u64,
}

/// A process whose recording is being archived.
#[derive(Debug)]
struct ProcessState {
    entry: RankEntry,
    parts: RecordingParts,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Adds complete parts of a recording to the queue.
    fn add_recording_parts(&self, state: &mut ProcessState, complete: impl IntoIterator<Item = RecordingPart>) {
        for part in complete {
            let end = part.entry.end_event;
            if self.queue.add(Upload::Recording(state.entry.clone(), part)) {
                lock(&self.archived).insert(state.entry.identity.clone(), end);
            }
        }
        self.queue.count_lost(state.parts.take_lost_parts());
    }

    /// Ends the parts of recordings that have been open for the maximum time, or with `ends_all`
    /// all parts.
    fn end_parts(&self, ends_all: bool) {
        for state in self.open() {
            let mut state = lock(&state);
            let parts = &mut state.parts;
            let complete = if ends_all { parts.finish_part() } else { parts.take_overdue() };
            self.add_recording_parts(&mut state, complete);
        }
    }

    /// Ends parts of recordings early, the largest first, while all together take too much memory.
    fn limit_memory(&self) {
        let sized = |state: Arc<Mutex<ProcessState>>| {
            let bytes = lock(&state).parts.memory_bytes();
            (bytes, state)
        };
        let mut open: Vec<_> = self.open().into_iter().map(sized).collect();
        open.sort_unstable_by_key(|(bytes, _)| *bytes);
        let mut total: usize = open.iter().map(|(bytes, _)| bytes).sum();
        while total > self.options.memory_bytes
            && let Some((bytes, state)) = open.pop()
            && bytes >= MIN_EARLY_BYTES
        {
            let mut state = lock(&state);
            let complete = state.parts.finish_and_forget();
            total -= bytes.saturating_sub(state.parts.memory_bytes());
            self.add_recording_parts(&mut state, complete);
        }
    }

    /// Returns the recordings that are being archived.
    fn open(&self) -> Vec<Arc<Mutex<ProcessState>>> {
        let mut open = lock(&self.open);
        open.retain(|state| state.strong_count() > 0);
        open.iter().filter_map(Weak::upgrade).collect()
    }
}

/// The roll-up thread and the upload task of an archive that is not finished.
#[derive(Debug)]
struct Running {
    summaries: SyncSender<StoredSummary>,
    rollups: JoinHandle<u64>,
    uploads: tokio::task::JoinHandle<Result<(u64, u64), ArchiveError>>,
}

/// A writer of a run's archive, which stores objects in the background. Clones write to one
/// archive.
///
/// Objects are written to temporary files first. A store that is slow or cannot be reached never
/// delays the caller: requests are repeated, and objects beyond
/// [`pending_bytes`](ArchiveOptions::pending_bytes) are dropped and counted.
#[derive(Clone, Debug)]
pub struct ArchiveWriter {
    shared: Arc<Shared>,
    runtime: Arc<BackgroundRuntime>,
    running: Arc<Mutex<Option<Running>>>,
}

impl ArchiveWriter {
    /// Continues the archive of the run at an address, or creates one. Must not be called from an
    /// asynchronous task.
    ///
    /// # Errors
    /// If the store cannot be reached or written, or the address has an archive of another run.
    pub fn open(address: &ArchiveAddress, run: &str, options: ArchiveOptions) -> Result<Self, ArchiveError> {
        Self::with_store(ArchiveStore::open(address, true)?, run, options)
    }

    /// Continues the archive of the run in a store, or creates one.
    pub(crate) fn with_store(store: ArchiveStore, run: &str, options: ArchiveOptions) -> Result<Self, ArchiveError> {
        let runtime = BackgroundRuntime::new("vramscope-archive")?;
        let sync = runtime.block_on(ManifestSync::open(store, run))?;
        let (archived, complete_second) = archived_parts(sync.manifest());
        let queue = Arc::new(UploadQueue::new(options.pending_bytes));
        let shared = Arc::new(Shared {
            options,
            queue: Arc::clone(&queue),
            archived: Mutex::new(archived),
            open: Mutex::default(),
            unknown_summaries: AtomicU64::new(0),
            definition_memory: ByteBudget::new(MAX_ALL_DEFINITION_BYTES),
            is_finished: AtomicBool::new(false),
            rollups_end_unix_s: complete_second.checked_add(1).filter(|_| complete_second > 0).unwrap_or(0),
        });
        let (summaries, receiver) = sync_channel(MAX_WAITING_SUMMARIES);
        let thread_shared = Arc::clone(&shared);
        let rollups = std::thread::Builder::new()
            .name("vramscope-rollups".into())
            .spawn(move || write_rollups(&thread_shared, &receiver, RollupBuilder::new(complete_second)))?;
        let uploads = runtime.spawn(run_uploads(sync, queue));
        let running = Running { summaries, rollups, uploads };
        Ok(Self { shared, runtime: Arc::new(runtime), running: Arc::new(Mutex::new(Some(running))) })
    }

    /// Begins or continues to archive the recording of a process. Events that the archive already
    /// has are skipped when they are pushed again.
    ///
    /// # Errors
    /// If the identity of the process is invalid.
    pub fn process(&self, process: &Process) -> Result<ProcessArchive, ArchiveError> {
        if !is_identity(&process.identity) {
            return Err(ArchiveError::Process("its identity is not 32 hexadecimal digits".to_owned()));
        }
        let options = &self.shared.options;
        let (bytes, duration) = (options.part_bytes, options.part_duration);
        let limits = PartLimits { bytes, duration, definition_bytes: MAX_DEFINITION_BYTES };
        let archived_end = lock(&self.shared.archived).get(&process.identity).copied().unwrap_or(0);
        let entry = RankEntry {
            rank: process.rank,
            identity: process.identity.clone(),
            host: process.host.clone(),
            program: process.program.clone(),
            parts: Vec::new(),
        };
        let parts = RecordingParts::new(limits, archived_end, self.shared.definition_memory.share());
        let state = ProcessState { entry, parts };
        let state = Arc::new(Mutex::new(state));
        lock(&self.shared.open).push(Arc::downgrade(&state));
        Ok(ProcessArchive { shared: Arc::clone(&self.shared), state })
    }

    /// Adds a summary of a process, which the broker stored at `stored_ns`, in nanoseconds since
    /// 1970. Blocks while too many summaries wait; must not be called from an asynchronous task.
    /// Returns false after [`finish`](Self::finish).
    pub fn summary(&self, identity: &str, description: &ProcessDescription, summary: &Summary, stored_ns: u64) -> bool {
        let stored = StoredSummary::new(identity, description, summary, stored_ns);
        self.summaries().is_some_and(|summaries| summaries.send(stored).is_ok())
    }

    /// As [`summary`](Self::summary), for asynchronous tasks.
    pub(crate) async fn add_summary(
        &self,
        identity: &str,
        description: &ProcessDescription,
        summary: &Summary,
        stored_ns: u64,
    ) -> bool {
        let mut stored = StoredSummary::new(identity, description, summary, stored_ns);
        let Some(summaries) = self.summaries() else { return false };
        loop {
            stored = match summaries.try_send(stored) {
                Ok(()) => return true,
                Err(TrySendError::Full(stored)) => stored,
                Err(TrySendError::Disconnected(_)) => return false,
            };
            tokio::time::sleep(SUMMARY_RETRY_INTERVAL).await;
        }
    }

    /// Returns the channel to the roll-up thread; `None` once the archive is finished.
    fn summaries(&self) -> Option<SyncSender<StoredSummary>> {
        lock(&self.running).as_ref().map(|running| running.summaries.clone())
    }

    /// Counts summaries that are left out because their process has no description.
    pub(crate) fn count_unknown_summaries(&self, summaries: u64) {
        self.shared.unknown_summaries.fetch_add(summaries, Ordering::Relaxed);
    }

    /// Returns the time at which the roll-ups of earlier servers end, in seconds since 1970; 0 if
    /// there are none. Summaries from before this time need not be added.
    pub(crate) fn rollups_end_unix_s(&self) -> u64 {
        self.shared.rollups_end_unix_s
    }

    /// Ends all parts, and waits up to a minute until they and the manifest are stored. Chunks that
    /// are pushed later are ignored. Must not be called from an asynchronous task.
    ///
    /// # Errors
    /// If an object was not stored in time, or another server writes the archive.
    pub fn finish(&self) -> Result<ArchiveSummary, ArchiveError> {
        let Some(Running { summaries, rollups, uploads }) = lock(&self.running).take() else {
            return Ok(ArchiveSummary::default());
        };
        self.shared.is_finished.store(true, Ordering::SeqCst);
        self.shared.end_parts(true);
        drop(summaries);
        let lost_summaries = rollups.join().unwrap_or_default();
        self.shared.queue.close();
        let stored = self.runtime.block_on(async { tokio::time::timeout(FINISH_TIMEOUT, uploads).await });
        let waiting = self.shared.queue.len();
        let (objects, bytes) = match stored {
            Ok(Ok(stored)) => stored?,
            Ok(Err(error)) => return Err(ArchiveError::Incomplete(error.to_string())),
            Err(_) => {
                let reason = format!("the store could not be reached; at least {waiting} objects are lost");
                return Err(ArchiveError::Incomplete(reason));
            }
        };
        let unknown_summaries = self.shared.unknown_summaries.load(Ordering::Relaxed);
        let lost_objects = self.shared.queue.lost();
        Ok(ArchiveSummary { objects, bytes, lost_objects, lost_summaries, unknown_summaries })
    }
}

/// The archive of one process's recording. Dropping it ends its part.
#[derive(Debug)]
pub struct ProcessArchive {
    shared: Arc<Shared>,
    state: Arc<Mutex<ProcessState>>,
}

impl ProcessArchive {
    /// Replaces the process's host and program in later entries of the manifest.
    pub(crate) fn describe(&self, process: &Process) {
        let entry = &mut lock(&self.state).entry;
        entry.host.clone_from(&process.host);
        entry.program.clone_from(&process.program);
    }

    /// Adds whole chunks of the recording, in order, the first with the header. They are decoded
    /// and written to a temporary file, so the caller should not be an asynchronous task.
    ///
    /// # Errors
    /// If the bytes are not chunks that follow the earlier ones. The rest of the recording cannot
    /// then be archived.
    pub fn push(&self, bytes: &[u8]) -> Result<(), ArchiveError> {
        let mut state = lock(&self.state);
        if self.shared.is_finished.load(Ordering::SeqCst) {
            return Ok(());
        }
        let complete = state.parts.push(bytes);
        self.shared.add_recording_parts(&mut state, complete.map_err(ArchiveError::Recording)?);
        Ok(())
    }
}

impl Drop for ProcessArchive {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        let complete = state.parts.finish_part();
        self.shared.add_recording_parts(&mut state, complete);
    }
}

/// Returns the moment up to which each recording is archived, by identity, and the time at which
/// the roll-ups end, in seconds since 1970.
fn archived_parts(manifest: &Manifest) -> (BTreeMap<String, u64>, u64) {
    let end = |rank: &RankEntry| rank.parts.iter().map(|part| part.end_event).max().unwrap_or(0);
    let archived = manifest.ranks.iter().map(|rank| (rank.identity.clone(), end(rank))).collect();
    let last_ms = manifest.rollups.iter().map(|part| part.object.end_unix_ms).max().unwrap_or(0);
    (archived, last_ms / 1000)
}

/// Stores objects until the queue is closed; logs an error that ends it earlier.
async fn run_uploads(sync: ManifestSync, queue: Arc<UploadQueue>) -> Result<(u64, u64), ArchiveError> {
    let result = sync.run(Arc::clone(&queue)).await;
    if let Err(error) = &result {
        tracing::error!("the archive ends here: {error}");
        queue.close();
        while queue.take().is_some() {
            queue.count_lost(1);
        }
    }
    result
}

/// Combines summaries into roll-ups, and ends old parts of recordings and tables, until the archive
/// is finished. Returns the number of lost summaries. Runs on the roll-up thread.
fn write_rollups(shared: &Shared, summaries: &Receiver<StoredSummary>, mut builder: RollupBuilder) -> u64 {
    let mut tables = Table::ALL.map(|table| TableParts::new(table, shared.options.table_duration));
    let mut checked = Instant::now();
    loop {
        let (complete, has_ended) = match summaries.recv_timeout(CHECK_INTERVAL) {
            Ok(StoredSummary { identity, description, summary, stored_ns }) => {
                (builder.add(&identity, &description, &summary, stored_ns), false)
            }
            Err(RecvTimeoutError::Timeout) => (Vec::new(), false),
            Err(RecvTimeoutError::Disconnected) => (builder.finish(), true),
        };
        complete.iter().for_each(|second| add_parts(shared, &mut tables, |table| table.push(second)));
        if has_ended {
            add_parts(shared, &mut tables, TableParts::finish);
            return builder.ignored;
        }
        if checked.elapsed() >= CHECK_INTERVAL {
            checked = Instant::now();
            shared.end_parts(false);
            shared.limit_memory();
            add_parts(shared, &mut tables, TableParts::take_complete);
        }
    }
}

/// Calls `end` for each table, and adds the part that it returns, if any, to the queue.
fn add_parts(shared: &Shared, tables: &mut [TableParts], end: impl Fn(&mut TableParts) -> Option<Upload>) {
    for table in tables {
        if let Some(upload) = end(table) {
            shared.queue.add(upload);
        }
        shared.queue.count_lost(table.take_lost_parts());
    }
}
