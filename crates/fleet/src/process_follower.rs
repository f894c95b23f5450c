//! Reads the events of one process into an aggregator.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use tokio::sync::watch;
use vramscope_collector::{Aggregator, JoinError, Process, ProcessConnection};

use crate::assembler::{Assembled, Assembler};
use crate::connection::Connection;
use crate::message::ChunkMessage;
use crate::process_record::ProcessRecord;
use crate::process_registry::Stop;
use crate::reorder_buffer::ReorderBuffer;
use crate::subject_reader::SubjectReader;
use crate::subjects;

/// Interval at which the follower checks for overdue messages and for a lost process.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// A process without any message for this long counts as disconnected.
pub(crate) const SILENCE: Duration = Duration::from_secs(10);

/// The interface of a [`ProcessFollower`] to its owner, which answers its questions and receives
/// its reports.
pub(crate) trait ProcessObserver {
    /// Returns true if no summary of the process has arrived for [`SILENCE`].
    fn is_silent(&self) -> bool;
    /// Requests a start (header, definitions and full state) from the process.
    fn request_start(&self) -> impl Future<Output = ()> + Send;
    /// Receives the number of the process's first device in the aggregator's recording.
    fn set_device(&self, device: u16);
    /// Is called when the process seems to be lost and all its stored messages have been read.
    fn set_lost(&self);
}

/// A reader of one process's events, which passes them to an aggregator while the process is open.
/// It ends at the recording's end, or if the events are invalid or the aggregator refuses them.
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

impl<O: ProcessObserver> ProcessFollower<O> {
    /// Creates a follower that begins with events of the age `history`, or at the process's newest
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

    /// Reads while `is_open` is true, until reading ends, and returns why it ended; `None` if the
    /// sender of `is_open` was dropped.
    pub(crate) async fn run(mut self, is_open: watch::Receiver<bool>) -> Option<Stop> {
        let stop = self.read(is_open).await.err();
        self.with_connection(drop).await;
        stop
    }

    /// Reads until the sender of `is_open` is dropped (`Ok`), or until reading ends for another
    /// reason (`Err`).
    async fn read(&mut self, mut is_open: watch::Receiver<bool>) -> Result<(), Stop> {
        // The first check is not at once, because stored messages must be read first.
        let mut check = tokio::time::interval_at(tokio::time::Instant::now() + CHECK_INTERVAL, CHECK_INTERVAL);
        loop {
            if !*is_open.borrow_and_update() {
                self.pause().await;
                if is_open.wait_for(|is_open| *is_open).await.is_err() {
                    return Ok(());
                }
                self.last_message = Instant::now();
            }
            tokio::select! {
                changed = is_open.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                message = self.reader.next() => {
                    self.last_message = Instant::now();
                    self.take(message).await?;
                }
                _ = check.tick() => self.check().await?,
            }
        }
    }

    /// Passes on messages that have waited too long for a missing one, and checks whether the
    /// process is lost.
    async fn check(&mut self) -> Result<(), Stop> {
        let overdue = self.order.take_overdue(Instant::now(), self.reader.receiving_since());
        self.assemble(overdue).await?;
        let is_silent = self.observer.is_silent();
        if self.last_message.elapsed() >= SILENCE && is_silent {
            self.with_connection(drop).await;
            let is_receiving = self.reader.receiving_since().is_some_and(|since| since.elapsed() >= SILENCE);
            if is_receiving && self.order.is_empty() {
                self.observer.set_lost();
            }
        }
        if !self.assembler.is_in_sync() && !is_silent {
            self.observer.request_start().await;
        }
        Ok(())
    }

    /// Stops reading until the process is opened again. Drops all waiting messages, because the
    /// number of paused processes is not limited.
    async fn pause(&mut self) {
        self.reader.pause();
        if !self.order.is_empty() || self.assembler.joined_bytes() > 0 {
            self.order = ReorderBuffer::default();
            self.assembler.restart_from(0);
        }
        self.with_connection(ProcessConnection::pause).await;
    }

