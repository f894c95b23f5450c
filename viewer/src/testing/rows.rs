//! The rows that scripts get of a view, and the numbers in them.

use serde_json::Value;
use vramscope_viewer::app::Session;

/// Returns the rows that a script gets.
pub(crate) fn rows(session: &mut Session, view: &str, options: &str) -> Vec<Value> {
    let rows = session.rows(view, options).expect("the view has rows");
    match serde_json::from_str(&rows).expect("rows are JSON") {
        Value::Array(rows) => rows,
        other => panic!("{other} is not a list"),
    }
}

/// Returns a number of a row.
pub(crate) fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or_else(|| panic!("{name} of {row} is not a number"))
}

/// Returns the sum of a number over rows.
pub(crate) fn sum(rows: &[Value], name: &str) -> u64 {
    rows.iter().map(|row| number(row, name)).sum()
}

/// Returns the numbers in a column; 0 where nothing is known.
pub(crate) fn column(rows: &[Value], name: &str) -> Vec<u64> {
    rows.iter().map(|row| row[name].as_u64().unwrap_or(0)).collect()
}
