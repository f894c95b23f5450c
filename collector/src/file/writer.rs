//! Writes whole chunks to a file and removes its oldest part when it becomes too large.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use vramscope_trace::{Chunk, Recording};

use super::keep::Keep;
use super::storage::{FileRole, Storage};
use super::window::{Layout, is_of_the_recording};

/// Pause between attempts when the operating system cannot write at once.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of attempts: 5 seconds.
const ATTEMPTS: u32 = 5000;
/// Maximum size of a file that gets an index. Building it takes a second or two for this size,
/// while the program waits for its end; a larger file is indexed when it is opened.
const INDEXED_UP_TO: u64 = 32 << 20;
/// Bytes to copy before the next chunk is written. A disk takes this in some milliseconds, so no
/// chunk waits for long.
const SLICE: usize = 1 << 20;

/// A copy of the newest part in progress.
struct Copying {
    /// Where the newest part begins.
    cut: u64,
    /// Ranges before it that are still to be copied.
    lasting: VecDeque<Range<u64>>,
    /// How far the newest part has been copied.
    at: u64,
    /// Size of the copy so far.
    copied: u64,
}

/// Writes chunks to a [`Storage`].
pub(super) struct Writer<S> {
    storage: S,
    keep: Keep,
    layout: Layout,
    copying: Option<Copying>,
    slice: Vec<u8>,
    /// Size of the index at the end.
    index_len: u64,
}

impl<S: Storage> Writer<S> {
    pub(super) fn new(storage: S, keep: Keep) -> Self {
        let slice = match keep.bytes {
            // Slices are large compared with chunks and small compared with the file.
            Some(limit) => SLICE.min(usize::try_from(limit / 16).unwrap_or(SLICE)).max(1),
            None if keep.is_everything() => 0,
            None => SLICE,
        };
        Self { storage, keep, layout: Layout::default(), copying: None, slice: vec![0; slice], index_len: 0 }
    }

    /// Returns the size of the file.
    pub(super) fn len(&self) -> u64 {
        self.layout.len() + self.index_len
    }

    /// Returns true if a full state is needed soon, so that the file can be cut there.
    pub(super) fn wants_state(&self, now: Instant) -> bool {
        self.layout.wants_state(&self.keep, now)
    }

    /// Writes a chunk.
    ///
    /// # Errors
    /// If the operating system fails. The file then ends with the previous chunk, if truncating it
    /// was possible. Nothing may be written afterwards.
    pub(super) fn append(&mut self, chunk: &Chunk, now: Instant) -> io::Result<()> {
        let len = chunk.bytes.len() as u64;
        if !self.keep.is_everything() {
            if !is_of_the_recording(chunk.kind) {
                // An index becomes wrong when older chunks are removed; readers do without it.
                return Ok(());
            }
            self.make_room(len, now)?;
        }
        let begin = self.layout.len();
        put(&mut self.storage, FileRole::Current, &chunk.bytes).inspect_err(|_| {
            // A pipe cannot be truncated. Readers stop at an incomplete chunk.
            let _ = self.storage.cut(FileRole::Current, begin);
            self.give_up();
        })?;
        self.layout.push(chunk.kind, len, now);
        Ok(())
    }

    fn make_room(&mut self, len: u64, now: Instant) -> io::Result<()> {
        if self.copying.is_none()
            && let Some(cut) = self.layout.cut(&self.keep, now)
        {
            self.begin(cut)?;
        }
        if self.keep.bytes.is_some_and(|limit| self.layout.len() + len > limit) {
            // Chunks arrived faster than they could be copied: finish the copy first.
            if self.copying.is_none()
                && let Some(cut) = self.layout.last_cut()
            {
                self.begin(cut)?;
            }
            while self.is_copying() {
                self.copy()?;
            }
        }
        self.copy()
    }

    /// Returns true while [`copy`](Self::copy) has work to do.
    pub(super) fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    fn begin(&mut self, cut: u64) -> io::Result<()> {
        let lasting = self.layout.lasting_before(cut).collect();
        attempt(&mut self.storage, S::begin_next).inspect_err(|_| self.give_up())?;
        self.copying = Some(Copying { cut, lasting, at: cut, copied: 0 });
        Ok(())
    }

