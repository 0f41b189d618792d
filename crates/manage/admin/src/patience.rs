//! What may hang, done aside: a disk that does not answer when it is opened must not keep everybody
//! from changing something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The longest that a disk, a key file or the configuration may take to be opened.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How many of a kind may hang at once: each has a thread until the system lets it go.
pub(crate) const STUCK_MAX: usize = 8;

/// What is done aside. Each kind has a bound of its own: a configuration that nobody can read keeps
/// no disk from being opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aside {
    /// A disk is opened.
    Disk,
    /// The keys of a host are read.
    Key,
    /// The configuration is read.
    #[cfg_attr(not(unix), allow(dead_code, reason = "nothing has it read again there"))]
    Configuration,
    /// A file that is open is measured, made longer, locked or closed.
    File,
}

const KINDS: usize = 4;

impl Aside {
    /// Those that hang, and what one was to do.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Disk => ("disks do not answer", "to be opened"),
            Self::Key => ("key files do not answer", "to be read"),
            Self::Configuration => ("readings of the configuration hang", "to be read"),
            Self::File => ("files do not answer", "for that"),
        }
    }
}

/// Waits for what is done aside, and not for ever.
#[derive(Clone, Debug)]
pub struct Patience {
    longest: Duration,
    stuck: Arc<[AtomicUsize; KINDS]>,
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

/// Counts one less when it goes, however the work ends.
struct Counted(Arc<[AtomicUsize; KINDS]>, Aside);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0[self.1 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether somebody waits for what is done aside.
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

    /// At the moment. What has an effect of its own is not begun any more when it is not.
    pub(crate) fn is(&self) -> bool {
        self.0.load(Ordering::Acquire) != GIVEN_UP
    }

    /// Whether somebody takes what the work gives; from now on it is waited for, so it has to come
    /// at once.
    pub(crate) fn claim(&self) -> bool {
        self.settle(CLAIMED)
    }
}

impl Patience {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, stuck: Arc::default() }
    }

    /// Does this with `what`. What comes of it too late is dropped.
    ///
    /// # Errors
    /// One sentence: that of the work, or that it takes too long.
    pub fn with<T: Send + 'static>(
        &self,
        kind: Aside,
        what: &str,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.while_wanted(kind, what, move |_| work())
    }

    /// The same for work that looks whether it is wanted still.
    ///
    /// # Errors
    /// One sentence: that of the work, or that it takes too long.
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
                "{STUCK_MAX} {those} already, so {what} is not tried: see what is wrong with what \
                 stores them, then try again"
            ));
        }
        let (sender, receiver) = channel();
        let wanted = Wanted::default();
        let seen = wanted.clone();
        let thread = std::thread::Builder::new().name("opening".to_owned()).spawn(move || {
            let done = work(&seen);
            drop(counted);
            // Nobody waits any more if it came too late.
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
                // It has nothing more to do, and a process that gives up rights is to have one.
                let _ = thread.join();
                done
            }
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "{what} does not answer: it was given {} seconds {to_do}; see what is wrong with \
                 what stores it, then try again",
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

    /// Longer than anything here takes that does not hang.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_hangs_of_one_kind_leaves_the_others_their_threads() {
        let patience = Patience::new(Duration::from_millis(10));
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
        let patient = Patience { longest: LONG, ..patience.clone() };
        patient.with(Aside::Disk, "a disk", || Ok(())).expect("disks are another matter");
        drop(go_on);
        while patience.stuck.iter().any(|count| count.load(Ordering::Relaxed) > 0) {
            std::thread::yield_now();
        }
        patient.with(Aside::Configuration, "it", || Ok(())).expect("nothing hangs any more");
    }

    #[test]
    fn who_is_not_waited_for_is_told_and_who_claims_is_waited_for() {
        let patience = Patience::new(Duration::from_millis(10));
        let (told, tells) = channel();
        let late = patience.while_wanted(Aside::File, "it", move |wanted| {
            while wanted.is() {
                std::thread::yield_now();
            }
            told.send(wanted.claim()).map_err(|error| error.to_string())
        });
        assert!(late.unwrap_err().contains("does not answer"));
        assert!(!tells.recv_timeout(LONG).expect("it ends"), "it could claim what was given up");
        // A thread may take longer to begin than it is given: then it is given more.
        let claimed = (0..).find_map(|times| {
            let longest = Duration::from_millis(10 << times);
            let patience = Patience { longest, ..patience.clone() };
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
