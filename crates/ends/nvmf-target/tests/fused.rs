//! Fused Compare and Write over TCP, as clustered file systems use it for locks. Hosts share a
//! counter, and abort pairs.

mod rig;

use farblock_backends::mem::Mem;
use farblock_block::{
    BlockError, Command as Operation, Completion, Geometry, Namespace, Op, Queue as BlockQueue,
};
use farblock_proto::tcp::host_end::{Event, Transfer};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_reactor::{EngineKind, Reactor, TaskId};
use farblock_wire::opcode::{AdminOpcode, NvmOpcode};
use farblock_wire::{SglDescriptor, Sqe, Status};
use rig::gate::Gate;
use rig::scripted::{self, BLOCK, Queue, admin_of, blocks, io_of, read, target, target_of};
use rig::until;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const LBA: u64 = 17;
const ROUNDS: u32 = 100;

fn block(value: u32) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..4].copy_from_slice(&value.to_le_bytes());
    block
}

/// Sends a fused pair. Returns the statuses of both halves.
fn fused(queue: &mut Queue, old: u32, new: u32) -> [Status; 2] {
    scripted::fused(queue, LBA, &block(old), &block(new))
}

fn value(queue: &mut Queue) -> u32 {
    value_at(queue, LBA)
}

fn value_at(queue: &mut Queue, lba: u64) -> u32 {
    let data = read(queue, lba, BLOCK as u32).data;
    u32::from_le_bytes(data[..4].try_into().expect("four bytes"))
}

/// Runs `hosts` hosts. Each host increments the counter a given number of times.
fn count(hosts: u8, engine: EngineKind, digests: Digests) {
    let target = target(engine, |_| ());
    let address = target.addresses()[0];
    let differs = [Status::COMPARE_FAILURE.with_dnr(), Status::ABORTED_FAILED_FUSED];
    thread::scope(|scope| {
        for host in 0..hosts {
            scope.spawn(move || {
                let (_admin, controller) = admin_of([host; 16], address, digests);
                let mut queue = io_of([host; 16], address, digests, controller, true);
                let mut made = 0;
                while made < ROUNDS {
                    let value = value(&mut queue);
                    match fused(&mut queue, value, value + 1) {
                        [Status::SUCCESS, Status::SUCCESS] => made += 1,
                        lost => assert_eq!(lost, differs),
                    }
                }
            });
        }
    });
    let (_admin, controller) = admin_of([99; 16], address, digests);
    let mut queue = io_of([99; 16], address, digests, controller, true);
    assert_eq!(value(&mut queue), ROUNDS * u32::from(hosts));
}

#[test]
fn fused_increments_of_two_hosts_lose_no_count() {
    count(2, EngineKind::Auto, Digests::new(true, true));
}

#[test]
fn fused_increments_of_five_hosts_lose_no_count_on_the_portable_engine() {
    count(5, EngineKind::Portable, Digests::NONE);
}

/// Sends a command of one block with its data, if any, without waiting for the response.
fn send(queue: &mut Queue, slot: u16, sqe: Sqe, data: &[u8]) {
    let mut out = Vec::new();
    let length = data.len() as u32;
    let transfer = if data.is_empty() { Transfer::None } else { Transfer::InCapsule(length) };
    queue.end.submit(SlotId(slot), &sqe, transfer, &mut out);
    out.extend_from_slice(data);
    queue.stream.write_all(&out).expect("sent");
}

fn send_pair(queue: &mut Queue, slots: [u16; 2], lba: u64, [old, new]: [u32; 2]) {
    let pair = [(NvmOpcode::COMPARE, 1, old), (NvmOpcode::WRITE, 2, new)];
    for (slot, (opcode, fuse, value)) in slots.into_iter().zip(pair) {
        let mut sqe = blocks(opcode.0, lba, 1, SglDescriptor::in_capsule(0, BLOCK as u32));
        sqe.flags |= fuse;
        send(queue, slot, sqe, &block(value));
    }
}

/// Returns the statuses of the next `count` commands to complete, by slot.
fn statuses(queue: &mut Queue, count: usize) -> BTreeMap<u16, Status> {
    let mut statuses = BTreeMap::new();
    loop {
        let pending = std::mem::take(&mut queue.pending);
        let mut input = &pending[..];
        while let Some(event) = queue.end.next(&mut input).expect("well formed") {
            if let Event::Completed { slot, cqe, .. } = event {
                assert_eq!(statuses.insert(slot.0, cqe.status()), None);
            }
        }
        queue.pending = input.to_vec();
        if statuses.len() >= count {
            return statuses;
        }
        assert!(queue.receive(), "the connection closed before the answers");
    }
}

