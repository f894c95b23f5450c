//! Stores the description of a process at the broker.

use std::sync::{Arc, Mutex, PoisonError};

use crate::connection::{Connection, describe};
use crate::process_record::ProcessRecord;
use crate::{streams, subjects, unix_time};

/// A publisher of a process's description. Clones share the description.
#[derive(Clone, Debug)]
pub(crate) struct RecordPublisher {
    run: String,
    record: Arc<Mutex<ProcessRecord>>,
}

impl RecordPublisher {
    /// Creates the publisher of a process of the run.
    pub(crate) fn new(run: &str, record: ProcessRecord) -> Self {
        Self { run: run.to_owned(), record: Arc::new(Mutex::new(record)) }
    }

    /// Calls `act` with the description, to read or change it. A change is not published until
    /// [`publish`](Self::publish).
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut ProcessRecord) -> T) -> T {
        act(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stores the description at the broker, and creates the run's streams if they do not exist.
    ///
    /// # Errors
    /// If the broker cannot be reached or refuses the description. The text is the reason.
    pub(crate) async fn publish(&self, connection: &Connection) -> Result<(), String> {
        let Err(error) = self.try_publish(connection).await else { return Ok(()) };
        streams::ensure(connection, &self.run).await.map_err(|why| format!("{error}; {why}"))?;
        self.try_publish(connection).await
    }

    /// Stores the description at the broker. Fails if the run's streams do not exist.
    async fn try_publish(&self, connection: &Connection) -> Result<(), String> {
        let (subject, json) = self.with(|record| {
            record.details.sent_unix_ms = unix_time::now_ms();
            let process = &record.process;
            (subjects::process(&self.run, process.rank, &process.identity), record.to_json())
        });
        let published = connection.jetstream.publish(subject, json.into()).await;
        published.map_err(|error| describe(&error))?.await.map(drop).map_err(|error| describe(&error))
    }
}
