//! A queue of a disk. It submits each operation to a path, and keeps the operation until a path has
//! completed it.
//!
//! The queue runs on its user's event loop and never blocks: the paths' [keepers](super::keeper)
//! connect its I/O queues and deliver them to its mailbox.
//!
//! ```text
//!              a path is usable                    done, or failed by the controller
//!  submitted --------------------> on a path -------------------------------> completed
//!      |                           |   |   ^
//!      | none is     path lost and |   |   | the lost session has ended
//!      v             it writes     |   |   |
//!   Waiting <--- path lost, or ----+   +-> Held ---- time limit: failed -----> completed
//!      |         cannot execute it
//!      +------------------------------------------- time limit: failed -----> completed
//! ```
//! After an operation in the state Held has failed, the queue starts no other write until all
//! commands of the lost session have ended.
//!
//! Held operations are writes that the host may have sent on a lost session. The target may still
//! execute this first attempt. If the queue repeated the write too early, the first attempt could
//! execute last, and undo the repeated write and later writes. Reads and flushes need not wait.
//!
//! The token of an operation on a path is the number of the operation in the table.

use super::Life;
use super::hub::{Hub, Mailbox, Verdict};
use super::latency::Meter;
use super::options::Policy;
use super::session::{Reach, Session};
use super::table::Table;
use crate::limits;
use crate::queue::IoQueue;
use crate::shared::Notice;
use farblock_block::{BlockError, Change, Command, Completion, Namespace, Op, Queue};
use farblock_reactor::{Buffer, Event, Reactor, TaskId, os};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A poll repeats its work this many times: if one path returns an operation, another path can get
/// it within the same poll.
const ROUNDS: usize = 4;

/// The I/O queue of this disk queue on one path.
struct Leg {
    // Rust drops fields in the order of their declarations. The queue must be dropped before
    // `session`, because only the keeper may drop the last reference to the session.
    queue: IoQueue,
    session: Arc<Session>,
    /// Whether the target has a volatile cache.
    cached: bool,
    /// The end of the path's backoff, during which the path gets no operations. The backoff starts
    /// when the controller returns an operation that it cannot execute at present.
    backs_off_until: Option<Instant>,
}

impl Leg {
    fn reach(&self) -> Reach {
        match self.backs_off_until {
            Some(_) => Reach::Blocked,
            None => self.session.reach(),
        }
    }
}

pub(super) struct DiskQueue {
    hub: Arc<Hub>,
    /// A reference that keeps the disk open.
    life: Option<Arc<Life>>,
    reactor: Reactor,
    task: TaskId,
    mailbox: Arc<Mailbox>,
    /// The connections, by path.
    legs: Vec<Option<Leg>>,
    /// By path: the session whose controller has no I/O queue left for this queue.
    refused: Vec<Option<Arc<Session>>>,
    /// Lost connections that still hold buffers.
    dying: Vec<Leg>,
    table: Table,
    waiting: VecDeque<u32>,
    held: Vec<(u32, Arc<Session>)>,
    done: Vec<Completion>,
    /// Whether the last poll returned a flush as failed in order to report lost writes.
    tells: bool,
    last: usize,
    /// Whether an event other than a completion has occurred, so that the queue must check the
    /// waiting operations.
    review: bool,
    timer: Option<Instant>,
    meter: Arc<Meter>,
    /// The last clock reading, which the latency meter uses until the next poll begins or ends.
    looked: Option<Instant>,
    scratch: Vec<Completion>,
    events: Vec<Event>,
}

