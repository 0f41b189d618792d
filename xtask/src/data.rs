//! Measured tables as CSV files. The first line is a comment with the source of the figures.
//!
//! ```text
//! # WHAT IT SHOWS | MACHINE | DATE | METHOD | COMMAND
//! # a remark (any number of such lines)
//! load,IOPS,p50 µs
//! "4k randread, QD 1, 1 connection",92390,10.3
//! ```

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use farblock_bench::{Machine, command_line, utc};

/// The text of a cell without a value.
const NOTHING: &str = "–";
const SEPARATOR: &str = " | ";

/// The source of the figures in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) what: String,
    pub(crate) machine: String,
    pub(crate) date: String,
    /// The method: the number of runs, pinning and so on.
    pub(crate) method: String,
    pub(crate) command: String,
}

/// A table, and the source of its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) head: Head,
    pub(crate) remarks: Vec<String>,
    pub(crate) columns: Vec<String>,
    /// The rows. Each has as many cells as there are columns.
    pub(crate) rows: Vec<Vec<String>>,
}

impl Head {
    /// The source of a table that this process measured.
    pub(crate) fn of_this_run(what: &str, method: String) -> Head {
        Head {
            what: what.to_owned(),
            machine: Head::machine(&Machine::this()),
            date: utc(SystemTime::now()),
            method,
            command: command_line(),
        }
    }

    pub(crate) fn machine(machine: &Machine) -> String {
        format!("{}, {} processors, {}", machine.cpu_model, machine.cores, machine.kernel)
    }

    /// The date without the time.
    pub(crate) fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or_default()
    }

    fn parse(line: &str) -> Result<Head, String> {
        let fields: Vec<&str> = line.strip_prefix("# ").unwrap_or("").split(SEPARATOR).collect();
        let [what, machine, date, method, command] = fields[..] else {
            return Err("the first line is not `# WHAT | MACHINE | DATE | METHOD | COMMAND`".into());
        };
        let [what, machine, date, method, command] =
            [what, machine, date, method, command].map(str::to_owned);
        Ok(Head { what, machine, date, method, command })
    }

    fn line(&self) -> String {
        let fields = [&self.what, &self.machine, &self.date, &self.method, &self.command];
        format!("# {}\n", fields.map(|field| field.replace(['|', '\n'], "/")).join(SEPARATOR))
    }
}

impl Data {
    pub(crate) fn new(head: Head, columns: &[&str]) -> Data {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Data { head, remarks: Vec::new(), columns, rows: Vec::new() }
    }

    /// Adds a row. Adds empty cells if the row is too short.
    pub(crate) fn push(&mut self, mut row: Vec<String>) {
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    pub(crate) fn read(path: &Path) -> Result<Data, String> {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Data::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(crate) fn write(&self, folder: &Path, name: &str) -> Result<(), String> {
        let path = folder.join(format!("{name}.csv"));
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, self.csv()))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Data, String> {
        let mut lines = text.lines().peekable();
        let head = Head::parse(lines.next().unwrap_or_default())?;
        let mut remarks = Vec::new();
        while let Some(line) = lines.next_if(|line| line.starts_with("# ")) {
            remarks.push(line[2..].to_owned());
        }
        let mut rows = lines.map(cells);
        let columns = rows.next().ok_or("the file has no header row")?;
        let rows: Vec<Vec<String>> = rows.collect();
        if let Some(row) = rows.iter().find(|row| row.len() != columns.len()) {
            return Err(format!("{row:?} has {} cells, not {}", row.len(), columns.len()));
        }
        Ok(Data { head, remarks, columns, rows })
    }

    fn csv(&self) -> String {
        let mut text = self.head.line();
        for remark in &self.remarks {
            let _ = writeln!(text, "# {}", remark.replace('\n', " "));
        }
        for row in std::iter::once(&self.columns).chain(&self.rows) {
            let cells: Vec<String> = row.iter().map(|cell| quoted(cell)).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }

    pub(crate) fn column(&self, name: &str) -> Result<usize, String> {
        let place = self.columns.iter().position(|column| column == name);
        place.ok_or_else(|| format!("column {name:?} is missing in {:?}", self.columns))
    }

    pub(crate) fn cell<'a>(&self, row: &'a [String], column: &str) -> Result<&'a str, String> {
        Ok(&row[self.column(column)?])
    }

