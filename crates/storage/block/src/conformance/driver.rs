//! A reactor with queues. The driver polls until operations complete, with a time limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farblock_reactor::{Buffer, Config, EngineKind, Reactor, TaskId};

use super::WAIT_LIMIT;
use crate::{BlockError, Completion, Geometry, Namespace, Op, Queue};

/// A reactor with any number of queues, for tests.
pub struct Driver {
    // Keep this field first: dropping a queue may deregister it from the reactor.
    queues: Vec<Option<Box<dyn Queue>>>,
    reactor: Reactor,
    task: TaskId,
    ready: Vec<TaskId>,
}

impl Driver {
    /// Creates a reactor without queues.
    pub fn new(engine: EngineKind) -> Driver {
        let config = Config { engine, ..Config::default() };
        let reactor = Reactor::new(&config).expect("the reactor starts");
        let right = engine == EngineKind::Auto || reactor.engine() == engine;
        assert!(right, "the engine is {} instead of {engine}", reactor.engine());
        let task = reactor.add_task();
        Driver { queues: Vec::new(), reactor, task, ready: Vec::new() }
    }

    /// Creates a reactor with one queue, which has number 0.
    pub fn with(namespace: &Arc<dyn Namespace>, engine: EngineKind) -> Driver {
        let mut driver = Driver::new(engine);
        driver.open(namespace);
        driver
    }

    /// Opens a queue and returns its number.
    pub fn open(&mut self, namespace: &Arc<dyn Namespace>) -> usize {
        self.try_open(namespace).expect("the queue opens")
    }

    /// Opens a queue and returns its number, or the namespace's error.
    pub fn try_open(&mut self, namespace: &Arc<dyn Namespace>) -> Result<usize, BlockError> {
        let queue = namespace.open(&self.reactor, self.task)?;
        self.queues.push(Some(queue));
        Ok(self.queues.len() - 1)
    }

    /// Drops a queue with its operations in flight. Its number is not reused.
    pub fn close(&mut self, queue: usize) {
        self.queues[queue] = None;
    }

    /// Returns the reactor of the queues.
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Returns the task that becomes ready when operations complete.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// Returns the queue with this number. Panics if the queue is closed.
    pub fn queue(&mut self, queue: usize) -> &mut dyn Queue {
        self.queues[queue].as_mut().expect("the queue is closed").as_mut()
    }

    /// Submits an operation to a queue.
    pub fn submit(&mut self, queue: usize, op: Op) {
        self.queue(queue).submit(op);
    }

    /// Waits for `count` completions on a queue and returns exactly that many. Panics if this takes
    /// longer than [`WAIT_LIMIT`].
    pub fn wait(&mut self, queue: usize, count: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        self.wait_until(queue, count, &mut done);
        assert_eq!(
            done.len(),
            count,
            "the number of completions differs from the number of operations: {done:?}"
        );
        done
    }

    /// Waits for at least one completion on a queue.
    pub fn wait_some(&mut self, queue: usize) -> Vec<Completion> {
        let mut done = Vec::new();
        self.wait_until(queue, 1, &mut done);
        done
    }

