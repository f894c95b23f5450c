//! Badges of segments that are not of the default pool and stream.

use vramscope_trace::{MempoolId, Segment, StreamId};

/// The properties that distinguish a segment from a segment of the default pool and stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentBadges {
    /// Whether the segment is expandable.
    pub is_expandable: bool,
    /// Its private pool; `None` for the default pool.
    pub private_pool: Option<MempoolId>,
    /// Its stream; `None` for the default stream.
    pub stream: Option<StreamId>,
}

impl SegmentBadges {
    /// Returns the badges of a segment.
    #[must_use]
    pub fn new(segment: &Segment) -> Self {
        Self {
            is_expandable: segment.expandable,
            private_pool: Some(segment.pool.owner).filter(|&owner| owner != MempoolId(0, 0)),
            stream: Some(segment.stream).filter(|&stream| stream != StreamId(0)),
        }
    }

    /// Returns the index of the color for the private pool, or for the stream if the pool is the
    /// default one; `None` if both are the default.
    pub(super) fn color_index(&self) -> Option<usize> {
        let mixed = |value: u64| (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        match (self.private_pool, self.stream) {
            (Some(MempoolId(a, b)), _) => Some(a.wrapping_mul(5).wrapping_add(b) as usize),
            (None, Some(StreamId(handle))) if handle < 64 => Some(handle as usize),
            (None, Some(StreamId(handle))) => Some(mixed(handle)),
            (None, None) => None,
        }
    }

    /// Returns a text for each mark: `private (0, 1)`, `stream 7`, `expandable`.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let pool = self.private_pool.map(|MempoolId(a, b)| format!("private ({a}, {b})"));
        let stream = self.stream.map(|StreamId(handle)| format!("stream {handle}"));
        let expandable = self.is_expandable.then(|| "expandable".to_owned());
        [pool, stream, expandable].into_iter().flatten().collect()
    }
}
