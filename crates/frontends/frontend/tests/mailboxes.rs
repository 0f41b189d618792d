//! Tests the mailboxes and wakers with loom, which tries every order of threads. In each order, a
//! thread reads a message, or the message is dropped after the thread has exited.
#![cfg(target_os = "linux")]

#[path = "../../../loops/reactor/tests/loom_loop/mod.rs"]
#[allow(dead_code, reason = "these tests do not distinguish its tasks")]
mod loom_loop;
#[path = "../src/mailboxes.rs"]
#[allow(dead_code, unreachable_pub)]
mod mailboxes;
mod sync {
    pub(crate) use crate::loom_loop::waker::Waker;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
}

use loom::thread::JoinHandle;
use loom_loop::{Loop, ids, in_every_order};
use mailboxes::Mailboxes;
use std::sync::Weak;
use sync::Arc;

#[allow(dead_code)]
enum Message {
    /// Work for the thread. A weak reference shows whether the work was dropped.
    Work(std::sync::Arc<()>),
    /// A message whose drop sends a message to another thread.
    Telling(Teller),
    Answer,
}

struct Teller {
    mailboxes: Arc<Mailboxes<Message>>,
    core: usize,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.mailboxes.post(self.core, Message::Answer);
    }
}

/// Runs a thread's loop until `count` messages have arrived. Loom reports a deadlock if a message
/// is lost.
fn take(looped: &Loop, mailboxes: &Mailboxes<Message>, core: usize, count: usize) -> Vec<Message> {
    let mut taken = Vec::new();
    while taken.len() < count {
        looped.poll();
        taken.extend(mailboxes.take(core));
    }
    assert_eq!(taken.len(), count, "a message was delivered twice");
    taken
}

fn server(threads: usize) -> (Vec<Loop>, Arc<Mailboxes<Message>>) {
    let loops: Vec<_> = (0..threads).map(|_| Loop::new()).collect();
    let mailboxes = Mailboxes::default();
    mailboxes.open(loops.iter().map(|looped| looped.waker(0)).collect());
    (loops, Arc::new(mailboxes))
}

/// Starts a thread that posts work. The weak reference shows whether the work was dropped.
fn post_work(mailboxes: &Arc<Mailboxes<Message>>, core: usize) -> (JoinHandle<()>, Weak<()>) {
    let (mailboxes, work) = (Arc::clone(mailboxes), std::sync::Arc::new(()));
    let dropped = std::sync::Arc::downgrade(&work);
    (loom::thread::spawn(move || mailboxes.post(core, Message::Work(work))), dropped)
}

#[test]
fn a_sleeping_thread_gets_the_messages_of_two_threads() {
    in_every_order(|| {
        let (loops, mailboxes) = server(1);
        let posted = [post_work(&mailboxes, 0), post_work(&mailboxes, 0)];
        drop(take(&loops[0], &mailboxes, 0, 2));
        for (thread, dropped) in posted {
            thread.join().unwrap();
            assert_eq!(dropped.strong_count(), 0, "a taken message is not freed");
        }
    });
}

#[test]
fn a_broadcast_message_reaches_each_thread() {
    in_every_order(|| {
        let (mut loops, mailboxes) = server(2);
        let (second, seen) = (loops.remove(1), Arc::clone(&mailboxes));
        let other = loom::thread::spawn(move || drop(take(&second, &seen, 1, 1)));
        mailboxes.post_all(|| Message::Answer);
        drop(take(&loops[0], &mailboxes, 0, 1));
        other.join().unwrap();
    });
}

/// A message that its thread does not read is dropped, whether it was posted before, during or
/// after the thread's exit. The sender notices the drop.
#[test]
fn a_message_posted_while_its_thread_ends_is_dropped() {
    in_every_order(|| {
        let (loops, mailboxes) = server(1);
        let posted = [post_work(&mailboxes, 0), post_work(&mailboxes, 0)];
        drop(mailboxes.take(0));
        mailboxes.close(0);
        drop(loops);
        for (thread, dropped) in posted {
            thread.join().unwrap();
            assert_eq!(dropped.strong_count(), 0, "an ended thread's mailbox keeps a message");
        }
        assert!(mailboxes.take(0).is_empty());
    });
}

/// A message that is dropped unread may post another message, even to the exiting thread.
#[test]
fn a_dropped_message_may_post_to_any_thread() {
    in_every_order(|| {
        let (loops, mailboxes) = server(2);
        for core in [0, 1] {
            let mailboxes = Arc::clone(&mailboxes);
            mailboxes.clone().post(0, Message::Telling(Teller { mailboxes, core }));
        }
        let ends = Arc::clone(&mailboxes);
        let ended = loom::thread::spawn(move || ends.close(0));
        let answers = take(&loops[1], &mailboxes, 1, 1);
        assert!(matches!(answers[..], [Message::Answer]));
        ended.join().unwrap();
        assert!(mailboxes.take(0).is_empty(), "an ended thread's mailbox keeps a message");
    });
}

#[test]
fn unread_messages_are_dropped_with_the_mailboxes() {
    in_every_order(|| {
        let (loops, mailboxes) = server(1);
        let (thread, dropped) = post_work(&mailboxes, 0);
        // The last reference to the loops and mailboxes may be in either thread.
        drop((loops, mailboxes));
        thread.join().unwrap();
        assert_eq!(dropped.strong_count(), 0, "a message outlives its mailbox");
    });
}
