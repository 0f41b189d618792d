//! [`Spread`]: several queues into one namespace, used in turn by one thread.

use farblock_block::{BlockError, Completion, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId, TaskMap};

/// A job's queues. Only those that something happened to are polled, so that idle ones cost
/// nothing.
pub(crate) struct Spread {
    queues: Vec<Member>,
    by_task: TaskMap<usize>,
    /// Members to be polled, each once.
    dirty: Vec<usize>,
    /// Takes the next operation.
    next: usize,
}

struct Member {
    queue: Box<dyn Queue>,
    dirty: bool,
}

impl Spread {
    /// Opens `count` queues (at least one) on the reactor, each with a task of its own.
    pub(crate) fn open(
        namespace: &dyn Namespace,
        reactor: &Reactor,
        count: u32,
    ) -> Result<Spread, BlockError> {
        let mut spread = Spread {
            queues: Vec::new(),
            by_task: TaskMap::default(),
            dirty: Vec::with_capacity(count as usize),
            next: 0,
        };
        for index in 0..count.max(1) as usize {
            let task = reactor.add_task();
            let queue = namespace.open(reactor, task)?;
            spread.queues.push(Member { queue, dirty: false });
            spread.by_task.insert(task, index);
        }
        Ok(spread)
    }

    /// Hands an operation to the next queue.
    pub(crate) fn submit(&mut self, op: Op) {
        let index = self.next;
        self.next = (index + 1) % self.queues.len();
        self.queues[index].queue.submit(op);
        self.mark(index);
    }

    /// A task of the reactor is ready.
    pub(crate) fn ready(&mut self, task: TaskId) {
        if let Some(&index) = self.by_task.get(task) {
            self.mark(index);
        }
    }

    /// Appends everything that has completed.
    pub(crate) fn poll(&mut self, done: &mut Vec<Completion>) {
        for index in self.dirty.drain(..) {
            let member = &mut self.queues[index];
            member.dirty = false;
            member.queue.poll(done);
        }
    }

    fn mark(&mut self, index: usize) {
        if !std::mem::replace(&mut self.queues[index].dirty, true) {
            self.dirty.push(index);
        }
    }
}
