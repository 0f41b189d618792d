//! A report as one self-contained web page, without external scripts, fonts, images or styles.
//!
//! Charts are SVG with descriptions for screen readers. Tables beside them have the same numbers.
//! The page follows the light or dark mode of the system. Every text of the report is escaped.

pub mod chart;
mod escape;
mod tables;

use std::fmt::Write;

use crate::format;
use crate::pattern::size_words;
use crate::progress::SideName;
use crate::result::{Figures, PatternReport, Percent, Report};

use chart::{Bar, Chart, Group};
pub use escape::Escaped;
pub use tables::by_keys;

/// The largest block size, in bytes, for which the page uses I/Os per second. For larger blocks,
/// the page uses MiB per second.
pub(crate) const IOPS_BLOCK_LIMIT_BYTES: u32 = 16 << 10;
/// The style sheet of all pages.
pub const STYLE: &str = include_str!("html/style.css");

/// Renders the whole page.
pub fn render(report: &Report) -> String {
    let mut page = String::new();
    let title = match (&report.local, &report.remote) {
        (Some(_), Some(_)) => "Remote against local storage",
        (None, Some(_)) => "Remote storage",
        _ => "Local storage",
    };
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · farblock</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header>\n<h1>{title}</h1>\n"
    );
    if let Some(lead) = lead(report) {
        let _ = writeln!(page, "<p class=\"lead\">{}</p>", Escaped(&lead));
    }
    let _ = writeln!(
        page,
        "<p class=\"meta\">{} · {} · {}</p>\n</header>",
        Escaped(&report.date),
        Escaped(&report.machine.cpu_model),
        Escaped(&format::method(&report.method)),
    );
    alert(&mut page, report);
    cards(&mut page, report);
    for metric in [&THROUGHPUT, &LATENCY, &CPU] {
        section(&mut page, report, metric);
    }
    tables::all_figures(&mut page, report);
    method(&mut page, report);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// A sentence with the result, if both sides were measured.
fn lead(report: &Report) -> Option<String> {
    let of_local = |pattern: &PatternReport| pattern.remote_percent_of_local;
    let range = |base: &dyn Fn(&PatternReport) -> Option<Percent>, of: fn(&Percent) -> f64| {
        let all = || report.patterns.iter().filter_map(base).map(|percent| of(&percent));
        let low = all().reduce(f64::min)?;
        let (low, high) = (format::whole(low), format::whole(all().fold(low, f64::max)));
        Some(if low == high { format!("{low} %") } else { format!("{low} to {high} %") })
    };
    let patterns = match report.patterns.iter().filter_map(of_local).count() {
        0 => return None,
        1 => "In one pattern".to_owned(),
        count => format!("Over {count} patterns"),
    };
    let floor = range(&|p| p.remote_percent_of_floor, |p| p.iops);
    Some(format!(
        "{patterns} the remote disk reached {} of the local one’s I/Os per second, with {} of \
         its mean latency{}.",
        range(&of_local, |p| p.iops)?,
        range(&of_local, |p| p.mean_latency)?,
        floor
            .map(|floor| format!(", and {floor} of the floor’s (bare sockets)"))
            .unwrap_or_default(),
    ))
}

fn alert(page: &mut String, report: &Report) {
    if !report.has_errors() && !report.interrupted {
        return;
    }
    page.push_str("<div class=\"alert\" role=\"note\"><strong>");
    page.push_str(if report.has_errors() { "Some results are missing" } else { "Interrupted" });
    page.push_str("</strong><ul>\n");
    for pattern in &report.patterns {
        for failure in &pattern.errors {
            let _ = writeln!(
                page,
                "<li>{}, {}, run {}: {}</li>",
                Escaped(&pattern.pattern.name),
                failure.side.name(),
                failure.run + 1,
                Escaped(&failure.message),
            );
        }
    }
    if report.interrupted {
        page.push_str(
            "<li>The benchmark was cancelled: later runs and patterns are missing.</li>\n",
        );
    }
    page.push_str("</ul></div>\n");
}

