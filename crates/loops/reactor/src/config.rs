//! How a reactor is made.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Which event loop.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum EngineKind {
    /// `Uring` where it works, else `Portable`.
    #[default]
    Auto,
    /// Linux io_uring.
    Uring,
    /// Readiness (epoll, kqueue, IOCP) and a thread pool for files.
    Portable,
    /// That of the simulated world that the thread is in.
    #[cfg(feature = "sim")]
    Sim,
}

impl EngineKind {
    /// The engines that this system has. `Uring` may still be forbidden.
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

/// The text names no engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseEngineError(String);

impl fmt::Display for ParseEngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no engine is called {:?}: use auto, uring or portable", self.0)
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

/// How long a loop that is told to look while it is busy ([`Polling::Busy`]) believes that it still
/// is: a solid-state disk over a network has answered by then, and what a keep-alive every few
/// seconds costs cannot be told.
const BUSY_IDLE: Duration = Duration::from_millis(1);

/// What a loop does before it sleeps: how much processor time may be spent on looking for work, for
/// the sake of the wake-ups that it saves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polling {
    /// `efficient`: it sleeps at once.
    Never,
    /// `balanced`: it looks for work for a while, up to `longest`, where that makes the same load
    /// faster and takes no more than six times the time of the work. It finds out by trying, and
    /// stops at once when there is nothing to do.
    Adaptive {
        /// The longest time that it looks before it sleeps.
        longest: Duration,
    },
    /// `latency`: it looks until nothing has come for so long, whatever it gains. Under load it
    /// uses its processor all the time, and hardly any when it is idle.
    Busy {
        /// Longer than what is waited for takes.
        idle: Duration,
    },
    /// `always`: it never sleeps, and uses its processor all the time.
    Always,
}

impl Polling {
    /// What people call them, the one that costs the least first.
    pub const NAMES: &[&str] = &["efficient", "balanced", "latency", "always"];

    /// Its name among [`Polling::NAMES`].
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

/// The text named no [`Polling`].
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

/// The most bytes of a stream that one call of the portable engine moves: for measuring what it is
/// worth that a call takes all that there is.
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
    /// Which event loop.
    pub engine: EngineKind,
    /// Whether `poll` looks for work before it sleeps.
    pub polling: Polling,
    /// Threads for file operations in the portable engine (at least one), started at the first of
    /// them.
    pub file_threads: usize,
    /// No limit, but for measuring.
    #[doc(hidden)]
    pub call_bytes: CallBytes,
}

impl Config {
    /// The usual, but for these.
    #[must_use]
    pub fn new(engine: EngineKind, polling: Polling) -> Config {
        Config { engine, polling, ..Config::default() }
    }
}

impl Default for Config {
    fn default() -> Config {
        // Not more than the files' own queues are worth. Linux, where this engine is the second
        // choice, has read-ahead and page cache behind few threads; Windows has no other engine.
        let file_threads = if cfg!(windows) { 16 } else { 4 };
        let (engine, polling, call_bytes) = Default::default();
        Config { engine, polling, file_threads, call_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
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
