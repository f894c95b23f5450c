//! The statements of `docs/query.md`.

use std::fs;
use std::path::Path;

/// Returns the documented statements, each with its heading.
///
/// # Panics
/// If the document is missing or has a block without an end.
pub(crate) fn documented_statements() -> Vec<(String, String)> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/query.md");
    let markdown = fs::read_to_string(document).expect("the document exists");
    let mut statements = Vec::new();
    for section in markdown.split("\n### ").skip(1) {
        let (heading, text) = section.split_once('\n').expect("a section has a text");
        for block in text.split("```sql\n").skip(1) {
            let (statement, _) = block.split_once("```").expect("a block has an end");
            statements.push((heading.to_owned(), statement.to_owned()));
        }
    }
    statements
}
