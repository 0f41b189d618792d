//! Detects a fork. A child has its parent's handles, but not the threads behind them. It must not
//! touch state that it shares with the parent, nor wait for a lock that a thread of the parent
//! held. Windows has no fork.

#[cfg(unix)]
use farblock_host::HostIdentity;
#[cfg(unix)]
use farblock_host::control_loops::{Held, hold};
#[cfg(unix)]
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
#[cfg(unix)]
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// The number of forks between this process and the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[cfg(unix)]
static WATCH: Once = Once::new();

/// Held while a thread initialises per-process state.
#[cfg(unix)]
static SETUP: Mutex<()> = Mutex::new(());

#[cfg(unix)]
thread_local! {
    /// The locks of per-process state. The forking thread takes them, so that no other thread holds
    /// them: the child could never release those.
    static LOCKS: RefCell<Option<(MutexGuard<'static, ()>, Held)>> = const { RefCell::new(None) };
}

/// Identifies a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// This process. Cheap, unlike a system call. Every call that makes a handle calls this first.
    pub(crate) fn current() -> Process {
        #[cfg(unix)]
        WATCH.call_once(|| {
            // SAFETY: the handlers lock and unlock what this library owns, and add to an atomic.
            let code = unsafe { libc::pthread_atfork(Some(forks), Some(unlock), Some(forked)) };
            assert!(code == 0, "no memory for handlers of forks");
            let _setup = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
            // The identity is read from files, so another thread that needs it waits meanwhile.
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
