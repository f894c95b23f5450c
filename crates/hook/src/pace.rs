//! The pace of work that is done in the program: snapshots, and searches for modules. Each takes at
//! most 2% of one thread's time.

use std::time::{Duration, Instant};

/// Minimum time between a snapshot and the request for another one.
const MIN_SNAPSHOT_PAUSE: Duration = Duration::from_secs(1);
/// Minimum pause after a snapshot, as a multiple of the snapshot's duration: snapshots take at most
/// 2% of one thread's time. The Python package uses an equal factor.
pub(crate) const PAUSE_FACTOR: u32 = 50;
/// Longest pause after a search for modules, as a multiple of the search's duration: one search
/// every 40 s, if it takes 0.1 s.
const MAX_PAUSE_FACTOR: u32 = 8 * PAUSE_FACTOR;

/// Decides when a snapshot may be requested after events were lost.
#[derive(Debug, Default)]
pub(crate) struct SnapshotPace {
    /// True from a request to the snapshot.
    is_requested: bool,
    /// When the last snapshot was begun.
    prepared: Option<Instant>,
    /// Earliest time of the next request; `None` for at once.
    next: Option<Instant>,
}

impl SnapshotPace {
    /// Returns true if a snapshot may be requested at the time `now`.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        !self.is_requested && self.next.is_none_or(|next| now >= next)
    }

    /// Records that a snapshot has been requested.
    pub(crate) fn requested(&mut self) {
        self.is_requested = true;
    }

    /// Records that a snapshot began at the time `now`.
    pub(crate) fn prepared(&mut self, now: Instant) {
        self.prepared = Some(now);
    }

    /// Records that the snapshot was finished at the time `now`, and starts the pause after it.
    pub(crate) fn taken(&mut self, now: Instant) {
        let duration = self.prepared.take().map_or(Duration::ZERO, |prepared| now.duration_since(prepared));
        self.next = now.checked_add(duration.saturating_mul(PAUSE_FACTOR).max(MIN_SNAPSHOT_PAUSE));
        self.is_requested = false;
    }
}

/// Decides when a search for the program's modules may begin. A program that creates modules in
/// every step always needs another search: the pauses then become longer.
#[derive(Debug)]
pub(crate) struct SearchPace {
    is_searching: bool,
    /// When the next search may begin; `None` for at once.
    next: Option<Instant>,
    /// The last pause, as a multiple of the duration of the search before it.
    factor: u32,
    /// True if a search was needed during the pause.
    was_needed: bool,
}

impl Default for SearchPace {
    fn default() -> Self {
        Self { is_searching: false, next: None, factor: PAUSE_FACTOR, was_needed: false }
    }
}

impl SearchPace {
    /// Returns true if a search may begin at the time `now`. During a pause, also remembers that a
    /// search was needed.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_paused = self.next.is_some_and(|next| now < next);
        self.was_needed |= is_paused;
        !self.is_searching && !is_paused
    }

    /// Begins a search and returns true, or returns false if none may begin at the time `now`.
    pub(crate) fn begin(&mut self, now: Instant) -> bool {
        let is_due = self.is_due(now);
        self.is_searching |= is_due;
        is_due
    }

    /// Ends the search at the time `now`, after it took `duration`, and starts the pause after it.
    pub(crate) fn end(&mut self, now: Instant, duration: Duration) {
        let was_needed = std::mem::take(&mut self.was_needed);
        self.factor = if was_needed { (2 * self.factor).min(MAX_PAUSE_FACTOR) } else { PAUSE_FACTOR };
        self.next = now.checked_add(duration.saturating_mul(self.factor));
        self.is_searching = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_after_a_snapshot_depends_on_its_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = SnapshotPace::default();
        let mut take = |begin, end| {
            assert!(pace.is_due(at(begin)));
            pace.requested();
            assert!(!pace.is_due(at(begin)), "the request waits");
            pace.prepared(at(begin));
            pace.taken(at(end));
            let is_due = |ms| pace.is_due(at(ms));
            (is_due(end + 999), is_due(end + 1000), is_due(end + 4999), is_due(end + 5000))
        };
        assert_eq!(take(0, 1), (false, true, true, true));
        assert_eq!(take(2000, 2100), (false, false, false, true));
    }

    #[test]
    fn searches_become_rarer_while_each_pause_ends_with_another() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut pace = SearchPace::default();
        assert!(pace.is_due(at(0)));
        assert!(pace.begin(at(0)));
        assert!(!pace.is_due(at(1)) && !pace.begin(at(1)), "one at a time");
        pace.end(at(0), Duration::ZERO);
        // Runs a search of 10 ms that ends at `end`, and checks the pause after it. `is_needed`:
        // another search is needed during the pause.
        let mut check = |end: u64, pause: u64, is_needed: bool| {
            assert!(pace.begin(at(end - 10)), "at {end} ms");
            pace.end(at(end), Duration::from_millis(10));
            // A request that was made during the pause must not begin another search.
            assert!(!is_needed || !pace.begin(at(end + pause - 1)), "at {end} ms");
            assert!(pace.is_due(at(end + pause)), "at {end} ms");
        };
        check(10, 500, true);
        check(1000, 1000, true);
        check(3000, 2000, true);
        check(6000, 4000, true);
        check(11_000, 4000, false);
        check(20_000, 500, true);
    }
}
