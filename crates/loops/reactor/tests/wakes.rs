//! Tests the wakers with loom, which tries every order of threads. No wake-up may be lost, and a
//! woken task must find the message that was posted before the wake-up.
#![cfg(target_os = "linux")]

mod loom_loop;
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex};
}

use loom_loop::ids::{self, TaskId};
use loom_loop::waker::Waker;
use loom_loop::{Loop, in_every_order};
use sync::{Arc, Mutex};

/// A loop with several tasks, each with a mailbox.
struct Tasks {
    looped: Loop,
    mailboxes: Vec<Arc<Mutex<u32>>>,
}

impl Tasks {
    fn new(tasks: usize) -> Tasks {
        Tasks { looped: Loop::new(), mailboxes: (0..tasks).map(|_| Arc::default()).collect() }
    }

    /// Starts a thread that posts to a task's mailbox and wakes it.
    fn post_to(&self, task: usize, waker: &Waker) -> loom::thread::JoinHandle<()> {
        let (mailbox, waker) = (Arc::clone(&self.mailboxes[task]), waker.clone());
        loom::thread::spawn(move || {
            *mailbox.lock().unwrap() += 1;
            waker.wake();
        })
    }

    fn waker(&self, task: usize) -> Waker {
        self.looped.waker(task as u32)
    }

    /// Runs until the loop has found this many messages. Loom reports a deadlock if a wake-up is
    /// lost.
    fn run(&self, messages: u32) {
        let mut found = 0;
        while found < messages {
            for TaskId(task) in self.looped.poll() {
                found += std::mem::take(&mut *self.mailboxes[task as usize].lock().unwrap());
            }
        }
        assert_eq!(found, messages);
    }
}

#[test]
fn two_threads_wake_one_task() {
    in_every_order(|| {
        let tasks = Tasks::new(1);
        let waker = tasks.waker(0);
        let threads = [tasks.post_to(0, &waker), tasks.post_to(0, &waker)];
        tasks.run(2);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn two_threads_wake_two_tasks() {
    in_every_order(|| {
        let tasks = Tasks::new(2);
        let threads = [0, 1].map(|task| tasks.post_to(task, &tasks.waker(task)));
        tasks.run(2);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_loop_woken_after_its_end_is_freed() {
    in_every_order(|| {
        let tasks = Tasks::new(1);
        let waker = tasks.waker(0);
        let thread = tasks.post_to(0, &waker);
        let shared = Arc::clone(&tasks.looped.shared);
        drop((tasks, waker));
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&shared), 1, "the waker keeps the loop's state");
    });
}
