//! Archives summaries, once the descriptions of their processes have arrived.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::descriptions::Descriptions;
use super::writer::ArchiveWriter;
use crate::summary_batch::SummaryBatch;

/// Maximum time that summaries wait for the descriptions of their processes: as long as the rows of
/// a second wait for summaries.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Maximum total size of the waiting messages, in bytes; beyond it, the oldest are dropped and
/// counted.
const MAX_WAITING_BYTES: usize = 16 << 20;

/// A message with summaries of processes whose descriptions may still arrive.
struct EarlyMessage {
    sender: String,
    stored_ns: u64,
    payload: Bytes,
    arrived: Instant,
}

/// A writer of summaries to the archive, which holds them until the descriptions of their processes
/// have arrived.
pub(crate) struct SummaryArchive {
    writer: ArchiveWriter,
    descriptions: Arc<Descriptions>,
    /// Messages that wait for descriptions, in the order of their arrival.
    early: VecDeque<EarlyMessage>,
    early_bytes: usize,
    /// The number of known processes when the waiting messages were last retried.
    known: u64,
}

impl SummaryArchive {
    /// Creates a writer of summaries without waiting messages.
    pub(crate) fn new(writer: ArchiveWriter, descriptions: Arc<Descriptions>) -> Self {
        Self { writer, descriptions, early: VecDeque::new(), early_bytes: 0, known: 0 }
    }

    /// Archives the summaries in a message, or keeps it until their processes are known. The
    /// process with identity `sender` sent the message, and the broker stored it at `stored_ns`, in
    /// nanoseconds since 1970.
    pub(crate) async fn take(&mut self, sender: &str, stored_ns: u64, payload: &[u8], now: Instant) {
        self.retry(now).await;
        let unknown = self.archive(sender, stored_ns, payload).await;
        if unknown > 0 {
            // Copied, because the message's own buffer may keep a larger buffer in memory.
            let payload = Bytes::copy_from_slice(payload);
            self.early_bytes += payload.len();
            self.early.push_back(EarlyMessage { sender: sender.to_owned(), stored_ns, payload, arrived: now });
            self.give_up(now).await;
        }
    }

    /// Archives the waiting summaries whose descriptions have arrived, and counts those that have
    /// waited too long.
    pub(crate) async fn retry(&mut self, now: Instant) {
        let known = self.descriptions.added();
        if known != self.known {
            self.known = known;
            for _ in 0..self.early.len() {
                let Some(message) = self.early.pop_front() else { break };
                if self.archive(&message.sender, message.stored_ns, &message.payload).await > 0 {
                    self.early.push_back(message);
                } else {
                    self.early_bytes -= message.payload.len();
                }
            }
        }
        self.give_up(now).await;
    }

    /// Drops and counts the summaries that have waited too long or exceed [`MAX_WAITING_BYTES`].
    async fn give_up(&mut self, now: Instant) {
        while let Some(first) = self.early.front()
            && (self.early_bytes > MAX_WAITING_BYTES || now.duration_since(first.arrived) >= MAX_WAIT)
            && let Some(message) = self.early.pop_front()
        {
            self.early_bytes -= message.payload.len();
            let unknown = self.archive(&message.sender, message.stored_ns, &message.payload).await;
            self.writer.count_unknown_summaries(unknown);
        }
    }

    /// Archives the summaries of known processes in a message; repeated ones change nothing.
    /// Returns the number of summaries of unknown processes.
    async fn archive(&self, sender: &str, stored_ns: u64, payload: &[u8]) -> u64 {
        // The follower logs invalid summaries.
        let Ok(batch) = SummaryBatch::parse(payload) else { return 0 };
        let Some(host) = self.descriptions.description(sender).map(|description| description.host) else {
            return batch.summaries.len() as u64;
        };
        let mut unknown = 0;
        for (identity, summary) in &batch.summaries {
            let identity = if identity.is_empty() { sender } else { identity };
            match self.descriptions.description(identity) {
                None => unknown += 1,
                Some(description) if description.host == host => {
                    self.writer.add_summary(identity, &description, summary, stored_ns).await;
                }
                // A process may only send the summaries of its machine.
                Some(_) => {}
            }
        }
        unknown
    }
}

