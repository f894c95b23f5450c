//! The page's texts about the ranks.

use std::collections::BTreeSet;

use vramscope_insight::fleet::{EventsState, FleetView, MarkedMetric, Outlier, RankRow, StageRow};
use vramscope_trace::{ByteSize, Count, Percent};

use crate::metric::{growth_text, seconds_text};
use crate::model::lag_p95_ms;

/// Maximum distance of a differing rank that is shown as a number.
const MAX_DISTANCE: f64 = 9999.0;

/// Names of the header's counters, in the order of [`counters`].
pub const COUNTERS: [&str; 7] = ["ranks", "hosts", "steps", "marked", "lag p95", "lost summaries", "broker time"];

/// Returns the values of the header's counters as text, in the order of [`COUNTERS`].
#[must_use]
pub fn counters(view: &FleetView) -> [String; COUNTERS.len()] {
    let rows = &view.ranks;
    let ended = rows.iter().filter(|row| row.has_ended).count();
    let ranks = match ended {
        0 => count(rows.len()),
        ended => format!("{} ({} ended)", count(rows.len()), count(ended)),
    };
    let hosts = rows.iter().map(|row| row.host.as_str()).collect::<BTreeSet<_>>().len();
    let steps = rows.iter().filter(|row| !row.has_ended).filter_map(|row| row.step);
    let steps = or_dash(steps.clone().min().zip(steps.max()).map(|(least, most)| {
        if least == most { Count(least).to_string() } else { format!("{}–{}", Count(least), Count(most)) }
    }));
    let lost: u64 = rows.iter().map(|row| row.lost_summaries).sum();
    let marked = rows.iter().filter(|row| row.outlier.is_some()).count();
    let of_ranks = |text: String| or_dash(Some(text).filter(|_| !rows.is_empty()));
    let (lag, time) = (of_ranks(seconds_text(lag_p95_ms(rows) / 1e3)), of_ranks(time_text(view.time_unix_ns)));
    [ranks, count(hosts), steps, count(marked), lag, Count(lost).to_string(), time]
}

/// Formats a value; a dash for `None`.
fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

/// Formats a number with thousands separators.
fn count(count: usize) -> String {
    Count(count as u64).to_string()
}

/// Formats the time of day, in UTC, of a Unix time in nanoseconds.
fn time_text(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Returns a rank's name, such as `rank 12`.
#[must_use]
pub fn name(row: &RankRow) -> String {
    row.rank.map_or_else(|| "process without rank".to_owned(), |rank| format!("rank {rank}"))
}

/// Names of a rank's details, in the order of [`facts`].
pub const FACTS: [&str; 14] = [
    "host",
    "stage, tensor rank",
    "step",
    "last mark",
    "allocated",
    "recent peak",
    "reserved",
    "fragmentation",
    "growth",
    "largest site",
    "out of memory",
    "lag",
    "clock offset",
    "events",
];

/// Returns the values of a rank's details as text, in the order of [`FACTS`].
#[must_use]
pub fn facts(row: &RankRow) -> [String; FACTS.len()] {
    let site = |(name, bytes): &(String, u64)| format!("{} in {name}", ByteSize(*bytes));
    let clock = row.clock.map_or_else(
        || "unknown".to_owned(),
        |clock| format!("{} ± {}", offset_text(clock.offset_ns as f64), milliseconds(clock.error_ns as f64)),
    );
    let ooms = match row.ooms {
        0 => "never".to_owned(),
        ooms => Count(ooms.into()).of("failed request", "failed requests"),
    };
    let mut lag = seconds_text(row.lag_ns as f64 / 1e9);
    if row.lost_summaries > 0 {
        lag += &format!(", {}", Count(row.lost_summaries).of("lost summary", "lost summaries"));
    }
    [
        row.host.clone(),
        format!("{}, {}", or_dash(row.pipeline), or_dash(row.tensor)),
        or_dash(row.step.map(Count)),
        or_dash(Some(&row.mark).filter(|mark| !mark.is_empty())),
        ByteSize(row.allocated).to_string(),
        ByteSize(row.peak_allocated).to_string(),
        ByteSize(row.reserved).to_string(),
        Percent(row.fragmentation).to_string(),
        growth_text(row.growth),
        or_dash(row.largest_site.as_ref().map(site)),
        ooms,
        lag,
        clock,
        events_state_text(row).to_owned(),
    ]
}

/// Returns a text on whether the server reads a rank's events.
fn events_state_text(row: &RankRow) -> &'static str {
    match (row.events, row.device) {
        _ if row.has_ended => "the rank has ended",
        (EventsState::Closed, _) => "not read",
        (EventsState::Open, None) => "waiting for them",
        (EventsState::Open, Some(_)) => "read",
        (EventsState::Always, _) => "read, always sent",
    }
}

