//! Merges the entries of all processes in the order of the machine's clock.
//!
//! An entry waits until every connected process has sent something later, or for [`WAIT_NS`]. An
//! entry that arrives later than that gets the time of the last merged entry: time never goes back.
//! An invalid stream affects its own process only.
//!
//! If the server starts after the processes, all of them push their history at once. The merger
//! then waits for [`HOLD_NS`] until all have connected, and decodes only as much of each process as
//! is next in time order.

use std::collections::BTreeSet;

use vramscope_trace::{
    Annotation, AnnotationStage, DeviceState, Event, EventKind, MemoryState, RecordingInfo, Relabel, Sink, SiteId,
};

use super::received_state::{is_equal, merged_device};
use super::source::{MAX_PENDING_WEIGHT, MergeContext, MergeEntry, PendingEntry, ProcessSource, WAIT_NS};
use crate::process::Process;

/// If the first process started at least 1 s before the server, nothing is merged for this long, so
/// that all processes can reconnect first: 6 s, in nanoseconds.
pub(super) const HOLD_NS: u64 = 6_000_000_000;
/// Limit on waiting for a process that sends its history: 30 s after its first connection, in
/// nanoseconds. Within it, other processes' events wait, as long as the history's chunks arrive
/// less than [`WAIT_NS`] apart.
const CATCH_UP_NS: u64 = 30_000_000_000;
/// The most processes that the merger remembers, including disconnected ones that may reconnect. A
/// further process replaces the one that has been disconnected the longest; if all are connected,
/// it is refused.
pub(super) const MAX_PROCESSES: usize = 256;
/// The most segments and blocks of all processes together, which is the limit of a full state. The
/// stream of a process that exceeds it is refused, and the process's memory is removed.
const MAX_SEGMENTS_AND_BLOCKS: usize = 1 << 20;
/// Name of the mark that each device of a process gets when the process ends its recording.
const ENDED_MARK: &str = "process ended";
/// Name of the mark that each device of a process gets when its connection is lost before its
/// recording has ended.
const LOST_MARK: &str = "connection to the process lost";
/// Error message for a connection whose process has opened a newer connection.
const REPLACED: &str = "the process has opened another connection";

/// Why the aggregator does not connect a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// As many processes are connected as allowed; a later attempt can succeed.
    #[error("the limit of {MAX_PROCESSES} processes is reached")]
    Full,
    /// The process is refused. The text is the reason.
    #[error("{0}")]
    Refused(String),
}

/// The destination of the merged recording: a [`Sink`] of events that also takes the recording's
/// header and keeps its memory state.
pub(super) trait Output: Sink {
    /// Replaces the header of the merged recording: program names, devices, start time, settings.
    fn update_info(&mut self, info: &RecordingInfo);
    /// Returns the segments and blocks of all devices after the last merged event.
    fn state(&self) -> &MemoryState;
}

/// One connection of a process to the [`Merger`]: the identity of the process's recording, the
/// connection's number, and the number of the first chunk that the process must send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MergerConnection {
    /// Identity of the process's recording.
    pub(super) identity: String,
    /// Number of the connection, unique in the merger.
    pub(super) connection: u64,
    /// Number of the first chunk that the merger does not have.
    pub(super) resume: u64,
    /// True if the process was connected before.
    pub(super) is_reconnect: bool,
}

/// State of a process's recording at its disconnection: whether the process had ended it, and how
/// many of its events are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DisconnectReport {
    pub(super) has_ended: bool,
    /// Number of the process's missing events.
    pub(super) lost: u64,
}

/// Merges the recordings of all processes, in order of time, into one output.
#[derive(Debug)]
pub(super) struct Merger<O> {
    pub(super) output: O,
    context: MergeContext,
    sources: Vec<ProcessSource>,
    /// The time of the last merged entry.
    last_ns: u64,
    /// The number of the newest connection.
    connections: u64,
    /// Nothing is merged before this time.
    hold_until_unix_ns: u64,
}

impl<O: Output> Merger<O> {
    /// Creates a merger without processes. Time 0 is `epoch_unix_ns`, or that of the first process
    /// if it is earlier.
    pub(super) fn new(output: O, epoch_unix_ns: u64) -> Self {
        let context = MergeContext::new(epoch_unix_ns);
        Self { output, context, sources: Vec::new(), last_ns: 0, connections: 0, hold_until_unix_ns: 0 }
    }

