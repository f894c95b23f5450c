//! Does the pool decide as the recorded allocator did?

use super::hidden::with_hidden_pools;
use super::history::History;
use super::read::Reader;
use super::script::{Got, got_in_words, in_words};
use super::tails::with_tail;
use crate::settings::Settings;
use crate::stats::Stats;

/// What came of running one history through the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// Calls made to the pool: requests, frees and cache emptyings.
    pub requests: u64,
    /// Recorded decisions.
    pub events: u64,
    /// How many of them, from the first on, the pool made in the same way.
    pub matched: u64,
    /// The first that it did not.
    pub divergence: Option<Divergence>,
    /// The pool's counters after the last event that matched.
    pub stats: Stats,
    /// Private pools that had to be assumed because the recording does not name them.
    pub assumed_pools: u64,
}

/// A recorded decision and the pool's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The event's number in the recording.
    pub event: u64,
    /// What was recorded, in words.
    pub expected: String,
    /// What the pool did, in words.
    pub got: String,
}

/// Runs the calls that a history comes from through a pool under `settings`, on a device that answers as the recorded driver did, and
/// compares everything that the pool decides. Where the state that the history begins with is not certain and leads to a difference before
/// it is, the comparison begins where it is.
#[must_use]
pub fn verify(history: &History, settings: &Settings) -> Verified {
    let events = history.events();
    let mut reader = match Reader::new(history, settings, false) {
        Ok(reader) => reader,
        Err(reason) => {
            let event = history.entries.first().map_or(0, |entry| entry.number);
            let expected = "the state that the recording begins with".to_owned();
            let divergence = Some(Divergence { event, expected, got: reason });
            return Verified { requests: 0, events, matched: 0, divergence, stats: Stats::default(), assumed_pools: 0 };
        }
    };
    reader.read();
    if reader.mismatch().is_some()
        && let Some(named) = with_hidden_pools(history, settings, reader.matched())
    {
        return verify(&named, settings);
    }
    if let Some(mismatch) = reader.mismatch()
        && let Got::Decision(got) = &mismatch.got
        && let Some(tailed) = with_tail(history, settings, got)
    {
        return verify(&tailed, settings);
    }
    if let Some(certain) = reader.mismatch().and_then(|mismatch| history.where_certain(mismatch.at)) {
        return verify(&certain, settings);
    }
    let divergence = reader.mismatch().map(|mismatch| {
        let entry = history.entries.get(mismatch.at);
        let last = history.entries.last().map_or(0, |entry| entry.number + 1);
        Divergence {
            event: entry.map_or(last, |entry| entry.number),
            expected: in_words(entry),
            got: got_in_words(&mismatch.got),
        }
    });
    Verified {
        requests: reader.requests(),
        events,
        matched: reader.matched() as u64,
        divergence,
        stats: reader.pool().stats(),
        assumed_pools: reader.assumed_pools() as u64,
    }
}
