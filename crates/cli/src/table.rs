//! Tables of text and numbers.

use comfy_table::{Cell, CellAlignment, ColumnConstraint, ContentArrangement, Row, Table, presets};

/// Number of blanks between the columns of a table.
const GAP: u16 = 2;

/// Creates a table without rules whose first `left` columns are aligned left and the rest right.
pub(crate) fn new<T: ToString>(header: impl IntoIterator<Item = T>, left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.into_iter().map(|title| Cell::new(title.to_string())));
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP));
        column.set_cell_alignment(if index < left { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}

/// Returns the text of a table. With the width of a terminal in `columns`, the last column is
/// truncated so that each line fits; with `None`, every cell is complete.
pub(crate) fn render(mut table: Table, columns: Option<u16>) -> String {
    let last = table.column_count() - 1;
    if let Some(columns) = columns {
        table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(columns + GAP)
            .set_truncation_indicator("…");
        for column in table.column_iter_mut().take(last) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        table.row_iter_mut().for_each(|row: &mut Row| {
            row.max_height(1);
        });
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_column_is_truncated_and_only_on_a_terminal() {
        let long = "train.py:47 forward".repeat(10);
        let make = || {
            let mut table = new(["change", "site"], 0);
            table.column_mut(1).expect("two columns").set_cell_alignment(CellAlignment::Left);
            table.add_row(["+1.50 GiB", &long]);
            table
        };
        assert!(render(make(), None).contains(&long));
        let narrow = render(make(), Some(60));
        assert!(narrow.contains("+1.50 GiB") && narrow.contains('…'), "{narrow}");
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        assert_eq!(narrow.lines().count(), 2, "{narrow}");
    }
}
