//! Measures the age of live events when they are drawn, and how far the page is behind the program.

use vramscope_trace::Recording;

/// Delay in milliseconds below which the page counts as keeping up with the program.
const MIN_SHOWN_MS: f64 = 2000.0;

/// Minimum time in milliseconds over which the number of events per second is measured.
const RATE_MS: f64 = 1000.0;

/// Measures the delay between recording and drawing live events, and how far the page is behind the
/// program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lateness {
    /// Number of the newest event that has been drawn, and its time in nanoseconds.
    newest_drawn: Option<(u64, u64)>,
    /// Ages in milliseconds of the newest and the oldest new event when the last animation frame
    /// with new events was drawn.
    latency_ms: Option<[f64; 2]>,
    /// Smallest age so far of a newest event when it was drawn, in milliseconds. It includes the
    /// difference between the clocks of program and page.
    least_age_ms: Option<f64>,
    /// Delay of the page in milliseconds: the newest event's age beyond the smallest one.
    behind_ms: f64,
    /// Unix time in milliseconds when the rate of events was last measured, and the number of the
    /// newest event then.
    rate_since: Option<(f64, u64)>,
    /// Events per second at the last measurement.
    events_per_s: Option<u64>,
}

impl Lateness {
    /// Updates the measurements: all events of a live recording received so far were drawn at Unix
    /// time `now_unix_ms`, in milliseconds.
    pub fn frame_drawn(&mut self, recording: &Recording, now_unix_ms: f64) {
        let (end, (since_ms, before)) =
            (recording.end_event(), *self.rate_since.get_or_insert((now_unix_ms, recording.end_event())));
        if now_unix_ms - since_ms >= RATE_MS || now_unix_ms < since_ms {
            let seconds = ((now_unix_ms - since_ms) / 1000.0).max(0.001);
            self.events_per_s = Some((end.saturating_sub(before) as f64 / seconds).round() as u64);
            self.rate_since = Some((now_unix_ms, end));
        }
        let epoch_ns = recording.info().epoch_unix_ns;
        if epoch_ns == 0 {
            *self = Self { rate_since: self.rate_since, events_per_s: self.events_per_s, ..Self::default() };
            return;
        }
        let newest = (recording.end_event(), recording.end_ns());
        let previous = self.newest_drawn.replace(newest);
        if let Some((_, time_ns)) = previous.filter(|(event, _)| *event < newest.0) {
            // Divided in two steps: Unix nanoseconds do not fit an `f64` exactly.
            let age_ms = |time_ns: u64| now_unix_ms - (epoch_ns.saturating_add(time_ns) / 1000) as f64 / 1000.0;
            self.latency_ms = Some([age_ms(newest.1), age_ms(time_ns)]);
            self.newest_event_drawn(age_ms(newest.1));
        }
    }

    /// Updates the delay from the newest event's age in milliseconds when it was drawn. The
    /// smallest age so far counts as no delay, because the clocks of program and page may differ.
    fn newest_event_drawn(&mut self, age_ms: f64) {
        let least_ms = self.least_age_ms.map_or(age_ms, |least_ms| least_ms.min(age_ms));
        self.least_age_ms = Some(least_ms);
        self.behind_ms = age_ms - least_ms;
    }

    /// Returns the time from recording to drawing in milliseconds, of the newest and of the oldest
    /// new event in the last animation frame with new events; `None` before the second such frame.
    pub fn latency_ms(&self) -> Option<[f64; 2]> {
        self.latency_ms
    }

    /// Returns the number of events that arrived per second, measured over at least a second;
    /// `None` before the first measurement.
    pub fn events_per_s(&self) -> Option<u64> {
        self.events_per_s
    }

    /// Returns values that differ from those of the last call if there is a new measurement while
    /// events arrive: the delay in seconds, the events per second, and the Unix time in
    /// milliseconds of the measurement (`None` while no events arrive).
    pub fn measured(&self) -> (u64, Option<u64>, Option<f64>) {
        let has_events = self.events_per_s.is_some_and(|rate| rate > 0);
        (self.behind_s(), self.events_per_s, self.rate_since.filter(|_| has_events).map(|(ms, _)| ms))
    }

    /// Returns the delay of the page behind the program in whole seconds; 0 below 2 seconds.
    pub fn behind_s(&self) -> u64 {
        if self.behind_ms < MIN_SHOWN_MS { 0 } else { (self.behind_ms / 1000.0) as u64 }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use vramscope_trace::{DeviceId, Encoder, Event, EventKind, RecordingInfo, Sink};

    use super::*;

    #[test]
    fn clock_difference_does_not_count_as_being_behind() {
        for skew_ms in [-3_600_000.0, 0.0, 7_000.0] {
            let mut lateness = Lateness::default();
            assert_eq!(lateness.behind_s(), 0);
            let check = |lateness: &mut Lateness, age_ms: f64, expected: u64| {
                lateness.newest_event_drawn(skew_ms + age_ms);
                assert_eq!(lateness.behind_s(), expected, "at {age_ms} ms with clocks {skew_ms} ms apart");
            };
            check(&mut lateness, 60.0, 0);
            check(&mut lateness, 1500.0, 0);
            check(&mut lateness, 7400.0, 7);
            check(&mut lateness, 30.0, 0);
        }
    }

    #[test]
    fn rate_is_measured_over_a_second() {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        let (mut recording, mut lateness) = (Recording::new(), Lateness::default());
        let mut check = |events: u64, now_ms: f64, expected: Option<u64>| {
            for time_ns in 0..events {
                let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
                encoder.event(&Event { device: DeviceId(0), time_ns, kind });
            }
            encoder.flush();
            encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid chunk"));
            lateness.frame_drawn(&recording, now_ms);
            assert_eq!(lateness.events_per_s(), expected, "at {now_ms} ms");
        };
        check(500, 7000.0, None);
        check(30, 7500.0, None);
        check(30, 8500.0, Some(40));
        check(900, 9000.0, Some(40));
        check(0, 10_500.0, Some(450));
        check(0, 12_500.0, Some(0));
    }

    #[test]
    fn latency_is_measured_from_the_events_unix_times() {
        let mut encoder = Encoder::new(&RecordingInfo { epoch_unix_ns: 1_000_000_000, ..RecordingInfo::default() });
        let (mut recording, mut lateness) = (Recording::new(), Lateness::default());
        let mut check = |time_ns: u64, now_ms: f64, expected: Option<[f64; 2]>| {
            let kind = EventKind::MemorySample { used_by_context: 0, used_by_others: 0, free: 1 };
            encoder.event(&Event { device: DeviceId(0), time_ns, kind });
            encoder.flush();
            encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("a valid chunk"));
            lateness.frame_drawn(&recording, now_ms);
            assert_eq!(lateness.latency_ms(), expected);
        };
        check(5_000_000, 1006.0, None);
        check(25_000_000, 1030.0, Some([5.0, 25.0]));
    }
}
