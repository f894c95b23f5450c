//! Times of a pool's events.
//!
//! Reading the processor's counter takes 30 ns on some virtual machines, because it waits for
//! earlier instructions: two readings then cost as much as the pool's own work for an allocation
//! and its free. So the clock is not read at every call while a program does nothing but allocate
//! and free.

/// Number of pool calls that share one reading of the clock while a program does nothing but
/// allocate and free (a burst).
const STRIDE: u64 = 8;
/// Average time for each call of the pool, in ticks, below which two successive readings of the
/// clock count as dense: 130 to 250 ns on current processors. A program that also uses its memory
/// takes longer between calls.
const DENSE_TICKS: u64 = 512;
/// Number of dense readings of the clock in a row that begin a burst, in which calls share
/// readings.
const BURST: u8 = 16;

/// The time of a pool's latest event, in ticks. It never goes back.
///
/// A burst is a run of calls in quick succession ([`DENSE_TICKS`]). Outside of a burst, every call
/// reads the clock. In a burst, every eighth call reads it, and the seven calls after each reading
/// use its time, which is less than 2 µs old. The end of a burst is noticed at the next reading, so
/// up to seven calls after the end get a time from within the burst.
#[derive(Debug, Default)]
pub(crate) struct CallClock {
    latest: u64,
    /// Number of dense readings in a row, up to [`BURST`].
    dense: u8,
    /// Number of calls that still share the last reading.
    left: u8,
}

impl CallClock {
    /// Returns the time, in ticks, of a call that changes the pool. Reads the clock with `read`,
    /// except in a burst of calls, where several calls share one reading.
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

    /// Returns the last time that [`of_call`](Self::of_call) or [`exact`](Self::exact) returned, in
    /// ticks, without reading the clock.
    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }

    /// Reads the clock with `read`, also in a burst, and returns the time in ticks. If the reading
    /// is earlier than the last time, returns the last time.
    #[inline]
    pub(crate) fn exact(&mut self, read: impl FnOnce() -> u64) -> u64 {
        self.latest = self.latest.max(read());
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the time that each call at `times` gets, and the number of readings.
    fn event_times(times: impl IntoIterator<Item = u64>) -> (Vec<u64>, usize) {
        let (mut time, mut readings) = (CallClock::default(), 0);
        let returned = times.into_iter().map(|now| {
            time.of_call(|| {
                readings += 1;
                now
            })
        });
        (returned.collect(), readings)
    }

    #[test]
    fn slow_calls_read_the_clock_each_time() {
        let times: Vec<u64> = (1..1000).map(|call| call * DENSE_TICKS).collect();
        assert_eq!(event_times(times.clone()), (times, 999));
        // Calls may also come in small groups: an allocation and its free.
        let times: Vec<u64> = (1..1000).map(|call| call / 10 * 5000 + call % 10 * 50 + 600).collect();
        assert_eq!(event_times(times.clone()), (times, 999));
    }

    #[test]
    fn burst_reads_the_clock_once_in_eight_calls() {
        let (returned, readings) = event_times((1..=10_000).map(|call| call * 100));
        assert!(readings < 10_000 / 7, "{readings}");
        for (call, time) in (1..).zip(returned) {
            assert!(time <= call * 100 && call * 100 - time < STRIDE * 100);
        }
    }

    #[test]
    fn few_calls_after_a_burst_get_the_time_of_its_end() {
        let stop = 10_000 * 100;
        let pause = stop + 50_000_000;
        let (returned, _) =
            event_times((1..=10_000).map(|call| call * 100).chain((0..100).map(|call| pause + call * 10_000)));
        let early = returned[10_000..].iter().filter(|&&time| time <= stop).count();
        assert!(early < STRIDE as usize, "{early}");
        assert!(
            returned[10_000 + early..].iter().zip(early as u64..).all(|(&time, call)| time == pause + call * 10_000)
        );
        assert!(returned.is_sorted());
    }

    #[test]
    fn time_never_goes_back() {
        let (returned, _) = event_times([5_000, 4_000, 9_000, 100, 20_000]);
        assert_eq!(returned, [5_000, 5_000, 9_000, 9_000, 20_000]);
    }
}
