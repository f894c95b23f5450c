//! Texts of axis labels, and the steps between them.

use vramscope_trace::{ByteSize, Count};

/// Returns a size for an axis label: as [`ByteSize`], without trailing zeros after the point.
pub fn axis_size(bytes: u64) -> String {
    let text = ByteSize(bytes).to_string();
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// Returns a time for a label of an axis that ends at `end_ns` and has a label every `step_ns`.
///
/// `end_ns` determines the unit, and `step_ns` the number of decimals.
pub fn axis_moment(ns: u64, step_ns: u64, end_ns: u64) -> String {
    let (unit_ns, unit) = match end_ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (mut decimals, mut digit_ns) = (0, unit_ns);
    while digit_ns > 1 && !step_ns.is_multiple_of(digit_ns) {
        digit_ns /= 10;
        decimals += 1;
    }
    let (whole, rest) = (ns / unit_ns, ns % unit_ns / digit_ns);
    match decimals {
        0 => format!("{} {unit}", Count(whole)),
        _ => format!("{}.{rest:0decimals$} {unit}", Count(whole)),
    }
}

/// Returns the smallest step of 1, 2 or 5 times a power of ten that fits at most `max_steps` times
/// into `range`.
pub fn decimal_step(range: u64, max_steps: u64) -> u64 {
    let least = range.div_ceil(max_steps.max(1)).max(1);
    let mut power = 1u64;
    loop {
        for times in [1, 2, 5] {
            let step = power.saturating_mul(times);
            if step >= least || step == u64::MAX {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// Returns the smallest power of two that fits at most `max_steps` times into `range`.
pub fn binary_step(range: u64, max_steps: u64) -> u64 {
    range.div_ceil(max_steps.max(1)).max(1).checked_next_power_of_two().unwrap_or(1 << 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_a_fitting_unit_and_no_trailing_zeros() {
        assert_eq!(axis_moment(3_500_000_000, 500_000_000, 4_000_000_000), "3.5 s");
        assert_eq!(axis_moment(3_000_000_000, 1_000_000_000, 4_000_000_000), "3 s");
        assert_eq!(axis_moment(1_000_020, 20, 1_000_100), "1.00002 ms");
        assert_eq!(axis_moment(12_000_000, 2_000_000, 31_000_000), "12 ms");
        assert_eq!(axis_size(5 << 29), "2.5 GiB");
        assert_eq!(axis_size(640 << 20), "640 MiB");
    }

    #[test]
    fn axis_steps_are_round_and_few() {
        assert_eq!(decimal_step(4_634_107_000, 10), 500_000_000);
        assert_eq!(binary_step(8 << 30, 4), 2 << 30);
        for range in [0, 1, 7, 1 << 40, u64::MAX] {
            for max_steps in [0, 1, 5, 12] {
                assert!(range / decimal_step(range, max_steps) <= max_steps.max(1));
                assert!(range / binary_step(range, max_steps) <= max_steps.max(1));
            }
        }
    }
}
