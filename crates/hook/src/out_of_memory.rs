//! Explains an out-of-memory: what filled the GPU, and why the request failed.

use vramscope_insight::failures::{FailureCard, Failures, headline};
use vramscope_pool::Settings;
use vramscope_trace::{IndexedEncoder, RangeCopy, Recording};

/// Number of failures that are read at once.
const FAILURES_AT_ONCE: usize = 64;

/// Returns what filled the device at the last out-of-memory of a recording, and why the request
/// failed; `None` if the recording has none, or is damaged.
pub(crate) fn explain(recording: &[u8]) -> Option<String> {
    let (recording, card) = last_failure(recording)?;
    headline(&recording, &card).ok()
}

/// Returns the recording without the events after its last out-of-memory, such as those of other
/// threads; `None` if there are none, or the recording is damaged.
pub(crate) fn up_to_failure(recording: &[u8]) -> Option<Vec<u8>> {
    let (recording, card) = last_failure(recording)?;
    if recording.end_event() == card.failure.event {
        return None;
    }
    let mut copy = RangeCopy::new(&recording, recording.first_event(), card.failure.event);
    let mut encoder = IndexedEncoder::new(&copy.begin(&recording).ok()?);
    while copy.step(&recording, &mut encoder).ok()? {}
    Some(encoder.finish().concat())
}

/// Reads a recording and its last out-of-memory.
fn last_failure(recording: &[u8]) -> Option<(Recording, FailureCard)> {
    let mut read = Recording::new();
    read.push(recording).ok()?;
    let settings = Settings::parse(&read.info().alloc_conf).unwrap_or_default();
    let mut failures = Failures::new(settings);
    while !failures.step(&read, FAILURES_AT_ONCE).ok()? {}
    let card = failures.cards(&read).pop()?;
    Some((read, card))
}
