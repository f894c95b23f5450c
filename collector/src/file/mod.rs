//! The file of a recording while it is written.
//!
//! - Chunks are appended completely or not at all, so the file is valid at every moment, even after
//!   the process is killed.
//! - A chunk is passed to the operating system as soon as possible. It survives the process, but
//!   not a power failure. Of a file that keeps the newest part, a power failure leaves at least
//!   what it had when the oldest part was last removed.
//! - A thread opens the file and writes it. If a disk is slow or a pipe full, chunks wait in a
//!   queue; if the queue is full, the caller of `append` waits; if nothing can be written for
//!   [`PATIENCE`], the file ends and the recording continues without it. The thread is never
//!   joined, because a disk that hangs may block it forever.
//! - If writing fails, the file ends with the last complete chunk, and [`FileError`] is reported
//!   once.
//! - With [`Keep`], old chunks are removed: the newest part is copied to a second file, a slice
//!   after each chunk, so that no chunk waits for long, and the second file, once it is on the
//!   disk, replaces the first atomically. This takes up to twice the space that is kept.
//!
//! `storage` contains everything that can fail, `writer` handles failures, `window` decides what is
//! kept.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use vramscope_trace::Chunk;

mod keep;
mod queue;
mod storage;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod view;
mod window;
mod writer;

pub use keep::{Keep, ParseKeepBytesError, ParseTimeError, parse_keep_bytes, parse_time};
use queue::FileQueue;
use storage::{Disk, OutputStream, Storage};
pub use storage::{create_replacement, sync_folder_of};
#[cfg(test)]
pub(crate) use testing::stream_with_queue;
pub(crate) use view::FileView;
#[cfg(feature = "server")]
pub(crate) use view::read;
pub(crate) use window::is_of_the_recording;
use writer::Writer;

/// Maximum bytes of chunks that wait to be written, beyond which `append` waits: half a minute of a
/// program that makes a million events per second.
const QUEUE_BYTES: usize = 64 << 20;
/// Longest time without a completed write before the file ends with an error. A sleeping disk wakes
/// up faster.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Number of writes to all recordings' files of this process.
static WRITES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of writes to all recordings' files of this process so far. While it grows, a
/// recording that is being ended makes progress.
#[must_use]
pub fn file_writes() -> u64 {
    WRITES.load(Ordering::Relaxed)
}

/// A recording's file that could not be created or written. The file then ends before the
/// recording does.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {error}")]
pub struct FileError {
    /// Path of the file, or a description such as "standard output".
    pub name: String,
    /// The operating system's error.
    #[source]
    pub error: io::Error,
}

/// The file that a recording is written to. Dropping it writes the chunks that wait;
/// [`finish`](Self::finish) also reports the result.
///
/// ```
/// use vramscope_collector::{Keep, Outputs, Recorder, RecordingFile};
/// use vramscope_trace::RecordingInfo;
///
/// let folder = tempfile::tempdir()?;
/// let file = RecordingFile::create(&folder.path().join("run.vram"), Keep::default())?;
/// let outputs = Outputs { file: Some(file), ..Outputs::default() };
/// let (recorder, handle) = Recorder::start(RecordingInfo::default(), outputs)?;
/// # drop(handle);
/// assert!(recorder.stop().file_error.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RecordingFile {
    name: String,
    shared: Arc<FileQueue>,
}

impl fmt::Debug for RecordingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RecordingFile {
    /// Creates or truncates the file. A pipe or device is opened for writing. Waits at most 10 s
    /// for the file to open, for example for a reader of the pipe, and at most another 10 s for a
    /// regular file to be emptied.
    ///
    /// # Errors
    /// If it cannot be created, another process records to it, or `keep` limits something that is
    /// not a regular file. An earlier file of this name is then unchanged.
    pub fn create(path: &Path, keep: Keep) -> Result<Self, FileError> {
        Self::create_within(path, keep, PATIENCE)
    }

