//! Single faults and orders of an operator, and the time for which hosts then wait.

use super::disk::BLOCKS;
use super::faults::Fault;
use super::process::Condition;
use super::world::{GROUP, Happening, MS, NO_FENCE, World};
use crate::{Duty, FenceKind, OrderRecord, PinRecord, Record, Unknown, VERSION};
use farblock_random::Random;
use std::collections::BTreeSet;

const HARD: FenceKind = FenceKind::PersistentReservation;

/// A world of three members in which every ANA group has a leader.
fn world(kinds: &[FenceKind]) -> World {
    let mut world = World::quiet(Random::new(7), 3, kinds);
    world.run(6_000 * MS);
    for group in 1..=kinds.len() as u32 {
        assert!(world.leader(group).is_some(), "group {group} has no leader");
    }
    world
}

impl World {
    /// The member that leads a group and may do I/O, with its epoch.
    fn leader(&self, group: u32) -> Option<(usize, u64)> {
        let leaders = self.leaders(group);
        assert!(leaders.len() <= 1, "group {group} has two leaders");
        leaders.first().copied()
    }

    fn leaders(&self, group: u32) -> Vec<(usize, u64)> {
        let leaders = self.processes.iter().enumerate().filter_map(|(number, process)| {
            let now = process.local(self.course.now);
            let permit = process.member.permit(group)?;
            let can = process.condition == Condition::Running && now < permit.until;
            can.then_some((number, permit.epoch))
        });
        leaders.collect()
    }

    fn pass(&mut self, time: u64) {
        self.run(self.course.now + time);
        assert_eq!(self.wrong, None);
    }

    /// Runs until an ANA group has a leader for which `is_it` is true, for at most `most`. Returns
    /// the time.
    fn until(&mut self, group: u32, most: u64, is_it: impl Fn((usize, u64)) -> bool) -> u64 {
        let begin = self.course.now;
        while !self.leader(group).is_some_and(&is_it) {
            self.pass(10 * MS);
            let passed = self.course.now - begin;
            assert!(passed <= most, "group {group} has {:?}", self.leader(group));
        }
        self.course.now - begin
    }

    fn order(&mut self, number: usize, duty: Duty) {
        let record = OrderRecord {
            version: VERSION,
            duty,
            weight: None,
            restart: None,
            unknown: Unknown::new(),
        };
        self.etcd.put(&format!("farblock/{GROUP}/order/m{number}"), record.to_value());
    }

    fn acked(&self, group: u32) -> u64 {
        (0..BLOCKS).map(|block| self.disks[&group].acked[block]).sum()
    }
}

#[test]
fn a_quick_restart_is_not_a_failover() {
    for kind in [HARD, NO_FENCE] {
        let mut world = world(&[kind]);
        let (number, epoch) = world.leader(1).expect("a leader");
        world.kill_for(number, 100 * MS);
        world.pass(110 * MS);
        let time = world.until(1, 1_500 * MS, |it| it == (number, epoch + 1));
        assert!(time < 1_000 * MS, "{kind:?}: {} ms", time / MS);
        world.pass(8_000 * MS);
        assert_eq!(
            world.leader(1),
            Some((number, epoch + 1)),
            "the restarted leader keeps the group"
        );
    }
}

#[test]
fn a_silent_leader_is_replaced_after_its_hold() {
    for (kind, most) in [(HARD, 3_000 * MS), (NO_FENCE, 5_500 * MS)] {
        let mut world = world(&[kind]);
        let (number, _) = world.leader(1).expect("a leader");
        world.begin(Fault::Silent(number));
        world.pass(2_100 * MS);
        assert!(
            world.leader(1).is_none_or(|leader| leader.0 != number),
            "the silent leader stops on its own"
        );
        world.until(1, most - 2_100 * MS, |it| it.0 != number);
    }
}

