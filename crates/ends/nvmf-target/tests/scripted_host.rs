//! Tests the responses and refusals of a target with a scripted host. A protocol error on one
//! connection must not affect other connections.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::{Command, Namespace};
use farblock_proto::tcp::host_end::{Event, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::EngineKind;
use farblock_target::{Subsystem, Target, TargetConfig, limits};
use farblock_wire::fabrics::{ConnectCommand, ConnectData};
use farblock_wire::property::offset;
use farblock_wire::{IntoBytes, SglDescriptor, Sqe, Status};
use rig::gate::Gate;
use rig::scripted::*;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn reads_return_the_data_of_every_kind_of_transfer() {
    for &engine in EngineKind::HERE {
        for digests in [Digests::NONE, Digests::HEADER, Digests::DATA, Digests::BOTH] {
            let target = target(engine, |_| {});
            let address = target.addresses()[0];
            let (_admin, controller) = admin(address, digests);
            for flow_control in [true, false] {
                let mut queue = io(address, digests, controller, flow_control);
                let transfers = [
                    (512, true),
                    (8192, true),
                    (65536, true),
                    (512, false),
                    (16384, false),
                    (1 << 20, false),
                ];
                for (length, in_capsule) in transfers {
                    let data = pattern(length, length as u8 ^ flow_control as u8);
                    assert_eq!(write(&mut queue, 0, &data, in_capsule), Status::SUCCESS);
                    let answer = read(&mut queue, 0, length as u32);
                    assert_eq!(answer.status, Status::SUCCESS);
                    assert!(answer.data == data, "{engine}, {digests:?}: {length} bytes differ");
                }
                drop(queue);
                wait_for_connections(&target, 1);
            }
            drop(target);
        }
    }
}

#[test]
fn flush_compare_verify_write_zeroes_and_deallocate_work() {
    for &engine in EngineKind::HERE {
        let target = target(engine, |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        let data = pattern(4096, 1);
        assert_eq!(write(&mut queue, 8, &data, true), Status::SUCCESS);

        let flush = Sqe::new(0, 0, 1);
        assert_eq!(queue.run(flush, Transfer::None, &[]).status, Status::SUCCESS);
        let flush_all = Sqe::new(0, 0, 0xffff_ffff);
        assert_eq!(queue.run(flush_all, Transfer::None, &[]).status, Status::SUCCESS);

        let compare = blocks(5, 8, 8, SglDescriptor::in_capsule(0, 4096));
        assert_eq!(queue.run(compare, Transfer::InCapsule(4096), &data).status, Status::SUCCESS);
        let other = pattern(4096, 2);
        let status = queue.run(compare, Transfer::InCapsule(4096), &other).status;
        assert_eq!(status.code(), Status::COMPARE_FAILURE.code());

        let verify = blocks(0x0c, 0, BLOCKS as u32, SglDescriptor::NONE);
        assert_eq!(queue.run(verify, Transfer::None, &[]).status, Status::SUCCESS);

        let zeroes = blocks(8, 8, 4, SglDescriptor::NONE);
        assert_eq!(queue.run(zeroes, Transfer::None, &[]).status, Status::SUCCESS);
        let answer = read(&mut queue, 8, 4096);
        assert_eq!(answer.data[..2048], [0; 2048]);
        assert_eq!(answer.data[2048..], data[2048..]);

        let mut dsm = Sqe { dptr: SglDescriptor::in_capsule(0, 16), ..Sqe::new(9, 0, 1) };
        dsm.cdw11 = 4.into();
        let mut range = [0; 16];
        range[4..8].copy_from_slice(&4u32.to_le_bytes());
        range[8..16].copy_from_slice(&12u64.to_le_bytes());
        assert_eq!(queue.run(dsm, Transfer::InCapsule(16), &range).status, Status::SUCCESS);
    }
}

#[test]
fn refused_commands_leave_the_queue_working() {
    let target = target(EngineKind::Auto, |_| {});
    let address = target.addresses()[0];
    let (mut admin_queue, controller) = admin(address, Digests::NONE);
    let mut queue = io(address, Digests::NONE, controller, false);
    let out_of_range = read(&mut queue, BLOCKS, 512).status;
    assert_eq!(out_of_range.code(), Status::LBA_OUT_OF_RANGE.code());
    let wrapped = read(&mut queue, u64::MAX, 512).status;
    assert_eq!(wrapped.code(), Status::LBA_OUT_OF_RANGE.code());
    let mut other = blocks(2, 0, 1, SglDescriptor::transport(512));
    other.nsid = 9.into();
    let status = queue.run(other, Transfer::FromController(512), &[]).status;
    assert_eq!(status.code(), Status::INVALID_NAMESPACE.code());
    let short = blocks(2, 0, 2, SglDescriptor::transport(512));
    let status = queue.run(short, Transfer::FromController(512), &[]).status;
    assert_eq!(status.code(), Status::DATA_SGL_LENGTH_INVALID.code());
    let unknown = queue.run(Sqe::new(0x55, 0, 1), Transfer::None, &[]).status;
    assert_eq!(unknown.code(), Status::INVALID_OPCODE.code());
    // The target refuses a write with in-capsule data and skips the data.
    assert_eq!(write(&mut queue, BLOCKS, &[1; 512], true).code(), Status::LBA_OUT_OF_RANGE.code());
    assert_eq!(read(&mut queue, 0, 512).status, Status::SUCCESS);
    assert_eq!(admin_queue.property(offset::CSTS) & 1, 1);
}

#[test]
fn hosts_and_names_are_checked_at_connect() {
    let target = target(EngineKind::Auto, |config| {
        config.allow_any_host = false;
        config.allowed_hosts = vec![HOST_NQN.to_owned()];
    });
    let address = target.addresses()[0];
    let refused = |data: ConnectData, command: ConnectCommand| {
        let mut queue = Queue::new(address, Digests::NONE);
        queue.connect(command, data).status.code()
    };
    let command = ConnectCommand::new(0, 0, 31, 0);
    let stranger = ConnectData::new([7; 16], 0xffff, NQN, "nqn.2014-08.org.example:stranger");
    assert_eq!(refused(stranger, command), Status::CONNECT_INVALID_HOST.code());
    let elsewhere = ConnectData::new([7; 16], 0xffff, "nqn.2014-08.org.example:none", HOST_NQN);
    assert_eq!(refused(elsewhere, command), Status::CONNECT_INVALID_PARAMETERS.code());
    let no_controller = connect_data(0x77);
    let io_command = ConnectCommand::new(0, 1, 31, 0);
    assert_eq!(refused(no_controller, io_command), Status::CONNECT_INVALID_PARAMETERS.code());
    assert_eq!(
        Queue::new(address, Digests::NONE)
            .run(Sqe::new(6, 0, 1), Transfer::None, &[])
            .status
            .code(),
        Status::COMMAND_SEQUENCE_ERROR.code()
    );
    admin(address, Digests::NONE);
}

#[test]
fn a_peer_with_another_protocol_gets_a_termination_and_disturbs_no_host() {
    for &engine in EngineKind::HERE {
        let target = target(engine, |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        for greeting in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xff; 200], &[0; 64]] {
            let mut stranger = TcpStream::connect(address).expect("the target listens");
            stranger.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
            stranger.write_all(greeting).expect("sent");
            if greeting.len() > 24 && greeting[0] != 0 {
                let mut answer = Vec::new();
                let _ = stranger.read_to_end(&mut answer);
                assert_eq!(answer[0], 3, "the PDU is not a C2HTermReq");
            }
        }
        // Send an invalid PDU on an initialized connection.
        let mut rogue = Queue::new(address, Digests::NONE);
        rogue.stream.write_all(&[4, 0, 99, 0, 0, 0, 0, 0]).expect("sent");
        assert!(rogue.is_closed());
        assert_eq!(write(&mut queue, 0, &pattern(512, 3), true), Status::SUCCESS);
        assert_eq!(read(&mut queue, 0, 512).data, pattern(512, 3));
    }
}

#[test]
fn closing_the_admin_queue_ends_the_controllers_queues() {
    let target = target(EngineKind::Auto, |_| {});
    let address = target.addresses()[0];
    let (admin_queue, controller) = admin(address, Digests::NONE);
    let mut queue = io(address, Digests::NONE, controller, false);
    drop(admin_queue);
    assert!(queue.is_closed());
    wait_for_connections(&target, 0);
}

#[test]
fn a_silent_host_loses_its_controller_after_the_keep_alive_timeout() {
    let target = target(EngineKind::Auto, |_| {});
    let mut queue = Queue::new(target.addresses()[0], Digests::NONE);
    let answer = queue.connect(ConnectCommand::new(0, 0, 31, 1000), connect_data(0xffff));
    assert_eq!(answer.status, Status::SUCCESS);
    assert!(queue.is_closed());
}

#[test]
fn a_stopping_target_answers_held_requests_and_closes() {
    for &engine in EngineKind::HERE {
        let target = target(engine, |_| {});
        let (mut queue, _) = admin(target.addresses()[0], Digests::NONE);
        let mut out = Vec::new();
        queue.end.submit(SlotId(1), &Sqe::new(0x0c, 0, 0), Transfer::None, &mut out);
        queue.stream.write_all(&out).expect("sent");
        // Once a later command has completed, the target holds the event request.
        assert_eq!(queue.property(offset::CSTS) & 1, 1);
        let stopper = std::thread::spawn(move || target.stop());
        while queue.receive() {}
        let mut input = &queue.pending[..];
        match queue.end.next(&mut input).expect("well formed") {
            Some(Event::Completed { cqe, .. }) => {
                assert_eq!(cqe.status(), Status::ABORTED_SQ_DELETION);
            }
            other => panic!("{other:?}"),
        }
        stopper.join().expect("no panic").expect("a clean stop");
    }
}

#[test]
fn a_port_in_use_is_reported() {
    let first = target(EngineKind::Auto, |_| {});
    let mut config = TargetConfig { listeners: first.addresses().to_vec(), ..Default::default() };
    config.subsystems.push(Subsystem::new(NQN));
    let error = Target::start(&config).err().expect("the port is in use");
    assert!(error.to_string().contains("in use"), "{error}");
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).expect("a field").parse::<usize>().expect("a number");
    pages * 4096
}

