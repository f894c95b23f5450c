//! The recorder's clock.

/// A clock that reads the processor's time-stamp counter, which takes half as long as reading the
/// operating system's clock. If the counter is not reliable, it reads the system's clock instead.
///
/// Program threads read *ticks* only; the recorder converts them to nanoseconds on its own thread.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    counter: quanta::Clock,
    /// True if `counter` reads the counter of [`time_stamp`], which is then called directly.
    reads_time_stamp: bool,
    began: u64,
}

impl Clock {
    /// Starts a clock, whose nanoseconds count from now. The first clock of a process calibrates
    /// the processor's counter, which takes up to 200 ms.
    pub(super) fn start() -> Self {
        let counter = quanta::Clock::new();
        // Any other clock counts from another origin, so its value is within these 50 ns only by a
        // coincidence that happens once in centuries.
        let before = time_stamp();
        let read = counter.raw();
        let reads_time_stamp = before.zip(time_stamp()).is_some_and(|(before, after)| (before..=after).contains(&read));
        Self { began: counter.raw(), reads_time_stamp, counter }
    }

    /// Reads the processor's counter, in ticks. A reading may be about 100 ns earlier than one that
    /// another processor took before.
    #[inline]
    pub(super) fn ticks(&self) -> u64 {
        match time_stamp() {
            Some(ticks) if self.reads_time_stamp => ticks,
            _ => self.counter.raw(),
        }
    }

    /// Converts ticks to nanoseconds since the clock's start; earlier ticks become 0.
    pub(super) fn ns_at(&self, ticks: u64) -> u64 {
        self.counter.delta_as_nanos(self.began, ticks)
    }

    /// Converts a reading of the processor's time-stamp counter to nanoseconds since the clock's
    /// start. Returns the current time if the counter is not reliable.
    pub(super) fn ns_at_time_stamp(&self, time_stamp: u64) -> u64 {
        if self.reads_time_stamp { self.ns_at(time_stamp) } else { self.now_ns() }
    }

    /// Returns nanoseconds since the clock's start; never goes back.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.ns_at(self.ticks())
    }
}

/// Reads the processor's time-stamp counter; `None` on processors other than x86-64.
#[inline]
fn time_stamp() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Every x86-64 processor has this instruction; it only writes the registers of its
    // result.
    return Some(unsafe { core::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}
