//! Events and timers for futures on the control loop.

use super::executor::{Inbox, Start};
use farblock_reactor::{Config, EngineKind, Polling, Reactor, TaskId, Waker};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Instant;

/// A handle to the control loop, for code that runs on it. Clones refer to the same loop.
#[derive(Clone)]
pub(crate) struct Local(Rc<Inner>);

struct Inner {
    inbox: Arc<Inbox>,
    reactor: Reactor,
    mailboxes: RefCell<HashMap<TaskId, Entry>>,
    ready: RefCell<Vec<TaskId>>,
}

#[derive(Default)]
struct Entry {
    is_ready: bool,
    waker: Option<task::Waker>,
}

impl Local {
    /// Creates the loop, and the waker that makes it check its inbox.
    pub(super) fn new(engine: EngineKind, inbox: &Arc<Inbox>) -> io::Result<(Local, Waker)> {
        // Admin commands are not urgent: sleep at once instead of polling.
        let config = Config { engine, polling: Polling::Never, ..Config::default() };
        let reactor = Reactor::new(&config)?;
        let waker = reactor.waker(reactor.add_task());
        let (mailboxes, ready) = Default::default();
        let inbox = Arc::clone(inbox);
        Ok((Local(Rc::new(Inner { inbox, reactor, mailboxes, ready })), waker))
    }

    pub(crate) fn reactor(&self) -> &Reactor {
        &self.0.reactor
    }

    /// Starts a future, and returns at once.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        let start: Start = Box::new(|_| Box::pin(future));
        self.0.inbox.start(start);
    }

    /// Like [`Local::spawn`], for a future that is not [`Send`]. `make` creates it on this loop.
    pub(crate) fn spawn_here<F: Future<Output = ()> + 'static>(
        &self,
        make: impl FnOnce(Local) -> F + Send + 'static,
    ) {
        let start: Start = Box::new(|local| Box::pin(make(local.clone())));
        self.0.inbox.start(start);
    }

    /// Waits for events, and wakes the futures that wait for them.
    pub(super) fn turn(&self) -> io::Result<()> {
        let ready = &mut *self.0.ready.borrow_mut();
        self.0.reactor.poll(None, ready)?;
        for task in ready {
            if let Some(entry) = self.0.mailboxes.borrow_mut().get_mut(task) {
                entry.is_ready = true;
                entry.waker.take().into_iter().for_each(task::Waker::wake);
            }
        }
        Ok(())
    }

    pub(crate) async fn sleep_until(&self, at: Instant) {
        let alarm = Mailbox::new(self);
        self.0.reactor.set_timer(alarm.task, Some(at));
        alarm.ready().await;
    }
}

/// An event-loop task that belongs to one future, which awaits the task's events.
pub(crate) struct Mailbox {
    local: Local,
    task: TaskId,
}

impl Mailbox {
    pub(crate) fn new(local: &Local) -> Mailbox {
        let task = local.0.reactor.add_task();
        local.0.mailboxes.borrow_mut().insert(task, Entry::default());
        Mailbox { local: local.clone(), task }
    }

    pub(crate) fn task(&self) -> TaskId {
        self.task
    }

    /// Waits for the next event since the last call: I/O, the timer or a waker.
    pub(crate) async fn ready(&self) {
        poll_fn(|context| {
            let mailboxes = &mut *self.local.0.mailboxes.borrow_mut();
            let entry =
                mailboxes.get_mut(&self.task).expect("a mailbox has an entry until its drop");
            if std::mem::take(&mut entry.is_ready) {
                return Poll::Ready(());
            }
            entry.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.local.0.reactor.remove_task(self.task);
        self.local.0.mailboxes.borrow_mut().remove(&self.task);
    }
}