#[test]
fn a_host_that_does_not_read_its_answers_holds_little_memory() {
    const QUESTIONS: u16 = 600;
    const PAGE_BYTES: u32 = 1 << 20;
    let target = target(EngineKind::Auto, |_| {});
    let address = target.addresses()[0];
    let (mut greedy, _) = admin(address, Digests::NONE);
    let mut log = Sqe { dptr: SglDescriptor::transport(PAGE_BYTES), ..Sqe::new(2, 0, 0) };
    let dwords = PAGE_BYTES / 4 - 1;
    log.cdw10 = (dwords << 16 | 1).into();
    log.cdw11 = (dwords >> 16).into();
    let capsules: Vec<u8> = (0..QUESTIONS)
        .flat_map(|_| {
            let capsule = farblock_wire::tcp::CapsuleCmd::new(log, 0, Digests::NONE, 0);
            capsule.expect("no data").as_bytes().to_vec()
        })
        .collect();
    let before = resident_bytes();
    greedy.stream.write_all(&capsules).expect("the capsules fit into the socket buffer");
    // In the meantime, the target serves another host.
    let (mut other, _) = admin(address, Digests::NONE);
    for _ in 0..50 {
        other.property(offset::CSTS);
        std::thread::sleep(Duration::from_millis(4));
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 128 << 20, "{} MiB for one connection", grown >> 20);
    // Every response arrives once the first host receives again.
    let per_answer = 24 + PAGE_BYTES as u64 + 24;
    let mut left = u64::from(QUESTIONS) * per_answer;
    let mut bytes = vec![0; 1 << 20];
    while left > 0 {
        let count = greedy.stream.read(&mut bytes).expect("an answer");
        assert!(count > 0, "the connection closed; {left} bytes are missing");
        left -= count as u64;
    }
}

