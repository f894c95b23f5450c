//! The file of a recording: the one way in which recordings are written while they are made.
//!
//! - Chunks are added at the end, each completely or not at all. At every moment the file opens, and so it does when
//!   the process is killed.
//! - Nothing waits in this process: a chunk is passed to the operating system as soon as that takes it. (The file
//!   outlives the process so, not the machine's loss of power.)
//! - A thread of its own writes. While a disk is slow, or a pipe full, chunks wait in a queue; when that is full
//!   whoever appends waits; and when nothing has been taken for some seconds then, the file ends there. The recording
//!   goes on without it.
//! - When writing fails the file ends with the last chunk that was written, and [`FileError`] says why, once.
//! - With [`Keep`] the file's beginning goes when it is too much. The newest part is copied beside it, some of it after
//!   each chunk, so that no chunk waits for long, and takes its place at one stroke: there is one whole recording at
//!   every moment. That takes up to as many bytes again as are kept.
//!
//! `storage.rs` is all that may fail, `writer.rs` what is done then, `window.rs` what is kept.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vramscope_trace::Chunk;

mod keep;
mod storage;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod view;
mod window;
mod writer;

pub use keep::{Keep, parse_keep_bytes, parse_time};
use storage::{Disk, Storage, Stream};
#[cfg(test)]
pub(crate) use testing::stream_with_queue;
pub(crate) use view::{FileView, read};
pub(crate) use window::is_of_the_recording;
use writer::Writer;

/// Bytes of chunks that may wait: half a minute of a program that makes a million events a second.
const QUEUE_BYTES: usize = 64 << 20;
/// How long whoever waits for the file does so while it takes nothing at all. A sleeping disk wakes in less.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a recording's file ends before the recording does.
#[derive(Debug)]
pub struct FileError {
    /// The file.
    pub name: String,
    /// What the operating system said.
    pub error: io::Error,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.error)
    }
}

impl Error for FileError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Arc<Chunk>>,
    waiting_bytes: usize,
    /// One is being written.
    is_writing: bool,
    /// No more will come.
    closed: bool,
    /// The thread has ended, or nobody waits for it any more.
    ended: bool,
    failed: Option<io::Error>,
    /// How often something was written.
    written: u64,
    /// Bytes of the file.
    bytes: u64,
    wants_state: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Told when there is something to do, or to see.
    changed: Condvar,
    queue_bytes: usize,
    patience: Duration,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so what it guards is whole even if a thread died.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for as long as `must_wait` and the file still takes something.
    fn wait_while(&self, must_wait: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while must_wait(&state) && !state.ended {
            let written = state.written;
            let stuck = |state: &mut State| must_wait(state) && !state.ended && state.written == written;
            let waited = self.changed.wait_timeout_while(state, self.patience, stuck);
            let (after, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = after;
            if timeout.timed_out() && must_wait(&state) && state.written == written {
                let seconds = self.patience.as_secs_f64();
                let error = io::Error::new(io::ErrorKind::TimedOut, format!("it took nothing for {seconds:.0} s"));
                state.give_up(error);
            }
        }
        state
    }
}

impl State {
    fn give_up(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
        self.ended = true;
        self.waiting = VecDeque::new();
        self.waiting_bytes = 0;
    }
}

/// A file that a recording is written to. Dropping it writes what waits; [`finish`](Self::finish) says how that went,
/// too.
pub struct RecordingFile {
    name: String,
    shared: Arc<Shared>,
    /// The same file to read from, where it is one and keeps everything.
    reader: Option<Arc<Mutex<File>>>,
}

impl fmt::Debug for RecordingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl RecordingFile {
    /// Makes the file empty. A pipe, or whatever else there is by that name, is written to as it is.
    ///
    /// # Errors
    /// If it cannot be made; if another process is recording to it; if only a part of what is no file is to be kept.
    pub fn create(path: &Path, keep: Keep) -> Result<Self, FileError> {
        let name = path.display().to_string();
        let wrong = |error| FileError { name: name.clone(), error };
        match Disk::create(path).map_err(wrong)? {
            Some(disk) => {
                let reader = if keep.is_everything() { disk.reader() } else { None };
                let mut file = Self::start(name.clone(), Writer::new(disk, keep)).map_err(wrong)?;
                file.reader = reader.map(|reader| Arc::new(Mutex::new(reader)));
                Ok(file)
            }
            None if keep.is_everything() => {
                let pipe = OpenOptions::new().write(true).open(path).map_err(wrong)?;
                Self::stream(name.clone(), pipe)
            }
            None => Err(wrong(io::Error::other("only a file can keep the newest part of a recording; this is none"))),
        }
    }

    /// Writes to standard output.
    ///
    /// # Errors
    /// If there is none.
    pub fn stdout() -> Result<Self, FileError> {
        let name = "standard output";
        let wrong = |error| FileError { name: name.to_owned(), error };
        Self::stream(name, unbuffered_stdout().map_err(wrong)?)
    }

