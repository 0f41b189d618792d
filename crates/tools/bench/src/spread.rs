//! [`Spread`]: several queues of one namespace, which one thread fills.
//!
//! The first operations go to the queues in turn. After that, each new operation replaces the
//! oldest completed one, on the same queue. A fio job does the same for its files. So every
//! connection keeps its share of the depth, and operations that complete together are sent
//! together. SPDK's perf gives each operation to the next queue pair instead, so its operations are
//! never sent together.

use farblock_block::{BlockError, Completion, Namespace, Op, Queue};
use farblock_reactor::{Reactor, TaskId, TaskMap};
use std::collections::VecDeque;

/// The queues of a job. The job polls only queues with events, so that idle queues cost nothing.
pub(crate) struct Spread {
    queues: Vec<Member>,
    by_task: TaskMap<usize>,
    /// The indexes of the queues to poll, each once.
    dirty: Vec<usize>,
    /// For each completion that no new operation has replaced yet, the index of its queue. The
    /// oldest completion is first.
    refill: VecDeque<usize>,
    /// The index of the queue for the next operation, if there is no completion to replace.
    next: usize,
}

struct Member {
    queue: Box<dyn Queue>,
    dirty: bool,
}

impl Spread {
    /// Opens `count` queues (at least one) on the reactor. Each queue has its own task.
    pub(crate) fn open(
        namespace: &dyn Namespace,
        reactor: &Reactor,
        count: u32,
    ) -> Result<Spread, BlockError> {
        let mut spread = Spread {
            queues: Vec::new(),
            by_task: TaskMap::default(),
            dirty: Vec::with_capacity(count as usize),
            refill: VecDeque::new(),
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

    /// Submits an operation to the queue with the oldest completion, or to the next queue.
    pub(crate) fn submit(&mut self, op: Op) {
        let index = self.refill.pop_front().unwrap_or_else(|| {
            let index = self.next;
            self.next = (index + 1) % self.queues.len();
            index
        });
        self.queues[index].queue.submit(op);
        self.mark(index);
    }

    /// Registers that the task of a queue is ready.
    pub(crate) fn ready(&mut self, task: TaskId) {
        if let Some(&index) = self.by_task.get(task) {
            self.mark(index);
        }
    }

    pub(crate) fn poll(&mut self, done: &mut Vec<Completion>) {
        for index in self.dirty.drain(..) {
            let member = &mut self.queues[index];
            member.dirty = false;
            let before = done.len();
            member.queue.poll(done);
            self.refill.extend(std::iter::repeat_n(index, done.len() - before));
        }
    }

    fn mark(&mut self, index: usize) {
        if !std::mem::replace(&mut self.queues[index].dirty, true) {
            self.dirty.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_backends::null::Null;
    use farblock_reactor::Config;
    use std::time::Duration;

    /// Polls until there are `count` completions.
    fn complete(spread: &mut Spread, reactor: &Reactor, count: usize) -> Vec<Completion> {
        let (mut ready, mut done) = (Vec::new(), Vec::new());
        while done.len() < count {
            spread.poll(&mut done);
            // This disk completes at once, so the loop need not wait.
            reactor.poll(Some(Duration::ZERO), &mut ready).expect("the event loop works");
            ready.drain(..).for_each(|task| spread.ready(task));
        }
        done
    }

    #[test]
    fn a_completed_operation_is_replaced_on_its_own_queue() {
        let reactor = Reactor::new(&Config::default()).expect("the reactor starts");
        let namespace = Null::new(512, 1 << 20).expect("the size is valid");
        let mut spread = Spread::open(&namespace, &reactor, 3).expect("the queues open");
        let read = |token| Op::read(0, 1, reactor.buffers().take(512), token);
        (0..6).for_each(|token| spread.submit(read(token)));
        let done = complete(&mut spread, &reactor, 6);
        assert_eq!(done.len(), 6);
        let places: Vec<usize> = spread.refill.iter().copied().collect();
        let mut sorted = places.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 0, 1, 1, 2, 2], "the queues of the six operations");
        for (token, place) in places.into_iter().enumerate() {
            assert_eq!(spread.refill.front(), Some(&place));
            spread.submit(read(token as u64));
        }
        assert!(spread.refill.is_empty());
    }
}
