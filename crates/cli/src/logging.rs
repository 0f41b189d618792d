//! Log lines on the standard error or, of who has none, in a file: warnings by default, more with
//! `-v` and `-vv`.

use std::fs::File;
use std::sync::Mutex;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Starts logging for the process; with the time for one that runs for long, and with what it does
/// for one that has only its log to say so.
pub(crate) fn start(verbose: u8, quiet: bool, time: bool, file: Option<File>) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) if file.is_some() => LevelFilter::INFO,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let (time, colour) = match &file {
        Some(_) => (true, false),
        None => (time || verbose > 0, crate::output::stderr_has_colour()),
    };
    let writer = match file {
        Some(file) => BoxMakeWriter::new(Mutex::new(file)),
        None => BoxMakeWriter::new(std::io::stderr),
    };
    let logger = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_ansi(colour)
        .with_target(verbose > 1)
        .log_internal_errors(false);
    if time { logger.init() } else { logger.without_time().init() }
}
