//! Tables as text.

use std::fmt;

use vramscope_trace::ByteSize;

/// A table of text. The last `left` columns are aligned to the left, the others to the right.
pub(super) struct TextTable {
    /// The headings, then the rows.
    rows: Vec<Vec<String>>,
    /// Number of last columns that are aligned to the left.
    left: usize,
}

impl TextTable {
    /// Creates a table with these headings, whose last `left` columns are aligned to the left.
    pub(super) fn new(headings: &[&str], left: usize) -> Self {
        Self { rows: vec![headings.iter().map(|&heading| heading.to_owned()).collect()], left }
    }

    /// Adds a row, which has a cell for each heading.
    pub(super) fn add<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }
}

impl fmt::Display for TextTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if column + self.left < columns { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Returns a change of bytes as text with a sign, such as `+4 KiB`; `0 B` for no change.
pub(super) fn change_text(bytes: i64) -> String {
    let size = ByteSize(bytes.unsigned_abs());
    match bytes {
        0 => size.to_string(),
        1.. => format!("+{size}"),
        _ => format!("-{size}"),
    }
}

/// Returns `after - before`.
pub(super) fn difference(after: u64, before: u64) -> i64 {
    i64::try_from(i128::from(after) - i128::from(before)).unwrap_or(if after > before { i64::MAX } else { i64::MIN })
}
