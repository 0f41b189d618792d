//! No wake is lost, in whatever order threads run: the code of wakers with loom's atomics and
//! locks, which tries orders. What is posted before a wake is found after it.
#![cfg(target_os = "linux")]

#[path = "../src/waker.rs"]
#[allow(dead_code, unreachable_pub)]
mod waker;

/// What `waker` has of its crate.
mod event {
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct TaskId(pub(crate) u32);
}
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex};
}

use event::TaskId;
use loom::sync::Notify;
use sync::{Arc, Mutex};
use waker::{Alarm, Waker, WakerShared};

/// The system call that ends a sleep.
struct NotifyAlarm(Arc<Notify>);

impl Alarm for NotifyAlarm {
    fn ring(&self) {
        self.0.notify();
    }
}

/// A loop that sleeps until it is woken, and mailboxes of one task each.
struct Loop {
    shared: Arc<WakerShared>,
    alarm: Arc<Notify>,
    mailboxes: Vec<Arc<Mutex<u32>>>,
}

impl Loop {
    fn new(tasks: usize) -> Loop {
        let (shared, alarm) = (WakerShared::new(), Arc::new(Notify::new()));
        shared.set_alarm(Box::new(NotifyAlarm(Arc::clone(&alarm))));
        Loop { shared, alarm, mailboxes: (0..tasks).map(|_| Arc::default()).collect() }
    }

    /// Has a thread post to a task's mailbox and wake it.
    fn post_to(&self, task: usize, waker: &Waker) -> loom::thread::JoinHandle<()> {
        let (mailbox, waker) = (Arc::clone(&self.mailboxes[task]), waker.clone());
        loom::thread::spawn(move || {
            *mailbox.lock().unwrap() += 1;
            waker.wake();
        })
    }

    fn waker(&self, task: usize) -> Waker {
        Waker::new(Arc::clone(&self.shared), TaskId(task as u32))
    }

    /// Runs until so many messages were found; loom sees to it that this ends.
    fn run(&self, messages: u32) {
        let (mut found, mut scratch) = (0, Vec::new());
        while found < messages {
            if self.shared.try_sleep() {
                self.alarm.wait();
            }
            if self.shared.awake() {
                let mut ready = Vec::new();
                self.shared.drain(&mut scratch, |task| ready.push(task));
                for TaskId(task) in ready {
                    found += std::mem::take(&mut *self.mailboxes[task as usize].lock().unwrap());
                }
            }
        }
        assert_eq!(found, messages);
    }
}

/// Every order in which threads are interrupted at most twice, which loom's authors find to be
/// where bugs are: all orders are too many.
fn in_every_order(check: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(check);
}

#[test]
fn two_threads_wake_one_task() {
    in_every_order(|| {
        let looped = Loop::new(1);
        let waker = looped.waker(0);
        let threads = [looped.post_to(0, &waker), looped.post_to(0, &waker)];
        looped.run(2);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn two_threads_wake_two_tasks() {
    in_every_order(|| {
        let looped = Loop::new(2);
        let threads = [0, 1].map(|task| looped.post_to(task, &looped.waker(task)));
        looped.run(2);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_loop_that_is_woken_after_its_end_is_freed() {
    in_every_order(|| {
        let looped = Loop::new(1);
        let waker = looped.waker(0);
        let thread = looped.post_to(0, &waker);
        let shared = Arc::clone(&looped.shared);
        drop((looped, waker));
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&shared), 1, "what was woken keeps the loop's state");
    });
}
