//! The queue of the authentication thread.
//!
//! The thread serves the address with the least charged work first. The charge is the recent work
//! for the address, plus the work of its next request if that request starts an exchange. Later
//! requests of an exchange add nothing, so that a started exchange can finish. Among addresses with
//! equal work, the latest arrival is first: a peer that has waited long probably gives up soon. So
//! a new host overtakes any number of attackers' addresses that arrived earlier.
//!
//! An address is known if a host has authenticated from it. If known and unknown addresses wait,
//! the thread takes every second request from a known address, and the others from unknown
//! addresses.

use crate::limits;
use farblock_secure::Cost;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

/// A request in the backlog.
pub(super) trait Work {
    fn is_awaited(&self) -> bool;

    fn cost(&self) -> Cost;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    pub(super) address: IpAddr,
    /// Whether a host has authenticated from this address.
    pub(super) is_known: bool,
}

pub(super) struct Backlog<W> {
    known: Turns<W>,
    strangers: Turns<W>,
    is_strangers_turn: bool,
    spent: HashMap<IpAddr, u64>,
    halved_at: Instant,
    /// The number of waiting requests at which [`Self::push`] drops the requests of closed
    /// connections.
    swept_at: usize,
}

/// The addresses with waiting requests, in the order of service.
struct Turns<W> {
    lines: HashMap<IpAddr, Line<W>>,
    order: BTreeSet<(BacklogPlace, IpAddr)>,
    /// The serial number for the next [`BacklogPlace`].
    serial: u64,
    count: usize,
}

/// The sort key of an address: its charged work and a serial number. Among addresses with equal
/// work, the address whose key changed last is first.
type BacklogPlace = (u64, Reverse<u64>);

/// The requests of one address; never empty.
struct Line<W> {
    works: VecDeque<W>,
    place: BacklogPlace,
}

impl<W: Work> Backlog<W> {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            known: Turns::new(),
            strangers: Turns::new(),
            is_strangers_turn: false,
            spent: HashMap::new(),
            halved_at: now,
            swept_at: limits::SWEPT_CALCULATIONS,
        }
    }

    pub(super) fn push(&mut self, origin: Origin, work: W) {
        let spent = self.spent.get(&origin.address).copied().unwrap_or_default();
        match origin.is_known {
            true => self.known.push(origin.address, spent, work),
            false => self.strangers.push(origin.address, spent, work),
        }
        if self.len() >= self.swept_at {
            // Drop the requests of closed connections. Do this rarely, so that the cost per request
            // is small.
            self.known.sweep();
            self.strangers.sweep();
            self.swept_at = limits::SWEPT_CALCULATIONS.max(2 * self.len());
        }
    }

    /// Takes the next request, and charges the work of the request to its address.
    pub(super) fn pop(&mut self, now: Instant) -> Option<W> {
        self.is_strangers_turn = !self.is_strangers_turn;
        let (address, work) = match self.is_strangers_turn {
            true => self.strangers.pop().or_else(|| self.known.pop()),
            false => self.known.pop().or_else(|| self.strangers.pop()),
        }?;
        self.spend(address, work.cost().work, now);
        Some(work)
    }

    fn spend(&mut self, address: IpAddr, work: u64, now: Instant) {
        let spent = self.spent.entry(address).or_default();
        *spent += work;
        let spent = *spent;
        self.known.move_to(address, spent);
        self.strangers.move_to(address, spent);
        let mut is_late =
            now.saturating_duration_since(self.halved_at) >= limits::CALCULATED_LATELY;
        while is_late || self.spent.len() > limits::CALCULATED_ADDRESSES {
            self.halved_at = now;
            self.halve();
            is_late = false;
        }
    }

    /// Halves the recorded work of every address. Forgets the addresses that are then below
    /// [`limits::CALCULATED_LITTLE`].
    fn halve(&mut self) {
        self.spent.retain(|address, spent| {
            let is_much = *spent / 2 >= limits::CALCULATED_LITTLE;
            *spent = if is_much { *spent / 2 } else { 0 };
            self.known.move_to(*address, *spent);
            self.strangers.move_to(*address, *spent);
            is_much
        });
    }

    fn len(&self) -> usize {
        self.known.count + self.strangers.count
    }
}

impl<W: Work> Turns<W> {
    fn new() -> Self {
        Self { lines: HashMap::new(), order: BTreeSet::new(), serial: 0, count: 0 }
    }

    fn push(&mut self, address: IpAddr, spent: u64, work: W) {
        self.count += 1;
        if let Some(line) = self.lines.get_mut(&address) {
            return line.works.push_back(work);
        }
        let line = Line { works: [work].into(), place: (0, Reverse(0)) };
        self.lines.insert(address, line);
        self.move_to(address, spent);
    }

    /// Moves a waiting address to its new place in the order, now that its recorded work is
    /// `spent`.
    fn move_to(&mut self, address: IpAddr, spent: u64) {
        let Some(line) = self.lines.get_mut(&address) else { return };
        let next = line.works.front().expect("an address in line has work").cost();
        let spent = if next.is_beginning { spent + next.work } else { spent };
        self.serial += 1;
        let old = std::mem::replace(&mut line.place, (spent, Reverse(self.serial)));
        self.order.remove(&(old, address));
        self.order.insert((line.place, address));
    }