/// Formats nanoseconds in milliseconds: `1.5 ms`.
fn milliseconds(ns: f64) -> String {
    let ms = ns / 1e6;
    if ms.abs() < 99.5 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

/// Returns a number's sign for texts: `−` or `+`.
fn sign(number: f64) -> &'static str {
    if number < 0.0 { "−" } else { "+" }
}

/// Formats a clock's offset, given in nanoseconds, with its sign: `+1.5 ms`.
fn offset_text(ns: f64) -> String {
    format!("{}{}", sign(ns), milliseconds(ns.abs()))
}

/// Returns the name of a metric in which ranks differ, and a value of it with its unit.
fn marked_text(metric: MarkedMetric, value: f64) -> (&'static str, String) {
    let bytes = || ByteSize(value.max(0.0) as u64).to_string();
    match metric {
        MarkedMetric::Allocated => ("allocated", bytes()),
        MarkedMetric::Reserved => ("reserved", bytes()),
        MarkedMetric::FragmentedBytes => ("fragmented", bytes()),
        MarkedMetric::Growth => ("growth", growth_text(value)),
        MarkedMetric::StepsBehind => ("steps behind", format!("{value:.0}")),
        MarkedMetric::Silence => ("silence", seconds_text(value.max(0.0))),
    }
}

/// Formats a differing rank's distance from the median, with its sign; a distance beyond
/// [`MAX_DISTANCE`] ends with an ellipsis.
fn distance_text(distance: f64) -> String {
    let sign = sign(distance);
    match distance.abs() {
        distance if distance > MAX_DISTANCE => format!("{sign}{}…", Count(MAX_DISTANCE as u64)),
        distance if distance >= 99.5 => format!("{sign}{}", Count(distance.round() as u64)),
        distance => format!("{sign}{distance:.1}"),
    }
}

/// Headings of the list of ranks that differ, in the order of [`outlier_texts`].
pub const OUTLIER_HEADINGS: [&str; 6] = ["rank", "host", "differs in", "value", "median", "distance"];

/// Returns the cells of a differing rank's row in the list of ranks that differ.
#[must_use]
pub fn outlier_texts(row: &RankRow, outlier: &Outlier) -> [String; OUTLIER_HEADINGS.len()] {
    let (metric, value) = marked_text(outlier.metric, outlier.value);
    let (_, median) = marked_text(outlier.metric, outlier.median);
    [or_dash(row.rank), row.host.clone(), metric.to_owned(), value, median, distance_text(outlier.distance)]
}

/// Returns a sentence on how a rank differs from its group; empty if it does not.
#[must_use]
pub fn difference(row: &RankRow) -> String {
    let Some(outlier) = &row.outlier else { return String::new() };
    let (metric, value) = marked_text(outlier.metric, outlier.value);
    let (_, median) = marked_text(outlier.metric, outlier.median);
    let distance = distance_text(outlier.distance);
    format!("differs in {metric}: {value}, median {median}, distance {distance}")
}

/// Returns the text that a screen reader speaks when a rank is selected.
#[must_use]
pub fn announcement(row: &RankRow) -> String {
    let name = name(row);
    let allocated = ByteSize(row.peak_allocated);
    let difference = difference(row);
    let ended = if row.has_ended { ", ended" } else { "" };
    let separator = if difference.is_empty() { "" } else { "; " };
    format!("{name} on {}{ended}, {allocated} allocated{separator}{difference}", row.host)
}

/// The texts and the bar of a pipeline stage in the list of stages.
#[derive(Clone, Debug, PartialEq)]
pub struct StageTexts {
    /// Its name and ranks.
    pub name: String,
    /// The length of its bar, from 0 to 1.
    pub share: f64,
    /// The median of its ranks' allocated bytes.
    pub median: String,
    /// Difference of the median from the mean of all stages, in percent.
    pub imbalance: String,
}

/// Returns the texts and bars of the list of pipeline stages.
#[must_use]
pub fn stages(stages: &[StageRow]) -> Vec<StageTexts> {
    let most = stages.iter().map(|stage| stage.median_allocated).max().unwrap_or(0).max(1) as f64;
    let texts = |stage: &StageRow| StageTexts {
        name: format!("stage {}", stage.pipeline),
        share: stage.median_allocated as f64 / most,
        median: ByteSize(stage.median_allocated).to_string(),
        imbalance: imbalance_text(stage.imbalance),
    };
    stages.iter().map(texts).collect()
}

