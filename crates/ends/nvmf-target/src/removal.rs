//! The removal of a namespace. The target releases the namespace when every core has closed its
//! queue into it.

use farblock_block::Namespace;
use farblock_reactor::os;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

/// A core's handle on a [`Removal`]. The core drops the handle when it has closed its queue.
pub(crate) type Share = Sender<Infallible>;

/// A namespace that is being removed. Its last operations may still be under way.
///
/// The target closes and unlocks the namespace's file once two conditions hold: every core has
/// closed its queue, and the caller has dropped this value or [waited](Self::wait) for it. If the
/// file has other owners, it stays open for them. A close may take long. Therefore do not drop this
/// value on a core before the removal [is over](Self::is_over).
#[must_use = "the namespace stays in use until the removal completes"]
pub struct Removal {
    shares: Receiver<Infallible>,
    namespace: Arc<dyn Namespace>,
}

impl Removal {
    pub(crate) fn new(shares: Receiver<Infallible>, namespace: Arc<dyn Namespace>) -> Self {
        Self { shares, namespace }
    }

    /// Returns whether the target has released the namespace.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shares.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Waits until the target has released the namespace. Then drops this value's reference to the
    /// namespace.
    ///
    /// # Errors
    /// Returns `self` if the removal is not over after `timeout`. A slow disk may take unbounded
    /// time.
    pub fn wait(self, timeout: Duration) -> Result<(), Self> {
        match os::recv_timeout(&self.shares, timeout) {
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(self),
            Ok(never) => match never {},
        }
    }
}

impl fmt::Debug for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removal of {}", self.namespace.describe())
    }
}
