//! Runs operations that may hang, such as opening a disk, on helper threads. So a disk that does
//! not answer does not block other changes of the configuration.

use std::any::Any;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time limit for opening a disk, a key file or the configuration.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of hanging operations of each kind. Each keeps a thread until its system call
/// returns.
pub const STUCK_MAX: usize = 8;

/// The kinds of operations that may hang. Each kind has its own limit, so that an unreadable
/// configuration does not prevent the target from opening disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aside {
    /// Opening a disk.
    Disk,
    /// Reading the keys of a host.
    Key,
    /// Reading the configuration.
    #[cfg_attr(
        not(unix),
        allow(dead_code, reason = "only a target on Unix rereads its configuration")
    )]
    Configuration,
    /// Measuring, extending, locking or closing an open file.
    File,
}

const KINDS: usize = 4;

impl Aside {
    /// For errors: which objects hang, and the verb of the operation.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Disk => ("disks do not answer", "open"),
            Self::Key => ("key files do not answer", "read"),
            Self::Configuration => ("reads of the configuration hang", "read"),
            Self::File => ("files do not answer", "use"),
        }
    }
}

/// Runs operations on helper threads, with a time limit.
#[derive(Clone, Debug)]
pub struct OpenTimeouts {
    longest: Duration,
    stuck: Arc<[AtomicUsize; KINDS]>,
    unclosed: Unclosed,
}

/// Storage to close.
type Unclosed = Arc<Mutex<Vec<Box<dyn Any + Send>>>>;

impl Default for OpenTimeouts {
    fn default() -> Self {
        Self::new(OPEN_TIMEOUT)
    }
}

/// Decrements the count of running operations when dropped, even by a panic.
struct Counted(Arc<[AtomicUsize; KINDS]>, Aside);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0[self.1 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Shared by an operation and its caller: whether the caller still waits.
#[derive(Clone, Default)]
pub struct Wanted(Arc<AtomicU8>);

const PENDING: u8 = 0;
const CLAIMED: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Wanted {
    fn settle(&self, to: u8) -> bool {
        let (before, after) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.compare_exchange(PENDING, to, before, after).is_ok()
    }

    /// Whether the caller still waits. An operation must check this before it has side effects.
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Acquire) != GIVEN_UP
    }

    /// Makes the caller wait for the result without a time limit. The operation must then finish
    /// soon. False if the caller has already timed out.
    pub fn claim(&self) -> bool {
        self.settle(CLAIMED)
    }
}

impl OpenTimeouts {
    /// Limits each operation to `longest`.
    pub fn new(longest: Duration) -> Self {
        Self { longest, stuck: Arc::default(), unclosed: Unclosed::default() }
    }

