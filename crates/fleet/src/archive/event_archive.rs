//! Archives the events of all processes of a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use vramscope_collector::Process;

use super::descriptions::Descriptions;
use super::writer::{ArchiveWriter, ProcessArchive};
use crate::assembler::Assembler;
use crate::eviction::remove_least;
use crate::message::ChunkMessage;
use crate::reorder_buffer::ReorderBuffer;

/// Maximum number of processes of a run whose events are archived at once; for a further process,
/// one is forgotten.
const MAX_PROCESSES: usize = 16_384;
/// Maximum total size of messages that wait for missing earlier messages, of all processes, in
/// bytes; a single process can have up to 136 MiB. Beyond it, the process with most waiting bytes
/// stops waiting, and its missing messages become a gap.
const MAX_WAITING_BYTES: usize = 256 << 20;

/// A writer of the events of all processes to the archive.
pub(crate) struct EventArchive {
    writer: ArchiveWriter,
    descriptions: Arc<Descriptions>,
    processes: BTreeMap<String, ArchivedProcess>,
    max_waiting_bytes: usize,
    /// Bytes of all messages that wait.
    waiting_bytes: usize,
}

impl EventArchive {
    /// Creates a writer of events without processes.
    pub(crate) fn new(writer: ArchiveWriter, descriptions: Arc<Descriptions>) -> Self {
        let max_waiting_bytes = MAX_WAITING_BYTES;
        Self { writer, descriptions, processes: BTreeMap::new(), max_waiting_bytes, waiting_bytes: 0 }
    }

    /// Archives the chunks in a message of a process, and in later messages of the process that
    /// have waited for this one.
    pub(crate) async fn take(&mut self, rank: Option<u32>, identity: &str, message: ChunkMessage) {
        if !self.processes.contains_key(identity) {
            if self.processes.len() == MAX_PROCESSES {
                self.forget_oldest().await;
            }
            let process = Process { identity: identity.to_owned(), rank, ..Process::default() };
            self.processes.insert(identity.to_owned(), ArchivedProcess::new(&self.writer, process));
        }
        if let Some(process) = self.processes.get_mut(identity) {
            self.waiting_bytes -= process.waiting_bytes();
            process.take(&self.descriptions, message).await;
            self.waiting_bytes += process.waiting_bytes();
        }
        while self.waiting_bytes > self.max_waiting_bytes
            && let Some(process) = self.processes.values_mut().max_by_key(|process| process.waiting_bytes())
        {
            self.waiting_bytes -= process.waiting_bytes();
            process.stop_waiting().await;
        }
    }

    /// Archives the chunks in messages that have waited too long for a missing one; see
    /// [`ReorderBuffer::take_overdue`].
    pub(crate) async fn take_overdue(&mut self, receiving_since: Option<Instant>) {
        self.waiting_bytes = 0;
        for process in self.processes.values_mut() {
            process.take_overdue(&self.descriptions, receiving_since).await;
            self.waiting_bytes += process.waiting_bytes();
        }
    }

    /// Forgets a process whose events are no longer archived, or else the process that has been
    /// silent for longest. The latter's part ends; if it sends again, another part begins.
    async fn forget_oldest(&mut self) {
        let key = |process: &ArchivedProcess| Some((process.archive.is_some(), process.last_message));
        let oldest = remove_least(&mut self.processes, key);
        self.waiting_bytes -= oldest.as_ref().map_or(0, ArchivedProcess::waiting_bytes);
        // Ending the part takes long.
        let _ = tokio::task::spawn_blocking(move || drop(oldest)).await;
    }
}

/// A process whose events are archived.
struct ArchivedProcess {
    process: Process,
    order: ReorderBuffer,
    assembler: Assembler,
    /// The archive of the process's recording; `None` after the recording's end, or if the
    /// process's messages are invalid.
    archive: Option<Arc<ProcessArchive>>,
    is_described: bool,
    last_message: Instant,
}

impl ArchivedProcess {
    fn new(writer: &ArchiveWriter, process: Process) -> Self {
        let archive = writer.process(&process).map_err(|error| tracing::warn!("{error}"));
        let (order, assembler) = (ReorderBuffer::default(), Assembler::new());
        let (archive, last_message) = (archive.ok().map(Arc::new), Instant::now());
        Self { process, order, assembler, archive, is_described: false, last_message }
    }

    /// Returns the approximate memory of the process's waiting messages and incomplete chunks, in
    /// bytes.
    fn waiting_bytes(&self) -> usize {
        self.order.waiting_bytes() + self.assembler.joined_bytes()
    }

    /// Archives the chunks in a message, or keeps it until the messages before it have arrived.
    async fn take(&mut self, descriptions: &Descriptions, message: ChunkMessage) {
        self.last_message = Instant::now();
        if self.archive.is_none() {
            return;
        }
        self.describe(descriptions);
        for message in self.order.push(message, self.last_message) {
            self.archive(&message).await;
        }
    }

    /// Archives the chunks in messages that have waited too long for a missing one.
    async fn take_overdue(&mut self, descriptions: &Descriptions, receiving_since: Option<Instant>) {
        self.describe(descriptions);
        for message in self.order.take_overdue(Instant::now(), receiving_since) {
            self.archive(&message).await;
        }
    }

