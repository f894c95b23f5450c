//! Buckets of events, each with its peak of the live bytes.

use super::layers::{LAYERS, LayerBytes};
use super::rows::AllocationRows;

/// Maximum number of buckets. At 224 bytes each they take 7 MB, and a column of a picture 1,500
/// pixels wide has at least 10 buckets.
const MAX_BUCKETS: usize = 1 << 15;

/// The live bytes of all layers at one moment, after all changes up to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LiveState {
    /// The moment.
    pub(super) moment: u64,
    /// Number of changes up to the moment.
    pub(super) changes: usize,
    /// Sum of the layers' bytes.
    pub(super) total: u64,
    /// Bytes of every layer.
    pub(super) layers: LayerBytes,
}

impl LiveState {
    /// Returns the state without memory, before the first change, at `moment`.
    pub(super) const fn empty(moment: u64) -> Self {
        Self { moment, changes: 0, total: 0, layers: [0; LAYERS] }
    }

    /// Adds `bytes` to a layer if `is_start` is true, else removes them.
    #[inline]
    pub(super) fn apply(&mut self, layer: u8, bytes: u64, is_start: bool) {
        let sum = &mut self.layers[usize::from(layer)];
        if is_start {
            *sum = sum.saturating_add(bytes);
            self.total = self.total.saturating_add(bytes);
        } else {
            *sum = sum.saturating_sub(bytes);
            self.total = self.total.saturating_sub(bytes);
        }
        self.changes += 1;
    }

    /// Moves to `moment`, applying the changes up to it. `layer_of` returns the layer of a group.
    pub(super) fn advance(&mut self, rows: &impl AllocationRows, layer_of: impl Fn(u32) -> u8, moment: u64) {
        while self.changes < rows.change_count() {
            let change = rows.change(self.changes);
            if change.moment > moment {
                break;
            }
            self.apply(layer_of(change.group), change.bytes, change.is_start);
        }
        self.moment = self.moment.max(moment);
    }
}

/// Buckets of equally many consecutive moments, each with the state at its peak of the live bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Buckets {
    /// The first moment of the first bucket.
    origin: u64,
    /// Base-2 logarithm of the number of moments in a bucket.
    shift: u32,
    /// The state at the peak of each bucket, without gaps between buckets.
    states: Vec<LiveState>,
}

impl Buckets {
    /// Creates buckets for the moments from `origin` on.
    pub(super) fn new(origin: u64) -> Self {
        Self { origin, shift: 0, states: Vec::new() }
    }

    /// Returns the states of all buckets, in order.
    pub(super) fn states(&self) -> &[LiveState] {
        &self.states
    }

    /// Returns the first moment of the first bucket.
    pub(super) fn origin(&self) -> u64 {
        self.origin
    }

    /// Returns the index of the bucket that contains a moment; 0 for a moment before the first
    /// bucket.
    pub(super) fn index_of(&self, moment: u64) -> usize {
        usize::try_from(moment.saturating_sub(self.origin) >> self.shift).unwrap_or(usize::MAX)
    }

    /// Returns the first moment of the bucket with an index.
    pub(super) fn first_moment(&self, index: usize) -> u64 {
        self.origin.saturating_add((index as u64) << self.shift)
    }

    /// Returns the last moment of the bucket with an index.
    pub(super) fn last_moment(&self, index: usize) -> u64 {
        self.first_moment(index).saturating_add((1 << self.shift) - 1)
    }

    /// Merges neighboring buckets until there is room for one that contains `moment`.
    pub(super) fn make_room(&mut self, moment: u64) {
        while self.index_of(moment) >= MAX_BUCKETS {
            self.shift += 1;
            let pairs = self.states.chunks(2);
            // Of two equal peaks, keep the first, as the rest of the crate does.
            let merged = pairs.map(|pair| match *pair {
                [first, second] if second.total > first.total => second,
                _ => pair[0],
            });
            self.states = merged.collect();
        }
    }

    /// Records that memory stayed in `state` from its moment to `last`. States come in order, and
    /// [`make_room`](Self::make_room) was called with `last`.
    pub(super) fn observe(&mut self, state: &LiveState, last: u64) {
        let (first_index, last_index) = (self.index_of(state.moment), self.index_of(last));
        for index in first_index..=last_index {
            let moment = state.moment.max(self.first_moment(index));
            match self.states.get_mut(index) {
                Some(known) if known.total >= state.total => {}
                Some(known) => *known = LiveState { moment, ..*state },
                None => self.states.push(LiveState { moment, ..*state }),
            }
        }
    }

    /// Returns the number of buckets and the last one, to restore them later with
    /// [`restore`](Self::restore).
    pub(super) fn mark(&self) -> (usize, Option<LiveState>) {
        (self.states.len(), self.states.last().copied())
    }

    /// Removes the states observed since [`mark`](Self::mark) returned these values. No buckets may
    /// have been merged since.
    pub(super) fn restore(&mut self, (len, last): (usize, Option<LiveState>)) {
        self.states.truncate(len);
        if let (Some(known), Some(last)) = (self.states.last_mut(), last) {
            *known = last;
        }
    }

    /// Returns the memory that the buckets occupy, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.states.capacity() * size_of::<LiveState>()
    }
}
