//! Archives a run from the broker: all events and summaries that processes publish.
//!
//! It reads the broker on its own, so that neither the page nor the number of open ranks limits
//! what is archived. It does not ask processes for their events: those that a server asked for, or
//! that are sent with `push=all`, are archived.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use tokio::time::MissedTickBehavior;
use vramscope_collector::Process;
use vramscope_insight::fleet::{ProcessDescription, ProcessIdentity};

use super::error::ArchiveError;
use super::writer::{ArchiveSummary, ArchiveWriter, ProcessArchive};
use crate::address::FleetAddress;
use crate::assembler::Assembler;
use crate::connection::{Connection, FleetError};
use crate::eviction::remove_least;
use crate::fleet_reader::read_batch;
use crate::message::ChunkMessage;
use crate::process_record::ProcessRecord;
use crate::reorder_buffer::ReorderBuffer;
use crate::runtime::BackgroundRuntime;
use crate::subject_reader::SubjectReader;
use crate::subjects;

/// The most processes of a run that are archived at once.
const MAX_PROCESSES: usize = 16_384;
/// After this long without another description of a process, the known ones have been read.
const SETTLE_TIME: Duration = Duration::from_millis(500);
/// Interval at which messages are archived that have waited too long for a missing one.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Archives a run until it is finished or dropped.
#[derive(Debug)]
pub struct RunArchiver {
    runtime: BackgroundRuntime,
    writer: ArchiveWriter,
}

/// The descriptions of all processes, by identity.
type Descriptions = Mutex<BTreeMap<String, ProcessRecord>>;

/// What the tasks of an archiver share.
struct Shared {
    connection: Connection,
    run: String,
    writer: ArchiveWriter,
    descriptions: Descriptions,
}

impl Shared {
    fn descriptions(&self) -> MutexGuard<'_, BTreeMap<String, ProcessRecord>> {
        self.descriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns who a process is, once its description has arrived.
    fn process(&self, identity: &str) -> Option<Process> {
        self.descriptions().get(identity).map(|record| record.process.clone())
    }

    fn description(&self, identity: &str) -> Option<ProcessDescription> {
        self.descriptions().get(identity).map(ProcessRecord::description)
    }
}

impl RunArchiver {
    /// Connects to the broker of the run, and starts to archive what it has and receives. Must not
    /// be called from an asynchronous task.
    ///
    /// # Errors
    /// If the broker cannot be reached or refuses the connection, or the operating system cannot
    /// start a thread. A connection that is lost later is restored.
    pub fn start(address: &FleetAddress, writer: ArchiveWriter) -> Result<Self, FleetError> {
        let runtime = BackgroundRuntime::new("vramscope-archiver").map_err(|error| FleetError::new(address, error))?;
        let connection = runtime.block_on(Connection::open(address, "vramscope archive"))?;
        let (run, descriptions) = (address.run().to_owned(), Descriptions::default());
        let shared = Shared { connection, run, writer: writer.clone(), descriptions };
        runtime.spawn(archive_run(Arc::new(shared)));
        Ok(Self { runtime, writer })
    }

    /// Stops reading from the broker, and waits until everything read is stored.
    ///
    /// # Errors
    /// If something was not stored; see [`ArchiveWriter::finish`].
    pub fn finish(self) -> Result<ArchiveSummary, ArchiveError> {
        drop(self.runtime);
        self.writer.finish()
    }
}

/// Reads the descriptions of all processes; events and summaries once the known ones are read.
async fn archive_run(shared: Arc<Shared>) {
    let stream = subjects::processes_stream(&shared.run);
    let filter = subjects::all_processes(&shared.run);
    let mut reader = SubjectReader::new(shared.connection.clone(), stream, filter, DeliverPolicy::LastPerSubject);
    let mut has_settled = false;
    loop {
        let message = if has_settled {
            reader.next().await
        } else if let Ok(message) = tokio::time::timeout(SETTLE_TIME, reader.next()).await {
            message
        } else {
            has_settled = true;
            tokio::spawn(archive_events(Arc::clone(&shared)));
            tokio::spawn(archive_summaries(Arc::clone(&shared)));
            continue;
        };
        // The follower logs invalid descriptions.
        let Ok(record) = ProcessRecord::parse(&message.subject, &message.payload) else { continue };
        let mut descriptions = shared.descriptions();
        if descriptions.len() == MAX_PROCESSES && !descriptions.contains_key(&record.process.identity) {
            remove_least(&mut descriptions, |known| Some(known.details.forget_first()));
        }
        descriptions.insert(record.process.identity.clone(), record);
    }
}

