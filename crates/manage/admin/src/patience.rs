//! What may hang, done aside: a disk that does not answer when it is opened must not keep everybody
//! from changing something else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The longest that a disk, a key file or the configuration may take to be opened.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How many may hang at once: each has a thread until the system lets it go.
pub(crate) const STUCK_MAX: usize = 8;

/// Waits for what is done aside, and not for ever.
#[derive(Clone)]
pub(crate) struct Patience {
    longest: Duration,
    stuck: Arc<AtomicUsize>,
}

impl Default for Patience {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

/// Counts one less when it goes, however the work ends.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Patience {
    pub(crate) fn new(longest: Duration) -> Self {
        Self { longest, stuck: Arc::default() }
    }

    /// Does this with `what`. What comes of it too late is dropped.
    ///
    /// # Errors
    /// One sentence: that of the work, or that it takes too long.
    pub(crate) fn with<T: Send + 'static>(
        &self,
        what: &str,
        work: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        if self.stuck.fetch_add(1, Ordering::Relaxed) >= STUCK_MAX {
            drop(Counted(Arc::clone(&self.stuck)));
            return Err(format!(
                "{STUCK_MAX} disks do not answer already, so {what} is not tried: see what is \
                 wrong with what stores them, then try again"
            ));
        }
        let counted = Counted(Arc::clone(&self.stuck));
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new().name("opening".to_owned()).spawn(move || {
            let done = work();
            drop(counted);
            // Nobody waits any more if it came too late.
            let _ = sender.send(done);
        });
        if let Err(error) = thread {
            return Err(format!("{what} cannot be opened: no thread could be started: {error}"));
        }
        match receiver.recv_timeout(self.longest) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(format!(
                "{what} does not answer: it was given {} seconds to be opened; see what is wrong \
                 with what stores it, then try again",
                self.longest.as_secs_f64()
            )),
            Err(RecvTimeoutError::Disconnected) => Err(format!("{what}: opening it has failed")),
        }
    }
}
