//! Tests the target's queue pairs on the in-memory fabric, with a scripted host.

mod conformance;
mod cost;
mod fuzz;
mod host;
mod hostile;
mod segments;

use crate::config::{Export, StartError, TlsPolicy};
use crate::limits;
use crate::target::Target;
use farblock_backends::Spec;
use farblock_proto::host::command::{self, Command, Data, LogPage};
use farblock_proto::ids::NamespaceId;
use farblock_verbs::{ConnParam, Network, Status as WorkStatus, Verbs};
use farblock_wire::fabrics::{ConnectCommand, ConnectData};
use farblock_wire::log::LogPageId;
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::rdma::RejectStatus;
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{IntoBytes, SglDescriptor, Sqe, Status};
use host::{DISK_BYTES, ScriptedHost, Stand, config, ip, request};

const HOST: &str = "192.0.2.1";
const OTHER: &str = "192.0.2.3";
const BLOCK: u32 = 512;

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ seed).collect()
}

fn connected(stand: &Stand, address: &str, entries: u16) -> (ScriptedHost, ScriptedHost) {
    let (admin, controller) = ScriptedHost::admin(stand, address);
    let io = ScriptedHost::io(stand, address, controller, entries);
    (admin, io)
}

fn write(lba: u64, bytes: usize) -> Command {
    command::write(1, lba, bytes as u32 / BLOCK, bytes as u32, false)
}

fn read(lba: u64, bytes: usize) -> Command {
    command::read(1, lba, bytes as u32 / BLOCK, bytes as u32)
}

/// Checks that a queue works: a write, and a read of the same data.
fn assert_works(host: &mut ScriptedHost, seed: u8) {
    let data = pattern(seed, 8192);
    assert_eq!(host.run(&write(u64::from(seed), 8192), &data).0.status, Status::SUCCESS);
    let (answer, got) = host.run(&read(u64::from(seed), 8192), &[]);
    assert!(answer.status.is_success() && got == data);
}

#[test]
fn data_of_every_size_arrive() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 8);
    for (seed, bytes) in (1..).zip([512, 4096, 4608, 65536, 100 * 512, 1 << 20]) {
        let data = pattern(seed, bytes);
        for in_capsule in [true, false] {
            if in_capsule && bytes > 4096 {
                continue;
            }
            let answer = io.run_with(&write(8, bytes), &data, in_capsule).0;
            assert_eq!(answer.status, Status::SUCCESS, "{bytes} {in_capsule}");
            assert_eq!(io.run(&command::flush(1), &[]).0.status, Status::SUCCESS);
            let (answer, got) = io.run(&read(8, bytes), &[]);
            assert_eq!(answer.status, Status::SUCCESS);
            assert!(got == data, "{bytes} {in_capsule}");
            let compare = command::compare(1, 8, bytes as u32 / BLOCK, bytes as u32);
            assert_eq!(io.run(&compare, &data).0.status, Status::SUCCESS);
        }
    }
}

#[test]
fn a_controller_advertises_its_sgl_and_capsule_support() {
    let stand = Stand::new();
    let (mut admin, _) = ScriptedHost::admin(&stand, HOST);
    let (answer, page) = admin.run(&command::identify_controller(), &[]);
    assert_eq!(answer.status, Status::SUCCESS);
    let sgls = u32::from_le_bytes(page[536..540].try_into().expect("four bytes"));
    assert_eq!(sgls, 1 | 1 << 2 | 1 << 20, "keyed descriptors, offsets in capsules");
    let ioccsz = u32::from_le_bytes(page[1792..1796].try_into().expect("four bytes"));
    assert_eq!(ioccsz, (64 + 4096) / 16);
    assert_eq!(page[1800..1802], [0, 0], "ICDOFF");
    assert_eq!(page[1803], 16, "MSDBD");
}

#[test]
fn responses_report_the_queue_head_for_flow_control() {
    let stand = Stand::new();
    let (_admin, controller) = ScriptedHost::admin(&stand, HOST);
    let mut io = ScriptedHost::queue(&stand, HOST, 1, 4);
    // Connect with flow control, which farblock's own host disables.
    let connect = ConnectCommand::new(0, 1, 3, 0).to_sqe();
    let connect = Command { sqe: connect, data: Data::ToController(ConnectData::LEN as u32) };
    let data = command::connect_data(&host::IDENTITY, Some(controller));
    assert_eq!(io.run(&connect, data.as_bytes()).0.status, Status::SUCCESS);
    // The Connect command used the first entry of the queue.
    for round in 0..20_u16 {
        let answer = io.run(&command::flush(1), &[]).0;
        assert_eq!(answer.head, (2 + round) % 4);
    }
}

