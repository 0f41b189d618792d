//! Logging to the standard error, or to a file if the process has no standard error.
//!
//! The default level is warnings; `-v` and `-vv` raise it, and `-q` lowers it. Without these
//! options, `RUST_LOG` sets the level. Lines are text for people, JSON, or lines in the format of
//! systemd's journal (decision 34).

mod lines;

use farblock_program::args::{Global, LogFormat};
use farblock_wire::text::Plain;
use std::fmt;
use std::fs::File;
use std::sync::Mutex;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::prelude::*;

/// The environment variable with a log level, or levels by crate.
const VARIABLE: &str = "RUST_LOG";

/// Starts logging for the process.
///
/// `time` adds the time, for long-running processes. A log file also gets informational lines,
/// because a process with a log file has no other output. Returns true if a program reads the log;
/// then the caller also logs its final error.
pub(crate) fn start(global: &Global, time: bool, file: Option<File>) -> bool {
    let Global { verbose, quiet, log_format, .. } = *global;
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) if file.is_some() => LevelFilter::INFO,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let asked = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let asked = asked.filter(|_| !quiet && verbose == 0);
    let wanted = asked.as_deref().map(str::parse::<Targets>);
    let by_variable = matches!(wanted, Some(Ok(_)));
    let filter = match &wanted {
        Some(Ok(targets)) => targets.clone(),
        // A server logs the failures of its I/O on remote disks, because no caller reports them.
        _ if time && !quiet => {
            let operations = level.max(LevelFilter::INFO);
            let quieter = Targets::new().with_default(level);
            let quieter = quieter.with_target("farblock_host::queue", operations);
            // The audit log and the notes for the operator appear at every level.
            let quieter = quieter.with_target(crate::output::NOTES, operations);
            quieter.with_target("farblock::audit", operations)
        }
        _ => Targets::new().with_default(level),
    };
    let in_file = file.is_some();
    let with_target = verbose > 1 || by_variable;
    let writer = match file {
        Some(file) => BoxMakeWriter::new(Mutex::new(file)),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .fmt_fields(fields())
        .with_ansi(!in_file && crate::output::stderr_has_colour())
        .with_target(with_target)
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter);
    let format = match log_format {
        LogFormat::Auto if !in_file && is_journal() => LogFormat::Journald,
        LogFormat::Auto => LogFormat::Text,
        format => format,
    };
    match format {
        LogFormat::Json => registry.with(layer.event_format(lines::Json)).init(),
        LogFormat::Journald => {
            let lines = lines::Journal { with_target };
            registry.with(layer.with_ansi(false).event_format(lines)).init();
        }
        _ if in_file || time || verbose > 0 || by_variable => registry.with(layer).init(),
        _ => registry.with(layer.without_time()).init(),
    }
    if let Some(Err(error)) = wanted {
        tracing::warn!(
            "cannot parse ${VARIABLE} ({error}): set it to a level such as info, or to levels by \
             crate such as farblock_target=debug,warn"
        );
    }
    let is_read = time && format != LogFormat::Text;
    if is_read {
        crate::output::notes_go_to_the_log();
    }
    is_read
}

/// Whether the standard error is systemd's journal. `JOURNAL_STREAM` may be inherited from another
/// process, so this function compares its device and inode numbers with the standard error's.
#[cfg(target_os = "linux")]
fn is_journal() -> bool {
    let Ok(journal) = std::env::var("JOURNAL_STREAM") else { return false };
    let Ok(found) = rustix::fs::fstat(std::io::stderr()) else { return false };
    journal == format!("{}:{}", found.st_dev, found.st_ino)
}

#[cfg(not(target_os = "linux"))]
fn is_journal() -> bool {
    false
}

/// Formats the message and the values of a line. Text from peers may contain control characters and
/// bidirectional ones. This function escapes them, so that the text remains one line that reads
/// from left to right.
fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    let write = |writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug| {
        let text = format!("{value:?}");
        let text = crate::output::spelled(&text);
        match field.name() {
            "message" => write!(writer, "{}", Plain(&text)),
            name => write!(writer, "{name}={}", Plain(&text)),
        }
    };
    format::debug_fn(write).delimited(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_direction_characters_are_escaped_in_log_lines() {
        let mut file = tempfile::tempfile().expect("the temporary file is created");
        let logger = tracing_subscriber::fmt()
            .with_writer(Mutex::new(file.try_clone().expect("the descriptor is duplicated")))
            .fmt_fields(fields())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .finish();
        tracing::subscriber::with_default(logger, || {
            tracing::warn!(host = %"a\u{202e}b\u{2028}c\x1b[2Jd\ne", "größe {}", "\u{2066}");
        });
        let mut text = String::new();
        std::io::Seek::rewind(&mut file).expect("the file is seekable");
        std::io::Read::read_to_string(&mut file, &mut text).expect("the file is readable");
        let line = r" WARN größe \u{2066} host=a\u{202e}b\u{2028}c\u{1b}[2Jd\u{a}e";
        assert_eq!(text, format!("{line}\n"));
    }
}