#[test]
fn a_drained_member_hands_over_within_a_second_and_gets_its_groups_back_later() {
    let mut world = world(&[HARD, NO_FENCE, HARD, NO_FENCE]);
    world.pass(5_000 * MS);
    let led = |world: &World| (1..=4).map(|group| world.leader(group).map(|it| it.0)).collect();
    let before: Vec<_> = led(&world);
    let number = before[0].expect("group 1 has a leader");
    world.order(number, Duty::Drain);
    for group in 1..=4 {
        world.until(group, 1_000 * MS, |it| it.0 != number);
    }
    world.etcd.delete(&format!("farblock/{GROUP}/order/m{number}"));
    world.pass(5_000 * MS);
    let after: Vec<_> = led(&world);
    assert_eq!(after, before, "a drained member was alive all the time, so it has settled");
}

#[test]
fn the_last_member_keeps_its_groups_when_drained_and_stops_when_paused() {
    let mut world = world(&[HARD]);
    (0..3).for_each(|number| world.order(number, Duty::Drain));
    world.pass(2_000 * MS);
    let (number, _) = world.leader(1).expect("the last member still leads");
    world.order(number, Duty::Pause);
    world.pass(1_000 * MS);
    assert_eq!(world.leader(1), None);
}

#[test]
fn a_pin_moves_a_group_at_once_and_keeps_it() {
    let mut world = world(&[HARD]);
    let (number, _) = world.leader(1).expect("a leader");
    let to = (number + 1) % 3;
    let record = PinRecord { version: VERSION, member: format!("m{to}") };
    world.etcd.put(&format!("farblock/{GROUP}/pin/1"), record.to_value());
    world.until(1, 1_000 * MS, |it| it.0 == to);
    world.pass(10_000 * MS);
    assert_eq!(world.leader(1).map(|it| it.0), Some(to));
}

#[test]
fn a_lost_quorum_stops_only_disks_without_complete_fences_and_moves_nothing() {
    let mut world = world(&[FenceKind::BlockList, NO_FENCE, FenceKind::MirrorGeneration]);
    let before: Vec<_> = (1..=3).map(|group| world.leader(group)).collect();
    world.begin(Fault::NoQuorum);
    world.pass(3_000 * MS);
    let acked: Vec<_> = (1..=3).map(|group| world.acked(group)).collect();
    // All hosts wait for operations on the stopped groups. Drop these, so that hosts use group 1.
    world.hosts.iter_mut().for_each(|host| host.op = None);
    world.pass(20_000 * MS);
    assert_eq!(world.leader(1), before[0], "I/O continues with a complete fence");
    assert_eq!(
        (world.leader(2), world.leader(3)),
        (None, None),
        "I/O waits without a complete fence"
    );
    assert_eq!([world.acked(2), world.acked(3)], acked[1..], "no write was acknowledged");
    world.etcd.return_quorum(world.course.now, false);
    world.pass(4_000 * MS);
    let after: Vec<_> = (1..=3).map(|group| world.leader(group)).collect();
    assert_eq!(after, before, "the same leaders continue in the same epochs");
}

#[test]
fn a_group_that_no_member_can_fence_stays_without_leader() {
    let mut world = world(&[HARD]);
    let (number, _) = world.leader(1).expect("a leader");
    (0..3).filter(|other| *other != number).for_each(|it| world.begin(Fault::NoDisks(it)));
    world.begin(Fault::Silent(number));
    world.pass(10_000 * MS);
    assert_eq!(world.leader(1), None);
    (0..3).for_each(|it| world.heal(Fault::NoDisks(it)));
    world.until(1, 12_000 * MS, |_| true);
}

impl World {
    /// The member that has opened the disk of a group, with its epoch.
    fn opener(&self, group: u32) -> Option<(usize, u64)> {
        let (number, epoch) = self.leader(group)?;
        let open = self.processes[number].cores.open.get(&group);
        open.is_some_and(|open| open.has_begun).then_some((number, epoch))
    }

    /// Runs until a member for which `is_it` is true has opened the disk of group 1, for at most
    /// `most`.
    fn until_open(&mut self, most: u64, is_it: impl Fn(usize) -> bool) {
        let end = self.course.now + most;
        while !self.opener(1).is_some_and(|it| is_it(it.0)) {
            self.pass(10 * MS);
            assert!(self.course.now <= end, "group 1 has {:?}", self.leader(1));
        }
    }

