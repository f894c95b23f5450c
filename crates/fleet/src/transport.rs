//! Pushes a process's recording to a broker.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use futures_util::StreamExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vramscope_collector::{Demand, Hub, Process, PushMessage, Transport, ViewFrom};
use vramscope_trace::ChunkKind;

use crate::address::{FleetAddress, PushMode};
use crate::connection::{Connection, FleetError, describe};
use crate::control::EventRequest;
use crate::message::ChunkMessage;
use crate::process_record::{Details, ProcessRecord};
use crate::record_publisher::RecordPublisher;
use crate::runtime::BackgroundRuntime;
use crate::{subjects, summaries, unix_time};

/// Maximum time to wait for a lost connection to be restored; then the attempt fails.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time for the broker to acknowledge messages that are sent again; then the attempt fails.
const RESEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that the end of a process waits for its last summary to be sent.
const LAST_SUMMARY_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of bytes of the broker's message limit that are reserved for headers and subject.
const HEADER_BYTES: usize = 4 << 10;
/// Maximum size of a message's payload, in bytes. A broker's limit is usually 1 MiB; with smaller
/// messages, many processes share a connection more evenly.
const MAX_PAYLOAD_BYTES: usize = 256 << 10;

/// Number of bytes sent since the last start at which another start is due, as a multiple of the
/// start's size. Readers then find a start nearby, and starts take at most an eighth of the
/// traffic.
const START_SHARE: u64 = 8;
/// Minimum number of bytes between two starts that [`START_SHARE`] causes.
const MIN_START_DISTANCE: u64 = 1 << 20;
/// Age of the last start after which another is sent if any events followed it, so that readers of
/// the last minutes find a start nearby.
const START_AGE: Duration = Duration::from_secs(60);
/// Minimum time between two starts that are sent at a server's request. A start is what a reader
/// needs first: the header, all definitions and the memory state, which can be large.
const MIN_START_AGE: Duration = Duration::from_secs(5);
/// Age of the last start after which another is always sent, so that the broker never drops the
/// only one. Much shorter than the hour for which a broker stores events by default.
const MAX_START_AGE: Duration = Duration::from_secs(20 * 60);

/// Size of the history, in bytes, with which a process's events begin when a server requests them:
/// some hundred thousand events, which a page shows at once.
const DEMANDED_HISTORY_BYTES: u64 = 4 << 20;

/// A message that the broker has not acknowledged.
struct Outgoing {
    message: ChunkMessage,
    /// The task that waits for the acknowledgement and returns the message's sequence number in the
    /// broker's stream.
    acknowledgement: JoinHandle<Result<u64, String>>,
}

/// Bytes and age of the newest start, which decide when the next one is due.
struct StartDistance {
    sent_at: Instant,
    /// Bytes of the start itself: header, definitions, full state.
    start_bytes: u64,
    /// True until the first events after the start.
    is_in_start: bool,
    /// Bytes of events sent since the start.
    bytes: u64,
}

impl StartDistance {
    fn new() -> Self {
        Self { sent_at: Instant::now(), start_bytes: 0, is_in_start: true, bytes: 0 }
    }

    /// Counts the bytes of chunks that are sent.
    fn add(&mut self, message: &PushMessage<'_>) {
        for chunk in message.chunks {
            self.is_in_start &= !matches!(chunk.kind, ChunkKind::Events | ChunkKind::Annotations);
            let bytes = if self.is_in_start { &mut self.start_bytes } else { &mut self.bytes };
            *bytes += chunk.bytes.len() as u64;
        }
    }

    /// Returns true if another start is due.
    fn is_due(&self) -> bool {
        let age = self.sent_at.elapsed();
        age >= MAX_START_AGE
            || (age >= START_AGE && self.bytes > self.start_bytes)
            || self.bytes > MIN_START_DISTANCE + START_SHARE * self.start_bytes
    }
}

/// The requests of servers for this process's events: until when they are valid, and whether a
/// start is wanted.
#[derive(Clone)]
struct Lease {
    origin: Instant,
    /// When the last request expires, in milliseconds since `origin`.
    until_ms: Arc<AtomicU64>,
    /// True if a server has requested a start.
    wants_start: Arc<AtomicBool>,
}

