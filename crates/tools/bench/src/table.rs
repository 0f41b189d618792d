//! A report as text: a table like the one in StarWind's published test. It is about 130 columns
//! wide, or in two parts of less than 80 columns.
//!
//! The first block has the figures, with one line per pattern and side. The second block has the
//! remote side as a percentage of the local side and of the floor (bare sockets). Notes on single
//! patterns follow.

use crate::cpu::CpuUse;
use crate::format::{self, NOTHING};
use crate::result::{Figures, PatternReport, Percent, Report};
use crate::verdict::{ratio_interval, spread_percent};
pub use crate::wrap::wrap;

/// The space between two columns.
const GAP: &str = "  ";

/// The width of the labels in the head.
const HEAD: usize = 9;

/// Returns the remote side as a percentage of another side.
type PercentOf = fn(&PatternReport) -> Option<Percent>;

/// Renders the whole report as text with a final newline, however wide its tables are.
pub fn render(report: &Report) -> String {
    render_within(report, usize::MAX)
}

/// Like [`render`], but for a terminal of this width: divides wider tables.
pub fn render_within(report: &Report, columns: usize) -> String {
    let mut text = String::new();
    let mut line = |words: &str| {
        text.push_str(words.trim_end());
        text.push('\n');
    };
    line(&format!("{}, {}", report.tool, report.date));
    line(&wrap(&format!("machine  {}", format::machine(report)), HEAD, columns));
    for (name, description) in report.sides() {
        line(&wrap(&format!("{:<7}  {description}", name.name()), HEAD, columns));
    }
    line(&wrap(&format!("method   {}", format::method(&report.method)), HEAD, columns));
    line("");
    let wide = performance(report, TablePart::All);
    if wide.width() <= columns {
        text.push_str(&wide.render());
    } else {
        text.push_str(&performance(report, TablePart::Rates).render());
        text.push('\n');
        text.push_str(&performance(report, TablePart::Latency).render());
    }
    let bases: [(&str, PercentOf); 2] = [
        ("local", |pattern| pattern.remote_percent_of_local),
        ("floor", |pattern| pattern.remote_percent_of_floor),
    ];
    for (base, of) in bases {
        if report.patterns.iter().any(|pattern| of(pattern).is_some()) {
            let title = format!(
                "remote as a percentage of {base} (IOPS, MiB/s: more is better; latency, CPU: less)"
            );
            text.push_str(&format!("\n{}\n\n", wrap(&title, 0, columns)));
            let wide = percentages(report, of, true);
            let fits = wide.width() <= columns;
            let grid = if fits { wide } else { percentages(report, of, false) };
            text.push_str(&grid.render());
        }
    }
    let limits = limits(report, columns);
    if !limits.is_empty() {
        text.push_str("\nwhat limited the remote side, and how much longer an I/O takes there\n\n");
        text.push_str(&limits);
    }
    let remarks = remarks(report, columns);
    if !remarks.is_empty() {
        text.push('\n');
        text.push_str(&remarks);
    }
    text
}

/// The columns of the first block that a table shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TablePart {
    All,
    /// All columns except for latency. The name of each pattern is above its lines.
    Rates,
    /// Only latency. The name of each pattern is above its lines.
    Latency,
}

fn performance(report: &Report, part: TablePart) -> Grid {
    let any = |of: fn(&Figures) -> Option<CpuUse>| {
        report.all_figures().any(|figures| of(figures).is_some())
    };
    let rates = part != TablePart::Latency;
    let (host, target) = (rates && any(|f| f.host_cpu), rates && any(|f| f.target_cpu));
    let wide = part == TablePart::All;
    let mut grid = Grid::new(if wide { &["pattern", "jobs × depth", "side"] } else { &["side"] });
    if rates {
        grid.column("IOPS");
        grid.column("MiB/s");
    }
    if part != TablePart::Rates {
        grid.group("latency, µs", &["mean", "p50", "p99", "p99.9", "max"]);
    }
    if host {
        grid.group("host CPU", &["%", "µs/IO"]);
    }
    if target {
        grid.group("target CPU", &["%", "µs/IO"]);
    }
    for pattern in &report.patterns {
        let mut heading = [pattern.pattern.name.clone(), format::jobs_and_depth(&pattern.pattern)];
        if !wide {
            grid.rows.push(vec![heading.join(", ")]);
        }
        for (side, figures) in report.figures(pattern) {
            let mut row: Vec<String> = match wide {
                true => heading.iter_mut().map(std::mem::take).collect(),
                false => Vec::new(),
            };
            row.push(if wide { side.name().to_owned() } else { format!("  {}", side.name()) });
            if rates {
                row.extend(rate_cells(figures));
            }
            if part != TablePart::Rates {
                row.extend(latency_cells(figures));
            }
            row.extend(cpu_cells(figures, host, target));
            grid.rows.push(row);
        }
    }
    grid
}

fn number(figures: Option<&Figures>, show: impl Fn(&Figures) -> String) -> String {
    figures.map_or_else(|| NOTHING.to_owned(), show)
}

