//! The end of a failed command: a sentence on the standard error or in the log, and an exit code.

use crate::error::Failure;
use crate::output::{stderr_has_colour, write_stderr};
use crate::table::printable;
use std::borrow::Cow;
use std::process::ExitCode;

impl Failure {
    /// Prints the sentence, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        let Some((code, sentence)) = self.last_word() else { return self.silent_code() };
        let red = stderr_has_colour();
        let (start, end) = if red { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        // If the standard error is closed too, only the exit code reports the failure.
        let _ = write_stderr(&format!("{start}error:{end} {}\n", shown(&sentence)));
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
    let lines: Vec<String> = sentence.split('\n').map(printable).collect();
    lines.join("\n")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io;

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