    /// Copies the next slice of the newest part. The finished copy replaces the file.
    ///
    /// # Errors
    /// If the operating system fails. The file is then unchanged, and nothing may be written
    /// afterwards.
    pub(super) fn copy(&mut self) -> io::Result<()> {
        let Some(copying) = &mut self.copying else { return Ok(()) };
        let result = copy_slice(&mut self.storage, &mut self.slice, copying, self.layout.len());
        match result {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.layout = self.layout.after(copying.cut);
                debug_assert_eq!(self.layout.len(), copying.copied);
                self.copying = None;
                Ok(())
            }
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    /// Deletes an unfinished copy.
    pub(super) fn close(&mut self) {
        if self.is_copying() {
            self.give_up();
        }
    }

    /// Appends an index if possible; readers do not need one. Nothing may be written afterwards.
    pub(super) fn append_index(&mut self) {
        let begin = self.layout.len();
        if let Some(index) = self.index() {
            match put(&mut self.storage, FileRole::Current, &index) {
                Ok(()) => self.index_len = index.len() as u64,
                Err(_) => {
                    let _ = self.storage.cut(FileRole::Current, begin);
                }
            }
        }
    }

    /// Builds the index chunks, by reading the file once more.
    fn index(&mut self) -> Option<Vec<u8>> {
        let len = self.layout.len();
        let mut piece = vec![0; usize::try_from(len.min(SLICE as u64)).ok()?];
        let mut recording = Recording::overview_only(None);
        let mut at = 0;
        while at < len && len <= INDEXED_UP_TO {
            piece.truncate(usize::try_from(len - at).unwrap_or(usize::MAX));
            let read = attempt(&mut self.storage, |storage| storage.read(at, &mut piece)).ok()?;
            recording.push(piece.get(..read).filter(|piece| !piece.is_empty())?).ok()?;
            at += read as u64;
        }
        let index: Vec<u8> = recording.index().into_iter().flat_map(|chunk| chunk.bytes).collect();
        let fits = self.keep.bytes.is_none_or(|limit| len + index.len() as u64 <= limit);
        (fits && at == len && !index.is_empty()).then_some(index)
    }

    fn give_up(&mut self) {
        self.copying = None;
        self.storage.drop_next();
    }
}

/// Copies a slice. Returns true when the copy, up to `end`, has replaced the current file.
fn copy_slice(storage: &mut impl Storage, slice: &mut [u8], copying: &mut Copying, end: u64) -> io::Result<bool> {
    while copying.lasting.front().is_some_and(Range::is_empty) {
        copying.lasting.pop_front();
    }
    let (at, until) = match copying.lasting.front() {
        Some(range) => (range.start, range.end),
        None => (copying.at, end),
    };
    let len = slice.len().min(usize::try_from(until - at).unwrap_or(usize::MAX));
    if len == 0 {
        attempt(storage, Storage::take_next)?;
        return Ok(true);
    }
    let mut read = 0;
    while read < len {
        match attempt(storage, |storage| storage.read(at + read as u64, &mut slice[read..len]))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => read += more.min(len - read),
        }
    }
    put(storage, FileRole::Next, slice.get(..len).unwrap_or_default())?;
    copying.copied += len as u64;
    match copying.lasting.front_mut() {
        Some(range) => range.start += len as u64,
        None => copying.at += len as u64,
    }
    Ok(false)
}

/// Writes all of the bytes.
fn put(storage: &mut impl Storage, role: FileRole, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match attempt(storage, |storage| storage.append(role, bytes))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = bytes.get(written..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Repeats a call that is interrupted or would block, as on a full non-blocking pipe.
fn attempt<S: Storage, T>(storage: &mut S, mut call: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
    for _ in 0..ATTEMPTS {
        match call(storage) {
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                storage.pause(PAUSE);
            }
            result => return result,
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no more data can be written"))
}
