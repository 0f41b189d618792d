//! How a server's threads are told something: a mailbox each.

// The standard library's and the reactor's; `tests/mailboxes.rs` has others that try every order of
// threads.
use crate::sync::{Mutex, MutexGuard, Waker};
use std::sync::{OnceLock, PoisonError};

/// The mailboxes of a server's threads. Until [`Mailboxes::open`] there are none.
pub struct Mailboxes<M> {
    all: OnceLock<Vec<Mailbox<M>>>,
}

struct Mailbox<M> {
    /// None after its thread has ended: nobody would read them.
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
    /// Makes one for each thread; the waker has it looked at.
    ///
    /// # Panics
    /// The second time.
    pub fn open(&self, wakers: Vec<Waker>) {
        let empty = || Mutex::new(Some(Vec::new()));
        let all = wakers.into_iter().map(|waker| Mailbox { messages: empty(), waker });
        assert!(self.all.set(all.collect()).is_ok(), "the mailboxes are opened once");
    }

    /// How many there are: none until the threads run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.get().map_or(0, Vec::len)
    }

    fn of(&self, core: usize) -> &Mailbox<M> {
        &self.all.get().expect("opened before any thread runs")[core]
    }

    /// Tells a thread something. What a thread that has ended would be told is dropped.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn post(&self, core: usize, message: M) {
        let mailbox = self.of(core);
        if let Some(messages) = &mut *mailbox.lock() {
            messages.push(message);
        }
        mailbox.waker.wake();
    }

    /// Tells all of them; nobody, if the server does not even start.
    pub fn post_all(&self, message: impl Fn() -> M) {
        (0..self.count()).for_each(|core| self.post(core, message()));
    }

    /// What came for a thread, oldest first.
    ///
    /// # Panics
    /// If there is no such thread.
    #[must_use]
    pub fn take(&self, core: usize) -> Vec<M> {
        self.of(core).lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// A thread has ended: nothing that it was or will be told is kept, so that whoever waits for
    /// an answer sees that there is none.
    pub fn close(&self, core: usize) {
        if self.all.get().is_some() {
            // They are dropped when the lock is free again: what a message does then may post.
            let unread = self.of(core).lock().take();
            drop(unread);
        }
    }
}
