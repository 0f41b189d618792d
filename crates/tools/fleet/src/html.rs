//! A report as one self-contained page, with the charts and colors of the bench.

use crate::plan::IscsiTarget;
use crate::report::{ActionReport, IscsiReport, IscsiTotal, Report};
use crate::text::{self, Table};
use farblock_bench::html::chart::{Bar, Chart, Group};
use farblock_bench::html::{Escaped, STYLE, by_keys, tick};
use farblock_bench::{iops, tenths};
use std::fmt::Write;

/// Renders the whole page.
#[must_use]
pub fn render(report: &Report) -> String {
    let title = Escaped(&report.plan.name);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · farblock fleet</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <main>\n<header>\n<h1>{title}</h1>\n<p class=\"lead\">{}</p>\n</header>\n",
        Escaped(&report.plan.about)
    );
    alert(&mut page, report);
    if !report.actions.is_empty() {
        let by_iscsi = against(report);
        let mut legend =
            vec![("remote", if by_iscsi.is_empty() { "the fleet" } else { "NVMe/TCP" })];
        if report.actions.iter().any(|action| action.alone_iops.is_some()) {
            legend.push(("local", "the sum of all drives, each measured alone"));
        }
        legend.extend(&by_iscsi);
        section(&mut page, "I/Os per second", &legend, &chart(report, "iops", rate));
        let mut legend = vec![("remote", "mean"), ("floor", "99th percentile")];
        if !by_iscsi.is_empty() {
            legend = vec![("remote", "NVMe/TCP, mean")];
            legend.extend(&by_iscsi);
        }
        section(&mut page, "Latency in µs", &legend, &chart(report, "latency", latency));
    }
    if !report.faults.is_empty() {
        section(&mut page, "Longest pause in seconds", &[("target", "pause")], &pauses(report));
    }
    for (title, table) in text::tables(report, usize::MAX) {
        self::table(&mut page, title, &table);
    }
    method(&mut page, report);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

fn alert(page: &mut String, report: &Report) {
    let wrong = report.verified.as_ref().and_then(|verified| verified.wrong.as_deref());
    if report.has_errors() {
        let wrong = Escaped(wrong.unwrap_or("operations failed"));
        let _ = writeln!(
            page,
            "<div class=\"alert\" role=\"note\"><strong>Something failed or was lost</strong>\
             <ul><li>{wrong}</li></ul></div>"
        );
    }
}

/// The color of each target that is compared with NVMe.
fn against(report: &Report) -> Vec<(&'static str, &'static str)> {
    let targets = report.actions.iter().flat_map(|action| &action.iscsi).map(|it| it.target);
    let mut colours: Vec<_> = targets.map(colour).collect();
    colours.sort_unstable();
    colours.dedup();
    colours
}

fn colour(target: IscsiTarget) -> (&'static str, &'static str) {
    match target {
        IscsiTarget::Farblock => ("floor", "iSCSI, farblock's target"),
        IscsiTarget::Tgt => ("target", "iSCSI, tgt"),
    }
}

/// The bars of the iSCSI targets.
fn iscsi(action: &ActionReport, value: fn(&IscsiTotal) -> (f64, String)) -> Vec<Bar> {
    let bar = |report: &IscsiReport| {
        let ((class, name), (value, words)) = (colour(report.target), value(&report.total));
        bar(name, class, value, words)
    };
    action.iscsi.iter().map(bar).collect()
}

type Bars = fn(&ActionReport) -> Vec<Bar>;

fn bar(name: &'static str, class: &'static str, value: f64, words: String) -> Bar {
    Bar { name, parts: vec![(class, value)], value: words }
}

fn rate(action: &ActionReport) -> Vec<Bar> {
    let now = action.total.iops;
    let percent = action.percent_of_theoretical;
    let percent = percent.map(|percent| format!(" · {} %", tenths(percent))).unwrap_or_default();
    let mut bars = vec![bar("fleet", "remote", now, format!("{}{percent}", iops(now)))];
    bars.extend(action.alone_iops.map(|alone| bar("drives alone", "local", alone, iops(alone))));
    bars.extend(self::iscsi(action, |total| (total.iops, iops(total.iops))));
    bars
}

