//! Writes to the standard output and the standard error. All commands print through this module, so
//! that a closed pipe ends a command normally and never causes a panic.

use crate::error::{Failure, Result};
use farblock_wire::text::PlainJson;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The target (in the sense of `tracing`) of log lines that are notes for the user.
pub const NOTES: &str = "farblock::notes";

/// Prints text for people. A locale without UTF-8 gets ASCII replacements of symbols.
pub fn print(text: &str) -> Result<()> {
    print_exact(&spelled(text))
}

/// Writes text for programs to the standard output unchanged, and flushes it.
pub fn print_exact(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Failure::output(&e))
}

/// Writes a value as JSON, on several lines.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("our own types can be written as JSON");
    print_exact(&format!("{}\n", PlainJson(&text)))
}

/// Writes a value as JSON on one line, for programs that wait for the line.
pub fn print_json_line(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).expect("our own types can be written as JSON");
    print_exact(&format!("{}\n", PlainJson(&text)))
}

/// The non-ASCII symbols in this program's own texts, and their replacements.
const SYMBOLS: [(char, &str); 15] = [
    ('µ', "u"),
    ('▼', "v"),
    ('←', "<"),
    ('→', ">"),
    ('…', "..."),
    ('÷', "/"),
    ('×', "x"),
    ('–', "-"),
    ('−', "-"),
    ('─', "-"),
    ('·', "|"),
    ('≤', "<="),
    ('≥', ">="),
    ('±', "+-"),
    ('’', "'"),
];

/// Returns `text` unchanged if the user's locale is UTF-8, or else with ASCII replacements.
pub fn spelled(text: &str) -> Cow<'_, str> {
    static IS_UTF8: OnceLock<bool> = OnceLock::new();
    let is_utf8 = *IS_UTF8.get_or_init(|| {
        let names = ["LC_ALL", "LC_CTYPE", "LANG"].map(|name| std::env::var(name).ok());
        is_utf8(names.into_iter().flatten())
    });
    if is_utf8 { Cow::Borrowed(text) } else { Cow::Owned(in_ascii(text)) }
}

/// Whether the locale is UTF-8, by the values of the variables that set it, in order of precedence.
/// Returns true if none is set: terminals without a locale, as in containers, use UTF-8.
fn is_utf8(mut names: impl Iterator<Item = String>) -> bool {
    let Some(name) = names.find(|name| !name.is_empty()) else { return true };
    let name = name.to_ascii_lowercase();
    name.contains("utf-8") || name.contains("utf8")
}

fn in_ascii(text: &str) -> String {
    let mut spelled = String::with_capacity(text.len());
    for c in text.chars() {
        match SYMBOLS.iter().find(|(symbol, _)| *symbol == c) {
            Some((_, ascii)) => spelled.push_str(ascii),
            None => spelled.push(c),
        }
    }
    spelled
}

/// Returns the width for tables: the terminal's width, or 80 columns without a terminal.
pub fn columns() -> usize {
    match terminal_size::terminal_size_of(io::stdout()) {
        Some((terminal_size::Width(columns), _)) => usize::from(columns),
        None => 80,
    }
}

/// Writes text to the standard error.
pub fn write_stderr(text: &str) -> io::Result<()> {
    io::stderr().lock().write_all(spelled(text).as_bytes())
}

/// Whether a program reads the standard error as a log.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// Makes [`note`] write log lines from now on, for a program that reads the standard error.
pub fn notes_go_to_the_log() {
    IS_LOG.store(true, Ordering::Relaxed);
}

/// Shows a note: a message that is neither an error nor a result.
pub fn note(text: &str) {
    if IS_LOG.load(Ordering::Relaxed) {
        tracing::info!(target: NOTES, "{text}");
    } else {
        let _ = write_stderr(&format!("{text}\n"));
    }
}

/// Whether to use colours on the standard error: it is a terminal, and `NO_COLOR` is not set
/// (<https://no-color.org>).
pub fn stderr_has_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_become_ascii_in_a_locale_without_utf8() {
        let has = |names: &[&str]| is_utf8(names.iter().map(|name| (*name).to_owned()));
        assert!(has(&[]) && has(&["", "en_US.UTF-8"]) && has(&["C.utf8", "C"]));
        assert!(!has(&["C"]) && !has(&["POSIX", "en_US.UTF-8"]) && !has(&["de_DE.ISO-8859-1"]));
        assert_eq!(in_ascii("▼READ µs … – größe"), "vREAD us ... - größe");
        assert_eq!(in_ascii("a · b ≤ −1 → ’c’"), "a | b <= -1 > 'c'");
    }

    /// Checks that every symbol in the sources has a replacement in ASCII.
    #[test]
    fn every_symbol_of_the_sources_has_an_ascii_form() {
        let tools = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let rooms = ["storage", "frontends", "manage"].map(|room| tools.join("..").join(room));
        let mut folders: Vec<_> = rooms.into_iter().chain([tools]).collect();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)
                .expect("the folder can be read")
                .map(|it| it.expect("the entry can be read"))
            {
                let path = entry.path();
                let name = entry.file_name();
                if path.is_dir() && name != "tests" && name != "target" {
                    folders.push(path);
                } else if path.extension().is_some_and(|it| it == "rs") {
                    let text = std::fs::read_to_string(&path).expect("the file can be read");
                    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
                    let strange = |c: &char| !c.is_ascii() && !c.is_alphabetic();
                    let all: String = code.flat_map(str::chars).filter(strange).collect();
                    let rest: String = in_ascii(&all).chars().filter(strange).collect();
                    assert_eq!(rest, "", "{}", path.display());
                }
            }
        }
    }
}
