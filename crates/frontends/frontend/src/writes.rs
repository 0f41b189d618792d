//! Writes partial blocks. The server reads the block, changes it and writes it back, and no other
//! write may run meanwhile.
//!
//! The server passes writes of whole blocks directly to the namespace. A client that does not know
//! the block size may write part of a block. The server then *merges*: it reads the block, changes
//! it and writes it back. Between the read and the write no other write of this server may run,
//! from any client on any core, because the merge would undo it. (The server cannot exclude writes
//! of other hosts to a remote namespace.) So a merge waits until no write is in flight on any core,
//! and writes wait until the merge is done. Merges are slow, but rare. Without merges, a write of
//! whole blocks only updates a counter.
//!
//! Cores (threads) coordinate by messages. Each core has a [`Gate`] that holds back its writes, and
//! the first core has the [`Arbiter`] that lets one core merge at a time:
//!
//! ```text
//! Open ──Close──> Closing ──last write done──> Closed ──Grant──> (merges) ──Open──> Open
//!                              reports Closed                    reports Done
//! ```

use std::collections::VecDeque;

use crate::limits;

/// A message from the arbiter to a core's gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Start no more writes, and report when no write is in flight.
    Close,
    /// Start merging.
    Grant,
    /// Continue with writes.
    Open,
}

/// A message from a core's gate to the arbiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// The core wants to merge.
    Wants,
    /// No write is in flight.
    Closed,
    /// The core has finished merging.
    Done,
}

/// Decides which core may merge. Only one core merges at a time.
#[derive(Debug)]
pub struct Arbiter {
    cores: usize,
    waiting: VecDeque<usize>,
    /// `None`: all gates are open. `Some`: the gates are closing, and this many have closed.
    closed: Option<usize>,
}

impl Arbiter {
    /// An arbiter for this many cores.
    #[must_use]
    pub fn new(cores: usize) -> Arbiter {
        Arbiter { cores, waiting: VecDeque::new(), closed: None }
    }

