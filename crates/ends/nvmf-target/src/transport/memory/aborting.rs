//! Abort: the target aborts waiting commands, and submitted operations complete.

use super::gate::Gate;
use super::peer::{IDENTITY, NQN, Peer, place, target};
use crate::pace::{MAX_BURST, Rate, Rates};
use crate::target::Target;
use farblock_backends::mem::Mem;
use farblock_block::{Command as Operation, Namespace};
use farblock_proto::controller::limits::ABORT_COMMANDS;
use farblock_proto::host::command::{self, Command, Data};
use farblock_proto::ids::NamespaceId;
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::{IntoBytes, Sqe, Status};
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u32 = 512;
const BLOCKS: u32 = 8192;
const ABORTED: u64 = 0;
const NOT_ABORTED: u64 = 1;

struct Stand {
    target: Target,
    gate: Arc<Gate>,
    controller: u16,
    admin: Peer,
    io: Peer,
}

/// Returns a host and a target, whose disk can hold back operations of this kind (a gate).
fn stand(operation: Operation) -> Stand {
    let disk = Arc::new(Mem::new(BLOCK, u64::from(BLOCKS * BLOCK)).expect("a size"));
    let gate = Arc::new(Gate::of(operation, disk));
    let target = target([Arc::clone(&gate) as Arc<dyn Namespace>]);
    let (admin, controller) = Peer::admin(&target);
    let io = Peer::io(&target, controller, 1, 32);
    Stand { target, gate, controller, admin, io }
}

fn abort(queue: u16, cid: u16) -> Command {
    let sqe = Sqe::new(AdminOpcode::ABORT.0, 0, 0);
    let cdw10 = u32::from(queue) | u32::from(cid) << 16;
    Command::new(Sqe { cdw10: cdw10.into(), ..sqe }, Data::None)
}

fn verify(blocks: u32) -> Command {
    let zeroes = command::write_zeroes(1, 0, blocks, false, false);
    let sqe = Sqe { opcode: NvmOpcode::VERIFY.0, cdw12: (blocks - 1).into(), ..zeroes.sqe };
    Command::new(sqe, Data::None)
}

impl Stand {
    /// Sends a command with the identifier `cid`, without waiting for its response.
    fn send(&self, command: &Command, cid: u16, data: &[u8]) {
        let sqe = place(&self.io.wire, command, cid, data, true);
        self.io.wire.send(sqe, if sqe.dptr.is_in_capsule() { data } else { &[] });
    }

    fn write(&self, lba: u64, cid: u16) {
        let data = [cid as u8; BLOCK as usize];
        self.send(&command::write(1, lba, 1, BLOCK, false), cid, &data);
    }

    /// Aborts a command of the I/O queue, and returns the result of the Abort.
    fn abort(&mut self, cid: u16) -> u64 {
        let answer = self.admin.run(&abort(1, cid), &[]);
        assert_eq!(answer.status, Status::SUCCESS);
        answer.result
    }

    /// Sends a read and aborts it. Returns the result of the Abort: [`ABORTED`] if the read was
    /// waiting.
    fn abort_read(&mut self, cid: u16) -> u64 {
        self.send(&command::read(1, 0, 1, BLOCK), cid, &[]);
        self.send(&command::flush(1), cid + 1000, &[]);
        let mut answered = vec![self.io.wire.wait().expect("the connection is open").cid.get()];
        let result = self.abort(cid);
        answered.push(self.io.wire.wait().expect("the connection is open").cid.get());
        answered.sort_unstable();
        assert_eq!(answered, [cid, cid + 1000]);
        result
    }

    fn status(&mut self, cid: u16) -> Status {
        self.io.answer(cid).expect("the connection is open").status
    }

    /// Waits until the core of the I/O queue has handled its messages.
    fn is_heard(&mut self) {
        self.io.is_heard();
    }

