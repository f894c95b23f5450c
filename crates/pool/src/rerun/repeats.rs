//! Maps the calls of a continued program to the recorded calls that they repeat. A step is a
//! training step.

use std::collections::BTreeMap;

/// The calls of a continued program, each with the recorded call that it repeats.
#[derive(Clone, Debug, Default)]
pub(super) struct Repeats {
    /// By event of a repeating call: the event of the repeated call, and how many steps before the
    /// repeating call it is, 1 or 2.
    pub(super) references: BTreeMap<u64, (u64, usize)>,
    /// Pairs of an event of the repeated step and the event that repeats it, in ascending order:
    /// one step later (element 0) and two steps later (element 1).
    pub(super) images: [Vec<(u64, u64)>; 2],
}

impl Repeats {
    /// Returns the event that repeats `event` of the repeated step, or the first event after it,
    /// `steps` (1 or 2) steps later. If that step ends before, returns the first event of the next
    /// repetition; `u64::MAX` if there is none.
    pub(super) fn image(&self, event: u64, steps: usize) -> u64 {
        let first_from = |images: &[(u64, u64)]| {
            let at = images.partition_point(|&(recorded, _)| recorded < event);
            images.get(at).map(|&(_, image)| image)
        };
        let own = steps.checked_sub(1).and_then(|index| self.images.get(index)).and_then(|images| first_from(images));
        let next_step = || self.images.get(steps)?.first().map(|&(_, image)| image);
        own.or_else(next_step).unwrap_or(u64::MAX)
    }
}
