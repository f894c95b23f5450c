//! The processes of a run, and whose events a server reads.
//!
//! A server reads the events of a process for one of three reasons: the process sends all its
//! events, this server has opened it, or another server has and its request is still valid. Servers
//! see each other's requests, so all of them read the same processes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vramscope_collector::Process;
use vramscope_insight::fleet::EventsState;

use crate::eviction::remove_least;
use crate::process_record::ProcessRecord;

/// The most processes of a run that are remembered. For further ones, old ones are forgotten.
const MAX_PROCESSES: usize = 16_384;
/// A process that was opened this long ago, and is silent, gives its place to another.
const MIN_OPEN_TIME: Duration = Duration::from_secs(10);

/// Why a process cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The run has no such process.
    #[error("the run has no such process")]
    Unknown,
    /// It has ended, and the broker has none of its events.
    #[error("the process has ended and its events are not at the broker: open it from the archive")]
    Ended,
    /// As many processes are open as allowed.
    #[error("{0} processes are open, the most at once: close one first")]
    Full(usize),
}

/// That this server has opened a process.
#[derive(Clone, Copy, Debug)]
struct Opened {
    since: Instant,
    /// True if no user asked for it.
    is_automatic: bool,
}

/// What is known of a process.
#[derive(Debug)]
struct KnownProcess {
    record: ProcessRecord,
    /// True if its events are read without a request: it sends all, and did so recently.
    is_always_read: bool,
    opened: Option<Opened>,
    /// Until when the requests of other servers are valid.
    requested_until: Option<Instant>,
    /// True once its recording has been read to its end, or was refused.
    is_finished: bool,
    /// Its first device in the server's recording.
    device: Option<u16>,
}

impl KnownProcess {
    /// Returns whether its events are read at `now`.
    fn events(&self, now: Instant) -> EventsState {
        if self.is_finished {
            EventsState::Closed
        } else if self.is_always_read {
            EventsState::Always
        } else if self.opened.is_some() || self.requested_until.is_some_and(|until| now < until) {
            EventsState::Open
        } else {
            EventsState::Closed
        }
    }

    /// Returns true if its events can be read: it runs, or the broker may have them.
    fn can_be_read(&self) -> bool {
        let details = &self.record.details;
        !self.is_finished && (!details.has_ended || details.start_sequence > 0)
    }
}

/// The processes of a run, by the identities of their recordings.
#[derive(Debug)]
pub(crate) struct ProcessRegistry {
    processes: BTreeMap<String, KnownProcess>,
    /// The most processes that this server opens at once.
    max_open: usize,
}

impl ProcessRegistry {
    /// Creates a registry without processes.
    pub(crate) fn new(max_open: usize) -> Self {
        Self { processes: BTreeMap::new(), max_open }
    }

    /// Adds a process or changes its description. A new process that `is_current` is read if it
    /// sends all its events, or else if fewer processes than allowed are read on request, by this
    /// or another server. Returns true if it is read from now on.
    pub(crate) fn describe(&mut self, record: &ProcessRecord, is_current: bool, now: Instant) -> bool {
        if let Some(known) = self.processes.get_mut(&record.process.identity) {
            known.record = record.clone();
            return false;
        }
        if self.processes.len() == MAX_PROCESSES && !self.forget_oldest() {
            return false;
        }
        let mut known = KnownProcess {
            record: record.clone(),
            is_always_read: record.details.sends_all && is_current,
            opened: None,
            requested_until: None,
            is_finished: false,
            device: None,
        };
        if is_current && !known.is_always_read && known.can_be_read() && self.open_count(now) < self.max_open {
            known.opened = Some(Opened { since: now, is_automatic: true });
        }
        let is_read = known.events(now) != EventsState::Closed;
        self.processes.insert(record.process.identity.clone(), known);
        is_read
    }

    /// Forgets a process that is not read: one that has ended, or else the one whose description is
    /// oldest. Returns false if all are read.
    fn forget_oldest(&mut self) -> bool {
        let is_read = |process: &KnownProcess| {
            process.is_always_read || process.opened.is_some() || process.requested_until.is_some()
        };
        let forgotten = remove_least(&mut self.processes, |process| {
            let key = (!process.is_finished, process.record.details.forget_first());
            (process.is_finished || !is_read(process)).then_some(key)
        });
        forgotten.is_some()
    }

