//! Finds the buffers that live at the same time as a buffer.

use super::problem::Span;

/// Minimum number of buffers between two stored sets of live buffers.
const MIN_INTERVAL: usize = 64;

/// An index of buffers by lifetime.
///
/// Stores which buffers live at some of the starts. All buffers that overlap a buffer are in the
/// last stored set before its start, or start after that set and before its end.
#[derive(Clone, Debug)]
pub(super) struct OverlapIndex {
    /// The buffers in the order of their starts.
    by_start: Vec<u32>,
    /// The first clique of each buffer of `by_start`.
    starts: Vec<u32>,
    /// Sets of live buffers, each with the number of buffers in `by_start` before it. Between two
    /// sets are at least as many buffers as the first one has, so that all sets together are not
    /// larger than the list of buffers.
    live_sets: Vec<(usize, Vec<u32>)>,
}

impl OverlapIndex {
    /// Creates the index of all buffers.
    pub(super) fn new(spans: &[Span]) -> Self {
        let mut by_start: Vec<u32> = (0..spans.len() as u32).collect();
        by_start.sort_by_key(|&number| spans[number as usize].first);
        let starts = by_start.iter().map(|&number| spans[number as usize].first).collect();
        let mut live_sets: Vec<(usize, Vec<u32>)> = Vec::new();
        let mut live: Vec<u32> = Vec::new();
        for (position, &number) in by_start.iter().enumerate() {
            let interval = live_sets.last().map_or(0, |(_, set)| set.len().max(MIN_INTERVAL));
            if live_sets.last().is_none_or(|(last, _)| position - last >= interval) {
                let clique = spans[number as usize].first;
                live.retain(|&other| spans[other as usize].end > clique);
                live_sets.push((position, live.clone()));
            }
            live.push(number);
        }
        Self { by_start, starts, live_sets }
    }

    /// Calls `each` with the number of every other buffer that lives at the same time as the buffer
    /// `number`. Returns how many buffers were looked at.
    pub(super) fn for_each(&self, spans: &[Span], number: u32, mut each: impl FnMut(u32)) -> usize {
        let span = spans[number as usize];
        // The set must not be later than the first buffer that starts in the same clique.
        let first = self.starts.partition_point(|&start| start < span.first);
        let set = self.live_sets.partition_point(|(position, _)| *position <= first).saturating_sub(1);
        let Some((from, live)) = self.live_sets.get(set) else { return 0 };
        for &other in live.iter().filter(|&&other| spans[other as usize].end > span.first) {
            each(other);
        }
        let later = self.starts[*from..].iter().take_while(|&&start| start < span.end).count();
        for &other in &self.by_start[*from..*from + later] {
            if other != number && spans[other as usize].end > span.first {
                each(other);
            }
        }
        live.len() + later
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_overlapping_buffer_is_found_once() {
        let mut random = fastrand::Rng::with_seed(1);
        for count in [1, 2, 50, 700] {
            let spans: Vec<Span> = (0..count)
                .map(|_| {
                    let first = random.u32(0..200);
                    let length = if random.u32(0..10) == 0 { 150 } else { random.u32(1..6) };
                    Span { first, end: first + length, size: 1 }
                })
                .collect();
            let index = OverlapIndex::new(&spans);
            for number in 0..count {
                let mut found = Vec::new();
                index.for_each(&spans, number, |other| found.push(other));
                found.sort_unstable();
                let overlaps = |&other: &u32| {
                    let (one, other_span) = (spans[number as usize], spans[other as usize]);
                    other != number && one.first < other_span.end && other_span.first < one.end
                };
                assert_eq!(found, (0..count).filter(overlaps).collect::<Vec<_>>());
            }
        }
    }
}