    /// Handles the next message from the broker.
    ///
    /// A message with invalid headers is ignored: the process did not send it. A broker can be made
    /// to publish messages of other streams on the process's subject.
    async fn take(&mut self, message: Message) -> Result<(), Stop> {
        match ChunkMessage::parse(message.headers.as_ref(), message.payload.clone()) {
            Ok(message) => {
                let usable = self.order.push(message, self.last_message);
                self.assemble(usable).await
            }
            Err(reason) => {
                if !std::mem::replace(&mut self.has_logged_invalid, true) {
                    tracing::warn!("ignored a message on {}: {reason}", message.subject);
                }
                Ok(())
            }
        }
    }

    /// Handles messages that are in order: passes their new chunks to the aggregator.
    async fn assemble(&mut self, messages: Vec<ChunkMessage>) -> Result<(), Stop> {
        for message in messages {
            let assembled = self.assembler.push(&message);
            if let Ok(Assembled { lost_messages: lost @ 1.., .. }) = assembled {
                tracing::warn!("the broker lacks {lost} messages of {} before number {}", self.process, message.number);
            }
            match assembled {
                Ok(assembled) if assembled.has_ended => {
                    self.with_connection(|mut connection| connection.end()).await;
                    return Err(Stop::AtEnd);
                }
                Ok(assembled) => self.deliver(assembled).await?,
                Err(error) => {
                    tracing::warn!("disconnected {}: {error}", self.process);
                    return Err(Stop::Refused(error.to_string()));
                }
            }
        }
        Ok(())
    }

    /// Passes new chunks to the aggregator. Waits while too many of the process's events wait for
    /// those of others.
    async fn deliver(&mut self, new: Assembled) -> Result<(), Stop> {
        if new.bytes.is_empty() {
            return Ok(());
        }
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connection = self.join().await?;
                let resume = connection.resume();
                let was_connected = std::mem::replace(&mut self.was_connected, true);
                if was_connected && resume == 0 {
                    // The aggregator has forgotten the process, so its events continue at the next
                    // start.
                    (self.was_connected, self.has_device) = (false, false);
                    self.assembler = Assembler::new();
                    return Ok(());
                }
                if !was_connected && resume > 0 {
                    // The process was read before, so chunks that the aggregator has are left out.
                    self.assembler.restart_from(resume);
                    self.connection = Some(connection);
                    return Ok(());
                }
                connection
            }
        };
        let has_device = self.has_device;
        let pushed = blocking(connection, move |mut connection| {
            connection.push(&new.bytes, new.next).map_err(Stop::Refused)?;
            let device = if has_device { None } else { connection.devices().first().copied() };
            Ok((connection, device))
        });
        let (connection, device) = pushed.await.ok_or_else(panicked)??;
        self.connection = Some(connection);
        if let Some(device) = device {
            self.has_device = true;
            self.observer.set_device(device);
        }
        Ok(())
    }

    /// Connects the process to the aggregator.
    async fn join(&self) -> Result<ProcessConnection, Stop> {
        let joined = blocking((self.aggregator.clone(), self.process.clone()), |(aggregator, process)| {
            aggregator.join(process.clone()).map_err(|error| {
                tracing::warn!("refused {process}: {error}");
                let reason = error.to_string();
                if error == JoinError::Full { Stop::NoPlace(reason) } else { Stop::Refused(reason) }
            })
        });
        joined.await.ok_or_else(panicked)?
    }

    /// Takes the connection to the aggregator, if there is one, and passes it to `act`.
    async fn with_connection(&mut self, act: impl FnOnce(ProcessConnection) + Send + 'static) {
        if let Some(connection) = self.connection.take() {
            blocking(connection, act).await;
        }
    }
}

/// Returns the reason [`Stop::Refused`] for a panic of the aggregator, which the panic hook has
/// already reported.
fn panicked() -> Stop {
    Stop::Refused("internal error in the aggregator; see the server's output".to_owned())
}

/// Runs `act` on a blocking thread, because the aggregator's lock may be held for long. Returns
/// `None` after a panic, which the panic hook has already reported.
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
