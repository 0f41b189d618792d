//! The configuration of a reactor.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The kind of event loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EngineKind {
    /// `Uring` if the system supports it, otherwise `Portable`.
    #[default]
    Auto,
    /// Linux io_uring.
    Uring,
    /// Readiness events (epoll, kqueue, IOCP), and a thread pool for files.
    Portable,
    /// The engine of the simulation that runs on the calling thread.
    #[cfg(feature = "sim")]
    Sim,
}

impl EngineKind {
    /// The engines that this operating system can have. A Linux system may still forbid io_uring.
    pub const HERE: &[EngineKind] = if cfg!(target_os = "linux") {
        &[EngineKind::Uring, EngineKind::Portable]
    } else {
        &[EngineKind::Portable]
    };
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            EngineKind::Auto => "auto",
            EngineKind::Uring => "uring",
            EngineKind::Portable => "portable",
            #[cfg(feature = "sim")]
            EngineKind::Sim => "sim",
        })
    }
}

/// The error for a text that is not the name of an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseEngineError(String);

impl fmt::Display for ParseEngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an engine: use auto, uring or portable", self.0)
    }
}

impl std::error::Error for ParseEngineError {}

impl FromStr for EngineKind {
    type Err = ParseEngineError;

    fn from_str(text: &str) -> Result<EngineKind, ParseEngineError> {
        match text {
            "auto" => Ok(EngineKind::Auto),
            "uring" => Ok(EngineKind::Uring),
            "portable" => Ok(EngineKind::Portable),
            _ => Err(ParseEngineError(text.to_owned())),
        }
    }
}

/// The default time for which a loop with [`Polling::Busy`] busy-polls after its last work. A
/// remote solid-state disk answers a request in less time. The cost after a keep-alive every few
/// seconds is not measurable.
const BUSY_IDLE: Duration = Duration::from_millis(1);

/// Whether a loop busy-polls (checks for work) before it sleeps. Busy-polling saves wake-ups but
/// uses processor time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polling {
    /// `efficient`: the loop sleeps immediately.
    Never,
    /// `balanced`: before each sleep, the loop busy-polls for up to `longest` if its measurements
    /// show that this speeds up the load. It busy-polls for at most six times the time that it
    /// works, and never while it is idle.
    Adaptive {
        /// The longest time that the loop busy-polls before it sleeps.
        longest: Duration,
    },
    /// `latency`: the loop busy-polls until no work has arrived for `idle`, without measuring the
    /// gain. Under load it uses a whole processor, and while it is idle almost none.
    Busy {
        /// The time that the loop busy-polls after its last work. It must be longer than the
        /// expected response times.
        idle: Duration,
    },
    /// `always`: the loop never sleeps, and always uses a whole processor.
    Always,
}

impl Polling {
    /// The names for configuration files and options, from the least to the most processor time.
    pub const NAMES: &[&str] = &["efficient", "balanced", "latency", "always"];

    /// Returns the name in [`Polling::NAMES`].
    pub fn name(self) -> &'static str {
        match self {
            Polling::Never => "efficient",
            Polling::Adaptive { .. } => "balanced",
            Polling::Busy { .. } => "latency",
            Polling::Always => "always",
        }
    }
}

impl Default for Polling {
    fn default() -> Polling {
        Polling::Adaptive { longest: Duration::from_micros(200) }
    }
}

impl fmt::Display for Polling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a text that is not the name of a [`Polling`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParsePollingError(String);

impl fmt::Display for ParsePollingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not one of {}", self.0, Polling::NAMES.join(", "))
    }
}

impl std::error::Error for ParsePollingError {}

impl FromStr for Polling {
    type Err = ParsePollingError;

    fn from_str(text: &str) -> Result<Polling, ParsePollingError> {
        match text {
            "efficient" => Ok(Polling::Never),
            "balanced" => Ok(Polling::default()),
            "latency" => Ok(Polling::Busy { idle: BUSY_IDLE }),
            "always" => Ok(Polling::Always),
            _ => Err(ParsePollingError(text.to_owned())),
        }
    }
}

/// The limit on the bytes of a stream that one system call of the portable engine transfers.
/// Benchmarks set it to measure the gain of large calls.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallBytes {
    pub send: usize,
    pub receive: usize,
}

impl Default for CallBytes {
    fn default() -> CallBytes {
        CallBytes { send: usize::MAX, receive: usize::MAX }
    }
}

/// Options of a reactor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The kind of event loop.
    pub engine: EngineKind,
    /// Whether `poll` busy-polls before it sleeps.
    pub polling: Polling,
    /// Number of threads for file operations in the portable engine (at least one). The threads
    /// start with the first file operation.
    pub file_threads: usize,
    /// Limits the bytes of one system call. Only benchmarks set a limit.
    #[doc(hidden)]
    pub call_bytes: CallBytes,
}

impl Config {
    /// Returns the default options, except for `engine` and `polling`.
    #[must_use]
    pub fn new(engine: EngineKind, polling: Polling) -> Config {
        Config { engine, polling, ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Config {
        // On Windows, this is the only engine, and all file operations use these threads. On Linux,
        // this engine is a fallback, and few threads suffice because of the page cache.
        let file_threads = if cfg!(windows) { 16 } else { 4 };
        let (engine, polling, call_bytes) = Default::default();
        Config { engine, polling, file_threads, call_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_engines_and_polling_round_trip() {
        for kind in [EngineKind::Auto, EngineKind::Uring, EngineKind::Portable] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for name in Polling::NAMES {
            assert_eq!(name.parse::<Polling>().unwrap().name(), *name);
        }
        assert_eq!("balanced".parse(), Ok(Polling::default()));
        let refused = "fast".parse::<Polling>().unwrap_err().to_string();
        assert_eq!(refused, "\"fast\" is not one of efficient, balanced, latency, always");
        assert!("epoll".parse::<EngineKind>().unwrap_err().to_string().contains("epoll"));
    }
}
