//! Signals of Unix: SIGINT and SIGTERM, SIGHUP for commands that a person waits for, and those that
//! have no meaning: SIGUSR1, SIGUSR2, and SIGHUP for what serves others.

use super::EXIT_CODE;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether the process was asked to end.
#[derive(Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    pipe: Arc<UnixStream>,
}

impl Stop {
    pub(super) fn try_install() -> io::Result<Stop> {
        Stop::on(&[SIGINT, SIGTERM])
    }

    /// The same for what a person waits for: the end of the terminal (SIGHUP) is one of it, too,
    /// unless `nohup` or the like has the command outlive it.
    pub(super) fn try_install_with_hangup() -> io::Result<Stop> {
        match is_ignored(SIGHUP) {
            true => Stop::try_install(),
            false => Stop::on(&[SIGINT, SIGTERM, SIGHUP]),
        }
    }

    fn on(signals: &[i32]) -> io::Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        let (read, write) = UnixStream::pair()?;
        for &signal in signals {
            // In this order: the first signal finds the flag unset and sets it.
            signal_hook::flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Stop { flag, pipe: Arc::new(read) })
    }

    /// Whether a signal has come.
    pub fn requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Sleeps until a signal comes, without waking up in between.
    pub fn wait(&self) {
        while !self.requested() {
            let mut byte = [0];
            // An interrupted or failed read only means looking at the flag once more.
            if (&*self.pipe).read(&mut byte).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Whether a signal was ignored already when the process started. Where that cannot be known, it
/// stays as it was.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Calls this for each signal that asks for an end, from a thread of its own. SIGHUP, SIGUSR1 and
/// SIGUSR2 ask for nothing, and do not end the process any more: a disk would lose who serves it.
#[cfg(target_os = "linux")]
pub fn on_each(mut heard: impl FnMut() + Send + 'static) -> io::Result<()> {
    for signal in [SIGHUP, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let (mut read, write) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    let watch = move || {
        let mut byte = [0];
        while read.read_exact(&mut byte).is_ok() {
            heard();
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

/// Sees to it that SIGHUP, SIGUSR1 and SIGUSR2 do not end the process: a terminal that is closed
/// and a script that rotates logs are no reason to take disks away from others. Gives what SIGHUP
/// is heard by.
pub fn outlive_others() -> io::Result<Hangup> {
    for signal in [SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let (read, write) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGHUP, write)?;
    Ok(Hangup(read))
}

/// SIGHUPs that have come: those that came while one was answered are one.
pub struct Hangup(UnixStream);

impl Hangup {
    /// Calls this for each, from a thread of its own.
    pub fn on_each(mut self, mut heard: impl FnMut() + Send + 'static) -> io::Result<()> {
        // Signals that find the pipe full are dropped: there is one that is not answered yet.
        let answer = move || {
            while self.0.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
                heard();
            }
        };
        std::thread::Builder::new().name("hangup".to_owned()).spawn(answer).map(drop)
    }
}

/// A write beyond the limit on file sizes (`ulimit -f`) sends SIGXFSZ, which would end the process
/// without a word. Handled, the write fails with an error like any other.
pub fn survive_file_size_limit() {
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()) {
        tracing::debug!("cannot handle SIGXFSZ: {error}");
    }
}
