//! The access of the keeper (the mirror's thread) to the legs. The keeper submits at most one
//! operation to each leg, and the panel waits for all of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farblock_block::{BlockError, Completion, Geometry, Namespace, Op, Queue};
use farblock_reactor::{Config, EngineKind, Event, Reactor, TaskId, os};

use super::shared::{Shared, bit, members};
use crate::limits::{HOPE, WAIT_LIMIT};

/// The interval of checks of an unavailable leg, while the keeper waits for the leg.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The result of an operation on a leg.
pub(crate) struct Ended {
    pub(crate) leg: usize,
    pub(crate) done: Completion,
}

struct Way {
    instance: u64,
    queue: Option<Box<dyn Queue>>,
    pending: usize,
}

pub(crate) struct Panel {
    shared: Arc<Shared>,
    // Declared before `reactor`, so that the queues are dropped first. A queue may deregister from
    // the reactor.
    ways: Vec<Way>,
    pub(crate) reactor: Reactor,
    pub(crate) task: TaskId,
    away: Vec<Option<Instant>>,
    /// When the last usable leg in sync became unusable; `None` while one is usable.
    useless: Option<Instant>,
    arrived: Vec<Completion>,
    ready: Vec<TaskId>,
    events: Vec<Event>,
    /// Whether the panel has run operations since the last wait. Those operations may have
    /// consumed a wake-up that was meant for the next wait.
    pub(crate) has_run: bool,
    /// Whether the mirror is starting. Then the panel waits only for a limited time, even for the
    /// last leg in sync.
    pub(crate) is_starting: bool,
}

impl Panel {
    pub(crate) fn new(shared: &Arc<Shared>, engine: EngineKind) -> std::io::Result<Panel> {
        let reactor = Reactor::new(&Config { engine, ..Config::default() })?;
        let task = reactor.add_task();
        let way = |_| Way { instance: u64::MAX, queue: None, pending: 0 };
        Ok(Panel {
            ways: (0..shared.legs.len()).map(way).collect(),
            away: vec![None; shared.legs.len()],
            useless: None,
            shared: Arc::clone(shared),
            reactor,
            task,
            arrived: Vec::new(),
            ready: Vec::new(),
            events: Vec::new(),
            has_run: false,
            is_starting: false,
        })
    }