impl Lease {
    fn new() -> Self {
        Self { origin: Instant::now(), until_ms: Arc::default(), wants_start: Arc::default() }
    }

    /// Extends the lease by a server's request.
    fn extend(&self, request: EventRequest) {
        let until = self.origin.elapsed() + request.lease;
        self.until_ms.fetch_max(until.as_millis() as u64, Ordering::Relaxed);
        self.wants_start.fetch_or(request.wants_start, Ordering::Relaxed);
    }

    /// Returns true while at least one request for events has not expired.
    fn is_valid(&self) -> bool {
        (self.origin.elapsed().as_millis() as u64) < self.until_ms.load(Ordering::Relaxed)
    }
}

/// A [`Transport`] to a NATS broker.
///
/// Messages that the broker has not acknowledged are kept and sent again after a lost connection,
/// with unchanged numbers, by which the broker and the readers recognize repetitions.
pub(crate) struct NatsTransport {
    address: FleetAddress,
    runtime: BackgroundRuntime,
    connection: Option<Connection>,
    record: RecordPublisher,
    /// The identity of the process.
    identity: String,
    /// Subject of the events.
    subject: String,
    /// The number of the next message.
    next_number: u64,
    /// The number of the chunk after the last one sent.
    sent_next: u64,
    unacknowledged: VecDeque<Outgoing>,
    start: StartDistance,
    lease: Lease,
    /// The task that receives requests for events; it ends with the connection.
    control: Option<JoinHandle<()>>,
    hub: Hub,
    summaries: Option<SummaryTask>,
}

/// The task that sends summaries.
struct SummaryTask {
    task: JoinHandle<()>,
    /// Signals the task to send a last summary and end.
    end: oneshot::Sender<()>,
}

