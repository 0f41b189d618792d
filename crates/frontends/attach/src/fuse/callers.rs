//! Checks whether the thread that made a request has a signal to handle, or is exiting.
//!
//! The kernel reports signals by `FUSE_INTERRUPT`. The library (fuser 0.18) answers this message
//! and does not pass it on. So the threads that execute requests (the [cores](super::core)) check
//! for signals in `/proc`, but only for requests that have waited long.

use std::fs;

/// The flag `PF_EXITING` of the kernel's `task_struct`.
const EXITING: u32 = 4;
/// The index of the flags among the fields after the thread's name in `/proc/TID/stat`. Index 0 is
/// the thread's state.
const FLAGS_FIELD: usize = 6;

/// The kernel's ID of the thread that made a request. 0 if this process cannot see that thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Caller(pub(super) u32);

impl Caller {
    /// True if the thread has a signal to handle or is exiting. False if `/proc` does not show
    /// this.
    pub(super) fn is_interrupted(self) -> bool {
        let thread = self.0;
        let text = |what| fs::read_to_string(format!("/proc/{thread}/{what}")).unwrap_or_default();
        thread != 0 && (has_signal(&text("status")) || is_ending(&text("stat")))
    }
}

/// True if the thread has a pending signal that it does not block.
fn has_signal(status: &str) -> bool {
    let mask = |name| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") != 0
}

fn is_ending(stat: &str) -> bool {
    // The second field is the name in brackets, which may itself contain brackets.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let flags = fields.split_ascii_whitespace().nth(FLAGS_FIELD);
    flags.and_then(|flags| flags.parse::<u32>().ok()).is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_does_not_interrupt() {
        let status = |pending, shared, blocked| {
            format!("Name:\tdd\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n")
        };
        let none = "0000000000000000";
        let kill = "0000000000000100";
        assert!(!has_signal(&status(none, none, none)) && !has_signal(""));
        assert!(has_signal(&status(kill, none, none)) && has_signal(&status(none, kill, none)));
        assert!(!has_signal(&status(none, kill, kill)));
    }

    #[test]
    fn an_exiting_thread_is_recognized_by_its_flags() {
        assert!(is_ending("7 (a) b) D 1 7 7 0 -1 4194564 0 0"), "0x400104");
        assert!(!is_ending("7 (a) b) D 1 7 7 0 -1 4194560 0 0") && !is_ending(""));
        let own = fs::read_to_string("/proc/thread-self/stat").expect("a readable file");
        assert!(!is_ending(&own));
    }

    #[test]
    fn an_invisible_thread_does_not_count_as_interrupted() {
        assert!(!Caller::default().is_interrupted() && !Caller(u32::MAX).is_interrupted());
    }
}
