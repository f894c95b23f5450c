//! Reads the processes of a run from a broker.
//!
//! The follower watches the descriptions of all processes and reads the events of each from its
//! newest start. It keeps nothing that the broker does not have, so any number of followers show
//! the same, and one that restarts continues with what is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::consumer::DeliverPolicy;
use tokio::task::JoinSet;
use vramscope_collector::{Aggregator, Process, ProcessConnection};
use vramscope_insight::fleet::FleetView;

use crate::address::FleetAddress;
use crate::assembler::{Assembled, Assembler};
use crate::connection::{Connection, FleetError, describe};
use crate::fleet_reader::{SharedFleet, compare_ranks, read_summaries};
use crate::message::ChunkMessage;
use crate::process_record::ProcessRecord;
use crate::runtime::BackgroundRuntime;
use crate::subject_reader::SubjectReader;
use crate::{streams, subjects, unix_time};

/// How often a process is asked to continue to send its events.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);
/// For how long a process is asked to send its events: three intervals, so that a lost request does
/// no harm.
const LEASE_SECONDS: u64 = 15;

/// What a [`Follower`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerOptions {
    /// Events that happened up to this time before now are read, if the broker has them.
    pub history: Duration,
    /// The most processes that are asked for their events. Those that send all are always read.
    pub max_requested: usize,
}

impl Default for FollowerOptions {
    fn default() -> Self {
        Self { history: Duration::from_secs(600), max_requested: 16 }
    }
}

/// Reads the processes of a run into an [`Aggregator`] until it is dropped.
#[derive(Debug)]
pub struct Follower {
    runtime: BackgroundRuntime,
    connection: Connection,
    run: String,
    fleet: SharedFleet,
}

impl Follower {
    /// Connects to the broker of the run at `address`, and checks that the run can be read.
    ///
    /// # Errors
    /// If the broker cannot be reached or refuses the connection, or the operating system cannot
    /// start a thread. A connection that is lost later is restored.
    pub fn connect(address: &FleetAddress) -> Result<Self, FleetError> {
        let runtime = BackgroundRuntime::new("vramscope-fleet").map_err(|error| FleetError::new(address, error))?;
        let connection = runtime.block_on(Connection::open(address, "vramscope serve"))?;
        let run = address.run().to_owned();
        let ensured = runtime.block_on(ensure_readable(&connection, &run));
        ensured.map_err(|reason| FleetError::new(address, reason))?;
        Ok(Self { runtime, connection, run, fleet: SharedFleet::default() })
    }

    /// Starts to pass the recordings of the run's processes to the aggregator, which must have
    /// begun.
    pub fn follow(&self, aggregator: Aggregator, options: FollowerOptions) {
        let (connection, run, fleet) = (self.connection.clone(), self.run.clone(), self.fleet.clone());
        let shared = Arc::new(Shared { connection, run, fleet, aggregator, options, requested: Mutex::default() });
        self.runtime.spawn(follow_run(Arc::clone(&shared)));
        self.runtime.spawn(renew_leases(shared));
        self.runtime.spawn(read_summaries(self.connection.clone(), self.run.clone(), self.fleet.clone()));
        self.runtime.spawn(compare_ranks(self.fleet.clone()));
    }

    /// Returns all ranks of the run as of the last tick; there are ten ticks a second.
    #[must_use]
    pub fn view(&self) -> Arc<FleetView> {
        self.fleet.view()
    }
}

/// What the tasks of a follower share.
struct Shared {
    connection: Connection,
    run: String,
    fleet: SharedFleet,
    aggregator: Aggregator,
    options: FollowerOptions,
    /// Control subjects of the processes that are asked for their events, by identity.
    requested: Mutex<BTreeMap<String, String>>,
}

impl Shared {
    /// Asks a process for its events until it has ended. Does nothing if as many processes as
    /// allowed are asked already.
    fn request(&self, record: &ProcessRecord) {
        let process = &record.process;
        let mut requested = self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        if requested.len() < self.options.max_requested {
            let subject = subjects::control(&self.run, process.rank, &process.identity);
            requested.insert(process.identity.clone(), subject);
        }
    }

    /// Stops asking a process for its events.
    fn release(&self, identity: &str) {
        self.requested.lock().unwrap_or_else(PoisonError::into_inner).remove(identity);
    }

    /// Sends a request to each process that is asked for its events.
    async fn send_requests(&self) {
        let subjects: Vec<String> =
            self.requested.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        for subject in subjects {
            // Repeated soon, so a failure does no harm.
            let _ = self.connection.client.publish(subject, LEASE_SECONDS.to_string().into()).await;
        }
    }
}

/// Checks that the run's streams can be read; creates them if they do not exist and the broker
/// allows it, so that a server can start before the first process.
async fn ensure_readable(connection: &Connection, run: &str) -> Result<(), String> {
    for name in [subjects::processes_stream(run), subjects::events_stream(run), subjects::summaries_stream(run)] {
        if let Err(error) = connection.jetstream.get_stream(&name).await {
            return streams::ensure(connection, run)
                .await
                .map_err(|why| format!("cannot read the stream {name}: {}; {why}", describe(&error)));
        }
    }
    Ok(())
}