    /// Returns how many processes are read on request at `now`.
    fn open_count(&self, now: Instant) -> usize {
        self.processes.values().filter(|process| process.events(now) == EventsState::Open).count()
    }

    /// Opens a process for a user. If as many are open as allowed, it takes the place of a silent
    /// process, or of one that was opened automatically.
    pub(crate) fn open(
        &mut self,
        identity: &str,
        now: Instant,
        is_silent: impl Fn(&str) -> bool,
    ) -> Result<(), OpenError> {
        let process = self.processes.get_mut(identity).ok_or(OpenError::Unknown)?;
        if process.is_always_read {
            return Ok(());
        }
        if !process.can_be_read() {
            return Err(OpenError::Ended);
        }
        let opened = Some(Opened { since: now, is_automatic: false });
        if process.opened.is_some() {
            process.opened = opened;
            return Ok(());
        }
        let open = self.processes.iter().filter(|(_, process)| process.opened.is_some());
        if open.clone().count() >= self.max_open {
            let replaceable = open.filter_map(|(name, process)| {
                let Opened { since, is_automatic } = process.opened?;
                let is_lost = now.duration_since(since) >= MIN_OPEN_TIME && is_silent(name);
                // The ranks with the highest numbers first.
                (is_lost || is_automatic).then_some((is_lost, process.record.process.rank, name.clone()))
            });
            let (_, _, replaced) = replaceable.max().ok_or(OpenError::Full(self.max_open))?;
            self.close(&replaced);
        }
        if let Some(process) = self.processes.get_mut(identity) {
            process.opened = opened;
        }
        Ok(())
    }

    /// Stops this server's requests for a process's events. Requests of other servers stay valid.
    pub(crate) fn close(&mut self, identity: &str) {
        if let Some(process) = self.processes.get_mut(identity) {
            process.opened = None;
        }
    }

    /// Stops this server's requests for a process's events unless a user has opened it.
    pub(crate) fn close_automatic(&mut self, identity: &str) {
        if let Some(process) = self.processes.get_mut(identity) {
            process.opened = process.opened.filter(|opened| !opened.is_automatic);
        }
    }

    /// Records that another server asked for the events of a process until `until`.
    pub(crate) fn requested(&mut self, identity: &str, until: Instant) {
        if let Some(process) = self.processes.get_mut(identity) {
            process.requested_until = process.requested_until.max(Some(until));
        }
    }

    /// Records that a process's events have been read to their end, or were refused.
    pub(crate) fn finish(&mut self, identity: &str) {
        if let Some(process) = self.processes.get_mut(identity) {
            (process.is_finished, process.opened) = (true, None);
        }
    }

    /// Records the first device of a process in the server's recording. Returns true if it was
    /// unknown.
    pub(crate) fn set_device(&mut self, identity: &str, device: u16) -> bool {
        let process = self.processes.get_mut(identity);
        process.is_some_and(|process| process.device.replace(device) != Some(device))
    }

    /// Returns the description of a process.
    pub(crate) fn process(&self, identity: &str) -> Option<&Process> {
        self.processes.get(identity).map(|known| &known.record.process)
    }

    /// Returns the processes that this server has opened and that still run.
    pub(crate) fn opened(&self) -> impl Iterator<Item = &ProcessRecord> {
        let opened = self.processes.values().filter(|process| process.opened.is_some());
        opened.map(|process| &process.record).filter(|record| !record.details.has_ended)
    }

