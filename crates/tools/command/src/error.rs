//! Errors for people: each is one sentence.

use std::fmt;
use std::io;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An invalid request (exit code 2, as for a bad command line).
    Usage(String),
    /// A valid request that failed (exit code 1).
    Run(String),
    /// A signal stopped the command (exit code 130, the shell's code for Ctrl-C).
    Interrupted(String),
    /// The reader of our output closed the pipe: print nothing (exit code 0).
    OutputClosed,
    /// A failure that was reported already (exit code 1).
    Reported,
}

/// The result of a command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A [`Failure::Run`].
    pub fn run(sentence: impl fmt::Display) -> Failure {
        Failure::Run(sentence.to_string())
    }

    /// A [`Failure::Usage`].
    pub fn usage(sentence: impl fmt::Display) -> Failure {
        Failure::Usage(sentence.to_string())
    }

    /// The sentence alone, for another kind of report.
    pub fn sentence(&self) -> &str {
        match self {
            Failure::Usage(text) | Failure::Run(text) | Failure::Interrupted(text) => text,
            Failure::OutputClosed | Failure::Reported => "it ended",
        }
    }

    /// A failure to write to the standard output.
    pub fn output(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Run(format!("cannot write to the standard output: {}", os(error))),
        }
    }
}

impl From<farblock_host::Error> for Failure {
    fn from(error: farblock_host::Error) -> Failure {
        Failure::run(error)
    }
}

impl From<farblock_backends::OpenError> for Failure {
    fn from(error: farblock_backends::OpenError) -> Failure {
        Failure::run(error)
    }
}

/// An operating system's error message, without Rust's `(os error 28)`.
pub fn os(error: &io::Error) -> String {
    if cfg!(windows)
        && let Some(words) = words_for_windows(error.kind())
    {
        return words.to_owned();
    }
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

/// The failure to listen at `place`, and the option that chooses another place.
pub fn listening(place: impl fmt::Display, error: &io::Error, option: &str) -> Failure {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse if error.raw_os_error().is_some() => {
            format!("it is in use; choose another one with {option} (port 0 takes a free one)")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("this machine has no such address; choose another one with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{}; choose another one with {option}", os(error))
        }
        _ => format!("{} ({option})", os(error)),
    };
    Failure::run(format_args!("cannot listen on {place}: {reason}"))
}

/// Unix messages for the most frequent errors. Windows' own messages are in the user's language,
/// are long for sockets ("Only one usage of each socket address (protocol/network address/port) is
/// normally permitted."), and end with a full stop.
fn words_for_windows(kind: io::ErrorKind) -> Option<&'static str> {
    use io::ErrorKind;
    Some(match kind {
        ErrorKind::AddrInUse => "Address already in use",
        ErrorKind::AddrNotAvailable => "Cannot assign requested address",
        ErrorKind::BrokenPipe => "Broken pipe",
        ErrorKind::ConnectionAborted => "Connection aborted",
        ErrorKind::ConnectionRefused => "Connection refused",
        ErrorKind::ConnectionReset => "Connection reset by peer",
        ErrorKind::HostUnreachable => "No route to host",
        ErrorKind::IsADirectory => "Is a directory",
        ErrorKind::NetworkUnreachable => "Network is unreachable",
        ErrorKind::NotADirectory => "Not a directory",
        ErrorKind::NotFound => "No such file or directory",
        ErrorKind::PermissionDenied => "Permission denied",
        ErrorKind::StorageFull => "No space left on device",
        ErrorKind::TimedOut => "Connection timed out",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_are_words_only() {
        let error = io::Error::from_raw_os_error(2);
        assert!(!os(&error).contains("os error"), "{}", os(&error));
        assert_eq!(os(&io::Error::other("odd")), "odd");
    }
}
