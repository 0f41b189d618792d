//! Rules for pages: the map lists all pages, every link has a destination, and pages are short.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The maximum number of words in all pages below docs together, except for the decisions.
const MAX_WORDS: usize = 40_000;
/// The folders whose pages do not belong to this project.
const SKIPPED: [&str; 4] = ["target", "node_modules", ".git", "artifacts"];

fn tree() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).expect("the workspace").to_owned()
}

fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() && !SKIPPED.contains(&&*name) && !name.starts_with("target-") {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

/// The text of a page without its code blocks.
fn text(page: &Path) -> String {
    let (mut text, mut is_code) = (String::new(), false);
    for line in fs::read_to_string(page).expect("text").lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            text += line;
            text.push('\n');
        }
    }
    text
}

/// The targets of the links on a page, except for links to other sites.
fn links(page: &Path) -> Vec<String> {
    let link = Regex::new(r"\]\(([^()\s:]+)\)").expect("a pattern");
    link.captures_iter(&text(page)).map(|found| found[1].to_owned()).collect()
}

/// The anchors that GitHub creates for the headings of a page.
fn anchors(page: &Path) -> BTreeSet<String> {
    let link = Regex::new(r"\[([^\]]*)\]\([^)]*\)").expect("a pattern");
    let mut found = BTreeSet::new();
    for line in text(page).lines().filter(|line| line.starts_with('#')) {
        let heading = link.replace_all(line.trim_start_matches('#').trim(), "$1").to_lowercase();
        let is_kept = |letter: &char| letter.is_alphanumeric() || " -_".contains(*letter);
        let anchor: String = heading.chars().filter(is_kept).collect();
        let anchor = anchor.replace(' ', "-");
        if !found.insert(anchor.clone()) {
            let mut others = (1..).map(|count| format!("{anchor}-{count}"));
            let _ = others.find(|other| found.insert(other.clone()));
        }
    }
    found
}

/// Whether a link on a page has no destination.
fn is_dead(page: &Path, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_owned(),
        path => page.parent().expect("a folder").join(path),
    };
    let has_anchors = target.extension().is_some_and(|extension| extension == "md");
    !target.exists() || !anchor.is_empty() && has_anchors && !anchors(&target).contains(anchor)
}

#[test]
fn links_lead_to_pages_and_headings() {
    for page in pages(&tree()) {
        for link in links(&page) {
            assert!(!is_dead(&page, &link), "{}: {link} does not exist", page.display());
        }
    }
}

#[test]
fn the_list_of_pages_has_each_page_once() {
    let docs = tree().join("docs");
    let listed = links(&docs.join("README.md"));
    for page in pages(&docs) {
        let place = page.strip_prefix(&docs).expect("below docs");
        let is_decision = place.starts_with("decisions") && !place.ends_with("README.md");
        if place == Path::new("README.md") || is_decision {
            continue;
        }
        let count = listed.iter().filter(|link| Path::new(link) == place).count();
        assert_eq!(count, 1, "docs/README.md: {}", place.display());
    }
}

#[test]
fn the_documentation_is_short() {
    let docs = tree().join("docs");
    let words = pages(&docs)
        .iter()
        .filter(|page| !page.starts_with(docs.join("decisions")))
        .map(|page| fs::read_to_string(page).expect("text").split_whitespace().count())
        .sum::<usize>();
    assert!(words <= MAX_WORDS, "{words} words below docs, at most {MAX_WORDS}: remove some");
}

#[test]
fn dead_links_are_found() {
    let folder = std::env::temp_dir().join(format!("pages-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let page = folder.join("page.md");
    let lines = "# A `title`, twice\n\n# A title twice\n[a](page.md#a-title-twice-1)\n\
        ```\n# no heading [b](c.md)\n```\n[d](https://example.org)\n[e](#nothing) [f](f.md)\n";
    fs::write(&page, lines).expect("a page");
    let links = links(&page);
    let dead: Vec<bool> = links.iter().map(|link| is_dead(&page, link)).collect();
    fs::remove_dir_all(&folder).expect("its own folder");
    assert_eq!(links, ["page.md#a-title-twice-1", "#nothing", "f.md"]);
    assert_eq!(dead, [false, true, true]);
}
