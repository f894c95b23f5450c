//! Checks that the pool decides as the recorded allocator did.

use super::assumed_private_pools::with_assumed_private_pools;
use super::cursor::Outcome;
use super::describe::{describe_entry, describe_outcome};
use super::history::History;
use super::reconstruct::Reconstructor;
use super::start_blocks::with_larger_start_block;
use crate::settings::Settings;
use crate::stats::Stats;

/// The result of [`verify`]: how many recorded decisions the pool made identically, the first that
/// it did not, and the pool's statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verification {
    /// Number of calls made to the pool: requests, frees and emptied caches.
    pub requests: u64,
    /// Number of recorded decisions.
    pub events: u64,
    /// Number of recorded decisions, from the first on, that the pool made identically.
    pub matched: u64,
    /// The first decision that differs; `None` if all are equal.
    pub divergence: Option<Divergence>,
    /// The pool's statistics after the last identical decision.
    pub stats: Stats,
    /// Number of private pools that had to be assumed because the recording lacks their ids.
    pub assumed_private_pools: u64,
}

/// The first recorded decision that the pool did not make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The event number of the recorded decision, from 1; the number of the last event if the pool
    /// made more decisions than were recorded.
    pub event: u64,
    /// A description of the recorded decision.
    pub expected: String,
    /// A description of the pool's decision.
    pub got: String,
}

/// Makes the calls of a history to a pool under `settings` and compares every event of the pool
/// with the recorded one. The device answers as the recorded driver did.
///
/// If the state at the start of the history is uncertain and causes a mismatch, the comparison
/// restarts where the state is certain.
///
/// ```
/// use vramscope_pool::rerun::{History, verify};
/// use vramscope_pool::{Origin, Pool, Settings, SimulatedDevice};
/// use vramscope_trace::{DeviceId, Encoder, RecordingInfo, Recording, StreamId};
///
/// // Record a few calls.
/// let mut encoder = Encoder::new(&RecordingInfo::default());
/// let mut pool = Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(1 << 30));
/// for bytes in [1000, 5 << 20, 20 << 20] {
///     pool.allocate(bytes, StreamId(0), Origin::default(), &mut encoder)?;
/// }
/// encoder.flush();
/// let mut recording = Recording::new();
/// for chunk in encoder.take_output() {
///     recording.push(&chunk.bytes)?;
/// }
///
/// let history = &History::from_recording(&recording)?[0];
/// let verification = verify(history, &Settings::default());
/// assert_eq!(verification.divergence, None);
/// assert_eq!(verification.matched, 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn verify(history: &History, settings: &Settings) -> Verification {
    let events = history.events();
    let mut reconstructor = match Reconstructor::new(history, settings, false) {
        Ok(reconstructor) => reconstructor,
        Err(error) => {
            let event = history.entries.first().map_or(0, |entry| entry.number);
            let expected = "the state that the recording starts with".to_owned();
            let divergence = Some(Divergence { event, expected, got: error.to_string() });
            return Verification { events, divergence, ..Verification::default() };
        }
    };
    reconstructor.run();
    if reconstructor.mismatch().is_some()
        && let Some(named) = with_assumed_private_pools(history, settings, reconstructor.matched())
    {
        return verify(&named, settings);
    }
    if let Some(mismatch) = reconstructor.mismatch()
        && let Outcome::Decision(decision) = &mismatch.outcome
        && let Some(corrected) = with_larger_start_block(history, settings, decision)
    {
        return verify(&corrected, settings);
    }
    if let Some(certain) = reconstructor.mismatch().and_then(|mismatch| history.after_uncertain_start(mismatch.at)) {
        return verify(&certain, settings);
    }
    let divergence = reconstructor.mismatch().map(|mismatch| {
        let entry = history.entries.get(mismatch.at);
        // Entries have indexes; the event at index 0 has number 1.
        let number = entry.or(history.entries.last()).map_or(0, |entry| entry.number + 1);
        Divergence { event: number, expected: describe_entry(entry), got: describe_outcome(&mismatch.outcome) }
    });
    Verification {
        requests: reconstructor.calls(),
        events,
        matched: reconstructor.matched() as u64,
        divergence,
        stats: reconstructor.pool().stats(),
        assumed_private_pools: reconstructor.assumed_private_pools() as u64,
    }
}
