//! Reconstructs the calls of a history: runs them through a pool and searches for the
//! interpretation under which the pool makes the recorded decisions.

use std::collections::VecDeque;
use std::rc::Rc;

use vramscope_trace::{EventKind, MempoolId, StreamId};

use super::call_log::{Call, CallLog};
use super::cursor::{Assumptions, DecisionChecker, HistoryCursor, Mismatch, Outcome, completion_stream};
use super::entry::{Entry, blocks_that_fill, freed_address, provides_memory};
use super::entry_group::{EntryGroup, Interpretation};
use super::fragmentation::FragmentationPeak;
use super::history::{History, StartStateError};
use super::private_pool_tracker::PrivatePoolTracker;
use super::recorded_device::RecordedDevice;
use super::search_state::{BranchPoint, COPY_COST, SearchState};
use crate::error::AllocateError;
use crate::pool::{Origin, Pool};
use crate::settings::Settings;

/// Maximum number of blocks in all copies of the pool that are saved for backtracking; the oldest
/// copies are dropped to stay below.
const MAX_SAVED_BLOCKS: u64 = 4 << 20;
/// Maximum number of times that an entry of a history is read again, on average, to try other
/// interpretations. At this limit the search ends with the best interpretation found.
const MAX_RETRIES_PER_ENTRY: u64 = 4;
/// Minimum of the number of entries that may be read again to try other interpretations; it applies
/// to short histories.
const MIN_RETRIED_ENTRIES: u64 = 100_000;
/// The initial budget for optional copies of the pool, as a number of copies of an empty pool. A
/// copy is optional if it is unlikely to be needed for backtracking.
const FIRST_COPIES: u64 = 256;
/// Number of blocks that each read entry adds to the budget for optional copies of the pool, which
/// backtracking is unlikely to need.
const BLOCKS_PER_ENTRY: u64 = 16;

/// Reconstructs the calls of one history: makes calls to a pool, and searches for a sequence of
/// calls under which the pool's events equal the recorded events.
#[derive(Debug)]
pub(super) struct Reconstructor<'h> {
    entries: &'h [Entry],
    history: &'h History,
    cursor: Rc<HistoryCursor<'h>>,
    state: SearchState<'h>,
    branch_points: VecDeque<BranchPoint<'h>>,
    /// The mismatch of the interpretation that explained most entries.
    furthest_mismatch: Option<Mismatch>,
    /// The number of entries that may still be read again.
    retry_budget: u64,
    /// The number of blocks that may still be copied for branch points that are unlikely to be
    /// needed.
    copy_budget: u64,
    /// The number of blocks in the copies in `branch_points`.
    saved_blocks: u64,
    log: Option<CallLog>,
}

impl<'h> Reconstructor<'h> {
    /// Creates a reconstructor before the first entry.
    ///
    /// # Errors
    /// [`StartStateError`] if no pool can have the history's start state.
    pub(super) fn new(history: &'h History, settings: &Settings, log_calls: bool) -> Result<Self, StartStateError> {
        let cursor = HistoryCursor::new(history);
        let device = RecordedDevice::new(Rc::clone(&cursor), settings);
        let no_split_pools = history.no_split_pools(settings);
        let mut settings = settings.clone();
        if history.total_bytes == 0 {
            // The device's size is unknown, so a fraction of it is too. The limit in bytes replaces
            // it.
            settings.per_process_memory_fraction = 1.0;
        }
        let mut pool = if history.starts_empty() {
            Pool::new(history.device, settings, device)
        } else {
            let restored = Pool::restore(history.device, settings, device, &history.start);
            restored.map_err(StartStateError)?
        };
        no_split_pools.iter().for_each(|&mempool| pool.set_no_split(mempool));
        let state = SearchState {
            pool,
            private_pools: PrivatePoolTracker::new(history),
            calls: 0,
            logged_calls: 0,
            peak_fragmentation: FragmentationPeak::default(),
        };
        let entries = history.entries.as_slice();
        let retry_budget = retry_budget_of(history);
        let (branch_points, log) = (VecDeque::new(), log_calls.then(CallLog::default));
        Ok(Self {
            entries,
            history,
            cursor,
            state,
            branch_points,
            furthest_mismatch: None,
            retry_budget,
            copy_budget: FIRST_COPIES * COPY_COST,
            saved_blocks: 0,
            log,
        })
    }

