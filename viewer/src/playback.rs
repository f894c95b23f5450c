//! How the recording runs by itself: how fast, and where it is between two events.

/// How many times as fast as it was recorded, from the slowest.
pub const SPEEDS: [f64; 9] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
/// As it was recorded.
const NORMAL: usize = 2;

/// A running clock: where the recording was at a time of the page's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Running {
    clock_ms: f64,
    from_ns: u64,
    /// How far it has come since. Apart from `from_ns`, for nanoseconds since 1970 have more digits than an `f64`.
    passed_ns: f64,
}

impl Running {
    fn time_ns(&self) -> u64 {
        self.from_ns.saturating_add(self.passed_ns as u64)
    }
}

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Playback {
    speed: usize,
    playing: bool,
    running: Option<Running>,
}

impl Default for Playback {
    fn default() -> Self {
        Self::at_speed(NORMAL)
    }
}

impl Playback {
    /// A transport at rest at the speed `SPEEDS[speed]`.
    #[must_use]
    pub fn at_speed(speed: usize) -> Self {
        Self { speed: speed.min(SPEEDS.len() - 1), playing: false, running: None }
    }

    /// The index of the speed in [`SPEEDS`].
    #[must_use]
    pub fn speed(&self) -> usize {
        self.speed
    }

    /// Changes the speed; also while it runs.
    pub fn set_speed(&mut self, speed: usize) {
        self.speed = speed.min(SPEEDS.len() - 1);
    }

    /// Whether it runs.
    #[must_use]
    pub fn is_playing(&self) -> bool {
        self.playing
    }

    /// Runs from a time of the recording.
    pub fn play(&mut self, clock_ms: f64, time_ns: u64) {
        self.playing = true;
        self.running = Some(Running { clock_ms, from_ns: time_ns, passed_ns: 0.0 });
    }

    /// Stops.
    pub fn pause(&mut self) {
        self.playing = false;
        self.running = None;
    }

    /// The moment was changed from outside: if it runs, it runs on from there.
    pub fn settle(&mut self) {
        self.running = None;
    }

    /// Stands still until the page's clock shows `clock_ms`, and runs on from where it is then.
    pub fn hold(&mut self, clock_ms: f64) {
        if let Some(running) = &mut self.running {
            running.clock_ms = clock_ms;
        }
    }

    /// Where the recording is now, if it runs; `now_ns` is the moment on the screen.
    pub fn advance(&mut self, clock_ms: f64, now_ns: u64) -> Option<u64> {
        if !self.playing {
            return None;
        }
        let before = self.running.unwrap_or(Running { clock_ms, from_ns: now_ns, passed_ns: 0.0 });
        // A page that was hidden for a while goes on where it was, it does not catch up.
        let passed_ms = (clock_ms - before.clock_ms).clamp(0.0, 250.0);
        let passed_ns = before.passed_ns + passed_ms * 1e6 * SPEEDS[self.speed];
        let running = Running { clock_ms, passed_ns, ..before };
        self.running = Some(running);
        Some(running.time_ns())
    }

    /// The time between two events at which a running transport is.
    #[must_use]
    pub fn time_ns(&self) -> Option<u64> {
        self.running.as_ref().map(Running::time_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_in_the_recordings_time() {
        let mut transport = Playback::default();
        assert_eq!(transport.advance(0.0, 5), None);
        transport.play(1000.0, 5);
        assert_eq!(transport.advance(1010.0, 5), Some(10_000_005));
        transport.set_speed(0);
        assert_eq!(transport.advance(1020.0, 5), Some(12_500_005));
        transport.pause();
        assert_eq!(transport.advance(1030.0, 5), None);
    }

    #[test]
    fn it_runs_to_the_end_of_time_and_loses_no_nanosecond() {
        let mut transport = Playback::default();
        let now = 1_790_000_000_000_000_001;
        transport.play(0.0, now);
        assert_eq!(transport.advance(1.0, now), Some(now + 1_000_000));
        transport.play(0.0, u64::MAX - 5);
        assert_eq!(transport.advance(100.0, 0), Some(u64::MAX));
    }

    #[test]
    fn it_goes_on_from_where_it_is_put_and_does_not_catch_up() {
        let mut transport = Playback::default();
        transport.play(0.0, 0);
        transport.settle();
        assert_eq!(transport.advance(100.0, 7_000), Some(7_000));
        assert_eq!(transport.advance(60_000.0, 7_000), Some(250_007_000));
    }
}
