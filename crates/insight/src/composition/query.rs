//! The composition at the highest moment of each pixel column.

use vramscope_trace::AllocationRow;

use super::buckets::{Buckets, LiveState};
use super::device_rows::DeviceRows;
use super::layers::{LAYERS, LayerBytes};
use super::rows::AllocationRows;
use super::series::CompositionSeries;

/// The live bytes in a pixel column, at the column's peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompositionColumn {
    /// The first moment of the column's most live bytes.
    pub moment: u64,
    /// The live bytes at the moment.
    pub total: u64,
    /// The live bytes of every layer at the moment, which add up to `total`.
    pub layers: LayerBytes,
}

impl From<LiveState> for CompositionColumn {
    fn from(state: LiveState) -> Self {
        Self { moment: state.moment, total: state.total, layers: state.layers }
    }
}

impl CompositionSeries {
    /// Returns the live bytes in the columns between `edges`, the moments at the columns' left
    /// edges and at the last one's right edge, which must not decrease. Moments outside of
    /// [`moments`](Self::moments) stand for the first or the last one.
    ///
    /// Column c shows the moments `edges[c]` to `edges[c + 1]`, both included; the moments of the
    /// columns do not decrease. `rows` are the rows from which the series was built. The cost of a
    /// column is at most that of applying two buckets of changes, and usually much less.
    #[must_use]
    pub fn columns(&self, rows: &impl AllocationRows, edges: &[u64]) -> Vec<CompositionColumn> {
        let mut reader = StateReader::new(self, rows);
        let clamp = |edge: u64| edge.clamp(self.buckets.origin(), self.end_moment);
        edges.windows(2).map(|pair| reader.highest(clamp(pair[0]), clamp(pair[1].max(pair[0]))).into()).collect()
    }

    /// Returns the live bytes at one moment.
    #[must_use]
    pub fn at(&self, rows: &impl AllocationRows, moment: u64) -> CompositionColumn {
        let moment = moment.clamp(self.buckets.origin(), self.end_moment);
        StateReader::new(self, rows).state_at(moment).into()
    }

    /// Returns the live bytes of some allocations, by layer, at each of `moments`, which must not
    /// decrease. `is_counted` decides which allocations count. An allocation counts for its group
    /// after its last relabel.
    ///
    /// The cost is that of reading the allocations that are live between the first and the last
    /// moment, and of `is_counted` for each.
    #[must_use]
    pub fn layers_at(
        &self,
        rows: &DeviceRows<'_>,
        moments: &[u64],
        mut is_counted: impl FnMut(&AllocationRow) -> bool,
    ) -> Vec<LayerBytes> {
        // Until the last step, the bytes that become live from one moment to the next, less those
        // that end; they wrap around below 0.
        let mut layers = vec![[0u64; LAYERS]; moments.len()];
        let index_of = |moment: u64| moments.partition_point(|known| *known < moment);
        let Some((&first, &last)) = moments.first().zip(moments.last()) else { return layers };
        rows.lifetimes.for_each_active_row(first, last, |row| {
            if is_counted(&row) {
                let layer = usize::from(self.layer_of(rows.groups.group_of(rows.lifetimes, &row)));
                let end = index_of(row.active_until.unwrap_or(u64::MAX));
                if let Some(started) = layers.get_mut(index_of(row.first_moment)) {
                    started[layer] = started[layer].wrapping_add(row.size);
                }
                if let Some(ended) = layers.get_mut(end) {
                    ended[layer] = ended[layer].wrapping_sub(row.size);
                }
            }
        });
        let mut live = [0u64; LAYERS];
        for layers in &mut layers {
            for (live, bytes) in live.iter_mut().zip(layers) {
                *live = live.wrapping_add(*bytes);
                *bytes = *live;
            }
        }
        layers
    }
}

/// Reads states of increasing moments from the buckets and the changes between.
struct StateReader<'a, R> {
    series: &'a CompositionSeries,
    buckets: &'a Buckets,
    rows: &'a R,
    /// The last state read, from which the next one may be near.
    last: LiveState,
}

impl<'a, R: AllocationRows> StateReader<'a, R> {
    /// Creates a reader that has read no state.
    fn new(series: &'a CompositionSeries, rows: &'a R) -> Self {
        let buckets = &series.buckets;
        Self { series, buckets, rows, last: LiveState::empty(buckets.origin()) }
    }

    /// Returns the state at `moment`.
    fn state_at(&mut self, moment: u64) -> LiveState {
        let states = self.buckets.states();
        let index = self.buckets.index_of(moment);
        // The last stored state that is not after `moment` is that of the moment's bucket or of the
        // bucket before.
        let stored = [Some(index), index.checked_sub(1)].into_iter().flatten();
        let stored = stored.filter_map(|index| states.get(index)).find(|state| state.moment <= moment).copied();
        let stored = stored.unwrap_or(LiveState::empty(self.buckets.origin()));
        let is_nearer = self.last.moment <= moment && self.last.changes > stored.changes;
        let mut state = if is_nearer { self.last } else { stored };
        state.advance(self.rows, |group| self.series.layer_of(group), moment);
        self.last = state;
        state
    }

    /// Returns the state at the peak of the live bytes from `first` to `last`.
    fn highest(&mut self, first: u64, last: u64) -> LiveState {
        let (first_index, last_index) = (self.buckets.index_of(first), self.buckets.index_of(last));
        let states = self.buckets.states();
        let within = |index: usize| states.get(index).filter(|state| (first..=last).contains(&state.moment));
        if first_index == last_index {
            return within(first_index).copied().unwrap_or_else(|| self.scan(first, last));
        }
        let whole = states.get(first_index + 1..last_index).unwrap_or_default();
        // `max_by_key` returns the last of equal peaks, which in reverse order is the first moment.
        let whole = whole.iter().rev().max_by_key(|state| state.total).copied();
        let limit = whole.map_or(0, |state| state.total);
        // A part of a bucket is scanned only if it can contain the peak: the bucket's own peak is
        // outside of the column, and higher than the peak inside so far.
        let start = match within(first_index) {
            Some(state) => Some(*state),
            None if states.get(first_index).is_some_and(|state| state.total >= limit) => {
                Some(self.scan(first, self.buckets.last_moment(first_index)))
            }
            None => None,
        };
        let higher = |a: LiveState, b: LiveState| if b.total > a.total { b } else { a };
        let best = [start, whole].into_iter().flatten().reduce(higher);
        let end = match within(last_index) {
            Some(state) => Some(*state),
            None if best.is_none_or(|best| states.get(last_index).is_some_and(|state| state.total > best.total)) => {
                Some(self.scan(self.buckets.first_moment(last_index), last))
            }
            None => None,
        };
        [best, end].into_iter().flatten().reduce(higher).unwrap_or(self.last)
    }

    /// Returns the state at the peak of the live bytes from `first` to `last`, by applying every
    /// change between.
    fn scan(&mut self, first: u64, last: u64) -> LiveState {
        let mut state = self.state_at(first);
        let mut best = state;
        let change_at = |index: usize| (index < self.rows.change_count()).then(|| self.rows.change(index));
        let mut next = change_at(state.changes);
        while let Some(change) = next.filter(|change| change.moment <= last) {
            state.apply(self.series.layer_of(change.group), change.bytes, change.is_start);
            next = change_at(state.changes);
            // The state of a moment is complete only after the last change at that moment.
            if next.is_none_or(|next| next.moment > change.moment) {
                state.moment = change.moment;
                if state.total > best.total {
                    best = state;
                }
            }
        }
        self.last = state;
        best
    }
}
