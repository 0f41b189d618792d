//! Process exit: waits until all images are closed, and prevents the unloading of librbd while its
//! threads run.

use std::sync::{Condvar, Mutex, PoisonError};

/// The numbers of keeper threads and of images in this process.
#[derive(Clone, Copy)]
struct Count {
    /// The number of threads that open, hold or close images.
    keepers: usize,
    /// The number of images in use.
    images: usize,
}

static COUNT: Mutex<Count> = Mutex::new(Count { keepers: 0, images: 0 });
static CHANGED: Condvar = Condvar::new();

fn change(change: impl FnOnce(&mut Count)) {
    change(&mut COUNT.lock().unwrap_or_else(PoisonError::into_inner));
    CHANGED.notify_all();
}

/// Counts a keeper thread while this value exists.
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

/// Counts an image while this value exists.
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

/// Makes the process wait at exit until all images are closed. Otherwise the cluster considers the
/// images in use for half a minute longer. Call this function immediately after the library is
/// loaded. Exit handlers run in reverse order of registration, so this handler runs before librbd's
/// handlers.
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
            // SAFETY: the call only ends the process, immediately. An ordinary exit would unload
            // librbd while its threads still run, and the process would abort.
            unsafe { _exit(status) };
        }
    }

    // SAFETY: `settle` is a static function, valid until the process ends.
    if unsafe { on_exit(settle, std::ptr::null_mut()) } != 0 {
        tracing::warn!("farblock cannot close Ceph images when this process exits");
    }
}

#[cfg(all(unix, not(all(target_os = "linux", target_env = "gnu"))))]
pub(crate) fn before_the_end() {}

/// Waits for the images that are being closed. Returns `false` if some images stay open.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn settled() -> bool {
    let count = COUNT.lock().unwrap_or_else(PoisonError::into_inner);
    let is_closing = |count: &mut Count| count.keepers > count.images;
    let waited = CHANGED.wait_timeout_while(count, crate::limits::CLOSE, is_closing);
    waited.unwrap_or_else(PoisonError::into_inner).0.keepers == 0
}