    /// Converts the current time, in nanoseconds since 1970, to nanoseconds since the merged
    /// recording's start; times before the start become 0.
    fn now_ns(&self, now_unix_ns: u64) -> u64 {
        self.context.now_ns(now_unix_ns)
    }

    /// Returns the index in `sources`, the list of all processes' streams, of the process whose
    /// recording has this identity; `None` if it has never connected or was forgotten.
    fn source_index(&self, identity: &str) -> Option<usize> {
        self.sources.iter().position(|source| source.process.identity == identity)
    }

    /// Returns the stream of a connection's process; `None` if the process has disconnected, opened
    /// a newer connection, or was forgotten.
    fn source(&mut self, joined: &MergerConnection) -> Option<&mut ProcessSource> {
        let index = self.source_index(&joined.identity)?;
        Some(&mut self.sources[index]).filter(|source| source.connection == Some(joined.connection))
    }

    /// Connects a process, for the first time or again. `now_unix_ns` is the current time in
    /// nanoseconds since 1970, as in all methods of the merger.
    ///
    /// # Errors
    /// If the process's stream was refused before, or [`MAX_PROCESSES`] are connected.
    pub(super) fn join(&mut self, process: Process, now_unix_ns: u64) -> Result<MergerConnection, JoinError> {
        let identity = process.identity.clone();
        let known = self.source_index(&identity);
        if let Some(reason) = known.and_then(|index| self.sources[index].failure.as_ref()) {
            return Err(JoinError::Refused(reason.clone()));
        }
        if known.is_none() {
            self.ensure_capacity(now_unix_ns)?;
            let has_same_rank = |source: &&ProcessSource| {
                source.process.rank.is_some()
                    && (source.process.rank, &source.process.host) == (process.rank, &process.host)
            };
            let run = 1 + self.sources.iter().filter(has_same_rank).count();
            self.sources.push(ProcessSource::new(process, run, now_unix_ns));
        }
        self.connections += 1;
        let index = known.unwrap_or(self.sources.len() - 1);
        let source = &mut self.sources[index];
        (source.connection, source.has_ended) = (Some(self.connections), false);
        let (connection, resume, is_reconnect) = (self.connections, source.next, known.is_some());
        Ok(MergerConnection { identity, connection, resume, is_reconnect })
    }

    /// Makes room for another process: at [`MAX_PROCESSES`], forgets the process that has been
    /// disconnected the longest. Returns an error if all are connected.
    fn ensure_capacity(&mut self, now_unix_ns: u64) -> Result<(), JoinError> {
        if self.sources.len() < MAX_PROCESSES {
            return Ok(());
        }
        self.merge(now_unix_ns, true);
        let disconnected = self.sources.iter().enumerate().filter(|(_, source)| source.connection.is_none());
        let oldest = disconnected.min_by_key(|(_, source)| source.disconnected_unix_ns).map(|(index, _)| index);
        let oldest = oldest.ok_or(JoinError::Full)?;
        let forgotten = self.sources.remove(oldest);
        self.context.table.forget(&forgotten.numbers);
        Ok(())
    }

    /// Takes whole chunks of a process's recording; `next` is the number of the chunk that follows
    /// `bytes`. Returns true if all were decoded; false if [`resume_push`](Self::resume_push) must
    /// be called later to decode the rest.
    ///
    /// # Errors
    /// If the chunks are invalid or exceed a limit. The stream is refused from then on; what was
    /// decoded before stays.
    pub(super) fn push(
        &mut self,
        joined: &MergerConnection,
        bytes: &[u8],
        next: u64,
        now_unix_ns: u64,
    ) -> Result<bool, String> {
        let source = self.source(joined).ok_or(REPLACED)?;
        source.failure.clone().map_or(Ok(()), Err)?;
        source.push(bytes);
        source.next = next;
        self.resume_push(joined, now_unix_ns)
    }

    /// Decodes chunks from [`push`](Self::push) that were left because too many entries were
    /// waiting to be merged. Returns true if all are decoded; false if it must be called again
    /// later.
    ///
    /// # Errors
    /// If the chunks are invalid or exceed a limit. The stream is refused from then on.
    pub(super) fn resume_push(&mut self, joined: &MergerConnection, now_unix_ns: u64) -> Result<bool, String> {
        let decoded = self.decode(joined, now_unix_ns);
        if let (Err(reason), Some(source)) = (&decoded, self.source(joined)) {
            source.fail(reason.clone());
        }
        decoded
    }