    fn pin(&mut self, group: u32, number: usize) {
        let record = PinRecord { version: VERSION, member: format!("m{number}") };
        self.etcd.put(&format!("farblock/{GROUP}/pin/{group}"), record.to_value());
    }
}

#[test]
fn a_leader_that_cannot_open_its_disk_hands_it_to_a_member_that_keeps_it() {
    for kind in [HARD, NO_FENCE] {
        let mut world = world(&[kind]);
        let (number, _) = world.leader(1).expect("it has one");
        world.begin(Fault::NoOpen(number));
        world.kill_for(number, 100 * MS);
        world.until_open(4_000 * MS, |it| it != number);
        let other = world.opener(1).expect("it has one");
        world.pass(5_000 * MS);
        assert_eq!(world.opener(1), Some(other), "no move follows");
        let record = &world.processes[other.0].member.view().leaders[&1].record;
        let (member, failed) = record.failure().expect("the record says why");
        assert_eq!(member, format!("m{number}"));
        assert_eq!(failed.problem, "cannot open its disk: no such disk");
        world.heal(Fault::NoOpen(number));
        world.until_open(30_000 * MS, |it| it == number);
    }
}

#[test]
fn members_that_all_cannot_open_a_disk_try_in_turns_until_one_can() {
    let mut world = world(&[HARD]);
    let (number, first) = world.leader(1).expect("it has one");
    (0..3).for_each(|it| world.begin(Fault::NoOpen(it)));
    world.kill_for(number, 100 * MS);
    world.pass(31_000 * MS);
    assert_eq!(world.opener(1), None);
    let epoch = world.processes[0].member.view().leaders[&1].record.epoch;
    assert!(epoch - first >= 6, "the members try again: {first} {epoch}");
    assert!(epoch - first <= 12, "each member waits between its tries: {first} {epoch}");
    world.heal(Fault::NoOpen(1));
    world.until_open(12_000 * MS, |it| it == 1);
}

#[test]
fn a_pin_to_a_member_that_cannot_open_the_disk_moves_the_group_once() {
    let mut world = world(&[HARD]);
    let (number, first) = world.leader(1).expect("it has one");
    let to = (number + 1) % 3;
    world.begin(Fault::NoOpen(to));
    world.pin(1, to);
    world.until(1, 1_000 * MS, |it| it.0 == to);
    world.until_open(4_000 * MS, |it| it != to);
    world.pass(4_000 * MS);
    let (opener, _) = world.opener(1).expect("it has one");
    assert_ne!(opener, to);
    let record = &world.processes[opener].member.view().leaders[&1].record;
    let failed = &record.failed[&format!("m{to}")];
    assert_eq!(failed.epoch, first + 1, "the operator's choice is tried once");
    // A new order applies at once, although the member avoids the group.
    world.heal(Fault::NoOpen(to));
    world.pin(1, to);
    world.until_open(1_000 * MS, |it| it == to);
}

/// The leader stops between a check of its permit and a system call. Each other member takes the
/// group, and fails to fence. Later one member succeeds, and then the old leader continues.
pub(super) fn a_fence_fails_and_the_next_succeeds() -> (Option<String>, u64) {
    let mut world = world(&[HARD]);
    let (number, _) = world.leader(1).expect("a leader");
    while !world.is_submitting(number) {
        world.pass(MS);
    }
    world.begin(Fault::Stopped(number));
    (0..3).filter(|other| *other != number).for_each(|it| world.begin(Fault::NoDisks(it)));
    world.pass(5_000 * MS);
    (0..3).for_each(|it| world.heal(Fault::NoDisks(it)));
    world.until(1, 12_000 * MS, |it| it.0 != number);
    let refused = world.counts.refused;
    world.heal(Fault::Stopped(number));
    world.run(world.course.now + 2_000 * MS);
    (world.wrong, world.counts.refused - refused)
}

#[test]
fn a_failed_fence_leaves_the_victims_to_the_next_member() {
    let (wrong, refused) = a_fence_fails_and_the_next_succeeds();
    assert_eq!(wrong, None);
    assert!(refused > 0, "the disk refuses the late write");
}

