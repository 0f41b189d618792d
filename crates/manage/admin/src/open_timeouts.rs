//! Runs operations that may hang on helper threads, so that a disk that does not respond does not
//! block all other changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Time limit for opening a disk, a key file or the configuration.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How many operations of a kind may hang at once: each keeps a thread until the system returns.
pub(crate) const STUCK_MAX: usize = 8;

/// The kinds of operation. Each has its own limit: an unreadable configuration must not keep disks
/// from opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aside {
    /// Opens a disk.
    Disk,
    /// Reads a host's keys.
    Key,
    /// Reads the configuration.
    #[cfg_attr(not(unix), allow(dead_code, reason = "nothing has it read again there"))]
    Configuration,
    /// Measures, extends, locks or closes an open file.
    File,
}

const KINDS: usize = 4;

impl Aside {
    /// Words for the error: the hanging objects, and the operation.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Disk => ("disks do not answer", "open"),
            Self::Key => ("key files do not answer", "read"),
            Self::Configuration => ("readings of the configuration hang", "read"),
            Self::File => ("files do not answer", "use"),
        }
    }
}

/// Runs operations with a time limit.
#[derive(Clone, Debug)]
pub struct OpenTimeouts {
    longest: Duration,
    stuck: Arc<[AtomicUsize; KINDS]>,
}

impl Default for OpenTimeouts {
    fn default() -> Self {
        Self::new(OPEN_TIMEOUT)
    }
}

/// Decrements the count on drop, however the operation ends.
struct Counted(Arc<[AtomicUsize; KINDS]>, Aside);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0[self.1 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether the caller still waits for the operation.
#[derive(Clone, Default)]
pub(crate) struct Wanted(Arc<AtomicU8>);

const PENDING: u8 = 0;
const CLAIMED: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Wanted {
    fn settle(&self, to: u8) -> bool {
        let (before, after) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.compare_exchange(PENDING, to, before, after).is_ok()
    }

    /// Whether the caller still waits. Check this before any side effect.
    pub(crate) fn is(&self) -> bool {
        self.0.load(Ordering::Acquire) != GIVEN_UP
    }

    /// Makes the caller wait for the result without a time limit: the operation must return at once
    /// afterwards. False if the caller has given up.
    pub(crate) fn claim(&self) -> bool {
        self.settle(CLAIMED)
    }
}

impl OpenTimeouts {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, stuck: Arc::default() }
    }

    /// Runs `work`. A result that comes too late is dropped.
    ///
    /// # Errors
    /// One sentence: the operation's error, or that it takes too long.
    pub fn with<T: Send + 'static>(
        &self,
        kind: Aside,
        what: &str,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.while_wanted(kind, what, move |_| work())
    }

    /// Like [`OpenTimeouts::with`], for work that checks whether the caller still waits.
    ///
    /// # Errors
    /// One sentence: the operation's error, or that it takes too long.
    pub(crate) fn while_wanted<T: Send + 'static>(
        &self,
        kind: Aside,
        what: &str,
        work: impl FnOnce(&Wanted) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let (those, to_do) = kind.words();
        let before = self.stuck[kind as usize].fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&self.stuck), kind);
        if before >= STUCK_MAX {
            return Err(format!(
                "{STUCK_MAX} {those} already, so the target does not try {what}: repair the \
                 storage behind them, then try again"
            ));
        }
        let (sender, receiver) = channel();
        let wanted = Wanted::default();
        let seen = wanted.clone();
        let thread = std::thread::Builder::new().name("opening".to_owned()).spawn(move || {
            let done = work(&seen);
            drop(counted);
            // After the time limit there is no receiver.
            let _ = sender.send(done);
        });
        let thread = thread.map_err(|error| {
            format!("{what} cannot be opened: no thread could be started: {error}")
        })?;
        let done = match receiver.recv_timeout(self.longest) {
            Err(RecvTimeoutError::Timeout) if !wanted.settle(GIVEN_UP) => {
                receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
            done => done,
        };
        match done {
            Ok(done) => {
                // The thread is done. Join it: a process that drops its rights must have one
                // thread.
                let _ = thread.join();
                done
            }
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "{what} does not answer: the target could not {to_do} it within {} seconds; repair \
                 the storage behind it, then try again",
                self.longest.as_secs_f64()
            )),
            Err(RecvTimeoutError::Disconnected) => Err(format!("{what}: opening it has failed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Longer than any operation here takes unless it hangs.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_hangs_of_one_kind_leaves_the_others_their_threads() {
        let patience = OpenTimeouts::new(Duration::from_millis(10));
        let (go_on, may_go_on) = channel::<()>();
        let may_go_on = Arc::new(Mutex::new(may_go_on));
        let hang = |kind: Aside| {
            let may_go_on = Arc::clone(&may_go_on);
            patience.with(kind, "it", move || {
                let _ = may_go_on.lock().unwrap().recv();
                Ok(())
            })
        };
        for kind in [Aside::Configuration, Aside::Key, Aside::File] {
            for count in 0..STUCK_MAX {
                let refused = hang(kind).expect_err("nobody lets it go");
                assert!(refused.contains("does not answer"), "{count}: {refused}");
            }
            let refused = hang(kind).expect_err("there are too many");
            assert!(refused.contains(kind.words().0), "{refused}");
            assert!(refused.contains("already"), "{refused}");
        }
        let patient = OpenTimeouts { longest: LONG, ..patience.clone() };
        patient.with(Aside::Disk, "a disk", || Ok(())).expect("disks are another matter");
        drop(go_on);
        while patience.stuck.iter().any(|count| count.load(Ordering::Relaxed) > 0) {
            std::thread::yield_now();
        }
        patient.with(Aside::Configuration, "it", || Ok(())).expect("nothing hangs any more");
    }

    #[test]
    fn who_is_not_waited_for_is_told_and_who_claims_is_waited_for() {
        let patience = OpenTimeouts::new(Duration::from_millis(10));
        let (told, tells) = channel();
        let late = patience.while_wanted(Aside::File, "it", move |wanted| {
            while wanted.is() {
                std::thread::yield_now();
            }
            told.send(wanted.claim()).map_err(|error| error.to_string())
        });
        assert!(late.unwrap_err().contains("does not answer"));
        assert!(!tells.recv_timeout(LONG).expect("it ends"), "it could claim what was given up");
        // A slow machine may not start a thread in time: retry with more time.
        let claimed = (0..).find_map(|times| {
            let longest = Duration::from_millis(10 << times);
            let patience = OpenTimeouts { longest, ..patience.clone() };
            let claimed = patience.while_wanted(Aside::File, "it", move |wanted| {
                if !wanted.claim() {
                    return Ok(false);
                }
                std::thread::sleep(longest * 3);
                Ok(wanted.is())
            });
            claimed.ok()
        });
        assert_eq!(claimed, Some(true));
    }
}
