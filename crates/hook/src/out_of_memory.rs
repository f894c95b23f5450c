//! The report after out of memory: ends a recording at the failure, and explains what filled the
//! GPU and why the request failed.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;
use std::{fs, io};

use vramscope_collector::{create_replacement, sync_folder_of};
use vramscope_insight::diagnosis::Diagnosis;
use vramscope_insight::failures::{FailureCard, Failures, headline};
use vramscope_insight::group::DeviceCategories;
use vramscope_insight::history::History;
use vramscope_insight::verdict::Verdict;
use vramscope_pool::RecordedConf;
use vramscope_trace::{FormatError, IndexedEncoder, RangeCopy, Recording};

use crate::detached_work::{DetachedWork, NoResult};

/// Maximum number of out-of-memory events that are read from a recording at once.
const FAILURES_AT_ONCE: usize = 64;
/// Maximum number of events of a recording that is analyzed: about a second.
const MAX_ANALYZED_EVENTS: u64 = 1_000_000;
/// Number of events that are read from a recording at once.
const EVENTS_AT_ONCE: u64 = 1 << 18;
/// Maximum time for reading the recording's file, and for writing it again. The program waits
/// meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);

/// Removes all events after the last out-of-memory event, such as those of other threads, from a
/// recording's file. Returns a text that says what filled the device and why the request failed. A
/// damaged recording, or one without an out-of-memory event, is left unchanged, and the result is
/// `None`.
///
/// Waits at most [`PATIENCE`] for reading and again for writing. If the file cannot be written
/// again, it keeps the later events, and the returned text says so.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn end_at_failure(path: &Path) -> io::Result<Option<String>> {
    let given_path = path.to_owned();
    let Some((path, bytes)) = within_patience(PATIENCE, move |_| read_file(&given_path))? else { return Ok(None) };
    let Some((recording, card)) = last_failure(&bytes) else { return Ok(None) };
    drop(bytes);
    let (why, categories) = verdict_on(&recording, &card).unwrap_or_default();
    let mut text = headline(&recording, &categories, &card, why.as_deref()).ok();
    if recording.end_event() > card.failure.event
        && let Ok(part) = copy_until(&recording, card.failure.event)
        && let Err(error) = within_patience(PATIENCE, move |is_given_up| replace_file(&path, &part, is_given_up))
        && let Some(text) = &mut text
    {
        text.push_str(&format!(" Later events of other threads could not be removed: {error}."));
    }
    Ok(text)
}

/// Runs `work` on its own thread and returns the result. The flag that `work` receives becomes true
/// once the caller no longer waits.
///
/// # Errors
/// If `work` fails, or takes longer than `patience`.
fn within_patience<R: Send + 'static>(
    patience: Duration,
    work: impl FnOnce(&AtomicBool) -> io::Result<R> + Send + 'static,
) -> io::Result<R> {
    let is_given_up = Arc::new(AtomicBool::new(false));
    let of_thread = Arc::clone(&is_given_up);
    let running = DetachedWork::start(Builder::new().name("vramscope-report".into()), move || work(&of_thread));
    let result = running.map_err(|not_started| not_started.error)?.wait(patience, || 0);
    result.unwrap_or_else(|error| {
        is_given_up.store(true, Ordering::Relaxed);
        Err(match error {
            NoResult::TimedOut => {
                let seconds = patience.as_secs_f64();
                io::Error::new(io::ErrorKind::TimedOut, format!("the disk did not answer for {seconds:.0} s"))
            }
            NoResult::Panicked => io::Error::other(error),
        })
    })
}

/// Reads a file. Returns its bytes and its path without links; `None` if it is not a regular file,
/// such as a pipe.
fn read_file(path: &Path) -> io::Result<Option<(PathBuf, Vec<u8>)>> {
    let path = fs::canonicalize(path)?;
    if !fs::metadata(&path)?.is_file() {
        return Ok(None);
    }
    let bytes = fs::read(&path)?;
    Ok(Some((path, bytes)))
}

/// Replaces the content of a file atomically, by writing a new file and renaming it: the file is
/// complete at every moment, also after a power failure. Does not replace it once `is_given_up` is
/// true.
fn replace_file(path: &Path, bytes: &[u8], is_given_up: &AtomicBool) -> io::Result<()> {
    let (mut next, next_path) = create_replacement(path, &File::open(path)?)?;
    let replaced = next.write_all(bytes).and_then(|()| next.sync_all()).and_then(|()| {
        if is_given_up.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        fs::rename(&next_path, path)
    });
    match &replaced {
        Ok(()) => sync_folder_of(path),
        Err(_) => drop(fs::remove_file(&next_path)),
    }
    replaced
}

/// Parses a recording and returns it with its last out-of-memory event; `None` if it has none or is
/// damaged.
fn last_failure(recording: &[u8]) -> Option<(Recording, FailureCard)> {
    let mut read = Recording::new();
    read.push(recording).ok()?;
    let settings = RecordedConf::parse(&read.info().alloc_conf).settings;
    let mut failures = Failures::new(settings);
    while !failures.step(&read, FAILURES_AT_ONCE).ok()? {}
    let card = failures.cards(&read).pop()?;
    Some((read, card))
}

