//! Tests the responses and refusals of a session with scripted hosts in memory, independently of
//! the transport.

use super::peer::{self, Peer, place, take_back};
use crate::target::Target;
use farblock_backends::mem::Mem;
use farblock_proto::host::command::{self, LogPage};
use farblock_proto::limits::ADMIN_IN_CAPSULE_BYTES;
use farblock_wire::log::LogPageId;
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{SglDescriptor, Sqe, Status};
use std::sync::Arc;

const BLOCK: u32 = 512;

pub(super) fn target(block_size: u32, bytes: u64) -> Target {
    peer::target([Arc::new(Mem::new(block_size, bytes).expect("a size")) as _])
}

fn connected() -> (Target, Peer, Peer) {
    let target = target(BLOCK, 1 << 20);
    let (admin, controller) = Peer::admin(&target);
    let io = Peer::io(&target, controller, 1, 8);
    (target, admin, io)
}

#[test]
fn a_controller_advertises_keyed_descriptors() {
    let (_target, mut admin, _io) = connected();
    let answer = admin.run(&command::identify_controller(), &[]);
    assert_eq!(answer.status, Status::SUCCESS);
    let sgls = u32::from_le_bytes(answer.data[536..540].try_into().expect("four bytes"));
    assert_eq!(sgls, 1 | 1 << 2 | 1 << 20);
    let log = LogPage::new(LogPageId::SMART_HEALTH, 512);
    assert_eq!(admin.run(&command::log_page(log), &[]).status, Status::SUCCESS);
}

#[test]
fn data_travel_in_capsules_and_in_registered_memory() {
    let (_target, _admin, mut io) = connected();
    for (lba, in_capsule) in [(0, true), (64, false)] {
        let data: Vec<u8> = (0..8 * BLOCK).map(|at| (at / 7 + lba as u32) as u8).collect();
        let write = command::write(1, lba, 8, 8 * BLOCK, false);
        assert_eq!(io.run_with(&write, &data, in_capsule).status, Status::SUCCESS);
        let read = io.run(&command::read(1, lba, 8, 8 * BLOCK), &[]);
        assert_eq!((read.status, read.data == data), (Status::SUCCESS, true));
        let compare = command::compare(1, lba, 8, 8 * BLOCK);
        assert_eq!(io.run_with(&compare, &data, in_capsule).status, Status::SUCCESS);
        let other = vec![1; data.len()];
        let status = io.run_with(&compare, &other, in_capsule).status;
        assert_eq!(Status(status.code()), Status::COMPARE_FAILURE);
    }
}

#[test]
fn an_invalid_command_gets_a_status() {
    let (_target, _admin, mut io) = connected();
    let beyond = io.run(&command::read(1, 1 << 30, 1, BLOCK), &[]).status;
    assert_eq!(Status(beyond.code()), Status::LBA_OUT_OF_RANGE);
    let nowhere = io.run(&command::read(9, 0, 1, BLOCK), &[]).status;
    assert_eq!(Status(nowhere.code()), Status::INVALID_NAMESPACE);
    let short = io.run(&command::write(1, 0, 2, BLOCK, false), &[0; BLOCK as usize]).status;
    assert_eq!(Status(short.code()), Status::DATA_SGL_LENGTH_INVALID);
    // The capsule has less data than its descriptor states.
    let short = io.run(&command::write(1, 0, 2, 2 * BLOCK, false), &[0; BLOCK as usize]).status;
    assert_eq!(Status(short.code()), Status::DATA_SGL_LENGTH_INVALID);
    // This descriptor type is valid only on TCP.
    let read = command::read(1, 0, 1, BLOCK).sqe;
    io.wire.send(Sqe { dptr: SglDescriptor::transport(BLOCK), cid: 99.into(), ..read }, &[]);
    let foreign = io.answer(99).expect("an answer").status;
    assert_eq!(Status(foreign.code()), Status::SGL_TYPE_INVALID);
    assert_eq!(io.run(&command::read(1, 0, 1, BLOCK), &[]).status, Status::SUCCESS);
}

#[test]
fn the_answer_invalidates_the_key_if_the_host_requests_it() {
    let (_target, _admin, io) = connected();
    let sqe = place(&io.wire, &command::read(1, 0, 1, BLOCK), 77, &[], false);
    let block = sqe.dptr.keyed_block().expect("the descriptor is keyed");
    let dptr = SglDescriptor::keyed(KeyedBlock { invalidate: true, ..block });
    io.wire.send(Sqe { dptr, ..sqe }, &[]);
    assert_eq!(io.wire.wait().expect("an answer").status(), Status::SUCCESS);
    let (_, invalidated) = take_back(&io.wire, 77).expect("the memory is registered");
    assert!(invalidated);
}

#[test]
fn unregistered_memory_ends_only_its_own_connection() {
    let (target, mut admin, mut other) = connected();
    let (_, controller) = Peer::admin(&target);
    let commands = [command::read(1, 0, 1, BLOCK), command::write(1, 0, 1, BLOCK, false)];
    for (queue, command) in (1..).zip(commands) {
        let io = Peer::io(&target, controller, queue, 8);
        let memory = [0; BLOCK as usize];
        let sqe = place(&io.wire, &command, 5, &memory, false);
        let block = sqe.dptr.keyed_block().expect("the descriptor is keyed");
        let beyond = SglDescriptor::keyed(KeyedBlock { address: u64::MAX - 1, ..block });
        io.wire.send(Sqe { dptr: beyond, ..sqe }, &[]);
        while io.wire.wait().is_some() {}
        assert!(io.wire.is_closed());
    }
    assert_eq!(other.run(&command::read(1, 0, 1, BLOCK), &[]).status, Status::SUCCESS);
    assert_eq!(admin.run(&command::identify_controller(), &[]).status, Status::SUCCESS);
}

#[test]
fn a_capsule_larger_than_advertised_ends_its_connection() {
    let target = target(BLOCK, 1 << 20);
    let (admin, _) = Peer::admin(&target);
    admin.wire.send(command::keep_alive().sqe, &[0; ADMIN_IN_CAPSULE_BYTES as usize + 1]);
    assert!(admin.wire.wait().is_none());
}

#[test]
fn a_stopping_target_answers_held_event_requests() {
    let (target, admin, io) = connected();
    let sqe = Sqe { cid: 3.into(), ..command::async_event_request().sqe };
    admin.wire.send(sqe, &[]);
    // When a later command has completed, the target has taken this command.
    let later = Sqe { cid: 4.into(), ..command::identify_controller().sqe };
    admin.wire.send(later, &[]);
    assert_eq!(admin.wire.wait().expect("an answer").cid.get(), 4);
    target.stop().expect("the target stops");
    let held = admin.wire.wait().expect("an answer");
    assert_eq!((held.cid.get(), held.status()), (3, Status::ABORTED_SQ_DELETION));
    assert!(admin.wire.wait().is_none() && io.wire.wait().is_none());
}

#[test]
fn closing_the_admin_queue_closes_the_io_queues() {
    let (target, admin, io) = connected();
    admin.wire.leave();
    assert!(io.wire.wait().is_none());
    let (mut admin, _) = Peer::admin(&target);
    assert_eq!(admin.run(&command::identify_controller(), &[]).status, Status::SUCCESS);
}
