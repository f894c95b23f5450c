//! The parts of a condition, and how they are parsed.

use std::fmt;
use std::str::FromStr;

use vramscope_trace::{ByteSize, shortened};

use super::error::{ConditionError, ConditionErrorKind, MAX_SHOWN_CHARS};
use super::metric::{Metric, MetricKind};
use crate::comparator::Comparator;

/// Number of decimals of a percentage that are read; further ones are ignored.
const PERCENT_DECIMALS: usize = 6;
/// One percent, in the unit of [`Limit::Relative`].
pub(super) const PERCENT: i128 = 10_i128.pow(PERCENT_DECIMALS as u32);
/// Maximum number of digits before the point of a percentage: a bound that keeps the arithmetic
/// exact.
const MAX_PERCENT_DIGITS: usize = 9;

/// The right side of a condition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// The change of B relative to A, in millionths of a percent.
    Relative(i128),
    /// The change of bytes or counts: B − A.
    Change(i128),
    /// The change of a share: B − A.
    ShareChange(f64),
    /// B's bytes or count.
    Whole(u64),
    /// B's share.
    Share(f64),
}

/// A condition on the difference between two recordings, for example `peak_allocated > +2%`.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    pub(super) metric: Metric,
    pub(super) comparator: Comparator,
    pub(super) limit: Limit,
}

impl Condition {
    /// Returns the metric.
    #[must_use]
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Returns the comparator.
    #[must_use]
    pub fn comparator(&self) -> Comparator {
        self.comparator
    }

    /// Returns the limit.
    #[must_use]
    pub fn limit(&self) -> Limit {
        self.limit
    }
}

impl fmt::Display for Condition {
    /// Writes the condition with one blank between its parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Condition {
    type Err = ConditionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let start = text.len() - text.trim_start().len();
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let name_end = text[start..].find(|c| !is_name(c)).map_or(text.len(), |at| start + at);
        let word_end = text[start..].find(|c: char| c.is_whitespace() || "<>=≤≥".contains(c));
        let word = &text[start..word_end.map_or(text.len(), |at| start + at)];
        let unknown = || ConditionErrorKind::UnknownMetric { name: shortened(word, MAX_SHOWN_CHARS) };
        let metric = Metric::from_name(&text[start..name_end]).filter(|_| word.len() == name_end - start);
        let metric = metric.ok_or_else(|| ConditionError::new(text, start, unknown()))?;
        let rest = text[name_end..].trim_start();
        let sign_at = text.len() - rest.len();
        let no_comparator = || ConditionError::new(text, sign_at, ConditionErrorKind::NoComparator { metric });
        let (comparator, rest) = Comparator::split(rest).ok_or_else(no_comparator)?;
        let limit_text = rest.trim();
        let limit_at = text.len() - rest.trim_start().len();
        let bad_limit = || ConditionErrorKind::BadLimit { metric, text: shortened(limit_text, MAX_SHOWN_CHARS) };
        let limit = parse_limit(metric.kind(), limit_text);
        let limit = limit.ok_or_else(|| ConditionError::new(text, limit_at, bad_limit()))?;
        let text = format!("{} {} {limit_text}", metric.name(), comparator.sign());
        Ok(Self { text, metric, comparator, limit })
    }
}

