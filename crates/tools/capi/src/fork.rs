//! Detects a fork. A child process has its parent's handles, but not the threads behind them. The
//! child must not change state that it shares with the parent, and must not wait for a lock that a
//! thread of the parent held. Windows has no fork.

#[cfg(unix)]
use farblock_host::HostIdentity;
#[cfg(unix)]
use farblock_host::control_loops::{Held, hold};
#[cfg(unix)]
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(unix)]
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The number of forks between this process and the process that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[cfg(unix)]
static WATCH: Once = Once::new();

/// The lock that a thread holds while it initialises per-process state.
#[cfg(unix)]
static SETUP: Mutex<()> = Mutex::new(());

#[cfg(unix)]
thread_local! {
    /// The locks of per-process state, which a forking thread takes. So no other thread holds them
    /// during the fork; the child could never release such locks.
    static LOCKS: RefCell<Option<(MutexGuard<'static, ()>, Held)>> = const { RefCell::new(None) };
}

/// Identifies a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// The identity of this process. Every call that makes a handle calls this function first. The
    /// function is cheap, because it needs no system call.
    pub(crate) fn current() -> Process {
        #[cfg(unix)]
        WATCH.call_once(|| {
            // SAFETY: the handlers lock and unlock only locks of this library, and increment an
            // atomic counter.
            let code = unsafe { libc::pthread_atfork(Some(forks), Some(unlock), Some(forked)) };
            assert!(code == 0, "the system has no memory for a fork handler");
            let _setup = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
            // Read the host's identity from files now. No thread forks during the read, because a
            // fork handler also takes `SETUP`.
            let _ = HostIdentity::of_this_host();
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(unix)]
extern "C" fn forks() {
    let _ = LOCKS.try_with(|locks| {
        let setup = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
        *locks.borrow_mut() = Some((setup, hold()));
    });
}

#[cfg(unix)]
extern "C" fn unlock() {
    let _ = LOCKS.try_with(|locks| locks.borrow_mut().take());
}

#[cfg(unix)]
extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    unlock();
}
