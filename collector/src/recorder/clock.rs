//! The time of events.

/// The processor's own counter, scaled to nanoseconds: reading it takes a third of the time of the operating system's clock. Where
/// the processor has none that can be relied on, it is that clock after all.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    counter: quanta::Clock,
    began: u64,
}

impl Clock {
    /// A clock that stands at 0. The first in a process learns how fast the counter runs, which takes up to 200 ms.
    pub(super) fn start() -> Self {
        let counter = quanta::Clock::new();
        Self { began: counter.raw(), counter }
    }

    /// Nanoseconds since the start; never goes back.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.counter.delta_as_nanos(self.began, self.counter.raw())
    }
}
