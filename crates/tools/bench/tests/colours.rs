//! Checks that the colors of the report equal the colors of the dashboard. Each has its own style
//! sheet.

use std::collections::BTreeMap;
use std::path::Path;

/// The name of each color in the report, and in the dashboard.
const PAIRS: [(&str, &str); 12] = [
    ("paper", "back"),
    ("card", "panel"),
    ("ink", "ink"),
    ("soft", "quiet"),
    ("line", "edge"),
    ("remote", "read"),
    ("target", "write"),
    ("floor", "high"),
    ("good", "good"),
    ("fair", "held"),
    ("bad", "bad"),
    ("alert", "bad-back"),
];

/// The light colors and the dark colors of a style sheet.
fn colours(path: &str) -> [BTreeMap<String, String>; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path).expect("a file of the repository");
    let (light, rest) = text
        .split_once("prefers-color-scheme: dark")
        .expect("the style sheet has both color schemes");
    let dark = rest.split_once("}\n}").map_or(rest, |(dark, _)| dark);
    [light, dark].map(|text| {
        let lines = text.lines().filter_map(|line| {
            let (name, value) = line.trim().strip_prefix("--")?.split_once(": ")?;
            Some((name.to_owned(), value.trim_end_matches(';').to_owned()))
        });
        lines.collect()
    })
}

#[test]
fn a_report_has_the_colours_of_the_dashboard() {
    let report = colours("src/html/style.css");
    let page = colours("../../../dashboard/src/style.css");
    for (report, page) in report.iter().zip(&page) {
        for (ours, theirs) in PAIRS {
            let colour = report.get(ours).unwrap_or_else(|| panic!("no --{ours} in the report"));
            assert!(colour.starts_with('#'), "{ours}: {colour}");
            assert_eq!(Some(colour), page.get(theirs), "--{ours} is not --{theirs}");
        }
    }
}
