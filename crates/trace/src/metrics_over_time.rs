//! The metrics of a device over a whole recording, from its series and, where that is sparse, from
//! a replay.

use std::collections::BTreeSet;

use crate::error::FormatError;
use crate::even_part::even_part;
use crate::event::DeviceId;
use crate::metrics::Metrics;
use crate::recording::{Recording, Replay};

/// Minimum number of moments of a series at which [`metrics_over_time`] does not replay the
/// recording. For a shorter series, it replays the ends of this many equal ranges of time, so that
/// a chart 1,000 units wide has a sample every four units.
const MIN_SAMPLES: u64 = 256;

/// Samples of one device's metrics over a recording, each exact at its moment. From
/// [`metrics_over_time`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricsOverTime {
    /// Moments of the recording, their times in nanoseconds, and the device's metrics at each, in
    /// order.
    samples: Vec<(u64, u64, Metrics)>,
}

/// The highest value of a metric over a recording, with its moment and time, and the metric's mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MetricSummary {
    /// The highest value of the samples.
    pub highest: f64,
    /// The first moment of the highest value.
    pub highest_event: u64,
    /// The time of that moment, in nanoseconds since the recording's time 0.
    pub highest_ns: u64,
    /// The mean over time; each sample's value holds until the next sample.
    pub mean: f64,
}

/// Returns the metrics of all pools and streams of a device over a recording.
///
/// The samples are the moments of [`Recording::metrics`] that an index stores (whether or not the
/// recording has an index), the first and the last moment, and the peak of the allocated bytes. If
/// the series has fewer than 256 moments, because the recording is short, the ends of 256 equal
/// ranges of time are replayed in addition.
///
/// # Errors
/// If a chunk cannot be read.
pub fn metrics_over_time(recording: &Recording, device: DeviceId) -> Result<MetricsOverTime, FormatError> {
    let series = recording.metrics(device).map(|series| series.thinned());
    let stored = series.iter().flat_map(|series| series.between(0, u64::MAX, |_, _| true));
    let mut samples: Vec<_> = stored.map(|sample| (sample.event, sample.time_ns, sample.metrics)).collect();
    let mut moments = BTreeSet::from([recording.first_event(), recording.end_event()]);
    moments.extend(recording.series(device).map(|series| series.peak_allocated().event));
    if (samples.len() as u64) < MIN_SAMPLES {
        let (start_ns, length_ns) = (recording.start_ns(), recording.end_ns().saturating_sub(recording.start_ns()));
        let end_of = |range: u64| start_ns + even_part(length_ns, range, MIN_SAMPLES);
        moments.extend((1..MIN_SAMPLES).map(|range| recording.event_at_time(end_of(range))));
    }
    let known: BTreeSet<u64> = samples.iter().map(|(moment, ..)| *moment).collect();
    let mut replay = Replay::new();
    for moment in moments.difference(&known) {
        let state = replay.seek(recording, *moment)?;
        let metrics = state.device(device).map(|state| Metrics::at(state, |_, _| true)).unwrap_or_default();
        let time_ns = state.time_ns().max(recording.start_ns());
        samples.push((state.event(), time_ns, metrics));
    }
    samples.sort_by_key(|(moment, ..)| *moment);
    samples.dedup_by_key(|(moment, ..)| *moment);
    Ok(MetricsOverTime { samples })
}

impl MetricsOverTime {
    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns true if there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns the moment, the time in nanoseconds and the metrics of each sample, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &Metrics)> + '_ {
        self.samples.iter().map(|(moment, time_ns, metrics)| (*moment, *time_ns, metrics))
    }

    /// Returns the highest value of a metric and its mean over time; zeros if there are no samples.
    /// `metric` computes the value, for example [`Metrics::fragmentation`].
    #[must_use]
    pub fn summary(&self, metric: impl Fn(&Metrics) -> f64) -> MetricSummary {
        let mut summary = MetricSummary::default();
        let mut weighted_sum = 0.0;
        for (index, (event, time_ns, metrics)) in self.iter().enumerate() {
            let value = metric(metrics);
            if index == 0 || value > summary.highest {
                summary = MetricSummary { highest: value, highest_event: event, highest_ns: time_ns, mean: 0.0 };
            }
            let until_ns = self.samples.get(index + 1).map_or(time_ns, |next| next.1);
            weighted_sum += value * until_ns.saturating_sub(time_ns) as f64;
        }
        let ends = self.samples.first().zip(self.samples.last());
        let duration_ns = ends.map_or(0, |(first, last)| last.1.saturating_sub(first.1));
        summary.mean = if duration_ns > 0 {
            weighted_sum / duration_ns as f64
        } else {
            self.iter().map(|(_, _, metrics)| metric(metrics)).sum::<f64>() / self.len().max(1) as f64
        };
        summary
    }
}
