//! The values in the store: versioned JSON documents.
//!
//! A reader accepts documents of its own version and of the next one, so that members of two
//! adjacent versions understand each other. A document of the next version may only have more
//! fields. A member that rewrites another member's document keeps the fields that it does not know.

use crate::store::{LeaseId, Revision};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The version of the documents that this program writes.
pub const VERSION: u32 = 1;

/// The fields that this version does not know.
pub type Unknown = BTreeMap<String, serde_json::Value>;

/// A document in the store.
pub trait Record: Serialize + DeserializeOwned {
    /// The version of the document's format.
    fn version(&self) -> u32;

    /// The value to store.
    fn to_value(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record has only text keys")
    }

    /// Reads a value. `None`: the value is damaged or too new.
    fn from_value(value: &[u8]) -> Option<Self> {
        let record: Self = serde_json::from_slice(value).ok()?;
        (1..=VERSION + 1).contains(&record.version()).then_some(record)
    }
}

/// The record of a member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The number of this process. It grows with each start of the member.
    pub incarnation: u64,
    /// A random number of the process, by which it recognizes its own record.
    pub process: u64,
    /// All incarnations after `ended_from` up to this one have certainly ended: a later process has
    /// confirmed it, because it got the lock of their state folder.
    pub ended: u64,
    /// The processes up to this incarnation may still run: the process after it used another state
    /// folder, and could not confirm their end.
    #[serde(default)]
    pub ended_from: u64,
    /// The addresses at which hosts and other members reach the member: `NAME:PORT` or
    /// `ADDRESS:PORT`.
    pub addresses: Vec<String>,
    /// The share of ANA groups that the member leads, relative to other members. 0: none.
    pub weight: u32,
    /// The version of the program.
    pub program: String,
    /// The number of the range of controller identifiers.
    pub range: u16,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl MemberRecord {
    /// The record with the confirmation that the process of this incarnation has ended.
    #[must_use]
    pub fn confirmed(&self) -> Self {
        let last = self.incarnation;
        // An earlier process may still run if the process after it could not confirm its end.
        let ended_from = if self.ended + 1 < last { last - 1 } else { self.ended_from };
        Self { ended_from, ended: last, ..self.clone() }
    }
}

/// The record that exists while a process of a member is alive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AliveRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The incarnation of the member.
    pub incarnation: u64,
    /// The lease whose end makes the store delete this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
}

/// The suspicion that a process of a member is dead; see `suspicion.rs`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SuspectRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The incarnation of the suspect member.
    pub incarnation: u64,
    /// The name of the member that wrote this, for people.
    pub by: String,
}

/// The owner of a range of controller identifiers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RangeRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The name of the member.
    pub member: String,
}

/// The tasks of a member according to an operator.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Duty {
    /// The member leads ANA groups.
    #[default]
    Serve,
    /// The member hands its ANA groups over as soon as another member can lead them.
    Drain,
    /// The member stops its ANA groups, even if no other member can lead them.
    Pause,
}

/// An operator's order for a member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OrderRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The tasks of the member.
    #[serde(default)]
    pub duty: Duty,
    /// The weight that replaces the weight of the member's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The incarnation that must end as soon as it leads nothing, so that its supervisor starts the
    /// member again. The order has no effect on later incarnations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<u64>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A member at the start of a rolling upgrade.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpgradeMember {
    /// The incarnation to be replaced. A later one has the new program.
    pub incarnation: u64,
    /// The tasks that the member gets back after its upgrade.
    pub duty: Duty,
}

/// A rolling upgrade in progress.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpgradeRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The members by name.
    pub members: BTreeMap<String, UpgradeMember>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The hosts that are connected to a member. The record exists while the member is ready for hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostsRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The incarnation of the member.
    pub incarnation: u64,
    /// The names of the hosts with I/O queues, at most [`MAX_HOSTS`](crate::limits::MAX_HOSTS).
    pub hosts: Vec<String>,
}

/// The member that an operator chose for an ANA group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PinRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The name of the member.
    pub member: String,
}

