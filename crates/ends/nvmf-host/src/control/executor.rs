//! Runs the futures of the control loop.

use super::local::Local;
use farblock_reactor::{EngineKind, Waker, os};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{self, Context, Poll, Wake};

/// Creates a future on the loop's thread.
pub(super) type Start = Box<dyn FnOnce(&Local) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is on a control loop, where it must not block.
pub(super) fn is_here() -> bool {
    IS_HERE.try_with(Cell::get).unwrap_or(false)
}

/// Messages to the loop from other threads, and from the futures themselves.
#[derive(Default)]
pub(super) struct Inbox {
    letters: Mutex<Letters>,
    waker: OnceLock<Waker>,
}

#[derive(Default)]
struct Letters {
    new: Vec<Start>,
    woken: Vec<u64>,
    stopping: bool,
    has_ended: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Letters> {
        // A panic cannot leave this state half-changed, so ignore poisoning.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn start(&self, start: Start) {
        let mut letters = self.lock();
        if letters.has_ended {
            drop(letters);
            return drop(start);
        }
        letters.new.push(start);
        drop(letters);
        self.ring();
    }

    /// Takes the futures to start, the identifiers of the futures to resume, and whether the loop
    /// must end.
    fn take(&self) -> (Vec<Start>, Vec<u64>, bool) {
        let letters = &mut *self.lock();
        (std::mem::take(&mut letters.new), std::mem::take(&mut letters.woken), letters.stopping)
    }

    /// Ends the loop once it has no more futures.
    pub(super) fn stop(&self) {
        self.lock().stopping = true;
        self.ring();
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().has_ended
    }

    fn ring(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// A waker that schedules a future again.
struct TaskWaker {
    inbox: Arc<Inbox>,
    id: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.inbox.lock().woken.push(self.id);
        self.inbox.ring();
    }
}

struct Running {
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: task::Waker,
}

/// When the loop ends, also by a panic, drops the futures that have not started.
struct End<'a>(&'a Inbox);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut letters = self.0.lock();
        letters.has_ended = true;
        let new = std::mem::take(&mut letters.new);
        drop(letters);
        here(|| drop(new));
    }
}

/// Runs a function. While it runs, [`is_here`] returns true.
fn here<T>(act: impl FnOnce() -> T) -> T {
    let before = IS_HERE.replace(true);
    let result = act();
    IS_HERE.set(before);
    result
}

/// Catches a panic of `act` and then returns `None`, so that other futures continue. In a
/// simulation the panic propagates.
fn contained<T>(act: impl FnOnce() -> T) -> Option<T> {
    match os::is_simulated() {
        true => Some(act()),
        false => catch_unwind(AssertUnwindSafe(act)).ok(),
    }
}

/// Runs the loop until it stops. `started` receives the result of its start.
pub(super) fn run(
    engine: EngineKind,
    inbox: &Arc<Inbox>,
    started: &OnceLock<Result<(), Arc<io::Error>>>,
) {
    let _end = End(inbox);
    let (local, waker) = match Local::new(engine, inbox) {
        Ok(made) => made,
        Err(error) => return drop(started.set(Err(Arc::new(error)))),
    };
    let _ = inbox.waker.set(waker);
    let _ = started.set(Ok(()));
    let mut executor = Executor { inbox, local, running: BTreeMap::new(), next: 0 };
    if let Err(error) = executor.serve() {
        tracing::error!("the control loop of the hosts failed: {error}");
    }
    here(|| executor.running.clear());
}

struct Executor<'a> {
    inbox: &'a Arc<Inbox>,
    local: Local,
    running: BTreeMap<u64, Running>,
    next: u64,
}

impl Executor<'_> {
    fn serve(&mut self) -> io::Result<()> {
        loop {
            let (new, woken, stopping) = self.inbox.take();
            for start in new {
                self.begin(start);
            }
            woken.into_iter().for_each(|id| self.resume(id));
            if stopping && self.running.is_empty() {
                return Ok(());
            }
            self.local.turn()?;
        }
    }

    fn begin(&mut self, start: Start) {
        let id = self.next;
        self.next += 1;
        let Some(future) = here(|| contained(|| start(&self.local))) else { return };
        let waker = TaskWaker { inbox: Arc::clone(self.inbox), id };
        self.running.insert(id, Running { future, waker: task::Waker::from(Arc::new(waker)) });
        self.resume(id);
    }

    fn resume(&mut self, id: u64) {
        // A waker may run after its future has ended.
        let Some(running) = self.running.get_mut(&id) else { return };
        let mut context = Context::from_waker(&running.waker);
        let future = running.future.as_mut();
        let result = here(|| contained(|| future.poll(&mut context)));
        if result != Some(Poll::Pending) {
            let ended = self.running.remove(&id);
            // Dropping the future may wake other futures, or panic again.
            here(|| contained(|| drop(ended)));
        }
    }
}
