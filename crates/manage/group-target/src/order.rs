//! The orders of the member and of the reservations to a worker.

/// An order to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// The target runs.
    Attached,
    Enter(u64),
    Begin(u64),
    Stop(u64),
    /// The group's permit was withdrawn. The worker answers when no operation is in flight.
    Park(u64),
    /// The group has a permit after a time without one.
    Permitted,
    /// The target enforces a reservation change.
    Enforced,
}
