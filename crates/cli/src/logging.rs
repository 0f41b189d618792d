//! Log lines on the standard error: warnings by default, more with `-v` and `-vv`.

use tracing_subscriber::filter::LevelFilter;

/// Starts logging for the process; with the time for one that runs for long.
pub(crate) fn start(verbose: u8, quiet: bool, time: bool) {
    let level = match (quiet, verbose) {
        (true, _) => LevelFilter::ERROR,
        (false, 0) => LevelFilter::WARN,
        (false, 1) => LevelFilter::INFO,
        (false, 2) => LevelFilter::DEBUG,
        (false, _) => LevelFilter::TRACE,
    };
    let logger = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(crate::output::stderr_has_colour())
        .with_target(verbose > 1)
        .log_internal_errors(false);
    if time || verbose > 0 { logger.init() } else { logger.without_time().init() }
}
