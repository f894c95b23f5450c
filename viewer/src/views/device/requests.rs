//! The sizes that the program requests, by which the map colors free memory.

use std::rc::Rc;

use vramscope_insight::pools::{RequestSizes, UnfitShares};
use vramscope_trace::DeviceId;

use crate::view::{Context, Work};

/// Number of allocations that are read for each event of a slice of work.
const ROWS_PER_EVENT: u64 = 4;

/// The sizes that the program requests, as far as the history has been read.
#[derive(Default)]
pub(super) struct Requests {
    /// The recording's history and the device that `sizes` are of.
    source: Option<(DeviceId, u64)>,
    sizes: RequestSizes,
    /// Number of requests when the map last changed because of them.
    pub(super) shown: u32,
    /// How much of the `shown` requests does not fit into free memory.
    unfit: Option<Rc<UnfitShares>>,
}

impl Requests {
    /// Returns the device and the number of the history that requests in a context are of.
    fn source_of(context: &Context<'_>) -> (DeviceId, u64) {
        (context.device, context.history.generation())
    }

    /// Returns true if the sizes are of the context's device and history.
    pub(super) fn are_of(&self, context: &Context<'_>) -> bool {
        self.source == Some(Self::source_of(context))
    }

    /// Adds the sizes of up to `max_events` times [`ROWS_PER_EVENT`] further allocations. The map
    /// changes once all are added.
    pub(super) fn read(&mut self, context: &Context<'_>, max_events: u64) -> Work {
        if !self.are_of(context) {
            *self = Self { source: Some(Self::source_of(context)), ..Self::default() };
        }
        let Some(lifetimes) = context.lifetimes().filter(|_| context.is_history_complete) else {
            return Work::default();
        };
        let max_rows = u32::try_from(max_events.saturating_mul(ROWS_PER_EVENT)).unwrap_or(u32::MAX);
        let known = self.sizes.count();
        let is_complete = self.sizes.step(lifetimes, max_rows);
        let has_changed = is_complete && self.sizes.count() != self.shown;
        if has_changed {
            self.shown = self.sizes.count();
            self.unfit = Some(Rc::new(self.sizes.unfit_shares()));
        }
        Work { has_more: !is_complete && self.sizes.count() != known, has_changed }
    }

    /// Returns how much of the requested memory does not fit into free memory. Unless another view
    /// has read the whole history, the live blocks count as requests.
    pub(super) fn unfit_shares(&self, context: &Context<'_>) -> Rc<UnfitShares> {
        let known = self.unfit.clone().filter(|_| self.are_of(context));
        known.unwrap_or_else(|| Rc::new(RequestSizes::of_blocks(context.state).unfit_shares()))
    }
}
