//! Hosts that attack the target. Each test ends with a host that the target still serves.

use super::host::{DISK_BYTES, IDENTITY, ScriptedHost, Stand, ip, request, wait_for};
use super::{BLOCK, HOST, OTHER, assert_works, connected, pattern, read, write};
use crate::config::Export;
use crate::limits;
use farblock_backends::mem::Mem;
use farblock_proto::host::command;
use farblock_proto::ids::NamespaceId;
use farblock_random::Random;
use farblock_verbs::{ConnParam, Operation, SendRequest, Verbs};
use farblock_wire::rdma::{CmRequest, RejectStatus};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{IntoBytes, SglDescriptor, Sqe, Status};
use std::sync::Arc;

/// Checks that the target still serves another host's queue.
fn assert_serves(stand: &Stand, seed: u8) {
    let (_admin, mut io) = connected(stand, "192.0.2.99", 8);
    assert_works(&mut io, seed);
}

#[test]
fn short_private_data_are_rejected() {
    let stand = Stand::new();
    let mut valid = vec![0; CmRequest::LEN];
    CmRequest::new(0, 32, 31, 0).emit(&mut valid);
    valid.resize(farblock_verbs::limits::REQUEST_DATA_BYTES, 0xff);
    for bytes in (0..=8).chain([31, 32, 33, 56]) {
        let host = request(&stand, HOST, 2);
        let param = ConnParam {
            private_data: valid[..bytes].to_vec(),
            responder_resources: 16,
            ..ConnParam::default()
        };
        // The fabric pads the data with zeroes, as RoCE does.
        let expected = (bytes <= 6).then_some(RejectStatus::INVALID_HSQSIZE);
        assert_eq!(host.connect(param).err(), expected, "{bytes} bytes");
    }
    stand.expect_connections(0);
    assert_serves(&stand, 1);
}

#[test]
fn random_private_data_and_capsules_harm_no_other_host() {
    let stand = Stand::new();
    let (_admin, mut victim) = connected(&stand, OTHER, 8);
    let mut random = Random::new(40);
    for round in 0..40_u32 {
        let mut bytes = vec![0; random.below(57) as usize];
        bytes.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        let host = request(&stand, HOST, 2);
        let param = ConnParam {
            private_data: bytes,
            responder_resources: random.below(3) as u8,
            ..ConnParam::default()
        };
        let _ = host.connect(param);
        if round % 10 == 0 {
            assert_works(&mut victim, (round / 10) as u8);
        }
    }
    for round in 0..12_u32 {
        let (_admin, mut io) = connected(&stand, HOST, 8);
        let keys = io.keys();
        for _ in 0..7 {
            let choice = random.below(6);
            let command = if choice & 1 == 0 { read(0, 4096) } else { write(0, 4096) };
            let mut sqe = command.sqe;
            sqe.dptr = SglDescriptor::keyed(KeyedBlock {
                address: keys.address() + random.below(1 << 20),
                length_bytes: [0, 512, 4096, 0xff_ffff][random.below(4) as usize],
                key: keys.rkey() ^ u32::from(random.below(8) == 0),
                invalidate: false,
            });
            if choice > 2 {
                sqe.dptr.id = random.below(256) as u8;
            }
            if choice == 5 {
                sqe.flags = random.below(256) as u8;
            }
            let data = pattern(9, random.below(4097) as usize);
            io.send_capsule(sqe, &data);
        }
        if round % 10 == 0 {
            assert_works(&mut victim, (round / 10) as u8);
        }
    }
    drop(victim);
    assert_serves(&stand, 2);
}

#[test]
fn a_command_with_an_empty_keyed_block_gets_a_response() {
    let stand = Stand::new();
    let (mut admin, mut io) = connected(&stand, HOST, 8);
    let keys = io.keys();
    let block = KeyedBlock {
        address: keys.address(),
        length_bytes: 0,
        key: keys.rkey(),
        invalidate: false,
    };
    for command in [read(0, 4096), write(0, 4096), command::flush(1)] {
        io.send_capsule(Sqe { dptr: SglDescriptor::keyed(block), ..command.sqe }, &[]);
        let status = io.answer().expect("the queue is open").status;
        let is_flush = command.sqe.opcode == command::flush(1).sqe.opcode;
        assert_eq!(status.is_success(), is_flush, "{status:?}");
    }
    let identify = command::identify_controller();
    admin.send_capsule(Sqe { dptr: SglDescriptor::keyed(block), ..identify.sqe }, &[]);
    assert!(!admin.answer().expect("the queue is open").status.is_success());
    assert_works(&mut io, 3);
}

