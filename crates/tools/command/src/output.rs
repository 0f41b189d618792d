//! Writing to the terminal or the pipe: what every command prints goes through here, so that a
//! closed pipe is an ordinary end and never a panic.

use crate::error::{Failure, Result};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// What notes are called in the log.
pub const NOTES: &str = "farblock::notes";

/// Writes text to the standard output and flushes it.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Failure::output(&e))
}

/// Writes a value as JSON: on several lines for people who look at it.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("our own types are JSON");
    print(&format!("{text}\n"))
}

/// Writes a value as JSON on one line, for programs that wait for it.
pub fn print_json_line(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).expect("our own types are JSON");
    print(&format!("{text}\n"))
}

/// Columns that a table may have: those of the terminal, or 80 where there is none.
pub fn columns() -> usize {
    match terminal_size::terminal_size_of(io::stdout()) {
        Some((terminal_size::Width(columns), _)) => usize::from(columns),
        None => 80,
    }
}

/// Writes text to the standard error.
pub fn write_stderr(text: &str) -> io::Result<()> {
    io::stderr().lock().write_all(text.as_bytes())
}

/// Whether a program reads the standard error.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// From now on the standard error is for lines of the log alone, as a program reads it.
pub fn notes_go_to_the_log() {
    IS_LOG.store(true, Ordering::Relaxed);
}

/// Tells the person something that is no error and no result, if there is anybody to be told.
pub fn note(text: &str) {
    if IS_LOG.load(Ordering::Relaxed) {
        tracing::info!(target: NOTES, "{text}");
    } else {
        let _ = write_stderr(&format!("{text}\n"));
    }
}

/// Whether colours are welcome on the standard error: it is a terminal and nobody said otherwise
/// (<https://no-color.org>).
pub fn stderr_has_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}
