//! Mailboxes for messages between a server's threads. Each thread reads its own mailbox.

// These types come from the standard library and the reactor. `tests/mailboxes.rs` replaces them
// with loom's types to try every order of threads.
use crate::sync::{Mutex, MutexGuard, Waker};
use std::sync::{OnceLock, PoisonError};

/// The mailboxes of a server's threads. The set is empty before [`Mailboxes::open`].
pub struct Mailboxes<M> {
    all: OnceLock<Vec<Mailbox<M>>>,
}

struct Mailbox<M> {
    /// The unread messages. `None` after the thread that reads the mailbox has exited.
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
    /// Makes a mailbox for each thread. The waker with the same index wakes that thread.
    ///
    /// # Panics
    /// Panics if the mailboxes are already open.
    pub fn open(&self, wakers: Vec<Waker>) {
        let empty = || Mutex::new(Some(Vec::new()));
        let all = wakers.into_iter().map(|waker| Mailbox { messages: empty(), waker });
        assert!(self.all.set(all.collect()).is_ok(), "the mailboxes are already open");
    }

    /// The number of mailboxes; 0 until the threads run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.get().map_or(0, Vec::len)
    }

    fn of(&self, core: usize) -> &Mailbox<M> {
        &self.all.get().expect("opened before any thread runs")[core]
    }

    /// Sends a message to a thread. Drops the message if the thread has exited.
    ///
    /// # Panics
    /// Panics if the thread does not exist.
    pub fn post(&self, core: usize, message: M) {
        let mailbox = self.of(core);
        if let Some(messages) = &mut *mailbox.lock() {
            messages.push(message);
        }
        mailbox.waker.wake();
    }

    /// Sends a message to all threads. Does nothing if the server did not start.
    pub fn post_all(&self, message: impl Fn() -> M) {
        (0..self.count()).for_each(|core| self.post(core, message()));
    }

    /// Takes a thread's messages, oldest first.
    ///
    /// # Panics
    /// Panics if the thread does not exist.
    #[must_use]
    pub fn take(&self, core: usize) -> Vec<M> {
        self.of(core).lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the mailbox of a thread that exits. Drops unread and later messages. A sender that
    /// waits for an answer notices the drop.
    pub fn close(&self, core: usize) {
        if self.all.get().is_some() {
            // Drop the messages without the lock, because the drop of a message may post another
            // message.
            let unread = self.of(core).lock().take();
            drop(unread);
        }
    }
}
