//! No command of a lost queue executes late, and no host keeps others waiting for long.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::{Command, Namespace};
use farblock_proto::tcp::host_end::Transfer;
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::EngineKind;
use farblock_target::{Target, limits};
use farblock_wire::fabrics::{ConnectCommand, PropertySetCommand, PropertySize};
use farblock_wire::property::offset;
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::gate::Gate;
use rig::scripted::*;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Returns a target, an admin queue and its controller identifier, and a gate. The gate holds back
/// a write of ones from an I/O queue that was lost.
fn with_a_lost_write(engine: EngineKind) -> (Target, Queue, u16, Arc<Gate>) {
    let disk = || Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"));
    let gate = Arc::new(Gate::of(Command::Write, disk()));
    gate.keep(1);
    let disks = [gate.clone() as Arc<dyn Namespace>, disk()];
    let target = target_of(engine, disks, |_| {});
    let (admin, controller) = admin(target.addresses()[0], Digests::NONE);
    let mut queue = io(target.addresses()[0], Digests::NONE, controller, false);
    let mut out = Vec::new();
    let sqe = blocks(1, 0, 1, SglDescriptor::in_capsule(0, BLOCK as u32));
    queue.end.submit(SlotId(0), &sqe, Transfer::InCapsule(BLOCK as u32), &mut out);
    out.extend([1; BLOCK]);
    queue.stream.write_all(&out).expect("sent");
    rig::until("the write is in flight", || gate.kept() == 1);
    (target, admin, controller, gate)
}

/// Reconnects the I/O queue once the target has noticed that the old queue is closed.
fn io_once_free(address: SocketAddr, controller: u16) -> Queue {
    let mut connected = None;
    rig::until("the queue is free", || {
        let mut queue = Queue::new(address, Digests::NONE);
        let mut command = ConnectCommand::new(0, 1, 63, 0);
        command.cattr = 4;
        let answer = queue.connect(command, connect_data(controller));
        connected = Some(queue);
        answer.status.is_success()
    });
    connected.expect("connected just now")
}

/// Sends a write of twos to the blocks of the lost write, without waiting for its response.
fn send_anew(queue: &mut Queue) {
    let mut out = Vec::new();
    let sqe = blocks(1, 0, 1, SglDescriptor::in_capsule(0, BLOCK as u32));
    queue.end.submit(SlotId(0), &sqe, Transfer::InCapsule(BLOCK as u32), &mut out);
    out.extend([2; BLOCK]);
    queue.stream.write_all(&out).expect("sent");
}

#[test]
fn a_delayed_write_of_a_lost_queue_does_not_overwrite_its_successors_write() {
    for &engine in EngineKind::HERE {
        let (target, _admin, controller, gate) = with_a_lost_write(engine);
        let mut queue = io_once_free(target.addresses()[0], controller);
        // Reads of other blocks and namespaces complete at once.
        assert_eq!(read(&mut queue, 1, BLOCK as u32).data, vec![0; BLOCK]);
        let mut sqe = blocks(2, 0, 1, SglDescriptor::transport(BLOCK as u32));
        sqe.nsid = 2.into();
        let answer = queue.run(sqe, Transfer::FromController(BLOCK as u32), &[]);
        assert_eq!((answer.status, answer.data), (Status::SUCCESS, vec![0; BLOCK]));
        send_anew(&mut queue);
        let patience = Duration::from_millis(100);
        queue.stream.set_read_timeout(Some(patience)).expect("a timeout");
        assert!(queue.stream.read(&mut [0]).is_err(), "{engine}: a response arrived too early");
        queue.stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        gate.open_up();
        assert_eq!(queue.completions(1), 0);
        assert_eq!(
            read(&mut queue, 0, BLOCK as u32).data,
            vec![2; BLOCK],
            "{engine}: the late write changed the block"
        );
    }
}

#[test]
fn a_reset_or_shutdown_completes_after_the_commands_that_it_ended() {
    const SHUTDOWN: u64 = 1 << 14;
    const ENABLED: u64 = 1 | 6 << 16 | 4 << 20;
    // Each case has the new value of CC, the value of CSTS while the write is in progress, and the
    // value of CSTS afterwards.
    let cases = [(ENABLED & !1, 1, 0), (ENABLED | SHUTDOWN, 1 | 1 << 2, 1 | 2 << 2)];
    for &engine in EngineKind::HERE {
        for (cc, before, after) in cases {
            let (_target, mut admin, _, gate) = with_a_lost_write(engine);
            let set = PropertySetCommand::new(0, offset::CC, PropertySize::Four, cc).to_sqe();
            assert_eq!(admin.run(set, Transfer::None, &[]).status, Status::SUCCESS);
            for _ in 0..20 {
                assert_eq!(
                    admin.property(offset::CSTS),
                    before,
                    "{engine}: the reset ended too early"
                );
                std::thread::sleep(Duration::from_millis(5));
            }
            gate.open_up();
            rig::until("the controller is disabled", || admin.property(offset::CSTS) == after);
        }
    }
}

