//! A queue of a mirror, for one thread.
//!
//! Each leg gets its own copy of the data to write, and reads into its own buffer. So a leg that
//! does not answer keeps no buffer of the caller, and delays the caller only until the mirror puts
//! this leg out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use farblock_block::{BlockError, Command, Completion, Op, Queue};
use farblock_reactor::{Event, Reactor, TaskId, os};

use super::Life;
use super::choice::{Candidate, Speed, choose};
use super::regions::Entry;
use super::shared::{LegSet, Shared, bit, lock, members};
use farblock_block::slab::Slab;

/// An operation of the caller.
struct Whole {
    /// The caller's operation; `None` once it is completed. Legs may still be executing it.
    op: Option<Op>,
    regions: Range<usize>,
    /// Whether the operation is counted in its regions; see
    /// [`Regions::enter`](super::regions::Regions::enter).
    entered: bool,
    /// The legs that are out and still execute the operation. The mirror lets none of them in
    /// before the operation ends.
    late: LegSet,
    /// The legs that have not answered yet.
    pending: LegSet,
    /// The legs that have executed the operation.
    succeeded: LegSet,
    /// The legs that have answered with an error.
    failed: LegSet,
    error: Option<BlockError>,
    /// For a read: the token of the operation on the leg whose data the caller gets.
    part: Option<u64>,
    /// Whether the caller has abandoned the operation.
    unwanted: bool,
}

impl Whole {
    fn given(&self) -> LegSet {
        self.pending | self.succeeded | self.failed
    }
}

/// An operation on one leg, on behalf of the caller's operation `whole`.
struct LegOperation {
    leg: usize,
    /// The key of the caller's operation; `None` for a read that was redirected to another leg.
    whole: Option<u64>,
    /// The start time of a read that the leg has not answered yet.
    begun: Option<Instant>,
}

/// The queue of a leg.
struct Way {
    instance: u64,
    queue: Option<Box<dyn Queue>>,
    speed: Speed,
}

pub(crate) struct MirrorQueue {
    shared: Arc<Shared>,
    _life: Arc<Life>,
    id: u64,
    reactor: Reactor,
    parent: TaskId,
    /// The task that the keeper (the mirror's thread) wakes.
    task: TaskId,
    ways: Vec<Way>,
    wholes: Slab<Whole>,
    parts: Slab<LegOperation>,
    /// The shared change count ([`Shared::epoch`]) when the queue last checked all of its
    /// operations.
    seen: u64,
    /// The number of reads sent to legs.
    turn: u64,
    /// The queue keeps this vector and the next three to reuse their memory.
    arrived: Vec<Completion>,
    wanted: Vec<usize>,
    events: Vec<Event>,
    done: Vec<Completion>,
    /// The number of operations that have not completed.
    open: usize,
}

impl MirrorQueue {
    pub(crate) fn new(life: &Arc<Life>, reactor: &Reactor, parent: TaskId) -> MirrorQueue {
        let shared = Arc::clone(&life.shared);
        let task = reactor.add_child(parent);
        let id = shared.add_queue(reactor.waker(task));
        let now = os::now();
        let way = |_| Way { instance: u64::MAX, queue: None, speed: Speed::new(now) };
        MirrorQueue {
            ways: (0..shared.legs.len()).map(way).collect(),
            seen: shared.epoch(),
            turn: 0,
            shared,
            _life: Arc::clone(life),
            id,
            reactor: reactor.clone(),
            parent,
            task,
            wholes: Slab::new(),
            parts: Slab::new(),
            arrived: Vec::new(),
            wanted: Vec::new(),
            events: Vec::new(),
            done: Vec::new(),
            open: 0,
        }
    }

    /// Continues an operation as far as possible.
    fn advance(&mut self, key: u64) {
        if self.shared.is_hopeless() {
            return self.give_up(key);
        }
        let whole = self.wholes.at(key);
        let command = whole.op.as_ref().expect("the operation has not completed").command;
        match command {
            Command::Read if whole.pending != 0 => self.redirect_read(key),
            Command::Read => self.begin_read(key),
            _ if whole.given() != 0 => self.conclude(key),
            Command::Flush => self.begin_everywhere(key),
            _ => self.begin_write(key),
        }
    }

