//! The target as a member of a group: carries out the orders of a
//! [`Member`](farblock_group::Member) at the disks.
//!
//! **Overview.** [`Leading`] has one worker thread for each ANA group. A worker opens the disks of
//! its ANA group when the member begins to lead it, and closes them when it stops. At all other
//! times the target shares an [`Absent`] namespace with the same size and identity, in the ANA
//! state Inaccessible. So every member offers the same subsystem, and hosts stay connected to all
//! of them.
//!
//! ```text
//!             begin                opened, permitted
//!   Absent ----------> Opening -----------------------> Serving <-----+
//!     ^                   |                             |     | ended  | renewed
//!     |                   | stop                   stop |     v        |
//!     +----- closed ------+------- Stopping <-----------+--- Lapsed ---+
//! ```
//!
//! **A disk that cannot be opened.** The worker tries again. After [`limits::OPEN_LIMIT`] it
//! reports the error, and the member hands the ANA group over.
//!
//! **Permits.** The cores of the target compare the [`Permit`](farblock_target::Permit) of an ANA
//! group, which ends at a certain time, with the clock before each submission. When a permit ends,
//! the worker reports the group as inaccessible, so that hosts wait or use another path.
//!
//! **Stopped processes.** A process that is stopped between its check of the clock and its system
//! call would submit after its permit has ended. The member's watchdog kills it, unless the worker
//! confirms in time that the group is *parked*: no operation is in flight at any core. It is not
//! enough that a core submits nothing more, since a disk may execute an operation in several system
//! calls.
//!
//! **Fences.** A [`FenceKind::None`](farblock_group::FenceKind) needs nothing here: the member
//! waits until the earlier leader has stopped. This crate reports a failed fence for all other
//! kinds.
//!
//! **Reservations** belong to the whole group (`ledger.rs`). A host may send reservation commands
//! to any member. A worker opens a disk only when all cores enforce the last change.
//!
//! **Not implemented.** Hard fences.

#![forbid(unsafe_code)]

mod absent;
mod desk;
mod leading;
mod ledger;
pub mod limits;
mod order;
mod worker;

pub use absent::Absent;
pub use desk::{LeadingAnswer, LedNamespace, Sink};
pub use leading::{Handle, Leading};
