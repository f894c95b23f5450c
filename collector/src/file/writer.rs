//! Whole chunks into a file: each is there completely or not at all, and the file's beginning goes when it is too much.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use vramscope_trace::{Chunk, Recording};

use super::keep::Keep;
use super::storage::{Place, Storage};
use super::window::{Layout, is_of_the_recording};

/// Between two attempts where the operating system says that it cannot now.
const PAUSE: Duration = Duration::from_millis(1);
/// After so many attempts in vain something is wrong: 5 seconds.
const ATTEMPTS: u32 = 5000;
/// Bytes of a file that gets an index. Making one of so many takes a second or two, in which the program waits for its end; a longer file
/// is indexed by whoever opens it.
const INDEXED_UP_TO: u64 = 32 << 20;
/// Bytes that are copied before the next chunk is written. A disk takes them in some milliseconds, so that no chunk
/// waits for long.
const SLICE: usize = 1 << 20;

/// The newest part of the file on its way into another.
struct Copying {
    /// Where the newest part begins.
    cut: u64,
    /// What must be copied before it.
    lasting: VecDeque<Range<u64>>,
    /// How far the newest part has been copied.
    at: u64,
    /// Bytes of the other file.
    copied: u64,
}

/// Writes chunks to a [`Storage`].
pub(super) struct Writer<S> {
    storage: S,
    keep: Keep,
    layout: Layout,
    copying: Option<Copying>,
    slice: Vec<u8>,
    /// Bytes of the index at the end.
    index_len: u64,
}

impl<S: Storage> Writer<S> {
    pub(super) fn new(storage: S, keep: Keep) -> Self {
        let slice = match keep.bytes {
            // Slices are large beside chunks and small beside the file.
            Some(limit) => SLICE.min(usize::try_from(limit / 16).unwrap_or(SLICE)).max(1),
            None if keep.is_everything() => 0,
            None => SLICE,
        };
        Self { storage, keep, layout: Layout::default(), copying: None, slice: vec![0; slice], index_len: 0 }
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.layout.len() + self.index_len
    }

    /// Whether the file wants a full state soon, at which it can be cut.
    pub(super) fn wants_state(&self, now: Instant) -> bool {
        self.layout.wants_state(&self.keep, now)
    }

    /// Writes a chunk.
    ///
    /// # Errors What the operating system said. The file ends with the chunk before then, unless that could not be had
    /// either; nothing may be written after it.
    pub(super) fn append(&mut self, chunk: &Chunk, now: Instant) -> io::Result<()> {
        let len = chunk.bytes.len() as u64;
        if !self.keep.is_everything() {
            if !is_of_the_recording(chunk.kind) {
                // In a file whose beginning went, or will go, chunks are elsewhere than it says; readers do without.
                return Ok(());
            }
            self.make_room(len, now)?;
        }
        let begin = self.layout.len();
        put(&mut self.storage, Place::Current, &chunk.bytes).inspect_err(|_| {
            // A pipe cannot take anything back. Readers stop before a chunk that is not whole.
            let _ = self.storage.cut(Place::Current, begin);
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
            // It came faster than it could be copied beside: now it has to wait.
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

    /// Whether [`copy`](Self::copy) has something to do.
    pub(super) fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    fn begin(&mut self, cut: u64) -> io::Result<()> {
        let lasting = self.layout.lasting_before(cut).collect();
        attempt(&mut self.storage, S::begin_next).inspect_err(|_| self.give_up())?;
        self.copying = Some(Copying { cut, lasting, at: cut, copied: 0 });
        Ok(())
    }

    /// Copies some of the newest part, if that is being done. Once all of it is copied, it is the file.
    ///
    /// # Errors
    /// What the operating system said. The file is as it was then; nothing may be written after it.
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

    /// Leaves nothing but the file. What is half copied is given up.
    pub(super) fn close(&mut self) {
        if self.is_copying() {
            self.give_up();
        }
    }

    /// Puts an index at the end of a recording that has come to one, if that can be had: nobody needs it. Nothing may be written after it.
    pub(super) fn append_index(&mut self) {
        let begin = self.layout.len();
        if let Some(index) = self.index() {
            match put(&mut self.storage, Place::Current, &index) {
                Ok(()) => self.index_len = index.len() as u64,
                Err(_) => {
                    let _ = self.storage.cut(Place::Current, begin);
                }
            }
        }
    }

    /// The chunks that let the file open at once. It is read once more for them.
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

/// Says whether the next file has taken the place of the current one, whose length is `end`.
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
    put(storage, Place::Next, slice.get(..len).unwrap_or_default())?;
    copying.copied += len as u64;
    match copying.lasting.front_mut() {
        Some(range) => range.start += len as u64,
        None => copying.at += len as u64,
    }
    Ok(false)
}

/// Writes all of the bytes.
fn put(storage: &mut impl Storage, place: Place, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match attempt(storage, |storage| storage.append(place, bytes))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = bytes.get(written..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Does something that may be interrupted, or must wait, as with a full pipe that does not block.
fn attempt<S: Storage, T>(storage: &mut S, mut call: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
    for _ in 0..ATTEMPTS {
        match call(storage) {
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                storage.pause(PAUSE);
            }
            result => return result,
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "it takes no more bytes"))
}
