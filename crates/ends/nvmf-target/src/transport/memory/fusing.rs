//! Tests fused Compare and Write. Either both commands execute or neither, and no other change
//! occurs between them.

use super::gate::Gate;
use super::peer::{IDENTITY, NQN, Peer, key_of, target};
use crate::pace::{Rate, Rates};
use crate::target::Target;
use farblock_backends::mem::Mem;
use farblock_block::{Command as Operation, Namespace};
use farblock_proto::host::command::{self, Command, Data, Identity};
use farblock_proto::ids::NamespaceId;
use farblock_wire::fabrics::DisconnectCommand;
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::reservation::{
    AcquireAction, RegisterAction, ReservationControl, ReservationType,
};
use farblock_wire::{IntoBytes, Sqe, Status};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const BLOCK: u32 = 512;
const OTHER: Identity<'_> = Identity { hostid: [9; 16], ..IDENTITY };
const OK: Status = Status::SUCCESS;
const DIFFERS: Status = Status::COMPARE_FAILURE.with_dnr();
const FAILED: Status = Status::ABORTED_FAILED_FUSED;
const MISSING: Status = Status::ABORTED_MISSING_FUSED.with_dnr();
const INVALID: Status = Status::INVALID_FIELD.with_dnr();

struct Host {
    admin: Peer,
    io: Peer,
}

impl Host {
    fn new(target: &Target, identity: &Identity<'_>) -> Self {
        let (admin, controller) = Peer::admin_of(target, identity);
        let io = Peer::io_of(target, identity, controller, 1, 32);
        Self { admin, io }
    }

    /// Sends a fused pair for one block, without waiting for its responses.
    fn send(&mut self, lba: u64, old: u8, new: u8, in_capsule: bool) -> [u16; 2] {
        let first = self.io.send(&compare(lba), &[old; BLOCK as usize], in_capsule);
        [first, self.io.send(&write(lba), &[new; BLOCK as usize], in_capsule)]
    }

    /// Returns the statuses of two commands, which may complete in either order.
    fn answers(&mut self, pair: [u16; 2]) -> [Status; 2] {
        let mut statuses = [None; 2];
        for _ in pair {
            let cqe = self.io.wire.wait().expect("the connection is open");
            let place = pair.iter().position(|cid| *cid == cqe.cid.get()).expect("one of them");
            let _ = self.io.wire.deregister(key_of(cqe.cid.get()));
            statuses[place] = Some(cqe.status());
        }
        statuses.map(|status| status.expect("each once"))
    }

    fn fused(&mut self, lba: u64, old: u8, new: u8) -> [Status; 2] {
        let pair = self.send(lba, old, new, true);
        self.answers(pair)
    }

    fn value(&mut self, lba: u64) -> u8 {
        let answer = self.io.run(&command::read(1, lba, 1, BLOCK), &[]);
        assert_eq!(answer.status, OK);
        answer.data[0]
    }

    fn plain(&mut self, lba: u64, value: u8) -> Status {
        let write = command::write(1, lba, 1, BLOCK, false);
        self.io.run(&write, &[value; BLOCK as usize]).status
    }
}

fn with_fuse(mut command: Command, fuse: u8) -> Command {
    command.sqe.flags |= fuse;
    command
}

fn compare(lba: u64) -> Command {
    with_fuse(command::compare(1, lba, 1, BLOCK), 1)
}

fn write(lba: u64) -> Command {
    with_fuse(command::write(1, lba, 1, BLOCK, false), 2)
}

fn gate(operation: Operation) -> Arc<Gate> {
    let disk = Arc::new(Mem::new(BLOCK, 1 << 20).expect("a size"));
    Arc::new(Gate::of(operation, disk))
}

/// Starts a target of a gate, which can hold back operations of this kind, and connects two hosts.
fn stand(operation: Operation) -> (Target, Arc<Gate>, Host, Host) {
    let gate = gate(operation);
    let target = target([Arc::clone(&gate) as Arc<dyn Namespace>]);
    let (one, other) = (Host::new(&target, &IDENTITY), Host::new(&target, &OTHER));
    (target, gate, one, other)
}

