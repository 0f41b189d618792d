//! Draws a map of ratios as SVG, with two panels, and one cell for each block size and depth.

use std::fmt::Write as _;

use crate::data::Data;
use crate::picture::escaped;

/// Sizes in the picture's own units.
const WIDTH: f64 = 760.0;
const TOP: f64 = 92.0;
const PANEL: f64 = 365.0;
const NAMES: f64 = 60.0;
const CELL: f64 = 58.0;
const ROW: f64 = 24.0;

/// The ranges of the ratio: the lower bound, the color, and the text in the legend. The first range
/// that matches counts.
const RANGES: [(f64, &str, &str); 4] = [
    (1.5, "#9ae6b4", "at least 1.5"),
    (1.0, "#e6fffa", "1 to 1.5"),
    (0.9, "#fefcbf", "0.9 to 1"),
    (0.0, "#feb2b2", "below 0.9"),
];

/// Draws the map of `column`, with one panel for each direction.
pub(crate) fn draw(data: &Data, title: &str, column: &str, source: &str) -> Result<String, String> {
    let sizes = distinct(data, "size")?;
    let height = TOP + ROW * sizes.len() as f64 + 48.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{title}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"30\" font-size=\"17\" fill=\"#1a202c\">{title}</text>\n",
        title = escaped(title),
    );
    for (index, direction) in distinct(data, "direction")?.iter().enumerate() {
        let left = 20.0 + PANEL * index as f64;
        draw_panel(data, (direction, column), &sizes, left, &mut svg)?;
    }
    draw_legend(height - 28.0, &mut svg);
    text(&mut svg, (20.0, height - 10.0), "start", 11, source);
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn draw_panel(
    data: &Data,
    (direction, column): (&str, &str),
    sizes: &[String],
    left: f64,
    svg: &mut String,
) -> Result<(), String> {
    let depths = distinct(data, "depth")?;
    text(svg, (left + NAMES, TOP - 32.0), "start", 13, &format!("{direction}s, I/Os in flight:"));
    for (index, depth) in depths.iter().enumerate() {
        let middle = left + NAMES + CELL * (index as f64 + 0.5);
        text(svg, (middle, TOP - 10.0), "middle", 13, depth);
    }
    for (line, size) in sizes.iter().enumerate() {
        let y = TOP + ROW * line as f64;
        text(svg, (left + NAMES - 8.0, y + 17.0), "end", 13, size);
        for (index, depth) in depths.iter().enumerate() {
            let place = [("direction", direction), ("size", size), ("depth", depth)];
            let Ok(row) = data.row(&place) else { continue }; // this cell is not part of the map
            draw_cell((left + NAMES + CELL * index as f64, y), data.number(row, column)?, svg);
        }
    }
    Ok(())
}

fn draw_cell((x, y): (f64, f64), ratio: f64, svg: &mut String) {
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{:.0}\" height=\"{:.0}\" fill=\"{}\"/>",
        CELL - 2.0,
        ROW - 2.0,
        colour(ratio),
    );
    text(svg, (x + CELL / 2.0 - 1.0, y + 16.0), "middle", 13, &format!("{ratio:.2}"));
}

fn draw_legend(y: f64, svg: &mut String) {
    for (index, (_, colour, words)) in RANGES.iter().enumerate() {
        let x = 20.0 + 130.0 * index as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.0}\" y=\"{:.0}\" width=\"12\" height=\"12\" fill=\"{colour}\" \
             stroke=\"#a0aec0\"/>",
            y - 10.0,
        );
        text(svg, (x + 18.0, y), "start", 12, words);
    }
}

fn colour(ratio: f64) -> &'static str {
    let range = RANGES.iter().find(|(bound, ..)| ratio >= *bound);
    range.map_or("#ffffff", |(_, colour, _)| colour)
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
         fill=\"#1a202c\">{}</text>",
        escaped(words),
    );
}

/// The distinct values of a column, in the order of the file.
fn distinct(data: &Data, column: &str) -> Result<Vec<String>, String> {
    let place = data.column(column)?;
    let mut values: Vec<String> = Vec::new();
    for row in &data.rows {
        if !values.contains(&row[place]) {
            values.push(row[place].clone());
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_measured_point_has_a_cell_with_its_colour() {
        let data = Data::parse(
            "# w | m | 2026-11-26T01:02:03Z | me | c\ndirection,size,depth,ratio\n\
             read,4k,1,0.50\nread,4k,8,1.20\nwrite,4k,1,2.00\n",
        );
        let svg = draw(&data.expect("the table is valid"), "A & B", "ratio", "here")
            .expect("the data are complete");
        for (_, colour, _) in RANGES {
            let cells = svg.matches(&format!("fill=\"{colour}\"/>")).count();
            assert_eq!(cells, usize::from(colour != "#fefcbf"), "{colour}: {svg}");
        }
        assert!(svg.contains("A &amp; B") && svg.contains(">1.20</text>"), "{svg}");
    }
}
