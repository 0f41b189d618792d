//! [`Tasks`]: the mailboxes of tasks, the list of ready tasks, and their timers. All engines use
//! this module.

use std::time::Instant;

use crate::event::Event;
use crate::ids::TaskId;
use crate::slab::{Key, Slab};
use crate::timers::Timers;
use farblock_mem::BufferPool;

struct Task {
    /// The root task, which `poll` reports as ready instead of this one. `None`: this task is a
    /// root.
    root: Option<TaskId>,
    events: Vec<Event>,
    /// Whether the task is on the ready list (root tasks only).
    ready: bool,
}

/// All tasks of a reactor.
pub(crate) struct Tasks {
    slots: Slab<Task>,
    ready: Vec<TaskId>,
    timers: Timers,
    /// The number of bytes that streams and files have delivered so far, a measure of the load.
    arrived: u64,
}

impl Tasks {
    pub(crate) fn new() -> Tasks {
        Tasks { slots: Slab::new(), ready: Vec::new(), timers: Timers::default(), arrived: 0 }
    }

    /// Returns the number of bytes that streams and files have delivered so far, a measure of the
    /// load.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived
    }

    pub(crate) fn add(&mut self) -> TaskId {
        TaskId(self.slots.insert(Task { root: None, events: Vec::new(), ready: false }))
    }

    /// Adds a child task. If `parent` was removed, the child never gets events.
    pub(crate) fn add_child(&mut self, parent: TaskId) -> TaskId {
        let root = self.slots.find(parent.0).and_then(|task| task.root).unwrap_or(parent);
        TaskId(self.slots.insert(Task { root: Some(root), events: Vec::new(), ready: false }))
    }

    pub(crate) fn remove(&mut self, task: TaskId, pool: &BufferPool) {
        let Some(removed) = self.slots.remove(task.0) else { return };
        self.timers.set(task.0.index, None);
        if removed.ready {
            self.ready.retain(|&ready| ready != task);
        }
        removed.events.into_iter().for_each(|event| recycle(event, pool));
    }

    /// Puts an event into a task's mailbox. If the task or its root was removed, returns the
    /// event's buffers to the pool.
    pub(crate) fn deliver(&mut self, task: TaskId, event: Event, pool: &BufferPool) {
        if !self.mark_ready(task) {
            return recycle(event, pool);
        }
        self.arrived += arrived(&event) as u64;
        self.slots.find_mut(task.0).expect("mark_ready has found the task").events.push(event);
    }

    /// Marks a task's root as ready. Returns `false` if the task or its root was removed.
    pub(crate) fn mark_ready(&mut self, task: TaskId) -> bool {
        let Some(found) = self.slots.find_mut(task.0) else { return false };
        let root = found.root.unwrap_or(task);
        let Some(slot) = self.slots.find_mut(root.0) else { return false };
        if !slot.ready {
            slot.ready = true;
            self.ready.push(root);
        }
        true
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Moves the ready tasks to `ready`, each once.
    pub(crate) fn take_ready(&mut self, ready: &mut Vec<TaskId>) {
        for task in &self.ready {
            if let Some(slot) = self.slots.find_mut(task.0) {
                slot.ready = false;
            }
        }
        ready.append(&mut self.ready);
    }

    pub(crate) fn take_events(&mut self, task: TaskId, events: &mut Vec<Event>) {
        if let Some(slot) = self.slots.find_mut(task.0) {
            events.append(&mut slot.events);
        }
    }

    pub(crate) fn set_timer(&mut self, task: TaskId, deadline: Option<Instant>) {
        if self.slots.find(task.0).is_some() {
            self.timers.set(task.0.index, deadline);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Delivers [`Event::Timer`] to every task whose deadline has passed.
    pub(crate) fn expire_timers(&mut self, now: Instant, pool: &BufferPool) {
        while let Some(index) = self.timers.pop_expired(now) {
            let task = self.slots.at_mut(index).map(|(key, _): (Key, _)| TaskId(key));
            self.deliver(task.expect("removed tasks have no timer"), Event::Timer, pool);
        }
    }
}

/// Returns the number of bytes that an event delivers.
fn arrived(event: &Event) -> usize {
    match event {
        Event::Received { result: Ok(buffer), .. } => buffer.len(),
        Event::ReceivedInto { result: Ok(count), .. } => *count,
        Event::File { buffer: Some(buffer), .. } => buffer.len(),
        _ => 0,
    }
}

/// Drops an event that no task receives: returns its buffers to the pool, and closes its
/// connection.
fn recycle(event: Event, pool: &BufferPool) {
    match event {
        Event::Received { result: Ok(buffer), .. }
        | Event::ReceivedInto { buffer, .. }
        | Event::File { buffer: Some(buffer), .. } => pool.give(buffer),
        Event::Sent { mut batch, .. } => {
            batch.take_payloads().for_each(|(_, buffer)| pool.give(buffer));
        }
        Event::Received { result: Err(_), .. }
        | Event::File { buffer: None, .. }
        | Event::Accepted { .. }
        | Event::Connected { .. }
        | Event::Closed { .. }
        | Event::Timer => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ready(tasks: &mut Tasks) -> Vec<TaskId> {
        let mut ready = Vec::new();
        tasks.take_ready(&mut ready);
        ready
    }

    fn events(tasks: &mut Tasks, task: TaskId) -> usize {
        let mut events = Vec::new();
        tasks.take_events(task, &mut events);
        events.len()
    }

    #[test]
    fn events_of_children_make_their_root_ready_once() {
        let (mut tasks, pool) = (Tasks::new(), BufferPool::new());
        let root = tasks.add();
        let child = tasks.add_child(root);
        let grandchild = tasks.add_child(child);
        tasks.deliver(grandchild, Event::Timer, &pool);
        tasks.deliver(child, Event::Timer, &pool);
        tasks.mark_ready(root);
        assert_eq!(ready(&mut tasks), [root]);
        assert!(!tasks.has_ready());
        assert_eq!(events(&mut tasks, root), 0);
        assert_eq!(events(&mut tasks, child), 1);
        assert_eq!(events(&mut tasks, grandchild), 1);
    }

    #[test]
    fn removing_a_task_drops_its_events_and_recycles_buffers() {
        let (mut tasks, pool) = (Tasks::new(), BufferPool::new());
        let root = tasks.add();
        let child = tasks.add_child(root);
        let file = |pool: &BufferPool| Event::File {
            user_data: 1,
            buffer: Some(pool.take(4096)),
            result: Ok(()),
        };
        // Fill the pool first, because its first allocation may add several buffers to the count.
        pool.give(pool.take(4096));
        let all = pool.retained_bytes();
        let event = file(&pool);
        tasks.deliver(child, event, &pool);
        assert_eq!(pool.retained_bytes(), all - 4096);
        tasks.remove(child, &pool);
        assert_eq!(pool.retained_bytes(), all);
        let event = file(&pool);
        tasks.deliver(child, event, &pool);
        assert_eq!(pool.retained_bytes(), all);
        assert_eq!(ready(&mut tasks), [root]);
    }

    #[test]
    fn children_of_a_removed_root_get_no_events() {
        let (mut tasks, pool) = (Tasks::new(), BufferPool::new());
        let root = tasks.add();
        let child = tasks.add_child(root);
        tasks.mark_ready(child);
        tasks.remove(root, &pool);
        assert!(!tasks.has_ready());
        tasks.deliver(child, Event::Timer, &pool);
        let successor = tasks.add();
        assert!(!tasks.mark_ready(child));
        assert_eq!(events(&mut tasks, child) + events(&mut tasks, successor), 0);
        tasks.remove(child, &pool);
        tasks.remove(child, &pool);
    }

    #[test]
    fn a_timer_fires_once_and_ends_with_its_task() {
        let (mut tasks, pool) = (Tasks::new(), BufferPool::new());
        let (a, b) = (tasks.add(), tasks.add());
        let now = Instant::now();
        tasks.set_timer(a, Some(now));
        tasks.set_timer(b, Some(now));
        tasks.remove(b, &pool);
        tasks.expire_timers(now + Duration::from_secs(1), &pool);
        assert_eq!(ready(&mut tasks), [a]);
        assert_eq!(events(&mut tasks, a), 1);
        assert_eq!(tasks.next_deadline(), None);
        tasks.set_timer(b, Some(now));
        assert_eq!(tasks.next_deadline(), None);
    }
}
