//! Notices that the process was forked: a child has its parent's handles, but not the threads
//! behind them, and must not touch what it shares with the parent, nor wait for a lock that a
//! thread of the parent's held. Windows has no such thing.

#[cfg(unix)]
use farblock_host::HostIdentity;
#[cfg(unix)]
use farblock_host::control_loops::{Held, hold};
#[cfg(unix)]
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(unix)]
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// How many forks this process is away from the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[cfg(unix)]
static WATCH: Once = Once::new();

/// Held while a thread makes what the process has once.
#[cfg(unix)]
static SETUP: Mutex<()> = Mutex::new(());

#[cfg(unix)]
thread_local! {
    /// The process's own locks, which the forking thread takes so that no other thread has them:
    /// the child could not get them back.
    static LOCKS: RefCell<Option<(MutexGuard<'static, ()>, Held)>> = const { RefCell::new(None) };
}

/// A process, as the library sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// This one. Cheap, unlike asking the system. Every call that makes a handle begins with it.
    pub(crate) fn current() -> Process {
        #[cfg(unix)]
        WATCH.call_once(|| {
            // SAFETY: the handlers lock and unlock what this library owns, and add to an atomic.
            let code = unsafe { libc::pthread_atfork(Some(forks), Some(unlock), Some(forked)) };
            assert!(code == 0, "no memory for handlers of forks");
            let _setup = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
            // Read from files: another thread that needs it waits meanwhile.
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
