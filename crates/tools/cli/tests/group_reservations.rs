//! Tests of reservations in a group with a real etcd: hosts send commands to both members. The
//! file shows whether a write of a fenced host landed.
#![cfg(target_os = "linux")]

mod support;

#[allow(dead_code, unreachable_pub, reason = "these tests use a part of the module")]
#[path = "../../../ends/nvmf-target/tests/rig/scripted.rs"]
mod scripted;

#[path = "group_reservations/group.rs"]
mod group;
#[path = "group_reservations/node.rs"]
mod node;

use farblock_random::Random;
use farblock_wire::Status;
use farblock_wire::log::LogPageId;
use farblock_wire::reservation::{NotificationType, ReservationType};
use group::{Group, block};
use node::{Hammer, Node};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();
const OK: Status = Status::SUCCESS;
/// With this reservation type, all registered nodes may write.
const SHARED: ReservationType = ReservationType::WRITE_EXCLUSIVE_REGISTRANTS;

/// The type of the reservation, whether it persists, and the keys. The flag of a key is true if its
/// registrant holds the reservation.
type Seen = (u8, bool, Vec<(u64, bool)>);

fn is_seen_at_both(nodes: &mut [&mut Node], expected: &Seen) {
    for node in nodes {
        for member in 0..2 {
            assert_eq!(node.report(member), *expected, "through member {member}");
        }
    }
}

#[test]
fn both_members_have_the_same_reservations_and_notify_their_hosts() {
    let group = Group::new();
    let leader = group.wait_for_leader(0, |_| true);
    let (mut one, mut two) = (Node::new(1, &group), Node::new(2, &group));
    for member in 0..2 {
        let (oncs, rescap) = one.identify(member);
        assert_eq!(
            (oncs >> 5 & 1, rescap),
            (1, 0xff),
            "the reservation support of member {member}"
        );
        assert_eq!(one.report(member), (0, false, vec![]));
    }
    assert_eq!(one.register(1 - leader), OK);
    assert_eq!(one.register_as(leader, 9), CONFLICT, "registering a second key");
    assert_eq!(two.register(leader), OK);
    assert_eq!(one.acquire(leader, SHARED), OK);
    let (key, other) = (one.key, two.key);
    is_seen_at_both(&mut [&mut one, &mut two], &(3, true, vec![(key, true), (other, false)]));
    assert_eq!((one.write(leader, 1), two.write(leader, 2)), (OK, OK));
    assert_eq!(
        one.write(1 - leader, 1),
        Status::ANA_INACCESSIBLE,
        "a write through the other member"
    );

    // The member that does not lead fences the second host. Both members notify that host.
    assert_eq!(one.preempt(1 - leader, other, SHARED), OK);
    assert_eq!((one.write(leader, 3), two.write(leader, 4)), (OK, CONFLICT));
    is_seen_at_both(&mut [&mut one, &mut two], &(3, true, vec![(key, true)]));
    for member in 0..2 {
        let log = two.log(member, LogPageId::RESERVATION_NOTIFICATION);
        assert_eq!((log[0], log[8]), (1, NotificationType::REGISTRATION_PREEMPTED.0));
        assert_eq!(one.log(member, LogPageId::RESERVATION_NOTIFICATION)[0], 0);
    }
    assert_eq!(two.preempt(1 - leader, key, SHARED), CONFLICT, "a preempt by an unregistered host");
    assert_eq!(one.clear(1 - leader), OK);
    is_seen_at_both(&mut [&mut one, &mut two], &(0, true, vec![]));
    assert_eq!(two.write(leader, 5), OK);
}

#[test]
fn reservations_outlive_a_move_and_the_restart_of_all_members_and_of_etcd() {
    let mut group = Group::new();
    let leader = group.wait_for_leader(0, |_| true);
    let (mut one, mut two) = (Node::new(1, &group), Node::new(2, &group));
    assert_eq!((one.register(0), one.acquire(1, ReservationType::WRITE_EXCLUSIVE)), (OK, OK));
    let expected = (1, true, vec![(one.key, true)]);
    group.move_to(1 - leader);
    is_seen_at_both(&mut [&mut one, &mut two], &expected);
    assert_eq!((one.write(1 - leader, 1), two.write(1 - leader, 2)), (OK, CONFLICT));

    group.members.iter_mut().for_each(|member| *member = None);
    group.restart_etcd();
    (0..2).for_each(|member| group.start(member));
    let leader = group.wait_for_leader(0, |_| true);
    is_seen_at_both(&mut [&mut one, &mut two], &expected);
    assert_eq!((one.write(leader, 3), two.write(leader, 4)), (OK, CONFLICT));
}

