//! Matches positions in a recording's file with the hub's chunks.
//!
//! File and hub contain the same events but may cut them into chunks differently. At a
//! [`SyncPoint`] both have just ended a chunk with the same event, so a viewer that has read the
//! file up to there continues with the hub's chunks.

use crate::file::FileView;

/// A point up to which the file and the hub's chunks contain exactly the same events, so that a
/// viewer can switch from one to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SyncPoint {
    /// Bytes of the file before it.
    pub(super) offset: u64,
    /// Number of the hub's chunks before it.
    pub(super) chunk: u64,
}

/// The file of a hub's recording, and the newest point at which a viewer can switch from it to the
/// hub.
#[derive(Debug)]
pub(super) struct FileHubSync {
    pub(super) view: FileView,
    /// The newest sync point up to which the file is known to be written.
    pub(super) newest: SyncPoint,
    /// A later sync point, up to which the file is not written yet. Until it is, further sync
    /// points are ignored.
    pending: Option<SyncPoint>,
    /// True if the file ended before the recording.
    pub(super) has_ended: bool,
}

impl FileHubSync {
    /// Creates the sync state of a file that is still empty.
    pub(super) fn new(view: FileView) -> Self {
        Self { view, newest: SyncPoint::default(), pending: None, has_ended: false }
    }

    /// Updates the newest sync point that viewers may use. `sync_point`, if any, becomes the newest
    /// as soon as the file has been written up to it; until then, further sync points are ignored.
    pub(super) fn advance(&mut self, sync_point: Option<SyncPoint>) {
        let written = self.view.written_bytes();
        for sync_point in [None, sync_point] {
            self.pending = self.pending.or(sync_point.filter(|sync_point| sync_point.offset > self.newest.offset));
            self.newest = self.pending.take_if(|pending| pending.offset <= written).unwrap_or(self.newest);
        }
    }
}
