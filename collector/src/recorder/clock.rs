//! The time of events.

/// The processor's own counter, which takes half the time of the operating system's clock to read. Where the processor has none that can
/// be relied on, it is that clock after all.
///
/// A program that is recorded reads only the counter, in *ticks*; the recorder makes nanoseconds of them on its own thread.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    counter: quanta::Clock,
    /// Whether `counter` reads what [`time_stamp`] does, which is then read without a call and without a choice between sources.
    reads_time_stamp: bool,
    began: u64,
}

impl Clock {
    /// A clock that stands at 0. The first in a process learns how fast the counter runs, which takes up to 200 ms.
    pub(super) fn start() -> Self {
        let counter = quanta::Clock::new();
        // Any other source counts from another time: its reading would lie within these 50 ns once in some centuries.
        let before = time_stamp();
        let read = counter.raw();
        let reads_time_stamp = before.zip(time_stamp()).is_some_and(|(before, after)| (before..=after).contains(&read));
        Self { began: counter.raw(), reads_time_stamp, counter }
    }

    /// What the counter says. Between processors it may go back by what a processor reads ahead of what it does, some 100 ns.
    #[inline]
    pub(super) fn ticks(&self) -> u64 {
        match time_stamp() {
            Some(ticks) if self.reads_time_stamp => ticks,
            _ => self.counter.raw(),
        }
    }

    /// Nanoseconds from the start to when the counter said so; what is earlier is at 0.
    pub(super) fn ns_at(&self, ticks: u64) -> u64 {
        self.counter.delta_as_nanos(self.began, ticks)
    }

    /// Nanoseconds since the start; never goes back.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.ns_at(self.ticks())
    }
}

/// The processor's time-stamp counter, where there is one.
#[inline]
fn time_stamp() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Every processor of this kind has the instruction, and it changes nothing but the registers that it answers in.
    return Some(unsafe { core::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}
