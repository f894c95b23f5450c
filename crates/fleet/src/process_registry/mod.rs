//! The registry of a run's processes, which decides whose events a server reads.
//!
//! A server reads the events of a process for one of three reasons: the process sends all its
//! events, this server has opened it, or another server has requested its events and the request is
//! still valid. Servers see each other's requests, so all servers read equal sets of processes.
//!
//! The number of processes that are read is limited, to a number of *places*. A process that seems
//! to be lost frees its place for another, unless a user has opened it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vramscope_collector::{Aggregator, Process};
use vramscope_insight::fleet::EventsState;

use crate::eviction::remove_least;
use crate::process_record::ProcessRecord;

#[cfg(test)]
mod tests;

/// Maximum number of processes in the registry; for a further process, an old one is forgotten.
const MAX_PROCESSES: usize = 16_384;
/// Maximum number of processes that are read at once, which is the aggregator's limit.
const MAX_READ: usize = Aggregator::MAX_PROCESSES;
/// Maximum number of processes of one rank that are read without a viewer's request, because they
/// send all events. A program with the access key of one rank can announce any number of
/// processes; they must not use up the [`MAX_READ`] that all ranks share.
const MAX_ALWAYS_READ_OF_RANK: usize = 4;
/// Time since the opening of a process after which it is replaced by another if it is silent.
const MIN_OPEN_TIME: Duration = Duration::from_secs(10);
/// Time after which a process for which the aggregator had no place is read again.
const RETRY_TIME: Duration = Duration::from_secs(10);

/// Why a process cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The run has no such process.
    #[error("the run has no such process")]
    Unknown,
    /// The process has ended, and the broker has none of its events.
    #[error("the process has ended and its events are not at the broker: open it from the archive")]
    Ended,
    /// The process's events cannot be read. The text is the reason.
    #[error("cannot read the events of the process: {0}")]
    Refused(String),
    /// As many processes are open as allowed.
    #[error("{0} processes are open, the most at once: close one first")]
    Full(usize),
}

/// Why a process is not read any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The process's recording has been read to its end.
    AtEnd,
    /// The process's events are invalid, or the aggregator has refused them. The text is the
    /// reason.
    Refused(String),
    /// The aggregator had no place for the process. The text is the reason.
    NoPlace(String),
}

/// When and why this server opened a process.
#[derive(Clone, Copy, Debug)]
struct Opened {
    since: Instant,
    /// True if the process was opened automatically, false if a user opened it.
    is_automatic: bool,
}

/// Why the events of a process are read.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// True if the process sends all events, so that they are read without a request.
    is_always: bool,
    opened: Option<Opened>,
    /// When the last request of another server expires.
    requested_until: Option<Instant>,
}

impl Reading {
    /// Returns true unless a user of this server has opened the process.
    fn is_automatic(&self) -> bool {
        self.is_always || self.opened.is_some_and(|opened| opened.is_automatic)
    }

    /// Returns true if this or another server requests the process's events at `now`.
    fn is_open(&self, now: Instant) -> bool {
        self.opened.is_some() || self.requested_until.is_some_and(|until| now < until)
    }

    /// Removes other servers' requests if they have expired. Returns false if no reason to read the
    /// process is left.
    fn expire(&mut self, now: Instant) -> bool {
        self.requested_until = self.requested_until.filter(|until| now < *until);
        self.is_always || self.is_open(now)
    }
}

/// A process in the registry: its description, and why it is not read, if it is not.
#[derive(Debug)]
struct KnownProcess {
    record: ProcessRecord,
    /// False if the process ended before the history that is read.
    is_current: bool,
    /// True if a user has closed the process and no user has opened it since.
    is_closed: bool,
    /// Why and when reading the process stopped; `None` if it has not stopped.
    stopped: Option<(Stop, Instant)>,
    /// Number of the process's first device in the server's recording, once it is known.
    device: Option<u16>,
}

impl KnownProcess {
    /// Returns true if the process's events can be read: it runs, or the broker may have events of
    /// it.
    fn can_be_read(&self) -> bool {
        let details = &self.record.details;
        self.stopped.is_none() && (!details.has_ended || details.start_sequence > 0)
    }

    /// Returns true if the process's events can be read and it may be opened automatically.
    fn may_be_automatic(&self) -> bool {
        self.is_current && !self.is_closed && self.can_be_read()
    }
}

