//! Writes whole chunks to a file and removes its oldest part when it becomes too large.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vramscope_trace::{Chunk, Recording};

use super::keep::Keep;
use super::storage::{FileRole, Storage};
use super::window::{FileLayout, is_of_the_recording};

/// Pause between attempts while the operating system can take no data.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of attempts to write, with [`RETRY_PAUSE`] between them: 5 seconds in total. Then
/// the write fails.
const MAX_ATTEMPTS: u32 = 5000;
/// Maximum size of a file that gets an index when it ends, in bytes: 32 MiB. Building the index
/// takes a second or two for this size, while the program waits; a larger file is indexed when it
/// is opened.
const MAX_INDEXED_BYTES: u64 = 32 << 20;
/// Bytes of the newest part to copy after each written chunk. A disk takes this in some
/// milliseconds, so no chunk waits for long.
const COPY_SLICE_BYTES: usize = 1 << 20;

/// Bytes of a copy after which it is synced to the disk: 16 MiB. A larger copy would keep the
/// writing thread waiting at its end for as long as the disk takes for all of it.
const SYNC_BYTES: u64 = 16 << 20;

/// Progress of copying the newest part of the recording to the file that will replace it, in byte
/// offsets.
struct Copying {
    /// Where the newest part begins.
    cut: u64,
    /// Ranges of header and definition chunks before the newest part that are still to be copied.
    permanent: VecDeque<Range<u64>>,
    /// How far the newest part has been copied.
    at: u64,
    /// Size of the copy so far.
    copied: u64,
    /// Bytes that were copied since the copy was last synced.
    unsynced: u64,
}

/// Writes chunks to a [`Storage`] and removes the oldest part of the recording when the limits of
/// [`Keep`] are nearly reached.
pub(super) struct Writer<S> {
    storage: S,
    keep: Keep,
    layout: FileLayout,
    copying: Option<Copying>,
    slice: Vec<u8>,
    /// Size of the index at the end.
    index_len: u64,
    /// Number of times that a sync has begun or ended: odd during a sync.
    syncs: Arc<AtomicU64>,
    /// True at the end of the recording: then only the limit of the file's size starts another
    /// copy, not the limit of its duration.
    is_closing: bool,
}

impl<S: Storage> Writer<S> {
    pub(super) fn new(storage: S, keep: Keep) -> Self {
        let slice = match keep.bytes {
            // Slices are large compared with chunks and small compared with the file.
            Some(limit) => COPY_SLICE_BYTES.min(usize::try_from(limit / 16).unwrap_or(COPY_SLICE_BYTES)).max(1),
            None if keep.is_everything() => 0,
            None => COPY_SLICE_BYTES,
        };
        Self {
            storage,
            keep,
            layout: FileLayout::default(),
            copying: None,
            slice: vec![0; slice],
            index_len: 0,
            syncs: Arc::default(),
            is_closing: false,
        }
    }