fn until_kept(gate: &Gate, count: usize) {
    while gate.kept() < count {
        thread::yield_now();
    }
}

#[test]
fn compare_and_write_writes_only_if_the_data_match() {
    let (_target, gate, mut host, _other) = stand(Operation::Write);
    assert_eq!(host.fused(3, 0, 1), [OK, OK]);
    assert_eq!(host.fused(3, 0, 2), [DIFFERS, FAILED]);
    assert_eq!(host.value(3), 1);
    let pair = host.send(3, 1, 2, false);
    assert_eq!(host.answers(pair), [OK, OK], "the target requests the data");
    let pairs = [host.send(3, 2, 3, true), host.send(3, 3, 4, true), host.send(4, 1, 9, true)];
    // The pairs of a queue execute in order, but other commands may overtake them.
    let answers =
        pairs.as_flattened().iter().map(|_| host.io.wire.wait().expect("the connection is open"));
    let failed = answers.filter(|cqe| cqe.status() != OK).map(|cqe| cqe.cid.get());
    let mut failed: Vec<_> = failed.collect();
    failed.sort_unstable();
    assert_eq!(failed, pairs[2]);
    assert_eq!((host.value(3), host.value(4)), (4, 0));
    assert_eq!(gate.seen(), [3; 4]);
}

#[test]
fn half_of_a_fused_pair_is_refused_without_the_other_half() {
    let (_target, gate, mut host, _other) = stand(Operation::Write);
    let block = [0; BLOCK as usize];
    assert_eq!(host.io.run(&write(0), &block).status, MISSING, "no first half precedes it");
    let cases = [
        ("another first", compare(0), OK),
        ("a command alone", command::compare(1, 0, 1, BLOCK), OK),
    ];
    for (what, next, expected) in cases {
        let first = host.io.send(&compare(0), &block, true);
        let next = host.io.send(&next, &block, true);
        assert_eq!(
            host.io.answer(first).expect("the connection is open").status,
            MISSING,
            "{what}"
        );
        if what == "another first" {
            let second = host.io.send(&write(0), &block, true);
            assert_eq!(host.answers([next, second]), [OK, OK]);
        } else {
            assert_eq!(host.io.answer(next).expect("the connection is open").status, expected);
            assert_eq!(host.io.run(&write(0), &block).status, MISSING, "{what} in between");
        }
    }
    // Each wrong pair gets its specific error, and both halves get responses.
    let leave = Command::new(DisconnectCommand::new(0).to_sqe(), Data::None);
    let two_blocks = [0; 2 * BLOCK as usize];
    let wrong = [
        (compare(0), write(1), [FAILED, INVALID]),
        (compare(1 << 30), write(0), [Status::LBA_OUT_OF_RANGE.with_dnr(), FAILED]),
        (compare(0), write(1 << 30), [FAILED, Status::LBA_OUT_OF_RANGE.with_dnr()]),
        (with_fuse(command::read(1, 0, 1, BLOCK), 1), write(0), [INVALID, FAILED]),
        (with_fuse(command::write(1, 0, 1, BLOCK, false), 1), write(0), [INVALID, FAILED]),
        (compare(0), with_fuse(command::compare(1, 0, 1, BLOCK), 2), [FAILED, INVALID]),
        (compare(0), with_fuse(leave, 2), [FAILED, INVALID]),
        (with_fuse(leave, 1), write(0), [INVALID, FAILED]),
    ];
    for (first, second, expected) in wrong {
        let pair = [first, second].map(|command| host.io.send(&command, &block, true));
        assert_eq!(host.answers(pair), expected, "{first:?} {second:?}");
    }
    // A pair may not have more blocks than ACWU.
    let first = with_fuse(command::compare(1, 0, 2, 2 * BLOCK), 1);
    let second = with_fuse(command::write(1, 0, 2, 2 * BLOCK, false), 2);
    let pair = [first, second].map(|command| host.io.send(&command, &two_blocks, true));
    assert_eq!(host.answers(pair), [INVALID, FAILED]);
    assert_eq!(gate.seen(), [0], "only the valid pair has written");
    assert_eq!(host.fused(7, 0, 1), [OK, OK]);
}

