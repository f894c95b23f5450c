//! Functions of `f32` slices that compile to vector instructions, and sums in a fixed order.

/// Number of partial sums that a sum keeps at once: at least the vector width of any CPU.
const LANES: usize = 16;

/// Returns e to the power of `x`, with an error of at most 2 units in the last place. Returns 0
/// below -87.3, e to the power of 88 above 88, and NaN for NaN.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^23 rounds to an integer, without a call.
    const ROUND: f32 = 12_582_912.0;
    // ln(2) in two parts: the first has few bits, so that its multiples are exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = if x > 88.0 { 88.0 } else { x };
    let clamped = if clamped < -87.3 { -87.3 } else { clamped };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let rest = clamped - power * LN_2_HIGH - power * LN_2_LOW;
    // The Taylor series of e^rest: |rest| <= ln(2) / 2, so that the first omitted term is 4e-9.
    let series = 1.0 / 5040.0;
    let series = series * rest + 1.0 / 720.0;
    let series = series * rest + 1.0 / 120.0;
    let series = series * rest + 1.0 / 24.0;
    let series = series * rest + 1.0 / 6.0;
    let series = series * rest + 0.5;
    let series = series * rest * rest + rest + 1.0;
    // The low bits of `rounded` are the integer; shifted, it is added to the exponent.
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()) << 23;
    let result = f32::from_bits(series.to_bits().wrapping_add(exponent));
    let result = if x < -87.3 { 0.0 } else { result };
    if x.is_nan() { x } else { result }
}

/// Sums `map(a[i], b[i])` over all `i`, in an order that depends on the length only.
#[inline(always)]
pub(super) fn sum_pairs(a: &[f32], b: &[f32], map: impl Fn(f32, f32) -> f32) -> f32 {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut sums = [0.0f32; LANES];
    let (a_chunks, a_rest) = a.as_chunks::<LANES>();
    let (b_chunks, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += map(a[lane], b[lane]);
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(&a, &b)| map(a, b)).sum();
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    sums[0] + rest
}

/// Sums `map(x[i])` over all `i`, in an order that depends on the length only.
#[inline(always)]
pub(super) fn sum(x: &[f32], map: impl Fn(f32) -> f32) -> f32 {
    sum_pairs(x, x, |x, _| map(x))
}

/// Returns the largest `map(x[i])` of all `i`, ignoring NaN. Returns minus infinity if `x` is
/// empty.
#[inline(always)]
pub(super) fn max(x: &[f32], map: impl Fn(f32) -> f32) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let value = map(chunk[lane]);
            largest[lane] = if value > largest[lane] { value } else { largest[lane] };
        }
    }
    let rest = rest.iter().map(|&x| map(x));
    largest.into_iter().chain(rest).fold(f32::NEG_INFINITY, |one, other| if other > one { other } else { one })
}

/// Adds `x[i]` to `sums[i]` for all `i`.
#[inline(always)]
pub(super) fn add(sums: &mut [f32], x: &[f32]) {
    for (sum, x) in sums.iter_mut().zip(x) {
        *sum += x;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_range() {
        for step in -8700..=8800 {
            let x = step as f32 / 100.0;
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() < 2.5e-7 || x < -87.2, "exp({x}) is {}", exp(x));
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }
}