#[test]
fn a_stopping_target_finishes_an_accepted_write() {
    for &engine in EngineKind::HERE {
        let target = target(engine, |_| {});
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        let data = pattern(4096, 9);
        let sqe = blocks(1, 0, 8, SglDescriptor::transport(4096));
        let mut out = Vec::new();
        queue.end.submit(SlotId(3), &sqe, Transfer::ToController(4096), &mut out);
        queue.stream.write_all(&out).expect("sent");
        assert!(queue.receive(), "no R2T arrives");
        let stopper = std::thread::spawn(move || target.stop());
        std::thread::sleep(Duration::from_millis(300));
        let pending = std::mem::take(&mut queue.pending);
        let mut input = &pending[..];
        let Some(Event::Wanted(mut grant)) = queue.end.next(&mut input).expect("well formed")
        else {
            panic!("no R2T")
        };
        let mut out = Vec::new();
        queue.end.data_header(&mut grant, &mut out).expect("a header for the data");
        out.extend_from_slice(&data);
        queue.stream.write_all(&out).expect("an open connection");
        while queue.receive() {}
        let mut input = &queue.pending[..];
        match queue.end.next(&mut input).expect("well formed") {
            Some(Event::Completed { cqe, .. }) => assert_eq!(cqe.status(), Status::SUCCESS),
            other => panic!("{other:?}"),
        }
        stopper.join().expect("no panic").expect("a clean stop");
    }
}

