//! Bar charts as SVG. The bars are horizontal, with one group per pattern and one bar per side. The
//! value is at the end of its bar.

use std::fmt::Write;

use super::escape::Escaped;

/// The width of a chart in its own units. The page scales the chart.
const WIDTH: f64 = 380.0;
/// The minimum and maximum length of the longest bar. The remaining width is for the values.
const BARS: std::ops::RangeInclusive<f64> = 140.0..=250.0;
/// The height of a bar, and the space below it.
const BAR: f64 = 17.0;
const BAR_GAP: f64 = 4.0;
/// The height of the label of a group, and the space below a group.
const LABEL: f64 = 19.0;
const GROUP_GAP: f64 = 13.0;
/// The height of the axis with its numbers.
const AXIS: f64 = 22.0;
/// The approximate number of ticks.
const TICKS: f64 = 4.0;
/// The approximate width of a character.
const CHARACTER: f64 = 6.8;
const VALUE_GAP: f64 = 5.0;

/// One chart.
pub struct Chart<'a> {
    /// The id of the element, unique on the page.
    pub id: String,
    /// The title, including the unit.
    pub title: String,
    /// Formats the number of a tick.
    pub tick: &'a dyn Fn(f64) -> String,
    /// The groups, from top to bottom.
    pub groups: Vec<Group>,
}

/// The bars of one pattern.
pub struct Group {
    /// The label above the bars.
    pub label: String,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// One bar, which consists of one part or of several.
pub struct Bar {
    /// The name of the bar for screen readers, such as `remote`.
    pub name: &'static str,
    /// The style classes and values of the parts. Empty if the side of the bar was not measured.
    pub parts: Vec<(&'static str, f64)>,
    /// The text at the end of the bar.
    pub value: String,
}

impl Bar {
    fn total(&self) -> f64 {
        self.parts.iter().map(|(_, value)| value).sum()
    }
}

impl Chart<'_> {
    /// Renders the chart as an `svg` element.
    #[must_use]
    pub fn render(&self) -> String {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let largest = bars().map(Bar::total).fold(0.0, f64::max);
        let longest = bars().map(|bar| bar.value.chars().count()).max().unwrap_or(0);
        let room = WIDTH - longest as f64 * CHARACTER - 2.0 * VALUE_GAP;
        let scale = Scale::new(largest, room.clamp(*BARS.start(), *BARS.end()));
        let height = self.groups.iter().map(Group::height).sum::<f64>() + AXIS;
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
            Escaped(&self.title),
            Escaped(&self.description()),
            id = Escaped(&self.id),
        );
        self.axis(&mut svg, &scale, height - AXIS);
        let mut top = 0.0;
        for group in &self.groups {
            group.render(&mut svg, &scale, top);
            top += group.height();
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn description(&self) -> String {
        let mut groups = self.groups.iter().map(|group| {
            let bars = group.bars.iter().map(|bar| format!("{} {}", bar.name, bar.value));
            format!("{}: {}", group.label, bars.collect::<Vec<_>>().join(", "))
        });
        let first = groups.next().unwrap_or_default();
        groups.fold(first, |all, group| format!("{all}. {group}"))
    }

    fn axis(&self, svg: &mut String, scale: &Scale, bottom: f64) {
        for (value, x) in scale.ticks() {
            let anchor = if value == 0.0 { "start" } else { "middle" };
            let _ = write!(
                svg,
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"2\" y2=\"{:.1}\"/>\
                 <text class=\"soft\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                bottom,
                bottom + 15.0,
                Escaped(&(self.tick)(value)),
            );
        }
    }
}

impl Group {
    fn height(&self) -> f64 {
        LABEL + self.bars.len() as f64 * (BAR + BAR_GAP) + GROUP_GAP
    }

