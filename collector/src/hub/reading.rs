//! The history of a viewer who wants all of it, from the recording's file.

use std::io;
use std::sync::Arc;

use vramscope_trace::Chunk;

use super::joint::Junction;
use super::{Hub, position};
use crate::file::FileView;

/// A place in a recording's file on the way to a junction, from which on the hub has the rest.
#[derive(Debug)]
pub(super) struct Reading {
    view: FileView,
    at: u64,
    until: Junction,
}

impl Reading {
    /// From a place in the file on; `None` where there is no file, or not that much of it.
    pub(super) fn from(hub: &Hub, at: u64) -> Option<Self> {
        let history = hub.0.lock();
        let joint = history.joint.as_ref().filter(|joint| at <= joint.newest.offset)?;
        Some(Self { view: joint.view.clone(), at, until: joint.newest })
    }

    /// The number for what comes next.
    pub(super) fn next(&self) -> u64 {
        if self.at == 0 { 0 } else { position::of_file(self.at) }
    }

    /// The hub's chunk to go on with, once there is nothing more to take here.
    pub(super) fn chunk(&self) -> u64 {
        self.until.chunk
    }

    /// The next chunks; none where the hub's are to follow.
    ///
    /// # Errors
    /// Where the file cannot be read, or is not what was written.
    pub(super) fn take(&mut self, hub: &Hub, max_bytes: usize) -> io::Result<Vec<Arc<Chunk>>> {
        if self.at == self.until.offset {
            // While this read, the hub has gone on, and the file with it.
            let history = hub.0.lock();
            if let Some(joint) = history.joint.as_ref().filter(|_| self.until.chunk < history.first()) {
                self.until = joint.newest;
            }
        }
        let room = (max_bytes as u64).max(1);
        let mut want = room;
        while self.at < self.until.offset {
            let range = self.at..self.until.offset.min(self.at.saturating_add(want));
            let is_all = range.end == self.until.offset;
            let mut chunks = self.whole(&self.view.read(range)?)?;
            if !chunks.is_empty() {
                if want > room {
                    chunks.truncate(1);
                }
                self.at += chunks.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>();
                return Ok(chunks);
            }
            if is_all {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it does not end where it was ended"));
            }
            // One chunk that is larger.
            want = want.saturating_mul(2);
        }
        Ok(Vec::new())
    }

    /// The whole chunks that some bytes begin with.
    fn whole(&self, mut bytes: &[u8]) -> io::Result<Vec<Arc<Chunk>>> {
        let (mut chunks, mut at) = (Vec::new(), self.at);
        while let Some(chunk) = Chunk::read(bytes, at).map_err(io::Error::other)? {
            bytes = bytes.get(chunk.bytes.len()..).unwrap_or_default();
            at += chunk.bytes.len() as u64;
            chunks.push(Arc::new(chunk));
        }
        Ok(chunks)
    }
}