    /// Fails an operation, because all legs in sync were unavailable for too long. The operations
    /// on the legs have ended, because this queue has closed its queues to the legs.
    fn give_up(&mut self, key: u64) {
        let whole = self.wholes.at(key);
        let is_read = whole.op.as_ref().is_some_and(|op| op.command == Command::Read);
        if is_read && let Some(part) = whole.part.take() {
            whole.pending = 0;
            self.parts.at(part).whole = None;
        }
        let whole = self.wholes.at(key);
        if whole.pending & self.shared.written() != 0 {
            return;
        }
        if !is_read && whole.given() != 0 {
            self.doubt(key);
        }
        self.finish(key, Err(BlockError::Disconnected));
    }

    fn begin_write(&mut self, key: u64) {
        let whole = self.wholes.at(key);
        if !whole.entered {
            let entry = self.shared.regions.enter(whole.regions.clone(), &mut self.wanted);
            whole.entered = entry != Entry::Closed;
            let hasty = whole.entered && os::has_mistake("a write before its region is dirty");
            if entry != Entry::Go {
                lock(&self.shared.inbox).wanted.append(&mut self.wanted);
                self.shared.wake_keeper();
                if !hasty {
                    return self.give_up_unrecordable(key);
                }
            }
        } else if !self.shared.regions.are_dirty(whole.regions.clone()) {
            return self.give_up_unrecordable(key);
        }
        self.begin_everywhere(key);
    }

    /// Fails a waiting write if the keeper cannot write the bitmap.
    fn give_up_unrecordable(&mut self, key: u64) {
        if self.shared.unrecordable.load(Ordering::SeqCst) {
            self.finish(key, Err(BlockError::WriteFailed));
        }
    }

    /// Sends a write or a flush to every leg that gets writes.
    fn begin_everywhere(&mut self, key: u64) {
        // Read the set of legs only after entering the regions: a leg that was added in between
        // would otherwise miss the write.
        let mut legs = self.shared.written();
        if self.wholes.at(key).regions.is_empty() && os::has_mistake("a flush of one leg") {
            legs &= !(legs - 1);
        }
        self.wholes.at(key).pending = legs;
        for leg in members(legs) {
            let part = self.parts.insert(LegOperation { leg, whole: Some(key), begun: None });
            let op = self.wholes.at(key).op.as_ref().expect("the operation has not completed");
            let copy = op.buffer.as_ref().map(|buffer| {
                let mut copy = self.reactor.buffers().take(buffer.len());
                copy.copy_from_slice(buffer);
                copy
            });
            let command = match op.command {
                // After a deallocate, legs might return different data. After write zeroes, all
                // legs return zeroes.
                Command::Deallocate => Command::WriteZeroes { deallocate: true },
                command => command,
            };
            let part_op = Op::with(command, op.lba, op.blocks, copy, part);
            let part_op = Op { fua: op.fua, ..part_op };
            self.give(leg, part_op);
        }
    }

    /// Submits an operation to a leg. If this queue has no queue to the leg, the operation fails.
    fn give(&mut self, leg: usize, op: Op) {
        let instance = self.shared.legs[leg].instance.load(Ordering::SeqCst);
        let way = &mut self.ways[leg];
        match &mut way.queue {
            Some(queue) if way.instance == instance => queue.submit(op),
            _ => self.arrived.push(op.complete(Err(BlockError::Disconnected))),
        }
    }

    /// Opens queues for the present instances of the legs. Do not call this while handling
    /// completions, because it may add completions.
    fn look_at_ways(&mut self) {
        let is_hopeless = self.shared.is_hopeless();
        for leg in 0..self.ways.len() {
            if is_hopeless && !self.shared.legs[leg].is_there() {
                self.close_way(leg);
                self.ways[leg].instance = u64::MAX;
                continue;
            }
            let instance = self.shared.legs[leg].instance.load(Ordering::SeqCst);
            if self.ways[leg].instance != instance {
                self.close_way(leg);
                let namespace = self.shared.legs[leg].namespace();
                let queue = namespace.and_then(|leg| leg.open(&self.reactor, self.parent).ok());
                self.ways[leg] = Way { instance, queue, speed: Speed::new(os::now()) };
            }
        }
    }

