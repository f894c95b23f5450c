//! Horizontal bars that compare amounts of memory in a terminal.

use vramscope_trace::ByteSize;

/// Width of the longest bar, in characters.
const BAR_COLUMNS: u64 = 40;

/// Returns a chart with one line for each row: name, bar, size and note. A row is a name, a size in
/// bytes and a note.
pub(crate) fn chart(rows: &[(&str, u64, String)]) -> String {
    let largest = rows.iter().map(|&(_, bytes, _)| bytes).max().unwrap_or(0).max(1);
    let name_columns = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let line = |(name, bytes, note): &(&str, u64, String)| {
        let columns = (u128::from(*bytes) * u128::from(BAR_COLUMNS)).div_ceil(u128::from(largest));
        let bar = "█".repeat(columns as usize);
        let text = format!("  {name:<name_columns$}  {bar} {}  {note}", ByteSize(*bytes));
        format!("{}\n", text.trim_end())
    };
    rows.iter().map(line).collect()
}
