//! Reads a recording's beginning from its file, for viewers that want all of it.

use std::io;
use std::sync::Arc;

use vramscope_trace::Chunk;

use super::file_sync::SyncPoint;
use super::position;
use super::state::Hub;
use crate::file::FileView;

/// Reads the chunks of a recording's file for a viewer, up to the point from which the hub has the
/// rest in memory.
#[derive(Debug)]
pub(super) struct FileReader {
    view: FileView,
    /// Offset of the next chunk.
    at: u64,
    /// The point at which the viewer switches to the hub's chunks.
    until: SyncPoint,
}

impl FileReader {
    /// Creates a reader that starts at byte `at` of the file. Returns `None` if the hub has no file
    /// or the file is not written that far.
    pub(super) fn from(hub: &Hub, at: u64) -> Option<Self> {
        let history = hub.0.lock();
        let file_sync = history.file_sync.as_ref().filter(|file_sync| at <= file_sync.newest.offset)?;
        Some(Self { view: file_sync.view.clone(), at, until: file_sync.newest })
    }

    /// Returns where in the file the next read starts, as a value for
    /// [`StreamPosition::next`](super::position::StreamPosition::next): 0 at the file's beginning,
    /// otherwise the byte offset plus 2^52, to distinguish it from a chunk number.
    pub(super) fn next(&self) -> u64 {
        if self.at == 0 { 0 } else { position::from_file_offset(self.at) }
    }

    /// Returns the number of the hub's chunk with which a viewer continues after it has read the
    /// file.
    pub(super) fn next_hub_chunk(&self) -> u64 {
        self.until.chunk
    }

    /// Reads the next whole chunks of the file: at most `max_bytes`, but at least one chunk.
    /// Returns an empty list when the viewer must continue with the hub's chunks.
    ///
    /// # Errors
    /// If the file cannot be read or has been changed.
    pub(super) fn take(&mut self, hub: &Hub, max_bytes: usize) -> io::Result<Vec<Arc<Chunk>>> {
        if self.at == self.until.offset {
            // The file may have grown, and the hub may have dropped the chunk at the old point.
            let history = hub.0.lock();
            if let Some(file_sync) = history.file_sync.as_ref().filter(|_| self.until.chunk < history.first()) {
                self.until = file_sync.newest;
            }
        }
        let max_bytes = (max_bytes as u64).max(1);
        let mut read_bytes = max_bytes;
        while self.at < self.until.offset {
            let range = self.at..self.until.offset.min(self.at.saturating_add(read_bytes));
            let is_all = range.end == self.until.offset;
            let mut chunks = self.split(&self.view.read(range)?)?;
            if !chunks.is_empty() {
                if read_bytes > max_bytes {
                    chunks.truncate(1);
                }
                self.at += chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
                return Ok(chunks);
            }
            if is_all {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the file has been changed: it does not end with a whole chunk",
                ));
            }
            // The next chunk is larger than what was read.
            read_bytes = read_bytes.saturating_mul(2);
        }
        Ok(Vec::new())
    }

    /// Parses whole chunks from `bytes`, the part of the file that starts at the reader's offset.
    /// Ignores an incomplete chunk at the end.
    fn split(&self, mut bytes: &[u8]) -> io::Result<Vec<Arc<Chunk>>> {
        let (mut chunks, mut at) = (Vec::new(), self.at);
        while let Some(chunk) = Chunk::read(bytes, at).map_err(io::Error::other)? {
            bytes = bytes.get(chunk.bytes.len()..).unwrap_or_default();
            at += chunk.bytes.len() as u64;
            chunks.push(Arc::new(chunk));
        }
        Ok(chunks)
    }
}