    /// Closes the queue of a leg, and fails the operations on it.
    fn close_way(&mut self, leg: usize) {
        if self.ways[leg].queue.take().is_none() {
            return;
        }
        for token in self.parts.keys_of(|part| part.leg == leg) {
            // The read was not sent to the leg's next queue, so do not count its duration as the
            // speed of that queue.
            self.parts.at(token).begun = None;
            if self.arrived.iter().all(|done| done.token != token) {
                let result = Err(BlockError::Disconnected);
                self.arrived.push(Completion { token, result, buffer: None });
            }
        }
    }

    fn begin_read(&mut self, key: u64) {
        let shared = Arc::clone(&self.shared);
        let whole = self.wholes.at(key);
        let legs = shared.trusted();
        if legs == 0 {
            return; // the queue retries the read when the keeper has checked the leg's record
        }
        if legs.count_ones() > 1
            && let Some(region) = shared.regions.first_suspect(whole.regions.clone())
        {
            lock(&shared.inbox).read_first.push(region);
            return shared.wake_keeper();
        }
        self.read_from(key, legs);
    }

    /// Sends a read to the leg that is expected to answer first.
    fn read_from(&mut self, key: u64, legs: LegSet) {
        let untried = legs & !self.wholes.at(key).failed;
        let (now, turn) = (os::now(), self.turn + 1);
        let candidates = members(untried).map(|leg| Candidate {
            leg,
            is_local: self.shared.legs[leg].is_local,
            speed: &self.ways[leg].speed,
        });
        let Some(leg) = choose(candidates, now, turn) else {
            let error = self.wholes.at(key).error.unwrap_or(BlockError::Disconnected);
            return self.finish(key, Err(error));
        };
        self.turn = turn;
        self.ways[leg].speed.ask(now, turn);
        let part = self.parts.insert(LegOperation { leg, whole: Some(key), begun: Some(now) });
        let whole = self.wholes.at(key);
        (whole.pending, whole.part) = (bit(leg), Some(part));
        let op = whole.op.as_ref().expect("the operation has not completed");
        let (lba, blocks) = (op.lba, op.blocks);
        let buffer = self.reactor.buffers().take(self.shared.geometry.bytes(blocks));
        self.give(leg, Op::read(lba, blocks, buffer, part));
    }

    fn arrive(&mut self, done: Completion, now: Instant) {
        let LegOperation { leg, whole, begun } = self.parts.remove(done.token);
        if let Some(begun) = begun {
            let took = now.saturating_duration_since(begun);
            self.ways[leg].speed.answer(took, done.result.is_err());
        }
        let Some(key) = whole else { return self.arrive_read(leg, None, done) };
        let whole = self.wholes.at(key);
        if whole.part.is_some() {
            return self.arrive_read(leg, Some(key), done);
        }
        whole.pending &= !bit(leg);
        if whole.late & bit(leg) != 0 {
            whole.late &= !bit(leg);
            self.shared.end_late(bit(leg));
        }
        match done.result {
            Ok(()) => whole.succeeded |= bit(leg),
            Err(error) => {
                whole.failed |= bit(leg);
                whole.error = whole.error.or(Some(error));
                let waits = whole.op.is_some() && whole.pending & self.shared.written() != 0;
                if whole.regions.is_empty() && waits && !os::has_mistake("a leg that failed stays")
                {
                    // Put the leg out now, before the other legs answer, because it may have lost
                    // acknowledged data and must not be read.
                    self.shared.put_out(leg, &format!("a flush of the leg failed: {error}"));
                }
            }
        }
        if let Some(buffer) = done.buffer {
            self.reactor.buffers().give(buffer);
        }
        match self.wholes.at(key).op {
            Some(_) => self.conclude(key),
            None => self.leave_if_over(key),
        }
    }

