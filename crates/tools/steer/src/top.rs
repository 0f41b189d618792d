//! `farblock top`: the activity of a running target, live.

use super::args::TopArgs;
use super::rates::{COLUMNS, Row, View, rows};
use super::{ask_stats, chosen};
use crate::error::{Failure, Result};
use crate::output::spelled;
use crate::signals::Stop;
use farblock_admin_api::Stats;
use farblock_admin_api::places;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as TableRow, Table};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
const NAME_COLUMNS: u16 = 20;
/// The width of a figure, without the space that separates it from the previous column.
const FIGURE_COLUMNS: u16 = 12;

fn fitting_width(figures: usize) -> u16 {
    u16::try_from(figures).unwrap_or(u16::MAX).saturating_mul(FIGURE_COLUMNS + 1)
}

/// Shortens a long name. Keeps a leading number and the end of the name, where the names of one
/// target differ. `..` replaces the characters between them.
fn its_end(name: &str, columns: usize) -> String {
    let over = name.chars().count().saturating_sub(columns);
    if over == 0 {
        return name.to_owned();
    }
    let number = |(number, _): &(&str, &str)| number.bytes().all(|byte| byte.is_ascii_digit());
    match name.split_once(' ').filter(number) {
        Some((number, rest)) => {
            format!("{number} ..{}", rest.chars().skip(over + 2).collect::<String>())
        }
        None => format!("..{}", name.chars().skip(over + 2).collect::<String>()),
    }
}

/// The selected view, and the two samples of the counters that it compares.
struct Shown {
    view: View,
    /// The column to sort by, largest value first; `None` sorts by name.
    sorted_by: Option<usize>,
    now: Stats,
    before: Stats,
}

impl Shown {
    fn new(stats: Stats) -> Self {
        Self { view: View::Namespaces, sorted_by: Some(0), before: stats.clone(), now: stats }
    }

    fn look(&mut self, stats: Stats) {
        self.before = std::mem::replace(&mut self.now, stats);
    }

    /// Handles a key. Returns false to quit.
    fn press(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if is_control => return false,
            KeyCode::Char('c') => self.view = View::Cores,
            KeyCode::Char('n') => self.view = View::Namespaces,
            KeyCode::Char('h') => self.view = View::Hosts,
            KeyCode::Right => {
                self.sorted_by = match self.sorted_by {
                    None => Some(0),
                    Some(column) => (column + 1 < COLUMNS.len()).then_some(column + 1),
                };
            }
            KeyCode::Left => {
                self.sorted_by = match self.sorted_by {
                    None => Some(COLUMNS.len() - 1),
                    Some(column) => column.checked_sub(1),
                };
            }
            _ => {}
        }
        true
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows = rows(self.view, &self.now, &self.before);
        if let Some(column) = self.sorted_by {
            let figure = |row: &Row| row.figures[column].unwrap_or(-1.0);
            rows.sort_by(|one, other| figure(other).total_cmp(&figure(one)));
        }
        rows
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [head, body, keys] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
                .areas(frame.area());
        let connections = &self.now.connections;
        let refused: u64 = connections.refused.values().sum();
        frame.render_widget(
            Line::from(format!(
                "farblock: {} connections, {refused} refused since it started",
                connections.open
            )),
            head,
        );
        frame.render_widget(self.table(body.width), body);
        let help = "n namespaces  h hosts  c cores  ← → sort  q quit";
        frame.render_widget(Line::from(spelled(help)), keys);
    }

    /// Builds a table with as many columns as fit beside the name.
    fn table(&self, width: u16) -> Table<'static> {
        let fitting = width.saturating_sub(NAME_COLUMNS) / (FIGURE_COLUMNS + 1);
        let count = usize::from(fitting).clamp(1, COLUMNS.len());
        // Keep the sorted column visible.
        let first = self.sorted_by.map_or(0, |column| (column + 1).saturating_sub(count));
        let name_width = width.saturating_sub(fitting_width(count));
        let what = match self.view {
            View::Cores => "CORE",
            View::Namespaces => "NAMESPACE",
            View::Hosts => "HOST",
        };
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        let title = |(column, name): (usize, &&str)| {
            let mark = if self.sorted_by == Some(column) { "▼" } else { "" };
            right(spelled(&format!("{mark}{name}")).into_owned())
        };
        let titles = COLUMNS.iter().enumerate().skip(first).take(count).map(title);
        let head = TableRow::new([Cell::from(what)].into_iter().chain(titles));
        let line = |row: Row| {
            let cells = (first..first + count).map(|column| right(row.cell(column)));
            let cells: Vec<_> = cells.collect();
            let name = its_end(&row.name, usize::from(name_width));
            TableRow::new([Cell::from(name)].into_iter().chain(cells))
        };
        let figures = Constraint::Length(FIGURE_COLUMNS);
        let widths = [Constraint::Min(NAME_COLUMNS)].into_iter().chain(vec![figures; count]);
        let style = Style::new().add_modifier(Modifier::REVERSED);
        Table::new(self.rows().into_iter().map(line), widths).header(head.style(style))
    }
}