/// Several hosts increment a counter in one block without any other coordination.
#[test]
fn concurrent_compare_and_write_increments_lose_no_count() {
    const ROUNDS: u32 = 50;
    const HOSTS: u8 = 4;
    let disk = Arc::new(Mem::new(BLOCK, 1 << 20).expect("a size"));
    let target = target([disk as Arc<dyn Namespace>]);
    let block = |value: u32| {
        let mut block = vec![0; BLOCK as usize];
        block[..4].copy_from_slice(&value.to_le_bytes());
        block
    };
    let increment = |host: &mut Host, value: u32| {
        let first = host.io.send(&compare(5), &block(value), true);
        let second = host.io.send(&write(5), &block(value + 1), true);
        match host.answers([first, second]) {
            [OK, OK] => true,
            [DIFFERS, FAILED] => false,
            other => panic!("{other:?}"),
        }
    };
    let value = |host: &mut Host| {
        let answer = host.io.run(&command::read(1, 5, 1, BLOCK), &[]);
        u32::from_le_bytes(answer.data[..4].try_into().expect("four bytes"))
    };
    thread::scope(|scope| {
        for number in 0..HOSTS {
            let target = &target;
            scope.spawn(move || {
                let mut host =
                    Host::new(target, &Identity { hostid: [20 + number; 16], ..IDENTITY });
                for _ in 0..ROUNDS {
                    while {
                        let value = value(&mut host);
                        !increment(&mut host, value)
                    } {}
                    assert_eq!(host.plain(4, number), OK);
                }
            });
        }
    });
    let mut host = Host::new(&target, &IDENTITY);
    assert_eq!(value(&mut host), ROUNDS * u32::from(HOSTS));
}

/// A write under way ends before the compare starts. A later write waits.
#[test]
fn no_other_write_executes_between_compare_and_write() {
    let (_target, gate, mut one, mut other) = stand(Operation::Write);
    gate.keep(1);
    let begun = other.io.send(&command::write(1, 6, 1, BLOCK, false), &[1; 512], true);
    until_kept(&gate, 1);
    let pair = one.send(6, 0, 2, true);
    one.io.is_heard();
    gate.open_up();
    assert_eq!(other.io.answer(begun).expect("the connection is open").status, OK);
    assert_eq!(
        one.answers(pair),
        [DIFFERS, FAILED],
        "the pair compares with the other host's write"
    );
    // Test the reverse order with every command that changes blocks.
    let zeroes = command::write_zeroes(1, 6, 1, false, false);
    let deallocate = command::deallocate(1, 1);
    let range = command::deallocate_range(6, 1).as_bytes().to_vec();
    let copy = command::copy(1, 6, 1, false);
    let source = command::copy_range(0, 9, 1).as_bytes().to_vec();
    let changes = [
        (command::write(1, 6, 1, BLOCK, false), vec![7; 512], 7),
        (zeroes, vec![], 0),
        (deallocate, range, 0),
        (copy, source, 0),
    ];
    for (change, data, expected) in changes {
        assert_eq!(one.plain(6, 1), OK);
        gate.keep(1);
        let pair = one.send(6, 1, 2, true);
        until_kept(&gate, 1);
        let change = other.io.send(&change, &data, true);
        let beside = other.io.send(&command::write(1, 8, 1, BLOCK, false), &[3; 512], true);
        assert_eq!(
            other.io.answer(beside).expect("the connection is open").status,
            OK,
            "a change of other blocks does not wait"
        );
        gate.open_up();
        assert_eq!(one.answers(pair), [OK, OK]);
        assert_eq!(other.io.answer(change).expect("the connection is open").status, OK);
        assert_eq!(one.value(6), expected, "the change executes after the pair");
    }
}

