//! Time, threads and waiting, and the types of the sockets and files that an event loop uses.
//!
//! Code that may run in a simulation calls these functions instead of the standard library. Outside
//! a simulation they call the standard library. A simulation is a [world](crate::sim) with its own
//! clock. Its threads are coroutines on one thread: while one waits, others run.

use std::io;
#[cfg(feature = "sim")]
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

mod handles;

pub(crate) use handles::Inner;
pub use handles::{File, ListenSocket, Socket};

/// Whether the calling thread belongs to a simulated world.
#[inline]
pub fn is_simulated() -> bool {
    #[cfg(feature = "sim")]
    return crate::sim::is_entered();
    #[cfg(not(feature = "sim"))]
    false
}

/// Returns the number of the simulated machine to which the calling thread belongs. It is unique in
/// this process. Zero outside a simulation.
#[inline]
pub fn world() -> u64 {
    #[cfg(feature = "sim")]
    return crate::sim::number();
    #[cfg(not(feature = "sim"))]
    0
}

/// Returns the current time.
#[inline]
pub fn now() -> Instant {
    #[cfg(feature = "sim")]
    if let Some(now) = crate::sim::time() {
        return now;
    }
    Instant::now()
}

/// Returns the time since `since`.
#[inline]
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// Fills `bytes` with random bytes from the simulation's seed. Outside a simulation, returns
/// `false`, and the caller must use the system's random numbers.
pub fn fill_simulated(bytes: &mut [u8]) -> bool {
    #[cfg(feature = "sim")]
    return crate::sim::fill(bytes);
    #[cfg(not(feature = "sim"))]
    {
        let _ = bytes;
        false
    }
}

/// Returns the identifier of the simulated machine's current boot. `None` outside a simulation.
pub fn simulated_boot() -> Option<String> {
    #[cfg(feature = "sim")]
    return crate::sim::boot();
    #[cfg(not(feature = "sim"))]
    None
}

/// Whether the simulation of the calling thread enables this deliberate bug. With deliberate bugs,
/// tests check that the simulation would detect real bugs. Always `false` outside a simulation.
#[inline]
pub fn has_mistake(mistake: &str) -> bool {
    #[cfg(feature = "sim")]
    return crate::sim::has_mistake(mistake);
    #[cfg(not(feature = "sim"))]
    {
        let _ = mistake;
        false
    }
}

/// Reports a value, such as a queue length, to the simulation of the calling thread. Tests compare
/// the highest value with a limit. Does nothing outside a simulation.
#[inline]
pub fn note_level(level: &'static str, value: usize) {
    #[cfg(feature = "sim")]
    crate::sim::note_level(level, value);
    #[cfg(not(feature = "sim"))]
    let _ = (level, value);
}

/// Waits for the given time.
pub fn sleep(time: Duration) {
    #[cfg(feature = "sim")]
    if is_simulated() {
        crate::sim::sleep_until(now().checked_add(time));
        return;
    }
    std::thread::sleep(time);
}

/// A thread that [`spawn`] started.
#[derive(Debug)]
pub struct JoinHandle<T>(Thread<T>);

#[derive(Debug)]
enum Thread<T> {
    System(std::thread::JoinHandle<T>),
    #[cfg(feature = "sim")]
    Simulated(Arc<Mutex<Option<T>>>),
}

impl<T> JoinHandle<T> {
    /// Whether this handle's thread is the calling thread, which must then not call [`Self::join`].
    #[must_use]
    pub fn is_current(&self) -> bool {
        match &self.0 {
            Thread::System(thread) => thread.thread().id() == std::thread::current().id(),
            #[cfg(feature = "sim")]
            Thread::Simulated(_) => false,
        }
    }

    /// Waits until the thread ends.
    ///
    /// # Errors
    /// Returns the panic's payload if the thread panicked.
    pub fn join(self) -> std::thread::Result<T> {
        match self.0 {
            Thread::System(thread) => thread.join(),
            #[cfg(feature = "sim")]
            Thread::Simulated(result) => {
                let has_ended = || lock(&result).is_some();
                crate::sim::wait_until(None, has_ended);
                lock(&result).take().ok_or_else(|| Box::new("the simulation failed") as _)
            }
        }
    }
}

/// Starts a thread.
///
/// # Errors
/// Fails if the system cannot start another thread.
pub fn spawn<T: Send + 'static>(
    name: String,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        let result = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&result);
        crate::sim::spawn(name, move || *lock(&slot) = Some(body()));
        return Ok(JoinHandle(Thread::Simulated(result)));
    }
    std::thread::Builder::new()
        .name(name)
        .spawn(body)
        .map(|thread| JoinHandle(Thread::System(thread)))
}

/// Waits for a message.
///
/// # Errors
/// Fails if all senders are dropped.
pub fn recv<T>(receiver: &Receiver<T>) -> Result<T, RecvError> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated_recv(receiver, None).map_err(|_| RecvError);
    }
    receiver.recv()
}

/// Waits for a message, at most for `timeout`.
///
/// # Errors
/// Fails if no message arrived in time, or all senders are dropped.
pub fn recv_timeout<T>(receiver: &Receiver<T>, timeout: Duration) -> Result<T, RecvTimeoutError> {
    #[cfg(feature = "sim")]
    if is_simulated() {
        return simulated_recv(receiver, now().checked_add(timeout));
    }
    receiver.recv_timeout(timeout)
}

#[cfg(feature = "sim")]
fn simulated_recv<T>(
    receiver: &Receiver<T>,
    deadline: Option<Instant>,
) -> Result<T, RecvTimeoutError> {
    use std::sync::mpsc::TryRecvError;
    let mut result = Err(RecvTimeoutError::Timeout);
    crate::sim::wait_until(deadline, || {
        result = match receiver.try_recv() {
            Ok(message) => Ok(message),
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
        };
        true
    });
    result
}

/// Waits until another thread sets the value.
pub fn wait_for<T>(value: &OnceLock<T>) -> &T {
    #[cfg(feature = "sim")]
    if is_simulated() {
        crate::sim::wait_until(None, || value.get().is_some());
    }
    value.wait()
}

/// Waits until `condition` is false for the value in `mutex`, at most for `timeout`. Every thread
/// that changes the value must notify `changed`.
pub fn wait_while<T>(
    mutex: &Mutex<T>,
    changed: &Condvar,
    timeout: Duration,
    condition: impl FnMut(&mut T) -> bool,
) {
    #[cfg(feature = "sim")]
    if is_simulated() {
        let mut condition = condition;
        crate::sim::wait_until(now().checked_add(timeout), || !condition(&mut lock(mutex)));
        return;
    }
    let guard = mutex.lock().unwrap_or_else(PoisonError::into_inner);
    let result = changed.wait_timeout_while(guard, timeout, condition);
    drop(result.unwrap_or_else(PoisonError::into_inner));
}

#[cfg(feature = "sim")]
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