    /// Waits until the keeper is woken or the timeout ends.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) {
        let polled = self.reactor.poll(timeout, &mut self.ready);
        polled.expect("the event loop failed");
        self.reactor.take_events(self.task, &mut self.events);
        self.events.clear();
    }

    /// Runs operations, at most one per leg, and waits for all of them. If a leg is unavailable for
    /// too long, the panel puts it out, and its operation fails.
    pub(crate) fn run(&mut self, ops: Vec<(usize, Op)>) -> Vec<Ended> {
        self.run_telling(ops, |_| {})
    }

    /// Like [`Panel::run`], but calls `tell` for each result while other operations are pending.
    pub(crate) fn run_telling(
        &mut self,
        ops: Vec<(usize, Op)>,
        mut tell: impl FnMut(&Ended),
    ) -> Vec<Ended> {
        let (mut ended, mut told) = (Vec::new(), 0);
        self.has_run = true;
        for (leg, op) in ops {
            self.look_at_way(leg);
            match &mut self.ways[leg].queue {
                Some(queue) => {
                    queue.submit(op);
                    self.ways[leg].pending += 1;
                }
                None => ended.push(Ended { leg, done: op.complete(Err(BlockError::Disconnected)) }),
            }
        }
        loop {
            self.collect(&mut ended);
            ended[told..].iter().for_each(&mut tell);
            told = ended.len();
            if self.ways.iter().any(|way| way.pending != 0) {
                self.give_up(&mut ended);
            }
            if self.ways.iter().all(|way| way.pending == 0) {
                ended[told..].iter().for_each(tell);
                return ended;
            }
            self.wait(Some(LOOK_EVERY));
        }
    }

    /// The geometry of a leg with the size that the leg had at open.
    pub(crate) fn geometry(&self, leg: usize, namespace: &Arc<dyn Namespace>) -> Geometry {
        let geometry = namespace.geometry();
        let blocks = self.shared.legs[leg].blocks().unwrap_or(geometry.blocks);
        Geometry { blocks, ..geometry }
    }

    /// Like [`Panel::run`], for one operation.
    pub(crate) fn run_one(&mut self, leg: usize, op: Op) -> Completion {
        self.run(vec![(leg, op)]).pop().expect("each operation completes once").done
    }

    fn collect(&mut self, ended: &mut Vec<Ended>) {
        for (leg, way) in self.ways.iter_mut().enumerate() {
            let Some(queue) = &mut way.queue else { continue };
            queue.poll(&mut self.arrived);
            for done in self.arrived.drain(..) {
                way.pending -= 1;
                ended.push(Ended { leg, done });
            }
        }
    }

    /// Stops waiting for operations on legs that were put out.
    fn give_up(&mut self, ended: &mut Vec<Ended>) {
        self.look_for_absence();
        let stopped = self.shared.is_stopped();
        let now = os::now();
        let waited = |since: Instant| now.saturating_duration_since(since) >= WAIT_LIMIT;
        for (leg, way) in self.ways.iter_mut().enumerate() {
            let out = self.shared.written() & bit(leg) == 0;
            let there = self.shared.legs[leg].is_there();
            let in_vain = self.is_starting && self.away[leg].is_some_and(waited);
            if way.pending > 0 && !there && (out || stopped || in_vain) {
                (way.queue, way.instance) = (None, u64::MAX);
                for _ in 0..std::mem::take(&mut way.pending) {
                    let result = Err(BlockError::Disconnected);
                    ended.push(Ended { leg, done: Completion { token: 0, result, buffer: None } });
                }
            }
        }
    }

    /// Drops the queue of a leg that is about to be opened again.
    pub(crate) fn forget(&mut self, leg: usize) {
        self.ways[leg] = Way { instance: u64::MAX, queue: None, pending: 0 };
    }

    /// If all legs in sync have been unusable for [`HOPE`], makes operations fail until a leg in
    /// sync is usable again.
    fn look_for_hope(&mut self, now: Instant) {
        let is_of_use = |leg: usize| self.shared.legs[leg].is_there();
        if members(self.shared.trusted()).any(is_of_use) {
            self.useless = None;
        } else {
            self.useless.get_or_insert(now);
        }
        let waited = |since: Instant| now.saturating_duration_since(since) >= HOPE;
        self.shared.set_hopeless(self.useless.is_some_and(waited));
    }

    /// Puts out legs that are unavailable for too long. Returns true if the panel still waits for
    /// an unavailable leg.
    pub(crate) fn look_for_absence(&mut self) -> bool {
        let mut some = false;
        let now = os::now();
        self.look_for_hope(now);
        for (leg, away) in self.away.iter_mut().enumerate() {
            if self.shared.written() & bit(leg) == 0 || self.shared.legs[leg].is_there() {
                *away = None;
                continue;
            }
            let since = *away.get_or_insert(now);
            let patient = now.saturating_duration_since(since) < WAIT_LIMIT;
            some |= patient || !self.shared.put_out(leg, &self.shared.legs[leg].absence());
        }
        some || self.useless.is_some()
    }

    fn look_at_way(&mut self, leg: usize) {
        let instance = self.shared.legs[leg].instance.load(Ordering::SeqCst);
        if self.ways[leg].instance != instance {
            let namespace = self.shared.legs[leg].namespace();
            let queue = namespace.and_then(|leg| leg.open(&self.reactor, self.task).ok());
            self.ways[leg] = Way { instance, queue, pending: 0 };
        }
    }
}