    /// [Creates](Self::create) the file within `patience`, which is also the longest time without a
    /// completed write.
    pub(crate) fn create_within(path: &Path, keep: Keep, patience: Duration) -> Result<Self, FileError> {
        let name = path.display().to_string();
        let file_error = |error| FileError { name: name.clone(), error };
        let path = path.to_owned();
        let file = Self::spawn(name.clone(), QUEUE_BYTES, patience, move |queue| match open(&path, keep) {
            Ok(Output::Disk(disk)) => {
                let reader = if keep.is_everything() { disk.reader() } else { None };
                begin(queue, disk, reader, keep);
            }
            Ok(Output::Stream(stream)) => begin(queue, stream, None, keep),
            Err(error) => queue.lock().fail(error),
        });
        let file = file.map_err(file_error)?;
        file.shared.wait_until_open();
        file.failure().map_or(Ok(file), Err)
    }

    /// Creates a recording file that is standard output, and starts the thread that writes it.
    ///
    /// # Errors
    /// If standard output is closed or no thread can be started.
    pub fn stdout() -> Result<Self, FileError> {
        let name = "standard output";
        let file_error = |error| FileError { name: name.to_owned(), error };
        Self::stream(name, unbuffered_stdout().map_err(file_error)?)
    }

    /// Creates a recording file that is the stream `out`, and starts the thread that writes it.
    /// `out` must not buffer. `name` identifies the stream in error messages.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn stream(name: impl Into<String>, out: impl Write + Send + 'static) -> Result<Self, FileError> {
        let name = name.into();
        let writer = Writer::new(OutputStream(Box::new(out)), Keep::default());
        Self::start_with(name.clone(), writer, QUEUE_BYTES, PATIENCE).map_err(|error| FileError { name, error })
    }

    /// Starts the thread that writes with `writer`. The queue holds `queue_bytes`; a file to which
    /// nothing can be written for `patience` counts as failed.
    fn start_with<S: Storage + 'static>(
        name: String,
        writer: Writer<S>,
        queue_bytes: usize,
        patience: Duration,
    ) -> io::Result<Self> {
        Self::spawn(name, queue_bytes, patience, |queue| {
            queue.begin();
            write(queue, writer);
        })
    }

    /// Starts the file's thread, which runs `work` with the queue.
    fn spawn(
        name: String,
        queue_bytes: usize,
        patience: Duration,
        work: impl FnOnce(&FileQueue) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(FileQueue::new(queue_bytes, patience));
        let state = Arc::clone(&shared);
        std::thread::Builder::new().name("vramscope-file".into()).spawn(move || {
            // Its drop wakes waiting callers when this thread ends, even by a panic.
            let ending = EndOnDrop(&state);
            work(ending.0);
        })?;
        Ok(Self { name, shared })
    }

    /// Returns the file's path or description.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends the recording's next chunk. Waits only while the queue (64 MiB) is full. Does
    /// nothing after a failure.
    pub fn append(&self, chunk: Arc<Chunk>) {
        let len = chunk.bytes.len();
        let mut state = self
            .shared
            .wait_while(|state| state.waiting_bytes > 0 && state.waiting_bytes + len > self.shared.queue_bytes);
        if !state.is_ended {
            state.waiting_bytes += len;
            state.waiting.push_back(chunk);
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    /// Waits until all chunks have been passed to the operating system, or the file has failed.
    pub fn flush(&self) {
        drop(self.shared.wait_while(|state| state.is_writing || !state.waiting.is_empty()));
    }

    /// Returns true if a [full state](vramscope_trace::Sink::replace_state) is needed next, so that
    /// older chunks can be removed.
    #[must_use]
    pub fn wants_state(&self) -> bool {
        self.shared.lock().wants_state
    }

    /// Returns the error that ended the file, at the first call after it; `None` if writing works
    /// or the error has already been returned.
    #[must_use]
    pub fn failure(&self) -> Option<FileError> {
        let error = self.shared.lock().failed.take()?;
        Some(FileError { name: self.name.clone(), error })
    }

    /// Returns the size of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.lock().bytes
    }

    /// Returns a reader of the file while it is written, if it is a regular file that keeps
    /// everything.
    pub(crate) fn view(&self) -> Option<FileView> {
        let reader = self.shared.lock().reader.clone()?;
        Some(FileView::new(reader, Arc::clone(&self.shared)))
    }

    /// Writes the chunks that wait, ends the file and returns its size in bytes.
    ///
    /// # Errors
    /// If the file is incomplete and [`failure`](Self::failure) has not reported it.
    pub fn finish(self) -> Result<u64, FileError> {
        self.end();
        self.failure().map_or_else(|| Ok(self.bytes()), Err)
    }

    /// Ends the file, after the waiting chunks are written or writing has failed.
    fn end(&self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
        // The thread is not joined: it may be blocked forever on a pipe without a reader.
        drop(self.shared.wait_while(|_| true));
    }
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        self.end();
    }
}