    /// Archives the waiting messages without waiting for the missing ones, and drops incomplete
    /// chunks. The missing events become a gap, which ends at the process's next start.
    async fn stop_waiting(&mut self) {
        tracing::warn!("the archive does not wait for missing messages of {}: too many wait", self.process);
        for message in self.order.take_all() {
            self.archive(&message).await;
        }
        if self.assembler.joined_bytes() > 0 {
            self.assembler.restart_from(0);
        }
    }

    /// Adds host and program of the process to the archive, once its description has arrived.
    fn describe(&mut self, descriptions: &Descriptions) {
        if !self.is_described
            && let Some(archive) = &self.archive
            && let Some(process) = descriptions.process(&self.process.identity)
        {
            archive.describe(&process);
            (self.process, self.is_described) = (process, true);
        }
    }

    /// Archives the chunks in a message. Messages must be passed in order.
    async fn archive(&mut self, message: &ChunkMessage) {
        let Some(archive) = self.archive.clone() else { return };
        let result = match self.assembler.push(message) {
            Ok(assembled) if assembled.has_ended => {
                self.archive = None;
                // Ending the part takes long.
                let _ = tokio::task::spawn_blocking(move || drop(archive)).await;
                return;
            }
            Ok(assembled) => {
                let pushed = tokio::task::spawn_blocking(move || archive.push(&assembled.bytes)).await;
                // The panic hook has reported a panic.
                pushed.map_or(Ok(()), |pushed| pushed.map_err(|error| error.to_string()))
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(reason) = result {
            self.refuse(&reason);
        }
    }

    /// Stops archiving the process, and logs why.
    fn refuse(&mut self, reason: &str) {
        if self.archive.take().is_some() {
            tracing::warn!("stopped archiving {}: {reason}", self.process);
            // The waiting messages cannot be used.
            (self.order, self.assembler) = (ReorderBuffer::default(), Assembler::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::tests::harness::*;
    use crate::process_record::{Details, ProcessRecord};

    #[test]
    fn waiting_messages_of_all_processes_take_limited_memory() {
        const LIMIT: usize = 40_000;
        let store = memory();
        let writer = writer(&store, small_parts());
        let mut events = EventArchive::new(writer.clone(), Arc::default());
        events.max_waiting_bytes = LIMIT;
        let mut program = Program::new(1);
        let chunks = program.run(2_000);
        block_on(async {
            let payload = |bytes: usize| vec![0; bytes].into();
            for number in 2..40 {
                for rank in 0..10 {
                    // Each process waits for message number 1, or for the rest of its chunks.
                    let continues = rank % 2 == 0;
                    let number = if continues { number - 2 } else { number };
                    let is_start = number == 0;
                    let message =
                        ChunkMessage { number, continues, is_start, payload: payload(700), ..ChunkMessage::default() };
                    events.take(Some(rank), &identity(100 + u64::from(rank)), message).await;
                    let waiting: usize = events.processes.values().map(ArchivedProcess::waiting_bytes).sum();
                    assert_eq!(waiting, events.waiting_bytes);
                    assert!(waiting <= LIMIT, "{waiting} bytes");
                }
            }
            // Other processes are archived meanwhile.
            for (number, chunk) in (0..).zip(chunks) {
                let (is_start, next) = (number == 0, number + 1);
                let payload = program.chunks[chunk].clone().into();
                let message = ChunkMessage { number, next, is_start, payload, ..ChunkMessage::default() };
                events.take(Some(1), &program.process.identity, message).await;
            }
        });
        drop(events);
        writer.finish().expect("everything is stored");
        let reader = reader(&store);
        let rank = reader.ranks().iter().find(|rank| rank.identity == program.process.identity).expect("a rank");
        assert_eq!(rank.parts.iter().map(|part| part.events).sum::<u64>(), 2_000);
    }

    #[test]
    fn description_that_arrives_late_names_the_rank() {
        let store = memory();
        let writer = writer(&store, small_parts());
        let descriptions = Arc::new(Descriptions::default());
        let mut events = EventArchive::new(writer.clone(), Arc::clone(&descriptions));
        let mut program = Program::new(1);
        let mut number = 0;
        let mut run = |events: &mut EventArchive, runtime: &tokio::runtime::Runtime| {
            for chunk in program.run(4_000) {
                let payload = program.chunks[chunk].clone().into();
                let (is_start, next) = (number == 0, number + 1);
                let message = ChunkMessage { number, next, is_start, payload, ..ChunkMessage::default() };
                runtime.block_on(events.take(Some(1), &identity(2), message));
                number += 1;
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        run(&mut events, &runtime);
        wait_until("a part without a name is listed", || !reader(&store).ranks().is_empty());
        assert_eq!(reader(&store).ranks()[0].host, "");
        descriptions.insert(ProcessRecord { process: Program::new(1).process, details: Details::default() });
        runtime.block_on(events.take_overdue(None));
        run(&mut events, &runtime);
        drop(events);
        writer.finish().expect("everything is stored");
        let reader = reader(&store);
        let names = (reader.ranks()[0].host.as_str(), reader.ranks()[0].program.as_str());
        assert_eq!(names, ("machine", "train.py"));
    }
}
