//! Reports a failed command: a sentence on the standard error or in the log, and an exit code.

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
        // Ignore errors: with a closed standard error, the exit code is the only report.
        let _ = write_stderr(&format!("{start}error:{end} {}\n", shown(&sentence)));
        ExitCode::from(code)
    }

    /// Logs the sentence for a program that reads the log, and returns the exit code.
    pub fn report_in_log(&self) -> ExitCode {
        let Some((code, sentence)) = self.last_word() else { return self.silent_code() };
        tracing::error!("{sentence}");
        ExitCode::from(code)
    }

    /// Returns the exit code and the sentence to print, or `None` to print nothing.
    fn last_word(&self) -> Option<(u8, Cow<'_, str>)> {
        let (code, sentence) = match self {
            Failure::Usage(sentence) => (2, sentence),
            Failure::Run(sentence) => (1, sentence),
            Failure::StartAgain(sentence) => (75, sentence),
            Failure::Interrupted(sentence) => (130, sentence),
            Failure::OutputClosed | Failure::Reported => return None,
        };
        Some((code, advised(sentence)))
    }

    /// Returns the exit code of a failure without a sentence.
    fn silent_code(&self) -> ExitCode {
        if matches!(self, Failure::Reported) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// Adds advice to an error about too many open files. Any system call, in this process or in the
/// target, can fail like this.
fn advised(sentence: &str) -> Cow<'_, str> {
    if !sentence.contains("Too many open files") || sentence.contains("LimitNOFILE") {
        return Cow::Borrowed(sentence);
    }
    Cow::Owned(format!(
        "{sentence}; raise the limit of open files (LimitNOFILE= in the systemd unit, ulimit -n)"
    ))
}

/// Formats a sentence for a terminal. The sentence may have several lines and contain text from a
/// peer.
fn shown(sentence: &str) -> String {
    let lines: Vec<String> = sentence.split('\n').map(printable).collect();
    lines.join("\n")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn an_error_about_too_many_open_files_names_the_limit() {
        let error =
            Failure::run(format!("cannot open a.img: {}", io::Error::from_raw_os_error(24)));
        let (_, sentence) = error.last_word().expect("the failure has a sentence");
        assert!(sentence.contains("a.img") && sentence.contains("LimitNOFILE="), "{sentence}");
        assert_eq!(advised(&sentence), sentence, "the advice was added twice");
        assert_eq!(advised("cannot open a.img: No such file"), "cannot open a.img: No such file");
    }
}
