//! SIGINT (Ctrl-C) and SIGTERM: the first asks the command to come to a clean end, the second ends
//! the process at once.

use crate::error::{Failure, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code after the second signal: what a shell says of a process that Ctrl-C ended.
const EXIT_CODE: i32 = 130;

/// Whether the process was asked to stop.
#[derive(Clone)]
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
    #[cfg(unix)]
    pipe: Arc<std::os::unix::net::UnixStream>,
}

impl Stop {
    /// Takes both signals over, for the rest of the process's life.
    pub(crate) fn install() -> Result<Stop> {
        Stop::try_install().map_err(|error| {
            Failure::run(format_args!("cannot handle signals: {}", crate::error::os(&error)))
        })
    }

    fn try_install() -> io::Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        #[cfg(unix)]
        let (read, write) = std::os::unix::net::UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset and sets it.
            signal_hook::flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            #[cfg(unix)]
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Stop {
            flag,
            #[cfg(unix)]
            pipe: Arc::new(read),
        })
    }

    /// Whether a signal has come.
    pub(crate) fn requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Sleeps until a signal comes, without waking up in between where the system allows that.
    pub(crate) fn wait(&self) {
        while !self.requested() {
            #[cfg(unix)]
            {
                use std::io::Read;
                let mut byte = [0];
                // An interrupted or failed read only means looking at the flag once more.
                if (&*self.pipe).read(&mut byte).is_err() {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
            }
            #[cfg(not(unix))]
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

/// A write beyond the limit on file sizes (`ulimit -f`) sends SIGXFSZ, which would end the process
/// without a word. Handled, the write fails with an error like any other.
pub(crate) fn survive_file_size_limit() {
    #[cfg(unix)]
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()) {
        tracing::debug!("cannot handle SIGXFSZ: {error}");
    }
}