/// Asks for events for as long as the follower runs.
async fn renew_leases(shared: Arc<Shared>) {
    loop {
        shared.send_requests().await;
        tokio::time::sleep(RENEW_INTERVAL).await;
    }
}

/// Watches the descriptions of all processes, and follows each process from its first one on.
async fn follow_run(shared: Arc<Shared>) {
    let mut reader = SubjectReader::new(
        shared.connection.clone(),
        subjects::processes_stream(&shared.run),
        subjects::all_processes(&shared.run),
        DeliverPolicy::LastPerSubject,
    );
    let (mut followed, mut known) = (JoinSet::new(), BTreeSet::new());
    loop {
        let message = reader.next().await;
        let record = match ProcessRecord::parse(&message.subject, &message.payload) {
            Ok(record) => record,
            Err(reason) => {
                tracing::warn!("ignored the description on {}: {reason}", message.subject);
                continue;
            }
        };
        shared.fleet.describe(&record);
        while followed.try_join_next().is_some() {}
        if !is_current(&record, shared.options.history) || !known.insert(record.process.identity.clone()) {
            continue;
        }
        if !record.details.sends_all && !record.details.has_ended {
            shared.request(&record);
            shared.send_requests().await;
        }
        followed.spawn(follow_process(Arc::clone(&shared), record));
    }
}

/// Returns false for a process that ended before the history that is read.
fn is_current(record: &ProcessRecord, history: Duration) -> bool {
    let age_ms = unix_time::now_ms().saturating_sub(record.details.start_unix_ms);
    !record.details.has_ended || u128::from(age_ms) <= history.as_millis()
}

/// Reads the events of one process until it has ended, its messages are invalid, or the aggregator
/// refuses it.
async fn follow_process(shared: Arc<Shared>, record: ProcessRecord) {
    let process = &record.process;
    let mut reader = SubjectReader::new(
        shared.connection.clone(),
        subjects::events_stream(&shared.run),
        subjects::events(&shared.run, process.rank, &process.identity),
        first_position(&record, shared.options.history),
    );
    let (mut assembler, mut feed) = (Assembler::new(), ProcessFeed::default());
    loop {
        let message = reader.next().await;
        let parsed = ChunkMessage::parse(message.headers.as_ref(), message.payload.clone());
        let assembled = parsed.and_then(|message| assembler.push(&message).map_err(|error| error.to_string()));
        match assembled {
            Ok(assembled) if assembled.has_ended => {
                feed.end().await;
                break;
            }
            Ok(assembled) => {
                if feed.deliver(&shared.aggregator, process, assembled).await.is_err() {
                    break;
                }
            }
            Err(reason) => {
                tracing::warn!("disconnected {process}: {reason}");
                break;
            }
        }
    }
    shared.release(&process.identity);
    feed.close().await;
}

/// Returns where the events of a process are read first: at the beginning of the history, or at the
/// newest start if that is older.
fn first_position(record: &ProcessRecord, history: Duration) -> DeliverPolicy {
    let details = &record.details;
    let history_start = SystemTime::now().checked_sub(history).unwrap_or(UNIX_EPOCH);
    let newest_start = UNIX_EPOCH + Duration::from_millis(details.start_unix_ms);
    if details.start_sequence > 0 && newest_start < history_start {
        DeliverPolicy::ByStartSequence { start_sequence: details.start_sequence }
    } else {
        DeliverPolicy::ByStartTime { start_time: history_start.into() }
    }
}

/// The aggregator refused a process, and has logged why.
struct Refused;

/// A process's connection to the aggregator, from its first chunk on.
///
/// The aggregator's lock may be held for long, so every call runs on a blocking thread.
#[derive(Default)]
struct ProcessFeed(Option<ProcessConnection>);

impl ProcessFeed {
    /// Passes new chunks to the aggregator. Waits while too many of the process's events wait for
    /// those of others.
    async fn deliver(&mut self, aggregator: &Aggregator, process: &Process, new: Assembled) -> Result<(), Refused> {
        if new.bytes.is_empty() {
            return Ok(());
        }
        let (connection, aggregator, process) = (self.0.take(), aggregator.clone(), process.clone());
        let pushed = tokio::task::spawn_blocking(move || {
            let mut connection = match connection {
                Some(connection) => connection,
                None => aggregator.join(process.clone()).map_err(|reason| {
                    tracing::warn!("refused {process}: {reason}");
                    Refused
                })?,
            };
            connection.push(&new.bytes, new.next).map_err(|_| Refused)?;
            Ok(connection)
        });
        self.0 = Some(pushed.await.map_err(|_| Refused)??);
        Ok(())
    }

    /// Marks the process's recording as complete.
    async fn end(&mut self) {
        if let Some(mut connection) = self.0.take() {
            // The panic hook has reported a panic.
            let _ = tokio::task::spawn_blocking(move || connection.end()).await;
        }
    }

    /// Disconnects the process.
    async fn close(mut self) {
        let connection = self.0.take();
        let _ = tokio::task::spawn_blocking(move || drop(connection)).await;
    }
}
