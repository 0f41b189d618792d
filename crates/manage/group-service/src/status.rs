//! The group as a member sees it, for people and programs.

use farblock_group::{
    AnaGroupRecord, Duty, FailedRecord, FenceKind, FencedRecord, LeaderRecord, Member,
    MemberRecord, Phase, Reason, Report, Seen, UpgradeMember, View, controller_ids,
};
use farblock_proto::time::Instant;
use serde::Serialize;
use std::collections::BTreeMap;

/// The connection to etcd.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct StoreStatus {
    /// Whether etcd answered lately, so that changes are possible.
    pub reachable: bool,
    /// The time since the last successful answer, in milliseconds; `None`: none yet.
    pub last_answer_ms: Option<u64>,
    /// The address of etcd's member that answered last.
    pub endpoint: Option<String>,
    /// The last error since the last successful answer.
    pub trouble: Option<String>,
}

/// A member of the group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemberStatus {
    /// The name.
    pub name: String,
    /// Whether the member has a lease in etcd.
    pub alive: bool,
    /// The addresses at which hosts reach the member.
    pub addresses: Vec<String>,
    /// The weight for placement: the member's own, or the weight from an operator's order.
    pub weight: u32,
    /// The operator's order.
    pub duty: Duty,
    /// The version of the program.
    pub program: String,
    /// The first and last controller identifier of the member.
    pub controller_ids: Option<(u16, u16)>,
    /// The ANA groups that the member leads.
    pub leads: Vec<u32>,
    /// The number of this process of the member. It grows with each start.
    pub incarnation: u64,
    /// The incarnation that has the order to end, so that its supervisor starts the member again.
    pub restart: Option<u64>,
    /// The hosts that are connected to the member; `None`: it is not ready for hosts.
    pub hosts: Option<Vec<String>>,
}

/// The problems of an ANA group's earlier leaders.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct LeaderProblems {
    /// The last completed fence.
    pub fenced: Option<FencedRecord>,
    /// The last failure of each member that has not led since.
    pub failed: BTreeMap<String, FailedRecord>,
}

/// An ANA group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AnaGroupStatus {
    /// The ANA group identifier.
    pub number: u32,
    /// The leader, or the member that becomes the leader; `None`: no member.
    pub leader: Option<String>,
    /// The state of the leadership.
    pub phase: Phase,
    /// The number of takeovers so far.
    pub epoch: u64,
    /// The reason for the last change.
    pub reason: Option<Reason>,
    /// The time of the last change on the wall clock of its author, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The ways in which the disks refuse an earlier leader.
    pub fences: Vec<FenceKind>,
    /// The namespaces with their identities.
    pub namespaces: Vec<String>,
    /// The earlier leaders that may still do I/O.
    pub victims: Vec<String>,
    /// The problems of earlier leaders.
    #[serde(flatten)]
    pub problems: LeaderProblems,
    /// The member that an operator chose.
    pub pinned: Option<String>,
    /// Whether this member leads the group and may do I/O now.
    pub permitted_here: bool,
}

/// An event in this member's recent past.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct HistoryEntry {
    /// The time, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The ANA group, if the event concerns one.
    pub ana_group: Option<u32>,
    /// The event, as a sentence.
    pub text: String,
}

/// The group as a member sees it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
pub struct GroupStatus {
    /// The name of the group.
    pub group: String,
    /// The name of this member.
    pub member: String,
    /// The number of this process; `None`: it has not joined yet.
    pub incarnation: Option<u64>,
    /// Whether this member has a lease in etcd.
    pub joined: bool,
    /// Whether this member has handed over its ANA groups and ended its lease.
    pub left: bool,
    /// Whether this member leaves the group because its watchdog has ended. Its supervisor must
    /// start the process again.
    pub has_no_watchdog: bool,
    /// The connection to etcd.
    pub store: StoreStatus,
    /// The members by name.
    pub members: Vec<MemberStatus>,
    /// The ANA groups by number.
    pub ana_groups: Vec<AnaGroupStatus>,
    /// The members of the rolling upgrade in progress; `None`: there is none.
    pub upgrade: Option<BTreeMap<String, UpgradeMember>>,
    /// The last events of this member, the oldest first.
    pub history: Vec<HistoryEntry>,
}