/// The way in which a disk refuses an earlier leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FenceKind {
    /// An RBD image: the cluster's block list contains the earlier leader's client. It refuses
    /// reads and writes.
    BlockList,
    /// A shared device with persistent reservations of type Exclusive Access, Registrants Only: it
    /// refuses reads and writes of the earlier leader's key.
    PersistentReservation,
    /// A mirror: its legs refuse the earlier leader's generation. The earlier leader may still read
    /// its own local leg.
    MirrorGeneration,
    /// The disk does not refuse an earlier leader.
    None {
        /// The longest time from the submission of a write until the disk has executed it or never
        /// will, in milliseconds.
        flight_ms: u64,
    },
}

impl FenceKind {
    /// Whether the disk refuses all reads and writes of a fenced leader. A new leader need not wait
    /// until such a leader has stopped on its own.
    #[must_use]
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::BlockList | Self::PersistentReservation)
    }

    /// The longest time for which an operation of a stopped leader may still take effect; zero if
    /// the disk refuses late writes.
    #[must_use]
    pub const fn flight(self) -> Duration {
        match self {
            Self::None { flight_ms } => Duration::from_millis(flight_ms),
            _ => Duration::ZERO,
        }
    }
}

/// An ANA group: the namespaces that change their leader together.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AnaGroupRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The kinds of fences of all disks in the ANA group, each once.
    pub fences: Vec<FenceKind>,
    /// The namespaces with their identities, in order. All members share the same namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A member's tenure, which is its leadership of an ANA group in one epoch: everything that a
/// successor needs to fence it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// The name of the member.
    pub member: String,
    /// The incarnation of the member.
    pub incarnation: u64,
    /// The epoch of the tenure.
    pub epoch: u64,
    /// The name of the member at the disks during this tenure, such as a RADOS client's address or
    /// a reservation key; empty before the member may write.
    #[serde(default)]
    pub identity: String,
    /// The time for which this holder may do I/O after the store has confirmed its leadership, in
    /// milliseconds.
    pub hold_ms: u64,
    /// The fences of the disks that this holder uses.
    pub fences: Vec<FenceKind>,
    /// Whether a suspicion stops the renewal of this holder's permits to do I/O.
    #[serde(default)]
    pub heeds_suspicions: bool,
    /// For a victim: the revision of the suspicion that existed at the takeover.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspected: Option<Revision>,
}

/// The state of the leadership of an ANA group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// No member leads or takes over.
    Vacant,
    /// The holder fences the earlier leaders. No member may do I/O.
    Fencing,
    /// The holder may do I/O.
    Serving,
}

/// The reason for the last change of a leadership, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The ANA group is new.
    New,
    /// An operator's order: pin, drain or pause.
    Order,
    /// The member that should lead has been alive for long enough.
    Balance,
    /// The previous leader's process or machine is dead, silent or cut off.
    Lost,
    /// The leader's process restarted.
    Restart,
    /// The member could not fence the earlier leader or open the disks.
    FenceFailed,
    /// The member leaves the group.
    Leave,
}

/// The leadership of an ANA group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The number of takeovers so far: the fencing token of the current holder.
    pub epoch: u64,
    /// The state of the leadership.
    pub phase: Phase,
    /// The current holder; `None` while the leadership is vacant.
    pub holder: Option<Holder>,
    /// The earlier leaders that may still do I/O, because no later leader has completed a fence.
    pub victims: Vec<Holder>,
    /// The member to which the last holder handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The reason for the last change.
    pub reason: Reason,
    /// The time of the last change on the wall clock of its author, in milliseconds since 1970; for
    /// people only.
    pub at_unix_ms: u64,
    /// The last completed fence of earlier leaders, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced: Option<FencedRecord>,
    /// The last failure of each member that has not led since.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub failed: BTreeMap<String, FailedRecord>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl LeaderRecord {
    /// The member and the failure behind [`Reason::FenceFailed`]; `None`: the last leader left for
    /// another reason.
    #[must_use]
    pub fn failure(&self) -> Option<(&str, &FailedRecord)> {
        let all = self.failed.iter().filter(|_| self.reason == Reason::FenceFailed);
        let last = all.max_by_key(|(_, failed)| failed.epoch);
        last.map(|(member, failed)| (member.as_str(), failed))
    }
}

