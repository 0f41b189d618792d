//! The interface to the target: its disks, and the events that they report.

use crate::input::Input;
use farblock_group::{Holder, MemberEvent, Outcome, Permit, Report, ReservationRecord};
use tokio::sync::mpsc::UnboundedSender;

/// The disks of the member, as the group controls them.
///
/// The member's thread calls these functions. None of them may block: a thread that waits for a
/// disk cannot renew permits (permissions to do I/O until a certain time). Answers go through
/// [`Events`].
pub trait Disks: Send {
    /// Makes the disks of an ANA group refuse the I/O of the victims, which are earlier leaders.
    /// Answer: [`MemberEvent::FencePlaced`] or [`MemberEvent::FenceFailed`].
    fn fence(&mut self, group: u32, epoch: u64, victims: Vec<Holder>);

    /// Registers this member at the disks, after the storage client for the new leadership's I/O
    /// has the OSD map of epoch `barrier`, which contains the fence. Does no I/O yet. Answer:
    /// [`MemberEvent::Entered`] or [`MemberEvent::FenceFailed`].
    fn enter(&mut self, group: u32, epoch: u64, barrier: Option<u64>);

    /// Opens the disks of an ANA group under the permit, and reports the group as optimized. The
    /// reservations of all earlier [`Self::apply`] must be in force first.
    fn begin(&mut self, group: u32, epoch: u64);

    /// Gives the permit to all cores. They submit only while `CLOCK_BOOTTIME` is before its end.
    /// `None`: no core may submit any operation. After `None`, another permit of the same epoch
    /// lets the I/O continue.
    fn publish(&mut self, group: u32, permit: Option<Permit>);

    /// Withdraws a permit that ends soon and that etcd has not renewed. As [`Self::publish`] with
    /// `None`, but every core confirms. When no core can submit any more, answer with
    /// [`Events::parked`], once for each call. Operations in the kernel may continue. Only called
    /// for a member with a watchdog, which kills the process if the answer is late.
    fn park(&mut self, group: u32, epoch: u64);

    /// Reports the group as inaccessible, stops its I/O and closes its disks. Answer:
    /// [`MemberEvent::Stopped`], when no operation is in flight any more.
    fn stop(&mut self, group: u32, epoch: u64);

    /// Enforces the reservations of a namespace. Answer: [`MemberEvent::Applied`], when every core
    /// enforces them and all commands that they forbid have ended.
    fn apply(&mut self, namespace: &str, record: ReservationRecord);

    /// The result of [`MemberEvent::Propose`] or [`MemberEvent::Consult`].
    fn answer(&mut self, proposal: u64, outcome: Outcome);

    /// An event for the log and the dashboard.
    fn report(&mut self, report: &Report);
}

/// Passes events from the disks to the member's thread.
#[derive(Clone, Debug)]
pub struct Events {
    sender: UnboundedSender<Input>,
}

impl Events {
    pub(crate) fn new(sender: UnboundedSender<Input>) -> Self {
        Self { sender }
    }

    /// Passes an event to the member. Does not block. Events after the end of the service have no
    /// effect.
    pub fn send(&self, event: MemberEvent) {
        let _ = self.sender.send(Input::Member(event));
    }

    /// Answers [`Disks::park`].
    pub fn parked(&self, group: u32, epoch: u64) {
        let _ = self.sender.send(Input::Parked { group, epoch });
    }
}
