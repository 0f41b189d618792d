//! Functions for scripted hosts: to write data when the target requests the data, to connect a
//! second host, and to reserve.

use super::scripted::*;
use farblock_proto::tcp::host_end::{Event, Grant, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_wire::opcode::NvmOpcode;
use farblock_wire::reservation::ReservationControl;
use farblock_wire::{SglDescriptor, Status};
use std::io::Write;
use std::net::SocketAddr;

/// Returns the queues of another host, with the same NQN and another host identifier.
pub fn another_host(address: SocketAddr) -> (Queue, Queue) {
    const HOST_ID: [u8; 16] = [9; 16];
    let (admin, controller) = admin_of(HOST_ID, address, Digests::NONE);
    (admin, io_of(HOST_ID, address, Digests::NONE, controller, true))
}

/// Sends a write command for this many bytes at the first blocks, without its data.
pub fn ask(queue: &mut Queue, slot: u16, bytes: u32) {
    let count = bytes / BLOCK as u32;
    let sqe = blocks(NvmOpcode::WRITE.0, 0, count, SglDescriptor::transport(bytes));
    let mut out = Vec::new();
    queue.end.submit(SlotId(slot), &sqe, Transfer::ToController(bytes), &mut out);
    queue.stream.write_all(&out).expect("sent");
}

enum Heard {
    Wanted(Grant),
    Completed(Status),
}

fn hear(queue: &mut Queue) -> Heard {
    loop {
        let pending = std::mem::take(&mut queue.pending);
        let mut input = &pending[..];
        let heard = match queue.end.next(&mut input).expect("well formed") {
            Some(Event::Wanted(grant)) => Some(Heard::Wanted(grant)),
            Some(Event::Completed { cqe, .. }) => Some(Heard::Completed(cqe.status())),
            Some(other) => panic!("{other:?}"),
            None => None,
        };
        queue.pending = input.to_vec();
        match heard {
            Some(heard) => return heard,
            None => assert!(queue.receive(), "the target closed the connection"),
        }
    }
}

/// Returns the target's request for the data of a write.
pub fn wanted(queue: &mut Queue) -> Grant {
    match hear(queue) {
        Heard::Wanted(grant) => grant,
        Heard::Completed(status) => {
            panic!("a response with {status:?} arrived before the data was sent")
        }
    }
}

/// Returns the status of the next command to complete.
pub fn status(queue: &mut Queue) -> Status {
    match hear(queue) {
        Heard::Completed(status) => status,
        Heard::Wanted(grant) => panic!("the target requests the data again: {grant:?}"),
    }
}

/// Sends the requested data of a write.
pub fn give(queue: &mut Queue, mut grant: Grant, data: &[u8]) {
    let mut out = Vec::new();
    while let Some(range) = queue.end.data_header(&mut grant, &mut out) {
        out.extend_from_slice(&data[range]);
    }
    queue.stream.write_all(&out).expect("sent");
}

pub fn reserve(queue: &mut Queue, opcode: NvmOpcode, control: ReservationControl, keys: [u64; 2]) {
    assert_eq!(reservation(queue, opcode, control, &keys), Status::SUCCESS);
}
