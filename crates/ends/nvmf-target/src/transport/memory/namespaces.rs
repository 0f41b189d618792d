//! Adds, changes and removes namespaces while hosts use them, on every core.

use super::gate::Gate;
use super::peer::{NQN, Peer, key_of, place, target, target_on};
use crate::config::Export;
use crate::control::Control;
use crate::limits;
use farblock_backends::delay::Delay;
use farblock_backends::file::{FileDisk, FileOptions};
use farblock_backends::mem::Mem;
use farblock_block::{Command, Namespace};
use farblock_proto::host::command::{self, LogPage};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::EngineKind;
use farblock_wire::event::AsyncEvent;
use farblock_wire::features::{AsyncEventConfig, FeatureId};
use farblock_wire::log::LogPageId;
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::{Sqe, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u32 = 512;
const BYTES: u64 = 4 << 20;
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// The number of Verify commands for each queue.
const VERIFIES: u16 = 12;
const FIRST: NamespaceId = NamespaceId(1);

fn export(namespace: Arc<dyn Namespace>, identity: &str) -> Export {
    Export { namespace, identity: identity.to_owned() }
}

fn memory(block_size: u32) -> Arc<dyn Namespace> {
    Arc::new(Mem::new(block_size, BYTES).expect("a size"))
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within the time limit");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn code(status: Status) -> Status {
    Status(status.code())
}

fn verify(blocks: u32) -> command::Command {
    let zeroes = command::write_zeroes(1, 0, blocks, false, false);
    let sqe = Sqe { opcode: NvmOpcode::VERIFY.0, cdw12: (blocks - 1).into(), ..zeroes.sqe };
    command::Command::new(sqe, command::Data::None)
}

/// Sends a command with the identifier `cid`, without waiting for its response.
fn send(peer: &Peer, command: &command::Command, cid: u16, data: &[u8]) {
    let sqe = place(&peer.wire, command, cid, data, true);
    peer.wire.send(sqe, if sqe.dptr.is_in_capsule() { data } else { &[] });
}

/// Waits for the response to a command, and returns its status.
fn status_of(peer: &mut Peer, cid: u16) -> Status {
    code(peer.answer(cid).expect("the connection is open").status)
}

fn read_first(peer: &mut Peer, nsid: u32) -> Status {
    code(peer.run(&command::read(nsid, 0, 1, BLOCK), &[]).status)
}

#[test]
fn removing_a_namespace_finishes_started_commands_and_fails_waiting_ones() {
    for &engine in EngineKind::HERE {
        let gate = Arc::new(Gate::of(Command::Read, memory(BLOCK)));
        let target = target_on(engine, [Arc::clone(&gate) as Arc<dyn Namespace>, memory(BLOCK)]);
        let control = target.control();
        let (_admin, controller) = Peer::admin(&target);
        let mut queues = [1, 2].map(|queue| Peer::io(&target, controller, queue, 16));
        gate.keep(usize::MAX);
        let blocks = (BYTES / u64::from(BLOCK)) as u32;
        for io in &queues {
            // The read and the first steps of some commands are under way at the namespace. The
            // other commands wait for their turns.
            send(io, &command::read(1, 0, 1, BLOCK), 100, &[]);
            (101..101 + VERIFIES).for_each(|cid| send(io, &verify(blocks - 1), cid, &[]));
        }
        let at_once = (limits::IN_PLACE_BYTES / limits::STEP_BYTES) as u16;
        let is_one_core = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let begun = if is_one_core { at_once / 2 } else { at_once };
        until("the operations have started", || gate.kept() == 2 * (1 + usize::from(begun)));
        let removal = control.remove_namespace(NQN, FIRST).expect("the namespace exists");
        // Waiting commands fail before the started commands end. New commands fail, too. The other
        // namespace still works.
        for io in &mut queues {
            for cid in 101 + begun..101 + VERIFIES {
                assert_eq!(status_of(io, cid), Status::INVALID_NAMESPACE);
            }
            assert_eq!(read_first(io, 1), Status::INVALID_NAMESPACE);
            assert_eq!(read_first(io, 2), Status::SUCCESS);
        }
        let removal = removal.wait(Duration::ZERO).expect_err("operations are under way");
        let (weak, seen) = (Arc::downgrade(&gate), gate.seen().len());
        gate.open_up();
        for io in &mut queues {
            let answers = (0..=begun).map(|_| io.wire.wait().expect("the connection is open"));
            let mut answers: Vec<_> =
                answers.map(|cqe| (cqe.cid.get(), code(cqe.status()))).collect();
            answers.sort_unstable_by_key(|(cid, _)| *cid);
            let refused = (101..101 + begun).map(|cid| (cid, Status::INVALID_NAMESPACE));
            let expected: Vec<_> = [(100, Status::SUCCESS)].into_iter().chain(refused).collect();
            assert_eq!(answers, expected, "the read completes, and no further step starts");
        }
        assert_eq!(gate.seen().len(), seen, "no operation started after the removal");
        drop(gate);
        removal.wait(WAIT_LIMIT).expect("the last operation has ended");
        assert!(weak.upgrade().is_none(), "no reference to the namespace remains");
        queues.iter_mut().for_each(|io| assert_eq!(read_first(io, 2), Status::SUCCESS));
        assert!(
            queues.iter().all(|io| io.wire.take_answers().is_empty()),
            "a command got two responses"
        );
        target.stop().expect("the target stops");
    }
}

#[test]
fn commands_to_a_reused_namespace_number_reach_only_the_new_store() {
    const CHANGES: u8 = 40;
    let slow = |block_size: u32| -> Arc<dyn Namespace> {
        let delay = Delay::new(memory(block_size), Duration::from_micros(200));
        Arc::new(delay.jitter(Duration::from_micros(500), 1))
    };
    let target = target([slow(512), memory(BLOCK)]);
    let control = target.control();
    let (_admin, controller) = Peer::admin(&target);
    let over = AtomicBool::new(false);
    let served: u32 = std::thread::scope(|scope| {
        let users: Vec<_> = (1..=3)
            .map(|queue| {
                let (target, over) = (&target, &over);
                scope.spawn(move || hammer(Peer::io(target, controller, queue, 16), over))
            })
            .collect();
        for number in 0..CHANGES {
            let block_size = if number % 2 == 0 { 4096 } else { 512 };
            let next = slow(block_size);
            let old = match number % 3 {
                0 => {
                    let old = control.remove_namespace(NQN, FIRST).expect("the namespace exists");
                    control
                        .add_namespace(NQN, FIRST, &export(next, "again"))
                        .expect("the namespace was removed");
                    old
                }
                _ => {
                    let next = export(next, "other");
                    control.replace_namespace(NQN, FIRST, &next).expect("the namespace exists")
                }
            };
            old.wait(WAIT_LIMIT).expect("all operations have ended");
        }
        over.store(true, Ordering::Relaxed);
        users.into_iter().map(|user| user.join().expect("the user's thread did not panic")).sum()
    });
    assert!(served > 0);
    target.stop().expect("the target stops");
}

/// Keeps reads and writes of either block size in flight until `over` is set. Checks that each
/// command completes once, and fails only if the namespace was changed or removed. Returns the
/// number of successes.
fn hammer(mut io: Peer, over: &AtomicBool) -> u32 {
    const AT_ONCE: u16 = 12;
    let (mut cid, mut served, mut in_flight) = (0_u16, 0, 0);
    while in_flight > 0 || !over.load(Ordering::Relaxed) {
        while in_flight < AT_ONCE && !over.load(Ordering::Relaxed) {
            let bytes = if cid.is_multiple_of(3) { 4096 } else { 512 };
            let nsid = if cid % 4 == 1 { 2 } else { 1 };
            let data = vec![cid as u8; bytes as usize];
            match cid.is_multiple_of(2) {
                true => send(&io, &command::write(nsid, 3, 1, bytes, false), cid, &data),
                false => send(&io, &command::read(nsid, 3, 1, bytes), cid, &[]),
            }
            cid = cid.wrapping_add(1);
            in_flight += 1;
        }
        let cqe = io.wire.wait().expect("the connection is open");
        in_flight -= 1;
        let _ = io.wire.deregister(key_of(cqe.cid.get()));
        match code(cqe.status()) {
            Status::SUCCESS => served += 1,
            // The command had the other block size, or arrived between two namespaces.
            Status::DATA_SGL_LENGTH_INVALID | Status::INVALID_NAMESPACE => {}
            other => panic!("{other}"),
        }
    }
    let last = io.run(&command::read(2, 0, 1, BLOCK), &[]);
    assert_eq!(last.status, Status::SUCCESS, "the other namespace is served");
    assert!(io.wire.take_answers().is_empty(), "a command got two responses");
    served
}

#[test]
fn the_file_of_a_removed_namespace_is_closed_and_unlocked() {
    let folder = std::env::temp_dir().join(format!("farblock-hot-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("disk");
    std::fs::File::create(&path).and_then(|file| file.set_len(BYTES)).expect("a file");
    let open = || FileDisk::open(&path, &FileOptions::new(BLOCK));
    for &engine in EngineKind::HERE {
        let target = target_on(engine, [memory(BLOCK)]);
        let control = target.control();
        let (_admin, controller) = Peer::admin(&target);
        let mut queues = [1, 2].map(|queue| Peer::io(&target, controller, queue, 16));
        for round in 0..8 {
            let file = Arc::new(open().expect("the file is not locked"));
            let second = NamespaceId(2);
            control.add_namespace(NQN, second, &export(file, "file")).expect("the number is free");
            for io in &mut queues {
                until("the core knows the namespace", || read_first(io, 2) == Status::SUCCESS);
                let data = [round; BLOCK as usize];
                send(io, &command::write(2, 5, 1, BLOCK, false), 9000 + u16::from(round), &data);
            }
            assert!(open().is_err(), "the file is not locked");
            let removal = control.remove_namespace(NQN, second).expect("the namespace exists");
            removal.wait(WAIT_LIMIT).expect("all operations have ended");
            open().expect("the end of the removal unlocks the file");
            for io in &mut queues {
                let status = status_of(io, 9000 + u16::from(round));
                assert!(matches!(status, Status::SUCCESS | Status::INVALID_NAMESPACE), "{status}");
            }
        }
        target.stop().expect("the target stops");
    }
    std::fs::remove_dir_all(&folder).expect("the test created the folder");
}

#[test]
fn hosts_are_notified_of_every_namespace_change() {
    let target = target([memory(BLOCK)]);
    let control = target.control();
    let (mut admin, controller) = Peer::admin(&target);
    let mut io = Peer::io(&target, controller, 1, 16);
    let blocks = BYTES / u64::from(BLOCK);
    let enable = AsyncEventConfig(0).with_namespace_attributes(true).0;
    let enable = command::set_features(FeatureId::ASYNC_EVENT_CONFIGURATION, enable);
    assert_eq!(admin.run(&enable, &[]).status, Status::SUCCESS);
    let log = LogPage::new(LogPageId::CHANGED_NAMESPACES, 4096);
    let mut told = |change: &dyn Fn()| {
        let cid = 7000;
        admin.wire.send(Sqe { cid: cid.into(), ..command::async_event_request().sqe }, &[]);
        // When a later command has completed, the target holds the event request.
        assert_eq!(admin.run(&command::identify_controller(), &[]).status, Status::SUCCESS);
        change();
        let event = admin.answer(cid).expect("the connection is open").result;
        assert_eq!(AsyncEvent::parse(event as u32), AsyncEvent::NAMESPACE_CHANGED);
        let changed = admin.run(&command::log_page(log), &[]).data;
        assert_eq!(changed[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
        let answer = admin.run(&command::identify_namespace(1), &[]);
        u64::from_le_bytes(answer.data[..8].try_into().expect("eight bytes"))
    };
    let set_blocks = |blocks| {
        control.resize_namespace(NQN, FIRST, blocks).expect("the namespace has this many blocks")
    };
    assert_eq!(told(&|| set_blocks(Some(10))), 10);
    assert_eq!(told(&|| set_blocks(None)), blocks);
    assert!(control.resize_namespace(NQN, FIRST, Some(blocks + 1)).is_err());
    assert_eq!(
        told(&|| control.set_read_only(NQN, FIRST, true).expect("the namespace exists")),
        blocks
    );
    let write = command::write(1, 0, 1, BLOCK, false);
    until("the core applies the write protection", || {
        let status = code(io.run(&write, &[1; BLOCK as usize]).status);
        status == Status::NAMESPACE_WRITE_PROTECTED
    });
    assert_eq!(
        told(&|| control.set_read_only(NQN, FIRST, false).expect("the namespace exists")),
        blocks
    );
    assert_eq!(told(&|| drop(control.remove_namespace(NQN, FIRST))), 0);
    let again = || control.add_namespace(NQN, FIRST, &export(memory(4096), "new"));
    assert_eq!(told(&|| again().expect("the namespace was removed")), BYTES / 4096);
}

#[test]
fn hosts_are_notified_when_a_file_grows() {
    let folder = std::env::temp_dir().join(format!("farblock-grows-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let path = folder.join("disk");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(BYTES).expect("the file system has room");
    let disk = FileDisk::open(&path, &FileOptions::new(BLOCK)).expect("the file is not locked");
    let target = target([Arc::new(disk) as Arc<dyn Namespace>]);
    let (mut admin, controller) = Peer::admin(&target);
    let mut io = Peer::io(&target, controller, 1, 16);
    let enable = AsyncEventConfig(0).with_namespace_attributes(true).0;
    let enable = command::set_features(FeatureId::ASYNC_EVENT_CONFIGURATION, enable);
    assert_eq!(admin.run(&enable, &[]).status, Status::SUCCESS);
    admin.wire.send(Sqe { cid: 7000.into(), ..command::async_event_request().sqe }, &[]);
    let last = 2 * BYTES / u64::from(BLOCK) - 1;
    let read = command::read(1, last, 1, BLOCK);
    assert_eq!(code(io.run(&read, &[]).status), Status::LBA_OUT_OF_RANGE);
    file.set_len(2 * BYTES).expect("the file system has room");
    let event = admin.answer(7000).expect("the connection is open").result;
    assert_eq!(AsyncEvent::parse(event as u32), AsyncEvent::NAMESPACE_CHANGED);
    until("the core knows the new size", || io.run(&read, &[]).status == Status::SUCCESS);
    target.stop().expect("the target stops");
    // Some systems do not remove open files, so ignore errors. The folder is temporary.
    drop((admin, io, file));
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn a_refused_namespace_change_reports_the_reason() {
    let target = target([memory(BLOCK)]);
    let control: Control = target.control();
    let say = |result: Result<(), crate::change_error::ChangeError>| match result {
        Ok(()) => "done".to_owned(),
        Err(error) => error.to_string(),
    };
    let add = |nqn: &str, nsid| control.add_namespace(nqn, nsid, &export(memory(BLOCK), "x"));
    assert_eq!(say(add("nqn.x", FIRST)), "the target shares no subsystem nqn.x");
    assert_eq!(say(add(NQN, FIRST)), "namespace 1: the namespace exists already");
    let remove = control.remove_namespace(NQN, NamespaceId(7)).map(drop);
    assert_eq!(say(remove), "namespace 7: the namespace does not exist");
    assert_eq!(say(control.resize_namespace(NQN, FIRST, Some(0))), {
        "namespace 1: no namespace can have 0 blocks"
    });
    let too_many = say(control.resize_namespace(NQN, FIRST, Some(9000)));
    assert!(too_many.starts_with("namespace 1 has 8192 blocks"), "{too_many}");
    target.stop().expect("the target stops");
    assert_eq!(say(add(NQN, NamespaceId(2))), "the target is stopping");
}