/// Marks the queue as ended when the writing thread ends, also by a panic.
struct EndOnDrop<'a>(&'a FileQueue);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if std::thread::panicking() {
            state.fail(io::Error::other("internal error: the writing thread panicked"));
        }
        state.is_ended = true;
        drop(state);
        self.0.changed.notify_all();
    }
}

/// A regular file, or a pipe or device, opened for writing a recording.
enum Output {
    Disk(Disk),
    Stream(OutputStream),
}

/// Opens the file, pipe or device at `path` for a recording. Does not empty a regular file yet.
fn open(path: &Path, keep: Keep) -> io::Result<Output> {
    if let Some(disk) = Disk::open(path)? {
        return Ok(Output::Disk(disk));
    }
    if !keep.is_everything() {
        let reason = "not a regular file: only a file can keep the newest part of a recording";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let pipe = OpenOptions::new().write(true).open(path)?;
    Ok(Output::Stream(OutputStream(Box::new(pipe))))
}

/// Empties the opened `storage` and writes chunks of the queue to it, unless the caller no longer
/// waits for the file. Runs on the file's thread.
fn begin<S: Storage>(queue: &FileQueue, mut storage: S, reader: Option<File>, keep: Keep) {
    // Checked before the file is emptied: a caller that has stopped waiting and returned an error
    // finds the earlier file unchanged.
    if !queue.begin_clearing(reader) {
        return;
    }
    match storage.clear() {
        Ok(()) => {
            queue.begin();
            write(queue, Writer::new(storage, keep));
        }
        Err(error) => queue.lock().fail(error),
    }
}

/// Writes chunks of the queue with `writer` until the file is closed or fails. Runs on the file's
/// thread.
fn write<S: Storage>(shared: &FileQueue, mut writer: Writer<S>) {
    shared.lock().syncs = writer.syncs();
    loop {
        let mut state = shared.lock();
        while state.waiting.is_empty() && !state.is_closed && !writer.is_copying() {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_ended || (state.is_closed && state.waiting.is_empty()) {
            let is_complete = !state.is_ended;
            drop(state);
            writer.close();
            if is_complete {
                writer.append_index();
            }
            shared.lock().bytes = writer.len();
            return;
        }
        let is_closed = state.is_closed;
        let chunk = state.waiting.pop_front();
        let len = chunk.as_ref().map_or(0, |chunk| chunk.bytes.len());
        state.waiting_bytes -= len;
        state.is_writing = true;
        drop(state);

        if is_closed {
            writer.close();
        }
        let now = Instant::now();
        let result = match chunk {
            Some(chunk) => writer.append(&chunk, now),
            None => writer.copy(),
        };

        let mut state = shared.lock();
        state.is_writing = false;
        state.written += 1;
        WRITES.fetch_add(1, Ordering::Relaxed);
        state.bytes = writer.len();
        state.wants_state = writer.wants_state(now);
        let is_over = result.is_err();
        if let Err(error) = result {
            state.fail(error);
        }
        drop(state);
        shared.changed.notify_all();
        if is_over {
            return;
        }
    }
}

/// Opens standard output without Rust's line buffering.
fn unbuffered_stdout() -> io::Result<File> {
    #[cfg(unix)]
    let out = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?;
    #[cfg(windows)]
    let out = std::os::windows::io::AsHandle::as_handle(&io::stdout()).try_clone_to_owned()?;
    Ok(out.into())
}
