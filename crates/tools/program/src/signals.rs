//! SIGINT (Ctrl-C), SIGTERM and the events of a Windows console. The first one requests a clean
//! stop, and the second stops the process at once. A server survives SIGHUP, SIGUSR1, SIGUSR2 and
//! SIGXFSZ, which kill a process by default.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use crate::error::{Failure, Result};
#[cfg(target_os = "linux")]
pub use unix::on_each;
#[cfg(unix)]
pub use unix::{Hangup, Stop, outlive_others, survive_file_size_limit};
#[cfg(windows)]
pub use windows::on_each;
#[cfg(windows)]
pub use windows::{Stop, outlive_others, survive_file_size_limit};

/// The exit code after the second signal: the code that shells show after Ctrl-C.
const EXIT_CODE: i32 = 130;

/// The time that the process has for a clean stop after its standard input has ended.
#[cfg(unix)]
const END_TIME: std::time::Duration = std::time::Duration::from_secs(5);

impl Stop {
    /// Handles SIGINT and SIGTERM, or the console events of Windows, until the process exits.
    pub fn install() -> Result<Stop> {
        installed(Stop::try_install())
    }

    /// Like [`install`](Stop::install), and also stops the process when the terminal closes.
    pub fn install_with_hangup() -> Result<Stop> {
        installed(Stop::try_install_with_hangup())
    }
}

/// Stops this process like SIGTERM when its standard input ends. Kills the process if it has not
/// stopped after 5 s.
#[cfg(unix)]
pub fn end_with_input() -> Result<()> {
    let watch = || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        for _ in 0..2 {
            let _ = signal_hook::low_level::raise(signal_hook::consts::SIGTERM);
            std::thread::sleep(END_TIME);
        }
    };
    let thread = std::thread::Builder::new().name("input".to_owned()).spawn(watch);
    thread.map(drop).map_err(|error| {
        Failure::run(format_args!("cannot start a thread: {}", crate::error::os(&error)))
    })
}

/// Stops this process like SIGTERM.
#[cfg(unix)]
pub fn stop_this_process() {
    let _ = signal_hook::low_level::raise(signal_hook::consts::SIGTERM);
}

/// Returns an error, because only Unix systems support a stop by the standard input.
#[cfg(not(unix))]
pub fn end_with_input() -> Result<()> {
    Err(Failure::usage("--end-with-input needs a Unix system: leave it out here"))
}

fn installed(stop: std::io::Result<Stop>) -> Result<Stop> {
    stop.map_err(|error| {
        Failure::run(format_args!("cannot handle signals: {}", crate::error::os(&error)))
    })
}
