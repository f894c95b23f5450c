//! Creates and sends the summaries of a process, ten times a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::jetstream::context::PublishErrorKind;
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;
use vramscope_collector::{DeviceFigures, FiguresWatch, Hub, Process};
use vramscope_insight::fleet::{Acknowledged, DeviceSummary, Summary};
use vramscope_insight::steps::current_step;
use vramscope_trace::{DecodedItem, Decoder, Definitions, SiteId, site_name};

use crate::address::FleetAddress;
use crate::connection::Connection;
#[cfg(target_os = "linux")]
use crate::host_exchange::HostExchange;
use crate::record_publisher::RecordPublisher;
use crate::summary_batch::{MAX_ITEMS, MAX_NAME_CHARS, SummaryBatch};
use crate::{subjects, unix_time};

/// Interval between two summaries.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between two attempts to restore the run's streams.
const RESTORE_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of sites of a device in a summary; only the largest are sent.
const MAX_SITES: usize = 4;
/// Number of summaries (10 seconds) after which the name of a site is sent again, for servers that
/// start later.
const NAME_INTERVAL: u64 = 100;
/// Creates the summaries of a process from the figures and definitions in its hub.
#[derive(Debug)]
struct Summarizer {
    hub: Hub,
    _watch: FiguresWatch,
    decoder: Decoder,
    definitions: Definitions,
    /// Number of the chunk at which reading definitions continues.
    next_chunk: u64,
    number: u64,
    /// For each site, the number of the summary in which its name was last sent.
    sent_names: BTreeMap<SiteId, u64>,
}

impl Summarizer {
    /// Starts to create summaries of the hub's recording.
    fn new(hub: &Hub) -> Self {
        Self {
            _watch: hub.watch_figures(),
            hub: hub.clone(),
            decoder: Decoder::new(),
            definitions: Definitions::default(),
            next_chunk: 0,
            number: 0,
            sent_names: BTreeMap::new(),
        }
    }

    /// Returns the next summary, of the time `time_unix_ns` (nanoseconds since 1970).
    /// `acknowledged` is the newest acknowledgement of the broker, if any.
    fn summarize(&mut self, time_unix_ns: u64, acknowledged: Option<Acknowledged>) -> Summary {
        self.read_definitions();
        let figures = self.hub.figures();
        let number = self.number;
        self.number += 1;
        let marks = figures.marks.iter().map(|mark| (self.definitions.string(mark.name), mark.count));
        let step = current_step(marks);
        let mark = figures.marks.first().map_or("", |mark| self.definitions.string(mark.name));
        let mark = mark.chars().take(MAX_NAME_CHARS).collect();
        let devices: Vec<DeviceSummary> = figures.devices.iter().map(device_summary).collect();
        let sites = devices.iter().flat_map(|device| device.sites.iter().map(|(site, _)| SiteId(*site)));
        let mut names = Vec::new();
        for site in sites {
            let is_due = self.sent_names.get(&site).is_none_or(|sent| sent + NAME_INTERVAL <= number);
            if is_due && names.len() < MAX_ITEMS {
                self.sent_names.insert(site, number);
                let name = site_name(&self.definitions, site);
                names.push((site.0, name.chars().take(MAX_NAME_CHARS).collect()));
            }
        }
        let (events, lost_events) = (figures.events, figures.lost_events);
        Summary { number, time_unix_ns, events, lost_events, step, mark, devices, names, acknowledged }
    }

    /// Reads the definitions that were recorded since the last call.
    fn read_definitions(&mut self) {
        let (chunks, next) = self.hub.definitions_from(self.next_chunk);
        self.next_chunk = next;
        chunks.iter().for_each(|chunk| self.decoder.push(&chunk.bytes));
        // Errors are ignored: the hub's chunks are valid, and otherwise only names would be
        // missing.
        while let Ok(Some(item)) = self.decoder.next_item() {
            if let DecodedItem::Define(definition) = item {
                self.definitions.define(definition);
            }
        }
    }
}

/// Returns the summary of one device.
fn device_summary(figures: &DeviceFigures) -> DeviceSummary {
    let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    DeviceSummary {
        device: figures.info.device,
        allocated: figures.counters.allocated,
        reserved: figures.counters.reserved,
        active: figures.counters.active,
        requested: figures.counters.requested,
        free: figures.free_space.total,
        largest_free: figures.free_space.largest,
        segments: count(figures.segments),
        blocks: count(figures.blocks),
        ooms: count(figures.out_of_memory),
        sites: figures.largest_sites.iter().take(MAX_SITES).map(|site| (site.site.0, site.bytes)).collect(),
    }
}

/// A sender of summary batches on the subject of one process, which also keeps the broker's newest
/// acknowledgement.
#[derive(Debug)]
pub(crate) struct SummarySender {
    connection: Connection,
    subject: String,
    identity: String,
    /// The newest acknowledgement, stored by the tasks that wait for acknowledgements.
    newest: Arc<Mutex<Option<Acknowledged>>>,
    /// True if the broker has no stream for the newest batch.
    is_stream_missing: Arc<AtomicBool>,
    /// True if the broker did not acknowledge a batch for a reason other than a missing stream.
    has_failed: Arc<AtomicBool>,
}

