//! Playing a recording: speed, and the moments between two frames.

use vramscope_trace::Count;

/// A speed of playback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// Events at an even rate, so that the whole recording takes this many seconds.
    Whole(f64),
    /// The recorded time, times a factor: 1 is as recorded.
    Time(f64),
    /// This many events per second.
    Events(f64),
}

/// All speeds of playback, ascending within each kind (each variant of [`Speed`]).
pub const SPEEDS: [Speed; 21] = [
    Speed::Whole(100.0),
    Speed::Whole(50.0),
    Speed::Whole(25.0),
    Speed::Whole(12.0),
    Speed::Whole(6.0),
    Speed::Time(0.25),
    Speed::Time(0.5),
    Speed::Time(1.0),
    Speed::Time(2.0),
    Speed::Time(4.0),
    Speed::Time(8.0),
    Speed::Time(16.0),
    Speed::Time(32.0),
    Speed::Time(64.0),
    Speed::Events(1.0),
    Speed::Events(5.0),
    Speed::Events(20.0),
    Speed::Events(100.0),
    Speed::Events(1_000.0),
    Speed::Events(10_000.0),
    Speed::Events(100_000.0),
];
/// Index in [`SPEEDS`] of the initial speed: the whole recording in 25 s, with events at an even
/// rate, so that idle time is skipped.
const DEFAULT_SPEED: usize = 2;
/// Indexes in [`SPEEDS`] of the speed that is set first when the user changes to a kind of speed:
/// whole recording, recorded time, or events per second.
const FIRST_OF_KIND: [usize; 3] = [DEFAULT_SPEED, 7, 17];
/// Maximum number of milliseconds of the page's clock by which one call advances playback: a page
/// that was hidden continues where it stopped, without catching up.
const MAX_ADVANCE_MS: f64 = 250.0;

impl Speed {
    /// Returns the speed as text: `whole in 25 s`, `×2` or `1,000 events/s`.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::Whole(seconds) => format!("whole in {seconds} s"),
            Self::Time(factor) => format!("×{factor}"),
            Self::Events(rate) => format!("{}/s", Count(rate as u64).of("event", "events")),
        }
    }

    /// Returns the index of the speed's kind in [`FIRST_OF_KIND`].
    fn kind(self) -> usize {
        match self {
            Self::Whole(_) => 0,
            Self::Time(_) => 1,
            Self::Events(_) => 2,
        }
    }

    /// Returns the number of events to play per millisecond in a recording of `events` events;
    /// `None` for a speed relative to the recorded time.
    fn events_per_ms(self, events: u64) -> Option<f64> {
        match self {
            Self::Whole(seconds) => Some(events as f64 / (seconds * 1e3)),
            Self::Time(_) => None,
            Self::Events(rate) => Some(rate / 1e3),
        }
    }
}

/// The position of playback between two moments, and the page's clock, in milliseconds, when
/// playback reached it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PlaybackClock {
    clock_ms: f64,
    /// The recording's time at which playback began.
    from_ns: u64,
    /// Recording time since `from_ns`, separate because Unix nanoseconds do not fit an `f64`; or
    /// the part of the next event, if events are played at an even rate.
    elapsed: f64,
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
        Self::at_speed(DEFAULT_SPEED)
    }
}

impl Playback {
    /// Creates a paused playback with the speed `SPEEDS[speed]`, the last if the index is too
    /// large.
    pub fn at_speed(speed: usize) -> Self {
        Self { speed: speed.min(SPEEDS.len() - 1), is_playing: false, clock: None }
    }

    /// Returns the index of the speed in [`SPEEDS`].
    pub fn speed(&self) -> usize {
        self.speed
    }

    /// Sets the speed `SPEEDS[speed]` (the last if the index is too large), also during playback.
    pub fn set_speed(&mut self, speed: usize) {
        let speed = speed.min(SPEEDS.len() - 1);
        if SPEEDS[speed].kind() != SPEEDS[self.speed].kind() {
            self.clock = None;
        }
        self.speed = speed;
    }

    /// Changes to the next faster speed (`is_faster`) or the next slower one of the current kind.
    /// Returns false if there is none.
    pub fn change_speed(&mut self, is_faster: bool) -> bool {
        let next = if is_faster { self.speed + 1 } else { self.speed.wrapping_sub(1) };
        let exists = SPEEDS.get(next).is_some_and(|one| one.kind() == SPEEDS[self.speed].kind());
        if exists {
            self.speed = next;
        }
        exists
    }

    /// Changes to the next kind of speed: the whole recording in a given time, relative to the
    /// recorded time, or in events per second.
    pub fn change_kind(&mut self) {
        self.set_speed(FIRST_OF_KIND[(SPEEDS[self.speed].kind() + 1) % FIRST_OF_KIND.len()]);
    }

    /// Returns true while the recording is playing, false while it is paused.
    pub fn is_playing(&self) -> bool {
        self.is_playing
    }

