//! An I/O queue. It turns operations into commands on its own connection.
//!
//! A [`RemoteQueue`] runs on its user's event loop, as a child of the user's task. It splits an
//! operation into commands no larger than the controller allows. These commands share the
//! operation's buffer, and each moves its own range of it. Commands wait in order for a free slot.
//! The queue sends all operations submitted between two calls of `poll` as one batch, over its
//! [transport](crate::transport).

mod carried;
mod table;

pub(crate) use carried::IoQueue;

use crate::association::Association;
use crate::shared::NamespaceState;
use crate::transport::{Loss, Transport};
use farblock_block::{Completion, Op, Queue};
use farblock_reactor::{Event, Reactor, TaskId, os};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::Table;

/// A command times out after this many expiries (ticks) of the queue's timer.
pub(crate) const TICKS_PER_TIMEOUT: u32 = 8;

/// Parameters of a queue that depend on its controller and namespace.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) nsid: u32,
    /// The maximum number of commands in flight.
    pub(crate) depth: u16,
    /// The maximum number of bytes per command, a multiple of the block size.
    pub(crate) command_bytes: u32,
    /// The maximum number of data bytes in a capsule.
    pub(crate) in_capsule_bytes: u32,
    pub(crate) write_zeroes: bool,
    /// The maximum number of blocks per Write Zeroes command.
    pub(crate) zeroes_blocks: u32,
    /// The maximum number of blocks per Dataset Management command.
    pub(crate) deallocate_blocks: u32,
    pub(crate) io_timeout: Duration,
    /// The controller's retry delays (CRDT1 to CRDT3).
    pub(crate) retry_delays: [Duration; 3],
}

/// One I/O queue of a remote namespace; see the module documentation.
pub(crate) struct RemoteQueue<T: Transport> {
    reactor: Reactor,
    task: TaskId,
    link: T,
    table: Table<T>,
    association: Arc<Association>,
    qid: u16,
    events: Vec<Event>,
    /// The interval of ticks; zero if commands never time out.
    tick_time: Duration,
    next_tick: Option<Instant>,
    timer: Option<Instant>,
}

impl<T: Transport> RemoteQueue<T> {
    /// Moves a connected queue to an event loop.
    pub(crate) fn new(
        reactor: &Reactor,
        parent: TaskId,
        connected: T::Connected,
        namespace: Arc<NamespaceState>,
        settings: Settings,
        association: (Arc<Association>, u16),
    ) -> io::Result<RemoteQueue<T>> {
        let task = reactor.add_child(parent);
        let tick_time = settings.io_timeout / TICKS_PER_TIMEOUT;
        let mut table = Table::new(reactor.clone(), namespace, settings);
        let link = match T::open(reactor, task, connected, &mut table) {
            Ok(link) => link,
            Err(error) => {
                reactor.remove_task(task);
                return Err(error);
            }
        };
        let (association, qid) = association;
        association.shared().add_waker(qid, reactor.waker(task));
        Ok(RemoteQueue {
            reactor: reactor.clone(),
            task,
            link,
            table,
            association,
            qid,
            events: Vec::new(),
            tick_time,
            next_tick: None,
            timer: None,
        })
    }

    /// Counts a tick. Ticks measure the age of commands, so that no command needs a clock reading.
    fn handle_timer(&mut self) {
        let now = os::now();
        self.timer = None;
        self.table.retry(now);
        if self.next_tick.take_if(|tick| *tick <= now).is_none() {
            return;
        }
        let is_late = self.table.handle_tick();
        if is_late && self.link.is_open() && !os::has_mistake("host: no command times out") {
            self.link.fail(Loss::Timeout, &mut self.table);
        }
    }

    fn arm_timer(&mut self) {
        if self.table.is_idle() || !self.link.is_open() {
            return;
        }
        if self.next_tick.is_none() && !self.tick_time.is_zero() {
            self.next_tick = os::now().checked_add(self.tick_time);
        }
        let next = self.next_tick.into_iter().chain(self.table.next_retry()).min();
        if next != self.timer {
            self.reactor.set_timer(self.task, next);
            self.timer = next;
        }
    }

    /// Whether the connection is lost. All operations without a complete answer then fail.
    pub(crate) fn is_lost(&self) -> bool {
        self.table.is_lost()
    }

    pub(crate) fn loss(&self) -> Option<&Loss> {
        self.link.loss()
    }

    fn handle_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        self.reactor.take_events(self.task, &mut events);
        for event in events.drain(..) {
            match event {
                Event::Timer => self.handle_timer(),
                event => self.link.handle(event, &mut self.table),
            }
        }
        self.events = events;
        self.link.poll(&mut self.table);
        if let Some(breach) = self.table.take_breach()
            && self.link.is_open()
        {
            self.link.fail(Loss::Fault(breach.to_owned()), &mut self.table);
        }
    }

    fn handle_loss(&mut self) {
        if self.table.is_lost() {
            return;
        }
        let loss = self.link.loss().expect("a connection that is not open has a reason");
        tracing::info!(queue = self.qid, "the connection of an I/O queue is lost: {loss}");
        self.association.shared().note_loss(loss);
        // End the operations that the user has submitted since the connection was lost.
        self.link.discard(&mut self.table);
        self.table.lose();
    }
}

impl<T: Transport> Queue for RemoteQueue<T> {
    fn submit(&mut self, op: Op) {
        self.table.submit(op, self.link.outgoing());
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.handle_events();
        if self.link.is_open() && self.association.shared().is_lost() {
            self.link.fail(Loss::Controller, &mut self.table);
        }
        if self.link.is_open() {
            self.table.pump(self.link.outgoing());
            self.link.flush();
        } else {
            self.handle_loss();
            if self.link.is_closed() {
                self.table.handle_closed();
            }
        }
        self.arm_timer();
        self.table.take_completions(done);
    }

    fn in_flight(&self) -> usize {
        self.table.in_flight()
    }
}

impl<T: Transport> Drop for RemoteQueue<T> {
    fn drop(&mut self) {
        self.link.abandon();
        self.reactor.remove_task(self.task);
        self.table.abandon();
        self.association.shared().remove_waker(self.qid);
        self.association.shared().return_queue(self.qid);
    }
}