/// Writes the remote side as a percentage of the local side, in large type.
fn cards(page: &mut String, report: &Report) {
    if report.patterns.iter().all(|pattern| pattern.remote_percent_of_local.is_none()) {
        return;
    }
    page.push_str("<ul class=\"cards\" aria-label=\"Remote as a percentage of local\">\n");
    for pattern in &report.patterns {
        let name = Escaped(&pattern.pattern.name);
        let _ = write!(page, "<li class=\"card\"><p class=\"name\">{name}</p>");
        let _ = match pattern.remote_percent_of_local {
            Some(percent) => write!(
                page,
                "<p class=\"big {}\">{}<small> %</small></p>\
                 <p class=\"hint\">of local IOPS<br>latency {} %{}</p>",
                grade(percent.iops),
                format::percent(percent.iops),
                format::percent(percent.mean_latency),
                pattern.remote_percent_of_floor.map_or_else(String::new, |floor| format!(
                    "<br>{} % of the floor’s IOPS",
                    format::percent(floor.iops)
                )),
            ),
            None => write!(
                page,
                "<p class=\"big\">{}</p><p class=\"hint\">not measured</p>",
                format::NOTHING
            ),
        };
        page.push_str("</li>\n");
    }
    page.push_str("</ul>\n");
}

/// The style class that colors a percentage of the local I/Os per second.
fn grade(percent: f64) -> &'static str {
    match percent {
        p if p >= 90.0 => "good",
        p if p >= 60.0 => "fair",
        _ => "bad",
    }
}

/// A metric, which the page shows as a row of charts and a table.
struct Metric {
    id: &'static str,
    title: &'static str,
    hint: &'static str,
    /// The unit for patterns with the given block size.
    unit: fn(u32) -> &'static str,
    /// The parts of the bar of one side: style classes and values. Empty if the side was not
    /// measured.
    parts: fn(SideName, &PatternReport, &Figures) -> Vec<(&'static str, f64)>,
    /// Formats a value.
    show: fn(f64) -> String,
    /// The text after the value at the bar of one side.
    more: fn(SideName, &PatternReport, &Figures) -> Option<String>,
    percent: fn(&Percent) -> Option<f64>,
    /// Whether host and target have different colors.
    by_party: bool,
}

const THROUGHPUT: Metric = Metric {
    id: "throughput",
    title: "IOPS and throughput",
    hint: "More is better. Small blocks in I/Os per second, large ones in MiB per second.",
    unit: throughput_unit,
    parts: |side, pattern, figures| {
        let small = pattern.pattern.block_size_bytes <= IOPS_BLOCK_LIMIT_BYTES;
        vec![(side.name(), if small { figures.iops } else { figures.mib_per_second })]
    },
    show: format::iops,
    more: |side, pattern, _| percent_of_local(side, pattern, |percent| percent.iops),
    percent: |percent| Some(percent.throughput),
    by_party: false,
};

const LATENCY: Metric = Metric {
    id: "latency",
    title: "Mean latency",
    hint: "Less is better. From submission to completion, with all of the queue’s depth \
           in flight.",
    unit: |_| "µs",
    parts: |side, _, figures| vec![(side.name(), figures.latency.mean_ns / 1000.0)],
    show: format::tenths,
    more: |side, pattern, _| percent_of_local(side, pattern, |percent| percent.mean_latency),
    percent: |percent| Some(percent.mean_latency),
    by_party: false,
};

const CPU: Metric = Metric {
    id: "cpu",
    title: "Processor time per I/O",
    hint: "Less is better. The host’s part includes the load generator.",
    unit: |_| "µs of one core",
    parts: |side, _, figures| {
        let parts = [(side.name(), figures.host_cpu), ("target", figures.target_cpu)];
        parts.into_iter().filter_map(|(class, cpu)| Some((class, cpu?.us_per_io))).collect()
    },
    show: format::fine,
    more: |_, _, figures| {
        let (host, target) = (figures.host_cpu?, figures.target_cpu?);
        Some(format!("{} + {}", format::fine(host.us_per_io), format::fine(target.us_per_io)))
    },
    percent: |percent| percent.cpu_per_io,
    by_party: true,
};

fn throughput_unit(block_size_bytes: u32) -> &'static str {
    if block_size_bytes <= IOPS_BLOCK_LIMIT_BYTES { "IOPS" } else { "MiB/s" }
}

fn percent_of_local(
    side: SideName,
    pattern: &PatternReport,
    of: fn(&Percent) -> f64,
) -> Option<String> {
    let percent = pattern.remote_percent_of_local.filter(|_| side == SideName::Remote)?;
    Some(format!("{} %", format::percent(of(&percent))))
}

