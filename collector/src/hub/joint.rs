//! Where a recording's file and the hub's chunks have come to the same.
//!
//! Both hold one recording, but it may be cut into chunks elsewhere. At a *junction* both have just ended a chunk with the same event:
//! who has read the file up to there goes on with the hub's chunks.

use super::history::History;
use crate::file::FileView;

/// A place that file and hub have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Junction {
    /// Bytes of the file before it.
    pub(super) offset: u64,
    /// How many of the hub's chunks come before it.
    pub(super) chunk: u64,
}

/// The file beside the hub.
#[derive(Debug)]
pub(super) struct Joint {
    pub(super) view: FileView,
    /// The newest junction up to which the file is known to be written.
    pub(super) newest: Junction,
    /// One after it. Those that come before this one is written are passed over, so that there never are more.
    pending: Option<Junction>,
    /// Whether the file has ended, and the recording has not.
    pub(super) is_over: bool,
}

impl Joint {
    pub(super) fn new(view: FileView) -> Self {
        Self { view, newest: Junction::default(), pending: None, is_over: false }
    }

    /// Notes how far the file is written, and a junction, if there is one now.
    pub(super) fn advance(&mut self, junction: Option<Junction>) {
        let written = self.view.written_bytes();
        for junction in [None, junction] {
            self.pending = self.pending.or(junction.filter(|junction| junction.offset > self.newest.offset));
            self.newest = self.pending.take_if(|pending| pending.offset <= written).unwrap_or(self.newest);
        }
    }
}

impl History {
    /// The first chunk that someone may need who is reading the file.
    pub(super) fn needed(&self) -> u64 {
        self.joint.as_ref().filter(|joint| !joint.is_over).map_or(u64::MAX, |joint| joint.newest.chunk)
    }
}
