//! A comparison as text.

use super::{Change, Comparison, Metric, Verdict, signed};
use crate::format;
use crate::wrap::wrap;

/// The largest change that the table shows as a number, in percent.
const MOST_PERCENT: f64 = 999.0;

/// Renders a comparison. Tables are always narrower than 80 columns; sentences wrap at `columns`.
pub fn render_within(comparison: &Comparison, columns: usize) -> String {
    let mut text = String::new();
    let mut line = |words: &str| {
        text.push_str(words.trim_end());
        text.push('\n');
    };
    for (letter, title) in ["A", "B"].iter().zip(&comparison.titles) {
        line(&wrap(&format!("{letter}  {title}"), 3, columns));
    }
    for load in &comparison.loads {
        let [a, b] = load.runs;
        line("");
        line(&wrap(&format!("{} ({}; runs: {a} and {b})", load.name, load.setup), 2, columns));
        line(&row(["", "A", "B", "change", "95 % interval", ""]));
        for change in &load.changes {
            line(&cells(change));
        }
    }
    if comparison.loads.is_empty() {
        line("\nA and B have no measured load in common");
    }
    if !comparison.loads.is_empty() {
        let legend = "A and B: medians of the runs. The change is the change of the geometric \
            mean, with its confidence interval by Welch's t-test.";
        line("");
        line(&wrap(legend, 0, columns));
    }
    let sentences = comparison.missing.iter().chain(&comparison.remarks);
    for (at, sentence) in sentences.enumerate() {
        if at == 0 {
            line("");
        }
        line(&wrap(sentence, 2, columns));
    }
    text
}

fn row([name, a, b, change, interval, verdict]: [&str; 6]) -> String {
    format!("  {name:<16} {a:>11} {b:>11} {change:>8}  {interval:>17}  {verdict}")
}

fn cells(change: &Change) -> String {
    let number = |value: f64| match change.metric {
        Metric::Iops => format::iops(value),
        Metric::CpuUsPerIo => format::fine(value),
        _ => format::tenths(value),
    };
    let interval = change.interval_percent;
    let interval = interval.map(|[low, high]| format!("{} to {}", bounded(low), bounded(high)));
    row([
        change.metric.name(),
        &number(change.median_a),
        &number(change.median_b),
        &format!("{} %", bounded(change.percent)),
        &interval.unwrap_or_else(|| format::NOTHING.to_owned()),
        word(change),
    ])
}

/// Formats a change in percent. If runs vary by orders of magnitude, their interval has no meaning,
/// and its digits would widen the table.
fn bounded(percent: f64) -> String {
    if percent > MOST_PERCENT { format!(">{MOST_PERCENT}") } else { signed(percent) }
}

fn word(change: &Change) -> &'static str {
    let is_cost = change.metric == Metric::CpuUsPerIo;
    match change.verdict {
        Verdict::Better if is_cost => "cheaper",
        Verdict::Worse if is_cost => "dearer",
        Verdict::Better => "faster",
        Verdict::Worse => "slower",
        Verdict::NoDifference => "same",
        Verdict::NoInterval => "one run",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::report;

    #[test]
    fn the_comparison_fits_80_columns() {
        let (a, mut b) = (report(), report());
        for pattern in &mut b.patterns {
            for run in pattern.local.iter_mut().flat_map(|figures| &mut figures.runs) {
                run.iops *= 0.9;
            }
        }
        let mut a = a.subject();
        a.loads[0].series[0].runs = vec![99_999_999.0, 98_999_999.0, 1.0];
        let text = render_within(&Comparison::of(&a, &b.subject()), 80);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|columns| columns <= 80), "{widest:?}\n{text}");
        assert!(text.contains("one run"), "{text}");
        assert!(text.contains("−10.0 %"), "{text}");
        a.loads[0].series[0].runs = vec![99_999_999.0, 1.0];
        let text = render_within(&Comparison::of(&a, &a), 80);
        assert!(text.contains("to >999"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