    /// Alternately decodes pushed chunks of a connection's process and merges the waiting entries
    /// of all processes. Returns true once all chunks are decoded; false if chunks are left and
    /// nothing more can be merged for now.
    fn decode(&mut self, joined: &MergerConnection, now_unix_ns: u64) -> Result<bool, String> {
        loop {
            let source = self.source(joined).ok_or(REPLACED)?;
            source.failure.clone().map_or(Ok(()), Err)?;
            let index = self.source_index(&joined.identity).ok_or(REPLACED)?;
            let started_earlier = self.context.started_earlier;
            let is_complete = self.sources[index].step(now_unix_ns, &mut self.context)?;
            if self.context.started_earlier && !started_earlier {
                self.hold_until_unix_ns = now_unix_ns.saturating_add(HOLD_NS);
            }
            let merged = self.merge(now_unix_ns, false);
            if self.segments_and_blocks() > MAX_SEGMENTS_AND_BLOCKS {
                self.apply_state(index, &MemoryState::default());
                return Err(format!(
                    "the limit of {MAX_SEGMENTS_AND_BLOCKS} segments and blocks of all processes is reached"
                ));
            }
            if is_complete || merged == 0 {
                return Ok(is_complete);
            }
        }
    }

    /// Returns the number of segments and blocks, of all processes together, in the merged memory
    /// state.
    fn segments_and_blocks(&self) -> usize {
        self.output.state().devices().map(|(_, device)| device.blocks().len() + device.segments().len()).sum()
    }

    /// Marks a process's recording as complete, at the process's request. The process stays
    /// connected.
    pub(super) fn end(&mut self, joined: &MergerConnection, now_unix_ns: u64) {
        self.mark(joined, ENDED_MARK, now_unix_ns);
        if let Some(source) = self.source(joined) {
            source.has_ended = true;
        }
    }

    /// Returns the numbers of a process's devices in the merged recording.
    pub(super) fn devices(&mut self, joined: &MergerConnection) -> Vec<u16> {
        self.source(joined).map_or_else(Vec::new, |source| source.devices.values().map(|device| device.0).collect())
    }

    /// Disconnects a process whose connection is lost and which may reconnect later. Returns
    /// `None`, and changes nothing, if a newer connection of the process has replaced this one.
    pub(super) fn leave(&mut self, joined: &MergerConnection, now_unix_ns: u64) -> Option<DisconnectReport> {
        if !self.source(joined)?.has_ended {
            self.mark(joined, LOST_MARK, now_unix_ns);
        }
        self.pause(joined, now_unix_ns)
    }

    /// Disconnects a process whose events the server does not want for now. Unlike
    /// [`leave`](Self::leave), adds no mark of a lost connection.
    pub(super) fn pause(&mut self, joined: &MergerConnection, now_unix_ns: u64) -> Option<DisconnectReport> {
        let source = self.source(joined)?;
        (source.connection, source.disconnected_unix_ns) = (None, now_unix_ns);
        Some(DisconnectReport { has_ended: source.has_ended, lost: source.lost })
    }

    /// Adds a mark named `name` to each device of a process, behind the process's events that wait
    /// to be merged.
    fn mark(&mut self, joined: &MergerConnection, name: &str, now_unix_ns: u64) {
        let (name, now_ns) = (self.context.table.interner.string(name), self.now_ns(now_unix_ns));
        let Some(source) = self.source(joined) else { return };
        let kind = EventKind::Mark { stage: AnnotationStage::Instant, name, address: 0, site: SiteId(0) };
        for device in source.devices.values().copied().collect::<Vec<_>>() {
            source.append(now_ns, now_ns, MergeEntry::Event(kind, device));
        }
    }

    /// Adds a mark named `name` to the first device of each connected process, and returns the
    /// number of marks added.
    ///
    /// The marks are merged at once and get a time [`WAIT_NS`] before now, so that events still in
    /// transit, which may be that old, keep their times. Adds no mark, and returns 0, while the
    /// server waits for processes to reconnect ([`HOLD_NS`]).
    pub(super) fn mark_all(&mut self, name: &str, now_unix_ns: u64) -> usize {
        if now_unix_ns < self.hold_until_unix_ns {
            return 0;
        }
        let devices: Vec<_> = self.running().filter_map(|source| source.devices.values().next().copied()).collect();
        if !devices.is_empty() {
            let name = self.context.table.interner.string(name);
            self.output_definitions();
            self.last_ns = self.last_ns.max(self.now_ns(now_unix_ns).saturating_sub(WAIT_NS));
            let kind = EventKind::Mark { stage: AnnotationStage::Instant, name, address: 0, site: SiteId(0) };
            let time_ns = self.last_ns;
            devices.iter().for_each(|&device| self.output.event(&Event { device, time_ns, kind }));
        }
        devices.len()
    }

