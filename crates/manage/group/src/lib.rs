//! Groups of targets: membership, leadership, fencing and shared reservations.
//!
//! **Overview.** Two to sixteen targets, the *members*, share disks. Namespaces belong to ANA
//! groups. Each ANA group has one leading member, its *leader*, and only the leader does I/O on its
//! disks. The group keeps its records in etcd ([`Key`]). A [`Member`] is the state machine of one
//! member. It does no I/O and reads no clock: the driver passes it the time, answers of the store
//! and of the disks, and carries out its [`Action`]s. The trait [`Store`](store::Store) is the part
//! of etcd's interface that the group needs; the client of etcd is not part of this crate.
//!
//! # One leader
//!
//! A leadership record has an *epoch*, which each takeover increments: the fencing token. A
//! takeover is a transaction that compares the revision of the record, so one member wins. A new
//! leader does no I/O before its fence is effective (`fence.rs`) and the store has its record in
//! phase Serving.
//!
//! An old leader stops on its own. It does I/O only under a [`Permit`], which counts from the time
//! *before* a transaction whose reply shows its own record, a *proof*. Let *H* be the hold
//! ([`limits::HOLD`]), *S* the stop margin ([`limits::STOP_MARGIN`]), *F* the longest duration of
//! an operation at a disk that does not refuse late operations, and *r* the bound of the drift
//! ([`limits::DRIFT_PPM`]), twice the deviation *d* of one clock. A proof sent at real time *p*,
//! and a takeover that commits after *p*, give:
//! ```text
//! the old leader's last check of the clock:   p + (H - Hr - S) / (1 - d)
//! its last system call:                       at most S later
//! the effect of its last operation:           at most F later
//! the new leader's first operation, without
//! a complete hard fence:                      after p + (H + F)(1 + r) / (1 + d)
//!
//! (H - Hr - S) / (1 - d) + S + F  <  (H + F)(1 + r) / (1 + d)      because r = 2d
//! ```
//!
//! The victim's record contains its *H* and the kinds of its disks, so members with different
//! settings are safe. The wait runs from the reply to the takeover, or from an earlier suspicion
//! that the victim has not refuted (`suspicion.rs`): *p* is before either. If the victim's process
//! has certainly ended (its successor holds the lock of the state folder, or its watchdog says so),
//! the wait is F only. If the watchdog also has proof that no operation is in flight, it releases
//! the leadership, and no wait follows (`release.rs`).
//!
//! **The margins** are in [`limits`]. With their defaults and F = 0.5 s, the longest time from the
//! silence of a leader's machine to the first operation of the next leader is the sum of:
//!
//! | part | seconds |
//! |---|---|
//! | until a suspicion: 1 second without a renewal, the next check, and a transaction | 1.6 |
//! | *H*, [`limits::HOLD`], with the drift | 2.503 |
//! | F | 0.5 |
//!
//! The lease ([`limits::LEASE`], and up to half a second until etcd notices) ends before this sum.
//!
//! **A lease is not part of this argument.** The lease in etcd only tells members that another
//! member is probably dead. In etcd a stale leader may revoke a renewed lease, or confirm the
//! renewal of a revoked one (etcd issue 15247). Such an error costs a takeover, but never data.
//! Wall clocks do not matter either: records contain their time for people only.
//!
//! **The driver's duties.** `now` counts the time in which the machine is suspended
//! (`CLOCK_BOOTTIME`). Cores compare it with the permit before each submission, without a message
//! from any other thread. For disks without a complete hard fence, a stopped process must not
//! continue after its permit: between the check and the system call, SIGSTOP may last for hours. A
//! small second process kills it (SIGKILL) at the end of the permit, unless the permit was renewed.
//! No program can do this if a hypervisor stops the whole machine; such machines need disks with
//! hard fences, or a watchdog device.
//!
//! # Fences
//!
//! | [`FenceKind`] | the disk refuses | a new leader waits for |
//! |---|---|---|
//! | `BlockList` | reads and writes | the block list, and its epoch in the client's own map |
//! | `PersistentReservation` | reads and writes | the device's answer |
//! | `MirrorGeneration` | writes; the old leader may read its own local leg | the legs, and *H* |
//! | `None` | nothing | *H* + *F* |
//!
//! The first two are *complete*. A record lists all earlier leaders whose fence has not completed.
//! If a new leader dies while it fences, the next leader fences all of them.
//!
//! An RBD image refuses a victim lazily: an OSD that no operation of the new leader has reached may
//! still execute a victim's write. No host can notice: it looks as if this write had been executed
//! before the fence, and each block that a host reads afterwards keeps its contents.
//!
//! # The store is unavailable
//!
//! No takeover can commit without a quorum, so a lost quorum never gives two leaders. The leader
//! cannot know whether the store has no quorum, or only this member cannot reach it. Therefore:
//!
//! - **Complete hard fence, and a member of the store reports that it has no quorum:** I/O
//!   continues, for *H* after each such report. If the report was wrong, and another member takes
//!   over, the disks refuse the old leader before the new one begins.
//! - **All other cases:** I/O continues until the permit ends, and then waits. If the store returns
//!   and the record is unchanged, I/O continues in the same epoch, without a takeover. After
//!   the store's return, a member takes over other members' groups only after a contact of *H*, so
//!   that the leaders can join again before.
//!
//! "I/O continues under the current leaders" is thus true for disks that can refuse a wrong leader.
//! For other disks, continuing would need a second election among the members, or put the data at
//! risk. Reservation changes, moves and orders wait in any case.
//!
//! # Moves
//!
//! Rendezvous hashing with weights ranks the members for each ANA group. The best takes a group
//! without a leader at once, the next after [`limits::RANK_STEP`]. A leader hands a group over when
//! a better member has settled (`settle.rs`), one group after the other, or at an operator's order
//! (pin, drain, pause), all at once. It withdraws the permit, waits for the operations in flight,
//! and makes the record vacant. A member that restarts takes its own groups again with a new epoch;
//! for [`limits::RESUME_TIME`], no other member takes them.
//!
//! A leader that cannot fence the earlier leaders or open its disks makes the record vacant, and
//! avoids the ANA group for [`limits::AVOID`]. The record lists the failure, and each member counts
//! it as a loss of that member. An operator's pin from before the failure no longer moves the group
//! at once; a later pin also ends the avoidance.
//!
//! # Decisions
//!
//! - *Proofs are transactions that only read.* Heartbeats that write would make the safety equally
//!   independent of leases, but fill etcd's history: a group of 16 would write 2 million revisions
//!   a day. Lease renewals alone are unsafe, see above.
//! - *Records of leadership have no lease.* A key that disappears with a lease loses the list of
//!   victims, and a quick restart would look like a death.
//! - *Members do not promise each other to wait* while the store is unavailable. Such promises need
//!   agreement on the members, which is a consensus protocol of our own.
//! - *One leader for every kind of disk*, also for those that all members can open. Members that
//!   write at once would need reservations checked at each of them, and a fence for each lost
//!   member.
//! - *A reservation change is in force when a leader enforces it*, see `reservations.rs`. If every
//!   member had to acknowledge it, a preempt would wait until a lost member counts as dead.
//!
//! **Not implemented.** Drivers of fences; `farblock-group-service` has the client of etcd. A
//! leader whose disk stalls while the store answers keeps its group: the driver cannot report this
//! yet. A time limit for a fence: the driver answers every [`Action::Fence`] and
//! [`Action::Enter`]. Changing the fences of an ANA group while a member leads it: the new list
//! applies to the next leader. Non-optimized access through other members.

#![forbid(unsafe_code)]

mod action;
mod claim;
mod fence;
mod keys;
pub mod limits;
mod member;
mod mistake;
mod outbox;
mod place;
mod records;
mod release;
mod reservations;
mod seat;
mod session;
mod settle;
pub mod store;
mod suspicion;
#[cfg(test)]
mod tests;
mod timing;
mod view;
mod words;

pub use action::{Action, MemberEvent, Outcome, Permit, Proposed, Report};
pub use keys::{Key, KeySpace, is_name};
pub use limits::controller_ids;
pub use member::Member;
use mistake::has_mistake;
pub use place::ranking;
pub use records::{
    AckRecord, AliveRecord, AnaGroupRecord, Duty, FailedRecord, FenceKind, FencedRecord, Holder,
    HostsRecord, LeaderRecord, MemberRecord, NoticeRecord, OrderRecord, Phase, PinRecord,
    RangeRecord, Reason, Record, ReservationChange, ReservationRecord, SuspectRecord, Unknown,
    UpgradeMember, UpgradeRecord, VERSION,
};
pub use release::{release, release_reads};
pub use session::MemberConfig;
pub use timing::Timing;
pub use view::{Seen, Upkeep, View};