    /// Starts playing at the recording's time `time_ns`, when the page's clock shows `clock_ms`.
    pub fn play(&mut self, clock_ms: f64, time_ns: u64) {
        self.is_playing = true;
        self.clock = Some(PlaybackClock { clock_ms, from_ns: time_ns, elapsed: 0.0 });
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
    pub fn skip_time_to(&mut self, clock_ms: f64) {
        if let Some(clock) = &mut self.clock {
            clock.clock_ms = clock_ms;
        }
    }

    /// Returns the playback clock set to `clock_ms`, and the milliseconds since its last value, at
    /// most 250. Without a clock, it starts at `screen_ns`, the recording's time at the moment on
    /// the screen.
    fn moved(&self, clock_ms: f64, screen_ns: u64) -> (PlaybackClock, f64) {
        let clock = self.clock.unwrap_or(PlaybackClock { clock_ms, from_ns: screen_ns, elapsed: 0.0 });
        (PlaybackClock { clock_ms, ..clock }, (clock_ms - clock.clock_ms).clamp(0.0, MAX_ADVANCE_MS))
    }

    /// Advances playback to time `clock_ms` of the page's clock and returns the recording's time in
    /// nanoseconds; `None` if not playing, or if events are played at an even rate. A call advances
    /// by at most 250 ms of the page's clock.
    ///
    /// `screen_ns` is the recording's time of the moment on the screen, where playback starts after
    /// [`restart_clock`](Self::restart_clock).
    pub fn advance(&mut self, clock_ms: f64, screen_ns: u64) -> Option<u64> {
        let Speed::Time(factor) = SPEEDS[self.speed] else { return None };
        if !self.is_playing {
            return None;
        }
        let (mut clock, elapsed_ms) = self.moved(clock_ms, screen_ns);
        clock.elapsed += elapsed_ms * 1e6 * factor;
        self.clock = Some(clock);
        self.time_ns()
    }

    /// Advances playback of events at an even rate to time `clock_ms` of the page's clock, in a
    /// recording of `events` events. Returns the number of events to go forward; `None` if not
    /// playing, or if the speed is relative to the recorded time.
    pub fn advance_events(&mut self, clock_ms: f64, events: u64) -> Option<u64> {
        let rate = SPEEDS[self.speed].events_per_ms(events).filter(|_| self.is_playing)?;
        let (mut clock, elapsed_ms) = self.moved(clock_ms, 0);
        clock.elapsed += elapsed_ms * rate;
        let whole = clock.elapsed.floor();
        clock.elapsed -= whole;
        self.clock = Some(clock);
        Some(whole as u64)
    }

    /// Returns the recording's time in nanoseconds, which may be between two events; `None` unless
    /// playing at a speed relative to the recorded time.
    pub fn time_ns(&self) -> Option<u64> {
        let clock = self.clock.filter(|_| matches!(SPEEDS[self.speed], Speed::Time(_)))?;
        Some(clock.from_ns.saturating_add(clock.elapsed as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a playback at the speed at which the recording was made.
    fn at_recorded_speed() -> Playback {
        Playback::at_speed(SPEEDS.iter().position(|speed| *speed == Speed::Time(1.0)).expect("a speed"))
    }

    #[test]
    fn whole_recording_plays_in_25_seconds() {
        for events in [7, 1_000, 4_000_000] {
            let mut playback = Playback::default();
            assert_eq!(playback.advance_events(0.0, events), None, "paused");
            playback.play(0.0, 5);
            assert_eq!((playback.advance(10.0, 5), playback.time_ns()), (None, None));
            let at = |seconds: u64| seconds as f64 * 1e3;
            let mut played = |from: u64, to: u64| -> u64 {
                (from * 10..to * 10)
                    .map(|tenth| playback.advance_events(at(0) + (tenth + 1) as f64 * 100.0, events).expect("playing"))
                    .sum()
            };
            let half = played(0, 12);
            assert!(half <= events / 2 + 1 && half + 1 >= events * 11 / 25, "{half} of {events} in 12 s");
            let all = half + played(12, 26);
            assert!(all >= events, "{all} of {events}");
        }
    }

    #[test]
    fn speed_changes_within_its_kind() {
        let mut playback = Playback::default();
        let mut seen = Vec::new();
        for _ in 0..3 {
            while playback.change_speed(false) {}
            seen.push(SPEEDS[playback.speed()].text());
            while playback.change_speed(true) {}
            seen.push(SPEEDS[playback.speed()].text());
            playback.change_kind();
        }
        assert_eq!(seen, ["whole in 100 s", "whole in 6 s", "×0.25", "×64", "1 event/s", "100,000 events/s"]);
        assert_eq!(playback, Playback::default());
    }

    #[test]
    fn playback_advances_by_speed() {
        let mut playback = at_recorded_speed();
        assert_eq!(playback.advance(0.0, 5), None);
        playback.play(1000.0, 5);
        assert_eq!(playback.advance(1010.0, 5), Some(10_000_005));
        playback.set_speed(5);
        assert_eq!(playback.advance(1020.0, 5), Some(12_500_005));
        playback.pause();
        assert_eq!(playback.advance(1030.0, 5), None);
    }

    #[test]
    fn playback_is_exact_for_large_times_and_saturates() {
        let mut playback = at_recorded_speed();
        let now = 1_790_000_000_000_000_001;
        playback.play(0.0, now);
        assert_eq!(playback.advance(1.0, now), Some(now + 1_000_000));
        playback.play(0.0, u64::MAX - 5);
        assert_eq!(playback.advance(100.0, 0), Some(u64::MAX));
    }

    #[test]
    fn playback_continues_from_the_screen_and_does_not_catch_up() {
        let mut playback = at_recorded_speed();
        playback.play(0.0, 0);
        playback.restart_clock();
        assert_eq!(playback.advance(100.0, 7_000), Some(7_000));
        assert_eq!(playback.advance(60_000.0, 7_000), Some(250_007_000));
    }
}
