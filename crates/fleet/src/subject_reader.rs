//! Reads a stream's messages in order and each exactly once, even if the connection is lost.

use std::time::{Duration, Instant};

use async_nats::datetime::DateTime;
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use futures_util::StreamExt;
use tokio::task::JoinHandle;

use crate::connection::{Connection, describe};

/// Delay before another attempt after the broker refused a request or ended a consumer.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Interval of the broker's heartbeats while a consumer has no messages. After two missed
/// heartbeats, the consumer is created again.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long the broker keeps a request for messages before the reader must repeat it.
const REQUEST_EXPIRY: Duration = Duration::from_secs(10);
/// Time after which the broker removes a consumer without a reader.
const INACTIVE_THRESHOLD: Duration = Duration::from_secs(30);
/// Maximum number of messages that the broker sends before the reader takes them.
const MAX_AHEAD_MESSAGES: usize = 256;
/// Maximum number of bytes that the broker sends before the reader takes them; more than the
/// largest message has.
const MAX_AHEAD_BYTES: usize = 8 << 20;

/// A task that creates a consumer.
type CreatingConsumer = JoinHandle<Result<CreatedConsumer, String>>;

/// A new consumer: its messages, the number of messages that are stored for it, and when the broker
/// created the stream.
type CreatedConsumer = (pull::Stream, u64, DateTime);

/// A JetStream consumer at the broker, which delivers messages to the reader.
struct Consumer {
    messages: pull::Stream,
    /// Number of messages that the consumer has delivered.
    delivered: u64,
    /// Number of stored messages that were still to be delivered after the last message.
    #[cfg_attr(not(feature = "archive"), allow(dead_code))]
    pending: u64,
    /// When the consumer began to deliver.
    since: Instant,
}

/// A read position in a stream, for the messages of some subjects.
///
/// The broker keeps only a consumer in memory for it, which is created again whenever it is lost.
/// The reader itself keeps the sequence number of the last message, so no message is read twice.
pub(crate) struct SubjectReader {
    connection: Connection,
    stream: String,
    filter: String,
    /// Where the next consumer begins.
    position: DeliverPolicy,
    /// When the broker created the stream that `position` refers to.
    stream_created: Option<DateTime>,
    /// The task that creates the next consumer. It is a separate task so that dropping the future
    /// of [`next`](Self::next) does not cancel it.
    creating: Option<CreatingConsumer>,
    /// The consumer; `None` until it is created and while reading is paused.
    consumer: Option<Consumer>,
    /// True from a logged failure until the next message.
    has_logged_failure: bool,
}

impl SubjectReader {
    /// Creates a reader of the messages in `stream` on subjects that match `filter`, from
    /// `position` on.
    pub(crate) fn new(connection: Connection, stream: String, filter: String, position: DeliverPolicy) -> Self {
        let (stream_created, creating, consumer) = (None, None, None);
        Self { connection, stream, filter, position, stream_created, creating, consumer, has_logged_failure: false }
    }

    /// Stops receiving messages until the next call of [`next`](Self::next).
    pub(crate) fn pause(&mut self) {
        self.consumer = None;
        if let Some(creating) = self.creating.take() {
            creating.abort();
        }
    }

    /// Returns since when the broker has delivered messages or heartbeats without interruption;
    /// `None` while it does not deliver.
    pub(crate) fn receiving_since(&self) -> Option<Instant> {
        self.consumer.as_ref().map(|consumer| consumer.since)
    }

    /// Returns true if the reader had read all stored messages at the last message, or at the
    /// creation of the consumer.
    #[cfg(feature = "archive")]
    pub(crate) fn has_read_all(&self) -> bool {
        self.consumer.as_ref().is_some_and(|consumer| consumer.pending == 0)
    }

    /// Waits for the next message. Waits longer if the broker cannot be reached, and logs why.
    ///
    /// The future can be dropped without losing messages: the next call continues.
    pub(crate) async fn next(&mut self) -> Message {
        loop {
            match self.try_next().await {
                Ok(message) => {
                    self.has_logged_failure = false;
                    return message;
                }
                Err(reason) => {
                    self.pause();
                    if !std::mem::replace(&mut self.has_logged_failure, true) {
                        tracing::warn!("cannot read {}: {reason}; trying again", self.filter);
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Creates a consumer at the position, or continues to create one.
    async fn create_consumer(&mut self) -> Result<Consumer, String> {
        let creating = self.creating.get_or_insert_with(|| {
            let (stream, filter) = (self.stream.clone(), self.filter.clone());
            let connection = self.connection.clone();
            tokio::spawn(create_consumer(connection, stream, filter, self.position, self.stream_created))
        });
        let created = creating.await;
        self.creating = None;
        let (messages, pending, created) = created.map_err(|error| error.to_string())??;
        if self.stream_created.replace(created).is_some_and(|known| known != created) {
            tracing::warn!("the broker has lost the stream {}; reading what it has stored since", self.stream);
            self.position = DeliverPolicy::All;
        }
        Ok(Consumer { messages, delivered: 0, pending, since: Instant::now() })
    }

    /// Returns the next message; fails if the consumer is lost or cannot be created.
    async fn try_next(&mut self) -> Result<Message, String> {
        let consumer = match &mut self.consumer {
            Some(consumer) => consumer,
            None => {
                let consumer = self.create_consumer().await?;
                self.consumer.insert(consumer)
            }
        };
        let message = consumer.messages.next().await.ok_or("the broker ended the consumer")?;
        let message = message.map_err(|error| describe(&error))?;
        let info = message.info().map_err(|error| error.to_string())?;
        consumer.delivered += 1;
        consumer.pending = info.pending;
        if info.consumer_sequence != consumer.delivered {
            return Err("messages were lost on the way".to_owned());
        }
        self.position = DeliverPolicy::ByStartSequence { start_sequence: info.stream_sequence + 1 };
        Ok(message)
    }
}

/// Creates a consumer at `position`. If the broker did not create the stream at `known_created`,
/// because it lost its store and the stream was created again, the consumer begins at the first
/// message.
async fn create_consumer(
    connection: Connection,
    stream: String,
    filter: String,
    position: DeliverPolicy,
    known_created: Option<DateTime>,
) -> Result<CreatedConsumer, String> {
    let stream = connection.jetstream.get_stream(&stream).await.map_err(|error| describe(&error))?;
    let created = stream.cached_info().created;
    let is_new = known_created.is_some_and(|known| known != created);
    let config = pull::Config {
        // A named consumer is created by a request whose subject contains the filter, so the
        // broker's permissions can limit the filter.
        name: Some(format!("{:016x}", fastrand::u64(..))),
        deliver_policy: if is_new { DeliverPolicy::All } else { position },
        ack_policy: AckPolicy::None,
        filter_subject: filter,
        inactive_threshold: INACTIVE_THRESHOLD,
        memory_storage: true,
        num_replicas: 1,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await.map_err(|error| describe(&error))?;
    let pending = consumer.cached_info().num_pending;
    let messages = consumer.stream().heartbeat(HEARTBEAT).expires(REQUEST_EXPIRY);
    let messages = messages.max_messages_per_batch(MAX_AHEAD_MESSAGES).max_bytes_per_batch(MAX_AHEAD_BYTES);
    Ok((messages.messages().await.map_err(|error| describe(&error))?, pending, created))
}
