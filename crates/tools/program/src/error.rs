//! Errors for users: each one is a sentence.

use std::fmt;
use std::io;

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The request is invalid (exit code 2, as for an invalid command line).
    Usage(String),
    /// The request is valid, but failed (exit code 1).
    Run(String),
    /// The process has stopped cleanly, and its supervisor must start it again (exit code 75, as
    /// `EX_TEMPFAIL`).
    StartAgain(String),
    /// A signal stopped the command (exit code 130, as shells use for Ctrl-C).
    Interrupted(String),
    /// The reader of the standard output closed the pipe. Nothing is printed (exit code 0).
    OutputClosed,
    /// The failure was already reported (exit code 1).
    Reported,
}

/// The result of a command.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// Creates a [`Failure::Run`].
    pub fn run(sentence: impl fmt::Display) -> Failure {
        Failure::Run(sentence.to_string())
    }

    /// Creates a [`Failure::Usage`].
    pub fn usage(sentence: impl fmt::Display) -> Failure {
        Failure::Usage(sentence.to_string())
    }

    /// Returns the sentence, without the exit code.
    pub fn sentence(&self) -> &str {
        match self {
            Failure::Usage(text)
            | Failure::Run(text)
            | Failure::StartAgain(text)
            | Failure::Interrupted(text) => text,
            Failure::OutputClosed | Failure::Reported => "it ended",
        }
    }

    /// Creates the failure for an error when writing to the standard output.
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

/// Returns an operating system's error message, without Rust's `(os error 28)`.
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

/// Returns the failure to listen at `place`. `option` is the option that chooses another place.
pub fn listening(place: impl fmt::Display, error: &io::Error, option: &str) -> Failure {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse if error.raw_os_error().is_some() => {
            format!(
                "it is in use; choose another address with {option} (port 0 selects a free port)"
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("this machine has no such address; choose another address with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{}; choose another address with {option}", os(error))
        }
        _ => format!("{} ({option})", os(error)),
    };
    Failure::run(format_args!("cannot listen on {place}: {reason}"))
}

/// Returns the Unix message for a frequent error. Windows' own messages are in the user's language,
/// end with a full stop, and are long for sockets ("Only one usage of each socket address
/// (protocol/network address/port) is normally permitted.").
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
    fn system_errors_are_shown_without_their_number() {
        let error = io::Error::from_raw_os_error(2);
        assert!(!os(&error).contains("os error"), "{}", os(&error));
        assert_eq!(os(&io::Error::other("odd")), "odd");
    }
}