fn rate_cells(figures: Option<&Figures>) -> [String; 2] {
    [
        number(figures, |f| format::iops(f.iops)),
        number(figures, |f| format::tenths(f.mib_per_second)),
    ]
}

fn latency_cells(figures: Option<&Figures>) -> [String; 5] {
    [
        number(figures, |f| format::us(f.latency.mean_ns)),
        number(figures, |f| format::us(f.latency.p50_ns as f64)),
        number(figures, |f| format::us(f.latency.p99_ns as f64)),
        number(figures, |f| format::us(f.latency.p99_9_ns as f64)),
        number(figures, |f| format::us(f.latency.max_ns as f64)),
    ]
}

fn cpu_cells(figures: Option<&Figures>, host: bool, target: bool) -> Vec<String> {
    let mut cells = Vec::new();
    let mut cpu = |used: Option<CpuUse>| {
        cells.push(format::optional(used.map(|cpu| cpu.percent_of_core), format::tenths));
        cells.push(format::optional(used.map(|cpu| cpu.us_per_io), format::fine));
    };
    if host {
        cpu(figures.and_then(|f| f.host_cpu));
    }
    if target {
        cpu(figures.and_then(|f| f.target_cpu));
    }
    cells
}

fn percentages(report: &Report, of: PercentOf, wide: bool) -> Grid {
    let words: &[&str] = if wide { &["pattern", "jobs × depth"] } else { &["pattern"] };
    let mut grid = Grid::new(words);
    grid.column("IOPS");
    grid.column("MiB/s");
    grid.group("latency", &["mean", "p50", "p99", "p99.9"]);
    grid.column("CPU/IO");
    for pattern in &report.patterns {
        let percent = of(pattern);
        let cell = |of: fn(Percent) -> f64| format::optional(percent.map(of), format::percent);
        let mut row = vec![pattern.pattern.name.clone()];
        if wide {
            row.push(format::jobs_and_depth(&pattern.pattern));
        }
        row.extend([
            cell(|p| p.iops),
            cell(|p| p.throughput),
            cell(|p| p.mean_latency),
            cell(|p| p.p50_latency),
            cell(|p| p.p99_latency),
            cell(|p| p.p99_9_latency),
            format::optional(percent.and_then(|p| p.cpu_per_io), format::percent),
        ]);
        grid.rows.push(row);
    }
    grid
}

fn limits(report: &Report, columns: usize) -> String {
    let of = |pattern: &PatternReport| {
        let limit = format!("  {}", pattern.bottleneck(report.machine.cores)?);
        Some(format!("{}\n{}\n", pattern.pattern.name, wrap(&limit, 2, columns)))
    };
    report.patterns.iter().filter_map(of).collect()
}

fn remarks(report: &Report, columns: usize) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&wrap(&words, 2, columns));
        text.push('\n');
    };
    for pattern in &report.patterns {
        let name = &pattern.pattern.name;
        if let Some(note) = &pattern.pattern.note {
            line(format!("{name}: {note}"));
        }
        for failure in &pattern.errors {
            let (side, run) = (failure.side.name(), failure.run + 1);
            line(format!("{name}: {side}, run {run}: {}", failure.message));
        }
    }
    report.patterns.iter().filter_map(spread).for_each(&mut line);
    report.remarks.iter().cloned().for_each(&mut line);
    let doubted: Vec<_> = report
        .patterns
        .iter()
        .filter_map(|one| Some((&one.pattern.name, one.floor_doubt()?)))
        .collect();
    if let Some((_, doubt)) = doubted.first() {
        let names: Vec<&str> = doubted.iter().map(|(name, _)| name.as_str()).collect();
        line(format!("{}: {doubt}", names.join(", ")));
    }
    if report.interrupted {
        line("interrupted: later runs and patterns are missing".to_owned());
    }
    text
}

/// The interval of the ratio of the two disks, and the spread of the runs on the local disk.
fn spread(pattern: &PatternReport) -> Option<String> {
    let rates = |figures: &Figures| figures.runs.iter().map(|run| run.iops).collect::<Vec<_>>();
    let (local, remote) = (rates(pattern.local.as_ref()?), rates(pattern.remote.as_ref()?));
    let [low, high] = ratio_interval(&local, &remote)?;
    let own = spread_percent(&local)?;
    let (percent, name) = (pattern.remote_percent_of_local?.iops, &pattern.pattern.name);
    let verdict = if low <= 100.0 && high >= 100.0 {
        "the difference is not significant"
    } else {
        "the difference is significant"
    };
    Some(format!(
        "{name}: remote reaches {percent:.0} % of local ({low:.0} to {high:.0} % with a confidence \
         of 95 %: {verdict}); the {} runs of the local disk alone differ by up to {own:.0} %",
        local.len()
    ))
}

/// A table with aligned columns. The first columns contain words and are left-aligned; `Grid::new`
/// gets their number. The others contain numbers and are right-aligned. A row of one cell is a
/// heading across all columns.
struct Grid {
    words: usize,
    header: Vec<String>,
    /// The titles above several columns: the first column, the number of columns, and the title.
    groups: Vec<(usize, usize, &'static str)>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    fn new(words: &[&str]) -> Grid {
        let header = words.iter().map(|&word| word.to_owned()).collect();
        Grid { words: words.len(), header, groups: Vec::new(), rows: Vec::new() }
    }

