//! Maps calls of a continued program to the recorded calls that they repeat.

use std::collections::BTreeMap;

/// The calls of a continued program, each with the recorded call that it repeats.
#[derive(Clone, Debug, Default)]
pub(super) struct Repeats {
    /// For the event of a request: the event of the request in the earlier step, and how many steps
    /// later it is, 1 or 2.
    pub(super) references: BTreeMap<u64, (u64, usize)>,
    /// Events of the earlier step, each with the event that repeats it, one and two steps later, in
    /// order.
    pub(super) images: [Vec<(u64, u64)>; 2],
}

impl Repeats {
    /// Returns the event before which a repetition makes the calls that the earlier step makes
    /// before `event`.
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