impl NatsTransport {
    /// Creates a transport that is not connected.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub(crate) fn new(address: FleetAddress, hub: &Hub) -> io::Result<Self> {
        let runtime = BackgroundRuntime::new("vramscope-nats")?;
        let record = RecordPublisher::new(address.run(), ProcessRecord::default());
        Ok(Self {
            address,
            runtime,
            connection: None,
            record,
            identity: String::new(),
            subject: String::new(),
            next_number: 0,
            sent_next: 0,
            unacknowledged: VecDeque::new(),
            start: StartDistance::new(),
            lease: Lease::new(),
            control: None,
            hub: hub.clone(),
            summaries: None,
        })
    }

    /// Returns the connection once it is established. Connects if there is no connection yet.
    fn established(&mut self) -> Result<Connection, String> {
        let connection = match &self.connection {
            Some(connection) => connection.clone(),
            None => {
                let opened = self.runtime.block_on(Connection::open(&self.address, "vramscope process"));
                opened.map_err(FleetError::into_reason)?
            }
        };
        self.connection = Some(connection.clone());
        if !self.runtime.block_on(connection.wait_connected(RECONNECT_TIMEOUT)) {
            return Err("the broker cannot be reached".to_owned());
        }
        Ok(connection)
    }

    /// Returns the established connection, or an error if it was lost. Does not connect.
    fn connection(&self) -> Result<&Connection, String> {
        self.connection.as_ref().ok_or_else(|| "not connected".to_owned())
    }

    /// Stores the description of this process at the broker.
    fn publish_record(&self, connection: &Connection) -> Result<(), String> {
        self.runtime.block_on(self.record.publish(connection))
    }

    /// Returns the process whose recording is pushed.
    fn process(&self) -> Process {
        self.record.with(|record| record.process.clone())
    }

    /// Listens to requests for this process's events.
    fn listen(&mut self, connection: &Connection) -> Result<(), String> {
        if let Some(control) = self.control.take() {
            control.abort();
        }
        let process = self.process();
        let subject = subjects::control(self.address.run(), process.rank, &process.identity);
        let lease = self.lease.clone();
        let subscribed = self.runtime.block_on(connection.client.subscribe(subject));
        let mut requests = subscribed.map_err(|error| describe(&error))?;
        let listen = async move {
            while let Some(request) = requests.next().await {
                if let Some(request) = EventRequest::parse(&request.payload) {
                    lease.extend(request);
                }
            }
        };
        self.control = Some(self.runtime.spawn(listen));
        Ok(())
    }

    /// Starts the task that sends summaries, unless it is already running.
    fn start_summaries(&mut self, connection: &Connection) {
        if self.summaries.is_none() {
            let (hub, address, record) = (self.hub.clone(), self.address.clone(), self.record.clone());
            let (end, has_ended) = oneshot::channel();
            let send = summaries::send_summaries(hub, address, record, connection.clone(), has_ended);
            self.summaries = Some(SummaryTask { task: self.runtime.spawn(send), end });
        }
    }

    /// Gives a message the next number, sends it, and keeps it until it is acknowledged.
    fn publish(&mut self, message: ChunkMessage) -> Result<(), String> {
        let connection = self.connection()?.clone();
        let stored = self.unacknowledged.front().map_or(self.next_number, |oldest| oldest.message.number);
        let message = ChunkMessage { number: self.next_number, stored, ..message };
        self.next_number += 1;
        let acknowledgement = self.start_publish(&connection, &message);
        self.unacknowledged.push_back(Outgoing { message, acknowledgement });
        Ok(())
    }

    /// Sends a message and returns its acknowledgement, which arrives later.
    fn start_publish(&self, connection: &Connection, message: &ChunkMessage) -> JoinHandle<Result<u64, String>> {
        let subject = self.subject.clone();
        let (headers, payload) = (message.headers(&self.identity), message.payload.clone());
        // The message is sent before this function returns, so that messages keep their order.
        let sent = self.runtime.block_on(connection.jetstream.publish_with_headers(subject, headers, payload));
        self.runtime.spawn(async move {
            let acknowledgement = sent.map_err(|error| describe(&error))?.await;
            acknowledgement.map(|stored| stored.sequence).map_err(|error| describe(&error))
        })
    }

    /// Sends all unacknowledged messages again and waits until the broker has them.
    fn resend(&mut self, connection: &Connection) -> Result<(), String> {
        let outgoing: Vec<_> = self.unacknowledged.drain(..).collect();
        for Outgoing { message, acknowledgement } in outgoing {
            acknowledgement.abort();
            let acknowledgement = self.start_publish(connection, &message);
            self.unacknowledged.push_back(Outgoing { message, acknowledgement });
        }
        self.receive_all("what is sent again")
    }

    /// Waits until the broker has acknowledged all messages. `what` describes the messages in the
    /// error if this takes too long.
    fn receive_all(&mut self, what: &str) -> Result<(), String> {
        let deadline = Instant::now() + RESEND_TIMEOUT;
        while !self.unacknowledged.is_empty() {
            let received = self.receive_one(deadline.saturating_duration_since(Instant::now()))?;
            received.ok_or_else(|| format!("the broker does not acknowledge {what}"))?;
        }
        Ok(())
    }

    /// Waits for the acknowledgement of the oldest message. Returns `None` if it does not arrive
    /// within `timeout`.
    fn receive_one(&mut self, timeout: Duration) -> Result<Option<ChunkMessage>, String> {
        let Some(oldest) = self.unacknowledged.front_mut() else { return Ok(None) };
        let waiting = async { tokio::time::timeout(timeout, &mut oldest.acknowledgement).await };
        let Ok(acknowledged) = self.runtime.block_on(waiting) else { return Ok(None) };
        let sequence = acknowledged.map_err(|_| "the connection to the broker has ended".to_owned())??;
        let Some(oldest) = self.unacknowledged.pop_front() else { return Ok(None) };
        // The fault run reads this field: tests/src/fleet/rank_process.rs.
        tracing::trace!(acknowledged_messages = oldest.message.number + 1, "the broker has stored a message");
        if oldest.message.is_start {
            self.record.with(|record| {
                let details = &mut record.details;
                (details.start_sequence, details.start_unix_ms) = (sequence, unix_time::now_ms());
            });
            let connection = self.connection()?.clone();
            self.publish_record(&connection)?;
        }
        Ok(Some(oldest.message))
    }
}