    /// Reads the history's entries to the end, or until no interpretation is left to try or the
    /// budget for trying is spent.
    pub(super) fn run(&mut self) {
        while self.cursor.position() < self.entries.len() {
            let before = self.cursor.position();
            let progressed = self.read_at(before) || self.backtrack();
            if !progressed {
                return;
            }
            let read = self.cursor.position().saturating_sub(before) as u64;
            self.copy_budget = self.copy_budget.saturating_add(read * BLOCKS_PER_ENTRY);
        }
        self.furthest_mismatch = None;
    }

    /// Returns how many entries, from the first on, the pool reproduces under the best
    /// interpretation found.
    pub(super) fn matched(&self) -> usize {
        self.furthest_mismatch.as_ref().map_or(self.entries.len(), |mismatch| mismatch.at)
    }

    /// Returns how many of the history's entries were read; an entry that was read again counts
    /// each time.
    pub(super) fn entries_read(&self) -> u64 {
        retry_budget_of(self.history) - self.retry_budget + self.cursor.position() as u64 + 1
    }

    /// Returns the first difference between the recorded events and the pool's under the best
    /// interpretation found; `None` if all are equal.
    pub(super) fn mismatch(&self) -> Option<&Mismatch> {
        self.furthest_mismatch.as_ref()
    }

    /// Returns the number of calls made to the pool for the entries read so far: requests, frees
    /// and emptied caches.
    pub(super) fn calls(&self) -> u64 {
        self.state.calls
    }

    /// Returns the number of private pools that had to be assumed because the recording does not
    /// contain their ids.
    pub(super) fn assumed_private_pools(&self) -> usize {
        self.state.private_pools.assumed_private_pools
    }

