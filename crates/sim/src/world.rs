//! Host, pipes, target, disk and clock; and the model that says what a read may give.
//!
//! The model keeps, for every block, the set of contents that it may have: one, as a rule. A write
//! in flight adds its content; its completion makes that the only one. A write whose connection was
//! cut stays possible, since it may still be on its way to the disk: until a later write of the
//! same block is acknowledged *after* the disk can have nothing older left to do.

use crate::host::{Done, Queue};
use crate::pipe::Pipe;
use crate::random::Random;
use crate::target::{BLOCK_BYTES, BLOCKS, NQN, Target};
use farblock_proto::host::command::{self, Identity};
use farblock_proto::host::{Bringup, Parameters, Step};
use farblock_proto::tcp::{Digests, SlotId};
use farblock_proto::time::Instant;
use farblock_wire::{IntoBytes, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Commands in flight on the I/O queue.
const DEPTH: u16 = 16;
/// Most blocks of one operation.
const MAX_BLOCKS: u64 = 12;

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Longest delay of a piece of a stream.
    pub network_delay: Duration,
    /// Longest time of an operation of the disk.
    pub disk_delay: Duration,
    /// A connection is cut once in so many steps; 0: never.
    pub cut_one_in: u64,
    /// Digests that the host asks for.
    pub digests: Digests,
}

/// A connection: a host's queue, and a pipe in each direction.
struct Link {
    id: u64,
    queue: Queue,
    up: Pipe,
    down: Pipe,
}

/// An operation in flight.
#[derive(Clone, Debug)]
enum Operation {
    Read { lba: u64, blocks: u64, possible: Vec<BTreeSet<u64>> },
    Write { lba: u64, content: Vec<u64> },
    Flush,
}

/// See the module's text.
pub struct World {
    random: Random,
    now: Instant,
    faults: Faults,
    target: Target,
    next_link: u64,
    /// For every block, what it may hold: 0 is zeroes, others are the number of a write.
    possible: Vec<BTreeSet<u64>>,
    next_content: u64,
    /// Operations that completed.
    pub completed: u64,
    /// Times that the host connected.
    pub connects: u64,
}