#[test]
fn a_reset_and_a_shutdown_leave_event_requests_unanswered() {
    /// The number of resets. It exceeds the number of queue entries, to detect entries that are not
    /// freed.
    const RESETS: u16 = 40;
    for &engine in EngineKind::HERE {
        let target = target(engine, |_| {});
        let (mut queue, _) = admin(target.addresses()[0], Digests::NONE);
        let write_cc = |queue: &mut Queue, cc: u64| {
            let set = PropertySetCommand::new(0, offset::CC, PropertySize::Four, cc).to_sqe();
            // The next response must be for this command: the held event requests must get no
            // response.
            assert_eq!(queue.run(set, Transfer::None, &[]).status, Status::SUCCESS);
        };
        for round in 0..=RESETS {
            let mut out = Vec::new();
            let request = Sqe::new(0x0c, 0, 0);
            queue.end.submit(SlotId(1 + round), &request, Transfer::None, &mut out);
            queue.stream.write_all(&out).expect("sent");
            let cc = 6 << 16 | 4 << 20;
            if round == RESETS {
                write_cc(&mut queue, cc | 1 | 1 << 14);
                assert_eq!(queue.property(offset::CSTS), 1 | 2 << 2);
            } else {
                write_cc(&mut queue, cc);
                assert_eq!(queue.property(offset::CSTS), 0);
                write_cc(&mut queue, cc | 1);
            }
        }
    }
}

const MANY: u16 = 48;
const AT_ONCE: usize = limits::IN_PLACE_BYTES / limits::STEP_BYTES;

/// Returns a target whose gate holds back all reads, and an I/O queue with many Verify commands of
/// 32 MiB.
fn with_verifies(engine: EngineKind) -> (Target, [Queue; 2], u16, Arc<Gate>) {
    let disk = Arc::new(Mem::new(BLOCK as u32, 64 << 20).expect("a size"));
    let gate = Arc::new(Gate::of(Command::Read, disk));
    gate.keep(usize::MAX);
    let target = target_of(engine, [gate.clone() as Arc<dyn Namespace>], |_| {});
    let address = target.addresses()[0];
    let (admin, controller) = admin(address, Digests::NONE);
    let mut queue = io(address, Digests::NONE, controller, false);
    let mut out = Vec::new();
    for slot in 1..=MANY {
        let sqe = blocks(0x0c, 0, 65536, SglDescriptor::transport(0));
        queue.end.submit(SlotId(slot), &sqe, Transfer::None, &mut out);
    }
    queue.stream.write_all(&out).expect("sent");
    // A later write on the queue completes, since a write does not read the disk.
    assert_eq!(write(&mut queue, 0, &[1; BLOCK], true), Status::SUCCESS);
    rig::until("all permitted commands have started", || gate.kept() == AT_ONCE);
    (target, [admin, queue], controller, gate)
}

#[test]
fn commands_in_steps_hold_little_memory_and_end_with_their_connection() {
    for &engine in EngineKind::HERE {
        let (target, [_admin, mut queue], controller, gate) = with_verifies(engine);
        assert_eq!(write(&mut queue, 0, &[2; BLOCK], true), Status::SUCCESS);
        assert_eq!(gate.kept(), AT_ONCE, "{engine}: more commands started than permitted");
        // When the queue of the Verify commands closes, each command ends with its current step.
        drop(queue);
        rig::until("the connections are closed", || {
            let mut again = Queue::new(target.addresses()[0], Digests::NONE);
            again
                .connect(ConnectCommand::new(0, 1, 63, 0), connect_data(controller))
                .status
                .is_success()
        });
        gate.open_up();
        rig::until("the closed queue is gone", || gate.kept() == 0 && target.connections() == 1);
        assert_eq!(gate.seen().len(), AT_ONCE, "{engine}: a command of a closed queue was started");
    }
}