    fn until_kept(&self, count: usize) {
        while self.gate.kept() < count {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_waiting_command_is_aborted_and_a_started_one_is_not() {
    let mut stand = stand(Operation::Read);
    stand.gate.keep(usize::MAX);
    stand.send(&command::read(1, 0, 1, BLOCK), 100, &[]);
    // The core starts at most the first step of each Verify, and no step of the last Verify, since
    // its byte limit is reached.
    (101..112).for_each(|cid| stand.send(&verify(BLOCKS - 1), cid, &[]));
    stand.until_kept(2);
    stand.is_heard();
    assert_eq!(stand.abort(111), ABORTED);
    assert_eq!(stand.status(111), Status::ABORT_REQUESTED);
    assert_eq!(stand.abort(100), NOT_ABORTED);
    assert_eq!(stand.abort(111), NOT_ABORTED, "the command has already ended");
    assert_eq!(stand.abort(77), NOT_ABORTED, "no such command existed");
    assert_eq!(stand.admin.run(&abort(9, 100), &[]).result, NOT_ABORTED, "no such queue");
    stand.gate.open_up();
    let answers = (100..111).map(|_| stand.io.wire.wait().expect("the connection is open"));
    assert!(answers.into_iter().all(|cqe| cqe.status() == Status::SUCCESS));
}

#[test]
fn an_abort_ends_a_command_of_several_steps_after_its_current_step() {
    let mut stand = stand(Operation::Read);
    stand.gate.keep(1);
    stand.send(&verify(BLOCKS), 100, &[]);
    stand.until_kept(1);
    // Send as many Aborts as the limit allows, and one more. No Abort completes before the step
    // ends.
    let asked: Vec<_> =
        (0..ABORT_COMMANDS).map(|_| stand.admin.send(&abort(1, 100), &[], true)).collect();
    let beyond = stand.admin.run(&abort(1, 100), &[]);
    assert_eq!(Status(beyond.status.code()), Status::ABORT_LIMIT_EXCEEDED);
    stand.is_heard();
    stand.gate.open_up();
    assert_eq!(stand.status(100), Status::ABORT_REQUESTED);
    for cid in asked {
        let answer = stand.admin.answer(cid).expect("the connection is open");
        assert_eq!((answer.status, answer.result), (Status::SUCCESS, ABORTED));
    }
    assert_eq!(stand.gate.seen().len(), 1, "no further step started");
    // An Abort does not stop the last step, which has started.
    stand.gate.keep(1);
    stand.send(&verify(1), 101, &[]);
    stand.until_kept(1);
    assert_eq!(stand.abort(101), NOT_ABORTED);
    stand.gate.open_up();
    assert_eq!(stand.status(101), Status::SUCCESS);
}

#[test]
fn an_aborted_command_that_waits_for_a_rate_limit_never_executes() {
    let mut stand = stand(Operation::Write);
    let bytes = Rate { writes: 1, ..Rate::default() };
    let crawl = Rates { bytes, burst: Duration::from_nanos(1), ..Rates::default() };
    let control = stand.target.control();
    control.set_rates(NQN, NamespaceId(1), &crawl).expect("the namespace exists");
    stand.is_heard();
    (100..104).for_each(|cid| stand.write(cid.into(), cid));
    assert_eq!(stand.status(100), Status::SUCCESS, "the budget is unused");
    stand.is_heard();
    for cid in [101, 103] {
        assert_eq!(stand.abort(cid), ABORTED);
        assert_eq!(stand.status(cid), Status::ABORT_REQUESTED);
    }
    control.set_rates(NQN, NamespaceId(1), &Rates::default()).expect("the namespace exists");
    assert_eq!(stand.status(102), Status::SUCCESS);
    assert_eq!(stand.gate.seen(), [100, 102]);
}

/// A limit of one written byte per second. The first command passes at once.
const CRAWL: Rate = Rate { all: 0, reads: 0, writes: 1 };
const BURST: Duration = Duration::from_nanos(1);

#[test]
fn an_aborted_copy_returns_its_read_budget() {
    let mut stand = stand(Operation::Write);
    let rates = Rates { bytes: Rate { reads: 1, ..CRAWL }, burst: BURST, ..Rates::default() };
    stand.target.control().set_rates(NQN, NamespaceId(1), &rates).expect("the namespace exists");
    stand.is_heard();
    stand.write(0, 100);
    assert_eq!(stand.status(100), Status::SUCCESS, "the budget is unused");
    stand.send(&command::copy(1, 4096, 1, false), 101, command::copy_range(0, 0, 512).as_bytes());
    stand.is_heard();
    assert_eq!(stand.abort(101), ABORTED);
    assert_eq!(stand.status(101), Status::ABORT_REQUESTED);
    assert_eq!(stand.abort_read(102), NOT_ABORTED, "the read budget is unused");
}

#[test]
fn no_command_inherits_the_booking_of_an_aborted_command() {
    let mut stand = stand(Operation::Write);
    let control = stand.target.control();
    let rates = Rates { bytes: CRAWL, burst: BURST, ..Rates::default() };
    control.set_rates(NQN, NamespaceId(1), &rates).expect("the namespace exists");
    // A large write uses the host's budget for minutes. Small writes use almost nothing.
    let bytes = Rate { all: 512, ..Rate::default() };
    let rates = Rates { bytes, burst: MAX_BURST, ..Rates::default() };
    control.set_host_rates(NQN, IDENTITY.hostnqn, &rates).expect("the subsystem exists");
    stand.is_heard();
    (100..102).for_each(|cid| stand.write(0, cid));
    let large = vec![7; 512 << 10];
    let write = command::write(1, 0, 1024, 512 << 10, false);
    stand.io.wire.send(place(&stand.io.wire, &write, 102, &large, false), &[]);
    assert_eq!(stand.status(100), Status::SUCCESS, "the budget is unused");
    assert_eq!(stand.abort_read(103), NOT_ABORTED, "a small write waits");
    assert_eq!(stand.abort(101), ABORTED);
    assert_eq!(stand.status(101), Status::ABORT_REQUESTED);
    assert_eq!(stand.abort_read(104), ABORTED, "a large write waits");
    assert_eq!(stand.abort(102), ABORTED);
    assert_eq!(stand.status(102), Status::ABORT_REQUESTED);
    assert_eq!(stand.abort_read(105), NOT_ABORTED, "no write waits");
}

#[test]
fn an_aborted_command_that_waits_for_the_fence_never_executes() {
    let mut stand = stand(Operation::Write);
    stand.gate.keep(1);
    stand.write(5, 100);
    stand.until_kept(1);
    stand.io.wire.leave();
    while stand.io.wire.wait().is_some() {}
    stand.io = Peer::io(&stand.target, stand.controller, 2, 32);
    stand.write(5, 101);
    stand.is_heard();
    assert_eq!(stand.admin.run(&abort(2, 101), &[]).result, ABORTED);
    assert_eq!(stand.status(101), Status::ABORT_REQUESTED);
    stand.gate.open_up();
    stand.write(5, 102);
    assert_eq!(stand.status(102), Status::SUCCESS);
    assert_eq!(stand.gate.seen(), [5, 5], "only the first and the last write execute");
}

#[test]
fn an_abort_completes_when_the_queue_of_its_command_closes() {
    let mut stand = stand(Operation::Read);
    stand.gate.keep(1);
    stand.send(&verify(BLOCKS), 100, &[]);
    stand.until_kept(1);
    let asked = stand.admin.send(&abort(1, 100), &[], true);
    stand.is_heard();
    stand.io.wire.leave();
    let answer = stand.admin.answer(asked).expect("the admin queue is open");
    assert_eq!((answer.status, answer.result), (Status::SUCCESS, NOT_ABORTED));
    stand.gate.open_up();
}
