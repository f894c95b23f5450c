//! Playing a recording: speed, and the time between two events.

/// Playback speeds relative to the recorded time (1 is as recorded), ascending.
pub const SPEEDS: [f64; 9] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];
/// Index in [`SPEEDS`] of 1, the speed at which the recording was made.
const NORMAL_SPEED: usize = 2;

/// The recording's time that playback has reached, and the time of the page's clock at which it
/// did.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PlaybackClock {
    clock_ms: f64,
    from_ns: u64,
    /// Recording time since `from_ns`. Separate, because Unix nanoseconds do not fit an `f64`.
    elapsed_ns: f64,
}

impl PlaybackClock {
    /// Returns the recording's time that playback has reached, in nanoseconds.
    fn time_ns(&self) -> u64 {
        self.from_ns.saturating_add(self.elapsed_ns as u64)
    }
}

/// The state of playing a recording: playing or paused, and the speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Playback {
    speed: usize,
    is_playing: bool,
    clock: Option<PlaybackClock>,
}

impl Default for Playback {
    fn default() -> Self {
        Self::at_speed(NORMAL_SPEED)
    }
}

impl Playback {
    /// Creates a paused playback with the speed `SPEEDS[speed]`, the fastest if the index is too
    /// large.
    #[must_use]
    pub fn at_speed(speed: usize) -> Self {
        Self { speed: speed.min(SPEEDS.len() - 1), is_playing: false, clock: None }
    }

    /// Returns the index of the speed in [`SPEEDS`].
    #[must_use]
    pub fn speed(&self) -> usize {
        self.speed
    }

    /// Sets the speed `SPEEDS[speed]` (the fastest if the index is too large), also during
    /// playback.
    pub fn set_speed(&mut self, speed: usize) {
        self.speed = speed.min(SPEEDS.len() - 1);
    }

    /// Returns true while the recording is playing, false while it is paused.
    #[must_use]
    pub fn is_playing(&self) -> bool {
        self.is_playing
    }

    /// Starts playing at the recording's time `time_ns`, when the page's clock shows `clock_ms`.
    pub fn play(&mut self, clock_ms: f64, time_ns: u64) {
        self.is_playing = true;
        self.clock = Some(PlaybackClock { clock_ms, from_ns: time_ns, elapsed_ns: 0.0 });
    }

    /// Stops playing; the speed stays.
    pub fn pause(&mut self) {
        self.is_playing = false;
        self.clock = None;
    }

    /// Makes the next [`advance`](Self::advance) start from the moment on the screen, after the
    /// user has changed it.
    pub fn restart_clock(&mut self) {
        self.clock = None;
    }

    /// Lets the page's clock run to `clock_ms` without advancing playback, for example while data
    /// is loaded.
    pub fn hold(&mut self, clock_ms: f64) {
        if let Some(clock) = &mut self.clock {
            clock.clock_ms = clock_ms;
        }
    }

    /// Advances playback to time `clock_ms` of the page's clock and returns the recording's time in
    /// nanoseconds; `None` if not playing. A call advances by at most 250 ms of the page's clock.
    ///
    /// `screen_ns` is the recording's time of the moment on the screen, where playback starts after
    /// [`restart_clock`](Self::restart_clock).
    pub fn advance(&mut self, clock_ms: f64, screen_ns: u64) -> Option<u64> {
        if !self.is_playing {
            return None;
        }
        let clock = self.clock.unwrap_or(PlaybackClock { clock_ms, from_ns: screen_ns, elapsed_ns: 0.0 });
        // A page that was hidden continues where it stopped, without catching up.
        let elapsed_ms = (clock_ms - clock.clock_ms).clamp(0.0, 250.0);
        let elapsed_ns = clock.elapsed_ns + elapsed_ms * 1e6 * SPEEDS[self.speed];
        let clock = PlaybackClock { clock_ms, elapsed_ns, ..clock };
        self.clock = Some(clock);
        Some(clock.time_ns())
    }

    /// Returns the recording's time in nanoseconds, which may be between two events; `None` unless
    /// playing.
    #[must_use]
    pub fn time_ns(&self) -> Option<u64> {
        self.clock.as_ref().map(PlaybackClock::time_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playback_advances_by_speed() {
        let mut playback = Playback::default();
        assert_eq!(playback.advance(0.0, 5), None);
        playback.play(1000.0, 5);
        assert_eq!(playback.advance(1010.0, 5), Some(10_000_005));
        playback.set_speed(0);
        assert_eq!(playback.advance(1020.0, 5), Some(12_500_005));
        playback.pause();
        assert_eq!(playback.advance(1030.0, 5), None);
    }

    #[test]
    fn playback_is_exact_for_large_times_and_saturates() {
        let mut playback = Playback::default();
        let now = 1_790_000_000_000_000_001;
        playback.play(0.0, now);
        assert_eq!(playback.advance(1.0, now), Some(now + 1_000_000));
        playback.play(0.0, u64::MAX - 5);
        assert_eq!(playback.advance(100.0, 0), Some(u64::MAX));
    }

    #[test]
    fn playback_continues_from_the_screen_and_does_not_catch_up() {
        let mut playback = Playback::default();
        playback.play(0.0, 0);
        playback.restart_clock();
        assert_eq!(playback.advance(100.0, 7_000), Some(7_000));
        assert_eq!(playback.advance(60_000.0, 7_000), Some(250_007_000));
    }
}
