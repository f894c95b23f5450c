//! The streams of a run at the broker.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};

use crate::connection::{Connection, describe};
use crate::subjects;

/// The most bytes of events that the broker stores for a run; beyond it, the oldest are dropped.
const EVENT_BYTES: i64 = 1 << 30;
/// How long the broker stores events.
const EVENT_AGE: Duration = Duration::from_secs(3600);
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

/// Creates the streams of a run if they do not exist. A running process or
/// server calls this when the broker says that no stream takes its messages.
pub(crate) async fn ensure(connection: &Connection, run: &str) -> Result<(), String> {
    let jetstream = &connection.jetstream;
    // A cluster stores every message on three servers, so that one may be lost.
    let is_cluster = connection.client.server_info().cluster.is_some_and(|name| !name.is_empty());
    let replicas = if is_cluster { 3 } else { 1 };
    for config in configs(run, replicas) {
        let name = config.name.clone();
        let created = jetstream.get_or_create_stream(config).await;
        created.map_err(|error| format!("cannot create the stream {name}: {}", describe(&error)))?;
    }
    Ok(())
}

/// Returns the configuration of a run's streams, each stored on `replicas` servers.
fn configs(run: &str, replicas: usize) -> [Config; 3] {
    let stream = |name: String, subject: String| Config {
        name,
        subjects: vec![subject],
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        num_replicas: replicas,
        duplicate_window: DUPLICATE_WINDOW,
        allow_direct: true,
        ..Config::default()
    };
    [
        Config {
            max_bytes: EVENT_BYTES,
            max_age: EVENT_AGE,
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