#[test]
fn members_assign_different_controller_identifiers() {
    let mut world = world(&[HARD]);
    world.kill_for(1, 100 * MS);
    world.pass(3_000 * MS);
    let members = &world.processes[0].member.view().members;
    let ranges: BTreeSet<_> = members.values().map(|seen| seen.record.range).collect();
    assert_eq!((members.len(), ranges.len()), (3, 3), "{ranges:?}");
    let ids = crate::controller_ids(31).expect("the last range");
    assert!(*ids.end() <= 65_519, "{ids:?}");
    assert_eq!(crate::controller_ids(32), None);
    assert_eq!(crate::controller_ids(0), Some(1..=2047));
}

#[test]
fn a_preempt_through_any_member_is_answered_when_the_leader_enforces_it() {
    let mut world = world(&[HARD]);
    let (leader, _) = world.leader(1).expect("a leader");
    for (base, number) in (0..).zip([leader, (leader + 1) % 3]) {
        world.consult(number, 1, base as usize);
        // The store may be late with an answer, and the member then asks again.
        world.pass(1_500 * MS);
        assert_eq!(world.counts.answers, 1 + base, "member {number} answers the question");
        world.pass(1_000 * MS);
        for process in &world.processes {
            assert_eq!(process.cores.reservations[&1].0, 1 + base, "every member knows the change");
        }
    }
}

#[test]
fn of_two_changes_at_once_each_member_executes_the_second_after_the_first() {
    let mut world = world(&[HARD]);
    let (leader, _) = world.leader(1).expect("a leader");
    world.consult(leader, 1, 0);
    world.consult((leader + 1) % 3, 1, 1);
    world.pass(500 * MS);
    assert_eq!((world.counts.answers, world.counts.conflicts), (1, 1));
    // Request the refused change again, at its member.
    let refused = usize::from(world.processes[leader].cores.reservations[&1].1.contains(&0));
    world.consult((leader + refused) % 3, 1, refused);
    world.pass(500 * MS);
    let (index, excluded) = &world.processes[leader].cores.reservations[&1];
    assert_eq!((*index, excluded.iter().copied().collect()), (2, vec![0, 1]));
}

#[test]
fn a_second_process_with_the_same_name_waits_for_the_lease_and_stops_the_first() {
    let mut world = world(&[HARD]);
    let (number, _) = world.leader(1).expect("a leader");
    let other = (number + 1) % 3;
    world.begin(Fault::NoRequests(number));
    let config = crate::MemberConfig {
        name: format!("m{number}"),
        process: 99,
        predecessors: Vec::new(),
        ..world.processes[other].member.config().clone()
    };
    let now = world.processes[other].local(world.course.now);
    world.kill_for(other, u64::MAX / 2);
    world.processes[other].life += 1;
    world.processes[other].condition = Condition::Running;
    world.processes[other].member = crate::Member::new(config, now);
    let pid = world.pid(other);
    world.course.after(0, Happening::Tick(pid));
    world.pass(1_000 * MS);
    assert!(!world.processes[other].member.is_joined(), "the first process has its lease");
    world.pass(5_000 * MS);
    assert!(world.processes[other].member.is_joined());
    world.heal(Fault::NoRequests(number));
    world.pass(2_000 * MS);
    assert!(!world.processes[number].member.is_joined(), "the first process stops for good");
    assert!(world.leader(1).is_some_and(|leader| leader.0 != number));
}

/// A leader's lease renewals and refutations are lost, while its proofs work. Later this leader
/// also takes the second ANA group. Then its lease ends, it receives nothing more from the store,
/// and other members take both ANA groups.
pub(super) fn a_suspect_leader_takes_another_group() -> Option<String> {
    let kinds = [FenceKind::MirrorGeneration, FenceKind::MirrorGeneration];
    let mut world = world(&kinds);
    let (number, _) = world.leader(1).expect("a leader");
    world.begin(Fault::NoRefutations(number));
    let suspicion = format!("farblock/{GROUP}/suspect/m{number}");
    while !world.etcd.has(&suspicion) {
        world.pass(10 * MS);
    }
    world.pass(500 * MS);
    let record = PinRecord { version: VERSION, member: format!("m{number}") };
    world.etcd.put(&format!("farblock/{GROUP}/pin/2"), record.to_value());
    while world.etcd.has(&format!("farblock/{GROUP}/alive/m{number}")) {
        world.pass(10 * MS);
    }
    world.begin(Fault::NoReplies(number));
    world.run(world.course.now + 8_000 * MS);
    if world.wrong.is_none() {
        assert!(world.leader(1).is_some_and(|leader| leader.0 != number), "another member leads");
    }
    world.wrong
}