fn latency(action: &ActionReport) -> Vec<Bar> {
    let latency = &action.total.latency;
    let (mean, p99) = (latency.mean_ns / 1e3, latency.p99_ns as f64 / 1e3);
    if !action.iscsi.is_empty() {
        let mut bars = vec![bar("NVMe/TCP", "remote", mean, tenths(mean))];
        bars.extend(iscsi(action, |it| (it.mean_latency_us, tenths(it.mean_latency_us))));
        return bars;
    }
    vec![
        bar("mean", "remote", mean, tenths(mean)),
        bar("99th percentile", "floor", p99, tenths(p99)),
    ]
}

/// Draws a chart for each block size, because the values differ too much for one chart.
fn chart(report: &Report, id: &str, bars: Bars) -> Vec<(String, String)> {
    let mut sizes: Vec<u32> =
        report.actions.iter().map(|action| action.pattern.block_size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let one = |size: u32| {
        let of_size =
            report.actions.iter().filter(|action| action.pattern.block_size_bytes == size);
        let groups = of_size.map(|action| {
            let load = farblock_bench::jobs_and_depth(&action.pattern);
            let client = if action.guests { "guest" } else { "client" };
            let s = if action.clients == 1 { "" } else { "s" };
            let label = format!("{}, {} {client}{s} of {load}", action.name(), action.clients);
            Group { label, bars: bars(action) }
        });
        let title = format!("blocks of {} KiB", f64::from(size) / 1024.0);
        let chart = Chart {
            id: format!("{id}-{size}"),
            title: title.clone(),
            tick: &tick,
            groups: groups.collect(),
        };
        (title, chart.render())
    };
    sizes.into_iter().map(one).collect()
}

fn pauses(report: &Report) -> Vec<(String, String)> {
    let groups = report.faults.iter().map(|fault| {
        let (pause, label) =
            (fault.pause_seconds, format!("{} {}", fault.fault.name(), fault.target));
        Group { label, bars: vec![bar("pause", "target", pause, format!("{pause:.2}"))] }
    });
    let title = "by fault".to_owned();
    let id = "pauses".to_owned();
    let chart = Chart { id, title: title.clone(), tick: &tick, groups: groups.collect() };
    vec![(title, chart.render())]
}

fn section(page: &mut String, title: &str, legend: &[(&str, &str)], charts: &[(String, String)]) {
    let _ = write!(page, "<section>\n<h2>{}</h2>\n<ul class=\"legend\">", Escaped(title));
    for (class, name) in legend {
        let _ = write!(page, "<li><i class=\"{class}\"></i>{}</li>", Escaped(name));
    }
    page.push_str("</ul>\n<div class=\"charts\">\n");
    for (title, svg) in charts {
        let title = Escaped(title);
        let _ = writeln!(page, "<figure class=\"panel\"><h3>{title}</h3>\n{svg}</figure>");
    }
    page.push_str("</div>\n</section>\n");
}

fn table(page: &mut String, title: &str, table: &Table) {
    let (name, title) = (title, Escaped(title));
    let _ = write!(
        page,
        "<section>\n<h2>{title}</h2>\n<div class=\"scroll\" {}><table class=\"wide\">\n\
         <caption>{title}</caption>\n<thead><tr>",
        by_keys(name)
    );
    let class = |column: usize| if column == 0 { " class=\"word\"" } else { "" };
    for (column, name) in table.header.iter().enumerate() {
        let _ = write!(page, "<th{} scope=\"col\">{}</th>", class(column), Escaped(name));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        page.push_str("<tr class=\"first\">");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(page, "<td{}>{}</td>", class(column), Escaped(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

fn method(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>Method and machine</h2>\n<dl>\n");
    for (name, words) in text::head(report) {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", Escaped(&words));
    }
    let command = Escaped(&report.command_line);
    let _ = writeln!(page, "<dt>command</dt><dd><code>{command}</code></dd>\n</dl>");
    page.push_str("<ul class=\"notes\">\n");
    for remark in text::remarks(report) {
        let _ = writeln!(page, "<li>{}</li>", Escaped(&remark));
    }
    page.push_str("</ul>\n</section>\n");
}