    /// Returns, for each process, its description, whether its events are read at `now`, and its
    /// first device in the server's recording.
    pub(crate) fn states(&self, now: Instant) -> impl Iterator<Item = (&ProcessRecord, EventsState, Option<u16>)> {
        self.processes.values().map(move |process| (&process.record, process.events(now), process.device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_record::Details;

    fn record(rank: u32, details: Details) -> ProcessRecord {
        let process = Process { identity: format!("{rank:032x}"), rank: Some(rank), ..Process::default() };
        ProcessRecord { process, details }
    }

    fn name(rank: u32) -> String {
        format!("{rank:032x}")
    }

    /// Returns a registry of running processes that opens two at once.
    fn registry(ranks: u32, are_current: bool) -> ProcessRegistry {
        let mut registry = ProcessRegistry::new(2);
        for rank in 0..ranks {
            let is_read = registry.describe(&record(rank, Details::default()), are_current, Instant::now());
            assert_eq!(is_read, are_current && rank < 2);
        }
        registry
    }

    /// Returns the ranks whose events are read.
    fn read(registry: &ProcessRegistry, now: Instant) -> Vec<u32> {
        let states = registry.states(now).filter(|(_, events, _)| *events != EventsState::Closed);
        states.filter_map(|(record, ..)| record.process.rank).collect()
    }

    #[test]
    fn user_takes_the_place_of_automatic_and_silent_processes() {
        let (mut registry, now) = (registry(5, true), Instant::now());
        assert_eq!(read(&registry, now), [0, 1]);
        registry.close_automatic(&name(1));
        assert_eq!(read(&registry, now), [0]);
        let none_silent = |_: &str| false;
        assert_eq!(registry.open(&name(4), now, none_silent), Ok(()));
        assert_eq!(registry.open(&name(3), now, none_silent), Ok(()));
        assert_eq!(read(&registry, now), [3, 4]);
        assert_eq!(registry.open(&name(0), now, none_silent), Err(OpenError::Full(2)));
        // An open process stays open, also when a user closes it on another server.
        assert_eq!(registry.open(&name(3), now, none_silent), Ok(()));
        registry.close_automatic(&name(3));
        let later = now + MIN_OPEN_TIME;
        assert_eq!(registry.open(&name(0), now, |name| name == self::name(4)), Err(OpenError::Full(2)));
        assert_eq!(registry.open(&name(0), later, |name| name == self::name(4)), Ok(()));
        assert_eq!(read(&registry, later), [0, 3]);
        registry.close(&name(3));
        assert_eq!(read(&registry, later), [0]);
        assert_eq!(registry.open(&name(9), later, none_silent), Err(OpenError::Unknown));
    }

    #[test]
    fn requests_of_other_servers_count_while_they_are_valid() {
        let (mut registry, now) = (registry(4, false), Instant::now());
        let second = Duration::from_secs(1);
        registry.requested(&name(2), now + 15 * second);
        registry.requested(&name(2), now + second);
        registry.requested(&name(3), now + 15 * second);
        registry.requested("unknown", now + second);
        assert_eq!(read(&registry, now), [2, 3]);
        // They are enough: nothing is opened without a user.
        assert!(!registry.describe(&record(4, Details::default()), true, now));
        assert_eq!(read(&registry, now), [2, 3]);
        assert!(read(&registry, now + 15 * second).is_empty());
        assert_eq!(registry.opened().count(), 0);
    }

    #[test]
    fn ended_processes_are_read_while_the_broker_has_their_events() {
        let (mut registry, now) = (registry(0, true), Instant::now());
        let ended = Details { has_ended: true, ..Details::default() };
        let sends_all = Details { sends_all: true, ..Details::default() };
        assert!(!registry.describe(&record(0, ended.clone()), false, now));
        assert!(!registry.describe(&record(1, Details { start_sequence: 7, ..ended }), false, now));
        assert!(registry.describe(&record(2, sends_all.clone()), true, now));
        assert!(!registry.describe(&record(3, sends_all), false, now));
        assert_eq!(registry.open(&name(0), now, |_| false), Err(OpenError::Ended));
        assert_eq!(registry.open(&name(1), now, |_| false), Ok(()));
        assert_eq!(registry.open(&name(2), now, |_| false), Ok(()));
        assert_eq!(read(&registry, now), [1, 2]);
        // A process that has ended is not asked.
        assert_eq!(registry.opened().count(), 0);
        assert!(registry.set_device(&name(1), 5));
        assert!(!registry.set_device(&name(1), 5));
        registry.finish(&name(1));
        assert_eq!(read(&registry, now), [2]);
        assert_eq!(registry.states(now).find_map(|(_, _, device)| device), Some(5));
        assert_eq!(registry.open(&name(1), now, |_| false), Err(OpenError::Ended));
    }
}