impl SummarySender {
    /// Creates a sender for a process of the run.
    pub(crate) fn new(connection: Connection, run: &str, process: &Process) -> Self {
        let subject = subjects::summaries(run, process.rank, &process.identity);
        let identity = process.identity.clone();
        let (newest, is_stream_missing, has_failed) = Default::default();
        Self { connection, subject, identity, newest, is_stream_missing, has_failed }
    }

    /// Returns true if the broker had no stream for a batch since the last call.
    fn take_stream_missing(&self) -> bool {
        self.is_stream_missing.swap(false, Ordering::Relaxed)
    }

    /// Returns true if the broker has refused or not answered a batch since the last call.
    fn take_failed(&self) -> bool {
        self.has_failed.swap(false, Ordering::Relaxed)
    }

    /// Returns when the newest acknowledged batch was acknowledged.
    pub(crate) fn acknowledged(&self) -> Option<Acknowledged> {
        *self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the batch with this number. Returns false, and sends nothing, while the broker cannot
    /// be reached.
    pub(crate) async fn send(&self, number: u64, batch: &SummaryBatch) -> bool {
        if self.connection.client.connection_state() != State::Connected {
            return false;
        }
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", format!("{}-s{number}", self.identity));
        let payload = Bytes::from(batch.to_bytes());
        let sent = self.connection.jetstream.publish_with_headers(self.subject.clone(), headers, payload).await;
        let Ok(acknowledgement) = sent else { return false };
        let (newest, is_stream_missing) = (Arc::clone(&self.newest), Arc::clone(&self.is_stream_missing));
        let has_failed = Arc::clone(&self.has_failed);
        tokio::spawn(async move {
            match acknowledgement.await {
                Ok(_) => {
                    let acknowledged = Acknowledged { number, time_unix_ns: unix_time::now_ns() };
                    let mut newest = newest.lock().unwrap_or_else(PoisonError::into_inner);
                    if newest.is_none_or(|newest| newest.number < number) {
                        *newest = Some(acknowledged);
                    }
                }
                Err(error) if error.kind() == PublishErrorKind::StreamNotFound => {
                    is_stream_missing.store(true, Ordering::Relaxed);
                }
                Err(_) => has_failed.store(true, Ordering::Relaxed),
            }
        });
        true
    }
}

/// Sends summaries until the sender of `end` is used (then also a last summary) or dropped. While
/// the broker cannot be reached, no summaries are sent; their numbers show how many are missing.
/// Restores the run's streams, and the description `record`, if the broker has lost its store.
///
/// One process of a machine sends the summaries of all, and gives up if the broker does not
/// acknowledge them.
pub(crate) async fn send_summaries(
    hub: Hub,
    address: FleetAddress,
    record: RecordPublisher,
    connection: Connection,
    mut end: oneshot::Receiver<()>,
) {
    let process = record.with(|record| record.process.clone());
    let sender = SummarySender::new(connection.clone(), address.run(), &process);
    #[cfg(target_os = "linux")]
    let mut exchange = HostExchange::new(&address);
    let mut restored_at = Instant::now();
    let mut summarizer = Summarizer::new(&hub);
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let has_ended = loop {
        tokio::select! {
            _ = interval.tick() => {}
            ended = &mut end => break ended.is_ok(),
        }
        let summary = summarizer.summarize(unix_time::now_ns(), sender.acknowledged());
        let number = summary.number;
        #[cfg(target_os = "linux")]
        let summaries = match &mut exchange {
            Some(exchange) => exchange.exchange(&process.identity, summary),
            None => vec![(String::new(), summary)],
        };
        #[cfg(not(target_os = "linux"))]
        let summaries = vec![(String::new(), summary)];
        let is_sent = summaries.is_empty() || sender.send(number, &SummaryBatch { summaries }).await;
        if sender.take_failed() || !is_sent {
            #[cfg(target_os = "linux")]
            exchange.iter_mut().for_each(HostExchange::give_up);
        }
        if sender.take_stream_missing() && restored_at.elapsed() >= RESTORE_INTERVAL {
            restored_at = Instant::now();
            let (record, connection) = (record.clone(), connection.clone());
            // If this fails, it is repeated at the next batch for which the stream is missing.
            tokio::spawn(async move { record.publish(&connection).await });
        }
    };
    if has_ended {
        let summary = summarizer.summarize(unix_time::now_ns(), sender.acknowledged());
        let number = summary.number;
        #[cfg(target_os = "linux")]
        let summaries = match exchange {
            Some(exchange) => exchange.end(summary),
            None => vec![(String::new(), summary)],
        };
        #[cfg(not(target_os = "linux"))]
        let summaries = vec![(String::new(), summary)];
        sender.send(number, &SummaryBatch { summaries }).await;
    }
}
