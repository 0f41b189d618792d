//! The numbers of the page as tables.

use std::fmt::Write;

use super::escape::Escaped;
use super::{Metric, sides};
use crate::cpu::CpuUse;
use crate::format;
use crate::progress::SideName;
use crate::result::{Figures, PatternReport, Report};

/// The numbers of one section's charts.
pub(super) fn metric(page: &mut String, report: &Report, metric: &Metric) {
    let both = report.local.is_some() && report.remote.is_some();
    let _ = write!(
        page,
        "<div class=\"scroll numbers\"><table>\n<caption>{}</caption>\n<thead><tr>\
         <th class=\"word\" scope=\"col\">pattern</th><th class=\"word\" scope=\"col\">unit</th>",
        metric.title
    );
    for (name, present) in [("local", &report.local), ("remote", &report.remote)] {
        if present.is_some() {
            let _ = write!(page, "<th scope=\"col\">{name}</th>");
        }
    }
    if both {
        page.push_str("<th scope=\"col\">remote, % of local</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for pattern in &report.patterns {
        metric_row(page, report, metric, pattern, both);
    }
    page.push_str("</tbody></table></div>\n");
}

fn metric_row(
    page: &mut String,
    report: &Report,
    metric: &Metric,
    pattern: &PatternReport,
    both: bool,
) {
    let _ = write!(
        page,
        "<tr class=\"first\"><th class=\"word\" scope=\"row\">{}</th><td class=\"word\">{}</td>",
        Escaped(&pattern.pattern.name),
        (metric.unit)(pattern.pattern.block_size_bytes),
    );
    for (side, figures) in sides(report, pattern) {
        let parts = figures.map(|f| (metric.parts)(side, pattern, f)).unwrap_or_default();
        let total = (!parts.is_empty()).then(|| parts.iter().map(|(_, value)| value).sum());
        let _ = write!(page, "<td>{}</td>", format::optional(total, metric.show));
    }
    if both {
        let percent = pattern.remote_percent_of_local.as_ref().and_then(metric.percent);
        let _ = write!(page, "<td>{}</td>", format::optional(percent, format::tenths));
    }
    page.push_str("</tr>\n");
}

/// Everything that was measured, one row per pattern and side.
pub(super) fn all_figures(page: &mut String, report: &Report) {
    page.push_str(
        "<section>\n<h2>All figures</h2>\n<p class=\"hint\">Latencies in µs. CPU % is that of one \
         core. Memory is what the process has resident.</p>\n<div class=\"scroll\"><table>\n\
         <caption>Each pattern and side</caption>\n<thead>\n<tr>\
         <th class=\"word\" rowspan=\"2\" scope=\"col\">pattern</th>\
         <th class=\"word\" rowspan=\"2\" scope=\"col\">jobs × depth</th>\
         <th class=\"word\" rowspan=\"2\" scope=\"col\">side</th>\
         <th rowspan=\"2\" scope=\"col\">IOPS</th><th rowspan=\"2\" scope=\"col\">MiB/s</th>\
         <th colspan=\"5\" scope=\"colgroup\">latency, µs</th>\
         <th colspan=\"3\" scope=\"colgroup\">host</th>\
         <th colspan=\"3\" scope=\"colgroup\">target</th></tr>\n<tr>",
    );
    let party = ["CPU %", "µs/IO", "memory"];
    for name in ["mean", "p50", "p99", "p99.9", "max"].into_iter().chain(party).chain(party) {
        let _ = write!(page, "<th scope=\"col\">{name}</th>");
    }
    page.push_str("</tr>\n</thead>\n<tbody>\n");
    for pattern in &report.patterns {
        for (index, (side, figures)) in sides(report, pattern).into_iter().enumerate() {
            figures_row(page, pattern, side, figures, index == 0);
        }
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

fn figures_row(
    page: &mut String,
    pattern: &PatternReport,
    side: SideName,
    figures: Option<&Figures>,
    first: bool,
) {
    let class = if first { " class=\"first\"" } else { "" };
    let _ = write!(
        page,
        "<tr{class}><th class=\"word\" scope=\"row\">{}</th><td class=\"word\">{}</td>\
         <td class=\"word\">{}</td>",
        Escaped(&pattern.pattern.name),
        format::jobs_and_depth(&pattern.pattern),
        side.name(),
    );
    let mut cell = |value: Option<f64>, show: &dyn Fn(f64) -> String| {
        let _ = write!(page, "<td>{}</td>", format::optional(value, show));
    };
    cell(figures.map(|f| f.iops), &format::iops);
    cell(figures.map(|f| f.mib_per_second), &format::tenths);
    cell(figures.map(|f| f.latency.mean_ns), &format::us);
    cell(figures.map(|f| f.latency.p50_ns as f64), &format::us);
    cell(figures.map(|f| f.latency.p99_ns as f64), &format::us);
    cell(figures.map(|f| f.latency.p99_9_ns as f64), &format::us);
    cell(figures.map(|f| f.latency.max_ns as f64), &format::us);
    let mut party = |cpu: Option<CpuUse>, memory: Option<u64>| {
        cell(cpu.map(|cpu| cpu.percent_of_core), &format::tenths);
        cell(cpu.map(|cpu| cpu.us_per_io), &format::fine);
        cell(memory.map(|bytes| bytes as f64), &|bytes| format::bytes(bytes as u64));
    };
    party(figures.and_then(|f| f.host_cpu), figures.and_then(|f| f.host_memory_bytes));
    party(figures.and_then(|f| f.target_cpu), figures.and_then(|f| f.target_memory_bytes));
    page.push_str("</tr>\n");
}
