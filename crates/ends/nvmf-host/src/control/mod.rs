//! The control loop: one thread with one event loop. It connects the controllers of a process and
//! runs their admin queues. I/O queues run on their users' event loops.
//!
//! An exchange with a controller is written as a future: sequential code that awaits answers. The
//! crate uses no other async runtime, and no futures on the data path. A future stays on the loop's
//! thread, so callers pass a function that creates it ([`Control::spawn`]).
//!
//! # Contract
//!
//! * Code on the loop waits only with `await`, because all controllers share the loop. Blocking
//!   work (names, files, keys, users' callbacks) runs on [other threads](blocking).
//! * The loop runs while its [`Control`] has an owner or the loop has a future. The last owner's
//!   drop waits for the end of the loop.
//! * The loop drops a future that panics; the others continue.

mod blocking;
mod combine;
mod executor;
mod local;
mod reply;
mod waiting;

pub(crate) use blocking::{Panicked, blocking, tell};
pub(crate) use combine::{all, unless};
pub(crate) use local::{Local, Mailbox};
pub(crate) use reply::{Receiver, Sender, reply};
pub(crate) use waiting::wait;

use blocking::is_aside;
use executor::{Inbox, Start, is_here};
use farblock_reactor::EngineKind;
use farblock_reactor::os::{self, JoinHandle};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// The running loops of this process and of simulated worlds. After a fork, the list also has the
/// parent's loops, which the child cannot use.
static LOOPS: Mutex<Loops> = Mutex::new(Vec::new());

type Loops = Vec<(ControlPlace, EngineKind, Weak<Control>)>;

/// Identifies the threads that can use a loop: the threads of a process, or of a simulated world in
/// it. A forked process has its parent's memory but none of its threads.
type ControlPlace = (u32, u64);

/// While this value exists, no other thread finds or starts a control loop. See [`hold`].
pub struct Held(#[allow(dead_code, reason = "held, never read")] MutexGuard<'static, Loops>);

/// Locks the list of control loops for a fork. Otherwise the child could wait forever for a lock
/// that another thread of the parent held. Drop the returned value after the fork, in parent and
/// child.
#[must_use]
pub fn hold() -> Held {
    Held(LOOPS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether the calling thread may block until a control loop has done work. The loop's own thread
/// must not block, nor a helper thread for which the loop waits: that would be a deadlock. After a
/// simulation has failed, no thread may block, because the other threads have stopped.
pub(crate) fn may_wait() -> bool {
    let has_failed = os::is_simulated() && std::thread::panicking();
    !is_here() && !is_aside() && !has_failed
}

/// A control loop with shared ownership; see the module documentation.
pub(crate) struct Control {
    inbox: Arc<Inbox>,
    place: ControlPlace,
    started: Arc<OnceLock<Result<(), Arc<io::Error>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// Returns the control loop with this engine. Starts the loop if it is not running.
    pub(crate) fn shared(engine: EngineKind) -> Result<Arc<Control>, Arc<io::Error>> {
        let control = Control::find_or_start(engine)?;
        // The lock is not held here, so other threads can request loops while this thread waits.
        match os::wait_for(&control.started) {
            Ok(()) => Ok(control),
            Err(error) => Err(Arc::clone(error)),
        }
    }

    fn find_or_start(engine: EngineKind) -> Result<Arc<Control>, Arc<io::Error>> {
        let place = (std::process::id(), os::world());
        let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
        loops.retain(|(_, _, found)| found.strong_count() > 0);
        // Upgrade only the loops that match. An upgraded reference may become the loop's last
        // owner, whose drop waits for the loop's thread.
        let ours = loops.iter().filter(|(at, kind, _)| (*at, *kind) == (place, engine));
        let ours: Vec<_> = ours.filter_map(|(_, _, found)| found.upgrade()).collect();
        let found = ours.iter().find(|found| !found.inbox.has_ended()).map(Arc::clone);
        let control = match found {
            Some(found) => Ok(found),
            None => Control::start(engine, place).inspect(|control| {
                loops.push((place, engine, Arc::downgrade(control)));
            }),
        };
        drop(loops);
        control.map_err(Arc::new)
    }

    fn start(engine: EngineKind, place: ControlPlace) -> io::Result<Arc<Control>> {
        let inbox = Arc::new(Inbox::default());
        let started = Arc::new(OnceLock::new());
        let (for_thread, tell) = (Arc::clone(&inbox), Arc::clone(&started));
        let run = move || executor::run(engine, &for_thread, &tell);
        let thread = os::spawn("farblock-hosts".to_owned(), run)?;
        Ok(Arc::new(Control { inbox, place, started, thread: Mutex::new(Some(thread)) }))
    }

    /// Runs the future that `make` creates on the loop. If the loop has failed, this drops `make`.
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        make: impl FnOnce(&Local) -> F + Send + 'static,
    ) {
        let start: Start = Box::new(|local| Box::pin(make(local)) as Pin<Box<_>>);
        self.inbox.start(start);
    }
}

impl Control {
    /// Runs the future that `make` creates on the loop, and blocks the calling thread until the
    /// future ends. Returns `None` if the loop has failed or the future panicked.
    pub(crate) fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        make: impl FnOnce(Local) -> F + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = reply();
        self.spawn(move |local| {
            let future = make(local.clone());
            async move { sender.send(future.await) }
        });
        result.wait()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.inbox.stop();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if may_wait() && self.place.0 == std::process::id() {
            // A panic is in the log already.
            let _ = thread.map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests;