#[cfg(test)]
mod tests {
    use vramscope_collector::Process;
    use vramscope_insight::fleet::Summary;

    use super::*;
    use crate::archive::ArchiveOptions;
    use crate::archive::store::ArchiveStore;
    use crate::archive::tests::harness::*;
    use crate::process_record::{Details, ProcessRecord};

    const SECOND_NS: u64 = 1_000_000_000;

    fn record(rank: u32, host: &str) -> ProcessRecord {
        let (identity, host) = (identity(u64::from(rank)), host.to_owned());
        let process = Process { identity, rank: Some(rank), host, ..Process::default() };
        ProcessRecord { process, details: Details::default() }
    }

    /// Returns a message with a summary of each rank.
    fn message(ranks: &[u32], number: u64) -> Vec<u8> {
        let summary = |rank: &u32| (identity(u64::from(*rank)), Summary { number, ..Summary::default() });
        SummaryBatch { summaries: ranks.iter().map(summary).collect() }.to_bytes()
    }

    /// Finishes the archive. Returns the rank, the number of summaries and the number of missing
    /// summaries of each row, and how many summaries were left out in total.
    fn finish(store: &ArchiveStore, writer: &ArchiveWriter) -> (Vec<(Option<u32>, u64, u64)>, u64) {
        let summary = writer.finish().expect("everything is stored");
        assert_eq!(summary.lost_summaries, 0);
        let rows = reader(store).rollups(0..u64::MAX, None).expect("the parts are valid");
        let rows = rows.iter().map(|row| (row.rank, row.summaries, row.lost_summaries));
        (rows.collect(), summary.unknown_summaries)
    }

    #[test]
    fn summaries_wait_for_the_descriptions_of_their_processes() {
        let store = memory();
        let writer = writer(&store, ArchiveOptions::default());
        let descriptions = Arc::new(Descriptions::default());
        let mut summaries = SummaryArchive::new(writer.clone(), Arc::clone(&descriptions));
        let (start, sender) = (Instant::now(), identity(0));
        block_on(async {
            summaries.take(&sender, EPOCH_NS, &message(&[0, 1], 0), start).await;
            descriptions.insert(record(0, "machine"));
            summaries.take(&sender, EPOCH_NS, &message(&[0, 1], 1), start).await;
            descriptions.insert(record(1, "machine"));
            summaries.retry(start + MAX_WAIT / 2).await;
            summaries.take(&sender, EPOCH_NS, &message(&[0, 1], 2), start + MAX_WAIT).await;
        });
        assert!(summaries.early.is_empty() && summaries.early_bytes == 0);
        assert_eq!(finish(&store, &writer), (vec![(Some(0), 3, 0), (Some(1), 3, 0)], 0));
    }

    #[test]
    fn summaries_without_a_description_are_counted() {
        let store = memory();
        let writer = writer(&store, ArchiveOptions::default());
        let descriptions = Arc::new(Descriptions::default());
        descriptions.insert(record(0, "machine"));
        descriptions.insert(record(1, "other machine"));
        let mut summaries = SummaryArchive::new(writer.clone(), descriptions);
        let (start, sender) = (Instant::now(), identity(0));
        block_on(async {
            for number in 3..5 {
                summaries.take(&sender, EPOCH_NS + SECOND_NS, &message(&[0, 1, 2], number), start).await;
            }
            summaries.retry(start + MAX_WAIT).await;
            // Messages of unknown processes take limited memory.
            let many = message(&[7; 64], 0);
            for _ in 0..MAX_WAITING_BYTES / many.len() + 5 {
                summaries.take(&sender, EPOCH_NS, &many, start + MAX_WAIT).await;
                assert!(summaries.early_bytes <= MAX_WAITING_BYTES);
            }
        });
        let (rows, unknown) = finish(&store, &writer);
        assert_eq!(rows, [(Some(0), 2, 3)]);
        assert!(unknown > 64 && unknown % 64 == 2, "{unknown}");
    }
}