#[test]
fn commands_with_duplicate_identifiers_all_complete() {
    let stand = Stand::new();
    let (_admin, mut io) = connected(&stand, HOST, 8);
    let mut capsule = [0; Sqe::LEN];
    Sqe { cid: 7.into(), ..command::flush(1).sqe }.emit(&mut capsule);
    for _ in 0..3 {
        io.send_bytes(&capsule);
    }
    for _ in 0..3 {
        let answer = io.answer().expect("the queue is open");
        assert_eq!((answer.cid, answer.status), (7, Status::SUCCESS));
    }
    assert_works(&mut io, 4);
}

#[test]
fn a_host_cannot_invalidate_the_keys_of_the_target() {
    let stand = Stand::new();
    let (_admin, mut victim) = connected(&stand, OTHER, 8);
    assert_works(&mut victim, 5);
    for key in 0..64 {
        let mut host = ScriptedHost::queue(&stand, HOST, 0, 32);
        let request = SendRequest::new(1 << 32, Operation::SendWithInvalidate(key), &[]);
        host.node.post_send(&host.id, &[request]).expect("room");
        host.expect_end();
    }
    assert_works(&mut victim, 6);
}

#[test]
fn hosts_that_take_no_responses_do_not_stop_others() {
    let most = 1 << 20;
    let stand = Stand::new();
    let (_admin, controller) = ScriptedHost::admin(&stand, HOST);
    // Together these queues hold all registered memory, and have no receive for a response.
    let count = limits::STAGING_BYTES / limits::STAGING_BYTES_PER_CONNECTION;
    let mut stuck = Vec::new();
    for queue in 1..=count as u16 {
        let mut io = ScriptedHost::io_of(&stand, HOST, (controller, queue), 16);
        io.takes_no_responses();
        for index in 0..15_u64 {
            io.send(&read(index * 2048, most), &[], false, index as usize * most);
        }
        stuck.push(io);
    }
    let (_other_admin, mut other) = connected(&stand, OTHER, 8);
    for round in 0..3 {
        assert_works(&mut other, round);
    }
    assert!(DISK_BYTES as usize >= 15 * most);
}

#[test]
fn receives_are_charged_and_their_memory_is_returned() {
    // The queues of all hosts together may keep 4 MiB, and the queues of one host 3 MiB.
    let stand = Stand::with(|config| {
        config.core_buffer_bytes = Some(8 << 20);
        config.cores = vec![0];
    });
    for _ in 0..3 {
        let admins: Vec<_> = (0..8).map(|_| ScriptedHost::admin(&stand, HOST)).collect();
        let mut queues = Vec::new();
        for (_, controller) in &admins {
            let mut host = request(&stand, HOST, 128);
            if host.connect(host.usual(1)).is_err() {
                break;
            }
            let data = command::connect_data(&IDENTITY, Some(*controller));
            host.send(&command::connect(1, 127, 0), data.as_bytes(), true, 0);
            // Connect names the host. If the host's earlier queues have used up its memory limit,
            // the target closes this queue.
            let Some(answer) = host.answer() else { break };
            assert_eq!(answer.status, Status::SUCCESS);
            queues.push(host);
        }
        assert!((2..8).contains(&queues.len()), "each takes more than half a MiB");
        assert_works(&mut queues[0], 1);
        drop((queues, admins));
        stand.expect_connections(0);
    }
}