#[test]
fn a_write_without_its_data_does_not_delay_the_stop() {
    let target = target(EngineKind::Auto, |_| {});
    let address = target.addresses()[0];
    let (_admin, controller) = admin(address, Digests::NONE);
    let mut queue = io(address, Digests::NONE, controller, false);
    let sqe = blocks(1, 0, 8, SglDescriptor::transport(4096));
    let mut out = Vec::new();
    queue.end.submit(SlotId(3), &sqe, Transfer::ToController(4096), &mut out);
    queue.stream.write_all(&out).expect("sent");
    assert!(queue.receive(), "no R2T arrives");
    target.stop().expect("a clean stop");
}

/// Returns a target with two disks of 16 MiB, whose gates hold back all reads.
fn gated_target(engine: EngineKind) -> (Target, [Arc<Gate>; 2]) {
    let gates = [1, 2].map(|_| {
        let disk = Arc::new(Mem::new(BLOCK as u32, 16 << 20).expect("a size"));
        let gate = Gate::of(Command::Read, disk);
        gate.keep(usize::MAX);
        Arc::new(gate)
    });
    let disks = gates.clone().map(|gate| gate as Arc<dyn Namespace>);
    (target_of(engine, disks, |_| {}), gates)
}

/// The last byte of a write arrives while the host receives no responses. So many responses wait
/// that the target has stopped parsing. The write must still complete, since no more input arrives.
#[test]
fn a_write_completes_although_its_host_receives_no_answers() {
    /// The number of reads. Their data exceeds the socket buffers of both ends.
    const READS: u16 = 8;
    const READ_BYTES: u32 = 1 << 20;
    const WRITE_BYTES: u32 = 64 << 10;
    for &engine in EngineKind::HERE {
        let (target, gates) = gated_target(engine);
        let address = target.addresses()[0];
        let (_admin, controller) = admin(address, Digests::NONE);
        let mut queue = io(address, Digests::NONE, controller, false);
        let mut out = Vec::new();
        for slot in 0..=READS {
            let mut sqe =
                blocks(2, 0, READ_BYTES / BLOCK as u32, SglDescriptor::transport(READ_BYTES));
            sqe.nsid = if slot < READS { 1 } else { 2 }.into();
            queue.end.submit(SlotId(slot), &sqe, Transfer::FromController(READ_BYTES), &mut out);
        }
        let data = pattern(WRITE_BYTES as usize, 5);
        let sqe =
            blocks(1, 64, WRITE_BYTES / BLOCK as u32, SglDescriptor::in_capsule(0, WRITE_BYTES));
        queue.end.submit(SlotId(READS + 1), &sqe, Transfer::InCapsule(WRITE_BYTES), &mut out);
        out.extend_from_slice(&data[..1000]);
        queue.stream.write_all(&out).expect("sent");
        let [first, second] = gates;
        rig::until("all reads are running", || (first.kept(), second.kept()) == (READS.into(), 1));
        std::thread::sleep(Duration::from_millis(100));

        // The first disk's reads fill the sockets. The second disk's read waits behind them.
        first.open_up();
        rig::until("the first reads complete", || first.kept() == 0);
        second.open_up();
        rig::until("the last read completes", || second.kept() == 0);
        std::thread::sleep(Duration::from_millis(100));
        queue.stream.write_all(&data[1000..]).expect("sent");
        std::thread::sleep(Duration::from_millis(200));
        let brought = queue.completions(usize::from(READS) + 2);
        assert_eq!(brought, (usize::from(READS) + 1) * READ_BYTES as usize);
        assert!(read(&mut queue, 64, WRITE_BYTES).data == data, "{engine}: the data differ");
    }
}

#[test]
fn an_incomplete_capsule_times_out() {
    // Run these in parallel, since each takes as long as the target's timeout.
    let begun: Vec<_> = EngineKind::HERE
        .iter()
        .map(|&engine| {
            let target = target(engine, |_| {});
            let address = target.addresses()[0];
            let (admin, controller) = admin(address, Digests::NONE);
            let mut queue = io(address, Digests::NONE, controller, false);
            let mut out = Vec::new();
            let sqe = blocks(1, 0, 128, SglDescriptor::in_capsule(0, 65536));
            queue.end.submit(SlotId(0), &sqe, Transfer::InCapsule(65536), &mut out);
            out.extend([0; 1000]);
            queue.stream.write_all(&out).expect("sent");
            let patience = limits::TRANSFER_TIMEOUT + Duration::from_secs(60);
            queue.stream.set_read_timeout(Some(patience)).expect("a timeout");
            (target, admin, queue, Instant::now())
        })
        .collect();
    for (target, mut admin, mut queue, since) in begun {
        assert!(queue.is_closed());
        assert!(since.elapsed() > limits::TRANSFER_TIMEOUT / 2, "{:?}", since.elapsed());
        wait_for_connections(&target, 1);
        assert_eq!(admin.property(offset::CSTS) & 1, 1);
    }
}