impl DiskQueue {
    pub(super) fn new(
        hub: Arc<Hub>,
        life: Arc<Life>,
        reactor: &Reactor,
        parent: TaskId,
    ) -> DiskQueue {
        let task = reactor.add_child(parent);
        let mailbox = hub.add_mailbox(reactor.waker(task));
        let paths = hub.paths.len();
        let meter = hub.meters.open();
        DiskQueue {
            hub,
            life: Some(life),
            reactor: reactor.clone(),
            task,
            mailbox,
            legs: (0..paths).map(|_| None).collect(),
            refused: vec![None; paths],
            dying: Vec::new(),
            table: Table::default(),
            waiting: VecDeque::new(),
            held: Vec::new(),
            done: Vec::new(),
            tells: false,
            last: 0,
            review: false,
            timer: None,
            meter,
            looked: None,
            scratch: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Submits an operation to a path, or lets it wait.
    fn start(&mut self, index: u32) {
        match self.choose() {
            Some(path) if self.may_start(index) => self.give(index, path),
            _ => {
                self.waiting.push_back(index);
                self.review = true;
            }
        }
    }

    fn may_start(&mut self, index: u32) -> bool {
        !self.hub.has_indeterminate_writes() || !self.table.writes(index)
    }

    fn give(&mut self, index: u32, path: usize) {
        self.last = path;
        let leg = self.legs[path].as_mut().expect("the chosen path has a connection");
        let mut op = self.table.attempt(index);
        op.fua |= leg.cached && self.hub.is_write_through();
        leg.queue.submit(op);
    }

    /// Chooses the path for the next operation; `None` if no path is usable.
    fn choose(&self) -> Option<usize> {
        let reach = |path: usize| self.legs[path].as_ref().map(Leg::reach);
        let best = (0..self.legs.len()).filter_map(reach).min()?;
        if best >= Reach::Blocked {
            return None;
        }
        let mut paths = (0..self.legs.len()).filter(|&path| reach(path) == Some(best));
        match self.hub.options.policy {
            Policy::Numa => paths.next(),
            Policy::RoundRobin => {
                let first = paths.clone().next();
                paths.find(|&path| path > self.last).or(first)
            }
            Policy::QueueDepth => paths.min_by_key(|&path| {
                self.legs[path].as_ref().map_or(usize::MAX, |leg| leg.queue.in_flight())
            }),
        }
    }

    fn take_timer(&mut self) {
        if self.timer.is_none() {
            return;
        }
        self.reactor.take_events(self.task, &mut self.events);
        if self.events.drain(..).any(|event| matches!(event, Event::Timer)) {
            self.timer = None;
            self.review = true;
        }
    }

    /// Accepts connections from the keepers.
    fn take_arrivals(&mut self) {
        for arrival in self.mailbox.take_arrivals() {
            let (path, session) = (arrival.session.path, arrival.session);
            if path >= self.legs.len() {
                // The disk got this path after the queue was opened.
                self.legs.resize_with(path + 1, || None);
                self.refused.resize(path + 1, None);
            }
            let Ok(queue) = arrival.queue else {
                self.refused[path] = Some(session);
                continue;
            };
            self.refused[path] = None;
            match queue.settle(&self.reactor, self.task) {
                Ok(queue) => {
                    let cached = session.namespace.geometry().volatile_cache;
                    let leg = Leg { queue, session, cached, backs_off_until: None };
                    // The previous connection may have been lost while some of its results are not
                    // processed yet.
                    self.dying.extend(self.legs[path].replace(leg));
                }
                Err(error) => session.abort(&error.to_string()),
            }
        }
    }

    fn poll_legs(&mut self) {
        let mut scratch = std::mem::take(&mut self.scratch);
        for path in 0..self.legs.len() {
            let Some(leg) = &mut self.legs[path] else { continue };
            leg.queue.poll(&mut scratch);
            if !leg.queue.is_lost() {
                scratch.drain(..).for_each(|done| self.handle_done(path, done));
                continue;
            }
            let reason = leg.queue.loss().map_or_else(String::new, |loss| format!(": {loss}"));
            leg.session.abort(&format!("the connection of an I/O queue is lost{reason}"));
            let session = Arc::clone(&leg.session);
            self.dying.extend(self.legs[path].take());
            self.review = true;
            scratch.drain(..).for_each(|done| self.handle_lost(&session, done));
        }
        let mut dying = std::mem::take(&mut self.dying);
        for leg in &mut dying {
            leg.queue.poll(&mut scratch);
            scratch.drain(..).for_each(|done| self.handle_lost(&leg.session, done));
        }
        dying.retain(|leg| leg.queue.in_flight() > 0);
        self.dying = dying;
        self.scratch = scratch;
    }

    /// Handles an operation that a working path returned.
    fn handle_done(&mut self, path: usize, done: Completion) {
        let index = done.token as u32;
        let leg = self.legs[path].as_mut().expect("the path has a connection");
        let is_gone = || leg.session.namespace.is_gone();
        let not_now = match done.result {
            // The status is path related, or the controller is shutting down.
            Err(BlockError::Disconnected | BlockError::Aborted) => true,
            Err(BlockError::OutOfRange) => is_gone(),
            _ => false,
        };
        let patience = self.hub.options.denial_limit();
        if !not_now || self.is_put_off_for_too_long(index, path, patience) {
            return self.end(index, done.result, done.buffer, None);
        }
        let leg = self.legs[path].as_mut().expect("the path has a connection");
        if leg.backs_off_until.is_none() {
            leg.backs_off_until = Some(os::now() + limits::BACKOFF);
            // The session's access state (ANA) may be out of date, so let the keeper read it again.
            leg.session.inbox.put(Notice::Access);
            self.hub.keepers.notify();
        }
        self.table.put_back(index, done.buffer);
        self.waiting.push_back(index);
        self.review = true;
    }

    /// Whether an operation has waited longer than allowed since a path first refused it or was
    /// lost with it, and no usable path is left that has not tried the operation.
    fn is_put_off_for_too_long(
        &mut self,
        index: u32,
        path: usize,
        patience: Option<Duration>,
    ) -> bool {
        let Some(patience) = patience else { return false };
        let now = os::now();
        let since = self.table.put_off(index, path, now);
        if now.saturating_duration_since(since) < patience {
            return false;
        }
        let usable = |path: &usize| {
            self.legs[*path].as_ref().is_some_and(|leg| leg.reach() < Reach::Blocked)
        };
        let mut usable = (0..self.legs.len()).filter(usable);
        usable.all(|path| self.table.was_put_off_by(index, path))
    }

    /// Handles an operation that a lost path returned. The controller may or may not have completed
    /// it.
    fn handle_lost(&mut self, session: &Arc<Session>, done: Completion) {
        let index = done.token as u32;
        self.review = true;
        let not_done = match done.result {
            Err(BlockError::Disconnected | BlockError::Aborted) => true,
            // The command failed because the controller now has another namespace, which is also
            // why the path was lost.
            Err(BlockError::OutOfRange) => session.namespace.is_gone(),
            _ => false,
        };
        if not_done && os::has_mistake("host: an operation is forgotten with its path") {
            return;
        }
        let not_done = not_done && !os::has_mistake("host: a lost path's operations succeed");
        let patience = self.hub.options.wait_limit();
        match done.result {
            _ if not_done && self.is_put_off_for_too_long(index, session.path, patience) => {
                if self.table.writes(index) {
                    self.hub.mark_indeterminate(session);
                }
                self.end(index, Err(BlockError::Disconnected), done.buffer, Some(session));
            }
            _ if not_done => {
                self.table.put_back(index, done.buffer);
                let is_held = !os::has_mistake("host: lost writes are sent again at once");
                if self.table.writes(index) && is_held {
                    self.held.push((index, Arc::clone(session)));
                } else {
                    self.waiting.push_back(index);
                }
            }
            result => {
                let result = if os::has_mistake("host: a lost path's operations succeed") {
                    Ok(())
                } else {
                    result
                };
                self.end(index, result, done.buffer, Some(session));
            }
        }
    }

    /// Completes an operation. `lost` is the session of the path that returned the operation, if
    /// the host has lost this session.
    fn end(
        &mut self,
        index: u32,
        mut result: Result<(), BlockError>,
        buffer: Option<Buffer>,
        lost: Option<&Session>,
    ) {
        if let Some((command, ..)) = self.table.nature(index) {
            self.hub.refusal.note(command, result);
            if result.is_ok() {
                self.hub.note_progress();
            }
        }
        let cache = &self.hub.cache;
        match self.table.nature(index) {
            Some((Command::Flush, _, carries)) => {
                cache.flush_ends(carries, result);
                // Do not report the loss on an abandoned flush, whose error no user receives.
                if result.is_ok() && !self.table.is_unwanted(index) && cache.take_loss() {
                    result = Err(BlockError::WriteFailed);
                    self.tells = true;
                }
            }
            Some((Command::Write | Command::WriteZeroes { .. }, false, _))
                if result.is_ok() && !self.hub.is_write_through() =>
            {
                match lost {
                    None => cache.wrote(),
                    Some(session) if cache.wrote_before(&session.fencing.life) => {
                        self.hub.changes.tell(Change::Loss);
                    }
                    Some(_) => {}
                }
            }
            _ => {}
        }
        if let Some((command, begun)) = self.table.measured(index)
            && result.is_ok()
        {
            let took = self.look().saturating_duration_since(begun);
            self.meter.count(command, took);
        }
        self.done.push(self.table.complete(index, result, buffer));
    }

    /// Returns the time for the latency meter. Operations that are submitted or completed together
    /// share one clock reading.
    fn look(&mut self) -> Instant {
        *self.looked.get_or_insert_with(os::now)
    }

    /// Processes all pending events.
    fn look_around(&mut self) {
        self.take_arrivals();
        for refused in &mut self.refused {
            refused.take_if(|session| session.is_lost());
        }
        let now = os::now();
        for leg in self.legs.iter_mut().flatten() {
            leg.backs_off_until.take_if(|until| *until <= now);
        }
        let waiting = &mut self.waiting;
        self.held.retain(|(index, session)| {
            if session.fencing.is_finished() {
                waiting.push_back(*index);
            }
            !session.fencing.is_finished()
        });
        // Try each waiting operation once. An operation that may not start yet, such as a write
        // that must wait for a lost controller, must not block the others.
        for _ in 0..self.waiting.len() {
            let Some(path) = self.choose() else { break };
            let index = self.waiting.pop_front().expect("counted");
            match self.may_start(index) {
                true => self.give(index, path),
                false => self.waiting.push_back(index),
            }
        }
        let deadline = self.judge(now);
        let backoffs = self.legs.iter().flatten().filter_map(|leg| leg.backs_off_until);
        let next = backoffs.chain(deadline).min();
        if next != self.timer {
            self.timer = next;
            self.reactor.set_timer(self.task, next);
        }
    }

    /// Fails operations that have waited too long for a path. Returns the time of the next check.
    fn judge(&mut self, now: Instant) -> Option<Instant> {
        if self.waiting.is_empty() && self.held.is_empty() {
            return None;
        }
        let verdict =
            self.hub.verdict(now, |path| self.refused.get(path).is_some_and(Option::is_some));
        match verdict {
            Verdict::Wait(until) => until,
            Verdict::Fail(_) if os::has_mistake("host: nothing fails fast") => None,
            Verdict::Fail(error) => {
                self.held.iter().for_each(|(_, session)| self.hub.mark_indeterminate(session));
                let held = self.held.drain(..).map(|(index, _)| index);
                let over: Vec<_> = self.waiting.drain(..).chain(held).collect();
                over.into_iter().for_each(|index| self.end(index, Err(error), None, None));
                None
            }
        }
    }
}

impl Queue for DiskQueue {
    fn submit(&mut self, op: Op) {
        match op.check(&self.hub.geometry()) {
            Ok(()) => {
                let carries = op.command == Command::Flush && self.hub.cache.flush_begins();
                let begun = self.hub.meters.measures().then(|| self.look());
                let index = self.table.insert(op, carries, begun);
                self.start(index);
            }
            Err(error) => self.done.push(op.complete(Err(error))),
        }
    }

    /// Ends the abandoned operations that still wait for a path. Operations that a path may have
    /// sent must complete.
    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        self.table.note_unwanted(unwanted);
        let mut over = Vec::new();
        self.waiting.retain(|&index| {
            let unwanted = unwanted(self.table.token(index));
            over.extend(unwanted.then_some(index));
            !unwanted
        });
        over.into_iter().for_each(|index| self.end(index, Err(BlockError::Aborted), None, None));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.note_told();
        self.looked = None;
        self.take_timer();
        self.review |= self.mailbox.take_notice();
        for _ in 0..ROUNDS {
            self.poll_legs();
            if !std::mem::take(&mut self.review) {
                break;
            }
            self.look_around();
        }
        if self.review || self.tells {
            self.reactor.notify(self.task);
        }
        self.looked = None;
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.table.len() + self.done.len()
    }
}

impl DiskQueue {
    /// Records that the user has received the error of a failed flush. The queue calls this when
    /// the user polls again or closes the queue: only then has the user processed the completions
    /// of the last poll.
    fn note_told(&mut self) {
        if std::mem::take(&mut self.tells) {
            self.hub.cache.was_told();
            self.hub.keepers.notify();
        }
    }