#[test]
fn a_flood_of_requests_is_refused_and_leaves_nothing_behind() {
    let stand = Stand::with(|config| {
        config.core_buffer_bytes = Some(8 << 20);
        config.cores = vec![0];
    });
    let mut refused = 0;
    let mut open = Vec::new();
    for _ in 0..64 {
        let host = request(&stand, HOST, 1024);
        match host.connect(host.usual(1)) {
            Ok(_) => open.push(host),
            Err(reason) => {
                assert_eq!(reason, RejectStatus::NO_RESOURCES);
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "{} were accepted", open.len());
    assert_serves(&stand, 7);
    drop(open);
    stand.expect_connections(0);
    let host = request(&stand, HOST, 1024);
    host.connect(host.usual(1)).expect("the memory is free again");
}

#[test]
fn the_target_removes_hosts_that_disconnect_at_any_step() {
    let stand = Stand::new();
    for step in 0..6 {
        let host = request(&stand, HOST, 32);
        match step {
            0 => drop(host),
            1 => {
                // The request waits for its answer.
                host.node.connect(&host.id, &host.usual(0)).expect("a request");
                drop(host);
            }
            2 => drop(host.connect(host.usual(0))),
            3 => {
                let _ = host.connect(host.usual(0));
                host.node.disconnect(&host.id).expect("a connection");
            }
            4 => drop(connected(&stand, HOST, 8)),
            _ => {
                let (_admin, mut io) = connected(&stand, HOST, 8);
                io.send(&write(0, 1 << 20), &pattern(1, 1 << 20), false, 0);
                io.send(&read(0, 1 << 20), &[], false, 0);
                io.node.disconnect(&io.id).expect("a connection");
            }
        }
    }
    stand.expect_connections(0);
    assert_serves(&stand, 8);
}

#[test]
fn the_target_listens_again_after_a_moved_address_or_removed_device() {
    let stand = Stand::new();
    let target = ip("192.0.2.2");
    for round in 0..2 {
        let (mut admin, mut io) = connected(&stand, HOST, 8);
        assert_works(&mut io, round);
        if round == 0 {
            stand.network.change_address(target);
        } else {
            stand.network.remove_device(target);
        }
        io.expect_loss();
        admin.expect_loss();
        stand.expect_connections(0);
        // The device returns.
        let _ = stand.network.node(target);
        wait_for("a listener", || {
            let host = request(&stand, HOST, 32);
            host.try_connect(host.usual(0)).then_some(())
        });
    }
    assert_serves(&stand, 9);
}

#[test]
fn a_large_command_works_on_a_core_with_little_memory() {
    // The memory limit leaves room for the receives and a large command.
    let stand = Stand::with(|config| {
        config.core_buffer_bytes = Some(4 << 20);
        config.cores = vec![0];
        let namespace = Arc::new(Mem::new(BLOCK, DISK_BYTES).expect("a size"));
        let export = Export { namespace, identity: "second".to_owned() };
        config.subsystems[0].exports.insert(NamespaceId(2), export);
    });
    let (_admin, mut io) = connected(&stand, HOST, 128);
    let data = pattern(5, 1 << 20);
    assert_eq!(io.run(&write(0, data.len()), &data).0.status, Status::SUCCESS);
    let (answer, got) = io.run(&read(0, data.len()), &[]);
    assert!(answer.status.is_success() && got == data);
}

#[test]
fn a_connect_command_for_another_queue_than_announced_is_refused() {
    let stand = Stand::new();
    let (_admin, controller) = ScriptedHost::admin(&stand, HOST);
    let (_other_admin, other) = ScriptedHost::admin(&stand, OTHER);
    // Each pair: the queue and controller in the connection request, and those in the Connect
    // command.
    for (announced, sent) in [((1, controller), (2, controller)), ((1, other), (1, controller))] {
        let host = request(&stand, HOST, 8);
        let mut private_data = vec![0; CmRequest::LEN];
        CmRequest::new(announced.0, 8, 7, announced.1).emit(&mut private_data);
        let param = ConnParam { private_data, responder_resources: 16, ..ConnParam::default() };
        host.connect(param).expect("the target accepts");
        let mut host = host;
        let data = command::connect_data(&IDENTITY, Some(sent.1));
        let answer = host.run(&command::connect(sent.0, 7, 0), data.as_bytes()).0;
        assert_eq!(answer.status, Status::CONNECT_INVALID_PARAMETERS.with_dnr());
    }
    // The same controller still accepts its own queues.
    let mut io = ScriptedHost::io(&stand, HOST, controller, 8);
    assert_works(&mut io, 1);
    assert_serves(&stand, 2);
}
