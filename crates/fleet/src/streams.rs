//! The streams of a run at the broker.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::DeleteStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};

use crate::address::FleetAddress;
use crate::connection::{Connection, FleetError, describe};
use crate::runtime::BackgroundRuntime;
use crate::subjects;

/// Maximum size of the process descriptions that the broker stores for a run, in bytes.
const PROCESS_BYTES: u64 = 64 << 20;
/// How long the broker stores the description of a process: 7 days.
const PROCESS_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long the broker recognizes a repeated message. It is longer than a process takes to
/// reconnect and send a message again; readers recognize later repetitions.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// Limits on the messages that a broker stores of a run. Beyond a limit, it drops the oldest
/// messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLimits {
    /// The most bytes of events.
    pub event_bytes: u64,
    /// How long an event is stored.
    pub event_age: Duration,
    /// The most bytes of summaries.
    pub summary_bytes: u64,
    /// How long a summary is stored.
    pub summary_age: Duration,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            event_bytes: 1 << 30,
            event_age: Duration::from_secs(3600),
            // Three minutes of 1,024 processes.
            summary_bytes: 512 << 20,
            // Servers need the newest minute; longer histories are in an archive.
            summary_age: Duration::from_secs(300),
        }
    }
}

/// Creates the streams of a run if they do not exist. A running process or server calls this when
/// the broker reports that no stream accepts its messages.
pub(crate) async fn ensure(connection: &Connection, run: &str) -> Result<(), String> {
    for config in configs(connection, run, &StreamLimits::default()) {
        let name = config.name.clone();
        let created = connection.jetstream.get_or_create_stream(config).await;
        created.map_err(|error| format!("cannot create the stream {name}: {}", describe(&error)))?;
    }
    Ok(())
}

/// Creates the streams of a run with these limits, or changes the limits of existing ones.
///
/// # Errors
/// If the broker cannot be reached or refuses it.
pub fn create_streams(address: &FleetAddress, limits: &StreamLimits) -> Result<(), FleetError> {
    administrate(address, async |connection| {
        for config in configs(connection, address.run(), limits) {
            let name = config.name.clone();
            let created = connection.jetstream.create_or_update_stream(config).await;
            created.map_err(|error| format!("cannot create the stream {name}: {}", describe(&error)))?;
        }
        Ok(())
    })
}

/// Deletes the streams of a run with all that is stored in them. Streams that do not exist are
/// ignored.
///
/// # Errors
/// If the broker cannot be reached or refuses it.
pub fn delete_streams(address: &FleetAddress) -> Result<(), FleetError> {
    administrate(address, async |connection| {
        for name in subjects::streams(address.run()) {
            let Err(error) = connection.jetstream.delete_stream(&name).await else { continue };
            let is_missing = matches!(error.kind(), DeleteStreamErrorKind::JetStream(refusal)
                if refusal.error_code() == ErrorCode::STREAM_NOT_FOUND);
            if !is_missing {
                return Err(format!("cannot delete the stream {name}: {}", describe(&error)));
            }
        }
        Ok(())
    })
}

/// Connects to the broker, and passes the connection to `act`.
fn administrate(
    address: &FleetAddress,
    act: impl AsyncFnOnce(&Connection) -> Result<(), String>,
) -> Result<(), FleetError> {
    let fail = |reason: String| FleetError::new(address, reason);
    let runtime = BackgroundRuntime::new("vramscope-fleet").map_err(|error| fail(error.to_string()))?;
    runtime.block_on(async {
        let connection = Connection::open(address, "vramscope fleet").await?;
        act(&connection).await.map_err(fail)
    })
}

/// Returns the configuration of a run's streams.
fn configs(connection: &Connection, run: &str, limits: &StreamLimits) -> [Config; 3] {
    // A cluster stores every message on three servers, so that one may be lost.
    let is_cluster = connection.client.server_info().cluster.is_some_and(|name| !name.is_empty());
    let replicas = if is_cluster { 3 } else { 1 };
    let stream = |name: String, subject: String, bytes: u64, age: Duration| Config {
        name,
        subjects: vec![subject],
        max_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        max_age: age,
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        num_replicas: replicas,
        duplicate_window: DUPLICATE_WINDOW.min(age),
        allow_direct: true,
        ..Config::default()
    };
    let StreamLimits { event_bytes, event_age, summary_bytes, summary_age } = *limits;
    [
        stream(subjects::events_stream(run), subjects::all_events(run), event_bytes, event_age),
        stream(subjects::summaries_stream(run), subjects::all_summaries(run), summary_bytes, summary_age),
        Config {
            max_messages_per_subject: 1,
            ..stream(subjects::processes_stream(run), subjects::all_processes(run), PROCESS_BYTES, PROCESS_AGE)
        },
    ]
}