/// Formats how much a stage's memory differs from the mean of all stages: `+25%` for an `imbalance`
/// (ratio to the mean) of 1.25.
fn imbalance_text(imbalance: f64) -> String {
    let percent = ((imbalance - 1.0) * 100.0).round();
    let sign = if percent == 0.0 { "±" } else { sign(percent) };
    format!("{sign}{:.0}%", percent.abs())
}

#[cfg(test)]
mod tests {
    use vramscope_insight::fleet::OffsetEstimate;

    use super::*;
    use crate::test_view::{outlier, row, rows};

    #[test]
    fn header_counts_ranks_hosts_and_steps() {
        let check = |view: &FleetView, expected: [&str; 7]| assert_eq!(counters(view), expected);
        check(&FleetView::default(), ["0", "0", "–", "0", "–", "0", "–"]);
        let mut ranks = rows(1024);
        for (index, row) in ranks.iter_mut().enumerate() {
            row.step = Some(1204 + index as u64 % 3);
        }
        (ranks[0].has_ended, ranks[0].step, ranks[1].lost_summaries) = (true, Some(7), 3);
        ranks[9].outlier = Some(outlier(9.0));
        let view = FleetView { time_unix_ns: 1_700_000_000_000_000_000, ranks, stages: Vec::new() };
        check(&view, ["1,024 (1 ended)", "128", "1,204–1,206", "1", "0 ms", "3", "22:13:20 UTC"]);
    }

    #[test]
    fn details_are_complete_and_have_units() {
        let mut row = row(12);
        (row.pipeline, row.step, row.mark) = (Some(1), Some(1204), "backward".to_owned());
        (row.allocated, row.peak_allocated, row.reserved) = (10 << 30, 12 << 30, 16 << 30);
        row.largest_site = Some(("mlp.py:31 forward".to_owned(), 3 << 30));
        (row.fragmentation, row.growth, row.ooms, row.lag_ns) = (0.125, 2048.0, 1, 35_000_000);
        row.clock = Some(OffsetEstimate { offset_ns: -1_250_000, error_ns: 300_000 });
        row.lost_summaries = 1;
        row.events = EventsState::Open;
        assert_eq!(
            facts(&row),
            [
                "node1",
                "1, –",
                "1,204",
                "backward",
                "10 GiB",
                "12 GiB",
                "16 GiB",
                "12.5%",
                "+2 KiB/s",
                "3 GiB in mlp.py:31 forward",
                "1 failed request",
                "35 ms, 1 lost summary",
                "−1.2 ms ± 0.3 ms",
                "waiting for them",
            ]
        );
        assert_eq!(announcement(&row), "rank 12 on node1, 12 GiB allocated");
    }

    #[test]
    fn difference_texts_have_value_median_and_distance() {
        let mut row = row(12);
        let check = |row: &RankRow, outlier: Outlier, expected: [&str; 4]| {
            assert_eq!(outlier_texts(row, &outlier)[2..], expected);
        };
        check(&row, outlier(19.96), ["allocated", "14 GiB", "10 GiB", "+20.0"]);
        check(&row, outlier(-1e6), ["allocated", "14 GiB", "10 GiB", "−9,999…"]);
        let other = |metric, value, median| Outlier { metric, value, median, distance: 1234.0 };
        check(&row, other(MarkedMetric::StepsBehind, 3.0, 0.0), ["steps behind", "3", "0", "+1,234"]);
        check(&row, other(MarkedMetric::Silence, 3.0, 0.05), ["silence", "3.0 s", "50 ms", "+1,234"]);
        check(&row, other(MarkedMetric::Growth, 1e6, 0.0), ["growth", "+977 KiB/s", "0 B/s", "+1,234"]);
        assert_eq!(difference(&row), "");
        row.outlier = Some(outlier(7.0));
        assert_eq!(difference(&row), "differs in allocated: 14 GiB, median 10 GiB, distance +7.0");
        assert!(
            announcement(&row).ends_with("0 B allocated; differs in allocated: 14 GiB, median 10 GiB, distance +7.0")
        );
    }

    #[test]
    fn stages_are_bars_with_their_imbalance() {
        let stage =
            |pipeline, median_allocated, imbalance| StageRow { pipeline, ranks: 4, median_allocated, imbalance };
        let texts = stages(&[stage(0, 10 << 30, 1.25), stage(1, 6 << 30, 0.75), stage(2, 8 << 30, 1.001)]);
        let shown: Vec<_> = texts.iter().map(|stage| (stage.share, stage.imbalance.as_str())).collect();
        assert_eq!(shown, [(1.0, "+25%"), (0.6, "−25%"), (0.8, "±0%")]);
        assert_eq!((texts[1].name.as_str(), texts[1].median.as_str()), ("stage 1", "6 GiB"));
        assert_eq!(stages(&[]), []);
    }
}