    fn pop(&mut self) -> Option<(IpAddr, W)> {
        loop {
            let &(place, address) = self.order.first()?;
            let line = self
                .lines
                .get_mut(&address)
                .expect("the address of a waiting connection is listed");
            let work = line.works.pop_front().expect("an address in line has work");
            self.count -= 1;
            if line.works.is_empty() {
                self.lines.remove(&address);
                self.order.remove(&(place, address));
            }
            if work.is_awaited() {
                return Some((address, work));
            }
        }
    }

    fn sweep(&mut self) {
        self.lines.retain(|_, line| {
            line.works.retain(Work::is_awaited);
            !line.works.is_empty()
        });
        self.order.retain(|(_, address)| self.lines.contains_key(address));
        self.count = self.lines.values().map(|line| line.works.len()).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::{Rc, Weak};

    const LITTLE: Cost = Cost { work: 200, is_beginning: true };
    const MUCH: Cost = Cost { work: 7000, is_beginning: true };

    struct Named(&'static str, Cost, Weak<()>);

    impl Work for Named {
        fn is_awaited(&self) -> bool {
            self.2.upgrade().is_some()
        }

        fn cost(&self) -> Cost {
            self.1
        }
    }

    /// A backlog in which every request belongs to a connected peer.
    struct Stage {
        backlog: Backlog<Named>,
        now: Instant,
        somebody: Rc<()>,
    }

    impl Stage {
        fn new() -> Self {
            let now = Instant::now();
            Self { backlog: Backlog::new(now), now, somebody: Rc::new(()) }
        }

        fn push(&mut self, number: u32, is_known: bool, name: &'static str, cost: Cost) {
            let address = IpAddr::from(number.to_be_bytes());
            let work = Named(name, cost, Rc::downgrade(&self.somebody));
            self.backlog.push(Origin { address, is_known }, work);
        }

        fn next(&mut self) -> Option<&'static str> {
            self.backlog.pop(self.now).map(|work| work.0)
        }

        fn order(&mut self) -> Vec<&'static str> {
            std::iter::from_fn(|| self.next()).collect()
        }
    }

    #[test]
    fn addresses_take_turns_starting_with_the_newest() {
        let mut stage = Stage::new();
        for (number, name) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (2, "b2"), (3, "c1")] {
            stage.push(number, false, name, LITTLE);
        }
        assert_eq!(stage.order(), ["c1", "b1", "a1", "a2", "b2", "a3"]);
        let Backlog { strangers, .. } = &stage.backlog;
        assert!(strangers.count == 0 && strangers.lines.is_empty() && strangers.order.is_empty());
    }

    #[test]
    fn a_host_precedes_addresses_that_used_much_computing_time() {
        for cost in [LITTLE, MUCH] {
            let mut stage = Stage::new();
            (0..10_000).for_each(|number| stage.push(number, false, "stranger", cost));
            stage.push(20_000, false, "host", LITTLE);
            assert_eq!(stage.next(), Some("host"));
            (10_000..10_100).for_each(|number| stage.push(number, false, "stranger", cost));
            let reply = Cost { is_beginning: false, ..LITTLE };
            stage.push(20_000, false, "host", reply);
            assert_eq!(stage.next(), Some("host"), "a calculation that started is not dropped");
            assert_eq!(stage.order().len(), 10_100);
        }
    }

    #[test]
    fn recorded_computing_time_decays_and_is_bounded() {
        let mut stage = Stage::new();
        for number in 0..3 * limits::CALCULATED_ADDRESSES as u32 {
            stage.push(number, false, "stranger", MUCH);
            stage.next();
            assert!(stage.backlog.spent.len() <= limits::CALCULATED_ADDRESSES);
        }
        for _ in 0..10 {
            stage.now += limits::CALCULATED_LATELY;
            stage.push(0, false, "another", Cost { work: 1, is_beginning: true });
            stage.next();
        }
        assert!(stage.backlog.spent.len() < 2, "{:?}", stage.backlog.spent.len());
    }

    #[test]
    fn every_second_request_comes_from_a_known_address() {
        let mut stage = Stage::new();
        (1..4).for_each(|number| stage.push(number, false, "stranger", LITTLE));
        (1..3).for_each(|_| stage.push(4, true, "host", MUCH));
        assert_eq!(stage.order(), ["stranger", "host", "stranger", "host", "stranger"]);
    }

    #[test]
    fn jobs_of_closed_connections_take_no_turn_and_no_memory() {
        let mut stage = Stage::new();
        for (number, name) in [(1, "gone"), (2, "gone")] {
            stage.push(number, false, name, LITTLE);
        }
        drop(std::mem::take(&mut stage.somebody));
        stage.push(1, false, "here", LITTLE);
        assert_eq!(stage.order(), ["here"]);
        stage.push(9, true, "here", LITTLE);
        let here = std::mem::take(&mut stage.somebody);
        for number in 0..10 * limits::SWEPT_CALCULATIONS {
            stage.push(number as u32, false, "gone", LITTLE);
            drop(std::mem::take(&mut stage.somebody));
        }
        let kept = stage.backlog.len();
        assert!(kept < limits::SWEPT_CALCULATIONS, "{kept} entries are kept");
        assert_eq!(stage.order(), ["here"]);
        drop(here);
    }
}
