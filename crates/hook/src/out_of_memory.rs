//! Explains an out-of-memory: what filled the GPU, and why the request failed.

use std::path::Path;
use std::{fs, io};

use vramscope_insight::failures::{FailureCard, Failures, headline};
use vramscope_pool::RecordedConf;
use vramscope_trace::{FormatError, IndexedEncoder, RangeCopy, Recording};

/// Number of failures that are read at once.
const FAILURES_AT_ONCE: usize = 64;

/// Ends the recording in a file with its last out-of-memory: later events, such as those of other
/// threads, are removed. Returns what filled the device, and why the request failed. A recording
/// without an out-of-memory, or a damaged one, stays as it is, and `None` is returned.
///
/// # Errors
/// If the file cannot be read or written.
pub(crate) fn end_at_failure(path: &Path) -> io::Result<Option<String>> {
    let Some((recording, card)) = last_failure(&fs::read(path)?) else { return Ok(None) };
    if recording.end_event() > card.failure.event
        && let Ok(part) = copy_until(&recording, card.failure.event)
    {
        fs::write(path, part)?;
    }
    Ok(headline(&recording, &card).ok())
}

/// Reads a recording and its last out-of-memory.
fn last_failure(recording: &[u8]) -> Option<(Recording, FailureCard)> {
    let mut read = Recording::new();
    read.push(recording).ok()?;
    let settings = RecordedConf::parse(&read.info().alloc_conf).settings;
    let mut failures = Failures::new(settings);
    while !failures.step(&read, FAILURES_AT_ONCE).ok()? {}
    let card = failures.cards(&read).pop()?;
    Some((read, card))
}

/// Returns a recording of the events up to event number `end`.
fn copy_until(recording: &Recording, end: u64) -> Result<Vec<u8>, FormatError> {
    let mut copy = RangeCopy::new(recording, recording.first_event(), end);
    let mut encoder = IndexedEncoder::new(&copy.begin(recording)?);
    while copy.step(recording, &mut encoder)? {}
    Ok(encoder.finish().concat())
}