/// The processes of a run, by the identities of their recordings.
#[derive(Debug)]
pub(crate) struct ProcessRegistry {
    processes: BTreeMap<String, KnownProcess>,
    /// The processes that are read, by identity: at most [`MAX_READ`].
    reading: BTreeMap<String, Reading>,
    /// The most processes that this server opens at once.
    max_open: usize,
    /// Number of places that automatically opened processes have freed because they are lost or
    /// have ended; other processes are opened instead.
    yielded: usize,
}

impl ProcessRegistry {
    /// Creates a registry without processes.
    pub(crate) fn new(max_open: usize) -> Self {
        Self { processes: BTreeMap::new(), reading: BTreeMap::new(), max_open, yielded: 0 }
    }

    /// Adds a process or changes its description. A new process is read at once if `is_current`
    /// (its events are in the history) and either it sends all its events or fewer processes than
    /// allowed are open. Returns true if it is read from now on.
    pub(crate) fn describe(&mut self, record: &ProcessRecord, is_current: bool, now: Instant) -> bool {
        let Process { identity, rank, .. } = &record.process;
        if let Some(known) = self.processes.get_mut(identity) {
            known.record = record.clone();
            return false;
        }
        if self.processes.len() >= MAX_PROCESSES {
            self.forget_one();
        }
        let (record, sends_all) = (record.clone(), record.details.sends_all);
        let known = KnownProcess { record, is_current, is_closed: false, stopped: None, device: None };
        let may_be_automatic = known.may_be_automatic();
        self.processes.insert(identity.clone(), known);
        if may_be_automatic && sends_all {
            self.make_room_in_rank(*rank);
        }
        may_be_automatic && self.read_automatically(identity, now)
    }

    /// Forgets a process that is not read, of the rank with the most processes, so that one rank
    /// cannot displace others: one that has ended, or else the one with the oldest description.
    fn forget_one(&mut self) {
        let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for process in self.processes.values() {
            *counts.entry(process.record.process.rank).or_default() += 1;
        }
        remove_least(&mut self.processes, |process| {
            let Process { identity, rank, .. } = &process.record.process;
            let key = (Reverse(counts.get(rank).copied()), process.record.details.forget_first());
            (!self.reading.contains_key(identity)).then_some(key)
        });
    }

    /// Iterates over the processes of a rank that are read because they send all events. Each
    /// process without a rank counts as a rank of its own.
    fn always_read_of_rank(&self, rank: Option<u32>) -> impl Iterator<Item = &ProcessRecord> {
        let always = self.reading.iter().filter(|(_, reading)| reading.is_always);
        let records = always.filter_map(|(identity, _)| Some(&self.processes.get(identity)?.record));
        records.filter(move |record| rank.is_some() && record.process.rank == rank)
    }

    /// Makes room for another process of a rank that sends all events: at
    /// [`MAX_ALWAYS_READ_OF_RANK`], stops reading the one with the oldest description.
    fn make_room_in_rank(&mut self, rank: Option<u32>) {
        if self.always_read_of_rank(rank).count() >= MAX_ALWAYS_READ_OF_RANK {
            let oldest = self.always_read_of_rank(rank).min_by_key(|record| record.details.sent_unix_ms);
            if let Some(identity) = oldest.map(|record| record.process.identity.clone()) {
                self.change(&identity, |reading| reading.is_always = false);
            }
        }
    }

    /// Starts to read a process that no user has opened. Returns false if no place is free.
    fn read_automatically(&mut self, identity: &str, now: Instant) -> bool {
        let Some(process) = self.processes.get(identity) else { return false };
        let sends_all = process.record.details.sends_all;
        let has_place = if sends_all {
            self.always_read_of_rank(process.record.process.rank).count() < MAX_ALWAYS_READ_OF_RANK
        } else {
            self.open_count(now) < self.max_open
        };
        if !has_place || (self.reading.len() >= MAX_READ && !self.reading.contains_key(identity)) {
            return false;
        }
        let reading = self.reading.entry(identity.to_owned()).or_default();
        if sends_all {
            reading.is_always = true;
        } else {
            reading.opened = Some(Opened { since: now, is_automatic: true });
            self.yielded = self.yielded.saturating_sub(1);
        }
        true
    }

    /// Changes the reasons to read a process with `act`, and stops reading it if none is left.
    fn change(&mut self, identity: &str, act: impl FnOnce(&mut Reading)) {
        if let Some(reading) = self.reading.get_mut(identity) {
            act(reading);
            if !reading.is_always && reading.opened.is_none() && reading.requested_until.is_none() {
                self.reading.remove(identity);
            }
        }
    }

    /// Returns how many processes are read on request at `now`.
    fn open_count(&self, now: Instant) -> usize {
        self.reading.values().filter(|reading| !reading.is_always && reading.is_open(now)).count()
    }