    fn arrive_read(&mut self, leg: usize, whole: Option<u64>, done: Completion) {
        if let Some(key) = whole {
            let whole = self.wholes.at(key);
            (whole.pending, whole.part) = (0, None);
            match (&done.result, &done.buffer) {
                // Use the answer only if the mirror still trusts the leg. A leg that was put out
                // meanwhile may have lost data before it answered.
                (Ok(()), Some(read)) if self.shared.trusted() & bit(leg) != 0 => {
                    let op = whole.op.as_mut().expect("the operation has not completed");
                    op.buffer.as_deref_mut().expect("a read has a buffer").copy_from_slice(read);
                    self.finish(key, Ok(()));
                }
                (Ok(()), _) if self.shared.unproven() & bit(leg) != 0 => self.begin_read(key),
                _ => {
                    whole.failed |= bit(leg);
                    whole.error = whole.error.or(done.result.err());
                    self.read_from(key, self.shared.in_sync());
                }
            }
        }
        if let Some(buffer) = done.buffer {
            self.reactor.buffers().give(buffer);
        }
    }

    /// Completes a write or flush if enough legs have answered.
    fn conclude(&mut self, key: u64) {
        let shared = Arc::clone(&self.shared);
        let whole = self.wholes.at(key);
        if whole.pending & shared.written() != 0 {
            return;
        }
        let (given, succeeded, failed) = (whole.given(), whole.succeeded, whole.failed);
        let error = whole.error.unwrap_or(BlockError::Disconnected);
        let is_flush = whole.regions.is_empty();
        if succeeded & shared.in_sync() == 0 {
            self.doubt(key);
            return self.finish(key, Err(error));
        }
        if succeeded & shared.trusted() == 0 {
            if shared.is_hopeless() {
                self.doubt(key);
                self.finish(key, Err(BlockError::Disconnected));
            }
            return; // another copy may have taken the place of this leg
        }
        let stays = os::has_mistake("a leg that failed stays");
        for leg in members(failed).filter(|_| !stays) {
            if !shared.put_out(leg, &format!("an operation on the leg failed: {error}")) {
                return self.finish(key, Err(error));
            }
        }
        let mut lacking = shared.all() & !succeeded & if stays { !failed } else { u64::MAX };
        if os::has_mistake("an acknowledgement before the record")
            || is_flush && os::has_mistake("a flush of one leg")
        {
            lacking = 0;
        }
        if is_flush {
            // This flush need not include legs that became in sync after it started: the keeper has
            // flushed them.
            lacking &= given | !shared.in_sync();
        }
        if lacking & !shared.behind() == 0 {
            if is_flush && shared.keeper_flushes() {
                return; // retried after the flush of the keeper
            }
            let owed = is_flush && shared.owes_failure.swap(false, Ordering::SeqCst);
            self.finish(key, if owed { Err(BlockError::WriteFailed) } else { Ok(()) });
        } else if shared.unrecordable.load(Ordering::SeqCst) {
            self.finish(key, Err(BlockError::WriteFailed));
        }
    }

    /// Sends a read to another leg if the mirror has put out the leg that was reading.
    fn redirect_read(&mut self, key: u64) {
        let in_sync = self.shared.in_sync();
        let whole = self.wholes.at(key);
        if whole.pending & in_sync != 0 {
            return;
        }
        whole.failed |= whole.pending;
        whole.pending = 0;
        if let Some(part) = whole.part.take() {
            self.parts.at(part).whole = None;
        }
        self.read_from(key, in_sync);
    }

    /// Marks the regions of an operation suspect. Call this if no leg is certain to have executed
    /// the operation, so that legs may differ.
    fn doubt(&mut self, key: u64) {
        let whole = self.wholes.at(key);
        let op = whole.op.as_ref().expect("the operation has not completed");
        let regions = match op.command {
            // A leg may have lost data that was acknowledged since the last flush.
            Command::Flush => 0..self.shared.regions.len(),
            _ => whole.regions.clone(),
        };
        suspect(&self.shared, regions);
    }

    fn finish(&mut self, key: u64, result: Result<(), BlockError>) {
        let whole = self.wholes.at(key);
        let op = whole.op.take().expect("each operation completes once");
        if op.command == Command::Flush && whole.unwanted && whole.given() != 0 && result.is_err() {
            self.shared.owes_failure.store(true, Ordering::SeqCst);
        }
        self.open -= 1;
        self.done.push(op.complete(result));
        self.leave_if_over(key);
    }