#[test]
fn a_full_queue_completes_all_commands_in_every_round() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 128);
    let data = pattern(7, 4096);
    for round in 0..8 {
        for index in 0..127_u64 {
            io.send(&write(index * 8, 4096), &data, index % 2 == 0, index as usize * 4096);
        }
        for _ in 0..127 {
            assert_eq!(io.answer().expect("the queue is open").status, Status::SUCCESS, "{round}");
        }
    }
    let (_, got) = io.run(&read(126 * 8, 4096), &[]);
    assert!(got == data);
}

#[test]
fn transfers_beyond_the_registered_memory_take_turns() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 64);
    let (_other_admin, mut other) = connected(&stand, OTHER, 64);
    let most = 1 << 20;
    assert!(60 * most > limits::STAGING_BYTES && 60 * most <= 64 << 20);
    let data = pattern(3, most);
    for index in 0..60 {
        io.send(&write((index % 15) * 2048, most), &data, false, index as usize * most);
        other.send(&read((index % 15) * 2048, most), &[], false, index as usize * most);
    }
    for _ in 0..60 {
        assert_eq!(io.answer().expect("the queue is open").status, Status::SUCCESS);
        assert_eq!(other.answer().expect("the queue is open").status, Status::SUCCESS);
    }
    other.run(&read(14 * 2048, most), &[]);
    assert!(other.data(0, most) == data);
    assert!(DISK_BYTES as usize >= 15 * most);
}

#[test]
fn invalid_private_data_are_rejected_with_their_reason() {
    let stand = Stand::new();
    let with = |bytes: &[u8]| ConnParam {
        private_data: bytes.to_vec(),
        responder_resources: 16,
        ..ConnParam::default()
    };
    let request_data = |recfmt: u16, queue: u16, receives: u16, sends: u16| {
        let mut data = [0; 32];
        for (at, value) in [recfmt, queue, receives, sends].into_iter().enumerate() {
            data[2 * at..2 * at + 2].copy_from_slice(&value.to_le_bytes());
        }
        with(&data)
    };
    let no_reads = ConnParam { responder_resources: 0, ..request_data(0, 0, 32, 31) };
    for (param, reason) in [
        (request_data(1, 0, 32, 31), RejectStatus::INVALID_RECFMT),
        (request_data(0, 1025, 32, 31), RejectStatus::INVALID_QID),
        (request_data(0, 0, 32, 0), RejectStatus::INVALID_HSQSIZE),
        (request_data(0, 0, 1, 31), RejectStatus::INVALID_HRQSIZE),
        (no_reads, RejectStatus::INVALID_IRD),
    ] {
        let host = request(&stand, HOST, 32);
        assert_eq!(host.connect(param), Err(reason));
    }
    stand.expect_connections(0);
    // The target still serves hosts.
    let (_admin, mut io) = connected(&stand, HOST, 8);
    assert_works(&mut io, 1);
}

#[test]
fn a_full_target_rejects_requests_for_lack_of_resources() {
    let stand = Stand::with(|config| config.max_connections = Some(4));
    let (_admin, _io) = connected(&stand, HOST, 8);
    let (_other_admin, _other) = connected(&stand, OTHER, 8);
    let host = request(&stand, "192.0.2.4", 32);
    assert_eq!(host.connect(host.usual(0)), Err(RejectStatus::NO_RESOURCES));
}

#[test]
fn a_wrong_key_closes_only_its_own_queue() {
    let stand = Stand::new();
    let (_other_admin, mut other) = connected(&stand, OTHER, 8);
    for to_host in [true, false] {
        let (mut admin, mut io) = connected(&stand, HOST, 8);
        let command = if to_host { read(0, 4096) } else { write(0, 4096) };
        let keys = io.keys();
        let block = KeyedBlock {
            address: keys.address(),
            length_bytes: 4096,
            key: keys.rkey() ^ 0x5555_5500,
            invalidate: false,
        };
        io.send_capsule(Sqe { dptr: SglDescriptor::keyed(block), ..command.sqe }, &[]);
        io.expect_end();
        // The admin queue of the controller still answers.
        let answer = admin.run(&command::identify_controller(), &[]).0;
        assert_eq!(answer.status, Status::SUCCESS);
        assert_works(&mut other, 2);
    }
}

