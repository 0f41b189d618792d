//! The orders to a worker, from the member and from the thread of the reservations.

/// An order to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The target is running.
    Attached,
    Enter(u64),
    Begin(u64),
    Stop(u64),
    /// The permit was withdrawn. The worker answers when no operation is in flight.
    Park(u64),
    /// The ANA group has a permit again, after a time without one.
    Permitted,
    /// The target enforces a reservation change.
    Enforced,
}