    /// Handles a report from a core. Calls `order` for each core that gets an order.
    pub fn handle(&mut self, core: usize, report: Report, mut order: impl FnMut(usize, Order)) {
        match report {
            Report::Wants => self.waiting.push_back(core),
            Report::Closed => {
                let closed = self.closed.as_mut().expect("the arbiter ordered the gates to close");
                *closed += 1;
                if *closed == self.cores {
                    let next = self.waiting.pop_front().expect("a core waits for the grant");
                    order(next, Order::Grant);
                }
            }
            Report::Done => {
                self.closed = None;
                (0..self.cores).for_each(|core| order(core, Order::Open));
            }
        }
        // Waiting writes run after one core's merges, before the next core closes the gates again.
        if self.closed.is_none() && !self.waiting.is_empty() {
            self.closed = Some(0);
            (0..self.cores).for_each(|core| order(core, Order::Close));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GateState {
    /// Writes may start.
    Open,
    /// No more writes start; some are still in flight.
    Closing,
    /// No write is in flight.
    Closed,
    /// This core may execute this many more merges in its turn.
    Merging(usize),
}

/// Holds back or admits the writes and merges of one core. A value of type `T` identifies a write
/// or merge.
#[derive(Debug)]
pub struct Gate<T> {
    state: GateState,
    in_flight: usize,
    parked: VecDeque<T>,
    merges: VecDeque<T>,
    /// True while this core waits for a turn to merge.
    wants: bool,
}

impl<T> Default for Gate<T> {
    fn default() -> Gate<T> {
        Gate::new()
    }
}

impl<T> Gate<T> {
    /// Makes an open gate.
    #[must_use]
    pub fn new() -> Gate<T> {
        let (parked, merges) = (VecDeque::new(), VecDeque::new());
        Gate { state: GateState::Open, in_flight: 0, parked, merges, wants: false }
    }

    /// Admits a write of whole blocks, or parks it. Returns the write if it may start now.
    /// Otherwise [`next_parked`](Self::next_parked) returns it later.
    pub fn enter(&mut self, write: T) -> Option<T> {
        if self.state == GateState::Open {
            self.in_flight += 1;
            return Some(write);
        }
        self.parked.push_back(write);
        None
    }

    /// Records that a write of whole blocks has completed. May return a report for the arbiter.
    pub fn leave(&mut self) -> Option<Report> {
        self.in_flight -= 1;
        self.closed()
    }

    fn closed(&mut self) -> Option<Report> {
        if self.state == GateState::Closing && self.in_flight == 0 {
            self.state = GateState::Closed;
            return Some(Report::Closed);
        }
        None
    }

    /// Queues a merge, which [`next_merge`](Self::next_merge) returns later. May return a report
    /// for the arbiter.
    pub fn enter_merge(&mut self, merge: T) -> Option<Report> {
        self.merges.push_back(merge);
        (!std::mem::replace(&mut self.wants, true)).then_some(Report::Wants)
    }

    /// Executes an order of the arbiter. May return a report for the arbiter.
    pub fn obey(&mut self, order: Order) -> Option<Report> {
        match order {
            Order::Close => {
                self.state = GateState::Closing;
                self.closed()
            }
            Order::Grant => {
                self.state = GateState::Merging(limits::MERGES_PER_TURN);
                None
            }
            Order::Open => {
                self.state = GateState::Open;
                None
            }
        }
    }

    /// Returns the next merge to execute. Call this function after a grant, and after each merge.
    ///
    /// # Errors
    /// Returns a report for the arbiter if no merge is queued or this core's turn is over.
    ///
    /// # Panics
    /// Panics if the arbiter has not granted this core its turn.
    pub fn next_merge(&mut self) -> Result<T, Report> {
        let GateState::Merging(left) = &mut self.state else { panic!("merge without a grant") };
        if *left > 0
            && let Some(merge) = self.merges.pop_front()
        {
            *left -= 1;
            return Ok(merge);
        }
        self.state = GateState::Closed;
        self.wants = false;
        Err(Report::Done)
    }

    /// Requests another turn if merges are queued. Call this function after [`Report::Done`].
    pub fn wants_more(&mut self) -> Option<Report> {
        (!self.merges.is_empty() && !std::mem::replace(&mut self.wants, true))
            .then_some(Report::Wants)
    }

    /// Returns a parked write, which may start now. Returns `None` if the gate is not open.
    pub fn next_parked(&mut self) -> Option<T> {
        if self.state != GateState::Open {
            return None;
        }
        let write = self.parked.pop_front()?;
        self.in_flight += 1;
        Some(write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_random::Random;
    use std::collections::VecDeque;

    /// Simulates cores that exchange messages, which arrive in order after a random delay.
    struct World {
        arbiter: Arbiter,
        gates: Vec<Gate<u32>>,
        orders: Vec<VecDeque<Order>>,
        reports: VecDeque<(usize, Report)>,
        /// The core of each write of whole blocks in flight.
        writes: Vec<usize>,
        merging: Option<usize>,
        ended: usize,
        random: Random,
    }

    impl World {
        fn new(cores: usize, seed: u64) -> World {
            World {
                arbiter: Arbiter::new(cores),
                gates: (0..cores).map(|_| Gate::new()).collect(),
                orders: vec![VecDeque::new(); cores],
                reports: VecDeque::new(),
                writes: Vec::new(),
                merging: None,
                ended: 0,
                random: Random::new(seed),
            }
        }

        fn report(&mut self, core: usize, report: Option<Report>) {
            self.reports.extend(report.map(|report| (core, report)));
        }

        fn begin_write(&mut self, core: usize) {
            assert_eq!(self.merging, None, "a write starts during a merge");
            self.writes.push(core);
        }

        fn next_merge(&mut self, core: usize) {
            match self.gates[core].next_merge() {
                Ok(_) => {
                    assert!(
                        self.writes.is_empty() && self.merging.is_none(),
                        "a merge starts during other writes"
                    );
                    self.merging = Some(core);
                }
                Err(report) => {
                    self.report(core, Some(report));
                    let more = self.gates[core].wants_more();
                    self.report(core, more);
                }
            }
        }

        /// Executes one possible step, chosen at random.
        fn step(&mut self) {
            match self.random.below(4) {
                0 => {
                    if let Some((core, report)) = self.reports.pop_front() {
                        let orders = &mut self.orders;
                        self.arbiter.handle(core, report, |core, order| {
                            orders[core].push_back(order);
                        });
                    }
                }
                1 => {
                    let core = self.random.index(self.gates.len());
                    let Some(order) = self.orders[core].pop_front() else { return };
                    let report = self.gates[core].obey(order);
                    self.report(core, report);
                    if order == Order::Grant {
                        self.next_merge(core);
                    }
                    while let Some(_write) = self.gates[core].next_parked() {
                        self.begin_write(core);
                    }
                }
                2 if !self.writes.is_empty() => {
                    let index = self.random.index(self.writes.len());
                    let core = self.writes.swap_remove(index);
                    let report = self.gates[core].leave();
                    self.report(core, report);
                    self.ended += 1;
                }
                _ => {
                    if let Some(core) = self.merging.take() {
                        self.ended += 1;
                        self.next_merge(core);
                    }
                }
            }
        }
    }

    #[test]
    fn merges_exclude_other_writes_and_all_requests_complete() {
        for seed in 0..200 {
            let cores = 1 + seed as usize % 4;
            let mut world = World::new(cores, seed);
            let requests = 300;
            for request in 0..requests {
                let core = world.random.index(cores);
                if world.random.one_in(3) {
                    let report = world.gates[core].enter_merge(request);
                    world.report(core, report);
                } else if world.gates[core].enter(request).is_some() {
                    world.begin_write(core);
                }
                (0..world.random.below(8)).for_each(|_| world.step());
            }
            (0..100_000).for_each(|_| world.step());
            assert_eq!(world.ended, requests as usize, "seed {seed}: some requests never ended");
            assert!(world.gates.iter().all(|gate| gate.state == GateState::Open), "seed {seed}");
        }
    }
}
