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
/// Maximum number of attempts to write, with [`PAUSE`] between them: 5 seconds.
const ATTEMPTS: u32 = 5000;
/// Maximum size of a file that gets an index, in bytes: 32 MiB. Building it takes a second or two
/// for this size, while the program waits for its end; a larger file is indexed when it is opened.
const INDEXED_UP_TO: u64 = 32 << 20;
/// Bytes to copy before the next chunk is written. A disk takes this in some milliseconds, so no
/// chunk waits for long.
const SLICE: usize = 1 << 20;

/// Progress of copying the newest part of the recording to the file that will replace it.
struct Copying {
    /// Where the newest part begins.
    cut: u64,
    /// Ranges before it that are still to be copied.
    permanent: VecDeque<Range<u64>>,
    /// How far the newest part has been copied.
    at: u64,
    /// Size of the copy so far.
    copied: u64,
}

/// Writes chunks to a [`Storage`] and removes the oldest part of the recording when [`Keep`] says
/// so.
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

    /// Returns the size of the file in bytes, with the index if there is one.
    pub(super) fn len(&self) -> u64 {
        self.layout.len() + self.index_len
    }

    /// Returns true if a full state is needed soon, so that the file can be cut there.
    pub(super) fn wants_state(&self, now: Instant) -> bool {
        self.layout.wants_state(&self.keep, now)
    }

    /// Writes a chunk at time `now`, after making room for it if the file's size is limited.
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

    /// Starts or continues to copy the newest part if the file is too large or too long, and
    /// finishes the copy if `len` more bytes would exceed the limit.
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

    /// Starts to copy what is kept when the file is cut at byte offset `cut`: the definitions
    /// before it and everything after it.
    fn begin(&mut self, cut: u64) -> io::Result<()> {
        let permanent = self.layout.permanent_before(cut).collect();
        attempt(&mut self.storage, S::begin_next).inspect_err(|_| self.give_up())?;
        self.copying = Some(Copying { cut, permanent, at: cut, copied: 0 });
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

    /// Deletes an unfinished copy, at the end of the recording.
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

    /// Returns the bytes of the index chunks, by reading the file once more. `None` if the file
    /// cannot be read or the index would exceed the size limit.
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

    /// Deletes an unfinished copy after a failed write; the recording stays as it is.
    fn give_up(&mut self) {
        self.copying = None;
        self.storage.drop_next();
    }
}

/// Copies the next bytes, at most as many as the buffer `slice` holds. Returns true when everything
/// up to byte offset `end` is copied and the copy has replaced the recording.
fn copy_slice(storage: &mut impl Storage, slice: &mut [u8], copying: &mut Copying, end: u64) -> io::Result<bool> {
    while copying.permanent.front().is_some_and(Range::is_empty) {
        copying.permanent.pop_front();
    }
    let (at, until) = match copying.permanent.front() {
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
    match copying.permanent.front_mut() {
        Some(range) => range.start += len as u64,
        None => copying.at += len as u64,
    }
    Ok(false)
}

/// Appends all of the bytes to the file with this role.
fn put(storage: &mut impl Storage, role: FileRole, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match attempt(storage, |storage| storage.append(role, bytes))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = bytes.get(written..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Calls `call` again while it is interrupted or would block, as on a full non-blocking pipe, up to
/// [`ATTEMPTS`] times.
fn attempt<S: Storage, T>(storage: &mut S, mut call: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
    for _ in 0..ATTEMPTS {
        match call(storage) {
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                storage.pause(PAUSE);
            }
            result => return result,
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the output accepted no more data"))
}
