//! The metric that the color of a cell shows.

use vramscope_insight::fleet::RankRow;
use vramscope_trace::{ByteSize, Count, Percent};

/// A metric of ranks by which their cells are colored and sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// The most allocated bytes of the last seconds.
    #[default]
    Allocated,
    /// Reserved bytes.
    Reserved,
    /// The highest fragmentation of the last seconds.
    Fragmentation,
    /// Growth in bytes a second.
    Growth,
    /// Time since the newest summary was made.
    Lag,
    /// The step of the training run.
    Step,
}

impl Metric {
    /// All metrics, in the order of the page's list.
    pub const ALL: [Self; 6] =
        [Self::Allocated, Self::Reserved, Self::Fragmentation, Self::Growth, Self::Lag, Self::Step];

    /// Returns the metric's name in links.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::Fragmentation => "fragmentation",
            Self::Growth => "growth",
            Self::Lag => "lag",
            Self::Step => "step",
        }
    }

    /// Returns the metric's value for a rank; `None` if it is unknown.
    #[must_use]
    pub fn value(self, row: &RankRow) -> Option<f64> {
        match self {
            Self::Allocated => Some(row.peak_allocated as f64),
            Self::Reserved => Some(row.reserved as f64),
            Self::Fragmentation => Some(row.fragmentation),
            Self::Growth => Some(row.growth),
            Self::Lag => Some(row.lag_ns as f64 / 1e9),
            Self::Step => row.step.map(|step| step as f64),
        }
    }

    /// Formats a value of the metric with its unit.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Allocated | Self::Reserved => ByteSize(value as u64).to_string(),
            Self::Fragmentation => Percent(value).to_string(),
            Self::Growth => growth_text(value),
            Self::Lag => seconds_text(value),
            Self::Step => format!("step {}", Count(value as u64)),
        }
    }

    /// Returns the minimum difference between the ends of the color scale, so that nearly equal
    /// ranks have nearly equal colors; `largest` is the largest value of all ranks.
    fn least_span(self, largest: f64) -> f64 {
        match self {
            Self::Allocated | Self::Reserved => (0.1 * largest).max(f64::from(16 << 20)),
            Self::Fragmentation => 0.1,
            Self::Growth => f64::from(1 << 20),
            Self::Lag => 1.0,
            Self::Step => 4.0,
        }
    }
}

/// Formats a growth in bytes per second with its sign: `+1.2 MiB/s`.
pub(crate) fn growth_text(value: f64) -> String {
    let sign = match value {
        value if value <= -0.5 => "−",
        value if value >= 0.5 => "+",
        _ => "",
    };
    format!("{sign}{}/s", ByteSize(value.abs().round() as u64))
}

/// Formats a time, given in seconds, with its unit: `120 ms` or `1.5 s`.
pub(crate) fn seconds_text(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 99.95 => format!("{seconds:.1} s"),
        seconds => format!("{} s", Count(seconds.round() as u64)),
    }
}

/// The color scale: the values at both ends of the colors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The value of the first color.
    pub least: f64,
    /// The value of the last color.
    pub most: f64,
}

impl Scale {
    /// Returns the scale from the lowest to the highest value of the ranks that have not ended.
    #[must_use]
    pub fn of(metric: Metric, rows: &[RankRow]) -> Self {
        let values = rows.iter().filter(|row| !row.has_ended).filter_map(|row| metric.value(row));
        let ends = values.clone().min_by(f64::total_cmp).zip(values.max_by(f64::total_cmp));
        let (least, most) = ends.unwrap_or_default();
        let span = metric.least_span(most);
        if most - least >= span {
            return Self { least, most };
        }
        // The scale is widened downwards, but not below 0 where there are no negative values.
        let widened = most - span;
        let least = if least < 0.0 || metric == Metric::Growth { widened.min(least) } else { widened.max(0.0) };
        Self { least, most: least + span.max(most - least) }
    }

    /// Returns the position of a value on the scale, from 0 to 1; values beyond the ends are
    /// clamped.
    #[must_use]
    pub fn position(&self, value: f64) -> f64 {
        ((value - self.least) / (self.most - self.least)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_view::row;

    const GIB: f64 = (1_u64 << 30) as f64;

    #[test]
    fn values_have_units() {
        let check = |metric: Metric, value: f64, expected: &str| assert_eq!(metric.text(value), expected);
        check(Metric::Allocated, 1.5 * GIB, "1.50 GiB");
        check(Metric::Reserved, 0.0, "0 B");
        check(Metric::Fragmentation, 0.256, "25.6%");
        check(Metric::Growth, 3.0 * 1024.0, "+3 KiB/s");
        check(Metric::Growth, -3.0 * 1024.0, "−3 KiB/s");
        check(Metric::Growth, 0.2, "0 B/s");
        check(Metric::Lag, 0.035, "35 ms");
        check(Metric::Lag, 2.0, "2.0 s");
        check(Metric::Lag, 1234.0, "1,234 s");
        check(Metric::Step, 12_345.0, "step 12,345");
    }

    #[test]
    fn scale_spans_the_values_and_keeps_small_differences_small() {
        let check = |allocated: &[f64], least: f64, most: f64| {
            let rows: Vec<_> = allocated
                .iter()
                .map(|&bytes| {
                    let mut row = row(0);
                    row.peak_allocated = bytes as u64;
                    row
                })
                .collect();
            let scale = Scale::of(Metric::Allocated, &rows);
            assert!((scale.least - least).abs() < 1.0 && (scale.most - most).abs() < 1.0, "{scale:?}");
        };
        check(&[10.0 * GIB, 20.0 * GIB], 10.0 * GIB, 20.0 * GIB);
        check(&[10.0 * GIB, 9.9 * GIB], 9.0 * GIB, 10.0 * GIB);
        check(&[0.0], 0.0, f64::from(16 << 20));
        check(&[], 0.0, f64::from(16 << 20));
    }

    #[test]
    fn ended_ranks_do_not_stretch_the_scale() {
        let mut rows = vec![row(0), row(1), row(2)];
        (rows[0].reserved, rows[1].reserved, rows[2].reserved) = (8 << 30, 4 << 30, 64 << 30);
        rows[2].has_ended = true;
        let scale = Scale::of(Metric::Reserved, &rows);
        assert_eq!((scale.least, scale.most), (4.0 * GIB, 8.0 * GIB));
        assert_eq!([2.0, 5.0, 9.0].map(|gib| scale.position(gib * GIB)), [0.0, 0.25, 1.0]);
    }
}
