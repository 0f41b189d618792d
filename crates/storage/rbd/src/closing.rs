//! The end of a process: images are closed first, and librbd is not taken down under its threads.

use std::sync::{Condvar, Mutex, PoisonError};

/// What there is of images.
#[derive(Clone, Copy)]
struct Count {
    /// Threads that open images, keep them, or close them.
    keepers: usize,
    /// Images that somebody has.
    images: usize,
}

static COUNT: Mutex<Count> = Mutex::new(Count { keepers: 0, images: 0 });
static CHANGED: Condvar = Condvar::new();

fn change(change: impl FnOnce(&mut Count)) {
    change(&mut COUNT.lock().unwrap_or_else(PoisonError::into_inner));
    CHANGED.notify_all();
}

/// A keeper's life.
pub(crate) struct Keeper(());

impl Keeper {
    pub(crate) fn new() -> Keeper {
        change(|count| count.keepers += 1);
        Keeper(())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        change(|count| count.keepers -= 1);
    }
}

/// The time that somebody has an image.
pub(crate) struct Used(());

impl Used {
    pub(crate) fn new() -> Used {
        change(|count| count.images += 1);
        Used(())
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        change(|count| count.images -= 1);
    }
}

/// Has the process wait for images to be closed when it ends: the cluster takes one that is not for
/// in use half a minute longer. To be called when the library is loaded, and no sooner: what is
/// registered last is called first.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn before_the_end() {
    use std::ffi::{c_int, c_void};

    type AtExit = extern "C" fn(c_int, *mut c_void);
    unsafe extern "C" {
        fn on_exit(function: AtExit, argument: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }

    extern "C" fn settle(status: c_int, _: *mut c_void) {
        if !settled() {
            // SAFETY: it only ends the process, now. Taken down under its threads, librbd would
            // abort it.
            unsafe { _exit(status) };
        }
    }

    // SAFETY: the function is there for as long as the process is.
    if unsafe { on_exit(settle, std::ptr::null_mut()) } != 0 {
        tracing::warn!("images will not be closed when this ends");
    }
}

#[cfg(all(unix, not(all(target_os = "linux", target_env = "gnu"))))]
pub(crate) fn before_the_end() {}

/// Waits for what is being closed; false if something stays open.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn settled() -> bool {
    let count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let is_closing = |count: &mut Count| count.keepers > count.images;
    let waited = CHANGED.wait_timeout_while(count, crate::limits::CLOSE, is_closing);
    waited.unwrap_or_else(PoisonError::into_inner).0.keepers == 0
}