#[test]
fn a_range_beyond_the_registration_closes_the_queue() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 8);
    let keys = io.keys();
    let block = KeyedBlock {
        address: keys.address() + keys.bytes() - 512,
        length_bytes: 4096,
        key: keys.rkey(),
        invalidate: false,
    };
    io.send_capsule(Sqe { dptr: SglDescriptor::keyed(block), ..read(0, 4096).sqe }, &[]);
    io.expect_end();
    assert_eq!(io.failed, Some(WorkStatus::WR_FLUSH_ERR));
}

#[test]
fn a_wrong_length_fails_only_its_command() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 8);
    let keys = io.keys();
    let keyed = |length_bytes| {
        SglDescriptor::keyed(KeyedBlock {
            address: keys.address(),
            length_bytes,
            key: keys.rkey(),
            invalidate: false,
        })
    };
    let length = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    let kind = Status::SGL_TYPE_INVALID.with_dnr();
    let data = pattern(1, 4096);
    for (dptr, command, data, status) in [
        (keyed(512), read(0, 4096), &[][..], length),
        (keyed(8192), write(0, 4096), &[], length),
        // The capsule has less data than the descriptor states, or none.
        (SglDescriptor::in_capsule(0, 4096), write(0, 4096), &data[..4095], length),
        (SglDescriptor::in_capsule(0, 4096), write(0, 4096), &[], length),
        (SglDescriptor::in_capsule(1, 4096), write(0, 4096), &data, {
            Status::SGL_OFFSET_INVALID.with_dnr()
        }),
        // A capsule cannot carry data to the host, and this descriptor type is valid only on TCP.
        (SglDescriptor::in_capsule(0, 4096), read(0, 4096), &data, kind),
        (SglDescriptor::transport(4096), read(0, 4096), &[], kind),
    ] {
        io.send_capsule(Sqe { dptr, ..command.sqe }, data);
        assert_eq!(io.answer().expect("the queue is open").status, status, "{dptr:?}");
    }
    assert_works(&mut io, 3);
}

#[test]
fn capsules_of_a_wrong_size_close_their_queue() {
    let stand = Stand::new();
    for bytes in [0, 1, 63] {
        let (_admin, mut io) = connected(&stand, HOST, 8);
        io.send_bytes(&vec![0; bytes]);
        io.expect_end();
    }
    // The capsule is longer than its receive: 64 + 4096 bytes on an I/O queue, 64 on the admin
    // queue.
    let (mut admin, mut io) = connected(&stand, HOST, 8);
    io.send_bytes(&vec![0; 64 + 4097]);
    io.expect_end();
    admin.send_bytes(&[0; 65]);
    admin.expect_end();
}

#[test]
fn more_commands_than_queue_entries_close_the_queue() {
    let stand = Stand::with(|config| {
        let namespace = Spec::parse("delay:2s,mem:1MiB").expect("a disk").open(512, false);
        let namespace = namespace.expect("memory");
        let export = Export { namespace, identity: "slow".to_owned() };
        config.subsystems[0].exports.insert(NamespaceId(2), export);
    });
    let (_other_admin, mut other) = connected(&stand, OTHER, 8);
    let (_admin, mut io) = connected(&stand, HOST, 4);
    for _ in 0..5 {
        io.send(&command::read(2, 0, 1, 512), &[], false, 0);
    }
    io.expect_end();
    assert_works(&mut other, 4);
}

#[test]
fn the_target_invalidates_keys_on_request() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 8);
    let keys = io.keys();
    let block = KeyedBlock {
        address: keys.address() + (32 << 20),
        length_bytes: 4096,
        key: keys.rkey(),
        invalidate: true,
    };
    // Use this key last: the memory for responses has the same key, which the target invalidates.
    let cid = io.send_capsule(Sqe { dptr: SglDescriptor::keyed(block), ..read(0, 4096).sqe }, &[]);
    let answer = io.answer().expect("a response");
    assert_eq!((answer.cid, answer.invalidated), (cid, Some(keys.rkey())));
}