/// Parses the limit of a condition whose metric has the unit `kind`; `None` if it is invalid.
fn parse_limit(kind: MetricKind, text: &str) -> Option<Limit> {
    let (sign, digits) = match text.strip_prefix('+') {
        Some(rest) => (Some(1), rest),
        None => text.strip_prefix(['-', '−']).map_or((None, text), |rest| (Some(-1), rest)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let percent = digits.strip_suffix('%').map(|number| parse_percent(number.trim_end()));
    Some(match (sign, percent, kind) {
        (Some(sign), Some(percent), _) => Limit::Relative(sign * percent?),
        (None, Some(percent), MetricKind::Share) => Limit::Share(percent? as f64 / PERCENT as f64 / 100.0),
        (None, Some(_), _) => return None,
        (Some(sign), None, MetricKind::Share) => Limit::ShareChange(sign as f64 * parse_share(digits)?),
        (None, None, MetricKind::Share) => Limit::Share(parse_share(digits)?),
        (Some(sign), None, _) => Limit::Change(sign * i128::from(parse_number(kind, digits)?)),
        (None, None, _) => Limit::Whole(parse_number(kind, digits)?),
    })
}

/// Parses a size such as `20GiB`, or a count, depending on the metric's `kind`.
fn parse_number(kind: MetricKind, digits: &str) -> Option<u64> {
    if kind == MetricKind::Bytes { digits.parse().ok().map(|ByteSize(bytes)| bytes) } else { digits.parse().ok() }
}

/// Parses a share from 0 to 1, such as `0.3`.
fn parse_share(digits: &str) -> Option<f64> {
    let is_decimal = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    digits.parse().ok().filter(|share| is_decimal && (0.0..=1.0).contains(share))
}

/// Parses a percentage without a sign, such as `2.5`, in millionths of a percent; more decimals do
/// not count.
fn parse_percent(number: &str) -> Option<i128> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || whole.len() > MAX_PERCENT_DIGITS {
        return None;
    }
    let padded: String = decimals.chars().chain(std::iter::repeat('0')).take(PERCENT_DECIMALS).collect();
    Some(whole.parse::<i128>().ok()? * PERCENT + padded.parse::<i128>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the parts of a parsed condition.
    #[track_caller]
    fn check(text: &str, metric: Metric, comparator: Comparator, limit: Limit) {
        let condition: Condition = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((condition.metric, condition.comparator, condition.limit), (metric, comparator, limit), "{text}");
        assert_eq!(condition.to_string().parse(), Ok(condition), "{text}");
    }

    #[test]
    fn conditions_are_parsed() {
        use Comparator::{Above, AtLeast, AtMost, Below};
        use Limit::{Change, Relative, Share, ShareChange, Whole};
        check("peak_allocated > +2%", Metric::PeakAllocated, Above, Relative(2 * PERCENT));
        check("peak_allocated≥2KiB", Metric::PeakAllocated, AtLeast, Whole(2 << 10));
        check("peak_allocated>+2%", Metric::PeakAllocated, Above, Relative(2 * PERCENT));
        check("  peak_reserved >= -5.25 %  ", Metric::PeakReserved, AtLeast, Relative(-5 * PERCENT - PERCENT / 4));
        check("peak_reserved <= −0.5%", Metric::PeakReserved, AtMost, Relative(-PERCENT / 2));
        check("allocated > +100MiB", Metric::Allocated, Above, Change(100 << 20));
        check("allocated < -100 MiB", Metric::Allocated, Below, Change(-100 << 20));
        check("reserved > 20GiB", Metric::Reserved, Above, Whole(20 << 30));
        check("reserved > 1.5G", Metric::Reserved, Above, Whole(3 << 29));
        check("ooms > 0", Metric::Ooms, Above, Whole(0));
        check("allocations > +10", Metric::Allocations, Above, Change(10));
        check("allocations > +0.1%", Metric::Allocations, Above, Relative(PERCENT / 10));
        check("fragmentation > 30%", Metric::Fragmentation, Above, Share(0.3));
        check("fragmentation > 0.3", Metric::Fragmentation, Above, Share(0.3));
        check("mean_fragmentation > +0.05", Metric::MeanFragmentation, Above, ShareChange(0.05));
        check("mean_fragmentation > +5%", Metric::MeanFragmentation, Above, Relative(5 * PERCENT));
        for metric in Metric::all() {
            check(&format!("{} > +1%", metric.name()), metric, Above, Relative(PERCENT));
        }
    }

    /// Checks the position of the error of a condition, and that its message contains `part`.
    #[track_caller]
    fn check_error(text: &str, position: usize, part: &str) {
        let error = text.parse::<Condition>().expect_err(text);
        assert_eq!(error.position(), position, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: no {part:?} in {error}");
    }

    #[test]
    fn errors_say_what_and_where() {
        check_error("", 1, "unknown metric \"\"");
        check_error("peak > +2%", 1, "unknown metric \"peak\": use one of peak_allocated, peak_reserved");
        check_error("  péak>1", 3, "unknown metric \"péak\"");
        check_error("allocated", 10, "expected >, >=, < or <= after allocated");
        check_error("allocated = 5", 11, "expected >, >=, < or <=");
        check_error("allocated == 5", 11, "expected >, >=, < or <=");
        check_error("allocated >", 12, "cannot compare allocated with \"\"");
        check_error("allocated > 2%", 13, "a change such as +2% or +100MiB, or a size such as 20GiB");
        check_error("allocated > + 2%", 13, "+ 2%");
        check_error("allocated > +-2%", 13, "+-2%");
        check_error("allocated > 1e9", 13, "1e9");
        check_error("allocated => 5", 11, "expected >, >=, < or <=");
        check_error("allocated >> 5", 12, "> 5");
        check_error("allocated > 5 MiB or ooms > 0", 13, "5 MiB or ooms > 0");
        check_error("ooms > 1MiB", 8, "a whole number");
        check_error("ooms > 1.5", 8, "a whole number");
        check_error("ooms > 18446744073709551616", 8, "a whole number");
        check_error("ooms > +1234567890%", 8, "+1234567890%");
        check_error("ooms > +1.%", 8, "+1.%");
        check_error("fragmentation > 1.5", 17, "a share such as 30% or 0.3");
        check_error("fragmentation > inf", 17, "inf");
        let long = format!("ooms > {}", "9".repeat(10_000));
        assert!(long.parse::<Condition>().expect_err("too large").to_string().len() < 300);
    }
}
