//! Division of a length into equal parts.

/// Returns the length of the first `index` of `count` equal parts of `length`, rounded down; a
/// `count` of 0 counts as 1.
///
/// ```
/// assert_eq!(vramscope_trace::even_part(10, 1, 4), 2);
/// assert_eq!(vramscope_trace::even_part(u64::MAX, 3, 3), u64::MAX);
/// ```
#[must_use]
pub fn even_part(length: u64, index: u64, count: u64) -> u64 {
    let count = count.max(1);
    // Wide division takes ten times as long in WebAssembly.
    match length.checked_mul(index) {
        Some(product) => product / count,
        None => (u128::from(length) * u128::from(index) / u128::from(count)) as u64,
    }
}
