//! `farblock top --fleet`: the activity of a fleet, live.

use crate::error::{Failure, Result};
use crate::output::{self, spelled};
use farblock_admin_api::{FleetHost, FleetStatus};
use farblock_admin_client::{Client, ClientError};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(500);

/// Shows the running fleet until it ends or the user quits. Fails if no fleet or several fleets
/// run.
pub(super) fn run(fleets: &[PathBuf]) -> Result<()> {
    let [path] = fleets else {
        return Err(Failure::run(match fleets {
            [] => "no fleet of this user runs here: start one with farblock fleet run PLAN",
            _ => "several fleets run here: farblock ui shows all of them",
        }));
    };
    let client = Client::new(path);
    let Some(mut fleet) = ask(&client)? else { return Ok(()) };
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "top needs a terminal: without one, read the output of farblock fleet run",
        ));
    }
    let mut terminal = ratatui::try_init().map_err(Failure::run)?;
    let ended: Result<bool> = (|| {
        loop {
            terminal.draw(|frame| draw(frame, &fleet)).map_err(Failure::run)?;
            if event::poll(EVERY).map_err(Failure::run)? {
                match event::read().map_err(Failure::run)? {
                    Event::Key(key) if key.kind != KeyEventKind::Release && is_end(key) => {
                        return Ok(false);
                    }
                    _ => {}
                }
            }
            match ask(&client)? {
                Some(now) => fleet = now,
                None => return Ok(true),
            }
        }
    })();
    ratatui::restore();
    match ended? {
        true => output::print(&format!("the fleet {} has ended\n", fleet.plan)),
        false => Ok(()),
    }
}

/// Fetches the fleet's status; `None` if the fleet has ended.
fn ask(client: &Client) -> Result<Option<FleetStatus>> {
    match client.ask("GET", "/v1/fleet", None, None) {
        Ok(answer) => serde_json::from_str(&answer.body)
            .map(Some)
            .map_err(|_| Failure::run("the fleet has a different version of farblock")),
        // The fleet's controller may exit while it sends an answer.
        Err(ClientError::Connect(..) | ClientError::Talk(..)) => Ok(None),
    }
}

fn is_end(key: KeyEvent) -> bool {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
        || (is_control && key.code == KeyCode::Char('c'))
}

fn draw(frame: &mut Frame<'_>, fleet: &FleetStatus) {
    let [head, body, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    let sum: f64 = fleet.hosts.iter().map(|host| host.iops).sum();
    let iops = farblock_bench::group(&format!("{sum:.0}"));
    let words = match &fleet.failed {
        Some(why) => format!("fleet {}: failed: {why}", fleet.plan),
        None if fleet.part.is_empty() => {
            format!("fleet {}: {iops} IOPS, {}", fleet.plan, fleet.phase)
        }
        None => format!("fleet {}: {iops} IOPS, {}: {}", fleet.plan, fleet.phase, fleet.part),
    };
    frame.render_widget(Line::from(words), head);
    let right = |text: &str| Cell::from(Line::from(text.to_owned()).right_aligned());
    let titles = ["IOPS", "LATENCY", "FAILED", "LOST", "PATHS"].map(right);
    let header = Row::new([Cell::from("HOSTS"), Cell::from("STATE")].into_iter().chain(titles));
    let style = Style::new().add_modifier(Modifier::REVERSED);
    let line = |host: &FleetHost| {
        let latency = host.latency_us.map_or("-".to_owned(), |us| format!("{us:.0} µs"));
        let paths = host.paths.map_or("-".to_owned(), |[live, all]| format!("{live}/{all}"));
        let iops = farblock_bench::group(&format!("{:.0}", host.iops));
        let figures = [iops, latency, host.failed.to_string(), host.lost.to_string(), paths];
        let names = [Cell::from(host.name.clone()), Cell::from(state(host))];
        Row::new(names.into_iter().chain(figures.iter().map(|text| right(&spelled(text)))))
    };
    let widths = [Constraint::Min(24), Constraint::Length(14)]
        .into_iter()
        .chain([Constraint::Length(12); 2])
        .chain([Constraint::Length(8); 3]);
    let table = Table::new(fleet.hosts.iter().map(line), widths).header(header.style(style));
    frame.render_widget(table, body);
    frame.render_widget(Line::from("q quit"), keys);
}

fn state(host: &FleetHost) -> &'static str {
    match host {
        FleetHost { lost: 1.., .. } => "has lost data",
        FleetHost { is_done: true, .. } => "done",
        _ if host.iops > 0.0 => "runs",
        _ => "waits",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    #[test]
    fn top_shows_one_line_for_each_fleet_agent() {
        let one = FleetHost {
            name: "hosts on node 1".into(),
            iops: 12_345.6,
            latency_us: Some(81.2),
            ..FleetHost::default()
        };
        let other = FleetHost {
            name: "hosts on node 2".into(),
            lost: 2,
            paths: Some([1, 4]),
            ..FleetHost::default()
        };
        let mut fleet = FleetStatus {
            plan: "hci-12".into(),
            phase: "4k random read".into(),
            part: "run 1 of 3".into(),
            hosts: vec![one, other],
            failed: None,
        };
        let screen = |fleet: &FleetStatus| {
            let mut terminal =
                Terminal::new(TestBackend::new(100, 6)).expect("the test terminal is created");
            terminal.draw(|frame| draw(frame, fleet)).expect("the screen is drawn");
            let buffer = terminal.backend().buffer();
            let row = |y: u16| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>();
            (0..6).map(row).collect::<Vec<_>>()
        };
        let lines = screen(&fleet);
        assert!(
            lines[0].starts_with("fleet hci-12: 12,346 IOPS, 4k random read: run 1"),
            "{lines:#?}"
        );
        assert!(lines[2].contains("runs") && lines[2].contains("81 µs"), "{lines:#?}");
        assert!(lines[3].contains("has lost data") && lines[3].contains("1/4"), "{lines:#?}");
        fleet.failed = Some("hosts on node 2: it is gone".into());
        assert!(screen(&fleet)[0].contains("failed: hosts on node 2: it is gone"));
    }
}
