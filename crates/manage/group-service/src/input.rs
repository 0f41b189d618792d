//! The messages to the member's thread.

use crate::change::Change;
use crate::status::GroupStatus;
use farblock_group::MemberEvent;
use farblock_group::store::{StoreReply, Ticket, WatchEvent};
use std::sync::mpsc::SyncSender;

/// A message to the member's thread.
#[derive(Debug)]
pub(crate) enum Input {
    /// An input of the state machine.
    Member(MemberEvent),
    /// The answer to `Disks::park`: no core can submit I/O of this ANA group until the next permit.
    Parked { group: u32, epoch: u64 },
    /// The reply to a request.
    Reply(Ticket, StoreReply),
    /// A report of the etcd watch with this number.
    Watch(u64, WatchEvent),
    /// Answer with the state of the group.
    Snapshot(SyncSender<GroupStatus>),
    /// Change the group. Answer: `None` or the reason.
    Change { change: Change, attempts: u32, answer: Option<SyncSender<Result<(), String>>> },
    /// The hosts that are connected to this member. The first such message marks the member as
    /// ready for hosts.
    Hosts(Vec<String>),
    /// Whether etcd has the list of hosts.
    HostsWritten(bool),
    /// The reply to the transaction of a change.
    Changed(Box<Input>, StoreReply),
    /// End the thread.
    Stop,
}
