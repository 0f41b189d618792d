//! The numbers of the page as tables.

use farblock_block::size::Size;
use std::fmt::Write;

use super::Metric;
use super::escape::Escaped;
use crate::cpu::CpuUse;
use crate::format;
use crate::progress::SideName;
use crate::result::{Figures, PatternReport, Percent, Report};

/// The attributes with which the keyboard can scroll a table that is wider than the page.
#[must_use]
pub fn by_keys(title: &str) -> String {
    format!("role=\"region\" aria-label=\"Table: {}\" tabindex=\"0\"", Escaped(title))
}

/// Writes the numbers in the charts of one section.
pub(super) fn metric(page: &mut String, report: &Report, metric: &Metric) {
    let bases = bases(report);
    let _ = write!(
        page,
        "<div class=\"scroll numbers\" {}><table>\n<caption>{}</caption>\n<thead><tr>\
         <th class=\"word\" scope=\"col\">pattern</th><th class=\"word\" scope=\"col\">unit</th>",
        by_keys(metric.title),
        metric.title
    );
    for (side, _) in report.sides() {
        let _ = write!(page, "<th scope=\"col\">{}</th>", side.name());
    }
    for (base, _) in &bases {
        let _ = write!(page, "<th scope=\"col\">remote, % of {base}</th>");
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for pattern in &report.patterns {
        metric_row(page, report, metric, pattern, &bases);
    }
    page.push_str("</tbody></table></div>\n");
}

type Base = (&'static str, fn(&PatternReport) -> Option<Percent>);

fn bases(report: &Report) -> Vec<Base> {
    let all: [(_, Base); 2] = [
        (&report.local, ("local", |pattern| pattern.remote_percent_of_local)),
        (&report.floor, ("floor", |pattern| pattern.remote_percent_of_floor)),
    ];
    let applies = all.into_iter().filter(|(base, _)| base.is_some() && report.remote.is_some());
    applies.map(|(_, base)| base).collect()
}

fn metric_row(
    page: &mut String,
    report: &Report,
    metric: &Metric,
    pattern: &PatternReport,
    bases: &[Base],
) {
    let _ = write!(
        page,
        "<tr class=\"first\"><th class=\"word\" scope=\"row\">{}</th><td class=\"word\">{}</td>",
        Escaped(&pattern.pattern.name),
        (metric.unit)(pattern.pattern.block_size_bytes),
    );
    for (side, figures) in report.figures(pattern) {
        let parts = figures.map(|f| (metric.parts)(side, pattern, f)).unwrap_or_default();
        let total = (!parts.is_empty()).then(|| parts.iter().map(|(_, value)| value).sum());
        let _ = write!(page, "<td>{}</td>", format::optional(total, metric.show));
    }
    for (_, percent) in bases {
        let percent = percent(pattern).as_ref().and_then(metric.percent);
        let _ = write!(page, "<td>{}</td>", format::optional(percent, format::percent));
    }
    page.push_str("</tr>\n");
}

/// One end of the connection, if the report has any of its figures.
struct Party {
    title: &'static str,
    cpu: fn(&Figures) -> Option<CpuUse>,
    memory: fn(&Figures) -> Option<u64>,
    has_cpu: bool,
    has_memory: bool,
}

impl Party {
    fn both(report: &Report) -> Vec<Party> {
        let party = |title, cpu: fn(&Figures) -> Option<CpuUse>, memory: fn(&Figures) -> _| Party {
            title,
            cpu,
            memory,
            has_cpu: report.all_figures().any(|figures| cpu(figures).is_some()),
            has_memory: report
                .all_figures()
                .any(|figures| Option::<u64>::is_some(&memory(figures))),
        };
        vec![
            party("host", |f| f.host_cpu, |f| f.host_memory_bytes),
            party("target", |f| f.target_cpu, |f| f.target_memory_bytes),
        ]
    }

    fn columns(&self) -> Vec<&'static str> {
        let cpu: &[_] = if self.has_cpu { &["CPU %", "µs/IO"] } else { &[] };
        let memory: &[_] = if self.has_memory { &["memory"] } else { &[] };
        [cpu, memory].concat()
    }

    fn cells(&self, page: &mut String, figures: Option<&Figures>) {
        let cpu = figures.and_then(self.cpu);
        if self.has_cpu {
            cell(page, cpu.map(|cpu| cpu.percent_of_core), format::tenths);
            cell(page, cpu.map(|cpu| cpu.us_per_io), format::fine);
        }
        if self.has_memory {
            let memory = figures.and_then(self.memory).map(|bytes| bytes as f64);
            cell(page, memory, |bytes| Size(bytes as u64).to_string());
        }
    }
}

/// Writes all figures, with one row per pattern and side.
pub(super) fn all_figures(page: &mut String, report: &Report) {
    let parties = Party::both(report);
    let _ = write!(
        page,
        "<section>\n<h2>All figures</h2>\n<p class=\"hint\">Latencies in µs. 100 % CPU is one busy \
         core. Memory is the process’s resident memory.</p>\n<div class=\"scroll\" {}><table \
         class=\"wide\">\n<caption>Each pattern and side</caption>\n<thead>\n<tr><th \
         class=\"word\" rowspan=\"2\" scope=\"col\">pattern</th><th class=\"word\" rowspan=\"2\" \
         scope=\"col\">jobs × depth</th><th class=\"word\" rowspan=\"2\" \
         scope=\"col\">side</th><th rowspan=\"2\" scope=\"col\">IOPS</th><th rowspan=\"2\" \
         scope=\"col\">MiB/s</th><th colspan=\"5\" scope=\"colgroup\">latency, µs</th>",
        by_keys("Each pattern and side")
    );
    for party in &parties {
        let (title, count) = (party.title, party.columns().len());
        if count > 0 {
            let _ = write!(page, "<th colspan=\"{count}\" scope=\"colgroup\">{title}</th>");
        }
    }
    page.push_str("</tr>\n<tr>");
    let columns = parties.iter().flat_map(Party::columns);
    for name in ["mean", "p50", "p99", "p99.9", "max"].into_iter().chain(columns) {
        let _ = write!(page, "<th scope=\"col\">{name}</th>");
    }
    page.push_str("</tr>\n</thead>\n<tbody>\n");
    for pattern in &report.patterns {
        for (index, (side, figures)) in report.figures(pattern).enumerate() {
            let class = if index == 0 { " class=\"first\"" } else { "" };
            let _ = write!(page, "<tr{class}>");
            figures_row(page, pattern, side, figures);
            parties.iter().for_each(|party| party.cells(page, figures));
            page.push_str("</tr>\n");
        }
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

fn figures_row(
    page: &mut String,
    pattern: &PatternReport,
    side: SideName,
    figures: Option<&Figures>,
) {
    let _ = write!(
        page,
        "<th class=\"word\" scope=\"row\">{}</th><td class=\"word\">{}</td>\
         <td class=\"word\">{}</td>",
        Escaped(&pattern.pattern.name),
        format::jobs_and_depth(&pattern.pattern),
        side.name(),
    );
    cell(page, figures.map(|f| f.iops), format::iops);
    cell(page, figures.map(|f| f.mib_per_second), format::tenths);
    cell(page, figures.map(|f| f.latency.mean_ns), format::us);
    cell(page, figures.map(|f| f.latency.p50_ns as f64), format::us);
    cell(page, figures.map(|f| f.latency.p99_ns as f64), format::us);
    cell(page, figures.map(|f| f.latency.p99_9_ns as f64), format::us);
    cell(page, figures.map(|f| f.latency.max_ns as f64), format::us);
}

fn cell(page: &mut String, value: Option<f64>, show: fn(f64) -> String) {
    let _ = write!(page, "<td>{}</td>", format::optional(value, show));
}