    /// Runs `work` on a helper thread. Drops a result that arrives after the time limit.
    ///
    /// # Errors
    /// Returns one sentence: the error of the operation, or that the operation takes too long.
    pub fn with<T: Send + 'static>(
        &self,
        kind: Aside,
        what: &str,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        self.while_wanted(kind, what, move |_| work())
    }

    /// Closes storage on a helper thread, because closing a file may hang. Logs a warning if it
    /// takes too long. If too many operations hang already, the storage stays open until the next
    /// call of this function. The calling thread itself never closes storage, because it must not
    /// hang.
    pub fn close(&self, what: &str, storage: impl Any + Send) {
        let next = |unclosed: &Unclosed| {
            let mut unclosed = unclosed.lock().unwrap_or_else(PoisonError::into_inner);
            unclosed.pop()
        };
        let unclosed = Arc::clone(&self.unclosed);
        unclosed.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(storage));
        let closed = self.with(Aside::File, what, move || {
            while let Some(storage) = next(&unclosed) {
                drop(storage);
            }
            Ok(())
        });
        if let Err(problem) = closed {
            tracing::warn!("the target has removed {what}, but has not closed it yet: {problem}");
        }
    }

    /// Like [`OpenTimeouts::with`], for an operation that checks whether the caller still waits.
    ///
    /// # Errors
    /// Returns one sentence: the error of the operation, or that the operation takes too long.
    pub fn while_wanted<T: Send + 'static>(
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
                "{STUCK_MAX} {those}, so the target does not try {what}: repair the storage behind \
                 them, then try again"
            ));
        }
        let (sender, receiver) = channel();
        let wanted = Wanted::default();
        let seen = wanted.clone();
        let thread = std::thread::Builder::new().name("opening".to_owned()).spawn(move || {
            let done = work(&seen);
            drop(counted);
            // After the time limit the caller no longer receives, so sending fails.
            let _ = sender.send(done);
        });
        let thread = thread
            .map_err(|error| format!("cannot open {what}: cannot start a thread: {error}"))?;
        let done = match receiver.recv_timeout(self.longest) {
            Err(RecvTimeoutError::Timeout) if !wanted.settle(GIVEN_UP) => {
                receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
            }
            done => done,
        };
        match done {
            Ok(done) => {
                // The thread has finished. Join it: a process that is about to drop its rights may
                // have only one thread.
                let _ = thread.join();
                done
            }
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "{what} does not answer: the target could not {to_do} it within {} seconds; \
                 repair the storage behind it, then try again",
                self.longest.as_secs_f64()
            )),
            Err(RecvTimeoutError::Disconnected) => Err(format!("opening {what} failed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Longer than any operation of these tests, except those that hang.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn hanging_operations_of_one_kind_do_not_block_other_kinds() {
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
                let refused = hang(kind).expect_err("the task hangs");
                assert!(refused.contains("does not answer"), "{count}: {refused}");
            }
            let refused = hang(kind).expect_err("too many tasks hang");
            assert!(refused.contains(kind.words().0), "{refused}");
            assert!(refused.contains("so the target does not try"), "{refused}");
        }
        let patient = OpenTimeouts { longest: LONG, ..patience.clone() };
        patient.with(Aside::Disk, "a disk", || Ok(())).expect("disks have their own limit");
        drop(go_on);
        while patience.stuck.iter().any(|count| count.load(Ordering::Relaxed) > 0) {
            std::thread::yield_now();
        }
        patient.with(Aside::Configuration, "it", || Ok(())).expect("no task hangs");
    }

    #[test]
    fn closing_storage_does_not_block_the_caller_while_too_many_operations_hang() {
        struct Tells(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Tells {
            fn drop(&mut self) {
                let _ = self.0.send(std::thread::current().id());
            }
        }
        let patience = OpenTimeouts::new(LONG);
        let (tells, closed) = channel();
        patience.stuck[Aside::File as usize].store(STUCK_MAX, Ordering::Relaxed);
        patience.close("a disk", Tells(tells.clone()));
        assert!(closed.try_recv().is_err(), "the storage was closed on the calling thread");
        patience.stuck[Aside::File as usize].store(0, Ordering::Relaxed);
        patience.close("another disk", Tells(tells));
        for _ in 0..2 {
            let thread = closed.recv_timeout(LONG).expect("the storage is closed");
            assert_ne!(thread, std::thread::current().id());
        }
    }

    #[test]
    fn an_operation_that_timed_out_cannot_claim_its_result() {
        let patience = OpenTimeouts::new(Duration::from_millis(10));
        let (told, tells) = channel();
        let late = patience.while_wanted(Aside::File, "it", move |wanted| {
            while wanted.is() {
                std::thread::yield_now();
            }
            told.send(wanted.claim()).map_err(|error| error.to_string())
        });
        assert!(late.unwrap_err().contains("does not answer"));
        assert!(
            !tells.recv_timeout(LONG).expect("the operation ends"),
            "the operation claimed its result after the timeout"
        );
        // On a slow machine, the thread may start too late. Retry with more time.
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
