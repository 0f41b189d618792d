//! The inputs and outputs of a [`Member`](crate::Member).

use crate::keys::Key;
use crate::records::{Holder, NoticeRecord, Reason, ReservationRecord};
use crate::store::{StoreEvent, StoreRequest, Ticket};
use farblock_proto::time::Instant;

/// The permission to do I/O on the disks of an ANA group.
///
/// Each core keeps a copy. It looks at the clock before each submission to a disk, and submits only
/// while `now < until`. No message from the management thread is necessary to stop it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Permit {
    /// The epoch of the leadership.
    pub epoch: u64,
    /// The time at which the permission ends.
    pub until: Instant,
}

/// An order of a member to its driver, which does all I/O.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a request to the store.
    Store(Ticket, StoreRequest),
    /// Make the disks of an ANA group refuse the I/O of the victims. Answer:
    /// [`MemberEvent::FencePlaced`] or [`MemberEvent::FenceFailed`].
    Fence {
        /// The ANA group.
        group: u32,
        /// The epoch of the new leadership.
        epoch: u64,
        /// The earlier leaders that may still do I/O.
        victims: Vec<Holder>,
    },
    /// Register this member at the disks, after the storage client for the new leadership's I/O has
    /// the OSD map of epoch `barrier`, which contains the fence. Do no I/O yet. Answer:
    /// [`MemberEvent::Entered`] or [`MemberEvent::FenceFailed`].
    Enter {
        /// The ANA group.
        group: u32,
        /// The epoch of the new leadership.
        epoch: u64,
        /// The barrier that [`MemberEvent::FencePlaced`] reported.
        barrier: Option<u64>,
    },
    /// Open the disks of an ANA group under the permit, and report the group as optimized. The
    /// reservations of all earlier [`Action::Apply`] must be in force first.
    Begin {
        /// The ANA group.
        group: u32,
        /// The epoch of the new leadership.
        epoch: u64,
    },
    /// Give the permit to all cores. `None`: no core may submit any operation.
    Publish {
        /// The ANA group.
        group: u32,
        /// The new permit.
        permit: Option<Permit>,
    },
    /// Report the group as inaccessible, stop its I/O and close its disks. Answer:
    /// [`MemberEvent::Stopped`], when no operation is in flight any more.
    Stop {
        /// The ANA group.
        group: u32,
        /// The epoch of the leadership that ends.
        epoch: u64,
    },
    /// Enforce the reservations of a namespace. Answer: [`MemberEvent::Applied`], when every core
    /// enforces them and all commands that they forbid have ended.
    Apply {
        /// The name of the namespace in the store.
        namespace: String,
        /// The reservations after the last change.
        record: Box<ReservationRecord>,
    },
    /// The result of [`MemberEvent::Propose`] or [`MemberEvent::Consult`].
    Answer {
        /// The number of the proposal.
        proposal: u64,
        /// The result of the proposal or question.
        outcome: Outcome,
    },
    /// An event for the log and the dashboard.
    Report(Report),
}

/// The result of a proposed reservation change, or of a question about reservations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The change is in force: no member can execute a command that it forbids.
    InForce {
        /// The number of the change.
        index: u64,
    },
    /// Another change was first. Consult again, and propose a change of the new state.
    Conflict,
    /// The answer to a question: this change is the last one in the store, and it is in force.
    Current {
        /// The number of the change; 0: there was no change.
        index: u64,
    },
    /// This version cannot read the record.
    Unreadable,
}

