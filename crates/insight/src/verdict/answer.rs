//! Parts of a verdict: what helps, and what cannot be answered.

use vramscope_trace::DeviceId;

use crate::diagnosis::Rule;
use crate::evidence::Evidence;

/// What helps against a problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerdictRemedy {
    /// One sentence.
    pub text: String,
    /// Lines to copy: a setting for the shell, or code of the program. Empty if there are none.
    pub lines: Vec<String>,
    /// Whether a simulation shows that it helps.
    pub is_checked: bool,
    /// Bytes of the reserved peak that it saves in a simulation; `None` if it was not simulated,
    /// and of a program that failed because it grows.
    pub saves_bytes: Option<u64>,
}

/// A rule that cannot answer, because the recording lacks evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnansweredRule {
    /// The rule.
    pub rule: Rule,
    /// The evidence that the recording lacks; never empty.
    pub missing: Vec<Evidence>,
    /// The device about which it cannot answer; `None` if it cannot answer about any.
    pub device: Option<DeviceId>,
}

impl UnansweredRule {
    /// Returns what the recording lacks and how to record it, as a sentence for each.
    #[must_use]
    pub fn needs(&self) -> String {
        let has = self.device.map_or_else(|| "The recording has".to_owned(), |one| format!("About {one}, it has"));
        let sentence = |one: &Evidence| format!("{has} {}. {}", one.missing(), one.how_to_record());
        self.missing.iter().map(sentence).collect::<Vec<_>>().join(" ")
    }
}
