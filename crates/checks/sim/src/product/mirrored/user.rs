//! A user of a disk: submits operations, and checks reads against a [model](super::super::model).

use super::super::MOST_BLOCKS;
use super::super::model::{BLOCK_BYTES, BLOCKS, Model, Wish};
use farblock_block::{BlockError, Command, Completion, Namespace, Op, Queue};
use farblock_random::Random;
use farblock_reactor::sim::World;
use farblock_reactor::{Config, EngineKind, Reactor, TaskId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The maximum number of operations in flight.
const DEPTH: usize = 8;

/// A completed operation, and the result of its check.
pub(super) struct Ended {
    pub(super) token: u64,
    pub(super) result: Result<(), BlockError>,
    /// The difference, if a read returned wrong data.
    pub(super) wrong: Option<String>,
}

/// A user of a disk; see the [module](self).
pub(super) struct User<'a> {
    world: &'a World,
    // Declared before the reactor, so that the queue is dropped first.
    queue: Box<dyn Queue>,
    reactor: Reactor,
    ready: Vec<TaskId>,
    done: Vec<Completion>,
    model: Model,
    begun: BTreeMap<u64, Duration>,
}

impl<'a> User<'a> {
    pub(super) fn new(world: &'a World, disk: &dyn Namespace) -> User<'a> {
        let config = Config { engine: EngineKind::Sim, ..Config::default() };
        let reactor = Reactor::new(&config).expect("a loop");
        let queue = disk.open(&reactor, reactor.add_task()).expect("a queue");
        User {
            world,
            queue,
            reactor,
            ready: Vec::new(),
            done: Vec::new(),
            model: Model::default(),
            begun: BTreeMap::new(),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.model.in_flight()
    }

    /// Submits an operation, unless it conflicts with an operation in flight.
    pub(super) fn submit(&mut self, random: &mut Random) {
        let blocks = 1 + random.below(MOST_BLOCKS);
        let lba = random.below(BLOCKS - blocks + 1);
        let command = match random.below(20) {
            0..8 => Command::Read,
            8..10 => Command::Flush,
            10 => Command::WriteZeroes { deallocate: random.one_in(2) },
            _ => Command::Write,
        };
        let is_durable = command == Command::Write && random.one_in(4);
        let (lba, blocks) = if command == Command::Flush { (0, 0) } else { (lba, blocks) };
        let wish = Wish { command, lba, blocks, is_durable };
        if self.model.in_flight() < DEPTH && !self.model.overlaps(&wish) {
            self.start(&wish);
        }
    }

    pub(super) fn read(&mut self, lba: u64) {
        let blocks = MOST_BLOCKS.min(BLOCKS - lba);
        self.start(&Wish { command: Command::Read, lba, blocks, is_durable: false });
    }

    pub(super) fn write(&mut self, lba: u64) {
        self.start(&Wish { command: Command::Write, lba, blocks: 1, is_durable: false });
    }

    fn start(&mut self, wish: &Wish) {
        let (token, data) = self.model.submit(wish);
        self.begun.insert(token, self.world.elapsed());
        let Wish { command, lba, blocks, is_durable } = *wish;
        let buffer = command.moves_data().then(|| {
            let mut buffer = self.reactor.buffers().take(blocks as usize * BLOCK_BYTES);
            match command {
                Command::Write => buffer.copy_from_slice(&data),
                _ => buffer.fill(0xa5),
            }
            buffer
        });
        let op = Op::with(command, lba, blocks as u32, buffer, token);
        self.queue.submit(if is_durable { op.durable() } else { op });
    }

    /// Lets virtual time pass. Returns the completed operations.
    pub(super) fn turn(&mut self, wait: Duration) -> Vec<Ended> {
        self.queue.poll(&mut self.done);
        let wait = if self.done.is_empty() { wait } else { Duration::ZERO };
        self.reactor.poll(Some(wait), &mut self.ready).expect("the loop works");
        self.queue.poll(&mut self.done);
        let mut ended = Vec::new();
        for done in std::mem::take(&mut self.done) {
            let (token, result) = (done.token, done.result);
            let data = done.buffer.as_deref().unwrap_or_default();
            self.begun.remove(&token);
            let wrong = self.model.complete(token, result, data).err();
            ended.push(Ended { token, result, wrong });
            done.buffer.into_iter().for_each(|buffer| self.reactor.buffers().give(buffer));
        }
        ended
    }

    /// An operation that was submitted before `time`, and when it was submitted. `None` if there is
    /// none.
    pub(super) fn older_than(&self, time: Duration) -> Option<(u64, Duration)> {
        let mut begun = self.begun.iter();
        begun.find(|(_, begun)| **begun < time).map(|(token, begun)| (*token, *begun))
    }
}
