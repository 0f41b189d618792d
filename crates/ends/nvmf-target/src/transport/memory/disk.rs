//! A namespace behind a session in memory, for the conformance suite.

use super::Wire;
use super::peer::{Peer, key_of, place};
use crate::target::Target;
use farblock_block::{BlockError, Command, Completion, Geometry, Namespace, Op, Queue};
use farblock_proto::host::command;
use farblock_reactor::{Reactor, TaskId};
use farblock_wire::nvm::DsmRange;
use farblock_wire::{IntoBytes, Status};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// Entries of its queues: few, so that operations wait for one.
const DEPTH: u16 = 16;
/// What one command moves, in bytes.
const COMMAND_BYTES: u32 = 256 << 10;
/// Writes up to so many bytes go in capsules.
const CAPSULE_BYTES: usize = 8 << 10;

/// The namespace. Fields are dropped in this order.
pub(super) struct MemoryDisk {
    geometry: Geometry,
    controller: u16,
    queues: AtomicU16,
    _admin: Peer,
    target: Target,
}

impl MemoryDisk {
    pub(super) fn new(target: Target, geometry: Geometry) -> Self {
        let (admin, controller) = Peer::admin(&target);
        Self { geometry, controller, queues: AtomicU16::new(0), _admin: admin, target }
    }
}

impl Namespace for MemoryDisk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn describe(&self) -> String {
        "memory behind memory".to_owned()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let queue = self.queues.fetch_add(1, Ordering::Relaxed) + 1;
        let peer = Peer::io(&self.target, self.controller, queue, DEPTH);
        let task = reactor.add_child(parent);
        peer.wire.listen(reactor.waker(task));
        Ok(Box::new(MemoryQueue {
            geometry: self.geometry,
            wire: peer.wire,
            reactor: reactor.clone(),
            task,
            active: HashMap::new(),
            waiting: VecDeque::new(),
            in_flight: HashMap::new(),
            next: 0,
            done: Vec::new(),
        }))
    }
}

/// An operation that is not complete.
struct Active {
    op: Op,
    parts_left: u32,
    result: Result<(), BlockError>,
}

/// What one command does for an operation.
#[derive(Clone, Copy)]
struct Part {
    op: u32,
    first: u32,
    blocks: u32,
}

struct MemoryQueue {
    geometry: Geometry,
    wire: Arc<Wire>,
    reactor: Reactor,
    task: TaskId,
    active: HashMap<u32, Active>,
    waiting: VecDeque<Part>,
    in_flight: HashMap<u16, Part>,
    next: u32,
    done: Vec<Completion>,
}

impl MemoryQueue {
    fn issue(&mut self) {
        while self.in_flight.len() < usize::from(DEPTH) - 1
            && let Some(part) = self.waiting.pop_front()
        {
            let cid = (0..DEPTH).find(|cid| !self.in_flight.contains_key(cid));
            let cid = cid.expect("one is free");
            self.in_flight.insert(cid, part);
            let op = &self.active[&part.op].op;
            let (lba, blocks) = (op.lba + u64::from(part.first), part.blocks);
            let bytes = || blocks * self.geometry.block_size;
            let range = DsmRange::new(lba, blocks);
            let (command, data) = match op.command {
                Command::Read => (command::read(1, lba, blocks, bytes()), &[][..]),
                Command::Write => {
                    let start = self.geometry.bytes(part.first);
                    let data = &op.buffer.as_deref().expect("a write has one")[start..];
                    (command::write(1, lba, blocks, bytes(), op.fua), &data[..bytes() as usize])
                }
                Command::WriteZeroes { deallocate } => {
                    (command::write_zeroes(1, lba, blocks, deallocate, op.fua), &[][..])
                }
                Command::Deallocate => (command::deallocate(1, 1), range.as_bytes()),
                Command::Flush => (command::flush(1), &[][..]),
            };
            let sqe = place(&self.wire, &command, cid, data, data.len() <= CAPSULE_BYTES);
            self.wire.send(sqe, if sqe.dptr.is_in_capsule() { data } else { &[] });
        }
    }

    fn answered(&mut self, cid: u16, status: Status) {
        let part = self.in_flight.remove(&cid).expect("only what is in flight is answered");
        let memory = self.wire.deregister(key_of(cid)).map(|(memory, _)| memory);
        let active = self.active.get_mut(&part.op).expect("its parts are in flight");
        if active.op.command == Command::Read && status.is_success() {
            let start = self.geometry.bytes(part.first);
            let memory = memory.expect("it was registered");
            let buffer = active.op.buffer.as_deref_mut().expect("a read has one");
            buffer[start..start + memory.len()].copy_from_slice(&memory);
        }
        let result = match Status(status.code()) {
            Status::SUCCESS => Ok(()),
            Status::LBA_OUT_OF_RANGE => Err(BlockError::OutOfRange),
            _ => Err(BlockError::WriteFailed),
        };
        active.result = active.result.and(result);
        active.parts_left -= 1;
        if active.parts_left == 0 {
            let Active { op, result, .. } = self.active.remove(&part.op).expect("seen just now");
            self.done.push(op.complete(result));
        }
    }
}

impl Queue for MemoryQueue {
    fn submit(&mut self, op: Op) {
        let checked = op.check(&self.geometry);
        if checked.is_err() || op.blocks == 0 && op.command != Command::Flush {
            return self.done.push(op.complete(checked));
        }
        let most = match op.command {
            Command::Read | Command::Write => COMMAND_BYTES / self.geometry.block_size,
            Command::WriteZeroes { .. } => command::MAX_COMMAND_BLOCKS,
            Command::Deallocate | Command::Flush => u32::MAX,
        };
        let id = self.next;
        self.next += 1;
        let firsts = (0..op.blocks.max(1)).step_by(most as usize);
        let parts = firsts.map(|first| {
            let blocks = most.min(op.blocks - first);
            Part { op: id, first, blocks }
        });
        let before = self.waiting.len();
        self.waiting.extend(parts);
        let parts_left = (self.waiting.len() - before) as u32;
        self.active.insert(id, Active { op, parts_left, result: Ok(()) });
        self.issue();
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        for cqe in self.wire.take_answers() {
            self.answered(cqe.cid.get(), cqe.status());
        }
        if self.wire.is_closed() {
            let lost = self.active.drain();
            let lost = lost.map(|(_, active)| active.op.complete(Err(BlockError::Disconnected)));
            self.done.extend(lost);
            self.waiting.clear();
        } else {
            self.issue();
        }
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.active.len() + self.done.len()
    }
}

impl Drop for MemoryQueue {
    fn drop(&mut self) {
        self.wire.leave();
        for (_, active) in self.active.drain() {
            active.op.abandon();
        }
        self.reactor.remove_task(self.task);
    }
}
