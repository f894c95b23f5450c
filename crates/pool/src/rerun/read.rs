//! Runs a history's calls through the pool and finds, where there are several readings, the one that explains it.

use std::collections::VecDeque;
use std::rc::Rc;

use vramscope_trace::{EventKind, MempoolId, StreamId};

use super::group::{Group, Reading};
use super::history::{Entry, History, freed_address};
use super::log::{Call, Log};
use super::owners::Owners;
use super::script::{Checker, Got, Manner, Mismatch, RecordedDevice, Script, late_stream, other_capture};
use crate::error::AllocateError;
use crate::mempool::Diverted;
use crate::pool::{Origin, Pool};
use crate::settings::Settings;

/// How many blocks the copies may have together that are kept to go back to.
const MAX_KEPT_BLOCKS: u64 = 4 << 20;
/// Going back may cost as many entries as the history has, so often, and some for short ones.
const MAX_RETRIED_HISTORIES: u64 = 4;
const MIN_RETRIED_ENTRIES: u64 = 100_000;
/// What copying a pool costs beside its blocks, in blocks.
const COPY_COST: u64 = 2_000;
/// How many copies a history may be worth from the start, and how many blocks of copies each entry adds to that.
const FIRST_COPIES: u64 = 256;
const BLOCKS_PER_ENTRY: u64 = 16;

/// The pool at one place of the history, and what is known of it beside.
#[derive(Clone, Debug)]
struct Here<'h> {
    pool: Pool<RecordedDevice<'h>>,
    owners: Owners,
    requests: u64,
    /// Length of the log, and the largest fragmentation after one of its calls.
    logged: usize,
    peak_fragmentation: f64,
}

impl Here<'_> {
    /// What a copy is worth, in blocks.
    fn copied_blocks(&self) -> u64 {
        2 * self.pool.counters.active() + COPY_COST
    }
}

/// A place to go back to.
#[derive(Debug)]
struct Turn<'h> {
    here: Here<'h>,
    group: Group,
    /// Those not tried yet, the next one last.
    readings: Vec<Reading>,
}

/// Reads one history.
#[derive(Debug)]
pub(super) struct Reader<'h> {
    entries: &'h [Entry],
    history: &'h History,
    script: Rc<Script<'h>>,
    here: Here<'h>,
    turns: VecDeque<Turn<'h>>,
    /// The difference that the best reading came to.
    furthest: Option<Mismatch>,
    /// Entries that may yet be read again.
    patience: u64,
    /// Blocks that may be copied where the likeliest reading is nearly certain, only to be able to go back.
    credit: u64,
    /// Blocks of the copies in `turns`.
    kept_blocks: u64,
    log: Option<Log>,
}

impl<'h> Reader<'h> {
    /// A reader before the first entry.
    ///
    /// # Errors
    /// Why no pool can be in the state that the history begins with.
    pub(super) fn new(history: &'h History, settings: &Settings, logs: bool) -> Result<Self, String> {
        let script = Script::new(history);
        let device = RecordedDevice::new(Rc::clone(&script), settings);
        let mut settings = settings.clone();
        if history.total_bytes == 0 {
            // A share of nobody knows what; the limit in bytes says what it came to.
            settings.per_process_memory_fraction = 1.0;
        }
        let pool = if history.starts_empty() {
            Pool::new(history.device, settings, device)
        } else {
            let restored = Pool::restore(history.device, settings, device, &history.start);
            restored.map_err(|error| error.to_string())?
        };
        let here = Here { pool, owners: Owners::new(history), requests: 0, logged: 0, peak_fragmentation: 0.0 };
        let entries = history.entries.as_slice();
        let patience = most_retried(history);
        let (turns, log) = (VecDeque::new(), logs.then(Log::default));
        Ok(Self {
            entries,
            history,
            script,
            here,
            turns,
            furthest: None,
            patience,
            credit: FIRST_COPIES * COPY_COST,
            kept_blocks: 0,
            log,
        })
    }

    /// Reads to the end, or to where no reading leads on.
    pub(super) fn read(&mut self) {
        while self.script.at() < self.entries.len() {
            let before = self.script.at();
            let made = self.step(before) || self.go_back();
            if !made {
                return;
            }
            let read = self.script.at().saturating_sub(before) as u64;
            self.credit = self.credit.saturating_add(read * BLOCKS_PER_ENTRY);
        }
        self.furthest = None;
    }