/// A leader that could not fence the earlier leaders, or open the disks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailedRecord {
    /// The epoch of its leadership.
    pub epoch: u64,
    /// The revision of the record during its leadership. An operator's later pin to this member
    /// applies at once.
    pub revision: Revision,
    /// The failure: the sentence after the member's name.
    pub problem: String,
}

/// A completed fence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FencedRecord {
    /// The earlier leaders, which certainly do no I/O any more.
    pub members: Vec<String>,
    /// The member that completed the fence.
    pub by: String,
    /// The time on that member's wall clock, in milliseconds since 1970.
    pub at_unix_ms: u64,
}

/// A notification about a reservation, for a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NoticeRecord {
    /// The host identifier, as 32 hexadecimal digits.
    pub host: String,
    /// The Reservation Notification Log Page Type.
    pub kind: u8,
}

/// A change of a namespace's reservations.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReservationChange {
    /// The number of the change.
    pub index: u64,
    /// The member that received the command.
    pub member: String,
    /// The incarnation of the member.
    pub incarnation: u64,
    /// The number that the member gave the proposal.
    pub proposal: u64,
    /// The notifications that every member passes to the hosts connected to it.
    pub notices: Vec<NoticeRecord>,
    /// The hosts whose commands the leader ends before it acknowledges the change, as in
    /// [`NoticeRecord::host`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aborted: Vec<String>,
}

/// The reservations of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReservationRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The ANA group of the namespace.
    pub group: u32,
    /// The number of changes so far.
    pub index: u64,
    /// The registrants, the reservation and its holder, in the form of
    /// [`farblock_proto::controller::Reservations::to_shared_text`].
    pub state: String,
    /// The last changes, in order.
    pub log: Vec<ReservationChange>,
    /// Fields of later versions.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The reservation changes that the leader of the namespace's ANA group has applied: none of its
/// cores executes a command that these changes forbid. The value stays true after the leader's end,
/// since later leaders begin with at least these changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AckRecord {
    /// The version of the document's format.
    pub version: u32,
    /// The epoch of the leader.
    pub epoch: u64,
    /// The index of the last applied change.
    pub index: u64,
}

macro_rules! records {
    ($($name:ident)*) => {$(
        impl Record for $name {
            fn version(&self) -> u32 {
                self.version
            }
        }
    )*};
}
records!(MemberRecord AliveRecord RangeRecord OrderRecord PinRecord AnaGroupRecord LeaderRecord);
records!(ReservationRecord AckRecord UpgradeRecord HostsRecord SuspectRecord);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_next_version_survive_and_later_versions_are_refused() {
        let next = br#"{"version":2,"epoch":3,"phase":"vacant","holder":null,"victims":[],
            "reason":"new","at_unix_ms":0,"colour":"red"}"#;
        let mut record = LeaderRecord::from_value(next).expect("the next version is readable");
        record.epoch = 4;
        let text = String::from_utf8(record.to_value()).expect("JSON");
        assert!(text.contains(r#""colour":"red""#) && text.contains(r#""version":2"#), "{text}");
        assert!(LeaderRecord::from_value(&text.replace(":2", ":3").into_bytes()).is_none());
        assert!(LeaderRecord::from_value(b"{").is_none());
    }
    #[test]
    fn an_order_of_the_next_version_keeps_its_unknown_fields() {
        let next = br#"{"version":2,"duty":"drain","after":"noon"}"#;
        let order = OrderRecord::from_value(next).expect("the next version is readable");
        assert_eq!((order.duty, order.restart), (Duty::Drain, None));
        let text = String::from_utf8(order.to_value()).expect("JSON");
        assert!(text.contains(r#""after":"noon""#), "{text}");
    }
}
