//! Compares what a broker stores with what its processes know that it has stored.

use std::collections::BTreeMap;
use std::fmt;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use async_nats::jetstream::{self, context::Context};
use futures_util::StreamExt;
use vramscope_fleet::{ChunkMessage, FleetAddress, subjects};

/// The messages of a run's processes in the broker's stream of events.
#[derive(Clone, Debug, Default)]
pub(super) struct BrokerAudit {
    /// Messages in the stream, repeated ones included.
    pub(super) messages: u64,
    /// Messages that were stored more than once.
    pub(super) repeated: u64,
    /// What is missing of each process, by subject.
    pub(super) lost: Vec<LostMessages>,
}

/// Messages of a process that the broker acknowledged and does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LostMessages {
    subject: String,
    /// The numbers of the messages, in order.
    numbers: Vec<u64>,
    /// The number below which the broker acknowledged all messages, as the process or a later
    /// message says.
    acknowledged: u64,
}

/// What was read of a process.
#[derive(Clone, Debug, Default)]
struct StoredMessages {
    /// How often each number is stored.
    counts: BTreeMap<u64, u64>,
    /// All lower numbers were acknowledged.
    acknowledged: u64,
}

impl fmt::Display for LostMessages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, numbers, acknowledged } = self;
        let (first, last) = (numbers.first().unwrap_or(&0), numbers.last().unwrap_or(&0));
        write!(
            f,
            "{} acknowledged messages of {subject}, numbers {first} to {last} of {acknowledged}, are not stored",
            numbers.len()
        )
    }
}

impl BrokerAudit {
    /// Reads all events of the run at `url`. `acknowledged` are the numbers of messages that the
    /// broker has acknowledged to each process, by subject.
    ///
    /// # Errors
    /// If the broker cannot be read, or has dropped old messages: the audit needs all of them.
    pub(super) fn read(url: &str, acknowledged: &BTreeMap<String, u64>) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        runtime.block_on(read(url, acknowledged)).map_err(|error| format!("cannot read the broker's events: {error}"))
    }
}

async fn read(url: &str, known: &BTreeMap<String, u64>) -> Result<BrokerAudit, Box<dyn std::error::Error>> {
    let address = FleetAddress::parse(url)?;
    let run = address.run();
    let servers = url.strip_suffix(&format!("/{run}")).unwrap_or(url);
    let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
    let context: Context = jetstream::new(async_nats::connect(servers).await?);
    let mut stream = context.get_stream(subjects::events_stream(run)).await?;
    let state = stream.info().await?.state.clone();
    if state.first_sequence > 1 {
        return Err(
            format!("its first message has number {}: raise the limit of the stream", state.first_sequence).into()
        );
    }
    let config = pull::OrderedConfig { deliver_policy: DeliverPolicy::All, ..pull::OrderedConfig::default() };
    let mut messages = stream.create_consumer(config).await?.messages().await?;
    let known = known.iter().map(|(subject, messages)| {
        (subject.clone(), StoredMessages { acknowledged: *messages, ..StoredMessages::default() })
    });
    let mut processes: BTreeMap<String, StoredMessages> = known.collect();
    let mut audit = BrokerAudit::default();
    while audit.messages < state.messages {
        let message = messages.next().await.ok_or("the consumer has ended")??;
        let chunk = ChunkMessage::parse(message.headers.as_ref(), message.payload.clone())?;
        let process = processes.entry(message.subject.to_string()).or_default();
        *process.counts.entry(chunk.number).or_default() += 1;
        process.acknowledged = process.acknowledged.max(chunk.stored);
        audit.messages += 1;
    }
    for (subject, process) in processes {
        audit.repeated += process.counts.values().map(|count| count - 1).sum::<u64>();
        let numbers: Vec<u64> =
            (0..process.acknowledged).filter(|number| !process.counts.contains_key(number)).collect();
        if !numbers.is_empty() {
            audit.lost.push(LostMessages { subject, numbers, acknowledged: process.acknowledged });
        }
    }
    Ok(audit)
}