    fn wait_until(&mut self, queue: usize, count: usize, done: &mut Vec<Completion>) {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            self.queue(queue).poll(done);
            if done.len() >= count {
                return;
            }
            let missing = count - done.len();
            assert!(
                Instant::now() < deadline,
                "{missing} of {count} operations did not complete in {WAIT_LIMIT:?}, or the queue \
                 did not make its parent task ready"
            );
            self.turn(deadline.saturating_duration_since(Instant::now()));
        }
    }

    /// Submits an operation to a queue without other operations in flight, and waits for it.
    pub fn run(&mut self, queue: usize, op: Op) -> Completion {
        self.submit(queue, op);
        self.wait(queue, 1).pop().expect("one completion")
    }

    /// Like [`run`](Self::run), but panics on any error. Returns the buffer.
    #[track_caller]
    pub fn must(&mut self, queue: usize, op: Op) -> Option<Buffer> {
        let what = format!("{op:?}");
        let done = self.run(queue, op);
        assert_eq!(done.result, Ok(()), "{what}");
        done.buffer
    }

    /// Like [`run`](Self::run), but panics unless the operation fails with `error`.
    #[track_caller]
    pub fn must_fail(&mut self, queue: usize, op: Op, error: BlockError) {
        let what = format!("{op:?}");
        let done = self.run(queue, op);
        assert_eq!(done.result, Err(error), "{what}");
    }

    /// Reads a range, in as few operations as the namespace allows. Panics on any error.
    #[track_caller]
    pub fn read(&mut self, queue: usize, geometry: Geometry, lba: u64, blocks: u32) -> Vec<u8> {
        let mut data = Vec::new();
        let end = lba + u64::from(blocks);
        let mut lba = lba;
        while lba < end {
            let blocks = at_once(geometry, (end - lba) as u32);
            let mut buffer = Buffer::new(geometry.bytes(blocks));
            buffer.fill(0xa5); // A read that does nothing must not look like zeroes.
            let read = self.must(queue, Op::read(lba, blocks, buffer, 0));
            data.extend_from_slice(&read.expect("a read returns its buffer"));
            lba += u64::from(blocks);
        }
        data
    }

    /// Writes a range, in as few operations as the namespace allows. Panics on any error.
    #[track_caller]
    pub fn write(&mut self, queue: usize, geometry: Geometry, lba: u64, data: &[u8]) {
        let (mut lba, mut rest) = (lba, data);
        while !rest.is_empty() {
            let blocks = (rest.len() / geometry.block_size as usize) as u32;
            let blocks = at_once(geometry, blocks);
            let mut buffer = Buffer::new(geometry.bytes(blocks));
            let (now, later) = rest.split_at(buffer.len());
            buffer.copy_from_slice(now);
            self.must(queue, Op::write(lba, blocks, buffer, 0));
            (lba, rest) = (lba + u64::from(blocks), later);
        }
    }

    /// Keeps `depth` operations with buffers of `bytes` bytes in flight on queue 0 until `total`
    /// operations have completed. Panics if an operation fails. Returns the increase of `count()`,
    /// such as a count of allocations, during this time. The driver allocates its own memory before
    /// it first calls `count()`.
    pub fn keep_busy(
        &mut self,
        make: &dyn Fn(Buffer, u64) -> Op,
        depth: usize,
        bytes: usize,
        total: u64,
        count: &dyn Fn() -> u64,
    ) -> u64 {
        let mut done = Vec::with_capacity(2 * depth);
        let mut free: Vec<Buffer> = (0..depth).map(|_| Buffer::new(bytes)).collect();
        let before = count();
        let (mut submitted, mut completed) = (0, 0);
        while completed < total {
            while submitted < total
                && let Some(buffer) = free.pop()
            {
                self.queue(0).submit(make(buffer, submitted));
                submitted += 1;
            }
            self.queue(0).poll(&mut done);
            for done in done.drain(..) {
                assert_eq!(done.result, Ok(()));
                free.extend(done.buffer);
                completed += 1;
            }
            if completed < total && (free.is_empty() || submitted == total) {
                self.turn(Duration::from_secs(10));
            }
        }
        count() - before
    }

    /// Runs the event loop once, until a task is ready or `timeout` has passed. If a queue does not
    /// make its parent task ready, the driver reaches its time limit.
    pub fn turn(&mut self, timeout: Duration) {
        self.reactor.poll(Some(timeout), &mut self.ready).expect("the event loop works");
        for task in self.ready.drain(..) {
            assert!(task == self.task, "the queue made another task ready");
        }
    }
}

/// Returns the smaller of `blocks` and the largest number of blocks in one operation.
pub(super) fn at_once(geometry: Geometry, blocks: u32) -> u32 {
    match geometry.max_blocks {
        0 => blocks,
        limit => blocks.min(limit),
    }
}
