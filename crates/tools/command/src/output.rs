//! Writes to the terminal or the pipe. All commands print through this module, so that a closed
//! pipe is an ordinary end and never a panic.

use crate::error::{Failure, Result};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// The target of notes in the log.
pub const NOTES: &str = "farblock::notes";

/// Writes text to the standard output and flushes it.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| Failure::output(&e))
}

/// Writes a value as JSON, on several lines.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).expect("our own types are JSON");
    print(&format!("{text}\n"))
}

/// Writes a value as JSON on one line, for programs that wait for it.
pub fn print_json_line(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(value).expect("our own types are JSON");
    print(&format!("{text}\n"))
}

/// The width of tables: the terminal's, or 80 columns without one.
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

/// From now on, notes become log lines, since a program reads the standard error.
pub fn notes_go_to_the_log() {
    IS_LOG.store(true, Ordering::Relaxed);
}

/// Shows a note, which is neither an error nor a result.
pub fn note(text: &str) {
    if IS_LOG.load(Ordering::Relaxed) {
        tracing::info!(target: NOTES, "{text}");
    } else {
        let _ = write_stderr(&format!("{text}\n"));
    }
}

/// Whether to use colours on the standard error: if it is a terminal and `NO_COLOR` is not set
/// (<https://no-color.org>).
pub fn stderr_has_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && io::stderr().is_terminal()
}
