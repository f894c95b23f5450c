//! Makes and sends the summaries of a process, ten times a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::connection::State;
use async_nats::jetstream::context::PublishErrorKind;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
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
use crate::{subjects, unix_time};

/// Interval between two summaries.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
/// The least time between two attempts to restore the run's streams.
const RESTORE_INTERVAL: Duration = Duration::from_secs(2);
/// The version of the encoding: the first byte of a message.
const VERSION: u8 = 1;
/// The most sites of a device in a summary.
const MAX_SITES: usize = 4;
/// The name of a site is sent again after this many summaries, ten seconds, for servers that come
/// later.
const NAME_INTERVAL: u64 = 100;
/// The longest name of a site or mark in a summary, in characters.
const MAX_NAME_CHARS: usize = 80;
/// The most devices of a process, names in a summary and sites of a device that a reader accepts.
const MAX_ITEMS: usize = 64;
/// The most processes in one message: those of one machine.
pub(crate) const MAX_BATCH: usize = 64;

/// The summaries in one message: those of the sender, or of all processes of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SummaryBatch {
    /// The identity of each process's recording, which is empty for the sender's own, and its
    /// summary.
    pub(crate) summaries: Vec<(String, Summary)>,
}

impl SummaryBatch {
    /// Encodes the batch: a version byte and the fields in postcard's format.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    /// Decodes a batch.
    ///
    /// # Errors
    /// If the bytes are of another version, damaged, or exceed a limit.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (version, rest) = bytes.split_first().ok_or("the message is empty")?;
        if *version != VERSION {
            return Err(format!("summaries of version {version}; this vramscope reads version {VERSION}"));
        }
        let batch: Self = postcard::from_bytes(rest).map_err(|error| format!("damaged summaries: {error}"))?;
        let is_small = |summary: &Summary| {
            summary.devices.len() <= MAX_ITEMS
                && summary.names.len() <= MAX_ITEMS
                && summary.devices.iter().all(|device| device.sites.len() <= MAX_ITEMS)
                && summary.names.iter().all(|(_, name)| name.chars().count() <= MAX_NAME_CHARS)
                && summary.mark.chars().count() <= MAX_NAME_CHARS
        };
        if batch.summaries.len() > MAX_BATCH || !batch.summaries.iter().all(|(_, summary)| is_small(summary)) {
            return Err("the summaries exceed a limit".to_owned());
        }
        Ok(batch)
    }
}

/// Makes the summaries of a process from its hub.
#[derive(Debug)]
struct Summarizer {
    hub: Hub,
    _watch: FiguresWatch,
    decoder: Decoder,
    definitions: Definitions,
    /// The chunk with which reading definitions continues.
    next_chunk: u64,
    number: u64,
    /// When each site's name was sent last, by the number of the summary.
    sent_names: BTreeMap<SiteId, u64>,
}

impl Summarizer {
    /// Creates the summaries of the hub's recording.
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

    /// Returns the next summary, at `time_unix_ns`.
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
        // The hub's own chunks are valid; names would be missing otherwise.
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

/// Sends batches of summaries on the subject of one process, and knows which were acknowledged.
#[derive(Debug)]
pub(crate) struct SummarySender {
    connection: Connection,
    subject: String,
    identity: String,
    /// The newest acknowledgement, from the tasks that wait for them.
    newest: Arc<Mutex<Option<Acknowledged>>>,
    /// True if the broker has no stream for the newest batch.
    is_stream_missing: Arc<AtomicBool>,
}

impl SummarySender {
    /// Creates a sender for a process of the run.
    pub(crate) fn new(connection: Connection, run: &str, process: &Process) -> Self {
        let subject = subjects::summaries(run, process.rank, &process.identity);
        let identity = process.identity.clone();
        Self { connection, subject, identity, newest: Arc::default(), is_stream_missing: Arc::default() }
    }

    /// Returns true if the broker had no stream for a batch since the last call.
    fn take_stream_missing(&self) -> bool {
        self.is_stream_missing.swap(false, Ordering::Relaxed)
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
                Err(_) => {}
            }
        });
        true
    }
}