    /// Writes to anything that takes bytes and holds none back.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn stream(name: impl Into<String>, out: impl Write + Send + 'static) -> Result<Self, FileError> {
        let name = name.into();
        let writer = Writer::new(Stream(Box::new(out)), Keep::default());
        Self::start(name.clone(), writer).map_err(|error| FileError { name, error })
    }

    fn start<S: Storage + 'static>(name: String, writer: Writer<S>) -> io::Result<Self> {
        Self::start_with(name, writer, QUEUE_BYTES, PATIENCE)
    }

    fn start_with<S: Storage + 'static>(
        name: String,
        writer: Writer<S>,
        queue_bytes: usize,
        patience: Duration,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), queue_bytes, patience });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("vramscope-file".into()).spawn(move || {
            // However this thread ends, nobody may go on waiting for it.
            let ending = EndOnDrop(&theirs);
            write(ending.0, writer);
        })?;
        Ok(Self { name, shared, reader: None })
    }

    /// What the file is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the recording's next chunk. Waits only where very much waits to be written already. Once the file has
    /// failed, nothing more is taken.
    pub fn append(&self, chunk: Arc<Chunk>) {
        let len = chunk.bytes.len();
        let mut state = self
            .shared
            .wait_while(|state| state.waiting_bytes > 0 && state.waiting_bytes + len > self.shared.queue_bytes);
        if !state.ended {
            state.waiting_bytes += len;
            state.waiting.push_back(chunk);
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    /// Waits until everything so far has been passed to the operating system, or the file has failed.
    pub fn flush(&self) {
        drop(self.shared.wait_while(|state| state.is_writing || !state.waiting.is_empty()));
    }

    /// Whether a [full state](vramscope_trace::Sink::full_state) should come next, at which the file's beginning can be
    /// cut off.
    #[must_use]
    pub fn wants_state(&self) -> bool {
        self.shared.lock().wants_state
    }

    /// What went wrong since the last call, if anything did. It is told once.
    #[must_use]
    pub fn failure(&self) -> Option<FileError> {
        let error = self.shared.lock().failed.take()?;
        Some(FileError { name: self.name.clone(), error })
    }

    /// Bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.lock().bytes
    }

    /// What reads the file while it is written, where it can be read and nothing of it is given up.
    pub(crate) fn view(&self) -> Option<FileView> {
        self.reader.as_ref().map(|reader| FileView::new(Arc::clone(reader), Arc::clone(&self.shared)))
    }

    /// Writes what waits, and ends the file; says how many bytes it has.
    ///
    /// # Errors
    /// Why not all of the recording is in it, where [`failure`](Self::failure) did not say so before.
    pub fn finish(self) -> Result<u64, FileError> {
        self.end();
        self.failure().map_or_else(|| Ok(self.bytes()), Err)
    }

    fn end(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        // The thread is not waited for beyond that: where a pipe's other end sleeps, it would be forever.
        drop(self.shared.wait_while(|_| true));
    }
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        self.end();
    }
}

struct EndOnDrop<'a>(&'a Shared);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if std::thread::panicking() {
            state.give_up(io::Error::other("the thread that writes it is gone"));
        }
        state.ended = true;
        drop(state);
        self.0.changed.notify_all();
    }
}

/// Writes until the file is closed or fails.
fn write<S: Storage>(shared: &Shared, mut writer: Writer<S>) {
    loop {
        let mut state = shared.lock();
        while state.waiting.is_empty() && !state.closed && !writer.is_copying() {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended || (state.closed && state.waiting.is_empty()) {
            let is_whole = !state.ended;
            drop(state);
            writer.close();
            if is_whole {
                writer.append_index();
            }
            shared.lock().bytes = writer.len();
            return;
        }
        let chunk = state.waiting.pop_front();
        let len = chunk.as_ref().map_or(0, |chunk| chunk.bytes.len());
        state.waiting_bytes -= len;
        state.is_writing = true;
        drop(state);

        let now = Instant::now();
        let result = match chunk {
            Some(chunk) => writer.append(&chunk, now),
            None => writer.copy(),
        };

        let mut state = shared.lock();
        state.is_writing = false;
        state.written += 1;
        state.bytes = writer.len();
        state.wants_state = writer.wants_state(now);
        let is_over = result.is_err();
        if let Err(error) = result {
            state.give_up(error);
        }
        drop(state);
        shared.changed.notify_all();
        if is_over {
            return;
        }
    }
}

/// Standard output as the operating system has it; Rust's own would hold bytes back up to the next end of a line.
fn unbuffered_stdout() -> io::Result<File> {
    #[cfg(unix)]
    let out = std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?;
    #[cfg(windows)]
    let out = std::os::windows::io::AsHandle::as_handle(&io::stdout()).try_clone_to_owned()?;
    Ok(out.into())
}
