//! The layout of PyTorch's classes in one wheel, and its text in Rust.

use super::layouts::{self, TorchLayout};
use crate::shell::Result;

/// The offsets that are equal in every version: the name of the constant in `layouts.rs`, its value
/// in bytes, and the member of `TraceEntry`.
pub(crate) const COMMON_OFFSETS: [(&str, usize, &str); 5] = [
    ("ACTION", layouts::ACTION, "action_"),
    ("DEVICE", layouts::DEVICE, "device_"),
    ("ADDRESS", layouts::ADDRESS, "addr_"),
    ("STREAM", layouts::STREAM, "stream_"),
    ("SIZE", layouts::SIZE, "size_"),
];

/// The values of `TraceEntry::Action` that the hook knows, in order from 0.
pub(crate) const ACTION_NAMES: [&str; 10] = [
    "ALLOC",
    "FREE_REQUESTED",
    "FREE_COMPLETED",
    "SEGMENT_ALLOC",
    "SEGMENT_FREE",
    "SEGMENT_MAP",
    "SEGMENT_UNMAP",
    "SNAPSHOT",
    "OOM",
    "ANNOTATE",
];

/// The layout that a wheel has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WheelLayout {
    /// The version of the wheel, such as `2.11.0`.
    pub(crate) version: String,
    pub(crate) layout: TorchLayout,
}

impl WheelLayout {
    /// Returns the fields with their values in Rust, such as `time: 48`, in order.
    pub(crate) fn fields(&self) -> Vec<String> {
        let text = format!("{:?}", self.layout);
        let fields = text.trim_start_matches("TorchLayout { ").trim_end_matches(" }");
        fields.split(", ").map(str::to_owned).collect()
    }

    /// Returns a sentence for each field that differs from the wheel's layout. The version may
    /// differ: patch releases are expected to have equal layouts.
    pub(crate) fn differences(&self, wheel: &Self) -> Vec<String> {
        let pairs = self.fields().into_iter().zip(wheel.fields());
        let different = pairs.filter(|(here, there)| here != there);
        different
            .map(|(here, there)| format!("PyTorch {}: `{here}` in the table, `{there}` in the wheel", wheel.version))
            .collect()
    }
}

/// Returns the minor version: 11 for `2.11.0`.
pub(crate) fn minor_version(version: &str) -> Result<u32> {
    let parts: Vec<&str> = version.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match parts.as_slice() {
        ["2", minor, patch] if is_number(minor) && is_number(patch) => minor.parse().ok(),
        _ => None,
    }
    .ok_or_else(|| format!("{version} is not a version of PyTorch 2: write one such as 2.11.0"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the layout of PyTorch 2.6.0 with another version.
    pub(crate) fn example(version: &str) -> WheelLayout {
        let minor = minor_version(version).unwrap();
        WheelLayout { version: version.to_owned(), layout: TorchLayout { minor, ..layouts::LAYOUTS[0] } }
    }

    #[test]
    fn versions_have_three_numbers() {
        assert_eq!(minor_version("2.11.0"), Ok(11));
        for wrong in ["2.11", "1.13.1", "2.x.0", "2..0", "2.6.0+cpu", "--check", ""] {
            assert!(minor_version(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn differences_name_field_and_both_values() {
        let table = example("2.6.0");
        assert!(table.differences(&WheelLayout { version: "2.6.1".to_owned(), ..table.clone() }).is_empty());
        let wheel = WheelLayout { layout: TorchLayout { mempool: Some(48), ..table.layout }, ..table.clone() };
        let expected = ["PyTorch 2.6.0: `mempool: None` in the table, `mempool: Some(48)` in the wheel"];
        assert_eq!(table.differences(&wheel), expected);
    }
}
