//! When something happened in a pool.
//!
//! On some virtual machines reading the processor's counter takes 30 ns, because what was begun before has to be finished first: two
//! readings then cost a block's life as much as the pool itself. So a program that does nothing but ask for memory is not told the time
//! at each call.

/// In a burst, the time is read once in so many calls.
const STRIDE: u64 = 8;
/// Calls that follow each other within so many of the clock's ticks on average are dense: 130 to 250 ns on today's processors. Programs
/// that do anything with their memory are slower.
const DENSE_TICKS: u64 = 512;
/// It is a burst after so many dense readings in a row.
const BURST: u8 = 16;

/// The latest time, which never goes back.
///
/// Each call has a reading of its own, unless it is one of a burst: then up to 7 calls have that of the one before them, which was less
/// than 2 µs ago for the whole burst, and those up to 7 that follow when the burst stops have the time at which it did.
#[derive(Debug, Default)]
pub(crate) struct Time {
    latest: u64,
    /// Dense readings in a row, up to [`BURST`].
    dense: u8,
    /// How many calls are not to read.
    left: u8,
}

impl Time {
    /// The time of a call that changes a pool, in ticks.
    #[inline]
    pub(crate) fn of_call(&mut self, read: impl FnOnce() -> u64) -> u64 {
        if self.left > 0 {
            self.left -= 1;
            return self.latest;
        }
        let calls = if self.dense == BURST { STRIDE } else { 1 };
        let before = self.latest;
        let passed = self.exact(read) - before;
        if passed < calls * DENSE_TICKS {
            self.dense = (self.dense + 1).min(BURST);
        } else {
            self.dense = 0;
        }
        if self.dense == BURST {
            self.left = (STRIDE - 1) as u8;
        }
        self.latest
    }

    /// What was told last.
    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }

    /// The time now, whatever was before.
    #[inline]
    pub(crate) fn exact(&mut self, read: impl FnOnce() -> u64) -> u64 {
        self.latest = self.latest.max(read());
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls at these times, and the times that they are told.
    fn told(times: impl IntoIterator<Item = u64>) -> (Vec<u64>, usize) {
        let (mut time, mut readings) = (Time::default(), 0);
        let told = times.into_iter().map(|now| {
            time.of_call(|| {
                readings += 1;
                now
            })
        });
        (told.collect(), readings)
    }

    #[test]
    fn a_program_that_does_something_is_told_the_time_at_each_call() {
        let times: Vec<u64> = (1..1000).map(|call| call * DENSE_TICKS).collect();
        assert_eq!(told(times.clone()), (times, 999));
        // Also where calls come in small groups, as an allocation and its free do.
        let times: Vec<u64> = (1..1000).map(|call| call / 10 * 5000 + call % 10 * 50 + 600).collect();
        assert_eq!(told(times.clone()), (times, 999));
    }

    #[test]
    fn in_a_burst_the_time_is_read_once_in_eight_calls() {
        let (told, readings) = told((1..=10_000).map(|call| call * 100));
        assert!(readings < 10_000 / 7, "{readings}");
        for (call, time) in (1..).zip(told) {
            assert!(time <= call * 100 && call * 100 - time < STRIDE * 100);
        }
    }

    #[test]
    fn after_a_burst_few_calls_are_told_when_it_stopped() {
        let stop = 10_000 * 100;
        let pause = stop + 50_000_000;
        let (told, _) = told((1..=10_000).map(|call| call * 100).chain((0..100).map(|call| pause + call * 10_000)));
        let early = told[10_000..].iter().filter(|&&time| time <= stop).count();
        assert!(early < STRIDE as usize, "{early}");
        assert!(told[10_000 + early..].iter().zip(early as u64..).all(|(&time, call)| time == pause + call * 10_000));
        assert!(told.is_sorted());
    }

    #[test]
    fn time_does_not_go_back() {
        let (told, _) = told([5_000, 4_000, 9_000, 100, 20_000]);
        assert_eq!(told, [5_000, 5_000, 9_000, 9_000, 20_000]);
    }
}
