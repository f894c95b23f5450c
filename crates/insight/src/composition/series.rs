//! The live bytes of a device by group over time, built in steps.

use super::buckets::{Buckets, LiveState};
use super::layers::{GroupPeaks, LayerTable, OTHER_LAYER};
use super::rows::AllocationRows;

/// The live bytes of one device by group over time.
///
/// Built by calls of [`step`](Self::step) until it returns true; the same call extends it as a live
/// recording grows. The groups that have a layer of their own are chosen from the changes known at
/// the first call. [`is_outdated`](Self::is_outdated) tells when other groups have become larger:
/// create and build another series then, while this one is shown.
///
/// Takes about 7 MB for a recording of any length.
#[derive(Clone, Debug, Default)]
pub struct CompositionSeries {
    /// Number of changes from which the groups with a layer are chosen; `None` before the first
    /// step.
    choose_after: Option<usize>,
    /// Whether the groups with a layer of their own have been chosen.
    is_chosen: bool,
    peaks: GroupPeaks,
    /// Number of changes applied to `peaks`.
    peak_changes: usize,
    pub(super) layers: LayerTable,
    /// Peak in bytes above which a group without a layer of its own makes the series outdated.
    outdated_peak: u64,
    is_outdated: bool,
    pub(super) buckets: Buckets,
    /// The state after all changes applied so far.
    state: LiveState,
    /// The last moment that queries can read.
    pub(super) end_moment: u64,
    /// The buckets before the state at `end_moment` was added: further changes at that moment, for
    /// example by a full state, replace it.
    before_end: Option<(usize, Option<LiveState>)>,
}

impl CompositionSeries {
    /// Creates a series of the moments from `first_moment` on, the first moment of the recording.
    #[must_use]
    pub fn new(first_moment: u64) -> Self {
        Self {
            buckets: Buckets::new(first_moment),
            state: LiveState::empty(first_moment),
            end_moment: first_moment,
            ..Self::default()
        }
    }

    /// Applies up to `max_changes` further changes of `rows`, and returns true if none are left:
    /// the series then shows memory up to `end_moment`, the last moment of the recording.
    ///
    /// The changes known at the first call are applied twice, because the groups with a layer of
    /// their own are chosen first. Takes about 40 ns a change.
    pub fn step(&mut self, rows: &impl AllocationRows, end_moment: u64, max_changes: usize) -> bool {
        let mut left = max_changes.max(1);
        if !self.is_chosen {
            let total = *self.choose_after.get_or_insert(rows.change_count());
            let applied =
                self.peaks.apply_from(rows, self.peak_changes, left.min(total.saturating_sub(self.peak_changes)));
            self.peak_changes += applied;
            left -= applied;
            if self.peak_changes < total.min(rows.change_count()) {
                return false;
            }
            for group in self.peaks.highest() {
                self.layers.add(group);
            }
            self.is_chosen = true;
        }
        self.follow(rows, end_moment, left)
    }

    /// Applies up to `max_changes` changes to the buckets, and returns true if none are left.
    fn follow(&mut self, rows: &impl AllocationRows, end_moment: u64, max_changes: usize) -> bool {
        if let Some(mark) = self.before_end.take() {
            self.buckets.restore(mark);
        }
        let until = rows.change_count().min(self.state.changes.saturating_add(max_changes));
        while self.state.changes < until {
            let change = rows.change(self.state.changes);
            if change.moment > self.state.moment {
                // The state lasts until the moment before the change.
                self.buckets.make_room(change.moment - 1);
                self.buckets.observe(&self.state, change.moment - 1);
                self.state.moment = change.moment;
            }
            let mut layer = self.layers.layer_of(change.group);
            if self.state.changes >= self.peak_changes {
                self.peak_changes += 1;
                let peak = self.peaks.apply(&change);
                if layer == OTHER_LAYER {
                    layer = self.add_layer(change.group, peak);
                }
            }
            self.state.apply(layer, change.bytes, change.is_start);
        }
        let is_done = self.state.changes >= rows.change_count();
        self.end_moment = if is_done { self.state.moment.max(end_moment) } else { self.state.moment };
        self.buckets.make_room(self.end_moment);
        self.before_end = Some(self.buckets.mark());
        self.buckets.observe(&self.state, self.end_moment);
        is_done
    }

    /// Gives a group that had no memory before its own layer, if one is left; otherwise marks the
    /// series as outdated if `peak` exceeds `outdated_peak`. Returns the index of the layer that
    /// shows the group.
    #[inline(never)]
    fn add_layer(&mut self, group: u32, peak: u64) -> u8 {
        let layer = self.layers.add(group);
        if layer == OTHER_LAYER && peak > self.outdated_peak {
            // The peaks of the chosen groups may have grown, too.
            self.outdated_peak = self.peaks.outdated_peak(&self.layers.groups);
            self.is_outdated |= peak > self.outdated_peak;
        }
        layer
    }

    /// Returns true if a group without a layer of its own now has a much higher peak than one that
    /// has: a new series would show other groups.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Returns the groups that have a layer of their own, by layer.
    #[must_use]
    pub fn groups(&self) -> &[u32] {
        &self.layers.groups
    }

    /// Returns the index of the layer that shows a group; [`OTHER_LAYER`] if the group has none of
    /// its own.
    #[must_use]
    pub fn layer_of(&self, group: u32) -> u8 {
        self.layers.layer_of(group)
    }

    /// Returns the first and the last moment that the series shows so far.
    #[must_use]
    pub fn moments(&self) -> (u64, u64) {
        (self.buckets.origin(), self.end_moment)
    }

    /// Returns the moment and the bytes of the peak of the live bytes.
    #[must_use]
    pub fn peak(&self) -> (u64, u64) {
        let states = self.buckets.states().iter();
        // `max_by_key` returns the last of equal peaks, which in reverse order is the first moment.
        states.rev().max_by_key(|state| state.total).map_or((self.end_moment, 0), |state| (state.moment, state.total))
    }

    /// Returns the memory that the series occupies, in bytes, approximately.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.peaks.memory_bytes() + self.buckets.memory_bytes()
    }
}