    /// How many entries the best reading explains.
    pub(super) fn matched(&self) -> usize {
        self.furthest.as_ref().map_or(self.entries.len(), |mismatch| mismatch.at)
    }

    /// How many entries were read, those read again counted again.
    pub(super) fn read_entries(&self) -> u64 {
        most_retried(self.history) - self.patience + self.script.at() as u64 + 1
    }

    pub(super) fn mismatch(&self) -> Option<&Mismatch> {
        self.furthest.as_ref()
    }

    pub(super) fn requests(&self) -> u64 {
        self.here.requests
    }

    pub(super) fn assumed_pools(&self) -> usize {
        self.here.owners.assumed
    }

    pub(super) fn pool(&self) -> &Pool<RecordedDevice<'h>> {
        &self.here.pool
    }

    /// The largest fragmentation after a call, where calls are logged.
    pub(super) fn peak_fragmentation(&self) -> f64 {
        self.here.peak_fragmentation
    }

    /// The calls, where they are logged.
    pub(super) fn into_log(self) -> Log {
        self.log.unwrap_or_default()
    }

    /// Reads what begins at `at`, under its likeliest reading.
    fn step(&mut self, at: usize) -> bool {
        self.script.go(at, Manner::FREELY);
        match self.entries[at].kind {
            EventKind::FreeRequested { address, .. } => {
                let late = self.history.late_frees.get(&at).copied();
                if late.is_none()
                    && let Some(group) = Group::with_free(self.entries, at)
                {
                    self.keep_readings(group, group.waiting_readings(self.entries, &self.owners_of(&group)));
                }
                self.free(at, address, late);
            }
            EventKind::FreeCompleted { address, .. } if !self.history.has_free_requests => self.free(at, address, None),
            EventKind::BlockAllocated { address, pool, .. } => {
                let owner = self.here.owners.of_block(address, pool.owner);
                self.request(at, owner, Manner::FREELY);
            }
            _ => return self.group(at),
        }
        self.is_made(None)
    }

    /// Whether the pool has decided what was recorded, up to `end` where that is known.
    fn is_made(&mut self, end: Option<usize>) -> bool {
        if end.is_some_and(|end| self.script.at() != end) {
            self.script.differ(Got::Nothing);
        }
        let Some(mismatch) = self.script.mismatch() else { return true };
        if self.furthest.as_ref().is_none_or(|furthest| furthest.at < mismatch.at) {
            self.furthest = Some(mismatch);
        }
        false
    }

    fn group(&mut self, at: usize) -> bool {
        let group = Group::at(self.entries, at);
        let owners = self.owners_of(&group);
        let mut readings = group.readings(self.entries, &owners);
        if readings.is_empty() {
            return false;
        }
        let first = readings.remove(0);
        // Only of the pool's name is the likeliest reading sure enough to do without a way back, where that is too dear.
        let must = readings.iter().any(|reading| reading.owner == first.owner);
        if !readings.is_empty() && (must || self.can_afford_copy()) {
            self.keep_readings(group, readings);
        }
        self.attempt(&group, &first)
    }

    /// Keeps readings, the likeliest first, to come back to.
    fn keep_readings(&mut self, group: Group, mut readings: Vec<Reading>) {
        readings.reverse();
        if !readings.is_empty() {
            self.keep(Turn { here: self.here.clone(), group, readings });
        }
    }

    fn keep(&mut self, turn: Turn<'h>) {
        self.kept_blocks += turn.here.copied_blocks();
        self.turns.push_back(turn);
        while self.kept_blocks > MAX_KEPT_BLOCKS
            && let Some(oldest) = self.turns.pop_front()
        {
            self.kept_blocks -= oldest.here.copied_blocks();
        }
    }

    fn can_afford_copy(&mut self) -> bool {
        let left = self.credit.checked_sub(self.here.copied_blocks());
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }

    /// The pools that a group's request may have asked, the likeliest first.
    fn owners_of(&self, group: &Group) -> Vec<MempoolId> {
        let owners = &self.here.owners;
        let Some(request) = group.request else { return vec![MempoolId::default()] };
        match self.entries[request].kind {
            EventKind::BlockAllocated { address, stream, pool, .. } => {
                let known = owners.of_block(address, pool.owner);
                if known != MempoolId::default() || self.history.names_lost_pools {
                    return vec![known];
                }
                let made = (group.begin..request).rfind(|&place| makes(&self.entries[place].kind, address));
                match made.filter(|place| self.history.short_lived.binary_search(place).is_ok()) {
                    Some(_) => owners.candidates(stream, self.history.next_named_pool(request, stream)),
                    None => vec![known],
                }
            }
            EventKind::OutOfMemory { stream, .. } => {
                let mut candidates = owners.candidates(stream, self.history.next_named_pool(request, stream));
                // That it was a pool of which nothing else is known is believed only where there are such pools.
                if !owners.has_private_pools() {
                    candidates.truncate(1);
                }
                candidates
            }
            _ => vec![MempoolId::default()],
        }
    }

    /// Reads a group in one way, from where it begins.
    fn attempt(&mut self, group: &Group, reading: &Reading) -> bool {
        let mut owner = MempoolId::default();
        self.script.go(group.begin, Manner::FREELY);
        if group.has_free
            && let Some(address) = freed_address(&self.entries[group.begin].kind)
        {
            self.free(group.begin, address, Some(group.begin + 1));
        }
        while self.script.at() < reading.request_from && !self.script.has_mismatch() {
            let before = self.script.at();
            self.call_before(before, reading.request_from);
            if self.script.at() == before {
                self.script.differ(Got::Nothing);
            }
        }
        if self.script.at() != reading.request_from {
            self.script.differ(Got::Nothing);
        }
        if let (Some(request), false) = (group.request, self.script.has_mismatch()) {
            self.script.go(reading.request_from, reading.manner);
            owner = reading.owner;
            self.release_pools(reading.request_from, request);
            self.request(request, owner, reading.manner);
            if self.script.has_refused() && !reading.manner.refuses {
                self.script.differ(Got::Failure("a driver that had room refused".to_owned()));
                return false;
            }
        }
        let made = self.is_made(Some(group.end));
        if made {
            self.here.owners.follow(&self.entries[group.begin..group.end], owner);
        }
        made
    }

    /// Goes back to the last place with an untried reading that leads on.
    fn go_back(&mut self) -> bool {
        while let Some(mut turn) = self.turns.pop_back() {
            self.kept_blocks -= turn.here.copied_blocks();
            let Some(reading) = turn.readings.pop() else { continue };
            let lost = self.script.at().abs_diff(turn.group.begin) as u64 + 1;
            let Some(patience) = self.patience.checked_sub(lost) else { return false };
            self.patience = patience;
            let group = turn.group;
            if turn.readings.is_empty() {
                self.here = turn.here;
            } else {
                self.here = turn.here.clone();
                self.keep(turn);
            }
            if let Some(log) = &mut self.log {
                log.truncate(self.here.logged);
            }
            if self.attempt(&group, &reading) {
                return true;
            }
        }
        false
    }

    /// A call that the program made in front of a request.
    fn call_before(&mut self, from: usize, until: usize) {
        let sink = &mut Checker(Rc::clone(&self.script));
        match Group::call_before(self.entries, from, until) {
            Some(end) => {
                let given_back = &self.entries[from..end];
                let first = self.here.owners.first_emptied(given_back);
                let end = from + self.here.owners.emptied_at_once(given_back);
                self.release_pools(from, end);
                self.here.requests += 1;
                let before = first.map(|first| (first, self.here.pool.clone()));
                let emptied = self.here.pool.empty_cache(Origin::default(), sink);
                let failure = emptied.err().map(|error| Got::Failure(error.to_string()));
                failure.into_iter().for_each(|failure| self.script.differ(failure));
                match before {
                    // The default pool held something, or waited for it, and kept it.
                    Some((owner, pool)) if self.script.has_mismatch() => {
                        self.here.pool = pool;
                        self.script.go(from, Manner::FREELY);
                        self.empty_pool(owner);
                    }
                    _ => self.log(Call::EmptyCache),
                }
            }
            None => {
                if let Err(error) = self.here.pool.process_events(Origin::default(), sink) {
                    self.script.differ(Got::Failure(error.to_string()));
                }
                self.log(Call::ProcessEvents);
            }
        }
    }

    /// The program lets go of a private pool, which is emptied then and nothing else.
    fn empty_pool(&mut self, owner: MempoolId) {
        let sink = &mut Checker(Rc::clone(&self.script));
        if let Err(error) = self.here.pool.empty_private_pool(owner, Origin::default(), sink) {
            self.script.differ(Got::Failure(error.to_string()));
        }
        self.log(Call::EmptyPool(owner));
    }

    /// A private pool's segments are given back only after the program has released it, which leaves no entry.
    fn release_pools(&mut self, from: usize, until: usize) {
        for owner in self.here.owners.released_before(&self.entries[from..until]) {
            self.here.owners.created.remove(&owner);
            if let Err(error) = self.here.pool.release_pool(owner) {
                self.script.differ(Got::Failure(error.to_string()));
            }
            self.log(Call::ReleasePool(owner));
        }
    }

    /// The free at `at`, completed at once or at the place `late`.
    fn free(&mut self, at: usize, address: u64, late: Option<usize>) {
        let sink = &mut Checker(Rc::clone(&self.script));
        let pool = &mut self.here.pool;
        self.here.requests += 1;
        let used = late.map_or(Ok(()), |completed| pool.record_stream(address, late_stream(completed)));
        if let Err(error) = used.and_then(|()| pool.free(address, Origin::default(), sink)) {
            self.script.differ(Got::Failure(error.to_string()));
        }
        self.log(if self.history.late_frees.contains_key(&at) { Call::FreeLater(at) } else { Call::Free(at) });
    }

    /// The request that the entry at `at` answers.
    fn request(&mut self, at: usize, owner: MempoolId, manner: Manner) {
        let (bytes, stream) = match self.entries[at].kind {
            EventKind::BlockAllocated { requested, stream, .. } | EventKind::OutOfMemory { requested, stream, .. } => {
                (requested, stream)
            }
            _ => (0, StreamId::default()),
        };
        if !self.here.owners.ask(stream, owner) {
            let what = "a request to a private pool whose capture was over";
            self.script.differ(Got::Failure(what.to_owned()));
            return;
        }
        self.here.requests += 1;
        match self.allocate(bytes, stream, owner, manner.captured) {
            Ok(()) if self.script.at() <= at => self.script.differ(Got::Nothing),
            // That there was no room is an entry like any other.
            Ok(()) | Err(AllocateError::OutOfMemory(_)) => {}
            Err(error) => self.script.differ(Got::Failure(error.to_string())),
        }
        self.log(Call::Request { at, owner, passes: manner.passes });
    }

    fn allocate(
        &mut self,
        bytes: u64,
        stream: StreamId,
        owner: MempoolId,
        captured: bool,
    ) -> Result<(), AllocateError> {
        let sink = &mut Checker(Rc::clone(&self.script));
        let Here { pool, owners, .. } = &mut self.here;
        if owner == MempoolId::default() && !captured {
            return pool.allocate(bytes, stream, Origin::default(), sink).map(drop);
        }
        let (diverted, what) = if captured { other_capture() } else { (owner, Diverted::Everything) };
        if captured || owners.created.insert(owner) {
            pool.create_pool(diverted)?;
        }
        pool.begin_allocate_to_pool(diverted, what)?;
        let allocated = pool.allocate(bytes, stream, Origin::default(), sink);
        // The user that began it goes; the pool keeps the one it was created with.
        pool.end_allocate_to_pool(diverted)?;
        pool.release_pool(diverted)?;
        if captured {
            pool.release_pool(diverted)?;
        }
        allocated.map(drop)
    }

    fn log(&mut self, call: Call) {
        if let Some(log) = &mut self.log {
            log.push(call, self.script.at());
            let here = &mut self.here;
            here.logged = log.len();
            here.peak_fragmentation = here.peak_fragmentation.max(here.pool.fragmentation());
        }
    }
}

/// How many entries of a history may be read again. Where its private pools were found before, fewer: there is less to try, and more such
/// histories.
fn most_retried(history: &History) -> u64 {
    let share = if history.assumed_pools > 0 { 8 } else { 1 };
    (history.events().saturating_mul(MAX_RETRIED_HISTORIES)).max(MIN_RETRIED_ENTRIES) / share
}

/// Whether an entry makes the memory at `address`.
fn makes(kind: &EventKind, at: u64) -> bool {
    match *kind {
        EventKind::SegmentAllocated { address, size, .. } | EventKind::SegmentMapped { address, size, .. } => {
            at.checked_sub(address).is_some_and(|offset| offset < size)
        }
        _ => false,
    }
}