    /// Passes waiting entries of all processes to the output, in order of time, and returns their
    /// number. Leaves entries that must wait for other processes, unless `all` is true.
    pub(super) fn merge(&mut self, now_unix_ns: u64, all: bool) -> u64 {
        if now_unix_ns < self.hold_until_unix_ns && !all {
            return 0;
        }
        self.output_definitions();
        let now_ns = self.now_ns(now_unix_ns);
        let mut merged = 0;
        while let Some((index, until_ns)) = self.next_source(now_ns, all) {
            while let Some(pending) = self.sources[index].pop() {
                self.output_entry(index, pending);
                merged += 1;
                if self.sources[index].pending.front().is_none_or(|next| next.time_ns > until_ns) {
                    break;
                }
            }
            self.refill(index, now_unix_ns);
        }
        merged
    }

    /// Decodes more pushed chunks of the process at `index` in `sources`, if all its decoded
    /// entries have been merged. Invalid chunks end the process's stream.
    fn refill(&mut self, index: usize, now_unix_ns: u64) {
        let source = &mut self.sources[index];
        if source.has_more && source.pending.is_empty() {
            if let Err(reason) = source.step(now_unix_ns, &mut self.context) {
                source.fail(reason);
            }
            self.output_definitions();
        }
    }

    /// Returns the index in `sources` of the process with the earliest waiting entry, and the time,
    /// in nanoseconds, up to which its entries precede those of all other processes. Returns `None`
    /// if no entry waits, or if the earliest must wait for other processes; `all` suppresses that
    /// wait.
    fn next_source(&self, now_ns: u64, all: bool) -> Option<(usize, u64)> {
        let mut first: Option<(u64, usize)> = None;
        // The first pending time of the other sources, and the time before which no connected
        // process can send any more entries.
        let (mut second_ns, mut known_ns) = (u64::MAX, u64::MAX);
        // The last arrival from a silent process that is still sending its history.
        let mut catch_up_arrival_ns = 0;
        let mut is_full = false;
        for (index, source) in self.sources.iter().enumerate() {
            is_full |= source.weight >= MAX_PENDING_WEIGHT;
            let Some(pending) = source.pending.front() else {
                if source.is_awaited() {
                    known_ns = known_ns.min(source.until_ns);
                    // Entries before the last merged one come too late to be ordered, so the source
                    // is not waited for.
                    let is_catching_up = !source.has_caught_up && source.until_ns >= self.last_ns;
                    if is_catching_up && now_ns.saturating_sub(self.now_ns(source.joined_unix_ns)) < CATCH_UP_NS {
                        catch_up_arrival_ns = catch_up_arrival_ns.max(source.last_arrival_ns);
                    }
                }
                continue;
            };
            match first {
                Some((time_ns, _)) if time_ns <= pending.time_ns => second_ns = second_ns.min(pending.time_ns),
                _ => {
                    second_ns = first.map_or(second_ns, |(time_ns, _)| time_ns);
                    first = Some((pending.time_ns, index));
                }
            }
        }
        let (time_ns, index) = first?;
        if all {
            return Some((index, second_ns));
        }
        let arrived_ns = self.sources[index].pending.front()?.arrived_ns;
        // A due entry is merged alone, because the silent processes may have sent something before
        // the next one is due.
        let is_receiving_history = now_ns.saturating_sub(catch_up_arrival_ns) < WAIT_NS;
        let is_due = !is_receiving_history && (is_full || now_ns.saturating_sub(arrived_ns) >= WAIT_NS);
        (time_ns <= known_ns || is_due).then_some((index, second_ns.min(known_ns)))
    }

    /// Passes new definitions, and the header if it has changed, to the output.
    fn output_definitions(&mut self) {
        if std::mem::take(&mut self.context.info_changed) {
            self.output.update_info(&self.info());
        }
        for definition in self.context.table.interner.take_new() {
            self.output.define(&definition);
        }
    }

