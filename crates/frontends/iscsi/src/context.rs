//! The core's state that its connections use.

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

/// An action that a session requests from the core, and that concerns other sessions.
#[derive(Debug)]
pub(crate) enum Action {
    /// A login is complete, but must wait for the operations of disconnected sessions.
    Admit(ConnectionKey),
    /// Abort tasks, and answer the request with this tag once they have ended.
    Manage(ConnectionKey, Management),
    /// Notify this initiator.
    Notice(Initiator, Sense),
    /// A closed connection with operations in flight may have lost the last of them.
    Departed,
}

/// A request to abort tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Management {
    /// The initiator's task tag of the request.
    pub(crate) tag: u32,
    /// The tasks to abort, and the reason.
    pub(crate) what: Abort,
    /// The task for [`Abort::Task`].
    pub(crate) task: u32,
}

/// A set of tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Abort {
    /// One task.
    Task,
    /// All tasks of the session.
    Session,
    /// All tasks of all sessions.
    Everything,
    /// All tasks of the session, which then ends.
    Logout,
}

/// A request that the target answers once its tasks have ended.
pub(crate) struct Barrier {
    pub(crate) id: u32,
    pub(crate) from: ConnectionKey,
    pub(crate) request: Management,
    pub(crate) waiting: usize,
}

/// The state of the core that its connections use.
pub(crate) struct Context {
    // Dropped before the reactor, since the drop may deregister the queue there.
    pub(crate) queue: Box<dyn Queue>,
    pub(crate) reactor: Reactor,
    pub(crate) unit: Unit,
    /// The time at the start of the tick, which all work of the tick uses.
    pub(crate) now: Instant,
    pub(crate) is_stopping: bool,
    /// The size has changed: notify new sessions, whose initiators may know the old size.
    pub(crate) resized: bool,
    /// Operations may have completed since the queue was last polled.
    pub(crate) dirty: bool,
    pub(crate) turns: Turns,
    pub(crate) actions: Vec<Action>,
    pub(crate) barriers: Vec<Barrier>,
    pub(crate) next_barrier: u32,
    pub(crate) next_session: u16,
    pub(crate) complaints: Complaints,
    /// Tasks that run alone.
    pub(crate) alone: Alone<(ConnectionKey, Slot)>,
}

impl Context {
    /// Logs a warning about an initiator, unless there were too many.
    pub(crate) fn complain(&self, kind: &'static str, peer: SocketAddr, log: impl FnOnce()) {
        self.complaints.say(kind, &peer.to_string(), log);
    }

    /// Submits an operation to the namespace, once no exclusive task runs.
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

    /// Queues a task until no change of another task is in flight.
    pub(crate) fn wait_alone(&mut self, key: ConnectionKey, slot: Slot) {
        self.alone.wait((key, slot));
    }

    /// Records that a change that was not exclusive has completed.
    pub(crate) fn changed(&mut self) {
        self.alone.leave();
    }

    pub(crate) fn end_alone(&mut self) {
        for op in self.alone.end() {
            self.submit_alone(op);
        }
    }

    /// Requests an action of the core before it parses more of the connection's input.
    pub(crate) fn ask(&mut self, action: Action) {
        self.actions.push(action);
    }

    /// True if the core has actions to do first.
    pub(crate) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Records that a task with these barriers has ended.
    pub(crate) fn passed(&mut self, barriers: &[u32]) {
        for barrier in self.barriers.iter_mut().filter(|barrier| barriers.contains(&barrier.id)) {
            barrier.waiting -= 1;
        }
    }

    /// The target's part of a session identifier; never 0.
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