    /// Closes the controllers that have unfinished writes of this queue. The user no longer waits
    /// for these writes, and a closed controller cannot execute them late.
    fn disown(&mut self) {
        let flushes = (0..self.table.slots()).filter_map(|index| self.table.nature(index));
        for (_, _, carries) in flushes {
            self.hub.cache.flush_ends(carries, Err(BlockError::Aborted));
        }
        for (_, session) in &self.held {
            self.hub.mark_indeterminate(session);
        }
        let away = (0..self.table.slots()).filter(|index| !self.waiting.contains(index));
        if !away.into_iter().any(|index| self.table.may_write(index)) {
            return;
        }
        for leg in self.legs.iter().flatten().chain(&self.dying) {
            if leg.queue.in_flight() > 0 {
                self.hub.mark_indeterminate(&leg.session);
                leg.session.abort("a queue was closed with writes in flight");
            }
        }
    }
}

impl Drop for DiskQueue {
    fn drop(&mut self) {
        self.note_told();
        self.disown();
        self.legs.clear();
        self.dying.clear();
        // Close the connections first: other queues may wait for the freed I/O queues.
        self.hub.remove_mailbox(self.mailbox.id);
        self.hub.meters.close(&self.meter);
        self.held.clear();
        let pool = self.reactor.buffers();
        self.table.abandon().for_each(|buffer| pool.give(buffer));
        self.done.drain(..).filter_map(|done| done.buffer).for_each(|buffer| pool.give(buffer));
        self.reactor.remove_task(self.task);
        // Dropping the last reference closes the disk, which takes too long for an event loop.
        let life = self.life.take();
        if life.as_ref().is_some_and(|life| Arc::strong_count(life) == 1) {
            // If the system cannot start a thread, the drop occurs here and blocks.
            let _ = os::spawn("farblock-close".to_owned(), move || drop(life));
        }
    }
}