#[test]
fn a_suspect_leader_stops_before_another_begins() {
    assert_eq!(a_suspect_leader_takes_another_group(), None);
}

#[test]
fn a_late_lease_renewal_moves_no_group() {
    let mut world = world(&[NO_FENCE]);
    let before = world.leader(1);
    let number = before.expect("a leader").0;
    for _ in 0..10 {
        world.begin(Fault::NoRenewals(number));
        world.pass(1_400 * MS);
        world.heal(Fault::NoRenewals(number));
        world.pass(1_000 * MS);
    }
    assert!(world.counts.suspicions > 0);
    assert_eq!(world.leader(1), before, "the leader refutes every suspicion");
}

#[test]
fn the_watchdog_of_an_ended_process_saves_the_wait_for_its_hold() {
    let mut world = world(&[NO_FENCE]);
    let (number, epoch) = world.leader(1).expect("a leader");
    world.kill_for(number, u64::MAX / 2);
    let (pid, process) = (world.pid(number), world.processes[number].member.config().process);
    world.course.after(20 * MS, Happening::Release(pid, process));
    // The other members leave the group to a restarted process for 200 ms.
    world.until(1, 1_500 * MS, |it| it.0 != number && it.1 == epoch + 1);
}

/// The leader dies with writes in flight at a disk that is slow, and its watchdog acts at once.
pub(super) fn a_leader_dies_with_writes_in_flight() -> Option<String> {
    let mut world = world(&[NO_FENCE]);
    let (number, _) = world.leader(1).expect("a leader");
    world.begin(Fault::Stall(1));
    world.disks.get_mut(&1).expect("every group has a disk").stalled_until = u64::MAX;
    let pid = world.pid(number);
    while world.flying(pid).is_empty() || !world.is_submitting(number) {
        world.pass(MS);
    }
    world.pass(5 * MS);
    let process = world.processes[number].member.config().process;
    world.kill_for(number, u64::MAX / 2);
    world.course.after(MS, Happening::Release(pid, process));
    world.run(world.course.now + 3_000 * MS);
    world.wrong
}

#[test]
fn a_release_waits_for_the_writes_in_flight() {
    assert_eq!(a_leader_dies_with_writes_in_flight(), None);
}

/// The watchdog's transaction is late: the member has restarted, and leads again. Then the member
/// receives nothing more from the store.
pub(super) fn a_release_is_late() -> Option<String> {
    let mut world = world(&[NO_FENCE]);
    let (number, _) = world.leader(1).expect("a leader");
    let (pid, process) = (world.pid(number), world.processes[number].member.config().process);
    let keys = crate::KeySpace::new(GROUP);
    let name = format!("m{number}");
    let reads = crate::store::StoreRequest::Txn(crate::release_reads(&keys, &name));
    let crate::store::StoreReply::Done(seen) = world.etcd.execute(world.course.now, &reads) else {
        panic!("the store answers")
    };
    let late = crate::release(&keys, (&name, process), &seen.entries, |_| true);
    world.kill_for(number, 50 * MS);
    world.until(1, 2_000 * MS, |it| it.0 == number);
    assert_ne!(world.pid(number), pid, "the member runs a new process");
    world.begin(Fault::NoReplies(number));
    world.course.after(1, Happening::Released(late.expect("the watchdog sends a release")));
    for _ in 0..150 {
        world.run(world.course.now + 10 * MS);
        // The new leader has the same epoch, so the disk sees no late write.
        if let leaders @ [_, _, ..] = &world.leaders(1)[..] {
            return Some(format!("two writers: {leaders:?}"));
        }
    }
    world.wrong
}

#[test]
fn a_late_release_does_not_hit_a_restarted_member() {
    assert_eq!(a_release_is_late(), None);
}
