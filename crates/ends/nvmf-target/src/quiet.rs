//! Waits until a namespace has no operations in flight, without closing it.

use crate::removal::{Share, are_released};
use std::convert::Infallible;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// The operations that were in flight at a namespace when the caller asked.
///
/// [`Self::wait`] ends when each core has once had no operation in flight. The caller must first
/// prevent new operations: otherwise new ones may be in flight when the wait ends.
#[derive(Debug)]
#[must_use = "operations may still be in flight"]
pub struct Quiet(Receiver<Infallible>);

impl Quiet {
    pub(crate) fn new() -> (Share, Self) {
        let (share, shares) = mpsc::channel();
        (share, Self(shares))
    }

    /// Waits until each core has once had no operation in flight.
    ///
    /// # Errors
    /// Returns `self` if this takes longer than `timeout`.
    pub fn wait(self, timeout: Duration) -> Result<(), Self> {
        if are_released(&self.0, timeout) { Ok(()) } else { Err(self) }
    }
}