    /// Removes a completed operation when no leg executes it any more. If only legs that are out
    /// still execute it, the operation leaves its regions now, since these legs may take long.
    fn leave_if_over(&mut self, key: u64) {
        let whole = self.wholes.at(key);
        let (pending, careless) =
            (whole.pending, os::has_mistake("late parts that nobody waits for"));
        if whole.entered && (pending == 0 || careless || self.shared.expect_late(pending)) {
            whole.entered = false;
            whole.late = if careless { 0 } else { pending };
            if self.shared.regions.leave(whole.regions.clone()) {
                self.shared.wake_keeper();
            }
        }
        if pending == 0 {
            self.wholes.remove(key);
        }
    }

    /// Checks the waiting operations again if the shared state has changed since the last check.
    fn retry(&mut self) {
        let epoch = self.shared.epoch();
        if epoch == self.seen {
            return;
        }
        self.seen = epoch;
        for key in self.wholes.keys_of(|whole| whole.op.is_some()) {
            self.advance(key);
        }
    }
}

/// Marks the dirty regions of `regions` as suspect, so that no queue reads them until they are
/// equal on all legs.
pub(crate) fn suspect(shared: &Shared, regions: Range<usize>) {
    let dirty: Vec<usize> = regions.filter(|&at| shared.regions.is_dirty(at)).collect();
    let mut inbox = lock(&shared.inbox);
    dirty.iter().for_each(|&region| shared.regions.suspect(region));
    inbox.suspects.extend(dirty);
    drop(inbox);
    shared.wake_keeper();
}

impl Queue for MirrorQueue {
    fn submit(&mut self, op: Op) {
        let geometry = self.shared.geometry;
        let checked = op.check(&geometry);
        let nothing = op.command != Command::Flush && op.blocks == 0
            || op.command == Command::Deallocate && !geometry.deallocate;
        if checked.is_err() || nothing {
            return self.done.push(op.complete(checked));
        }
        let regions = match op.command {
            Command::Flush => 0..0,
            _ => self.shared.regions_of(op.lba, op.blocks),
        };
        let whole = Whole {
            op: Some(op),
            regions,
            entered: false,
            late: 0,
            pending: 0,
            succeeded: 0,
            failed: 0,
            error: None,
            part: None,
            unwanted: false,
        };
        self.open += 1;
        let key = self.wholes.insert(whole);
        self.look_at_ways();
        self.advance(key);
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.reactor.take_events(self.task, &mut self.events);
        self.events.clear(); // the keeper only wakes this task
        loop {
            self.look_at_ways();
            self.retry();
            let mut arrived = std::mem::take(&mut self.arrived);
            for way in &mut self.ways {
                if let Some(queue) = &mut way.queue {
                    queue.poll(&mut arrived);
                }
            }
            if arrived.is_empty() {
                self.arrived = arrived;
                break;
            }
            let now = os::now();
            for completion in arrived.drain(..) {
                self.arrive(completion, now);
            }
            if self.arrived.is_empty() {
                self.arrived = arrived;
            }
        }
        done.append(&mut self.done);
    }

    /// Drops the unwanted operations that still wait and that no leg has received.
    fn abandon(&mut self, unwanted: &mut dyn FnMut(u64) -> bool) {
        let keys = self
            .wholes
            .keys_of(|whole| whole.op.as_ref().is_some_and(|op| unwanted(op.token.value())));
        for key in keys {
            let whole = self.wholes.at(key);
            whole.unwanted = true;
            if whole.given() == 0 {
                self.finish(key, Err(BlockError::Aborted));
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.open + self.done.len()
    }
}

impl Drop for MirrorQueue {
    fn drop(&mut self) {
        self.shared.remove_queue(self.id);
        self.reactor.remove_task(self.task);
        self.ways.clear();
        for whole in self.wholes.drain() {
            if whole.pending != 0 && (whole.entered || whole.late != 0) {
                suspect(&self.shared, whole.regions.clone());
            }
            self.shared.end_late(whole.late);
            if whole.entered && self.shared.regions.leave(whole.regions) {
                self.shared.wake_keeper();
            }
            if let Some(op) = whole.op {
                op.abandon();
            }
        }
    }
}
