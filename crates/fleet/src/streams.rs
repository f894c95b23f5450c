//! The streams of a run at the broker.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{self};

use crate::address::FleetAddress;
use crate::connection::{Connection, FleetError, describe};
use crate::subjects;

/// The most bytes of process descriptions that the broker stores for a run.
const PROCESS_BYTES: i64 = 64 << 20;
/// The most bytes of summaries that the broker stores for a run: two minutes of 1,024 processes.
const SUMMARY_BYTES: i64 = 512 << 20;
/// How long the broker stores a summary. Servers need the newest seconds; longer histories are in
/// an archive.
const SUMMARY_AGE: Duration = Duration::from_secs(300);
/// How long the broker stores the description of a process: 7 days.
const PROCESS_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long the broker recognizes a message that it already has. Longer than a process takes to
/// reconnect and repeat a message; a later repetition is recognized by its reader.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// How much of a run the broker stores. Beyond a limit, it drops the oldest events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// The most bytes of events.
    pub bytes: u64,
    /// The longest time that events are stored.
    pub age: Duration,
    /// On how many servers of a cluster each message is stored: 1, 3 or 5.
    pub replicas: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self { bytes: 1 << 30, age: Duration::from_secs(3600), replicas: 1 }
    }
}

/// Creates the streams of a run, or changes the limits of those that exist.
///
/// # Errors
/// If the broker refuses, for lack of permission or storage.
pub async fn create_streams(address: &FleetAddress, limits: StreamLimits) -> Result<(), FleetError> {
    let connection = Connection::open(address, "vramscope setup").await?;
    let created = create(&connection.jetstream, address.run(), limits).await;
    created.map_err(|reason| FleetError::new(address, reason))
}

/// Creates the streams of a run with default limits if they do not exist. A running process or
/// server calls this when the broker says that no stream takes its messages.
pub(crate) async fn ensure(connection: &Connection, run: &str) -> Result<(), String> {
    let jetstream = &connection.jetstream;
    // A cluster stores every message on three servers, so that one may be lost.
    let is_cluster = connection.client.server_info().cluster.is_some_and(|name| !name.is_empty());
    let replicas = if is_cluster { 3 } else { 1 };
    for config in configs(run, StreamLimits { replicas, ..StreamLimits::default() }) {
        let name = config.name.clone();
        let created = jetstream.get_or_create_stream(config).await;
        created.map_err(|error| format!("cannot create the stream {name}: {}", describe(&error)))?;
    }
    Ok(())
}

/// Creates or changes the streams of a run.
async fn create(jetstream: &jetstream::Context, run: &str, limits: StreamLimits) -> Result<(), String> {
    for config in configs(run, limits) {
        let name = config.name.clone();
        let created = jetstream.create_or_update_stream(config).await;
        created.map_err(|error| format!("cannot create the stream {name}: {}", describe(&error)))?;
    }
    Ok(())
}

/// Returns the configuration of a run's streams.
fn configs(run: &str, limits: StreamLimits) -> [Config; 3] {
    let stream = |name: String, subject: String| Config {
        name,
        subjects: vec![subject],
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        num_replicas: limits.replicas,
        duplicate_window: DUPLICATE_WINDOW.min(limits.age),
        allow_direct: true,
        ..Config::default()
    };
    [
        Config {
            max_bytes: i64::try_from(limits.bytes).unwrap_or(i64::MAX),
            max_age: limits.age,
            ..stream(subjects::events_stream(run), subjects::all_events(run))
        },
        Config {
            max_bytes: SUMMARY_BYTES,
            max_age: SUMMARY_AGE,
            ..stream(subjects::summaries_stream(run), subjects::all_summaries(run))
        },
        Config {
            max_bytes: PROCESS_BYTES,
            max_age: PROCESS_AGE,
            max_messages_per_subject: 1,
            ..stream(subjects::processes_stream(run), subjects::all_processes(run))
        },
    ]
}