/// The pairs of a closed connection write nothing and do not block other hosts.
#[test]
fn a_fused_pair_of_a_closed_connection_writes_nothing() {
    let (target, gate, mut one, mut other) = stand(Operation::Read);
    gate.keep(1);
    one.send(6, 0, 2, true);
    until_kept(&gate, 1);
    // Two more pairs wait: a pair of the same host and a pair of another host.
    one.send(6, 0, 3, true);
    let pair = other.send(6, 0, 4, true);
    other.io.is_heard();
    one.io.wire.leave();
    while one.io.wire.wait().is_some() {}
    gate.open_up();
    assert_eq!(other.answers(pair), [OK, OK]);
    assert_eq!(other.value(6), 4);
    // One connection sends only the first half of a pair. Another sends a pair whose data never
    // arrive.
    let mut half = Host::new(&target, &IDENTITY);
    half.io.send(&compare(6), &[0; 512], true);
    half.io.wire.leave();
    while half.io.wire.wait().is_some() {}
    assert_eq!(other.fused(6, 4, 5), [OK, OK]);
}

fn abort(cid: u16) -> Command {
    let sqe = Sqe::new(AdminOpcode::ABORT.0, 0, 0);
    Command::new(Sqe { cdw10: (1 | u32::from(cid) << 16).into(), ..sqe }, Data::None)
}

#[test]
fn an_abort_of_one_half_ends_a_fused_pair_that_has_not_started() {
    let (_target, gate, mut one, mut other) = stand(Operation::Read);
    gate.keep(1);
    let begun = one.send(6, 0, 1, true);
    until_kept(&gate, 1);
    for half in 0..2 {
        assert_eq!(
            one.admin.run(&abort(begun[half]), &[]).result,
            1,
            "the disk already executes the command"
        );
        let waits = other.send(6, 0, 2, true);
        other.io.is_heard();
        assert_eq!(other.admin.run(&abort(waits[half]), &[]).result, 0, "the command waits");
        let mut expected = [FAILED; 2];
        expected[half] = Status::ABORT_REQUESTED;
        assert_eq!(other.answers(waits), expected);
    }
    gate.open_up();
    assert_eq!(one.answers(begun), [OK, OK]);
    assert_eq!(other.fused(6, 1, 2), [OK, OK]);
}

#[test]
fn a_fused_pair_writes_nothing_to_a_removed_or_read_only_namespace() {
    for removed in [true, false] {
        let (target, gate, mut one, mut other) = stand(Operation::Read);
        let control = target.control();
        gate.keep(1);
        one.send(6, 0, 1, true);
        until_kept(&gate, 1);
        let waits = other.send(6, 0, 2, true);
        other.io.is_heard();
        let removal = if removed {
            Some(control.remove_namespace(NQN, NamespaceId(1)).expect("the namespace exists"))
        } else {
            control.set_read_only(NQN, NamespaceId(1), true).expect("the namespace exists");
            None
        };
        let status = match removed {
            true => Status::INVALID_NAMESPACE.with_dnr(),
            false => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        };
        let waited = other.answers(waits);
        assert!(waited.contains(&status) && !waited.contains(&OK), "{waited:?}");
        // The second command has already failed when the first continues.
        assert_eq!(one.io.wire.wait().expect("the connection is open").status(), status);
        gate.open_up();
        assert_eq!(one.io.wire.wait().expect("the connection is open").status(), FAILED);
        if let Some(removal) = removal {
            removal.wait(Duration::from_secs(20)).expect("no operation remains");
        } else {
            control.set_read_only(NQN, NamespaceId(1), false).expect("the namespace exists");
            one.io.is_heard();
            assert_eq!(one.value(6), 0);
        }
    }
}

fn reserve(host: &mut Host, opcode: NvmOpcode, control: ReservationControl, keys: [u64; 2]) {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let sqe = Sqe { cdw10: control.0.into(), ..Sqe::new(opcode.0, 0, 1) };
    let command = Command::new(sqe, Data::ToController(data.len() as u32));
    assert_eq!(host.io.run(&command, &data).status, OK);
}

