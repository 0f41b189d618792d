//! Tables in plain text: a header and rows, with columns as wide as their contents.

use farblock_wire::text::Plain;

/// The alignment of a column's cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Aligned to the left, for words.
    Left,
    /// Aligned to the right, for numbers.
    Right,
}

/// A table for printing.
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table with these columns.
    pub fn new(columns: &[(&str, Align)]) -> Table {
        let columns = columns.iter().map(|(name, align)| ((*name).to_owned(), *align)).collect();
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row with one cell for each column.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row has one cell for each column");
        self.rows.push(cells.iter().map(|cell| printable(cell)).collect());
    }

    /// Returns the table as lines that start with `indent` blanks.
    pub fn render(&self, indent: usize) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| row[column].chars().count());
                cells.chain([self.columns[column].0.chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let head: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        let mut text = String::new();
        for row in std::iter::once(&head).chain(&self.rows) {
            let mut line = " ".repeat(indent);
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Formats the properties of one object as lines with two columns: name and value.
pub fn properties(pairs: &[(&str, String)], indent: usize) -> String {
    let width = pairs.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let margin = " ".repeat(indent);
    pairs
        .iter()
        .map(|(name, value)| format!("{margin}{name:<width$}  {}\n", printable(value)))
        .collect()
}

/// Escapes control characters, because a text from a peer or a file name could control the
/// terminal.
pub fn printable(text: &str) -> String {
    Plain(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let mut table = Table::new(&[("NAME", Align::Left), ("SIZE", Align::Right)]);
        table.row(vec!["a".to_owned(), "1".to_owned()]);
        table.row(vec!["longer".to_owned(), "12345".to_owned()]);
        assert_eq!(table.render(2), "  NAME     SIZE\n  a           1\n  longer  12345\n");
    }

    #[test]
    fn control_characters_in_cells_are_escaped() {
        assert_eq!(printable("a\x1b[2Jb\n"), r"a\u{1b}[2Jb\u{a}");
        assert_eq!(properties(&[("serial", "\r".to_owned())], 0), "serial  \\u{d}\n");
    }
}
