//! The fence: the steps of a new leader from its takeover to its first operation.
//!
//! ```text
//!               placed            entered              waited out
//!   Placing ----------> Entering ---------> WaitingOut -----------> Effective
//!      |                   |
//!      +-------------------+--- failed --> the leadership is vacant; its victims stay listed
//! ```
//!
//! - **Placing.** The driver makes the disks refuse every victim: it adds RBD clients to the block
//!   list, preempts keys of persistent reservations, or raises the generation of a mirror's legs. A
//!   disk without a hard fence needs nothing here.
//! - **Entering.** The driver makes sure that its own operations cannot overtake the fence. For RBD
//!   this is the *barrier*: the epoch of the OSD map that contains the block list entry. The driver
//!   waits until the cluster context that it will use has this epoch. A context that existed before
//!   may have an older map, and an OSD that has not seen the new map would execute an operation of
//!   this context and afterwards a write of the victim (ceph/ceph#54671). With the barrier, the
//!   first operation of this context on an OSD makes the OSD refuse the victim.
//! - **WaitingOut.** If a victim's disk has no complete hard fence, the member waits until the
//!   victim has stopped on its own and its operations have ended. `Timing::stopped_at` returns this
//!   time, which runs from the takeover, in parallel to the other steps.

use crate::records::Holder;
use farblock_proto::time::Instant;

/// The state of a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FenceState {
    /// The driver places the fence.
    Placing,
    /// The driver waits until the disks would refuse the victims before they execute its own
    /// operations.
    Entering,
    /// The victims may still do I/O.
    WaitingOut,
    /// No victim can do I/O any more.
    Effective,
}

/// The progress of the fence that a takeover requires.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fencing {
    state: FenceState,
    /// The time at which all victims without a complete hard fence have stopped.
    stopped_at: Instant,
    /// The name of the new leader at the disks; known from [`FenceState::WaitingOut`] on.
    identity: String,
}

impl Fencing {
    /// Begins a fence against `victims`, after a takeover whose reply arrived at `taken`.
    pub(crate) fn new(
        taken: Instant,
        victims: &[Holder],
        stopped_at: impl Fn(&Holder) -> Instant,
    ) -> Self {
        let mut stopped_at = victims.iter().map(stopped_at).max().unwrap_or(taken);
        if crate::has_mistake("the lease of a victim is not waited out") {
            stopped_at = taken;
        }
        Self { state: FenceState::Placing, stopped_at, identity: String::new() }
    }

    pub(crate) fn state(&self) -> FenceState {
        self.state
    }

    /// The time at which the state WaitingOut ends.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (self.state == FenceState::WaitingOut).then_some(self.stopped_at)
    }

    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// Notes that the disks refuse the victims. Returns false if this was noted before.
    pub(crate) fn placed(&mut self) -> bool {
        let is_news = self.state == FenceState::Placing;
        if is_news {
            self.state = FenceState::Entering;
        }
        is_news
    }

    /// Notes that the disks refuse the victims before they execute the driver's operations.
    pub(crate) fn entered(&mut self, identity: String) {
        if self.state == FenceState::Entering {
            self.state = FenceState::WaitingOut;
            self.identity = identity;
        }
    }

    /// Ends the wait when its time has come.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.state == FenceState::WaitingOut && now >= self.stopped_at {
            self.state = FenceState::Effective;
        }
    }
}