    /// Frees the place of a process that seems to be lost, unless a user has opened it. Returns
    /// true if a place was freed.
    pub(crate) fn yield_place(&mut self, identity: &str) -> bool {
        let Some(reading) = self.reading.get(identity).copied() else { return false };
        if reading.opened.is_some_and(|opened| opened.is_automatic) {
            self.yielded = self.max_open.min(self.yielded + 1);
        }
        self.change(identity, |reading| {
            reading.is_always = false;
            reading.opened = reading.opened.filter(|opened| !opened.is_automatic);
        });
        reading.is_automatic()
    }

    /// Fills free places with processes that send summaries: first processes that were read before,
    /// then the lowest ranks. Call it every second. Returns true if further processes are read from
    /// now on.
    pub(crate) fn fill_places(&mut self, now: Instant, is_silent: impl Fn(&str) -> bool) -> bool {
        self.reading.retain(|_, reading| reading.expire(now));
        let (mut has_new, mut waiting) = (false, Vec::new());
        for (identity, process) in &mut self.processes {
            let is_over = |(stop, at): &(Stop, Instant)| matches!(stop, Stop::NoPlace(_)) && now >= *at + RETRY_TIME;
            if process.stopped.as_ref().is_some_and(is_over) {
                process.stopped = None;
                has_new |= self.reading.contains_key(identity);
            }
            let sends_all = process.record.details.sends_all;
            let is_waiting = process.may_be_automatic() && !self.reading.contains_key(identity);
            if is_waiting && (sends_all || self.yielded > 0) {
                let order = (process.device.is_none(), process.record.process.rank, identity.clone());
                waiting.push((order, sends_all));
            }
        }
        waiting.sort_unstable();
        for ((_, _, identity), sends_all) in waiting {
            if self.reading.len() >= MAX_READ {
                break;
            }
            if (sends_all || self.yielded > 0) && !is_silent(&identity) {
                has_new |= self.read_automatically(&identity, now);
            }
        }
        has_new
    }

    /// Opens a process for a user. If as many are open as allowed, closes a silent process, or one
    /// that no user has opened. Does nothing for a process that was read to its end, because the
    /// server's recording has its events.
    pub(crate) fn open(
        &mut self,
        identity: &str,
        now: Instant,
        is_silent: impl Fn(&str) -> bool,
    ) -> Result<(), OpenError> {
        let process = self.processes.get(identity).ok_or(OpenError::Unknown)?;
        match &process.stopped {
            Some((Stop::AtEnd, _)) if process.device.is_some() => return Ok(()),
            Some((Stop::Refused(reason) | Stop::NoPlace(reason), _)) => return Err(OpenError::Refused(reason.clone())),
            _ if !process.can_be_read() => return Err(OpenError::Ended),
            _ => {}
        }
        let reading = self.reading.get(identity).copied();
        if reading.is_some_and(|reading| reading.is_always) {
            return Ok(());
        }
        if reading.is_none_or(|reading| reading.opened.is_none()) {
            self.make_room(self.max_open, |reading| reading.opened.is_some(), now, &is_silent)?;
        }
        if reading.is_none() && self.reading.len() >= MAX_READ {
            self.reading.retain(|_, reading| reading.expire(now));
            let can_end = |reading: &Reading| reading.requested_until.is_none();
            let requested = self.reading.values().filter(|reading| !can_end(reading)).count();
            self.make_room(MAX_READ - requested, can_end, now, &is_silent).map_err(|_| OpenError::Full(MAX_READ))?;
        }
        let opened = Opened { since: now, is_automatic: false };
        self.reading.entry(identity.to_owned()).or_default().opened = Some(opened);
        if let Some(process) = self.processes.get_mut(identity) {
            process.is_closed = false;
        }
        Ok(())
    }

    /// Makes room if at least `limit` of the processes that `counts` selects are read: stops
    /// reading a silent one, or one that no user has opened, of the highest rank. Fails if there is
    /// none.
    fn make_room(
        &mut self,
        limit: usize,
        counts: impl Fn(&Reading) -> bool,
        now: Instant,
        is_silent: impl Fn(&str) -> bool,
    ) -> Result<(), OpenError> {
        let counted = self.reading.iter().filter(|(_, reading)| counts(reading));
        if counted.clone().count() < limit {
            return Ok(());
        }
        let replaceable = counted.filter_map(|(identity, reading)| {
            let is_old = reading.opened.is_some_and(|opened| now.duration_since(opened.since) >= MIN_OPEN_TIME);
            let is_lost = is_old && is_silent(identity);
            let rank = self.processes.get(identity).map(|process| process.record.process.rank);
            (is_lost || reading.is_automatic()).then(|| (is_lost, rank, identity.clone()))
        });
        let (_, _, replaced) = replaceable.max().ok_or(OpenError::Full(limit))?;
        self.change(&replaced, |reading| (reading.is_always, reading.opened) = (false, None));
        Ok(())
    }

