//! Builds tables column by column, so that a column's heading and its cells are in one place.

use vramscope_insight::group::{GroupBy, Grouping};
use vramscope_insight::steps::Growth;
use vramscope_trace::sort::sort_by_key;

use super::context::Context;
use super::table::{Cell, Column, Row, Sorting, Table};
use crate::command::Command;

/// A builder that adds columns to a table with one row for each of `items`.
pub(crate) struct TableBuilder<'a, T> {
    table: Table,
    items: &'a [T],
}

impl<'a, T> TableBuilder<'a, T> {
    /// Creates a table without columns, with a row for each item, for a view.
    pub(crate) fn new(view: &'static str, caption: impl Into<String>, items: &'a [T]) -> Self {
        let rows = items.iter().map(|_| Row::default()).collect();
        Self { table: Table { rows, ..Table::new(view, caption, Vec::new()) }, items }
    }

    /// Appends a column; `cell` returns the cell of an item.
    pub(crate) fn column(self, column: Column, cell: impl FnMut(&T) -> Cell) -> Self {
        self.column_if(true, column, cell)
    }

    /// Appends a column of texts; `cell` returns the text of an item.
    pub(crate) fn text<C: Into<Cell>>(
        self,
        name: &'static str,
        title: &'static str,
        mut cell: impl FnMut(&T) -> C,
    ) -> Self {
        self.column(Column::text(name, title), |item| cell(item).into())
    }

    /// Appends a column of numbers; `cell` returns the cell of an item.
    pub(crate) fn number(self, name: &'static str, title: &'static str, cell: impl FnMut(&T) -> Cell) -> Self {
        self.column(Column::number(name, title), cell)
    }

    /// Appends a column of sizes; `size` returns the bytes of an item.
    pub(crate) fn bytes(self, name: &'static str, title: &'static str, mut size: impl FnMut(&T) -> u64) -> Self {
        self.number(name, title, |item| Cell::Bytes(size(item)))
    }

    /// Appends a column of counts; `count` returns the number for an item.
    pub(crate) fn count(self, name: &'static str, title: &'static str, mut count: impl FnMut(&T) -> u64) -> Self {
        self.number(name, title, |item| Cell::Count(count(item)))
    }

    /// Appends a column of sizes with bars; the largest size has the longest one.
    pub(crate) fn bar(self, name: &'static str, title: &'static str, mut size: impl FnMut(&T) -> u64) -> Self {
        self.bar_column(Column::bar(name, title), |item| Cell::Bytes(size(item)))
    }

    /// Appends a column of sizes, or of changes of sizes, with bars; the largest has the longest
    /// one.
    pub(crate) fn bar_column(self, column: Column, cell: impl FnMut(&T) -> Cell) -> Self {
        let mut builder = self.column(column, cell);
        let size = |row: &Row| match row.cells.last() {
            Some(Cell::Bytes(bytes)) => u128::from(*bytes),
            Some(Cell::BytesChange(change)) => change.unsigned_abs(),
            _ => 0,
        };
        let largest = builder.table.rows.iter().map(size).max().unwrap_or(0).max(1);
        for row in &mut builder.table.rows {
            row.share = Some(size(row) as f64 / largest as f64);
        }
        builder
    }

    /// Appends a column if `is_shown`; else only the objects that scripts get have its values.
    pub(crate) fn column_if(mut self, is_shown: bool, column: Column, mut cell: impl FnMut(&T) -> Cell) -> Self {
        self.add(is_shown, column, &mut cell);
        self
    }

    /// Appends a column as [`column_if`](Self::column_if) does; not generic over `cell`, which
    /// keeps the code small.
    fn add(&mut self, is_shown: bool, column: Column, cell: &mut dyn FnMut(&T) -> Cell) {
        for (row, item) in self.table.rows.iter_mut().zip(self.items) {
            match is_shown {
                true => row.cells.push(cell(item)),
                false => row.hidden.push((column.name, cell(item))),
            }
        }
        self.table.columns.extend(is_shown.then_some(column));
    }

    /// Adds a value to each row that scripts get and the page does not show.
    pub(crate) fn hidden(self, name: &'static str, cell: impl FnMut(&T) -> Cell) -> Self {
        self.column_if(false, Column::text(name, ""), cell)
    }

    /// Calls `change` with each item and its row.
    pub(crate) fn rows(mut self, mut change: impl FnMut(&T, &mut Row)) -> Self {
        self.items.iter().zip(&mut self.table.rows).for_each(|(item, row)| change(item, row));
        self
    }

    /// Sets the command that a click on a row runs; `command` returns that of an item.
    pub(crate) fn commands(self, mut command: impl FnMut(&T) -> Command) -> Self {
        self.rows(|item, row| row.command = Some(command(item)))
    }

    /// Sets the group that each row is about; a click on the row selects it. `group` returns the
    /// group's number for an item, and `selected` is the selected group.
    pub(crate) fn groups(
        self,
        selected: Option<(GroupBy, u32)>,
        by: GroupBy,
        mut group: impl FnMut(&T) -> u32,
    ) -> Self {
        self.rows(|item, row| *row = std::mem::take(row).with_group(selected, by, group(item)))
    }

    /// Sorts the rows by the sizes or numbers of the column that the user has chosen with `sort`:
    /// its name, and whether the largest comes first. Keeps the order of the items if the table
    /// cannot be sorted by that column.
    pub(crate) fn sorted(mut self, sort: Option<&(String, bool)>) -> Self {
        let sorting = self.table.sorting_by(sort);
        let chosen = sorting.and_then(|one| self.table.columns.iter().position(|column| column.name == one.column));
        if let Some((index, Sorting { is_descending, .. })) = chosen.zip(sorting) {
            sort_by_key(&mut self.table.rows, |row| {
                let value = match row.cells.get(index) {
                    Some(Cell::Bytes(value) | Cell::Count(value)) => *value,
                    _ => 0,
                };
                if is_descending { !value } else { value }
            });
        }
        Self { table: Table { sorting, ..self.table }, ..self }
    }

    /// Returns the finished table.
    pub(crate) fn build(self) -> Table {
        self.table
    }
}

impl Table {
    /// Returns the order that the user has chosen with `sort`, the name of a column and whether the
    /// largest value comes first; `None` if the table cannot be sorted by it.
    pub(crate) fn sorting_by(&self, sort: Option<&(String, bool)>) -> Option<Sorting> {
        let (name, is_descending) = sort?;
        let column = self.columns.iter().find(|column| column.is_sortable && column.name == name)?;
        Some(Sorting { column: column.name, is_descending: *is_descending })
    }
}

/// Returns the cell of a group's growth from step to step; empty if it does not grow.
pub(crate) fn growth_cell(growth: Option<&Growth>) -> Cell {
    growth.map_or(Cell::Empty, |growth| Cell::BytesChange(growth.bytes_per_step.into()))
}

/// Returns the cell with the name of a group.
pub(crate) fn group_cell(context: &Context<'_>, grouping: &mut Grouping, group: u32) -> Cell {
    Cell::from(&*grouping.cached_name(context.definitions(), group))
}