    /// Returns the number of times that a sync of the disk has begun or ended: odd during a sync.
    pub(super) fn syncs(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.syncs)
    }

    /// Returns the size of the file in bytes, including the index once it is written.
    pub(super) fn len(&self) -> u64 {
        self.layout.len() + self.index_len
    }

    /// Returns true if the last full state is so long ago that a new one is needed, at which the
    /// file can begin. False if the file keeps everything.
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
                // An index would become wrong when older chunks are removed, so it is not written.
                return Ok(());
            }
            self.make_room(len, now)?;
        }
        let begin = self.layout.len();
        put(&mut self.storage, FileRole::Current, &chunk.bytes).inspect_err(|_| {
            // A pipe cannot be truncated. Readers stop at an incomplete chunk.
            let _ = self.storage.cut(FileRole::Current, begin);
            self.discard_copy();
        })?;
        self.layout.push(chunk.kind, len, now);
        Ok(())
    }

    /// Starts or continues to copy the newest part if the file is nearly too large or too long, and
    /// finishes the copy at once if another `len` bytes would exceed the limit.
    fn make_room(&mut self, len: u64, now: Instant) -> io::Result<()> {
        if self.copying.is_none()
            && !self.is_closing
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

    /// Returns true while a copy of the newest part is unfinished, which [`copy`](Self::copy)
    /// continues.
    pub(super) fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Starts to copy what is kept when the file is cut at byte offset `cut`: header and
    /// definitions before it, and everything after it.
    fn begin(&mut self, cut: u64) -> io::Result<()> {
        let permanent = self.layout.permanent_before(cut).collect();
        retry(&mut self.storage, S::begin_next).inspect_err(|_| self.discard_copy())?;
        self.copying = Some(Copying { cut, permanent, at: cut, copied: 0, unsynced: 0 });
        Ok(())
    }

    /// Copies the next [`COPY_SLICE_BYTES`] of the newest part; the finished copy replaces the
    /// file. Does nothing if no copy was started.
    ///
    /// # Errors
    /// If the operating system fails. The file is then unchanged, and nothing may be written
    /// afterwards.
    pub(super) fn copy(&mut self) -> io::Result<()> {
        let Some(copying) = &mut self.copying else { return Ok(()) };
        let is_complete = copy_slice(&mut self.storage, &mut self.slice, copying, self.layout.len(), &self.syncs);
        let (cut, copied) = (copying.cut, copying.copied);
        if is_complete.inspect_err(|_| self.discard_copy())? {
            self.storage.sync_folder();
            self.layout = self.layout.after(cut);
            debug_assert_eq!(self.layout.len(), copied);
            self.copying = None;
        }
        Ok(())
    }

    /// Deletes an unfinished copy, at the end of the recording, and starts another one for the
    /// remaining chunks only if they would exceed the limit of the file's size. The disk may take
    /// long to sync a copy, while the program waits for the end.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        if self.is_copying() {
            self.discard_copy();
        }
    }

    /// Appends an index if the file is small enough and can be read. Errors are ignored, because
    /// readers do not need an index. Nothing may be written afterwards.
    pub(super) fn append_index(&mut self) {
        let begin = self.layout.len();
        let Some(index) = self.index() else { return };
        match put(&mut self.storage, FileRole::Current, &index) {
            Ok(()) => self.index_len = index.len() as u64,
            Err(_) => drop(self.storage.cut(FileRole::Current, begin)),
        }
    }

    /// Returns the bytes of the index chunks, by reading the file once more. `None` if the file
    /// cannot be read, or if the file or its index would be too large.
    fn index(&mut self) -> Option<Vec<u8>> {
        let len = self.layout.len();
        let mut piece = vec![0; usize::try_from(len.min(COPY_SLICE_BYTES as u64)).ok()?];
        let mut recording = Recording::overview_only(None);
        let mut at = 0;
        while at < len && len <= MAX_INDEXED_BYTES {
            piece.truncate(usize::try_from(len - at).unwrap_or(usize::MAX));
            let read = retry(&mut self.storage, |storage| storage.read(at, &mut piece)).ok()?;
            recording.push(piece.get(..read).filter(|piece| !piece.is_empty())?).ok()?;
            at += read as u64;
        }
        let index: Vec<u8> = recording.index().into_iter().flat_map(|chunk| chunk.bytes).collect();
        let fits = self.keep.bytes.is_none_or(|limit| len + index.len() as u64 <= limit);
        (fits && at == len && !index.is_empty()).then_some(index)
    }

    /// Deletes an unfinished copy; the recording's file stays as it is.
    fn discard_copy(&mut self) {
        self.copying = None;
        self.storage.drop_next();
    }
}

/// Copies the next bytes to the replacement file, at most as many as the buffer `slice` holds.
/// Returns true when everything up to byte offset `end` is copied and the replacement has taken the
/// recording's place. `syncs` counts when a sync begins and ends.
fn copy_slice(
    storage: &mut impl Storage,
    slice: &mut [u8],
    copying: &mut Copying,
    end: u64,
    syncs: &AtomicU64,
) -> io::Result<bool> {
    while copying.permanent.front().is_some_and(Range::is_empty) {
        copying.permanent.pop_front();
    }
    let (at, until) = match copying.permanent.front() {
        Some(range) => (range.start, range.end),
        None => (copying.at, end),
    };
    let len = slice.len().min(usize::try_from(until - at).unwrap_or(usize::MAX));
    if len == 0 {
        // Otherwise the new name could reach the disk before the new content.
        sync(storage, syncs)?;
        retry(storage, Storage::take_next)?;
        return Ok(true);
    }
    let mut read = 0;
    while read < len {
        match retry(storage, |storage| storage.read(at + read as u64, &mut slice[read..len]))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => read += more.min(len - read),
        }
    }
    put(storage, FileRole::Next, slice.get(..len).unwrap_or_default())?;
    copying.copied += len as u64;
    copying.unsynced += len as u64;
    if copying.unsynced >= SYNC_BYTES {
        sync(storage, syncs)?;
        copying.unsynced = 0;
    }
    match copying.permanent.front_mut() {
        Some(range) => range.start += len as u64,
        None => copying.at += len as u64,
    }
    Ok(false)
}

/// Waits until the replacement file would survive a power failure. On a file system that cannot
/// sync, the recording continues without that.
fn sync(storage: &mut impl Storage, syncs: &AtomicU64) -> io::Result<()> {
    syncs.fetch_add(1, Ordering::Relaxed);
    let result = retry(storage, Storage::sync_next);
    syncs.fetch_add(1, Ordering::Relaxed);
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        result => result,
    }
}

/// Appends all of `bytes` to the file with this role, in several writes if necessary.
fn put(storage: &mut impl Storage, role: FileRole, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match retry(storage, |storage| storage.append(role, bytes))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => bytes = bytes.get(written..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Calls `call` until it is neither interrupted nor would block, as on a full non-blocking pipe.
/// Returns a time-out error after [`MAX_ATTEMPTS`] calls.
fn retry<S: Storage, T>(storage: &mut S, mut call: impl FnMut(&mut S) -> io::Result<T>) -> io::Result<T> {
    for _ in 0..MAX_ATTEMPTS {
        match call(storage) {
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                storage.pause(RETRY_PAUSE);
            }
            result => return result,
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the output accepted no more data"))
}