/// Returns the verdict on a failure, without simulated remedies, and the categories of its device's
/// blocks. No verdict if another problem is more serious; nothing for a long recording, because the
/// program waits meanwhile.
fn verdict_on(recording: &Recording, card: &FailureCard) -> Result<(Option<String>, DeviceCategories), FormatError> {
    if recording.events() > MAX_ANALYZED_EVENTS {
        return Ok(Default::default());
    }
    let mut history = History::new();
    while !history.extend(recording, EVENTS_AT_ONCE)?.is_complete {}
    history.infer_categories(recording);
    let settings = RecordedConf::parse(&recording.info().alloc_conf).settings;
    let mut diagnosis = Diagnosis::new(recording, &history, &settings)?;
    while !diagnosis.step(recording, EVENTS_AT_ONCE)? {}
    let verdict = Verdict::new(recording, &diagnosis.finish(recording, &history)?);
    let is_about_it = verdict.cause.oom_cause().is_some() && verdict.device == Some(card.failure.device);
    Ok((is_about_it.then_some(verdict.summary), history.categories(card.failure.device)))
}

/// Returns the bytes of a recording that has only the events up to event number `end`.
fn copy_until(recording: &Recording, end: u64) -> Result<Vec<u8>, FormatError> {
    let mut copy = RangeCopy::new(recording, recording.first_event(), end);
    let mut encoder = IndexedEncoder::new(&copy.begin(recording)?);
    while copy.step(recording, &mut encoder)? {}
    Ok(encoder.finish().concat())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::mpsc::channel;

    use vramscope_trace::{DeviceId, Encoder, Event, EventKind, RecordingInfo, Sink as _, SiteId, StreamId};

    use super::*;

    /// Number of events up to and including the failure in [`recording`].
    const FAILURE_END: u64 = 3;

    /// Returns a recording with a failure and events after it.
    fn recording() -> Vec<u8> {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        for time_ns in 0..6 {
            let kind = if time_ns + 1 == FAILURE_END {
                let (stream, site) = (StreamId(0), SiteId(0));
                EventKind::OutOfMemory { requested: 1 << 20, device_free: 0, stream, site }
            } else {
                EventKind::Gap { lost: 1 }
            };
            encoder.event(&Event { device: DeviceId(0), time_ns, kind });
        }
        encoder.flush();
        encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
    }

    /// Returns the number of events of a recording.
    fn end_event(bytes: &[u8]) -> u64 {
        let mut recording = Recording::new();
        recording.push(bytes).expect("a recording");
        recording.end_event()
    }

    #[test]
    fn report_is_replaced_as_a_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("oom.vram");
        fs::write(&path, recording()).expect("the folder is writable");
        fs::write(folder.path().join(".oom.vram.part"), "from a process that was killed")
            .expect("the folder is writable");
        let mut earlier = fs::File::open(&path).expect("it exists");
        let text = end_at_failure(&path).expect("the disk works").expect("the recording has a failure");
        assert!(!text.contains("could not be removed"), "{text}");
        assert_eq!(end_event(&fs::read(&path).expect("it exists")), FAILURE_END);
        // A program that is killed at any moment leaves one file or the other.
        let mut bytes = Vec::new();
        earlier.read_to_end(&mut bytes).expect("the file is open");
        assert_eq!(bytes, recording());
        assert_eq!(fs::read_dir(folder.path()).expect("it exists").count(), 1);
    }

    #[test]
    fn report_that_cannot_be_written_again_keeps_later_events() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("oom.vram");
        fs::write(&path, recording()).expect("the folder is writable");
        // No file can have this name, so writing fails.
        fs::create_dir(folder.path().join(".oom.vram.part")).expect("the folder is writable");
        let text = end_at_failure(&path).expect("the file can be read").expect("the recording has a failure");
        assert!(text.contains("Later events of other threads could not be removed: "), "{text}");
        assert_eq!(fs::read(&path).expect("it exists"), recording());
    }

    #[cfg(unix)]
    #[test]
    fn pipe_is_not_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo is installed").success());
        // Reading it would wait for a writer, as a disk that hangs waits for its server.
        assert_eq!(end_at_failure(&path).expect("nothing is read"), None);
    }

    #[test]
    fn disk_that_hangs_is_given_up() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("oom.vram");
        fs::write(&path, "report").expect("the folder is writable");
        let (release, released) = channel::<()>();
        let (finished, result) = channel();
        let path_of_thread = path.clone();
        let error = within_patience(Duration::from_millis(1), move |is_given_up| {
            let _ = released.recv();
            let replaced = replace_file(&path_of_thread, b"late", is_given_up);
            finished.send(replaced.is_ok()).expect("the test waits");
            Ok(())
        });
        assert_eq!(error.expect_err("it waits for the test").to_string(), "the disk did not answer for 0 s");
        drop(release);
        assert_eq!(result.recv(), Ok(false));
        // A later report may have the same name.
        assert_eq!(fs::read(&path).expect("it exists"), b"report");
        assert!(!folder.path().join(".oom.vram.part").exists());
    }

    #[test]
    fn panic_is_an_error() {
        let error = within_patience(Duration::from_secs(60), |_| -> io::Result<()> { panic!("a panic of the test") });
        assert!(error.expect_err("it panics").to_string().contains("internal error"));
    }
}
