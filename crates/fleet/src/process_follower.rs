//! Reads the events of one process into an aggregator.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use tokio::sync::watch;
use vramscope_collector::{Aggregator, Process, ProcessConnection};

use crate::assembler::{Assembled, Assembler};
use crate::connection::Connection;
use crate::message::ChunkMessage;
use crate::process_record::ProcessRecord;
use crate::reorder_buffer::ReorderBuffer;
use crate::subject_reader::SubjectReader;
use crate::subjects;

/// Interval at which the connection of a silent process is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// A process without any message for this long counts as disconnected.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// How following a process is directed and what it reports.
pub(crate) trait ProcessObserver {
    /// Returns true if no summary of the process has arrived for [`SILENCE`].
    fn is_silent(&self) -> bool;
    /// Asks the process to repeat what a reader begins with.
    fn request_start(&self) -> impl Future<Output = ()> + Send;
    /// Takes the number of the process's first device in the aggregator's recording.
    fn set_device(&self, device: u16);
}

/// Reads the events of one process while `is_open` is true, until they have been read to their end,
/// are invalid, or the aggregator refuses them.
pub(crate) struct ProcessFollower<O> {
    process: Process,
    aggregator: Aggregator,
    observer: O,
    reader: SubjectReader,
    order: ReorderBuffer,
    assembler: Assembler,
    connection: Option<ProcessConnection>,
    /// True from the first connection to the aggregator on.
    was_connected: bool,
    /// True once the process's first device in the aggregator's recording is known.
    has_device: bool,
    /// When the last message arrived.
    last_message: Instant,
    /// True once an ignored message was logged.
    has_logged_invalid: bool,
}

/// The events of a process cannot be read further; the reason was logged.
#[derive(Debug)]
struct Refused;

impl<O: ProcessObserver> ProcessFollower<O> {
    /// Creates a follower that begins at the start of the `history`, or at the process's newest
    /// start if that is older.
    pub(crate) fn new(
        connection: Connection,
        run: &str,
        record: &ProcessRecord,
        history: Duration,
        aggregator: Aggregator,
        observer: O,
    ) -> Self {
        let process = record.process.clone();
        let filter = subjects::events(run, process.rank, &process.identity);
        let position = first_position(record, history);
        Self {
            reader: SubjectReader::new(connection, subjects::events_stream(run), filter, position),
            process,
            aggregator,
            observer,
            order: ReorderBuffer::default(),
            assembler: Assembler::new(),
            connection: None,
            was_connected: false,
            has_device: false,
            last_message: Instant::now(),
            has_logged_invalid: false,
        }
    }

