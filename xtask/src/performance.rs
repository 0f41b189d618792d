//! Writes the tables of docs/performance.md and docs/performance/README.md, and their charts, from
//! the data files in docs/performance.
//!
//! A mark in a page names a data file. The table of this file follows the mark. Options follow the
//! name of the file after semicolons:
//!
//! ```text
//! <!-- from peers-mem.csv; where side = SPDK; columns load; IOPS; source -->
//! (the table, and the source of its figures)
//! <!-- end -->
//! ```
//!
//! - `where COLUMN = VALUE` keeps the rows that have this value.
//! - `columns NAME; NAME` keeps these columns.
//! - `source` adds the machine, date, method, command and remarks of the figures.
//! - `no table` omits the table.
//!
//! A mark is one line.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::charts::CHARTS;
use crate::data::Data;
use crate::grid;

const MARK: &str = "<!-- from ";
const END: &str = "<!-- end -->";
/// The data of the map of block sizes, which `bench-peers --map` measures. Without this file, the
/// map is not drawn.
const MAP: &str = "performance/block-size-map.csv";
const PAGES: [&str; 2] = ["performance.md", "performance/README.md"];
/// The maximum length of a line of prose.
const WIDTH: usize = 100;

/// Write the tables and charts of docs/performance.md and docs/performance from the data files
#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the pages
    #[arg(long, value_name = "DIR", default_value = "docs")]
    docs: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    for (path, text) in outputs(&options.docs)? {
        fs::write(&path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// The path and the text of each generated file.
fn outputs(docs: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let mut outputs = Vec::new();
    for chart in &CHARTS {
        let svg = chart.draw(&Data::read(&docs.join(chart.data))?);
        let svg = svg.map_err(|error| format!("{}: {error}", chart.data))?;
        outputs.push((docs.join(chart.svg), svg));
    }
    let map = docs.join(MAP);
    if map.is_file() {
        outputs.push((map.with_extension("svg"), drawn_map(&Data::read(&map)?)?));
    }
    for page in PAGES {
        let path = docs.join(page);
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let folder = path.parent().unwrap_or(docs);
        let text = filled(&text, |mark| shown(folder, mark))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        outputs.push((path, text));
    }
    Ok(outputs)
}

/// Draws the map of block sizes, compared with SPDK.
fn drawn_map(data: &Data) -> Result<String, String> {
    let source = format!("{}, {}", data.head.machine, data.head.day());
    grid::draw(data, "RAM disk: farblock's I/Os per second, SPDK's = 1", "farblock ÷ SPDK", &source)
}

/// Returns the page with new text after each mark.
fn filled(page: &str, show: impl Fn(&str) -> Result<String, String>) -> Result<String, String> {
    let mut text = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let _ = writeln!(text, "{line}");
        let Some(mark) = line.strip_prefix(MARK) else { continue };
        let mark =
            mark.strip_suffix(" -->").ok_or_else(|| format!("the line {line:?} has no `-->`"))?;
        let _ = writeln!(text, "\n{}\n{END}", show(mark)?);
        loop {
            match lines.next() {
                Some(END) => break,
                Some(next) if !next.starts_with(MARK) => {}
                _ => return Err(format!("no line `{END}` follows {line:?}")),
            }
        }
    }
    Ok(text)
}

/// Returns the Markdown that a mark requests: the table, the paragraph that names the source of its
/// figures, or both.
fn shown(folder: &Path, mark: &str) -> Result<String, String> {
    let mut parts = mark.split("; ");
    let file = parts.next().unwrap_or_default();
    let mut data = Data::read(&folder.join(file))?;
    let (mut has_table, mut has_source) = (true, false);
    let mut columns: Option<Vec<usize>> = None;
    for part in parts {
        if let Some(condition) = part.strip_prefix("where ") {
            let (column, value) = condition.split_once(" = ").ok_or("`where` lacks ` = `")?;
            let place = data.column(column)?;
            data.rows.retain(|row| row[place] == value);
        } else if part == "source" {
            has_source = true;
        } else if part == "no table" {
            has_table = false;
        } else if let Some(name) = part.strip_prefix("columns ") {
            columns = Some(vec![data.column(name)?]);
        } else {
            let columns = columns.as_mut().ok_or_else(|| format!("{part:?} is not an option"))?;
            columns.push(data.column(part)?);
        }
    }
    if data.rows.is_empty() {
        return Err(format!("no row matches {mark:?}"));
    }
    let source = if has_source { source(file, &data) } else { String::new() };
    if let Some(places) = columns {
        let select = |row: &Vec<String>| places.iter().map(|&place| row[place].clone()).collect();
        data.rows = data.rows.iter().map(select).collect();
        data.columns = select(&data.columns);
    }
    let table = if has_table { data.markdown() } else { String::new() };
    let gap = if has_table && has_source { "\n" } else { "" };
    Ok(table + gap + &source)
}

/// The source of a table: a paragraph with machine, date, method, command and remarks.
fn source(file: &str, data: &Data) -> String {
    let head = &data.head;
    let mut words = format!(
        "[{file}]({file}): {}, {}; {}. `{}`.",
        head.machine,
        head.day(),
        head.method,
        head.command
    );
    data.remarks.iter().for_each(|remark| words += &format!(" {remark}"));
    wrapped(&words)
}

/// Wraps words into lines of at most [`WIDTH`] characters.
fn wrapped(text: &str) -> String {
    let (mut lines, mut length) = (String::new(), 0);
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if length > 0 && length + 1 + width > WIDTH {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += width;
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maximum number of words of the page for decision-makers, including tables.
    const MAX_WORDS: usize = 1500;

    fn docs() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("docs")
    }

    fn folder(table: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("the folder is created");
        let head = "# w | m | 2026-11-26T01:02:03Z | me | c\n# a remark\n";
        fs::write(folder.path().join("t.csv"), head.to_owned() + table)
            .expect("the file is written");
        folder
    }

    #[test]
    fn pages_and_charts_are_up_to_date_with_the_data() {
        for (path, text) in outputs(&docs()).expect("the data files are valid") {
            let now = fs::read_to_string(&path).unwrap_or_default();
            let first = now.lines().zip(text.lines()).find(|(now, text)| now != text);
            assert!(now == text, "out of date: {}: {first:?}", path.display());
        }
    }

    #[test]
    fn the_list_of_tables_is_complete() {
        let folder = docs().join("performance");
        let list = fs::read_to_string(folder.join("README.md")).expect("the file can be read");
        for entry in fs::read_dir(folder).expect("the folder can be read") {
            let path = entry.expect("the entry can be read").path();
            let name = path.file_name().expect("the file has a name").to_string_lossy();
            let is_data = path.extension().is_some_and(|extension| extension == "csv");
            assert!(!is_data || list.contains(&format!("({name})")), "{name} is not in the list");
        }
    }

    #[test]
    fn the_performance_page_is_below_its_word_limit() {
        let page = fs::read_to_string(docs().join(PAGES[0])).expect("the file can be read");
        let words = page.split_whitespace().count();
        assert!(words <= MAX_WORDS, "{words} words, at most {MAX_WORDS}: move tables to {PAGES:?}");
    }

    #[test]
    fn a_mark_chooses_rows_and_columns() {
        let folder = folder("load,side,IOPS,µs\n\"4k, QD 1\",us,5,1\n64k,us,6,2\n");
        let page = "A\n<!-- from t.csv; where load = 4k, QD 1; columns side; µs; source -->\nold\n\
                    <!-- end -->\nB\n";
        let new = filled(page, |mark| shown(folder.path(), mark)).expect("the table is valid");
        let table = "\n| side | µs |\n| --- | ---: |\n| us | 1 |\n\n\
                     [t.csv](t.csv): m, 2026-11-26; me. `c`. a remark\n\n";
        assert_eq!(new, page.replace("old\n", table));
        let source = shown(folder.path(), "t.csv; no table; source").expect("the mark is valid");
        assert_eq!(source, "[t.csv](t.csv): m, 2026-11-26; me. `c`. a remark\n");
    }

    #[test]
    fn invalid_marks_in_a_page_are_errors() {
        let folder = folder("load\n4k\n");
        for mark in ["u.csv", "t.csv; columns IOPS", "t.csv; where load = 8k", "t.csv; sources"] {
            let page = format!("{MARK}{mark} -->\n{END}\n");
            assert!(filled(&page, |mark| shown(folder.path(), mark)).is_err(), "{mark}");
        }
        for open in ["{MARK}t.csv -->\n", "{MARK}t.csv -->\n{MARK}t.csv -->\n{END}\n"] {
            let page = open.replace("{MARK}", MARK).replace("{END}", END);
            assert!(filled(&page, |mark| shown(folder.path(), mark)).is_err(), "{page}");
        }
    }

    #[test]
    fn a_long_line_is_wrapped() {
        let text = wrapped(&"µs/IO ".repeat(40));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 40);
        assert_eq!(text.lines().count(), 3);
    }
}