    fn render(&self, svg: &mut String, scale: &Scale, top: f64) {
        let baseline = top + LABEL - 6.0;
        let _ = write!(svg, "<text x=\"0\" y=\"{baseline:.1}\">{}</text>", Escaped(&self.label));
        let mut y = top + LABEL;
        for bar in &self.bars {
            let mut x = 0.0;
            for (class, value) in &bar.parts {
                // Keep a measured value visible, however small it is.
                let width = scale.place(*value).max(1.5);
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
                     height=\"{BAR}\" rx=\"2\"/>"
                );
                x += width + 1.0;
            }
            let at = x + VALUE_GAP;
            let _ = write!(
                svg,
                "<text x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                y + BAR - 4.5,
                Escaped(&bar.value),
            );
            y += BAR + BAR_GAP;
        }
    }
}

/// Maps values to positions.
struct Scale {
    largest: f64,
    /// The position of the largest value.
    width: f64,
    step: f64,
}

impl Scale {
    fn new(largest: f64, width: f64) -> Scale {
        let largest = if largest.is_finite() && largest > 0.0 { largest } else { 1.0 };
        Scale { largest, width, step: round_step(largest / TICKS) }
    }

    fn place(&self, value: f64) -> f64 {
        if value.is_finite() { (value / self.largest).clamp(0.0, 1.0) * self.width } else { 0.0 }
    }

    fn ticks(&self) -> impl Iterator<Item = (f64, f64)> {
        let count = (self.largest / self.step).floor() as u32;
        (0..=count).map(|tick| {
            let value = f64::from(tick) * self.step;
            (value, self.place(value))
        })
    }
}

/// The smallest number of the form 1, 2, 2.5 or 5 times a power of ten that is at least `at_least`.
fn round_step(at_least: f64) -> f64 {
    // Systems round powers with negative exponents differently, but not the reciprocals of powers
    // with positive exponents.
    let exponent = at_least.log10().floor();
    let power = if exponent < 0.0 { 1.0 / 10f64.powf(-exponent) } else { 10f64.powf(exponent) };
    let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
    let fitting = factors.iter().find(|factor| *factor * power >= at_least * 0.999_999);
    fitting.unwrap_or(&10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(parts: Vec<(&'static str, f64)>, value: &str) -> Bar {
        Bar { name: "local", parts, value: value.to_owned() }
    }

    fn chart(groups: Vec<Group>) -> Chart<'static> {
        Chart {
            id: "c".to_owned(),
            title: "a <title>".to_owned(),
            tick: &|v| v.to_string(),
            groups,
        }
    }

    #[test]
    fn axis_steps_are_round_numbers() {
        assert_eq!(round_step(0.9), 1.0);
        assert_eq!(round_step(1.1), 2.0);
        assert_eq!(round_step(2.4), 2.5);
        assert_eq!(round_step(178_000.0), 200_000.0);
        assert_eq!(round_step(0.03), 0.05);
    }

    #[test]
    fn bars_are_proportional_to_the_longest() {
        let scale = Scale::new(200.0, 100.0);
        assert_eq!((scale.place(200.0), scale.place(50.0)), (100.0, 25.0));
        assert_eq!(
            scale.ticks().map(|(value, _)| value).collect::<Vec<_>>(),
            [0.0, 50.0, 100.0, 150.0, 200.0]
        );
    }

    #[test]
    fn a_chart_without_measurements_is_empty() {
        let group = Group { label: "x".to_owned(), bars: vec![bar(Vec::new(), "–")] };
        let svg = chart(vec![group]).render();
        assert!(!svg.contains("<rect"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }

    #[test]
    fn charts_have_escaped_titles_and_descriptions() {
        let parts = vec![("local", 1.0), ("target", 2.0)];
        let group = Group { label: "4k & more".to_owned(), bars: vec![bar(parts, "3 µs")] };
        let svg = chart(vec![group]).render();
        assert!(svg.contains("<title id=\"c-t\">a &lt;title&gt;</title>"), "{svg}");
        assert!(svg.contains("<desc id=\"c-d\">4k &amp; more: local 3 µs</desc>"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 2);
    }
}
