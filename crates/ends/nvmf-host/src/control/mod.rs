//! The control loop: one thread with one event loop, on which everything runs that the hosts of a
//! process do besides I/O.
//!
//! A conversation with a controller is a future: straight code that waits for answers, of which
//! the compiler makes a state machine. There is no runtime but this one, and no future on the data
//! path. Whoever wants something started hands in how it is made ([`Control::spawn`]), since a
//! future stays on the loop's thread.
//!
//! # Contract
//!
//! * Nothing on the loop waits in any other way than by `await`: all controllers wait with it. What
//!   may take its time (names, files, keys, the callbacks of users) is done [elsewhere](blocking).
//! * The loop runs for as long as somebody has its [`Control`] or something runs on it, and the
//!   last owner to let go of it waits for its end.
//! * A future that panics is dropped; the others go on.

mod blocking;
mod combine;
mod executor;
mod local;
mod reply;
mod waiting;

pub(crate) use blocking::{blocking, tell};
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

/// The loops that run, of this process and those before a fork, and of simulated worlds.
static LOOPS: Mutex<Loops> = Mutex::new(Vec::new());

type Loops = Vec<(ControlPlace, EngineKind, Weak<Control>)>;

/// Whose threads a loop can be used by: those of a process, or of a simulated world in it. A
/// process that was forked has its parent's memory and none of its threads.
type ControlPlace = (u32, u64);

/// While it lives no other thread looks for a control loop or starts one. See [`hold`].
pub struct Held(#[allow(dead_code, reason = "held, not looked at")] MutexGuard<'static, Loops>);

/// For a process that is about to fork: the child would wait for ever for a lock that another
/// thread held. Drop it afterwards, in the parent and in the child.
#[must_use]
pub fn hold() -> Held {
    Held(LOOPS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether the caller may wait for what runs on a control loop: not if that is the caller, or waits
/// for it. In a simulation that has failed nothing happens any more.
pub(crate) fn may_wait() -> bool {
    let has_failed = os::is_simulated() && std::thread::panicking();
    !is_here() && !is_aside() && !has_failed
}

/// A share of a control loop; see the module's text.
pub(crate) struct Control {
    inbox: Arc<Inbox>,
    place: ControlPlace,
    started: Arc<OnceLock<Result<(), Arc<io::Error>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Control {
    /// The control loop with this engine, which is started if there is none.
    pub(crate) fn shared(engine: EngineKind) -> Result<Arc<Control>, Arc<io::Error>> {
        let control = Control::find_or_start(engine)?;
        // Without the lock: others may be asked for meanwhile.
        match os::wait_for(&control.started) {
            Ok(()) => Ok(control),
            Err(error) => Err(Arc::clone(error)),
        }
    }

    fn find_or_start(engine: EngineKind) -> Result<Arc<Control>, Arc<io::Error>> {
        let place = (std::process::id(), os::world());
        let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
        loops.retain(|(_, _, found)| found.strong_count() > 0);
        // Nobody else's: whoever has a loop last waits for its thread.
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

    /// Runs what `make` makes there. It is dropped at once if the loop has failed.
    pub(crate) fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        make: impl FnOnce(&Local) -> F + Send + 'static,
    ) {
        let start: Start = Box::new(|local| Box::pin(make(local)) as Pin<Box<_>>);
        self.inbox.start(start);
    }
}

impl Control {
    /// Runs what `make` makes there, and has the calling thread wait for it. `None`: the loop has
    /// failed, or what ran there has panicked.
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
            // If it panicked, that is in the log already.
            let _ = thread.map(JoinHandle::join);
        }
    }
}

#[cfg(test)]
mod tests;
