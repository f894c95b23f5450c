//! The parts of the repository's rules that need more than a line of code.
//!
//! `tests/repository_rules.rs` applies them to this workspace. Everything here takes text or a
//! folder as an argument, so that each rule can be tested itself.

mod cycles;
mod messages;
mod prose;
mod rust_source;

pub use cycles::{Cycle, Scope, import_cycles, script_cycles, sibling_imports};
pub use messages::{Message, MessageKind, messages, page_messages};
pub use prose::{Language, MAX_CODE_COLUMNS, MAX_PROSE_COLUMNS, contains_word, long_lines, riddles};
