//! Prints the events of a demonstration, and measures how long I/O paused.

use super::args::DemoArgs;
use super::load::{Load, WRITERS};
use crate::error::Result;
use farblock_program::args::Global;
use farblock_program::output;
use farblock_program::signals::Stop;
use std::time::{Duration, Instant};

/// Prints the events with the time since the start.
pub(super) struct Teller<'a> {
    stop: &'a Stop,
    load: &'a Load,
    pub(super) began: Instant,
    until: Option<Instant>,
    quiet: bool,
    /// The longest pause, and its cause.
    pub(super) longest: Option<(Duration, String)>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(
        stop: &'a Stop,
        load: &'a Load,
        args: &DemoArgs,
        global: &Global,
    ) -> Teller<'a> {
        let began = Instant::now();
        let until = args.duration.and_then(|duration| began.checked_add(duration));
        Teller { stop, load, began, until, quiet: global.quiet, longest: None }
    }

    pub(super) fn say(&self, sentence: &str) -> Result<()> {
        let seconds = self.began.elapsed().as_secs();
        match self.quiet {
            true => Ok(()),
            false => {
                output::print(&format!("{:2}:{:02}  {sentence}\n", seconds / 60, seconds % 60))
            }
        }
    }

    /// Starts the measurement of the next pause. Returns the operations that each writer has done.
    pub(super) fn mark(&self) -> [u64; WRITERS] {
        self.load.longest();
        self.load.turns()
    }

    /// Whether each writer has done two more operations than in `before`.
    pub(super) fn has_settled(&self, before: [u64; WRITERS]) -> bool {
        self.load.turns().iter().zip(before).all(|(now, it)| *now > it + 1)
    }

    fn measured(&mut self, why: &str) -> [Duration; 2] {
        let [read, write] = self.load.longest();
        let longest = read.max(write);
        if self.longest.as_ref().is_none_or(|(before, _)| longest > *before) {
            self.longest = Some((longest, why.to_owned()));
        }
        [read, write]
    }

    /// Returns the longest I/O pause since [`Self::mark`], in words. `why` is its cause.
    pub(super) fn paused(&mut self, why: &str) -> String {
        let [read, write] = self.measured(why);
        match read.max(write) >= read.min(write) * 2 {
            true => format!("writes paused for {}, reads for {}", seconds(write), seconds(read)),
            false => format!("I/O paused for {}", seconds(read.max(write))),
        }
    }

    /// Returns the longest read and write since [`Self::mark`], in words. `why` is their cause.
    #[cfg(target_os = "linux")]
    pub(super) fn took(&mut self, why: &str) -> String {
        let [read, write] = self.measured(why).map(seconds);
        format!("longest write {write}, longest read {read}")
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_stopped() || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Whether the user chose a duration.
    #[cfg(target_os = "linux")]
    pub(super) fn has_end(&self) -> bool {
        self.until.is_some()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.requested()
    }
}

/// A duration in words.
pub(super) fn seconds(duration: Duration) -> String {
    match duration.as_millis() {
        ms @ 0..1000 => format!("{ms} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}
