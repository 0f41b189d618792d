//! The state of the core (the target's thread) that the connections use.

use crate::alone::Alone;
use crate::login::Initiator;
use crate::scsi::Sense;
use crate::task::Slot;
use crate::unit::Unit;
use farblock_block::{Op, Queue};
use farblock_frontend::{Complaints, ConnectionKey, TickContext, Turns};
use farblock_reactor::Reactor;
use std::net::SocketAddr;
use std::time::Instant;

/// An action that a session requests from the core because it concerns other sessions.
#[derive(Debug)]
pub(crate) enum Action {
    /// Admit the session of this connection. Its login is complete, but it must wait for the
    /// operations of disconnected sessions.
    Admit(ConnectionKey),
    /// Abort tasks. Answer the request once these tasks have ended.
    Manage(ConnectionKey, Management),
    /// Queue a unit attention for this initiator.
    Notice(Initiator, Sense),
    /// Check the waiting logins again: a connection has closed, or the last operation of a closed
    /// connection has completed.
    Departed,
}

/// A request to abort tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Management {
    /// The initiator's task tag for this request.
    pub(crate) tag: u32,
    /// The set of tasks to abort.
    pub(crate) what: Abort,
    /// The initiator's tag of the task to abort, for [`Abort::Task`].
    pub(crate) task: u32,
}

/// The set of tasks that a request aborts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Abort {
    /// One task.
    Task,
    /// All tasks of the session.
    Session,
    /// All tasks of all sessions.
    Everything,
    /// All tasks of the session, which the target then closes.
    Logout,
}

/// A barrier: a request to abort tasks, which the target answers once these tasks have ended.
pub(crate) struct Barrier {
    pub(crate) id: u32,
    pub(crate) from: ConnectionKey,
    pub(crate) request: Management,
    pub(crate) waiting: usize,
}

/// The state of the core that the connections use.
pub(crate) struct Context {
    // Drop the queue before the reactor, because the queue's drop may deregister it from the
    // reactor.
    pub(crate) queue: Box<dyn Queue>,
    pub(crate) reactor: Reactor,
    pub(crate) unit: Unit,
    /// The time at the start of the tick. All work of the tick uses this time.
    pub(crate) now: Instant,
    pub(crate) is_stopping: bool,
    /// True after the size has changed. New sessions then get a unit attention, because their
    /// initiators may still use the old size.
    pub(crate) resized: bool,
    /// True if operations may have completed since the core last polled the queue.
    pub(crate) dirty: bool,
    pub(crate) turns: Turns,
    pub(crate) actions: Vec<Action>,
    pub(crate) barriers: Vec<Barrier>,
    pub(crate) next_barrier: u32,
    pub(crate) next_session: u16,
    pub(crate) complaints: Complaints,
    /// The exclusive tasks, and the changes that wait for them.
    pub(crate) alone: Alone<(ConnectionKey, Slot)>,
}

impl Context {
    /// Logs a warning about an initiator, or only counts the warning if there were too many.
    pub(crate) fn complain(&self, kind: &'static str, peer: SocketAddr, log: impl FnOnce()) {
        self.complaints.say(kind, &peer.to_string(), log);
    }

    /// Submits an operation to the namespace. An operation that changes blocks waits while an
    /// exclusive task runs or waits.
    pub(crate) fn submit(&mut self, op: Op) {
        if let Some(op) = self.alone.enter(op) {
            self.submit_alone(op);
        }
    }

    /// Submits an operation of the exclusive task.
    pub(crate) fn submit_alone(&mut self, op: Op) {
        self.queue.submit(op);
        self.dirty = true;
    }

    /// Queues an exclusive task, which starts when no change of another task is in flight.
    pub(crate) fn wait_alone(&mut self, key: ConnectionKey, slot: Slot) {
        self.alone.wait((key, slot));
    }

    /// Records the completion of a change that was not exclusive.
    pub(crate) fn changed(&mut self) {
        self.alone.leave();
    }

    pub(crate) fn end_alone(&mut self) {
        for op in self.alone.end() {
            self.submit_alone(op);
        }
    }

    /// Requests an action. The core executes it before it parses more of the connection's input.
    pub(crate) fn ask(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// True if the core has actions to execute before it parses more input.
    pub(crate) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Records the end of a task that these barriers wait for.
    pub(crate) fn passed(&mut self, barriers: &[u32]) {
        for barrier in self.barriers.iter_mut().filter(|barrier| barriers.contains(&barrier.id)) {
            barrier.waiting -= 1;
        }
    }

    /// Returns a new number for the target's part of a session identifier (TSIH). The number is
    /// never 0.
    pub(crate) fn session_number(&mut self) -> u16 {
        self.next_session = self.next_session.checked_add(1).unwrap_or(1);
        self.next_session
    }
}

impl TickContext for Context {
    fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }

    fn reactor(&self) -> &Reactor {
        &self.reactor
    }
}