    /// Reads until the end. Ends early if the sender of `is_open` is dropped.
    pub(crate) async fn run(mut self, mut is_open: watch::Receiver<bool>) {
        // Not at once: what the broker has stored comes first.
        let mut check = tokio::time::interval_at(tokio::time::Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        loop {
            if !*is_open.borrow_and_update() {
                self.pause().await;
                if is_open.wait_for(|is_open| *is_open).await.is_err() {
                    return;
                }
                self.last_message = Instant::now();
            }
            tokio::select! {
                changed = is_open.changed() => {
                    if changed.is_err() {
                        break;
                    }
                }
                message = self.reader.next() => {
                    self.last_message = Instant::now();
                    match self.take(message).await {
                        Ok(false) => {}
                        Ok(true) | Err(Refused) => break,
                    }
                }
                _ = check.tick() => {
                    let overdue = self.order.take_overdue(Instant::now(), self.reader.receiving_since());
                    if !matches!(self.assemble(overdue).await, Ok(false)) {
                        break;
                    }
                    let is_silent = self.observer.is_silent();
                    if self.last_message.elapsed() >= SILENCE && is_silent {
                        self.with_connection(drop).await;
                    }
                    if !self.assembler.is_in_sync() && !is_silent {
                        self.observer.request_start().await;
                    }
                }
            }
        }
        self.with_connection(drop).await;
    }

    /// Stops reading until the process is opened again.
    async fn pause(&mut self) {
        self.reader.pause();
        self.with_connection(ProcessConnection::pause).await;
    }

    /// Takes the next message. Returns true after the end of the process's recording.
    ///
    /// A message with invalid headers is ignored: the process did not send it. A broker can be made
    /// to publish messages of other streams on the process's subject.
    async fn take(&mut self, message: Message) -> Result<bool, Refused> {
        match ChunkMessage::parse(message.headers.as_ref(), message.payload.clone()) {
            Ok(message) => {
                let usable = self.order.push(message, self.last_message);
                self.assemble(usable).await
            }
            Err(reason) => {
                if !std::mem::replace(&mut self.has_logged_invalid, true) {
                    tracing::warn!("ignored a message on {}: {reason}", message.subject);
                }
                Ok(false)
            }
        }
    }

    /// Takes messages that are in order. Returns true after the end of the process's recording.
    async fn assemble(&mut self, messages: Vec<ChunkMessage>) -> Result<bool, Refused> {
        for message in messages {
            let assembled = self.assembler.push(&message);
            if let Ok(Assembled { lost_messages: lost @ 1.., .. }) = assembled {
                tracing::warn!("the broker lacks {lost} messages of {} before number {}", self.process, message.number);
            }
            match assembled {
                Ok(assembled) if assembled.has_ended => {
                    self.with_connection(|mut connection| connection.end()).await;
                    return Ok(true);
                }
                Ok(assembled) => self.deliver(assembled).await?,
                Err(error) => return Err(self.refuse(&error)),
            }
        }
        Ok(false)
    }

    /// Logs why the process's events cannot be read further.
    fn refuse(&self, reason: &dyn std::fmt::Display) -> Refused {
        tracing::warn!("disconnected {}: {reason}", self.process);
        Refused
    }

    /// Passes new chunks to the aggregator. Waits while too many of the process's events wait for
    /// those of others.
    async fn deliver(&mut self, new: Assembled) -> Result<(), Refused> {
        if new.bytes.is_empty() {
            return Ok(());
        }
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.join().await?;
                if std::mem::replace(&mut self.was_connected, true) && connection.resume() == 0 {
                    // The aggregator has forgotten the process in favour of others: begin at a
                    // start.
                    (self.was_connected, self.has_device) = (false, false);
                    self.assembler = Assembler::new();
                    return Ok(());
                }
                connection
            }
        };
        let has_device = self.has_device;
        let pushed = blocking(connection, move |mut connection| {
            connection.push(&new.bytes, new.next).map_err(|_| Refused)?;
            let device = if has_device { None } else { connection.devices().first().copied() };
            Ok((connection, device))
        });
        let (connection, device) = pushed.await.ok_or(Refused)??;
        self.connection = Some(connection);
        if let Some(device) = device {
            self.has_device = true;
            self.observer.set_device(device);
        }
        Ok(())
    }

    /// Connects the process to the aggregator.
    async fn join(&self) -> Result<ProcessConnection, Refused> {
        let joined = blocking((self.aggregator.clone(), self.process.clone()), |(aggregator, process)| {
            aggregator.join(process.clone()).map_err(|reason| {
                tracing::warn!("refused {process}: {reason}");
                Refused
            })
        });
        joined.await.ok_or(Refused)?
    }

    /// Takes the connection to the aggregator, if there is one, and passes it to `act`.
    async fn with_connection(&mut self, act: impl FnOnce(ProcessConnection) + Send + 'static) {
        if let Some(connection) = self.connection.take() {
            blocking(connection, act).await;
        }
    }
}

/// Runs `act` on a blocking thread: the aggregator's lock may be held for long. Returns `None`
/// after a panic, which the panic hook has reported.
async fn blocking<A: Send + 'static, T: Send + 'static>(
    argument: A,
    act: impl FnOnce(A) -> T + Send + 'static,
) -> Option<T> {
    tokio::task::spawn_blocking(move || act(argument)).await.ok()
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
