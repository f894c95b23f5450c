//! The parts of `diff`: its operands and conditions, and its output as text, JSON and Markdown.

pub(crate) mod checks;
pub(crate) mod compared;
pub(crate) mod json;
pub(crate) mod markdown;
pub(crate) mod operand;
pub(crate) mod tables;
