//! The layout of PyTorch's classes in one version, and its text in Rust.

use crate::shell::Result;

/// The offsets that are equal in every version: the constant in `layouts.rs` and the member of
/// `TraceEntry`.
pub(crate) const COMMON_OFFSETS: [(&str, &str); 5] =
    [("ACTION", "action_"), ("DEVICE", "device_"), ("ADDRESS", "addr_"), ("STREAM", "stream_"), ("SIZE", "size_")];

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

/// An entry of the table in `layouts.rs`. See there for the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The version of the wheel, such as `2.11.0`.
    pub(crate) version: String,
    pub(crate) minor: u64,
    pub(crate) attach_slot: u64,
    pub(crate) entry_size: u64,
    pub(crate) time: u64,
    pub(crate) mempool: Option<u64>,
    pub(crate) compile_context: Option<u64>,
    pub(crate) user_metadata: Option<u64>,
    pub(crate) actions: u64,
    pub(crate) cxx11_abi: bool,
    pub(crate) node_sequence: u64,
    pub(crate) attach_symbol: String,
}

impl Layout {
    /// Returns the names and the Rust values of the table's fields, in order.
    pub(crate) fn fields(&self) -> [(&'static str, String); 11] {
        let optional =
            |offset: Option<u64>| offset.map_or_else(|| "None".to_owned(), |offset| format!("Some({offset})"));
        [
            ("minor", self.minor.to_string()),
            ("attach_slot", self.attach_slot.to_string()),
            ("entry_size", self.entry_size.to_string()),
            ("time", self.time.to_string()),
            ("mempool", optional(self.mempool)),
            ("compile_context", optional(self.compile_context)),
            ("user_metadata", optional(self.user_metadata)),
            ("actions", self.actions.to_string()),
            ("cxx11_abi", self.cxx11_abi.to_string()),
            ("node_sequence", self.node_sequence.to_string()),
            ("attach_symbol", format!("\"{}\"", self.attach_symbol)),
        ]
    }

    /// Parses the value of every field, as [`Layout::fields`] returns them. `value` returns the
    /// Rust value of a field.
    pub(crate) fn from_fields<'a>(version: &str, value: impl Fn(&str) -> Option<&'a str>) -> Result<Self> {
        let wrong = |name: &str| format!("the entry of PyTorch {version} has no valid field {name}");
        let text = |name: &str| value(name).ok_or_else(|| wrong(name));
        let number = |name: &str| text(name)?.parse::<u64>().map_err(|_| wrong(name));
        let optional = |name: &str| match text(name)? {
            "None" => Ok(None),
            some => {
                let inner = some.strip_prefix("Some(").and_then(|rest| rest.strip_suffix(')'));
                inner.and_then(|offset| offset.parse().ok()).map(Some).ok_or_else(|| wrong(name))
            }
        };
        Ok(Self {
            version: version.to_owned(),
            minor: number("minor")?,
            attach_slot: number("attach_slot")?,
            entry_size: number("entry_size")?,
            time: number("time")?,
            mempool: optional("mempool")?,
            compile_context: optional("compile_context")?,
            user_metadata: optional("user_metadata")?,
            actions: number("actions")?,
            cxx11_abi: text("cxx11_abi")?.parse().map_err(|_| wrong("cxx11_abi"))?,
            node_sequence: number("node_sequence")?,
            attach_symbol: text("attach_symbol")?.trim_matches('"').to_owned(),
        })
    }

    /// Returns a sentence for each field that differs from the wheel's layout. The version may
    /// differ: patch releases are expected to have equal layouts.
    pub(crate) fn differences(&self, wheel: &Self) -> Vec<String> {
        let pairs = self.fields().into_iter().zip(wheel.fields());
        let different = pairs.filter(|((_, here), (_, there))| here != there);
        different
            .map(|((name, here), (_, there))| {
                format!("PyTorch {}: {name} is {here} in the table and {there} in the wheel", wheel.version)
            })
            .collect()
    }
}

/// Returns the minor version: 11 for `2.11.0`.
pub(crate) fn minor_version(version: &str) -> Result<u64> {
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
    pub(crate) fn example(version: &str) -> Layout {
        Layout {
            version: version.to_owned(),
            minor: minor_version(version).unwrap(),
            attach_slot: 35,
            entry_size: 56,
            time: 48,
            mempool: None,
            compile_context: None,
            user_metadata: None,
            actions: 9,
            cxx11_abi: false,
            node_sequence: 24,
            attach_symbol: "_ZN6attachE".to_owned(),
        }
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
        assert!(table.differences(&Layout { version: "2.6.1".to_owned(), ..table.clone() }).is_empty());
        let wheel = Layout { mempool: Some(48), ..table.clone() };
        let expected = ["PyTorch 2.6.0: mempool is None in the table and Some(48) in the wheel"];
        assert_eq!(table.differences(&wheel), expected);
    }
}