    fn column(&mut self, name: &str) {
        self.header.push(name.to_owned());
    }

    fn group(&mut self, title: &'static str, names: &[&str]) {
        self.groups.push((self.header.len(), names.len(), title));
        names.iter().for_each(|name| self.column(name));
    }

    fn widths(&self) -> Vec<usize> {
        let full = || self.rows.iter().filter(|row| row.len() == self.header.len());
        let rows = || std::iter::once(&self.header).chain(full());
        let width = |column: usize| rows().map(|row| row[column].chars().count()).max();
        let mut widths: Vec<usize> =
            (0..self.header.len()).map(|column| width(column).unwrap_or(0)).collect();
        for (first, count, title) in &self.groups {
            // Widen the first column of the group to fit the title.
            let span = span_width(&widths, *first, *count);
            widths[*first] += (title.chars().count() + 4).saturating_sub(span);
        }
        widths
    }

    fn width(&self) -> usize {
        let widths = self.widths();
        span_width(&widths, 0, widths.len())
    }

    fn render(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        let mut push = |line: String| {
            text.push_str(line.trim_end());
            text.push('\n');
        };
        push(self.group_line(&widths));
        push(self.line(&self.header, &widths));
        push("─".repeat(span_width(&widths, 0, widths.len())));
        for row in &self.rows {
            push(self.line(row, &widths));
        }
        text
    }

    fn group_line(&self, widths: &[usize]) -> String {
        let mut cells: Vec<String> = Vec::new();
        let mut column = 0;
        while column < widths.len() {
            let group = self.groups.iter().find(|(first, ..)| *first == column);
            let (count, cell) = match group {
                None => (1, " ".repeat(widths[column])),
                Some((first, count, title)) => {
                    let width = span_width(widths, *first, *count);
                    (*count, format!("{:─^width$}", format!(" {title} ")))
                }
            };
            cells.push(cell);
            column += count;
        }
        cells.join(GAP)
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let aligned = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column < self.words { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        aligned.collect::<Vec<_>>().join(GAP)
    }
}

fn span_width(widths: &[usize], first: usize, count: usize) -> usize {
    widths[first..first + count].iter().sum::<usize>() + (count - 1) * GAP.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn widest(text: &str) -> usize {
        let tables = text.lines().filter(|line| !line.contains(": "));
        tables.map(|line| line.chars().count()).max().unwrap_or(0)
    }

    #[test]
    fn the_table_shows_both_sides() {
        let text = render(&testing::report());
        assert!((120..=150).contains(&widest(&text)), "{} columns\n{text}", widest(&text));
        insta::assert_snapshot!(text);
    }

    #[test]
    fn the_table_fits_80_columns() {
        let report = testing::with_floor(testing::report());
        let text = render_within(&report, 80);
        let columns = text.lines().map(|line| line.chars().count()).max();
        assert!(columns.is_some_and(|columns| columns <= 80), "{columns:?} columns\n{text}");
        assert!(text.contains("4k random read, "), "{text}");
        let wide = render(&report);
        let numbers = |text: &str| {
            let words = text.split_whitespace().filter(|word| word.contains('.'));
            words.map(str::to_owned).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(numbers(&text), numbers(&wide), "a number is missing");
        assert_eq!(render_within(&report, 200), wide);
    }

    #[test]
    fn lines_are_wrapped_only_at_spaces() {
        assert_eq!(wrap("a bc def", 2, 5), "a bc\n  def");
        assert_eq!(wrap("a bc def", 2, usize::MAX), "a bc def");
        assert_eq!(
            wrap("nqn.2026-11.org.example:long short", 1, 8),
            "nqn.2026-11.org.example:long\n short"
        );
        assert_eq!(wrap("", 2, 5), "");
    }

    #[test]
    fn the_table_shows_the_floor() {
        let report = testing::with_floor(testing::report());
        insta::assert_snapshot!(render(&report));
    }

    #[test]
    fn a_table_of_one_side_has_no_percentages() {
        let mut report = testing::report();
        report.remote = None;
        report.interrupted = true;
        report.patterns.truncate(2);
        for pattern in &mut report.patterns {
            pattern.remote = None;
            pattern.remote_percent_of_local = None;
        }
        insta::assert_snapshot!(render(&report));
    }

    #[test]
    fn the_largest_numbers_fit_into_the_table() {
        let mut report = testing::report();
        for pattern in &mut report.patterns {
            let huge = testing::figures(99_999_999.0, 4096, 3e10, Some((99.9, Some(99.9))));
            pattern.remote_percent_of_local = Percent::new(&huge, &huge);
            (pattern.local, pattern.remote) = (Some(huge.clone()), Some(huge));
            pattern.errors.clear();
        }
        let text = render(&report);
        assert!(widest(&text) <= 180, "{}", widest(&text));
    }
}
