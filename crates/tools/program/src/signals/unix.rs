//! Unix signals. SIGINT and SIGTERM stop a process, and SIGHUP stops an interactive command. A
//! server survives SIGHUP, SIGUSR1 and SIGUSR2.

use super::EXIT_CODE;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Tells whether a signal has requested a stop of this process.
#[derive(Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    pipe: Arc<UnixStream>,
}

impl Stop {
    pub(super) fn try_install() -> io::Result<Stop> {
        Stop::on(&[SIGINT, SIGTERM])
    }

    /// Also stops the process when the terminal closes (SIGHUP), unless `nohup` or a similar tool
    /// made it ignore SIGHUP.
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
            // Register in this order. At the first signal, the conditional shutdown finds the flag
            // unset, and then the second handler sets the flag. The next signal shuts down.
            signal_hook::flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Stop { flag, pipe: Arc::new(read) })
    }

    /// Whether a signal has arrived.
    pub fn requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Sleeps until a signal arrives, without polling.
    pub fn wait(&self) {
        while !self.requested() {
            let mut byte = [0];
            // Continue after an interrupted or failed read: the loop checks the flag.
            if (&*self.pipe).read(&mut byte).is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Whether the parent process made this process ignore the signal. True if that is unknown.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Calls `heard` on a thread for each SIGINT and SIGTERM. Ignores SIGHUP, SIGUSR1 and SIGUSR2,
/// which would kill this process and so remove the disk that it attached.
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

/// Prevents SIGHUP, SIGUSR1 and SIGUSR2 from killing a target, for example when a terminal closes
/// or a tool rotates logs. The returned value receives the SIGHUPs.
pub fn outlive_others() -> io::Result<Hangup> {
    for signal in [SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let (read, write) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGHUP, write)?;
    Ok(Hangup(read))
}

/// The receiver of SIGHUPs. Signals that arrive during one call of the handler count as one.
pub struct Hangup(UnixStream);

impl Hangup {
    /// Calls `heard` for each SIGHUP, on a thread.
    pub fn on_each(mut self, mut heard: impl FnMut() + Send + 'static) -> io::Result<()> {
        // Each signal writes a byte to the pipe. A full pipe loses only repeated signals.
        let answer = move || {
            while self.0.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
                heard();
            }
        };
        std::thread::Builder::new().name("hangup".to_owned()).spawn(answer).map(drop)
    }
}

/// Handles SIGXFSZ, so that a write beyond the file size limit (`ulimit -f`) fails with an error.
/// Without the handler, the signal would kill the process silently.
pub fn survive_file_size_limit() {
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default()) {
        tracing::debug!("cannot handle SIGXFSZ: {error}");
    }
}
