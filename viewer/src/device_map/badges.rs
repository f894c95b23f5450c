//! Badges that mark segments of private pools, of streams other than the default one, and
//! expandable segments.

use vramscope_trace::{MempoolId, Segment, StreamId};

/// The properties of a segment that the map marks left of the segment's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentBadges {
    /// Whether the segment is expandable.
    pub is_expandable: bool,
    /// The segment's private pool; `None` for the default pool.
    pub private_pool: Option<MempoolId>,
    /// The segment's stream; `None` for the default stream.
    pub stream: Option<StreamId>,
}

impl SegmentBadges {
    /// Returns the badges of a segment.
    pub fn new(segment: &Segment) -> Self {
        Self {
            is_expandable: segment.expandable,
            private_pool: Some(segment.pool.owner).filter(|&owner| owner != MempoolId(0, 0)),
            stream: Some(segment.stream).filter(|&stream| stream != StreamId(0)),
        }
    }

    /// Returns the index of a color, for [`Theme::group_color`](vramscope_draw::Theme::group_color):
    /// the private pool's, else the stream's; `None` for the default pool and stream.
    pub(super) fn color_index(&self) -> Option<usize> {
        let mixed = |value: u64| (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        match (self.private_pool, self.stream) {
            (Some(MempoolId(a, b)), _) => Some(a.wrapping_mul(5).wrapping_add(b) as usize),
            (None, Some(StreamId(handle))) if handle < 64 => Some(handle as usize),
            (None, Some(StreamId(handle))) => Some(mixed(handle)),
            (None, None) => None,
        }
    }

    /// Returns a text for each badge: `private (0, 1)`, `stream 7`, `expandable`.
    pub fn names(&self) -> Vec<String> {
        let pool = self.private_pool.map(|MempoolId(a, b)| format!("private ({a}, {b})"));
        let stream = self.stream.map(|StreamId(handle)| format!("stream {handle}"));
        let expandable = self.is_expandable.then(|| "expandable".to_owned());
        [pool, stream, expandable].into_iter().flatten().collect()
    }
}