    pub(crate) fn number(&self, row: &[String], column: &str) -> Result<f64, String> {
        let cell = self.cell(row, column)?;
        cell.parse()
            .map_err(|_| format!("row {:?} has no number in column {column:?}", row.join(",")))
    }

    /// The first row whose cells in these columns have these values.
    pub(crate) fn row(&self, wanted: &[(&str, &str)]) -> Result<&[String], String> {
        let mut places = Vec::new();
        for (column, value) in wanted {
            places.push((self.column(column)?, *value));
        }
        let row = self.rows.iter().find(|row| places.iter().all(|&(at, value)| row[at] == value));
        row.map(Vec::as_slice).ok_or_else(|| format!("no row matches {wanted:?}"))
    }

    /// The table as Markdown. Columns of numbers are right-aligned.
    pub(crate) fn markdown(&self) -> String {
        let line = |row: &[String]| format!("| {} |\n", row.join(SEPARATOR));
        let is_number = |column: usize| {
            let mut cells =
                self.rows.iter().map(|row| &row[column]).filter(|cell| !cell.is_empty());
            cells.all(|cell| cell.parse::<f64>().is_ok())
        };
        let rule = |column| if is_number(column) { "---:" } else { "---" }.to_owned();
        let mut text = line(&self.columns);
        text += &line(&(0..self.columns.len()).map(rule).collect::<Vec<_>>());
        for row in &self.rows {
            let shown = |cell: &String| match cell.as_str() {
                "" => NOTHING.to_owned(),
                cell => cell.replace('|', " "),
            };
            text += &line(&row.iter().map(shown).collect::<Vec<_>>());
        }
        text
    }

    /// The source, the remarks and the table, for a terminal.
    pub(crate) fn report(&self) -> String {
        let Head { what, machine, date, method, command } = &self.head;
        let mut text = format!("\n{what}\n\n{machine}. {date}. {method}. `{command}`\n\n");
        for remark in &self.remarks {
            let _ = writeln!(text, "* {remark}");
        }
        text + "\n" + &self.markdown()
    }
}

fn quoted(cell: &str) -> String {
    let cell = cell.replace('\n', " ");
    if cell.contains([',', '"']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
}

/// The cells of a line of CSV. No cell contains a line break.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let (mut is_quoted, mut letters) = (false, line.chars().peekable());
    while let Some(letter) = letters.next() {
        let cell = cells.last_mut().expect("a row has cells");
        match letter {
            '"' if is_quoted && letters.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            letter => cell.push(letter),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Data {
        let head = Head::parse("# reads | a machine | 2026-11-26 | medians | `xtask`");
        let mut data =
            Data::new(head.expect("the source line has five parts"), &["load, depth", "p50 µs"]);
        data.remarks.push("the \"floor\" is missing".to_owned());
        data.push(vec!["4k, \"QD\" 1".to_owned(), "10.3".to_owned()]);
        data.push(vec!["# 64k".to_owned()]);
        data
    }

    #[test]
    fn a_written_table_parses_to_the_same_table() {
        let text = data().csv();
        assert_eq!(Data::parse(&text), Ok(data()), "{text}");
        assert!(text.starts_with("# reads | a machine | 2026-11-26 | medians | `xtask`\n# the"));
        assert!(text.ends_with("\"load, depth\",p50 µs\n\"4k, \"\"QD\"\" 1\",10.3\n# 64k,\n"));
    }

    #[test]
    fn numbers_align_right_and_missing_ones_are_dashes() {
        let table = data().markdown();
        assert_eq!(
            table,
            "| load, depth | p50 µs |\n| --- | ---: |\n| 4k, \"QD\" 1 | 10.3 |\n| # 64k | – |\n"
        );
    }

    #[test]
    fn a_row_with_too_few_or_too_many_cells_is_an_error() {
        let error = Data::parse("# a | b | c | d | e\nx,y\n1,2,3\n")
            .expect_err("a row with three cells is invalid");
        assert!(error.contains("has 3 cells, not 2"), "{error}");
        assert!(Data::parse("x,y\n1,2\n").is_err(), "a file without a source line was accepted");
    }
}
