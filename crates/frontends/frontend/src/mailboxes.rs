//! Mailboxes: each thread of a server has one for messages.

// The types of the standard library and the reactor; `tests/mailboxes.rs` replaces them to try
// every order of threads.
use crate::sync::{Mutex, MutexGuard, Waker};
use std::sync::{OnceLock, PoisonError};

/// The mailboxes of a server's threads. There are none before [`Mailboxes::open`].
pub struct Mailboxes<M> {
    all: OnceLock<Vec<Mailbox<M>>>,
}

struct Mailbox<M> {
    /// `None` after the mailbox's thread has ended: no thread would read messages.
    messages: Mutex<Option<Vec<M>>>,
    waker: Waker,
}

impl<M> Mailbox<M> {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<M>>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M> Default for Mailboxes<M> {
    fn default() -> Mailboxes<M> {
        Mailboxes { all: OnceLock::new() }
    }
}

impl<M> Mailboxes<M> {
    /// Makes a mailbox for each thread, with the waker of the thread that reads it.
    ///
    /// # Panics
    /// If they are open already.
    pub fn open(&self, wakers: Vec<Waker>) {
        let empty = || Mutex::new(Some(Vec::new()));
        let all = wakers.into_iter().map(|waker| Mailbox { messages: empty(), waker });
        assert!(self.all.set(all.collect()).is_ok(), "the mailboxes are opened once");
    }

    /// The number of mailboxes: none until the threads run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.get().map_or(0, Vec::len)
    }

    fn of(&self, core: usize) -> &Mailbox<M> {
        &self.all.get().expect("opened before any thread runs")[core]
    }

    /// Sends a message to a thread. A message to a thread that has ended is dropped.
    ///
    /// # Panics
    /// If the thread does not exist.
    pub fn post(&self, core: usize, message: M) {
        let mailbox = self.of(core);
        if let Some(messages) = &mut *mailbox.lock() {
            messages.push(message);
        }
        mailbox.waker.wake();
    }

    /// Sends a message to all threads; there are none if the server did not start.
    pub fn post_all(&self, message: impl Fn() -> M) {
        (0..self.count()).for_each(|core| self.post(core, message()));
    }

    /// Takes a thread's messages, oldest first.
    ///
    /// # Panics
    /// If the thread does not exist.
    #[must_use]
    pub fn take(&self, core: usize) -> Vec<M> {
        self.of(core).lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the mailbox of a thread that has ended. Unread and later messages are dropped, which
    /// shows their senders that no answer will come.
    pub fn close(&self, core: usize) {
        if self.all.get().is_some() {
            // Drop them after the lock is released: dropping a message may post another.
            let unread = self.of(core).lock().take();
            drop(unread);
        }
    }
}