/// Runs `farblock top` until the user quits; with `--once`, prints the tables of one second.
pub fn run(args: &TopArgs) -> Result<()> {
    let which = &args.which;
    let is_named = which.control.is_some() || which.remote.api.is_some();
    let fleets = if is_named { Vec::new() } else { places::fleets() };
    if args.fleet || (!fleets.is_empty() && places::living().is_none_or(|it| it.is_empty())) {
        return super::top_fleet::run(&fleets);
    }
    let client = chosen(which)?;
    if args.once {
        let before = ask_stats(&client)?;
        std::thread::sleep(EVERY);
        let now = ask_stats(&client)?;
        let views = [View::Namespaces, View::Hosts, View::Cores];
        let tables = views.map(|view| super::shown::rates(view, &now, &before));
        return crate::output::print(&tables.join("\n"));
    }
    let mut shown = Shown::new(ask_stats(&client)?);
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal: without one, use farblock top --once, or /v1/stats",
        ));
    }
    // Install the signal handler before the terminal changes, so that a signal also restores the
    // terminal.
    let stop = Stop::install_with_hangup()?;
    let mut terminal = ratatui::try_init().map_err(Failure::run)?;
    let ended = (|| {
        let mut next = Instant::now() + EVERY;
        loop {
            if stop.requested() {
                return Err(Failure::Interrupted("a signal stopped top".to_owned()));
            }
            terminal.draw(|frame| shown.draw(frame)).map_err(Failure::run)?;
            let left = next.saturating_duration_since(Instant::now());
            if event::poll(left).map_err(Failure::run)? {
                match event::read().map_err(Failure::run)? {
                    Event::Key(key) if key.kind != KeyEventKind::Release && !shown.press(key) => {
                        return Ok(());
                    }
                    _ => {}
                }
            } else {
                shown.look(ask_stats(&client)?);
                next = Instant::now() + EVERY;
            }
        }
    })();
    ratatui::restore();
    ended
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::stats;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(shown: &Shown) -> Vec<String> {
        screen_of(shown, 140)
    }

    fn screen_of(shown: &Shown, width: u16) -> Vec<String> {
        let mut terminal =
            Terminal::new(TestBackend::new(width, 8)).expect("the test terminal is created");
        terminal.draw(|frame| shown.draw(frame)).expect("the screen is drawn");
        let buffer = terminal.backend().buffer();
        let row = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..8).map(|y| row(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn a_narrow_terminal_shows_whole_titles_and_the_ends_of_names() {
        let mut shown = Shown::new(stats(1000, 100));
        shown.look(stats(2000, 300));
        for (sorted_by, title) in [(0, "▼READ/s"), (3, "▼WRITE MiB/s"), (7, "▼BUSY %")] {
            shown.sorted_by = Some(sorted_by);
            let lines = screen_of(&shown, 80);
            assert!(lines[1].contains(title), "{lines:#?}");
            assert!(!lines[1].contains(" EAD") && !lines[1].contains(" ITE"), "{lines:#?}");
        }
        assert_eq!(its_end("12 nqn.2014-08.org.example:busy", 12), "12 ..le:busy");
        assert_eq!(its_end("nqn.2014-08.org.example:busy", 8), "..e:busy");
        assert_eq!(its_end("core 0", 8), "core 0");
    }

    fn press(shown: &mut Shown, code: KeyCode) -> bool {
        shown.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn top_sorts_by_the_busiest_row_and_keys_change_the_sort_column() {
        let mut shown = Shown::new(stats(1000, 100));
        shown.look(stats(2000, 300));
        let lines = screen(&shown);
        assert!(lines[0].contains("3 connections"), "{lines:#?}");
        assert!(lines[1].starts_with("NAMESPACE") && lines[1].contains("▼READ/s"), "{lines:#?}");
        assert!(lines[2].starts_with("2 nqn") && lines[2].contains("400"), "{lines:#?}");
        assert!(lines[3].starts_with("1 nqn") && lines[3].contains("200"), "{lines:#?}");
        assert!(press(&mut shown, KeyCode::Left));
        let by_name = screen(&shown);
        assert!(by_name[2].starts_with("1 nqn") && !by_name[1].contains('▼'), "{by_name:#?}");
        press(&mut shown, KeyCode::Char('h'));
        assert!(screen(&shown)[2].starts_with("nqn.2014-08.org.example:busy"));
        press(&mut shown, KeyCode::Char('c'));
        let cores = screen(&shown);
        assert!(cores[2].starts_with("core 0") && cores[2].ends_with("50.0"), "{cores:#?}");
        for _ in 0..=COLUMNS.len() {
            press(&mut shown, KeyCode::Right);
        }
        assert_eq!(shown.sorted_by, None);
        assert!(!press(&mut shown, KeyCode::Char('q')));
        assert!(!shown.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
