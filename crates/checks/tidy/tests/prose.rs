//! Counts sentences in pages and comments that match patterns of hard English.
//!
//! A good sentence may also match. So the test limits the share of matching sentences in each crate
//! and in each group of pages, and does not reject single sentences.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// The maximum number of flagged sentences in 100, for each crate and for each group of pages.
const MAX_FLAGGED: f64 = 4.0;
/// The maximum number of clauses without a noun ("for who …") in 100 sentences.
const MAX_HEADLESS: f64 = 0.5;
/// The number of sentences below which the test does not judge a group.
const MIN_SENTENCES: usize = 50;
const MAX_WORDS: usize = 32;
/// The test skips sentences with fewer words: they are titles.
const MIN_WORDS: usize = 4;

const HEADLESS: &[&str] = &[
    concat!(
        r"^(?:What|Who|Whoever|Whatever|Whom|Whose|Which|How often|How long|That what)\b",
        // Do not match questions, which may start with these words.
        r"[^.?!]*(?:[.!]|$)"
    ),
    concat!(
        r"(?:[,;:]|\b(?:and|or|but|of|by|with|for|than|from)) (?:what|who|whoever|whom) ",
        r"(?:is|are|was|has|have|had|does|did|can|may|comes?|goes|wants?|asks?)\b"
    ),
];

const OTHERS: &[&str] = &[
    // Sentences without an actor.
    concat!(
        r"\b(?:is|are|was|were) (?:told|said|heard|asked|heeded|let in|let out|let go|to be had|",
        r"had|shown|taken back|taken for|begun|ended|gone on|looked at|looked after|spoken)\b"
    ),
    r"(?i)\b(?:nobody|somebody|someone|anybody|everybody|whoever)\b",
    // Words that stand in the place of a noun.
    concat!(
        r"\b(?:that of|those of|the one that|the other one|the same with|as that|such a one|",
        r"of them all|of its own|by itself|of theirs)\b"
    ),
    // Inverted sentences, and sentences translated word by word.
    concat!(
        r"\b(?:has to (?:have|be)|is to be|are to be|in the way of|goes on|go on|",
        r"comes? (?:to|of|by)|as it (?:is|does|was)|for (?:in|a) dead|in turns|",
        r"beside (?:it|that|them)|nothing that|all that|at all if|not before|no longer than it|",
        r"to go by|be of)\b"
    ),
];

struct Judge {
    word: Regex,
    code: Regex,
    link: Regex,
    emphasis: Regex,
    end: Regex,
    bullet: Regex,
    headless: Vec<Regex>,
    others: Vec<Regex>,
}

#[derive(Default)]
struct Count {
    sentences: usize,
    headless: usize,
    flagged: Vec<String>,
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a valid pattern")
}

impl Judge {
    fn new() -> Judge {
        let all = |patterns: &[&str]| patterns.iter().map(|pattern| regex(pattern)).collect();
        Judge {
            word: regex(r"[A-Za-z][A-Za-z'’-]*"),
            code: regex(r"`[^`]*`"),
            link: regex(r"!?\[([^\]]*)\]\([^)]*\)"),
            emphasis: regex(r"[*_]{1,2}([^*_]+)[*_]{1,2}"),
            end: regex(r#"[.?!:;]\s+[A-Z("“]"#),
            bullet: regex(r"^(?:[-*]|\d+\.) +"),
            headless: all(HEADLESS),
            others: all(OTHERS),
        }
    }

    fn count(&self, path: &Path, count: &mut Count) {
        for (line, paragraph) in self.paragraphs(path) {
            let text = self.code.replace_all(&paragraph, "CODE");
            let text = self.link.replace_all(&text, "$1");
            let text = self.emphasis.replace_all(&text, "$1").into_owned();
            for sentence in self.sentences(&text) {
                let words = self.word.find_iter(sentence).count();
                if words >= MIN_WORDS {
                    let place = format!("{}:{line}", path.display());
                    self.judge(&place, sentence, words, count);
                }
            }
        }
    }

    fn judge(&self, place: &str, sentence: &str, words: usize, count: &mut Count) {
        let matches = |patterns: &[Regex]| patterns.iter().any(|it| it.is_match(sentence));
        let is_headless = matches(&self.headless);
        count.sentences += 1;
        count.headless += usize::from(is_headless);
        if is_headless || matches(&self.others) || words > MAX_WORDS {
            count.flagged.push(format!("{place}: {sentence}"));
        }
    }

    fn sentences<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut sentences = Vec::new();
        let mut begin = 0;
        for end in self.end.find_iter(text) {
            sentences.push(text[begin..=end.start()].trim());
            begin = end.start() + 1;
        }
        sentences.push(text[begin..].trim());
        sentences
    }

