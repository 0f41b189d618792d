//! SIGINT (Ctrl-C) and SIGTERM, and what a Windows console has for them: the first asks the command
//! to come to a clean end, the second ends the process at once. Those that would end a process
//! only because it does not know them are outlived by what others depend on.

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

/// Exit code after the second signal: what a shell says of a process that Ctrl-C ended.
const EXIT_CODE: i32 = 130;

/// How long a process whose user has gone may take to finish what it has accepted.
#[cfg(unix)]
const END_TIME: std::time::Duration = std::time::Duration::from_secs(5);

impl Stop {
    /// Takes the signals over, for the rest of the process's life.
    pub fn install() -> Result<Stop> {
        installed(Stop::try_install())
    }

    /// The same for a command that ends with its terminal.
    pub fn install_with_hangup() -> Result<Stop> {
        installed(Stop::try_install_with_hangup())
    }
}

/// Has this process end as by SIGTERM when its standard input does, and if it takes too long, at
/// once.
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

/// Says that this system has none of that.
#[cfg(not(unix))]
pub fn end_with_input() -> Result<()> {
    Err(Failure::usage("--end-with-input needs a Unix system: leave it out here"))
}

fn installed(stop: std::io::Result<Stop>) -> Result<Stop> {
    stop.map_err(|error| {
        Failure::run(format_args!("cannot handle signals: {}", crate::error::os(&error)))
    })
}