/// Another host preempts the registration of the pair's host after the compare, so the pair does
/// not write.
#[test]
fn a_preempt_after_the_compare_prevents_the_write() {
    let (_target, gate, mut one, mut other) = stand(Operation::Read);
    let control = ReservationControl::default();
    let register = control.with_action(RegisterAction::REGISTER.0);
    for (host, key) in [(&mut one, 1), (&mut other, 2)] {
        reserve(host, NvmOpcode::RESERVATION_REGISTER, register, [0, key]);
    }
    let rtype = ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS.0;
    let acquire = control.with_action(AcquireAction::ACQUIRE.0).with_rtype(rtype);
    reserve(&mut one, NvmOpcode::RESERVATION_ACQUIRE, acquire, [1, 0]);
    gate.keep(1);
    let begun = one.send(6, 0, 1, true);
    until_kept(&gate, 1);
    let preempt = control.with_action(AcquireAction::PREEMPT_ABORT.0).with_rtype(rtype);
    let keys: Vec<u8> = [2u64, 1].iter().flat_map(|key| key.to_le_bytes()).collect();
    let sqe = Sqe { cdw10: preempt.0.into(), ..Sqe::new(NvmOpcode::RESERVATION_ACQUIRE.0, 0, 1) };
    let preempt = other.io.send(&Command::new(sqe, Data::ToController(16)), &keys, true);
    // The preempt waits for the read of the fenced host.
    let conflict = Status::RESERVATION_CONFLICT.with_dnr();
    while one.io.run(&command::flush(1), &[]).status != conflict {}
    gate.open_up();
    assert_eq!(other.io.answer(preempt).expect("the connection is open").status, OK);
    let answers = one.answers(begun);
    assert!(!answers[1].is_success(), "{answers:?}");
    assert_eq!(other.value(6), 0);
    assert_eq!(other.fused(6, 0, 3), [OK, OK]);
}

/// A pair books its read and its write, and waits for both limits.
#[test]
fn fused_pairs_wait_for_read_and_write_limits() {
    let (target, gate, mut one, mut other) = stand(Operation::Write);
    let bytes = Rate { writes: 1, ..Rate::default() };
    let crawl = Rates { bytes, burst: Duration::from_nanos(1), ..Rates::default() };
    let control = target.control();
    control.set_host_rates(NQN, IDENTITY.hostnqn, &crawl).expect("the subsystem exists");
    one.io.is_heard();
    other.io.is_heard();
    assert_eq!(one.fused(6, 0, 1), [OK, OK], "the budget is unused");
    let waits = one.send(6, 1, 2, true);
    one.io.is_heard();
    assert_eq!(gate.seen(), [6]);
    assert_eq!(one.admin.run(&abort(waits[0]), &[]).result, 0);
    assert_eq!(one.answers(waits), [Status::ABORT_REQUESTED, FAILED]);
    let waits = one.send(6, 1, 2, false);
    control.set_host_rates(NQN, IDENTITY.hostnqn, &Rates::default()).expect("the subsystem exists");
    assert_eq!(one.answers(waits), [OK, OK]);
}

/// A core without connections still replies to other cores while these cores serve hosts.
#[test]
fn a_stopping_target_finishes_accepted_fused_pairs() {
    let (target, gate, mut one, other) = stand(Operation::Write);
    drop(other);
    gate.keep(1);
    let begun = one.io.send(&command::write(1, 6, 1, BLOCK, false), &[1; 512], true);
    until_kept(&gate, 1);
    let pairs = [one.send(6, 1, 2, true), one.send(7, 0, 3, true)];
    one.io.is_heard();
    let first = one.io.send(&compare(8), &[0; 512], true);
    let stops = thread::spawn(move || target.stop());
    // The target refuses the first half: because no second half can follow any more, or because
    // the half arrived while the queue was closing.
    let alone = one.io.answer(first).expect("the connection is open").status;
    assert!([MISSING, Status::ABORTED_SQ_DELETION].contains(&alone), "{alone:?}");
    gate.open_up();
    assert_eq!(one.io.answer(begun).expect("the connection is open").status, OK);
    for pair in pairs {
        assert_eq!(one.answers(pair), [OK, OK]);
    }
    stops.join().expect("the thread has not panicked").expect("the target stops");
    assert_eq!(gate.seen(), [6, 6, 7]);
}