#[test]
fn commands_in_steps_take_turns() {
    const ELSEWHERE: u64 = 100_000;
    for &engine in EngineKind::HERE {
        let (target, _many, controller, gate) = with_verifies(engine);
        let mut queue = Queue::new(target.addresses()[0], Digests::NONE);
        let second = ConnectCommand::new(0, 2, 63, 0);
        assert_eq!(queue.connect(second, connect_data(controller)).status, Status::SUCCESS);
        let mut out = Vec::new();
        let sqe = blocks(0x0c, ELSEWHERE, 1, SglDescriptor::transport(0));
        queue.end.submit(SlotId(1), &sqe, Transfer::None, &mut out);
        queue.stream.write_all(&out).expect("sent");
        assert_eq!(write(&mut queue, 0, &[1; BLOCK], true), Status::SUCCESS);
        gate.open_up();
        queue.completions(1);
        let seen = gate.seen();
        let turn = seen.iter().position(|&lba| lba == ELSEWHERE).expect("the command was executed");
        // Each of the other commands has thousands of steps.
        assert!(turn <= 2 * AT_ONCE, "{engine}: {turn} other commands were executed first");
    }
}

#[test]
fn a_slow_disk_does_not_delay_commands_to_others() {
    for &engine in EngineKind::HERE {
        let disk = || Arc::new(Mem::new(BLOCK as u32, 64 << 20).expect("a size"));
        let gate = Arc::new(Gate::of(Command::Read, disk()));
        gate.keep(usize::MAX);
        let disks = [gate.clone() as Arc<dyn Namespace>, disk()];
        let target = target_of(engine, disks, |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        let mut out = Vec::new();
        let sqe = blocks(0x0c, 0, 65536, SglDescriptor::transport(0));
        for slot in 1..=MANY {
            queue.end.submit(SlotId(slot), &sqe, Transfer::None, &mut out);
        }
        queue.stream.write_all(&out).expect("sent");
        rig::until("all permitted commands have started", || gate.kept() == AT_ONCE);
        // Execute a Verify and a Write Zeroes on the same queue, and so on the same core.
        for opcode in [0x0c, 0x08] {
            let other = Sqe { nsid: 2.into(), ..blocks(opcode, 0, 65536, sqe.dptr) };
            assert_eq!(queue.run(other, Transfer::None, &[]).status, Status::SUCCESS, "{engine}");
        }
        assert_eq!(gate.kept(), AT_ONCE, "{engine}");
        gate.open_up();
    }
}

#[test]
fn a_deallocation_zeroes_exactly_its_ranges() {
    for &engine in EngineKind::HERE {
        let target = target(engine, |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        assert_eq!(write(&mut queue, 0, &pattern(65536, 1), false), Status::SUCCESS);
        let dsm = |queue: &mut Queue, ranges: &[(u64, u32)]| {
            let mut list = Vec::new();
            for &(lba, count) in ranges {
                list.extend([0; 4]);
                list.extend(count.to_le_bytes());
                list.extend(lba.to_le_bytes());
            }
            let length = list.len() as u32;
            let mut sqe = Sqe { dptr: SglDescriptor::in_capsule(0, length), ..Sqe::new(9, 0, 1) };
            sqe.cdw10 = (ranges.len() as u32 - 1).into();
            sqe.cdw11 = 4.into();
            queue.run(sqe, Transfer::InCapsule(length), &list).status
        };
        // Deallocate more ranges than one step covers.
        let ranges: Vec<_> = (0..20).map(|at| (at * 4, 2)).chain([(3, 0), (0, 1)]).collect();
        assert_eq!(dsm(&mut queue, &ranges), Status::SUCCESS);
        let zeroes = |block: usize| block < 80 && block % 4 < 2;
        let data = read(&mut queue, 0, 65536).data;
        let expected = pattern(65536, 1);
        for (block, (now, then)) in data.chunks(BLOCK).zip(expected.chunks(BLOCK)).enumerate() {
            let expected = if zeroes(block) { &[0; BLOCK][..] } else { then };
            assert!(now == expected, "{engine}: block {block}");
        }
        let too_many = dsm(&mut queue, &vec![(0, 1); 129]);
        assert_eq!(too_many, Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr());
    }
}

#[test]
fn without_the_write_cache_every_write_is_durable() {
    const SET_FEATURES: u8 = 9;
    for &engine in EngineKind::HERE {
        let disk = Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"));
        let gate = Arc::new(Gate::new(disk));
        let target = target_of(engine, [gate.clone() as Arc<dyn Namespace>], |_| {});
        let (mut admin, controller) = admin(target.addresses()[0], Digests::NONE);
        let mut queue = io(target.addresses()[0], Digests::NONE, controller, false);
        for (enabled, durable) in [(1, 0), (0, 1), (1, 1)] {
            let mut set = Sqe { dptr: SglDescriptor::transport(0), ..Sqe::new(SET_FEATURES, 0, 0) };
            set.cdw10 = 6.into();
            set.cdw11 = enabled.into();
            assert_eq!(admin.run(set, Transfer::None, &[]).status, Status::SUCCESS);
            assert_eq!(write(&mut queue, 0, &[1; BLOCK], false), Status::SUCCESS);
            assert_eq!(gate.durable(), durable, "{engine}");
        }
    }
}
