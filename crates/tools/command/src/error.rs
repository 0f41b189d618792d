//! Errors for people: one sentence, and an exit code.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::process::ExitCode;

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

    /// Prints the sentence, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        let Some((code, sentence)) = self.last_word() else { return self.silent_code() };
        let red = crate::output::stderr_has_colour();
        let (start, end) = if red { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        // If the standard error is closed too, only the exit code reports the failure.
        let _ = crate::output::write_stderr(&format!("{start}error:{end} {}\n", shown(&sentence)));
        ExitCode::from(code)
    }

    /// Logs the sentence for a program, and returns the exit code.
    pub fn report_in_log(&self) -> ExitCode {
        let Some((code, sentence)) = self.last_word() else { return self.silent_code() };
        tracing::error!("{sentence}");
        ExitCode::from(code)
    }

    /// The exit code and the sentence to print; `None`: print nothing.
    fn last_word(&self) -> Option<(u8, Cow<'_, str>)> {
        let (code, sentence) = match self {
            Failure::Usage(sentence) => (2, sentence),
            Failure::Run(sentence) => (1, sentence),
            Failure::Interrupted(sentence) => (130, sentence),
            Failure::OutputClosed | Failure::Reported => return None,
        };
        Some((code, advised(sentence)))
    }

    /// The exit code of failures without a sentence.
    fn silent_code(&self) -> ExitCode {
        if matches!(self, Failure::Reported) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
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

/// Adds the remedy to a sentence which says that a process ran out of descriptors. Any system call
/// can fail like this, in every crate, in this process or in the target.
fn advised(sentence: &str) -> Cow<'_, str> {
    if !sentence.contains("Too many open files") || sentence.contains("LimitNOFILE") {
        return Cow::Borrowed(sentence);
    }
    Cow::Owned(format!(
        "{sentence}; raise the limit of open files (LimitNOFILE= in the systemd unit, ulimit -n)"
    ))
}

/// A sentence for a terminal; it may have several lines and contain a peer's text.
fn shown(sentence: &str) -> String {
    let lines: Vec<String> = sentence.split('\n').map(crate::table::printable).collect();
    lines.join("\n")
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
    #[cfg(unix)]
    #[test]
    fn a_lack_of_descriptors_names_the_limit() {
        let error =
            Failure::run(format!("cannot open a.img: {}", io::Error::from_raw_os_error(24)));
        let (_, sentence) = error.last_word().expect("a sentence");
        assert!(sentence.contains("a.img") && sentence.contains("LimitNOFILE="), "{sentence}");
        assert_eq!(advised(&sentence), sentence, "only once");
        assert_eq!(advised("cannot open a.img: No such file"), "cannot open a.img: No such file");
    }
}