#[test]
fn a_command_waits_while_etcd_does_not_answer() {
    let group = Group::new();
    let leader = group.wait_for_leader(0, |_| true);
    let mut node = Node::new(1, &group);
    assert_eq!(node.write(leader, 1), OK);
    node.connect(1 - leader);
    support::signal(group.etcd.id(), "STOP");
    node.begin_to_register(1 - leader);
    assert_eq!(node.write(leader, 2), OK, "a write through the leader");
    assert!(!node.has_answer(1 - leader), "the answer came before etcd stored the key");
    support::signal(group.etcd.id(), "CONT");
    assert_eq!(node.wait_for_answer(1 - leader), OK);
    assert_eq!(node.report(leader), (0, true, vec![(node.key, false)]));
}

/// Takes the steps of Windows's cluster validation (see the target's `windows_cluster.rs`) through
/// both members alternately.
#[test]
fn windows_cluster_validation_passes_through_alternating_members() {
    let group = Group::new();
    let leader = group.wait_for_leader(0, |_| true);
    let mut nodes = [1, 2, 3].map(|number| Node::new(number, &group));
    for (turn, rtype) in
        [SHARED, ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS].into_iter().enumerate()
    {
        let (a, b) = (turn, 1 - turn);
        for node in &mut nodes {
            assert_eq!((node.register(a), node.clear(b)), (OK, OK));
            assert_eq!(node.report(a), (0, true, vec![]));
        }
        let [first, second, third] = &mut nodes;
        assert_eq!(first.register(a), OK);
        first.key += 1 << 16;
        assert_eq!(first.register(b), OK, "replacing an old key");
        assert_eq!(second.acquire(a, rtype), CONFLICT, "an acquire by an unregistered node");
        assert_eq!((first.acquire(b, rtype), first.acquire(a, rtype)), (OK, OK));
        assert_eq!(second.report(b), (rtype.0, true, vec![(first.key, true)]));
        assert_eq!((second.register(a), second.write(leader, 2)), (OK, OK));
        assert_eq!(second.acquire(b, rtype), CONFLICT, "an acquire of a held reservation");
        assert_eq!(second.release(a, rtype), OK, "a release by a node that holds nothing");
        assert_eq!(third.write(leader, 3), CONFLICT);
        assert_eq!(
            third.preempt(b, first.key, rtype),
            CONFLICT,
            "a preempt by an unregistered node"
        );
        assert_eq!(second.preempt(a, first.key, rtype), OK);
        assert_eq!(third.report(b), (rtype.0, true, vec![(second.key, true)]));
        assert_eq!(first.write(leader, 1), CONFLICT);
        assert_eq!((first.release(a, rtype), first.acquire(b, rtype)), (CONFLICT, CONFLICT));
        assert_eq!(second.preempt(b, first.key, rtype), CONFLICT, "a preempt of an unknown key");
        assert_eq!((first.register(a), second.release(b, rtype)), (OK, OK));
        assert_eq!(first.report(a).0, 0);
        for node in [first, second] {
            assert_eq!(node.unregister(b), OK);
        }
        assert_eq!(nodes[2].report(a), (0, true, vec![]));
    }
}

/// Runs the commands of `contrib/pacemaker/fence_nvme_resv` while the leader dies.
#[test]
fn no_write_lands_after_a_node_is_fenced_while_the_leader_dies() {
    let mut group = Group::new();
    let leader = group.wait_for_leader(0, |_| true);
    let (mut alpha, mut beta) = (Node::new(1, &group), Node::new(2, &group));
    assert_eq!((alpha.register(0), alpha.acquire(0, SHARED)), (OK, OK));
    assert_eq!((beta.register(1), beta.acquire(1, SHARED)), (OK, CONFLICT));
    let key = beta.key;
    let hammer = Hammer::start(beta, 0);
    hammer.wait_for_writes();
    group.members[leader] = None;
    // The member answers only once a leader enforces the change.
    assert_eq!(alpha.preempt(1 - leader, key, SHARED), OK);
    let fenced = block(&group.file(), 0);
    assert_eq!(alpha.report(1 - leader), (3, true, vec![(alpha.key, true)]));
    group.start(leader);
    std::thread::sleep(Duration::from_secs(2));
    group.move_to(leader);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(block(&group.file(), 0), fenced, "a write landed after the answer");
    let mut beta = hammer.stop();
    assert_eq!(alpha.write(leader, 1), OK);
    assert_eq!(beta.write(leader, 1), CONFLICT);
}