/// Archives the summaries that the archive lacks.
async fn archive_summaries(shared: Arc<Shared>) {
    let position = match shared.writer.rollups_end_unix_s() {
        0 => DeliverPolicy::All,
        end => DeliverPolicy::ByStartTime { start_time: (UNIX_EPOCH + Duration::from_secs(end)).into() },
    };
    let (stream, filter) = (subjects::summaries_stream(&shared.run), subjects::all_summaries(&shared.run));
    let mut reader = SubjectReader::new(shared.connection.clone(), stream, filter, position);
    loop {
        // The follower logs invalid summaries.
        let Ok((sender, stored_ns, batch)) = read_batch(&reader.next().await) else { continue };
        let Some(host) = shared.description(&sender.0).map(|description| description.host) else { continue };
        for (identity, summary) in batch.summaries {
            let ProcessIdentity(identity) =
                if identity.is_empty() { sender.clone() } else { ProcessIdentity(identity) };
            // A process may only send the summaries of its machine.
            let description = shared.description(&identity).filter(|description| description.host == host);
            if let Some(description) = description {
                shared.writer.summary(&identity, &description, &summary, stored_ns);
            }
        }
    }
}

/// Archives all events that the broker has.
async fn archive_events(shared: Arc<Shared>) {
    let (stream, filter) = (subjects::events_stream(&shared.run), subjects::all_events(&shared.run));
    let mut reader = SubjectReader::new(shared.connection.clone(), stream, filter, DeliverPolicy::All);
    let mut processes: BTreeMap<String, ArchivedProcess> = BTreeMap::new();
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            message = reader.next() => message,
            _ = check.tick() => {
                for process in processes.values_mut() {
                    process.take_overdue(&shared, reader.receiving_since()).await;
                }
                continue;
            }
        };
        let Some((rank, identity)) = subjects::parse_process(&message.subject) else { continue };
        if !processes.contains_key(identity) {
            if processes.len() == MAX_PROCESSES {
                forget_oldest(&mut processes).await;
            }
            let process = Process { identity: identity.to_owned(), rank, ..Process::default() };
            processes.insert(identity.to_owned(), ArchivedProcess::new(&shared.writer, process));
        }
        if let Some(process) = processes.get_mut(identity) {
            process.take(&shared, &message).await;
        }
    }
}

/// Forgets a process: one whose events are not archived any more, or else the one that has been
/// silent for longest, whose part ends. If it sends again, another part begins.
async fn forget_oldest(processes: &mut BTreeMap<String, ArchivedProcess>) {
    let oldest = remove_least(processes, |process| Some((process.archive.is_some(), process.last_message)));
    // Ending the part takes long.
    let _ = tokio::task::spawn_blocking(move || drop(oldest)).await;
}

/// A process whose events are archived.
struct ArchivedProcess {
    process: Process,
    order: ReorderBuffer,
    assembler: Assembler,
    /// `None` after its end, or if its messages are invalid.
    archive: Option<Arc<ProcessArchive>>,
    is_described: bool,
    last_message: Instant,
}

impl ArchivedProcess {
    fn new(writer: &ArchiveWriter, process: Process) -> Self {
        let archive = writer.process(&process).map_err(|error| tracing::warn!("{error}"));
        let (order, assembler) = (ReorderBuffer::default(), Assembler::new());
        let (archive, last_message) = (archive.ok().map(Arc::new), Instant::now());
        Self { process, order, assembler, archive, is_described: false, last_message }
    }

    /// Archives the chunks in a message, and in those that have waited for it.
    async fn take(&mut self, shared: &Shared, message: &Message) {
        // The process did not send a message with invalid headers, see the follower.
        let Ok(message) = ChunkMessage::parse(message.headers.as_ref(), message.payload.clone()) else { return };
        self.last_message = Instant::now();
        for message in self.order.push(message, self.last_message) {
            self.archive(shared, &message).await;
        }
    }

    /// Archives the chunks in messages that have waited too long for one that is missing, see
    /// [`ReorderBuffer::take_overdue`].
    async fn take_overdue(&mut self, shared: &Shared, receiving_since: Option<Instant>) {
        for message in self.order.take_overdue(Instant::now(), receiving_since) {
            self.archive(shared, &message).await;
        }
    }

    /// Archives the chunks in a message that is in order.
    async fn archive(&mut self, shared: &Shared, message: &ChunkMessage) {
        let Some(archive) = self.archive.clone() else { return };
        if !self.is_described
            && let Some(process) = shared.process(&self.process.identity)
        {
            archive.describe(&process);
            (self.process, self.is_described) = (process, true);
        }
        let result = match self.assembler.push(message) {
            Ok(assembled) if assembled.has_ended => {
                self.archive = None;
                // Ending the part takes long.
                let _ = tokio::task::spawn_blocking(move || drop(archive)).await;
                return;
            }
            Ok(assembled) => {
                let pushed = tokio::task::spawn_blocking(move || archive.push(&assembled.bytes)).await;
                // The panic hook has reported a panic.
                pushed.map_or(Ok(()), |pushed| pushed.map_err(|error| error.to_string()))
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = result {
            self.refuse(&reason);
        }
    }

    /// Stops archiving the process, and logs why.
    fn refuse(&mut self, reason: &str) {
        if self.archive.take().is_some() {
            tracing::warn!("stopped archiving {}: {reason}", self.process);
        }
    }
}