impl Transport for NatsTransport {
    fn connect(&mut self, process: &Process) -> Result<u64, String> {
        if self.identity != process.identity {
            let record = ProcessRecord { process: process.clone(), details: Details::new(self.address.mode) };
            self.record = RecordPublisher::new(self.address.run(), record);
            self.identity.clone_from(&process.identity);
            self.subject = subjects::events(self.address.run(), process.rank, &process.identity);
            self.unacknowledged.clear();
            (self.next_number, self.sent_next) = (0, 0);
            if let Some(summaries) = self.summaries.take() {
                summaries.task.abort();
            }
        }
        let connection = self.established()?;
        // The process must be ready for requests first: a server that reads the description may
        // request events at once.
        self.listen(&connection)?;
        self.publish_record(&connection)?;
        self.start_summaries(&connection);
        self.resend(&connection)?;
        Ok(self.sent_next)
    }

    fn send(&mut self, message: PushMessage<'_>) -> Result<(), String> {
        let connection = self.connection()?;
        let limit = connection.client.max_payload().saturating_sub(HEADER_BYTES).clamp(1, MAX_PAYLOAD_BYTES);
        if message.is_start {
            self.start = StartDistance::new();
        }
        self.start.add(&message);
        let mut bytes = BytesMut::with_capacity(message.chunks.iter().map(|chunk| chunk.bytes.len()).sum());
        message.chunks.iter().for_each(|chunk| bytes.extend_from_slice(&chunk.bytes));
        let mut bytes = bytes.freeze();
        let mut part = ChunkMessage {
            next: message.next,
            missed_events: message.missed_events,
            is_start: message.is_start,
            ..ChunkMessage::default()
        };
        self.sent_next = message.next;
        loop {
            part.payload = bytes.split_to(bytes.len().min(limit));
            part.continues = !bytes.is_empty();
            self.publish(part.clone())?;
            if bytes.is_empty() {
                return Ok(());
            }
            (part.is_start, part.missed_events) = (false, 0);
        }
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<u64>, String> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.receive_one(deadline.saturating_duration_since(Instant::now()))? {
                Some(message) if message.continues => {}
                received => return Ok(received.map(|message| message.next)),
            }
        }
    }

    fn finish(&mut self) -> Result<(), String> {
        if let Some(SummaryTask { mut task, end }) = self.summaries.take() {
            // The last summary is sent before the message that ends the recording, so that it has
            // arrived once that message is acknowledged.
            let _ = end.send(());
            let sent = async { tokio::time::timeout(LAST_SUMMARY_TIMEOUT, &mut task).await };
            if self.runtime.block_on(sent).is_err() {
                task.abort();
            }
        }
        self.publish(ChunkMessage { next: self.sent_next, is_end: true, ..ChunkMessage::default() })?;
        self.receive_all("the recording's end")?;
        self.record.with(|record| record.details.has_ended = true);
        let connection = self.connection()?.clone();
        self.publish_record(&connection)
    }

    fn close(&mut self) {
        // The connection is kept, because it reconnects by itself.
    }

    fn begin(&self) -> ViewFrom {
        // Does not begin with the file, because the broker stores only the newest part.
        match self.address.mode {
            PushMode::All => ViewFrom::Recent(u64::MAX),
            PushMode::OnDemand => ViewFrom::Recent(DEMANDED_HISTORY_BYTES),
        }
    }

    fn demand(&mut self) -> Demand {
        if self.address.mode == PushMode::OnDemand && !self.lease.is_valid() {
            return Demand::Nothing;
        }
        // Not sent at once, because one start can serve the requests of several servers.
        let is_wanted =
            self.start.sent_at.elapsed() >= MIN_START_AGE && self.lease.wants_start.swap(false, Ordering::Relaxed);
        if !is_wanted && !self.start.is_due() {
            return Demand::Next;
        }
        // Reset now, because the start itself may take several messages.
        self.start = StartDistance::new();
        Demand::Start
    }
}