impl HistoryEntry {
    /// Converts a report to an entry; `None`: the list does not show such reports.
    pub(crate) fn of(report: &Report, at_unix_ms: u64) -> Option<Self> {
        let ana_group = match report {
            Report::Takes { group, .. }
            | Report::WaitsOut { group, .. }
            | Report::Leads { group, .. }
            | Report::CannotOpen { group, .. }
            | Report::Left { group, .. } => Some(*group),
            // Not an event: the member repeats this report while the store has no quorum.
            Report::HoldsOver { .. } => return None,
            _ => None,
        };
        Some(Self { at_unix_ms, ana_group, text: report.to_string() })
    }
}

impl GroupStatus {
    /// The group according to a member's copy of the records.
    pub(crate) fn of(member: &Member, now: Instant, store: StoreStatus) -> Self {
        let view = member.view();
        let members = view.members.iter().map(|(name, seen)| member_of(name, seen, view));
        let numbers: std::collections::BTreeSet<u32> =
            view.groups.keys().chain(view.leaders.keys()).copied().collect();
        let ana_group = |number| {
            let (group, leader) = (view.groups.get(&number), view.leaders.get(&number));
            let mut status = ana_group_of(number, group, leader);
            status.pinned = view.pins.get(&number).map(|seen| seen.record.member.clone());
            let permit = member.permit(number);
            status.permitted_here = permit.is_some_and(|permit| now < permit.until);
            status
        };
        Self {
            group: member.config().group.clone(),
            member: member.config().name.clone(),
            incarnation: member.incarnation(),
            joined: member.is_joined(),
            store,
            members: members.collect(),
            ana_groups: numbers.into_iter().map(ana_group).collect(),
            upgrade: view.upkeep.upgrade.get(&()).map(|seen| seen.record.members.clone()),
            ..Self::default()
        }
    }
}

fn member_of(name: &str, seen: &Seen<MemberRecord>, view: &View) -> MemberStatus {
    let record = &seen.record;
    let is_its = |leader: &Seen<LeaderRecord>| {
        let holder = leader.record.holder.as_ref();
        leader.record.phase == Phase::Serving && holder.is_some_and(|it| it.member == name)
    };
    let leads = view.leaders.iter().filter(|(_, leader)| is_its(leader));
    let hosts = view.upkeep.hosts.get(name);
    let hosts = hosts.filter(|seen| seen.record.incarnation == record.incarnation);
    MemberStatus {
        name: name.to_owned(),
        alive: view.is_alive(name, record.incarnation),
        addresses: record.addresses.clone(),
        weight: view.weight(name),
        duty: view.duty(name),
        incarnation: record.incarnation,
        restart: view.upkeep.orders.get(name).and_then(|seen| seen.record.restart),
        hosts: hosts.map(|seen| seen.record.hosts.clone()),
        program: record.program.clone(),
        controller_ids: controller_ids(record.range).map(|ids| (*ids.start(), *ids.end())),
        leads: leads.map(|(number, _)| *number).collect(),
    }
}

fn ana_group_of(
    number: u32,
    group: Option<&Seen<AnaGroupRecord>>,
    leader: Option<&Seen<LeaderRecord>>,
) -> AnaGroupStatus {
    let leader = leader.map(|seen| &seen.record);
    let victims = leader.into_iter().flat_map(|leader| &leader.victims);
    AnaGroupStatus {
        number,
        leader: leader.and_then(|it| Some(it.holder.as_ref()?.member.clone())),
        phase: leader.map_or(Phase::Vacant, |leader| leader.phase),
        epoch: leader.map_or(0, |leader| leader.epoch),
        reason: leader.map(|leader| leader.reason),
        since_unix_ms: leader.map_or(0, |leader| leader.at_unix_ms),
        fences: group.map(|group| group.record.fences.clone()).unwrap_or_default(),
        namespaces: group.map(|group| group.record.namespaces.clone()).unwrap_or_default(),
        victims: victims.map(|victim| victim.member.clone()).collect(),
        problems: LeaderProblems {
            fenced: leader.and_then(|leader| leader.fenced.clone()),
            failed: leader.map(|leader| leader.failed.clone()).unwrap_or_default(),
        },
        pinned: None,
        permitted_here: false,
    }
}