fn section(page: &mut String, report: &Report, metric: &Metric) {
    let measured = |pattern: &PatternReport| {
        report.figures(pattern).any(|(side, figures)| {
            figures.is_some_and(|f| !(metric.parts)(side, pattern, f).is_empty())
        })
    };
    if !report.patterns.iter().any(measured) {
        return;
    }
    let _ = write!(
        page,
        "<section>\n<h2>{}</h2>\n<p class=\"hint\">{}</p>\n",
        metric.title, metric.hint
    );
    legend(page, report, metric);
    page.push_str("<div class=\"charts\">\n");
    let mut sizes: Vec<u32> =
        report.patterns.iter().map(|pattern| pattern.pattern.block_size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let title = format!("{} blocks, {}", size_words(size), (metric.unit)(size));
        let groups =
            report.patterns.iter().filter(|pattern| pattern.pattern.block_size_bytes == size);
        let chart = Chart {
            id: format!("{}-{size}", metric.id),
            title: format!("{}: {title}", metric.title),
            tick: &tick,
            groups: groups.map(|pattern| group(report, pattern, metric)).collect(),
        };
        let _ = write!(
            page,
            "<figure class=\"panel\"><h3>{}</h3>\n{}</figure>\n",
            Escaped(&title),
            chart.render()
        );
    }
    page.push_str("</div>\n");
    tables::metric(page, report, metric);
    page.push_str("</section>\n");
}

fn legend(page: &mut String, report: &Report, metric: &Metric) {
    let mut entries = Vec::new();
    let host = if metric.by_party { ", host" } else { "" };
    for (side, _) in report.sides() {
        entries.push((side.name(), format!("{}{host}", side.name())));
    }
    let mut all = report.all_figures();
    if metric.by_party && all.any(|figures| figures.target_cpu.is_some()) {
        entries.push(("target", "target".to_owned()));
    }
    page.push_str("<ul class=\"legend\">");
    for (class, name) in entries {
        let _ = write!(page, "<li><i class=\"{class}\"></i>{name}</li>");
    }
    page.push_str("</ul>\n");
}

fn group(report: &Report, pattern: &PatternReport, metric: &Metric) -> Group {
    let bars = report.figures(pattern).map(|(side, figures)| {
        let parts = figures.map(|f| (metric.parts)(side, pattern, f)).unwrap_or_default();
        let value = if parts.is_empty() {
            format::NOTHING.to_owned()
        } else {
            let total = (metric.show)(parts.iter().map(|(_, value)| value).sum());
            match figures.and_then(|f| (metric.more)(side, pattern, f)) {
                Some(more) => format!("{total} · {more}"),
                None => total,
            }
        };
        Bar { name: side.name(), parts, value }
    });
    let name = &pattern.pattern.name;
    let label = format!("{name}, {}", format::jobs_and_depth(&pattern.pattern));
    Group { label, bars: bars.collect() }
}

/// Formats a number on an axis: `200k`, `1.5M`, `0.05`.
#[must_use]
pub fn tick(value: f64) -> String {
    let (scaled, suffix) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    // Remove the rounding error of adding up steps.
    format!("{}{suffix}", (scaled * 1e4).round() / 1e4)
}