    /// The paragraphs of a page, or of the comments in a source, with the number of their first
    /// line.
    fn paragraphs(&self, path: &Path) -> Vec<(usize, String)> {
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        let mut paragraphs: Vec<(usize, String)> = Vec::new();
        let (mut is_open, mut is_code) = (false, false);
        for (number, line) in fs::read_to_string(path).expect("UTF-8").lines().enumerate() {
            let Some(mut text) = prose_of(line, is_source) else {
                is_open = false;
                continue;
            };
            if text.starts_with("```") {
                (is_open, is_code) = (false, !is_code);
                continue;
            }
            if is_code || text.is_empty() {
                is_open = false;
                continue;
            }
            if let Some(bullet) = self.bullet.find(text) {
                (is_open, text) = (false, &text[bullet.end()..]);
            }
            match paragraphs.last_mut().filter(|_| is_open) {
                Some((_, paragraph)) => write!(paragraph, " {text}").expect("memory"),
                None => paragraphs.push((number + 1, text.to_owned())),
            }
            is_open = true;
        }
        paragraphs
    }
}

/// The prose of a line, if it contains any. In a page, tables, headings and figures are not prose.
/// In a source, code is not prose.
fn prose_of(line: &str, is_source: bool) -> Option<&str> {
    let text = line.trim();
    if !is_source {
        return (!text.starts_with(['|', '#', '<', '!', '['])).then_some(text);
    }
    let comment = text.strip_prefix("//")?;
    Some(comment.strip_prefix(['/', '!']).unwrap_or(comment).trim())
}

fn files_below(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name");
        if path.is_dir() && name != "target" && name != "node_modules" {
            files_below(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

/// The groups that the test judges separately: the sources of each crate, the decisions, and all
/// other pages.
fn groups() -> Vec<(String, Vec<PathBuf>)> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).expect("the workspace");
    let below = |folder: &str, extension: &str| {
        let mut files = Vec::new();
        files_below(&tree.join(folder), extension, &mut files);
        files
    };
    let (decisions, mut pages): (Vec<_>, Vec<_>) = below("docs", "md")
        .into_iter()
        .partition(|page| page.starts_with(tree.join("docs/decisions")));
    pages.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(|name| tree.join(name)));
    let mut groups = vec![("decisions".to_owned(), decisions), ("pages".to_owned(), pages)];
    groups.push(("xtask".to_owned(), below("xtask", "rs")));
    for room in fs::read_dir(tree.join("crates")).expect("crates/") {
        for folder in fs::read_dir(room.expect("an entry").path()).expect("a folder of crates") {
            let folder = folder.expect("a crate").path();
            let name =
                folder.strip_prefix(tree).expect("below the workspace").display().to_string();
            groups.push((name.clone(), below(&name, "rs")));
        }
    }
    groups
}

#[test]
fn sentences_are_easy_to_read() {
    let judge = Judge::new();
    let mut report = String::new();
    for (name, files) in groups() {
        let mut count = Count::default();
        files.iter().for_each(|file| judge.count(file, &mut count));
        let share = |flagged: usize| 100.0 * flagged as f64 / count.sentences.max(1) as f64;
        let (flagged, headless) = (share(count.flagged.len()), share(count.headless));
        if count.sentences >= MIN_SENTENCES && (flagged > MAX_FLAGGED || headless > MAX_HEADLESS) {
            writeln!(
                report,
                "{name}: {flagged:.1} of 100 sentences match a pattern (at most {MAX_FLAGGED}), \
                 {headless:.1} have no subject (at most {MAX_HEADLESS}):\n  {}",
                count.flagged.join("\n  ")
            )
            .expect("memory");
        }
    }
    assert!(report.is_empty(), "rewrite sentences until both counts are low enough\n{report}");
}

#[test]
fn the_prose_checker_finds_each_habit() {
    let folder = std::env::temp_dir().join(format!("prose-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let page = folder.join("page.md");
    let text = "# A title that is no sentence\n\nWhat is read before it is lost.\n\n\
        - The host sends `what is` to the target.\n- Who writes to it? Nobody knows the answer.\n\n\
        ```\nWhat is in here does not count.\n```\nThe target is told of the change by ctl.\n";
    fs::write(&page, text).expect("a page");
    let mut count = Count::default();
    Judge::new().count(&page, &mut count);
    fs::remove_dir_all(&folder).expect("its own folder");
    let lines = ["What is read", "Nobody knows", "The target is told"];
    assert_eq!((count.sentences, count.headless), (5, 1), "{:?}", count.flagged);
    assert_eq!(count.flagged.len(), lines.len(), "{:?}", count.flagged);
    for (flagged, line) in count.flagged.iter().zip(lines) {
        assert!(flagged.contains(line), "{flagged}");
    }
}
