//! The part of the core's state that its connections use. The core is the target's only thread.

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

/// An action that a session requests from the core, because the action concerns other sessions.
#[derive(Debug)]
pub(crate) enum Action {
    /// Complete the login on this connection once the operations of disconnected sessions have
    /// completed.
    Admit(ConnectionKey),
    /// Abort tasks. Answer this connection's request once these tasks have ended.
    Manage(ConnectionKey, Management),
    /// Queue a unit attention for all sessions of this initiator.
    Notice(Initiator, Sense),
    /// Check again whether a waiting login can complete: a connection has closed, or a closed
    /// connection's last operation has completed.
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

/// A pending request to abort tasks, which the target answers once these tasks have ended.
pub(crate) struct Barrier {
    pub(crate) id: u32,
    pub(crate) from: ConnectionKey,
    pub(crate) request: Management,
    pub(crate) waiting: usize,
}

/// The state of the core that the connections use.
pub(crate) struct Context {
    // Drop the queue before the reactor: the queue may be registered with the reactor, and
    // deregisters itself when dropped.
    pub(crate) queue: Box<dyn Queue>,
    pub(crate) reactor: Reactor,
    pub(crate) unit: Unit,
    /// The time at the start of this pass of the event loop, used for the whole pass.
    pub(crate) now: Instant,
    pub(crate) is_stopping: bool,
    /// True after the size has changed. Each new session then gets a unit attention, because its
    /// initiator may still use the old size.
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
    /// Logs a warning about an initiator. If there were too many warnings of this kind, only counts
    /// it.
    pub(crate) fn complain(&self, kind: &'static str, peer: SocketAddr, log: impl FnOnce()) {
        self.complaints.say(kind, &peer.to_string(), log);
    }

    /// Submits an operation to the namespace. An operation that changes blocks waits while an
    /// exclusive task (COMPARE AND WRITE) runs or waits.
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

    /// Records that a task has ended, for which the abort requests with these numbers wait.
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
