//! Archives a run from the broker: all events and summaries that processes publish.
//!
//! It reads the broker independently of the page, so all published events are archived, whichever
//! ranks are open. It does not request events from processes: it archives events that a server
//! requested, or that a process publishes with `push=all`.

use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use async_nats::jetstream::consumer::DeliverPolicy;
use tokio::time::MissedTickBehavior;

use super::descriptions::Descriptions;
use super::error::ArchiveError;
use super::event_archive::EventArchive;
use super::summary_archive::SummaryArchive;
use super::writer::{ArchiveSummary, ArchiveWriter};
use crate::address::FleetAddress;
use crate::connection::{Connection, FleetError};
use crate::fleet_reader::read_origin;
use crate::message::ChunkMessage;
use crate::process_record::ProcessRecord;
use crate::runtime::BackgroundRuntime;
use crate::subject_reader::SubjectReader;
use crate::subjects;

/// Interval at which the archiver checks whether it has read all stored descriptions.
const SETTLE_INTERVAL: Duration = Duration::from_millis(200);
/// Interval at which the archiver checks for messages that have waited too long for a missing one.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which the archiver checks for summaries that have waited too long for the
/// description of their process.
const SUMMARY_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// An archiver of a run, which reads from the broker until it is finished or dropped.
#[derive(Debug)]
pub struct RunArchiver {
    runtime: BackgroundRuntime,
    writer: ArchiveWriter,
}

/// State that the tasks of an archiver share.
struct Shared {
    connection: Connection,
    run: String,
    writer: ArchiveWriter,
    descriptions: Arc<Descriptions>,
}

impl RunArchiver {
    /// Connects to the broker of the run, and starts to archive the stored and all later messages.
    /// Must not be called from an asynchronous task.
    ///
    /// # Errors
    /// If the broker cannot be reached or refuses the connection, or the operating system cannot
    /// start a thread. A connection that is lost later is restored.
    pub fn start(address: &FleetAddress, writer: ArchiveWriter) -> Result<Self, FleetError> {
        let runtime = BackgroundRuntime::new("vramscope-archiver").map_err(|error| FleetError::new(address, error))?;
        let connection = runtime.block_on(Connection::open(address, "vramscope archive"))?;
        let (run, descriptions) = (address.run().to_owned(), Arc::default());
        let shared = Shared { connection, run, writer: writer.clone(), descriptions };
        runtime.spawn(archive_run(Arc::new(shared)));
        Ok(Self { runtime, writer })
    }

    /// Stops reading from the broker, and waits until everything read is stored.
    ///
    /// # Errors
    /// If some data could not be stored; see [`ArchiveWriter::finish`].
    pub fn finish(self) -> Result<ArchiveSummary, ArchiveError> {
        drop(self.runtime);
        self.writer.finish()
    }
}

/// Reads the descriptions of all processes. Once all stored descriptions are read, also starts to
/// archive events and summaries.
async fn archive_run(shared: Arc<Shared>) {
    let stream = subjects::processes_stream(&shared.run);
    let filter = subjects::all_processes(&shared.run);
    let mut reader = SubjectReader::new(shared.connection.clone(), stream, filter, DeliverPolicy::LastPerSubject);
    let mut has_settled = false;
    loop {
        let message = if has_settled {
            Some(reader.next().await)
        } else {
            tokio::time::timeout(SETTLE_INTERVAL, reader.next()).await.ok()
        };
        // The follower logs invalid descriptions.
        if let Some(message) = message
            && let Ok(record) = ProcessRecord::parse(&message.subject, &message.payload)
        {
            shared.descriptions.insert(record);
        }
        if !has_settled && reader.has_read_all() {
            has_settled = true;
            tokio::spawn(archive_events(Arc::clone(&shared)));
            tokio::spawn(archive_summaries(Arc::clone(&shared)));
        }
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
    let mut summaries = SummaryArchive::new(shared.writer.clone(), Arc::clone(&shared.descriptions));
    let mut check = tokio::time::interval(SUMMARY_CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = reader.next() => {
                // The follower logs invalid messages.
                let Ok((sender, stored_ns)) = read_origin(&message) else { continue };
                summaries.take(&sender.0, stored_ns, &message.payload, Instant::now()).await;
            }
            _ = check.tick() => summaries.retry(Instant::now()).await,
        }
    }
}

/// Archives all events that the broker has.
async fn archive_events(shared: Arc<Shared>) {
    let (stream, filter) = (subjects::events_stream(&shared.run), subjects::all_events(&shared.run));
    let mut reader = SubjectReader::new(shared.connection.clone(), stream, filter, DeliverPolicy::All);
    let mut events = EventArchive::new(shared.writer.clone(), Arc::clone(&shared.descriptions));
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            message = reader.next() => message,
            _ = check.tick() => {
                events.take_overdue(reader.receiving_since()).await;
                continue;
            }
        };
        let Some((rank, identity)) = subjects::parse_process(&message.subject) else { continue };
        // A message with invalid headers is ignored: the process did not send it.
        let Ok(chunk) = ChunkMessage::parse(message.headers.as_ref(), message.payload.clone()) else { continue };
        events.take(rank, identity, chunk).await;
    }
}