    /// Stops this server's requests for a process's events. Requests of other servers stay valid.
    pub(crate) fn close(&mut self, identity: &str) {
        self.close_if(identity, |_| true);
    }

    /// Stops this server's requests for a process's events, unless a user has opened the process.
    /// Returns true if this server was requesting them.
    pub(crate) fn close_automatic(&mut self, identity: &str) -> bool {
        self.close_if(identity, |opened| opened.is_automatic)
    }

    /// Stops this server's requests if `may_close` returns true. Returns true if they were stopped.
    fn close_if(&mut self, identity: &str, may_close: impl Fn(&Opened) -> bool) -> bool {
        let opened = self.reading.get(identity).and_then(|reading| reading.opened);
        if !opened.is_some_and(|opened| may_close(&opened)) {
            return false;
        }
        self.change(identity, |reading| reading.opened = None);
        if let Some(process) = self.processes.get_mut(identity) {
            process.is_closed = true;
        }
        true
    }

    /// Records that another server requests the events of a process until `until`. Returns true if
    /// they were not read before.
    pub(crate) fn requested(&mut self, identity: &str, until: Instant, now: Instant) -> bool {
        let is_known = self.processes.get(identity).is_some_and(|process| process.stopped.is_none());
        let has_place = self.reading.len() < MAX_READ || self.reading.contains_key(identity);
        if !is_known || !has_place {
            return false;
        }
        let was_read = self.events(identity, now) != EventsState::Closed;
        let reading = self.reading.entry(identity.to_owned()).or_default();
        reading.requested_until = reading.requested_until.max(Some(until));
        !was_read
    }

    /// Records why a process is not read any more. Returns its description.
    pub(crate) fn stop(&mut self, identity: &str, stop: Stop, now: Instant) -> Option<&ProcessRecord> {
        // If the aggregator had no place, the reasons to read the process are kept for later.
        if !matches!(stop, Stop::NoPlace(_)) {
            self.yield_place(identity);
            self.reading.remove(identity);
        }
        let process = self.processes.get_mut(identity)?;
        // The description may lack the end, if the process was killed just before it sent it.
        process.record.details.has_ended |= stop == Stop::AtEnd;
        process.stopped = Some((stop, now));
        Some(&process.record)
    }

    /// Records the first device of a process in the server's recording. Returns true if it was
    /// unknown.
    pub(crate) fn set_device(&mut self, identity: &str, device: u16) -> bool {
        let process = self.processes.get_mut(identity);
        process.is_some_and(|process| process.device.replace(device) != Some(device))
    }

    /// Returns the description of a process; `None` if it is unknown or was forgotten.
    pub(crate) fn process(&self, identity: &str) -> Option<&Process> {
        self.processes.get(identity).map(|known| &known.record.process)
    }

    /// Iterates over the processes that this server has opened and that still run.
    pub(crate) fn opened(&self) -> impl Iterator<Item = &ProcessRecord> {
        let opened = self.reading.iter().filter(|(_, reading)| reading.opened.is_some());
        let processes = opened.filter_map(|(identity, _)| self.processes.get(identity));
        let running = processes.filter(|process| process.stopped.is_none() && !process.record.details.has_ended);
        running.map(|process| &process.record)
    }

    /// Returns whether the events of a process are read at `now`.
    fn events(&self, identity: &str, now: Instant) -> EventsState {
        let is_stopped = self.processes.get(identity).is_none_or(|process| process.stopped.is_some());
        match self.reading.get(identity) {
            _ if is_stopped => EventsState::Closed,
            Some(reading) if reading.is_always => EventsState::Always,
            Some(reading) if reading.is_open(now) => EventsState::Open,
            _ => EventsState::Closed,
        }
    }

    /// Returns, for each process, its description, whether its events are read at `now`, and its
    /// first device in the server's recording.
    pub(crate) fn states(&self, now: Instant) -> impl Iterator<Item = (&ProcessRecord, EventsState, Option<u16>)> {
        let states = self.processes.iter();
        states.map(move |(identity, process)| (&process.record, self.events(identity, now), process.device))
    }
}