/// The leader is suspended (SIGSTOP) while the other member stores the change. Then the leader
/// resumes before its lease ends, with commands of the fenced host in its sockets.
#[test]
fn no_write_of_a_leader_that_was_stopped_lands_after_a_preempt() {
    let group = Group::new();
    let leader = group.wait_for_leader(0, |_| true);
    let (mut alpha, mut beta) = (Node::new(1, &group), Node::new(2, &group));
    assert_eq!((alpha.register(leader), alpha.acquire(leader, SHARED)), (OK, OK));
    let hammers: Vec<_> = (0..4).map(|lba| Hammer::start(Node::new(2, &group), lba)).collect();
    let blocks = || (0..4).map(|lba| block(&group.file(), lba)).collect::<Vec<_>>();
    for round in 0..5 {
        assert_eq!(beta.register(1 - leader), OK);
        hammers.iter().for_each(Hammer::wait_for_writes);
        let process = group.members[leader].as_ref().expect("the process runs").id();
        support::signal(process, "STOP");
        let (answer, fenced) = std::thread::scope(|scope| {
            let fencing = scope.spawn(|| {
                let answer = alpha.preempt(1 - leader, beta.key, SHARED);
                (answer, blocks())
            });
            std::thread::sleep(Duration::from_millis(300));
            support::signal(process, "CONT");
            fencing.join().expect("the thread ends")
        });
        assert_eq!(answer, OK);
        std::thread::sleep(Duration::from_millis(300));
        assert!(blocks() == fenced, "round {round}: a write landed after the answer");
    }
    hammers.into_iter().for_each(|hammer| drop(hammer.stop()));
}

/// Two hosts preempt each other at once through random members. Exactly one host stays registered.
/// No write of the other host reaches the file before that host registers again.
fn duel(hosts: &mut [Node; 2], hammers: &[Hammer; 2], file: &Path, random: &mut Random) {
    let mut member = || random.index(2);
    for host in hosts.iter_mut() {
        assert_eq!(host.register(member()), OK);
    }
    let holder = member();
    let acquired = hosts[holder].acquire(member(), SHARED);
    assert!([OK, CONFLICT].contains(&acquired), "{acquired:?}");
    hammers.iter().for_each(Hammer::wait_for_writes);
    let (keys, members) = ([hosts[1].key, hosts[0].key], [member(), member()]);
    let [first, second] = hosts;
    let answers = std::thread::scope(|scope| {
        let first = scope.spawn(|| first.preempt(members[0], keys[0], SHARED));
        let second = second.preempt(members[1], keys[1], SHARED);
        [first.join().expect("the thread ends"), second]
    });
    // An answer may be lost with its member, and the repeated command then finds no such key.
    assert_ne!(answers, [OK, OK], "both hosts preempted each other");
    let (_, _, left) = hosts[member()].report(member());
    let winner = hosts.iter().position(|host| left == [(host.key, true)]);
    let winner = winner.unwrap_or_else(|| panic!("one host is left, not {left:?}"));
    assert_ne!(answers[1 - winner], OK);
    let fenced = block(file, 1 - winner as u64);
    hammers[winner].wait_for_writes();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(block(file, 1 - winner as u64), fenced, "a write landed after the report");
}

#[test]
fn two_hosts_preempt_each_other_while_leaders_move_stop_and_die() {
    let number =
        |name: &str| std::env::var(name).ok().map(|it| it.parse().expect("the text is a number"));
    let seed = number("GROUP_DUEL_SEED").unwrap_or(41);
    let duels = number("GROUP_DUELS").unwrap_or(10);
    let mut group = Group::new();
    group.wait_for_leader(0, |_| true);
    let node = |number: u8| Node::new(number, &group);
    let mut hosts = [node(1), node(2)];
    for host in &mut hosts {
        assert_eq!(host.register(0), OK);
    }
    let hammers = [Hammer::start(node(1), 0), Hammer::start(node(2), 1)];
    let (file, ends) = (group.file(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let end = Ends(&ends);
        let fighting = scope.spawn(|| {
            let _end = end;
            let mut random = Random::new(seed);
            (0..duels).for_each(|_| duel(&mut hosts, &hammers, &file, &mut random));
        });
        let mut random = Random::new(seed + 1);
        while !ends.load(Ordering::Relaxed) {
            disturb(&mut group, &mut random);
        }
        fighting.join().expect("the duels end well");
    });
    hammers.into_iter().for_each(|hammer| drop(hammer.stop()));
}

/// Sets a flag when the thread ends, also after a failure.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Moves the leadership, kills a member and starts it again, or suspends one for a while.
fn disturb(group: &mut Group, random: &mut Random) {
    let member = random.index(2);
    match random.below(6) {
        0 => {
            group.members[member] = None;
            std::thread::sleep(Duration::from_millis(random.below(5_000)));
            group.start(member);
        }
        1 => {
            let id = group.members[member].as_ref().expect("the process runs").id();
            support::signal(id, "STOP");
            std::thread::sleep(Duration::from_millis(random.below(5_000)));
            support::signal(id, "CONT");
            std::thread::sleep(Duration::from_millis(200));
            // The watchdog may have killed the member.
            group.members[member] = None;
            group.start(member);
        }
        _ => {
            group.ask_to_move(member);
            std::thread::sleep(Duration::from_millis(random.below(1_500)));
        }
    }
}