    /// Returns the header of the merged recording: up to three programs' names, and all devices.
    fn info(&self) -> RecordingInfo {
        let mut programs: Vec<&str> = Vec::new();
        for source in &self.sources {
            if !programs.contains(&source.process.program.as_str()) && programs.len() < 3 {
                programs.push(&source.process.program);
            }
        }
        RecordingInfo {
            source: if programs.is_empty() { "vramscope serve".to_owned() } else { programs.join(", ") },
            writer: concat!("vramscope-collector ", env!("CARGO_PKG_VERSION")).to_owned(),
            epoch_unix_ns: self.context.epoch_unix_ns,
            alloc_conf: self.context.alloc_conf.clone().unwrap_or_default(),
            devices: self.context.devices.values().cloned().collect(),
            ..RecordingInfo::default()
        }
    }

    /// Passes an entry of the process at `index` in `sources` to the output. An entry earlier than
    /// the last one gets the last one's time, because times never decrease.
    fn output_entry(&mut self, index: usize, pending: PendingEntry) {
        self.last_ns = self.last_ns.max(pending.time_ns);
        let time_ns = self.last_ns;
        match pending.entry {
            MergeEntry::Event(kind, device) => self.output.event(&Event { device, time_ns, kind }),
            MergeEntry::Annotation(annotation) => {
                let at_event = self.output.state().event();
                self.output.annotation(&Annotation { at_event, ..annotation });
            }
            MergeEntry::Relabel(relabel) => self.output.relabel(&Relabel { time_ns, ..relabel }),
            MergeEntry::State { state, lost } => {
                if lost > 0
                    && let Some(&device) = self.sources[index].devices.values().next()
                {
                    self.output.event(&Event { device, time_ns, kind: EventKind::Gap { lost } });
                }
                self.apply_state(index, &state);
            }
        }
    }

    /// Replaces the memory of the process at `index` in `sources` by the full state that it sent,
    /// unless both are equal. The other processes' memory stays.
    fn apply_state(&mut self, index: usize, received: &MemoryState) {
        let source = &self.sources[index];
        let empty = DeviceState::default();
        let current = self.output.state();
        let devices = source.devices.iter().map(|(&local, &merged)| (merged, received.device(local).unwrap_or(&empty)));
        if devices.clone().all(|(merged, received)| is_equal(current.device(merged).unwrap_or(&empty), received)) {
            return;
        }
        let mut state = current.clone();
        let (event, now_ns) = (state.event(), self.last_ns);
        for (merged, received) in devices {
            let current = current.device(merged).unwrap_or(&empty);
            *state.device_mut(merged) = merged_device(source, received, current, event, now_ns);
        }
        state.set_time_ns(state.time_ns().max(now_ns));
        self.output.replace_state(&state);
    }

    /// Returns the number of connected processes.
    pub(super) fn connected(&self) -> usize {
        self.sources.iter().filter(|source| source.connection.is_some()).count()
    }

    /// Returns the merged recording's numbers of the devices of connected processes whose recording
    /// has not ended.
    pub(super) fn connected_devices(&self) -> BTreeSet<u16> {
        self.running().flat_map(|source| source.devices.values().map(|device| device.0)).collect()
    }

    /// Iterates over the connected processes whose recording has not ended.
    fn running(&self) -> impl Iterator<Item = &ProcessSource> {
        self.sources.iter().filter(|source| source.connection.is_some() && !source.has_ended)
    }

    /// Merges everything that is left, without waiting for any process, and returns the output.
    pub(super) fn finish(mut self, now_unix_ns: u64) -> O {
        for index in 0..self.sources.len() {
            // An error ends the source; its process is no longer connected to receive the reason.
            while let Ok(false) = self.sources[index].step(now_unix_ns, &mut self.context) {
                self.merge(now_unix_ns, true);
            }
        }
        self.merge(now_unix_ns, true);
        self.output
    }
}

#[cfg(test)]
impl<O> Merger<O> {
    /// Returns the merged recording's number of a process's device.
    pub(super) fn merged_device_id(&self, identity: &str, local: u16) -> Option<vramscope_trace::DeviceId> {
        let source = self.sources.iter().find(|source| source.process.identity == identity)?;
        source.devices.get(&vramscope_trace::DeviceId(local)).copied()
    }
}