#[test]
fn the_target_removes_a_disconnected_host() {
    let stand = Stand::new();
    for how in 0..3 {
        let (admin, mut io) = connected(&stand, HOST, 8);
        assert_works(&mut io, how);
        match how {
            0 => io.node.disconnect(&io.id).expect("a connection"),
            // The connections end as if the process had been killed, with commands in flight.
            1 => {
                io.send(&read(0, 1 << 20), &[], false, 0);
                drop(io);
                drop(admin);
                stand.expect_connections(0);
                continue;
            }
            _ => {}
        }
        drop((admin, io));
        stand.expect_connections(0);
    }
}

#[test]
fn an_unplugged_host_does_not_disturb_other_hosts() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 8);
    let (_other_admin, mut other) = connected(&stand, OTHER, 8);
    io.send(&read(0, 1 << 20), &[], false, 0);
    io.answer().expect("a response");
    stand.network.unplug(ip(HOST));
    // The target still serves the other host.
    assert_works(&mut other, 5);
}

#[test]
fn a_host_that_sends_no_connect_command_holds_one_receive() {
    let stand = Stand::new();
    let mut host = ScriptedHost::queue(&stand, HOST, 1, 1024);
    // The target refuses a command before Connect, and keeps the queue open.
    let answer = host.run(&command::flush(1), &[]).0;
    assert_eq!(answer.status, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    drop(host);
    stand.expect_connections(0);
}

#[test]
fn a_stopping_target_ends_its_connections() {
    let stand = Stand::new();
    let (mut admin, mut io) = connected(&stand, HOST, 8);
    assert_works(&mut io, 6);
    stand.target.stop().expect("no loop failed");
    io.expect_end();
    admin.expect_end();
}

#[test]
fn discovery_lists_both_transports() {
    let stand = Stand::new();
    let (mut host, _) = ScriptedHost::admin_of(&stand, HOST, DISCOVERY_NQN);
    let log = LogPage::new(LogPageId::DISCOVERY, 8192);
    let (answer, page) = host.run(&command::log_page(log), &[]);
    assert_eq!(answer.status, Status::SUCCESS);
    let entries = page[1024..].chunks(1024).filter(|entry| entry[0] != 0);
    let kinds: Vec<_> = entries.map(|entry| (entry[0], entry[2])).collect();
    assert_eq!(kinds, [(3, 2), (1, 2), (3, 3), (1, 3)]);
    let rdma = &page[2048..];
    assert!(rdma[512..].starts_with(b"192.0.2.2 ") && rdma[32..].starts_with(b"4420 "));
}

#[test]
fn rdma_and_required_tls_exclude_each_other() {
    let mut config = config(&Network::new());
    config.tls = Some(TlsPolicy::Required);
    let refused = Target::start(&config).map(drop).expect_err("no TLS over RDMA");
    assert!(matches!(refused, StartError::RdmaTls(_) | StartError::Tls(_)), "{refused}");
}

#[test]
fn an_address_of_another_machine_is_refused() {
    let mut config = config(&Network::new());
    let rdma = config.rdma.as_mut().expect("configured");
    rdma.addresses = vec!["203.0.113.9:4420".parse().expect("an address")];
    let refused = Target::start(&config).map(drop).expect_err("no device has it");
    assert!(refused.to_string().contains("rdma:203.0.113.9:4420"), "{refused}");
    assert!(refused.to_string().contains("no RDMA device has this address"), "{refused}");
}

#[test]
fn a_large_transfer_is_split_into_pieces() {
    let stand = Stand::with(|config| {
        config.subsystems[0].config.max_transfer_bytes = 8 << 20;
    });
    let (_admin, mut io) = connected(&stand, HOST, 8);
    let data = pattern(9, 5 * (1 << 20) + 1536);
    assert_eq!(io.run(&write(8, data.len()), &data).0.status, Status::SUCCESS);
    let (answer, got) = io.run(&read(8, data.len()), &[]);
    assert!(answer.status.is_success() && got == data);
    // If one of several pieces is beyond the registration, the target closes the queue.
    let keys = io.keys();
    let block = KeyedBlock {
        address: keys.address() + keys.bytes() - (2 << 20),
        length_bytes: 4 << 20,
        key: keys.rkey(),
        invalidate: false,
    };
    io.send_capsule(Sqe { dptr: SglDescriptor::keyed(block), ..read(0, 4 << 20).sqe }, &[]);
    io.expect_end();
    stand.expect_connections(1);
}
