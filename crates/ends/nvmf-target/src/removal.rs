//! The removal of a namespace. The target releases the namespace when every core has closed its
//! queue into it.

use farblock_block::Namespace;
use farblock_reactor::os;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

/// Every core holds one `Share` of a [`Removal`] or of a [`Quiet`](crate::Quiet). The core drops
/// the share when its queue into the namespace is closed (`Removal`) or idle (`Quiet`).
pub(crate) type Share = Sender<Infallible>;

/// Waits until every core has dropped its [`Share`]. Returns false on a timeout.
pub(crate) fn are_released(shares: &Receiver<Infallible>, timeout: Duration) -> bool {
    match os::recv_timeout(shares, timeout) {
        Err(RecvTimeoutError::Disconnected) => true,
        Err(RecvTimeoutError::Timeout) => false,
        Ok(never) => match never {},
    }
}

/// A namespace that is being removed. Its last operations may still be under way.
///
/// The target closes and unlocks the namespace's file when every core has closed its queue, and the
/// caller has dropped this value or [waited](Self::wait) for it. If the file has other owners, it
/// stays open for them. A close may take long, so do not drop this value on a core's thread before
/// the removal [is over](Self::is_over).
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
        if are_released(&self.shares, timeout) { Ok(()) } else { Err(self) }
    }
}

impl fmt::Debug for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removal of {}", self.namespace.describe())
    }
}
