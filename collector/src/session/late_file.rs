//! A file that begins while a recording is in progress.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use vramscope_trace::{ByteSize, Count};

use super::Log;
use crate::file::{FileError, Keep, PATIENCE, RecordingFile};
use crate::hub::{Hub, ViewFrom, Viewer};

/// Interval at which the writing thread checks whether the file was asked to end, while there is
/// nothing to write.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The most bytes of chunks that are taken from the hub at once.
const TAKE_BYTES: usize = 4 << 20;

/// A file that a recording in progress is written to, from the newest full state on.
///
/// A thread reads the hub as a viewer does, so the recorder never waits for the file: if the disk
/// is too slow, events are skipped up to a newer full state. The file is created when there is
/// something to write. The thread ends even if the disk hangs: a [`RecordingFile`] then fails.
pub struct LateFile {
    path: PathBuf,
    ends: Arc<AtomicBool>,
    /// `None` once the file has ended. Its result is false if the file is incomplete.
    thread: Option<JoinHandle<bool>>,
}

impl LateFile {
    /// Starts to write what `hub` publishes to a new or truncated file at `path`. `log` receives
    /// the file's size at its end, or why it is incomplete.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(path: &Path, keep: Keep, hub: &Hub, log: &Log) -> io::Result<Self> {
        Self::start_within(path, keep, hub, log, PATIENCE)
    }

    /// [Starts](Self::start) to write to a file that fails if nothing can be written for
    /// `patience`.
    fn start_within(path: &Path, keep: Keep, hub: &Hub, log: &Log, patience: Duration) -> io::Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let writer = LateFileWriter {
            path: path.to_owned(),
            keep,
            patience,
            viewer: hub.viewer(ViewFrom::Newest),
            file: None,
            missed_events: 0,
            log: Arc::clone(log),
        };
        let thread_ends = Arc::clone(&ends);
        let thread =
            std::thread::Builder::new().name("vramscope-late-file".into()).spawn(move || writer.run(&thread_ends))?;
        Ok(Self { path: path.to_owned(), ends, thread: Some(thread) })
    }

    /// Returns the file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the file after everything that the hub has published. Returns false if the file is
    /// incomplete.
    #[must_use]
    pub fn finish(mut self) -> bool {
        self.end().unwrap_or(true)
    }

    /// Ends the thread. Returns its result; `None` if it has been ended before.
    fn end(&mut self) -> Option<bool> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().unwrap_or(false))
    }
}

impl Drop for LateFile {
    fn drop(&mut self) {
        self.end();
    }
}

/// The state of the writing thread: read position in the hub, file, and number of missed events.
struct LateFileWriter {
    path: PathBuf,
    keep: Keep,
    patience: Duration,
    viewer: Viewer,
    /// `None` until there is something to write.
    file: Option<RecordingFile>,
    missed_events: u64,
    log: Log,
}

impl LateFileWriter {
    /// Writes until the recording has ended, or `ends` is true and everything has been written.
    /// Returns false if the file is incomplete.
    fn run(mut self, ends: &AtomicBool) -> bool {
        loop {
            // The flag is read before the wait, so that all chunks published before it was set are
            // written.
            let is_last = ends.load(Ordering::Relaxed);
            match self.viewer.wait_timeout(if is_last { Duration::ZERO } else { POLL_INTERVAL }) {
                Some(true) => {
                    if let Err(error) = self.write_next() {
                        (self.log)(&format!("{error}; the file is incomplete"));
                        return false;
                    }
                }
                None if !is_last => {}
                Some(false) | None => return self.finish(),
            }
        }
    }

    /// Writes the chunks that the hub has.
    fn write_next(&mut self) -> Result<(), FileError> {
        let taken = self.viewer.take(TAKE_BYTES);
        self.missed_events += taken.missed_events;
        if self.file.is_none() && !taken.chunks.is_empty() {
            self.file = Some(RecordingFile::create_within(&self.path, self.keep, self.patience)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        taken.chunks.into_iter().for_each(|chunk| file.append(chunk));
        file.failure().map_or(Ok(()), Err)
    }

    /// Completes the file and logs its size. Returns false if it is incomplete.
    fn finish(self) -> bool {
        let Some(file) = self.file else { return true };
        let name = file.name().to_owned();
        match file.finish() {
            Ok(bytes) if self.missed_events == 0 => (self.log)(&format!("{name}: {}", ByteSize(bytes))),
            Ok(bytes) => {
                let missed = Count(self.missed_events).of("event", "events");
                (self.log)(&format!("{name}: {}; {missed} missing, because the disk was too slow", ByteSize(bytes)));
            }
            Err(error) => {
                (self.log)(&format!("{error}; the file is incomplete"));
                return false;
            }
        }
        self.missed_events == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use vramscope_trace::{DeviceId, Recording, RecordingInfo};

    use super::*;
    use crate::recorder::{Outputs, Recorder};

    #[test]
    fn late_file_begins_with_the_current_state_and_ends_when_asked() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("late.vram");
        let hub = Hub::default();
        let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
        let (recorder, mut handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
        handle.mark(DeviceId(0), "before");
        handle.write_state();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let logged = Arc::clone(&lines);
        let log: Log =
            Arc::new(move |line| logged.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned()));
        let file = LateFile::start(&path, Keep::default(), &hub, &log).expect("a thread");
        handle.mark(DeviceId(0), "in the file");
        handle.flush();
        assert!(file.finish());
        handle.mark(DeviceId(0), "after");
        drop(handle);
        recorder.stop();
        let mut recording = Recording::new();
        recording.push(&std::fs::read(&path).expect("the file exists")).expect("a recording");
        assert_eq!((recording.first_event(), recording.end_event()), (1, 2));
        let lines = lines.lock().expect("no test panics with the lock");
        assert!(lines.len() == 1 && lines[0].contains("late.vram: "), "{lines:?}");
    }

    #[cfg(unix)]
    #[test]
    fn late_file_that_cannot_be_opened_ends() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("pipe");
        // Opening it for writing waits for a reader, as a disk that hangs waits for its server.
        assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo is installed").success());
        let hub = Hub::default();
        let outputs = Outputs { hub: Some(hub.clone()), ..Outputs::default() };
        let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let logged = Arc::clone(&lines);
        let log: Log =
            Arc::new(move |line| logged.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned()));
        let patience = Duration::from_millis(20);
        let file = LateFile::start_within(&path, Keep::default(), &hub, &log, patience).expect("a thread");
        handle.flush();
        assert!(!file.finish());
        drop(handle);
        recorder.stop();
        let lines = lines.lock().expect("no test panics with the lock");
        assert!(lines.len() == 1 && lines[0].contains("pipe: it could not be opened for"), "{lines:?}");
    }
}