fn method(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>Method and machine</h2>\n<dl>\n");
    let mut entry = |name: &str, text: &str| {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", Escaped(text));
    };
    for (side, description) in report.sides() {
        let name = match side {
            SideName::Local => "Local",
            SideName::Remote => "Remote",
            SideName::Floor => "Floor",
        };
        entry(name, description);
    }
    entry("Machine", &format::machine(report));
    entry("Measured", &format::method(&report.method));
    entry("Date", &report.date);
    entry("Tool", &report.tool);
    let command = Escaped(&report.command_line);
    let _ = writeln!(page, "<dt>Command</dt><dd><code>{command}</code></dd>\n</dl>");
    let remarks = report.patterns.iter().flat_map(|pattern| {
        let limit = pattern.bottleneck(report.machine.cores);
        let limit = limit.map(|limit| format!("What limited the remote side: {limit}"));
        let notes = [pattern.pattern.note.clone(), pattern.floor_doubt().map(str::to_owned), limit];
        notes.into_iter().flatten().map(|note| format!("{}: {note}.", pattern.pattern.name))
    });
    page.push_str("<ul class=\"notes\">\n");
    for note in report.method.notes.iter().cloned().chain(remarks) {
        let _ = writeln!(page, "<li>{}</li>", Escaped(&note));
    }
    page.push_str("</ul>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_page_loads_no_other_resources() {
        let page = render(&testing::report());
        for outside in ["http:", "https:", "src=", "href=", "@import", "url(", "<script"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("prefers-color-scheme: dark"));
    }

    #[test]
    fn a_single_chart_does_not_fill_the_whole_width() {
        let mut report = testing::report();
        report.patterns.truncate(1);
        let page = render(&report);
        let rule = page
            .lines()
            .find(|line| line.starts_with("svg {"))
            .expect("the style sheet has the rule");
        assert!(rule.contains("max-width: 440px"), "{rule}");
    }

    #[test]
    fn the_page_has_charts_and_tables() {
        let page = render(&testing::report());
        assert_eq!(
            page.matches("<svg").count(),
            9,
            "the number of charts: three metrics, three block sizes"
        );
        assert_eq!(page.matches("<table").count(), 4);
        assert_eq!(
            page.matches(r#"tabindex="0"><table"#).count(),
            4,
            "a table cannot be scrolled with the keyboard"
        );
        assert_eq!(page.matches("<title id=").count(), 9);
        assert_eq!(page.matches("<desc id=").count(), 9);
        let expected = "Over 5 patterns the remote disk reached 84 to 101 % of the local one’s";
        assert!(page.contains(expected));
    }

    #[test]
    fn the_page_shows_the_floor() {
        let page = render(&testing::with_floor(testing::report()));
        assert_eq!(
            page.matches("<i class=\"floor\">").count(),
            3,
            "the number of legends with the floor"
        );
        assert_eq!(page.matches("<th scope=\"col\">remote, % of floor</th>").count(), 3);
        assert!(page.contains("<rect class=\"floor\""), "the floor has no bar");
        assert!(page.contains("<dt>Floor</dt><dd>bare sockets"), "{page}");
        assert!(page.contains("<br>80.0 % of the floor’s IOPS"), "{page}");
        assert!(page.contains("and 80 % of the floor’s (bare sockets)."), "{page}");
        assert!(
            !render(&testing::report()).contains("floor</"),
            "the page shows a floor without figures"
        );
    }

    #[test]
    fn all_html_tags_are_closed() {
        let page = render(&testing::with_floor(testing::report()));
        for tag in ["section", "table", "tr", "td", "th", "ul", "li", "svg", "text", "figure", "dl"]
        {
            let opened = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn every_text_is_escaped() {
        let evil = "<script>'\"&".to_owned();
        let mut report = testing::report();
        report.tool = evil.clone();
        report.date = evil.clone();
        report.command_line = evil.clone();
        report.engine = evil.clone();
        report.machine.cpu_model = evil.clone();
        report.machine.kernel = evil.clone();
        report.machine.architecture = evil.clone();
        report.method.notes = vec![evil.clone()];
        report.local = Some(evil.clone());
        report.remote = Some(evil.clone());
        report.floor = Some(evil.clone());
        for pattern in &mut report.patterns {
            pattern.pattern.name = evil.clone();
            pattern.pattern.note = Some(evil.clone());
            pattern.errors.iter_mut().for_each(|failure| failure.message = evil.clone());
        }
        let page = render(&report);
        assert!(!page.contains("<script"));
        assert!(page.contains("&lt;script&gt;&#39;&quot;&amp;"));
    }

    #[test]
    fn one_side_alone_is_not_compared() {
        let mut report = testing::report();
        report.local = None;
        for pattern in &mut report.patterns {
            pattern.local = None;
            pattern.remote_percent_of_local = None;
        }
        let page = render(&report);
        assert!(page.contains("<h1>Remote storage</h1>"));
        assert!(!page.contains("% of local") && !page.contains("class=\"cards\""));
        assert!(!page.contains("<i class=\"local\">"));
    }

    #[test]
    fn axis_labels_are_short() {
        let shown = [0.0, 0.05, 2500.0, 20_000.0, 1_500_000.0, 0.15000000000000002].map(tick);
        assert_eq!(shown, ["0", "0.05", "2500", "20k", "1.5M", "0.15"]);
    }

    /// Writes a page for a visual check, on request.
    #[test]
    fn write_a_page_for_a_visual_check() {
        if let Some(path) = std::env::var_os("FARBLOCK_BENCH_PAGE") {
            std::fs::write(path, render(&testing::report())).expect("the file is written");
        }
    }
}