impl World {
    /// A world that is a function of `seed`.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            random: Random::new(seed),
            now: Instant(0),
            faults,
            target: Target::new(seed ^ 0x5eed, faults.disk_delay),
            next_link: 0,
            possible: vec![BTreeSet::from([0]); BLOCKS as usize],
            next_content: 1,
            completed: 0,
            connects: 0,
        }
    }

    /// Runs until `operations` completed, over as many connections as the faults make it.
    ///
    /// # Panics
    /// When a read gives what it may not, a command fails, or nothing happens any more.
    pub fn run(&mut self, operations: u64) {
        while self.completed < operations {
            if let Some((mut admin, mut io)) = self.bring_up() {
                self.connects += 1;
                self.load(&mut admin, &mut io, operations);
                self.target.cut(io.id);
                self.target.cut(admin.id);
            }
        }
        self.settle_disk();
        assert_eq!(self.target.controllers(), 0, "closed controllers are forgotten");
    }

    /// Lets the disk finish what it was given.
    fn settle_disk(&mut self) {
        while let Some(at) = self.target.next_deadline() {
            self.now = self.now.max(at);
            self.target.tick(self.now);
        }
    }

    fn connect(&mut self) -> Link {
        let id = self.next_link;
        self.next_link += 1;
        self.target.accept(id);
        let queue = Queue::new(self.faults.digests, DEPTH);
        Link { id, queue, up: Pipe::default(), down: Pipe::default() }
    }

    /// Connects an admin queue and an I/O queue; `None` when a cut came between.
    fn bring_up(&mut self) -> Option<(Link, Link)> {
        let identity = Identity {
            hostid: [9; 16],
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:99999999-9999-4999-8999-999999999999",
            subnqn: NQN,
        };
        let parameters = Parameters {
            admin_sqsize_z: 31,
            keep_alive: Duration::from_secs(5),
            queues: 1,
            events: farblock_wire::features::AsyncEventConfig(0),
        };
        let mut bringup = Bringup::new(parameters, &identity);
        let mut admin = self.connect();
        let info = loop {
            match bringup.step() {
                Step::Ready(info) => break info,
                Step::Wait(pause) => {
                    self.now = self.now.saturating_add(pause);
                    bringup.handle_waited();
                }
                Step::Command(command, data) => {
                    let done = self.execute(&mut admin, &command, data)?;
                    bringup.handle_completion(&done.cqe, &done.data).expect("it is brought up");
                }
            }
        };
        assert_eq!(info.in_capsule_bytes, farblock_proto::limits::IN_CAPSULE_BYTES);
        let mut io = self.connect();
        let data = command::connect_data(&identity, Some(info.cntlid)).as_bytes().to_vec();
        let done = self.execute(&mut io, &command::connect(1, DEPTH - 1, 0), data)?;
        assert_eq!(done.cqe.status(), Status::SUCCESS);
        Some((admin, io))
    }

    /// One command alone on a queue.
    fn execute(
        &mut self,
        link: &mut Link,
        command: &command::Command,
        data: Vec<u8>,
    ) -> Option<Done> {
        let mut data = Some(data);
        loop {
            if link.queue.initialized
                && let Some(data) = data.take()
            {
                link.queue.submit(command, data).expect("nothing else is in flight");
            }
            if let Some(done) = self.step(&mut [&mut *link])?.pop() {
                return Some(done.1);
            }
        }
    }

    /// Moves bytes and time on by one event. `None` when a connection was cut.
    fn step(&mut self, links: &mut [&mut Link]) -> Option<Vec<(u64, Done)>> {
        if self.random.one_in(self.faults.cut_one_in) {
            return None;
        }
        let delay = self.faults.network_delay;
        for link in links.iter_mut() {
            let up = std::mem::take(&mut link.queue.out);
            link.up.send(&up, self.now, delay, &mut self.random);
            let down = self.target.take_output(link.id);
            link.down.send(&down, self.now, delay, &mut self.random);
        }
        let arrivals =
            links.iter().flat_map(|link| [link.up.next_arrival(), link.down.next_arrival()]);
        let next = arrivals.chain([self.target.next_deadline()]).flatten().min();
        self.now = self.now.max(next.expect("something is always on its way"));
        self.target.tick(self.now);
        let mut done = Vec::new();
        for link in links.iter_mut() {
            let up = link.up.receive(self.now);
            self.target.feed(link.id, &up, self.now);
            let down = link.down.receive(self.now);
            let finished = link.queue.feed(&down)?;
            done.extend(finished.into_iter().map(|finished| (link.id, finished)));
            let quiet = link.down.next_arrival().is_none();
            if quiet && !self.target.is_open(link.id) {
                return None;
            }
        }
        Some(done)
    }

    /// Random operations on the I/O queue until enough completed or a connection is cut.
    fn load(&mut self, admin: &mut Link, io: &mut Link, operations: u64) {
        let mut flying: BTreeMap<SlotId, Operation> = BTreeMap::new();
        let mut keep_alive_due = self.now.saturating_add(Duration::from_secs(2));
        while self.completed < operations || !flying.is_empty() {
            if self.completed < operations {
                self.submit_some(io, &mut flying);
            }
            if self.now >= keep_alive_due {
                keep_alive_due = self.now.saturating_add(Duration::from_secs(2));
                admin.queue.submit(&command::keep_alive(), Vec::new());
            }
            let Some(done) = self.step(&mut [&mut *admin, &mut *io]) else { break };
            for (link, done) in done {
                assert_eq!(done.cqe.status(), Status::SUCCESS, "nothing is wrong with the command");
                if link == io.id {
                    let operation = flying.remove(&done.slot).expect("it was submitted");
                    self.complete(operation, &done.data);
                }
            }
        }
        // What was in flight at a cut stays possible; the disk may still do it, late. A host that
        // reconnects waits until the old controller is gone, which is when its operations are done.
        self.settle_disk();
    }

    fn submit_some(&mut self, io: &mut Link, flying: &mut BTreeMap<SlotId, Operation>) {
        for _ in 0..self.random.below(4) {
            if flying.len() >= usize::from(DEPTH) - 1 {
                return;
            }
            let blocks = 1 + self.random.below(MAX_BLOCKS);
            let lba = self.random.below(BLOCKS - blocks + 1);
            // Overlapping operations in flight have no order; the model does without them.
            if flying.values().any(|operation| operation.overlaps(lba, blocks)) {
                continue;
            }
            let (operation, command, data) = self.choose(lba, blocks);
            let slot = io.queue.submit(&command, data).expect("there is room");
            flying.insert(slot, operation);
        }
    }

    fn choose(&mut self, lba: u64, blocks: u64) -> (Operation, command::Command, Vec<u8>) {
        let bytes = blocks as u32 * BLOCK_BYTES;
        let range = lba as usize..(lba + blocks) as usize;
        match self.random.below(10) {
            0..=3 => {
                let possible = self.possible[range].to_vec();
                let operation = Operation::Read { lba, blocks, possible };
                (operation, command::read(1, lba, blocks as u32, bytes), Vec::new())
            }
            4 => (Operation::Flush, command::flush(1), Vec::new()),
            5 => {
                let content = vec![0; blocks as usize];
                self.may_become(lba, &content);
                let command = command::write_zeroes(1, lba, blocks as u32, true, false);
                (Operation::Write { lba, content }, command, Vec::new())
            }
            _ => {
                let first = self.next_content;
                self.next_content += blocks;
                let content: Vec<u64> = (first..first + blocks).collect();
                self.may_become(lba, &content);
                let data = content.iter().flat_map(|&number| block(number)).collect();
                let command = command::write(1, lba, blocks as u32, bytes, first.is_multiple_of(5));
                (Operation::Write { lba, content }, command, data)
            }
        }
    }

    fn may_become(&mut self, lba: u64, content: &[u64]) {
        for (possible, &number) in self.possible[lba as usize..].iter_mut().zip(content) {
            possible.insert(number);
        }
    }

    fn complete(&mut self, operation: Operation, data: &[u8]) {
        self.completed += 1;
        match operation {
            Operation::Flush => {}
            Operation::Write { lba, content } => {
                for (possible, number) in self.possible[lba as usize..].iter_mut().zip(content) {
                    *possible = BTreeSet::from([number]);
                }
            }
            Operation::Read { lba, blocks, possible } => {
                assert_eq!(data.len() as u64, blocks * u64::from(BLOCK_BYTES));
                let pieces = data.chunks(BLOCK_BYTES as usize);
                for (index, (piece, possible)) in pieces.zip(possible).enumerate() {
                    let found = content_of(piece);
                    let fits = found.is_some_and(|number| possible.contains(&number));
                    assert!(fits, "block {} holds {found:?}", lba + index as u64);
                    // What was read once is what it is.
                    let now = &mut self.possible[lba as usize + index];
                    *now = found.into_iter().collect();
                }
            }
        }
    }
}

impl Operation {
    fn overlaps(&self, lba: u64, blocks: u64) -> bool {
        let (start, length) = match self {
            Self::Read { lba, blocks, .. } => (*lba, *blocks),
            Self::Write { lba, content } => (*lba, content.len() as u64),
            Self::Flush => return false,
        };
        lba < start + length && start < lba + blocks
    }
}

/// The bytes of a block with this content.
fn block(number: u64) -> Vec<u8> {
    let bytes = (0..u64::from(BLOCK_BYTES) / 8).map(|word| match word {
        0 => number,
        _ if number == 0 => 0,
        _ => Random::new(number ^ word << 48).bits(),
    });
    bytes.flat_map(u64::to_le_bytes).collect()
}

/// The content that these bytes are; `None` if they are a mixture.
fn content_of(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes[..8].try_into().expect("a block"));
    (bytes == block(number)).then_some(number)
}
