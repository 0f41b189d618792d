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

/// What a loop does before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polling {
    /// It sleeps at once.
    Never,
    /// It looks for work for a while, up to `longest`, where that makes the same load faster and
    /// takes no more than six times the time of the work. It finds out by trying, and stops at once
    /// when there is nothing to do.
    Adaptive {
        /// The longest time that it looks before it sleeps.
        longest: Duration,
    },
    /// It never sleeps, and uses its processor all the time.
    Always,
}

impl Default for Polling {
    fn default() -> Polling {
        Polling::Adaptive { longest: Duration::from_micros(200) }
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
    fn engine_names_round_trip() {
        for kind in [EngineKind::Auto, EngineKind::Uring, EngineKind::Portable] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("epoll".parse::<EngineKind>().unwrap_err().to_string().contains("epoll"));
    }
}
