//! Draws the README's picture: the six patterns, remote compared with local, from `farblock bench
//! --json`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use farblock_bench::{PatternReport, Report};

/// Sizes in the picture's own units.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 150.0;
/// Length of 100 percent.
const WHOLE: f64 = 420.0;
const TOP: f64 = 64.0;
const ROW: f64 = 34.0;
const BAR: f64 = 20.0;
/// Maximum length of a bar, relative to 100 percent.
const MOST: f64 = 1.15;

/// Draw the six patterns, remote as a percentage of local, from reports of `farblock bench --json`
#[derive(Args)]
pub(crate) struct Options {
    /// Reports of several runs; the medians are drawn
    #[arg(required = true)]
    reports: Vec<PathBuf>,
    /// File for the picture
    #[arg(long, value_name = "FILE", default_value = "docs/remote-and-local.svg")]
    svg: PathBuf,
}

/// One pattern's medians.
#[derive(Debug, PartialEq)]
struct Bar {
    name: String,
    local_iops: f64,
    remote_iops: f64,
    percent: f64,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let read = |path: &PathBuf| {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Report::from_json(&text).map_err(|error| format!("{}: {error}", path.display()))
    };
    let reports: Vec<Report> = options.reports.iter().map(read).collect::<Result<_, _>>()?;
    let bars = bars(&reports);
    if bars.is_empty() {
        return Err("no report has a pattern that was measured on both sides".to_owned());
    }
    let first = &reports[0];
    let (machine, date) = (&first.machine, first.date.split('T').next().unwrap_or_default());
    let where_from = format!(
        "{}, {} processors, {}, {date}: medians of {} runs (of ratios; of each side), a file, \
         loopback",
        machine.cpu_model,
        machine.cores,
        machine.kernel,
        reports.len()
    );
    std::fs::write(&options.svg, draw(&bars, &where_from))
        .map_err(|error| format!("cannot write {}: {error}", options.svg.display()))
}

/// Each pattern once, in the order of the first report.
fn bars(reports: &[Report]) -> Vec<Bar> {
    let Some(first) = reports.first() else { return Vec::new() };
    let of = |name: &str| -> Option<Bar> {
        let runs: Vec<[f64; 3]> = reports
            .iter()
            .filter_map(|report| report.patterns.iter().find(|run| run.pattern.name == name))
            .filter_map(figures)
            .collect();
        let of = |field: usize| median(runs.iter().map(|run| run[field]).collect());
        let (local_iops, remote_iops, percent) = (of(0)?, of(1)?, of(2)?);
        Some(Bar { name: name.to_owned(), local_iops, remote_iops, percent })
    };
    first.patterns.iter().filter_map(|pattern| of(&pattern.pattern.name)).collect()
}

fn figures(run: &PatternReport) -> Option<[f64; 3]> {
    let (local, remote) = (run.local.as_ref()?.iops, run.remote.as_ref()?.iops);
    Some([local, remote, run.remote_percent_of_local?.iops])
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[half]),
        _ => Some(f64::midpoint(values[half - 1], values[half])),
    }
}

/// Draws with colours for a white background, which the picture includes.
fn draw(bars: &[Bar], where_from: &str) -> String {
    let bottom = TOP + ROW * bars.len() as f64;
    let height = bottom + 44.0;
    let whole = LEFT + WHOLE;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"17\" fill=\"#1a202c\">A remote disk beside the same \
         disk locally: I/Os per second</text>\n",
        escaped(&words(bars)),
    );
    for (index, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let length = (bar.percent / 100.0).min(MOST) * WHOLE;
        let (middle, name) = (y + BAR * 0.75, escaped(&bar.name));
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{middle:.0}\" text-anchor=\"end\" fill=\"#1a202c\">{name}</text>\n\
             <rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{WHOLE}\" height=\"{BAR}\" \
             fill=\"#e2e8f0\"/>\n\
             <rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"{BAR}\" \
             fill=\"#2b6cb0\"/>\n\
             <text x=\"{}\" y=\"{middle:.0}\" fill=\"#1a202c\">{:.0} %  ({} of {})</text>\n",
            LEFT - 10.0,
            LEFT + length.max(WHOLE) + 10.0,
            bar.percent,
            thousands(bar.remote_iops),
            thousands(bar.local_iops),
        );
    }
    let _ = write!(
        svg,
        "<line x1=\"{whole}\" y1=\"{}\" x2=\"{whole}\" y2=\"{bottom:.0}\" stroke=\"#1a202c\" \
         stroke-dasharray=\"3 3\"/>\n\
         <text x=\"{whole}\" y=\"{}\" text-anchor=\"middle\" font-size=\"12\" \
         fill=\"#4a5568\">local</text>\n\
         <text x=\"20\" y=\"{:.0}\" font-size=\"11\" fill=\"#4a5568\">{}</text>\n</svg>\n",
        TOP - 6.0,
        TOP - 10.0,
        bottom + 24.0,
        escaped(where_from),
    );
    svg
}

/// A text alternative to the picture.
fn words(bars: &[Bar]) -> String {
    let each = bars.iter().map(|bar| format!("{} {:.0} %", bar.name, bar.percent));
    format!("Remote as a percentage of local: {}", each.collect::<Vec<_>>().join(", "))
}

fn thousands(iops: f64) -> String {
    if iops < 10_000.0 { format!("{iops:.0}") } else { format!("{:.1}k", iops / 1e3) }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_no_longer_than_there_is_room() {
        let bar = |percent| Bar {
            name: "4k <read>".to_owned(),
            local_iops: 50_000.0,
            remote_iops: 500.0 * percent,
            percent,
        };
        let svg = draw(&[bar(50.0), bar(900.0)], "here & now");
        assert!(svg.contains("width=\"210.0\"") && svg.contains("width=\"483.0\""), "{svg}");
        assert!(svg.contains("50 %  (25.0k of 50.0k)") && svg.contains("4k &lt;read&gt;"));
        assert!(svg.contains("here &amp; now") && LEFT + WHOLE * MOST < WIDTH);
    }

    #[test]
    fn nothing_measured_draws_nothing() {
        assert_eq!(bars(&[]), []);
        assert_eq!(median(vec![4.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0]), Some(2.5));
    }
}
