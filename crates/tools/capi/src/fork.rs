//! Notices that the process was forked: a child has its parent's handles, but not the threads
//! behind them, and must not touch the event queues that it shares with the parent. Windows has
//! no such thing.

#[cfg(unix)]
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks this process is away from the one that loaded the library.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[cfg(unix)]
static WATCH: Once = Once::new();

/// A process, as the library sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Process(u32);

impl Process {
    /// This one. Cheap, unlike asking the system.
    pub(crate) fn current() -> Process {
        #[cfg(unix)]
        WATCH.call_once(|| {
            // SAFETY: the handler only adds to an atomic, which is safe in a forked child.
            let code = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            assert!(code == 0, "no memory for a handler of forks");
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    pub(crate) fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

#[cfg(unix)]
extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
