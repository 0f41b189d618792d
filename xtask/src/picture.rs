//! Draws a chart of horizontal bars as SVG.

use std::fmt::Write as _;

/// Sizes in the picture's own units.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const TOP: f64 = 64.0;
const ROW: f64 = 34.0;
const BAR: f64 = 20.0;
const MAX_LENGTH: f64 = 460.0;

/// A bar, with its name on the left and its label on the right.
#[derive(Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) name: String,
    /// The value of the bar, relative to the reference of the chart.
    pub(crate) ratio: f64,
    pub(crate) label: String,
}

/// Bars, and a reference for comparison.
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    /// The name of the reference, which is a line at 1.
    pub(crate) reference: &'static str,
    /// The length of a bar whose ratio is 1.
    pub(crate) unit_length: f64,
    pub(crate) bars: Vec<Bar>,
    /// The machine, date and method of the figures.
    pub(crate) source: String,
}

/// Draws the chart as SVG, on a white background, so that its colors suit dark pages, too.
pub(crate) fn draw(chart: &Chart) -> String {
    let bottom = TOP + ROW * chart.bars.len() as f64;
    let height = bottom + 44.0;
    let end = LEFT + chart.unit_length;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{}\" font-family=\"sans-serif\" font-size=\"14\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"17\" fill=\"#1a202c\">{}</text>\n",
        escaped(&words(chart)),
        escaped(chart.title),
    );
    for (index, bar) in chart.bars.iter().enumerate() {
        draw_bar(TOP + ROW * index as f64, bar, chart.unit_length, &mut svg);
    }
    let _ = write!(
        svg,
        "<line x1=\"{end}\" y1=\"{}\" x2=\"{end}\" y2=\"{bottom:.0}\" stroke=\"#1a202c\" \
         stroke-dasharray=\"3 3\"/>\n\
         <text x=\"{end}\" y=\"{}\" text-anchor=\"middle\" font-size=\"12\" \
         fill=\"#4a5568\">{}</text>\n\
         <text x=\"20\" y=\"{:.0}\" font-size=\"11\" fill=\"#4a5568\">{}</text>\n</svg>\n",
        TOP - 6.0,
        TOP - 10.0,
        escaped(chart.reference),
        bottom + 24.0,
        escaped(&chart.source),
    );
    svg
}

fn draw_bar(y: f64, bar: &Bar, unit_length: f64, svg: &mut String) {
    let length = (bar.ratio * unit_length).min(MAX_LENGTH);
    let (middle, name) = (y + BAR * 0.75, escaped(&bar.name));
    let _ = write!(
        svg,
        "<text x=\"{}\" y=\"{middle:.0}\" text-anchor=\"end\" fill=\"#1a202c\">{name}</text>\n\
         <rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{unit_length}\" height=\"{BAR}\" \
         fill=\"#e2e8f0\"/>\n\
         <rect x=\"{LEFT}\" y=\"{y:.0}\" width=\"{length:.1}\" height=\"{BAR}\" \
         fill=\"#2b6cb0\"/>\n\
         <text x=\"{:.1}\" y=\"{middle:.0}\" fill=\"#1a202c\">{}</text>\n",
        LEFT - 10.0,
        LEFT + length.max(unit_length) + 10.0,
        escaped(&bar.label),
    );
}

/// A description of the chart for screen readers: its title and the label of each bar.
fn words(chart: &Chart) -> String {
    let each = chart.bars.iter().map(|bar| format!("{} {}", bar.name, bar.label));
    format!("{}. {}", chart.title, each.collect::<Vec<_>>().join(", "))
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_bar_is_cut_and_texts_are_escaped() {
        let bar = |ratio: f64| Bar {
            name: "4k <read>".to_owned(),
            ratio,
            label: format!("{:.0} % & more", ratio * 100.0),
        };
        let svg = draw(&Chart {
            title: "Reads",
            reference: "local",
            unit_length: 400.0,
            bars: vec![bar(0.5), bar(9.0)],
            source: "here & now".to_owned(),
        });
        assert!(svg.contains("width=\"200.0\"") && svg.contains("width=\"460.0\""), "{svg}");
        assert!(svg.contains("50 % &amp; more") && svg.contains("4k &lt;read&gt;"), "{svg}");
        assert!(svg.contains("here &amp; now") && LEFT + MAX_LENGTH < WIDTH, "{svg}");
    }
}