/// A disk that stops the target's core at each read of block [`STALLED`]. Meanwhile several events
/// arrive, which the core then handles in one tick.
struct Stall {
    inner: Arc<dyn Namespace>,
    /// A barrier for the core and the test: they wait for each other when the core has stopped, and
    /// when it may continue.
    turn: Arc<Barrier>,
}

const STALLED: u64 = 99;

impl Namespace for Stall {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn BlockQueue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        Ok(Box::new(StallQueue { inner, turn: Arc::clone(&self.turn) }))
    }
}

struct StallQueue {
    inner: Box<dyn BlockQueue>,
    turn: Arc<Barrier>,
}

impl BlockQueue for StallQueue {
    fn submit(&mut self, op: Op) {
        if op.command == Operation::Read && op.lba == STALLED {
            self.turn.wait();
            self.turn.wait();
        }
        self.inner.submit(op);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

/// In one tick of the core, two pairs are aborted and the next pair takes their slots. The new pair
/// must claim its own blocks, and not start with the claim of an aborted pair.
#[test]
fn a_fused_pair_in_the_slots_of_aborted_ones_claims_its_own_blocks() {
    for engine in rig::engines() {
        let disk = Arc::new(Mem::new(BLOCK as u32, 1 << 20).expect("a size"));
        let writes = Arc::new(Gate::of(Operation::Write, disk));
        let reads = Arc::new(Gate::of(Operation::Read, Arc::clone(&writes) as Arc<dyn Namespace>));
        let turn = Arc::new(Barrier::new(2));
        let inner = Arc::clone(&reads) as Arc<dyn Namespace>;
        let stall = Arc::new(Stall { inner, turn: Arc::clone(&turn) });
        let target = target_of(engine, [stall as Arc<dyn Namespace>], |_| ());
        let address = target.addresses()[0];
        let host = |id: u8| {
            let (admin, controller) = admin_of([id; 16], address, Digests::NONE);
            (admin, io_of([id; 16], address, Digests::NONE, controller, true))
        };
        let ((mut admin, mut one), (_admin, mut other)) = (host(1), host(2));
        let in_capsule = SglDescriptor::in_capsule(0, BLOCK as u32);
        let write = |lba: u64| blocks(NvmOpcode::WRITE.0, lba, 1, in_capsule);
        let flush = Sqe::new(NvmOpcode::FLUSH.0, 0, u32::MAX);
        writes.keep(1);
        send(&mut other, 1, write(6), &block(1));
        until("the write is held", || writes.kept() == 1);
        // The first pair waits for the held write. The second pair waits for the first.
        send_pair(&mut one, [1, 2], 6, [0, 2]);
        send_pair(&mut one, [3, 4], 8, [0, 2]);
        assert_eq!(one.run(flush, Transfer::None, &[]).status, Status::SUCCESS);
        let dptr = SglDescriptor::transport(BLOCK as u32);
        let mut out = Vec::new();
        let sqe = blocks(NvmOpcode::READ.0, STALLED, 1, dptr);
        one.end.submit(SlotId(5), &sqe, Transfer::FromController(BLOCK as u32), &mut out);
        one.stream.write_all(&out).expect("sent");
        turn.wait();
        // The free slots are a stack. So the new Compare uses the slot of the aborted Compare, and
        // the new Write the slot of the aborted Write.
        for (slot, cid) in [(1, 2), (2, 3_u32)] {
            let sqe = Sqe::new(AdminOpcode::ABORT.0, 0, 0);
            let cdw10 = 1 | cid << 16;
            send(&mut admin, slot, Sqe { cdw10: cdw10.into(), ..sqe }, &[]);
        }
        send_pair(&mut one, [6, 7], 7, [0, 2]);
        reads.keep_at(7);
        // Sleep, since no event shows when the messages and bytes for the stopped core have
        // arrived.
        thread::sleep(Duration::from_millis(100));
        turn.wait();
        let ended = statuses(&mut one, 5);
        assert_eq!(ended.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!((ended[&2], ended[&3]), (Status::ABORT_REQUESTED, Status::ABORT_REQUESTED));
        writes.open_up();
        until("the new pair reads", || reads.kept() == 1);
        send(&mut other, 2, write(7), &block(3));
        let elsewhere = other.run(write(20), Transfer::InCapsule(BLOCK as u32), &block(3));
        assert_eq!(elsewhere.status, Status::SUCCESS);
        reads.open_up();
        assert!(statuses(&mut one, 2).values().all(|status| status.is_success()));
        let left = 2 - other.told.len();
        assert!(statuses(&mut other, left).values().all(|status| status.is_success()));
        assert_eq!(value_at(&mut one, 7), 3, "{engine:?}: a fused write overtook the pair");
    }
}