/// Sends summaries until the task is aborted. While the broker cannot be reached, they are left
/// out; their numbers show how many. Restores the run's streams, and the description `record`, if
/// the broker has lost its store.
///
/// One process of a machine sends the summaries of all.
pub(crate) async fn send_summaries(hub: Hub, address: FleetAddress, record: RecordPublisher, connection: Connection) {
    let process = record.with(|record| record.process.clone());
    let sender = SummarySender::new(connection.clone(), address.run(), &process);
    #[cfg(target_os = "linux")]
    let mut exchange = HostExchange::new(&address);
    let mut restored_at = Instant::now();
    let mut summarizer = Summarizer::new(&hub);
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        let summary = summarizer.summarize(unix_time::now_ns(), sender.acknowledged());
        let number = summary.number;
        #[cfg(target_os = "linux")]
        let summaries = match &mut exchange {
            Some(exchange) => exchange.exchange(&process.identity, summary),
            None => vec![(String::new(), summary)],
        };
        #[cfg(not(target_os = "linux"))]
        let summaries = vec![(String::new(), summary)];
        if !summaries.is_empty() {
            sender.send(number, &SummaryBatch { summaries }).await;
        }
        if sender.take_stream_missing() && restored_at.elapsed() >= RESTORE_INTERVAL {
            restored_at = Instant::now();
            let (record, connection) = (record.clone(), connection.clone());
            // Repeated at the next missing stream if it fails.
            tokio::spawn(async move { record.publish(&connection).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_small_and_survive_their_encoding() {
        let device = DeviceSummary {
            allocated: 61_234_567_890,
            reserved: 70_234_567_890,
            active: 61_234_567_890,
            requested: 61_234_000_000,
            free: 9_000_000_000,
            largest_free: 2_000_000_000,
            segments: 1234,
            blocks: 5678,
            sites: vec![(17, 30_000_000_000), (300, 20_000_000_000), (4000, 900_000_000), (5, 800_000_000)],
            ..DeviceSummary::default()
        };
        let summary = Summary {
            number: 36_000,
            time_unix_ns: 1_800_000_000_000_000_000,
            events: 123_456_789,
            step: Some(1234),
            mark: "forward".to_owned(),
            devices: vec![device],
            acknowledged: Some(Acknowledged { number: 35_999, time_unix_ns: 1_800_000_000_000_000_000 }),
            ..Summary::default()
        };
        let batch = SummaryBatch { summaries: vec![(String::new(), summary)] };
        let bytes = batch.to_bytes();
        assert!(bytes.len() < 150, "{} bytes", bytes.len());
        assert_eq!(SummaryBatch::parse(&bytes), Ok(batch));
    }

    #[test]
    fn damaged_and_large_summaries_are_refused() {
        let with = |change: fn(&mut Summary)| {
            let mut summary = Summary::default();
            change(&mut summary);
            SummaryBatch { summaries: vec![(String::new(), summary)] }.to_bytes()
        };
        assert!(SummaryBatch::parse(&with(|_| {})).is_ok());
        let large: [fn(&mut Summary); 4] = [
            |summary| summary.devices = vec![DeviceSummary::default(); MAX_ITEMS + 1],
            |summary| summary.names = vec![(0, String::new()); MAX_ITEMS + 1],
            |summary| summary.names = vec![(0, "n".repeat(MAX_NAME_CHARS + 1))],
            |summary| summary.mark = "m".repeat(MAX_NAME_CHARS + 1),
        ];
        for change in large {
            assert_eq!(SummaryBatch::parse(&with(change)), Err("the summaries exceed a limit".to_owned()));
        }
        let many = SummaryBatch { summaries: vec![Default::default(); MAX_BATCH + 1] };
        assert!(SummaryBatch::parse(&many.to_bytes()).is_err());
        // A length that no message has takes no memory.
        for bytes in [&[][..], &[2], &[VERSION], &[VERSION, 0xff, 0xff, 0xff, 0xff, 0x0f], &[VERSION, 1, 0xff]] {
            assert!(SummaryBatch::parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