/// An event for the log and the dashboard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// The member joined, with this incarnation.
    Joined {
        /// The number of this process; it grows with each start.
        incarnation: u64,
    },
    /// The store deleted this member's `alive` key when its lease ended. The member joins again.
    LeaseLost,
    /// Another process has taken this member's name. This member stops, and never joins again.
    Superseded,
    /// All ranges of controller identifiers are assigned: remove a member that does not exist any
    /// more.
    NoRange,
    /// The member takes an ANA group over.
    Takes {
        /// The ANA group.
        group: u32,
        /// The new epoch.
        epoch: u64,
        /// The reason for the takeover.
        reason: Reason,
    },
    /// No hard fence exists for an earlier leader, or it covers only writes. The member waits until
    /// that leader has certainly stopped.
    WaitsOut {
        /// The ANA group.
        group: u32,
        /// The time at which the wait ends.
        until: Instant,
    },
    /// The member leads an ANA group.
    Leads {
        /// The ANA group.
        group: u32,
        /// The epoch of the leadership.
        epoch: u64,
    },
    /// The member does not lead an ANA group any more.
    Left {
        /// The ANA group.
        group: u32,
        /// The reason why the leadership ended.
        reason: Reason,
    },
    /// The member leads an ANA group, but cannot open its disks, and hands the group over.
    CannotOpen {
        /// The ANA group.
        group: u32,
        /// The error, as one sentence.
        problem: String,
    },
    /// The member's watchdog has ended, so the member may permit no I/O. It hands all ANA groups
    /// over and leaves the group.
    WatchdogLost,
    /// The store has no quorum. I/O continues on disks with complete hard fences. On other disks it
    /// continues until the time `until`, and then waits for the store. Changes wait.
    HoldsOver {
        /// The ANA group.
        group: u32,
        /// The time at which the current permit ends.
        until: Instant,
    },
    /// The program cannot read a record: it is damaged, or of a version that is too new.
    Unreadable(Key),
}

/// An input of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemberEvent {
    /// An answer of the store.
    Store(StoreEvent),
    /// The disks refuse the I/O of the victims. `barrier`: for RBD, the OSD map epoch of the block
    /// list.
    FencePlaced {
        /// The ANA group.
        group: u32,
        /// The epoch of the new leadership.
        epoch: u64,
        /// The barrier to pass to [`Action::Enter`].
        barrier: Option<u64>,
    },
    /// The disks refuse the victims before they execute this member's first operation.
    Entered {
        /// The ANA group.
        group: u32,
        /// The epoch of the new leadership.
        epoch: u64,
        /// The name of this member at the disks during this epoch.
        identity: String,
    },
    /// The driver could not place the fence or register this member at the disks.
    FenceFailed {
        /// The ANA group.
        group: u32,
        /// The epoch of the new leadership.
        epoch: u64,
    },
    /// The driver could not open the disks for a while after [`Action::Begin`]. It tries again
    /// until [`Action::Stop`].
    OpenFailed {
        /// The ANA group.
        group: u32,
        /// The epoch of the leadership.
        epoch: u64,
        /// The error, as one sentence.
        problem: String,
    },
    /// No operation of this epoch is in flight, and none will be submitted.
    Stopped {
        /// The ANA group.
        group: u32,
        /// The epoch that has ended.
        epoch: u64,
    },
    /// Every core enforces the reservations up to this change.
    Applied {
        /// The name of the namespace in the store.
        namespace: String,
        /// The number of the change.
        index: u64,
    },
    /// A host changes the reservations of a namespace.
    Propose(Proposed),
    /// Find out the last reservation change of a namespace. Answer: [`Action::Answer`], when the
    /// change is in force.
    Consult {
        /// The caller's number, which [`Action::Answer`] repeats. No proposal may have the same
        /// number.
        proposal: u64,
        /// The name of the namespace in the store.
        namespace: String,
        /// The ANA group of the namespace.
        group: u32,
    },
    /// Hand all ANA groups over, and leave.
    Leave,
}

/// A reservation change that a host requested through this member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposed {
    /// The caller's number, which [`Action::Answer`] repeats.
    pub proposal: u64,
    /// The name of the namespace in the store.
    pub namespace: String,
    /// The ANA group of the namespace.
    pub group: u32,
    /// The number of the last change that `state` includes; 0: none.
    pub base: u64,
    /// The reservations after the change, as in [`ReservationRecord::state`].
    pub state: String,
    /// The notifications for hosts.
    pub notices: Vec<NoticeRecord>,
    /// The hosts whose commands the leader ends, as in [`NoticeRecord::host`].
    pub aborted: Vec<String>,
}
