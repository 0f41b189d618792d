//! Long calls, during which the library asks the program whether to continue.

use crate::limits;
use crate::status::{Failure, fb_status};
use std::ffi::c_void;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// The program's function that decides whether a call continues. `None` if the program has set
/// none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waiting(Option<Hook>);

#[derive(Clone, Copy)]
struct Hook {
    function: unsafe extern "C" fn(user: *mut c_void) -> i32,
    user: *mut c_void,
}

// SAFETY: the program that set the function promises that any thread that makes a call may call it.
unsafe impl Send for Hook {}
// SAFETY: as for `Send`.
unsafe impl Sync for Hook {}

impl Waiting {
    /// Makes the hook from the program's function and its argument.
    ///
    /// # Safety
    /// If `function` is set, any thread may call it with `user` at any time until its last call
    /// returns.
    pub(crate) unsafe fn new(
        function: Option<unsafe extern "C" fn(user: *mut c_void) -> i32>,
        user: *mut c_void,
    ) -> Waiting {
        Waiting(function.map(|function| Hook { function, user }))
    }

    /// True if the program may end a call before the call has its answer.
    pub(crate) fn may_end(self) -> bool {
        self.0.is_some()
    }

    /// True if the program wants the call to end. The library holds no locks here, so the program's
    /// function may call any function.
    fn is_over(self) -> bool {
        // SAFETY: the caller of `new` promises a valid function.
        self.0.is_some_and(|hook| unsafe { (hook.function)(hook.user) } != 0)
    }

    /// Waits for an answer. When the program cancels the call, calls `give_up`, and repeats this at
    /// every interval. `give_up` makes the answer arrive soon.
    pub(crate) fn receive<T>(
        self,
        answer: &Receiver<Result<T, Failure>>,
        mut give_up: impl FnMut(),
    ) -> Result<T, Failure> {
        // A thread that panics drops the sender.
        let bug = || Err(Failure::bug());
        if self.0.is_none() {
            return answer.recv().unwrap_or_else(|_| bug());
        }
        let mut is_over = false;
        loop {
            match answer.recv_timeout(limits::ASK_INTERVAL) {
                Ok(_) if is_over => return Err(aborted()),
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => return bug(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            is_over = is_over || self.is_over();
            if is_over {
                give_up();
            }
        }
    }

    /// Runs a long call in its own thread. Abandons that thread when the program cancels the call,
    /// and drops its result.
    pub(crate) fn run<T: Send + 'static>(
        self,
        body: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        if self.0.is_none() {
            return body();
        }
        let (done, answer) = sync_channel(1);
        let done = Arc::new(Mutex::new(Some(done)));
        let theirs = Arc::clone(&done);
        let take =
            |done: &Mutex<Option<_>>| done.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = std::thread::Builder::new().name("farblock-wait".into()).spawn(move || {
            let result = body();
            if let Some(done) = take(&theirs) {
                let _ = done.send(result);
            }
        });
        thread.map_err(|error| farblock_host::Error::System(Arc::new(error)))?;
        self.receive(&answer, || {
            if let Some(done) = take(&done) {
                let _ = done.send(Err(aborted()));
            }
        })
    }
}

fn aborted() -> Failure {
    Failure::new(
        fb_status::Aborted,
        "the program ended the call while it waited; a write may or may not have been executed",
    )
}