    /// Returns the pool in its state after the entries read so far.
    pub(super) fn pool(&self) -> &Pool<RecordedDevice<'h>> {
        &self.state.pool
    }

    /// Returns the largest fragmentation, from 0 to 1, that the pool had after any call; 0 if calls
    /// are not logged.
    pub(super) fn peak_fragmentation(&self) -> f64 {
        self.state.peak_fragmentation.peak()
    }

    /// Returns the reconstructed calls; empty if the reconstructor was created without logging.
    pub(super) fn into_log(self) -> CallLog {
        self.log.unwrap_or_default()
    }

    /// Makes the calls that most likely led to the entries from index `at` on. Returns true if the
    /// pool's events equal the recorded ones, false after a mismatch.
    fn read_at(&mut self, at: usize) -> bool {
        self.cursor.seek(at, Assumptions::DEFAULT);
        match self.entries[at].kind {
            EventKind::FreeRequested { address, .. } => {
                let completion = self.history.deferred_frees.get(&at).copied();
                if completion.is_none()
                    && let Some(group) = EntryGroup::with_leading_free(self.entries, at)
                {
                    return self.read_group(group);
                }
                self.free(at, address, completion);
            }
            EventKind::FreeCompleted { address, .. } if !self.history.has_free_requests => self.free(at, address, None),
            EventKind::BlockAllocated { address, pool, .. } => {
                let owner = self.state.private_pools.owner_of_block(address, pool.owner);
                self.request_or_restore(at, address, owner);
            }
            _ => return self.read_group(EntryGroup::at(self.entries, at)),
        }
        self.check_decisions(None)
    }

    /// Returns true if the pool's events equal the recorded ones and, if `end` is given, the last
    /// equal one is directly before the entry with that index. Returns false after a mismatch,
    /// which is kept if it is further on in the history than all earlier ones.
    fn check_decisions(&mut self, end: Option<usize>) -> bool {
        if end.is_some_and(|end| self.cursor.position() != end) {
            self.cursor.record_mismatch(Outcome::Nothing);
        }
        let Some(mismatch) = self.cursor.mismatch() else { return true };
        if self.furthest_mismatch.as_ref().is_none_or(|furthest_mismatch| furthest_mismatch.at < mismatch.at) {
            self.furthest_mismatch = Some(mismatch);
        }
        false
    }

    /// Makes the calls of an entry group under its most likely interpretation, and saves the others
    /// for backtracking. Returns true if the pool's events equal the recorded ones.
    fn read_group(&mut self, group: EntryGroup) -> bool {
        let owners = self.candidate_owners(&group);
        let mut interpretations = group.interpretations(self.entries, &owners);
        if interpretations.is_empty() {
            return false;
        }
        let first = interpretations.remove(0);
        // A branch point may be omitted only if its alternatives differ in nothing but the pool:
        // the most likely pool is almost certain, and copies are expensive.
        let must_save = interpretations.iter().any(|interpretation| interpretation.owner == first.owner);
        if !interpretations.is_empty() && (must_save || self.spend_copy_budget()) {
            self.save_interpretations(group, interpretations);
        }
        self.attempt(&group, &first)
    }

    /// Saves the present state with `interpretations` (most likely first) of the entry group that
    /// comes next, to try them if the present interpretation fails later.
    fn save_interpretations(&mut self, group: EntryGroup, mut interpretations: Vec<Interpretation>) {
        interpretations.reverse();
        if !interpretations.is_empty() {
            self.save(BranchPoint { state: self.state.clone(), group, interpretations });
        }
    }

    /// Adds a state to return to, and drops the oldest ones until all have at most
    /// [`MAX_SAVED_BLOCKS`] blocks together.
    fn save(&mut self, branch: BranchPoint<'h>) {
        self.saved_blocks += branch.state.copy_cost();
        self.branch_points.push_back(branch);
        while self.saved_blocks > MAX_SAVED_BLOCKS
            && let Some(oldest) = self.branch_points.pop_front()
        {
            self.saved_blocks -= oldest.state.copy_cost();
        }
    }

    /// Takes the cost of a copy of the present state from the budget for optional copies and
    /// returns true. Returns false, changing nothing, if the budget does not suffice.
    fn spend_copy_budget(&mut self) -> bool {
        let left = self.copy_budget.checked_sub(self.state.copy_cost());
        self.copy_budget = left.unwrap_or(self.copy_budget);
        left.is_some()
    }

    /// Returns the pools, default or private, that may have served the request of an entry group,
    /// most likely first.
    fn candidate_owners(&self, group: &EntryGroup) -> Vec<MempoolId> {
        let private_pools = &self.state.private_pools;
        let Some(request) = group.request else { return vec![MempoolId::default()] };
        match self.entries[request].kind {
            EventKind::BlockAllocated { address, stream, pool, .. } => {
                let created_at =
                    (group.start..request).rfind(|&position| provides_memory(&self.entries[position].kind, address));
                // A segment that the group has created may be where it has released another pool's.
                let known = match created_at {
                    Some(_) => pool.owner,
                    None => private_pools.owner_of_block(address, pool.owner),
                };
                if known != MempoolId::default() || self.history.has_pools_of_freed_segments {
                    return vec![known];
                }
                match created_at.filter(|position| self.history.short_lived.binary_search(position).is_ok()) {
                    Some(_) => private_pools.candidates(stream, self.history.next_recorded_pool(request, stream)),
                    None => vec![known],
                }
            }
            EventKind::OutOfMemory { stream, .. } => {
                let mut candidates = private_pools.candidates(stream, self.history.next_recorded_pool(request, stream));
                // A failed request to an otherwise unknown pool is considered only if there are
                // private pools.
                if !private_pools.has_private_pools() {
                    candidates.truncate(1);
                }
                candidates
            }
            _ => vec![MempoolId::default()],
        }
    }

    /// Makes the calls of an entry group under one interpretation. Returns true if the pool's
    /// events equal the recorded ones, false after a mismatch.
    fn attempt(&mut self, group: &EntryGroup, interpretation: &Interpretation) -> bool {
        let mut owner = MempoolId::default();
        self.cursor.seek(group.start, Assumptions::DEFAULT);
        if group.has_leading_free
            && let Some(address) = freed_address(&self.entries[group.start].kind)
        {
            let waits = interpretation.request_start == group.calls_start();
            self.free(group.start, address, waits.then_some(group.start + 1));
        }
        while self.cursor.position() < interpretation.request_start && !self.cursor.has_mismatch() {
            let before = self.cursor.position();
            self.read_earlier_call(before, interpretation.request_start);
            if self.cursor.position() == before {
                self.cursor.record_mismatch(Outcome::Nothing);
            }
        }
        if self.cursor.position() != interpretation.request_start {
            self.cursor.record_mismatch(Outcome::Nothing);
        }
        if let (Some(request), false) = (group.request, self.cursor.has_mismatch()) {
            self.cursor.seek(interpretation.request_start, interpretation.assumptions);
            owner = interpretation.owner;
            self.release_pools(interpretation.request_start, request);
            self.request(request, owner, interpretation.assumptions);
            if self.cursor.driver_refused() && !interpretation.assumptions.driver_may_refuse {
                self.cursor
                    .record_mismatch(Outcome::Failure("the driver refused memory that it had provided".to_owned()));
                return false;
            }
        }
        let matches = self.check_decisions(Some(group.end));
        if matches {
            self.state.private_pools.apply(&self.entries[group.start..group.end], owner);
        }
        matches
    }

    /// Returns to the newest saved state with an untried interpretation under which the pool's
    /// events equal the recorded ones, and returns true. Returns false if none is left or the
    /// budget is spent.
    fn backtrack(&mut self) -> bool {
        while let Some(mut branch) = self.branch_points.pop_back() {
            self.saved_blocks -= branch.state.copy_cost();
            let Some(interpretation) = branch.interpretations.pop() else { continue };
            let lost = self.cursor.position().abs_diff(branch.group.start) as u64 + 1;
            let Some(retry_budget) = self.retry_budget.checked_sub(lost) else { return false };
            self.retry_budget = retry_budget;
            let group = branch.group;
            let state = if branch.interpretations.is_empty() {
                branch.state
            } else {
                let state = branch.state.clone();
                self.save(branch);
                state
            };
            self.return_to(state);
            if self.attempt(&group, &interpretation) {
                return true;
            }
        }
        false
    }

    /// Continues the reconstruction from a saved earlier state, and removes later calls from the
    /// log.
    fn return_to(&mut self, state: SearchState<'h>) {
        self.state = state;
        if let Some(log) = &mut self.log {
            log.truncate(self.state.logged_calls);
        }
    }

    /// Makes a call that the program made before a group's request: emptying the cache if the
    /// entries from index `from` on release memory, else processing stream events. The call led to
    /// no entry from index `until` on.
    fn read_earlier_call(&mut self, from: usize, until: usize) {
        let sink = &mut DecisionChecker(Rc::clone(&self.cursor));
        match EntryGroup::cache_release_end(self.entries, from, until) {
            Some(end) => {
                let released = &self.entries[from..end];
                let first = self.state.private_pools.first_released_pool(released);
                let end = from + self.state.private_pools.single_empty_cache_len(released);
                self.release_pools(from, end);
                self.state.calls += 1;
                let before = first.map(|first| (first, self.state.pool.clone()));
                self.cursor.expect_success(self.state.pool.empty_cache(Origin::default(), sink));
                match before {
                    // The default pool would have released memory or waited, but did not, so only a
                    // private pool was emptied.
                    Some((owner, pool)) if self.cursor.has_mismatch() => {
                        self.state.pool = pool;
                        self.cursor.seek(from, Assumptions::DEFAULT);
                        self.empty_pool(owner);
                    }
                    _ => self.log_call(Call::EmptyCache),
                }
            }
            None => {
                self.cursor.expect_success(self.state.pool.process_events(Origin::default(), sink));
                self.log_call(Call::ProcessEvents);
            }
        }
    }

    /// Releases the cached memory of the private pool `owner`, as a destroyed `MemPool` does.
    fn empty_pool(&mut self, owner: MempoolId) {
        let sink = &mut DecisionChecker(Rc::clone(&self.cursor));
        self.cursor.expect_success(self.state.pool.empty_private_pool(owner, Origin::default(), sink));
        self.log_call(Call::EmptyPool(owner));
    }

    /// Removes the last user of each private pool with a segment that the entries `from..until`
    /// release: the program must have done so before, which no entry shows.
    fn release_pools(&mut self, from: usize, until: usize) {
        for owner in self.state.private_pools.pools_released_by(&self.entries[from..until]) {
            self.state.private_pools.created.remove(&owner);
            self.cursor.expect_success(self.state.pool.release_pool(owner));
            self.log_call(Call::ReleasePool(owner));
        }
    }

    /// Frees the block at `address`, as the entry with index `at` shows. The free completes at once
    /// or, if `completion` is given, at the entry with that index.
    fn free(&mut self, at: usize, address: u64, completion: Option<usize>) {
        let sink = &mut DecisionChecker(Rc::clone(&self.cursor));
        let pool = &mut self.state.pool;
        self.state.calls += 1;
        let used = completion.map_or(Ok(()), |completed| pool.record_stream(address, completion_stream(completed)));
        self.cursor.expect_success(used.and_then(|()| pool.free(address, Origin::default(), sink)));
        self.log_call(completion.map_or(Call::Free(at), |completed| Call::DeferredFree { at, completed }));
    }

    /// Makes the request whose block or failure is the entry with index `at`, from the pool
    /// `owner`.
    fn request(&mut self, at: usize, owner: MempoolId, assumptions: Assumptions) {
        let (bytes, stream) = match self.entries[at].kind {
            EventKind::BlockAllocated { requested, stream, .. } | EventKind::OutOfMemory { requested, stream, .. } => {
                (requested, stream)
            }
            _ => (0, StreamId::default()),
        };
        if !self.state.private_pools.record_request(stream, owner) {
            let reason = "a request to a private pool whose capture had ended";
            self.cursor.record_mismatch(Outcome::Failure(reason.to_owned()));
            return;
        }
        self.state.calls += 1;
        let sink = &mut DecisionChecker(Rc::clone(&self.cursor));
        match self.state.allocate(bytes, stream, owner, assumptions.other_capture, sink) {
            Ok(()) if self.cursor.position() <= at => self.cursor.record_mismatch(Outcome::Nothing),
            // Out of memory is a recorded decision like any other.
            Ok(()) | Err(AllocateError::OutOfMemory(_)) => {}
            Err(error) => self.cursor.record_mismatch(Outcome::Failure(error.to_string())),
        }
        self.log_call(Call::Request { at, owner, events_pass: assumptions.events_pass });
    }

    /// Makes the request whose block, at `address`, is the entry with index `at`. If blocks from it
    /// on fill a free segment of the private pool `owner`, makes all their requests, or restores
    /// these blocks, as the program must have done if the pool decides otherwise.
    fn request_or_restore(&mut self, at: usize, address: u64, owner: MempoolId) {
        let is_private = owner != MempoolId::default();
        let segment_bytes = is_private.then(|| self.state.pool.unused_private_segment_bytes(address)).flatten();
        let sizes = segment_bytes.and_then(|bytes| blocks_that_fill(bytes, &self.entries[at..]));
        let Some(sizes) = sizes.filter(|_| self.spend_copy_budget()) else {
            return self.request(at, owner, Assumptions::DEFAULT);
        };
        let before = self.state.clone();
        (at..at + sizes.len()).for_each(|at| self.request(at, owner, Assumptions::DEFAULT));
        if !self.cursor.has_mismatch() {
            return;
        }
        self.return_to(before);
        self.cursor.seek(at, Assumptions::DEFAULT);
        let sink = &mut DecisionChecker(Rc::clone(&self.cursor));
        self.state.pool.fill_segment(address, &sizes, Origin::default(), sink);
        self.state.calls += 1;
        (at..at + sizes.len()).for_each(|at| self.log_call(Call::Request { at, owner, events_pass: true }));
    }

    /// Adds a call to the log, as leading to the entries up to the cursor, and measures the pool's
    /// fragmentation after it. Does nothing if calls are not logged.
    fn log_call(&mut self, call: Call) {
        if let Some(log) = &mut self.log {
            log.push(call, self.cursor.position());
            let state = &mut self.state;
            state.logged_calls = log.len();
            state.peak_fragmentation.raise(&state.pool);
        }
    }
}

/// Returns how many entries of a history may be read again to try other interpretations. A history
/// with assumed private pools gets fewer, because it is one of many that are tried.
fn retry_budget_of(history: &History) -> u64 {
    let share = if history.assumed_private_pools > 0 { 8 } else { 1 };
    (history.events().saturating_mul(MAX_RETRIES_PER_ENTRY)).max(MIN_RETRIED_ENTRIES) / share
}
