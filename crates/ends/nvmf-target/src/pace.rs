//! What hosts may do with a namespace in a second, all of them together, and what one host may do
//! with all namespaces of a subsystem.
//!
//! A budget is no bucket that somebody fills, but the moment up to which it has been spent: a
//! command moves that on by what it costs, and starts when the moment that it found has come, or
//! up to a burst before. So cores share a budget by one atomic update a command, and nobody owns
//! it. A connection books for one command of a kind at a time, the first that waits: connections
//! get their parts in turn, and one that ends gives back one booking, and not all that it had sent.

use crate::shares::DEFAULT_WEIGHT;
use farblock_proto::controller::IoCommand;
use farblock_proto::ids::NamespaceId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What may be spent at once after a pause, unless something else is chosen.
pub const DEFAULT_BURST: Duration = Duration::from_millis(20);

/// Most that may be spent at once after a pause.
pub const MAX_BURST: Duration = Duration::from_secs(60);

/// Longest that a command waits, however little it may spend: what a timer can be set for.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// So much of one kind in a second; 0: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rate {
    /// Of reads and writes together.
    pub all: u64,
    /// Of reads.
    pub reads: u64,
    /// Of writes.
    pub writes: u64,
}

/// The limits of a namespace, or of a host. Flushes and reservations have none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rates {
    /// Commands in a second.
    pub commands: Rate,
    /// Bytes in a second.
    pub bytes: Rate,
    /// After a pause, as much may be spent at once as the limits allow in this time.
    pub burst: Duration,
    /// How much a host gets of a core that is full, beside others. Of a namespace it says nothing.
    pub weight: u32,
}

impl Default for Rates {
    /// No limit, and as much as any other host.
    fn default() -> Self {
        let (commands, bytes) = (Rate::default(), Rate::default());
        Self { commands, bytes, burst: DEFAULT_BURST, weight: DEFAULT_WEIGHT }
    }
}

impl Rates {
    /// Whether anything is limited.
    #[must_use]
    pub fn limit_anything(&self) -> bool {
        self.commands != Rate::default() || self.bytes != Rate::default()
    }

    /// Whether the same is limited.
    pub(crate) fn limit_alike(&self, other: &Self) -> bool {
        *self == Self { weight: self.weight, ..*other }
    }
}

/// Which budget a command is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PaceKind {
    Read,
    Write,
}

/// What a command spends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cost {
    pub(crate) namespace: NamespaceId,
    pub(crate) kind: PaceKind,
    bytes: u64,
}

impl Cost {
    pub(crate) fn new(namespace: NamespaceId, kind: PaceKind, bytes: u64) -> Self {
        Self { namespace, kind, bytes }
    }

    /// `None`: nothing. What a Copy costs is counted by its steps.
    pub(crate) fn of(command: &IoCommand, block_size: u32) -> Option<Self> {
        let cost = |namespace, kind, bytes: u64| Some(Self { namespace, kind, bytes });
        match *command {
            IoCommand::Read { namespace, data, .. }
            | IoCommand::Compare { namespace, data, .. } => {
                cost(namespace, PaceKind::Read, data.length().into())
            }
            IoCommand::Verify { namespace, blocks, .. } => {
                let bytes = u64::from(blocks.0) * u64::from(block_size);
                cost(namespace, PaceKind::Read, bytes)
            }
            IoCommand::Write { namespace, data, .. } => {
                cost(namespace, PaceKind::Write, data.length().into())
            }
            IoCommand::WriteZeroes { namespace, .. } | IoCommand::Deallocate { namespace, .. } => {
                cost(namespace, PaceKind::Write, 0)
            }
            _ => None,
        }
    }
}

/// One budget: nanoseconds since the beginning up to which it has been spent.
#[derive(Default, Debug)]
struct Budget {
    per_second: u64,
    spent: AtomicU64,
}

impl Budget {
    fn new(per_second: u64) -> Self {
        Self { per_second, spent: AtomicU64::new(0) }
    }

    /// Books so much, and says when what was booked may start.
    fn book(&self, amount: u64, now: u64, burst: u64) -> u64 {
        if self.per_second == 0 || amount == 0 {
            return 0;
        }
        let cost = self.cost(amount);
        // What was not spent is lost, apart from a burst's worth.
        let unspent = now.saturating_sub(burst);
        let found = self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent| {
            Some(spent.max(unspent).saturating_add(cost))
        });
        found.unwrap_or_else(|spent| spent).max(unspent)
    }

    /// What so much takes of the time, in nanoseconds.
    fn cost(&self, amount: u64) -> u64 {
        let cost = u128::from(amount) * 1_000_000_000 / u128::from(self.per_second.max(1));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// What was booked is not done: it is there for others.
    fn give_back(&self, amount: u64) {
        if self.per_second > 0 {
            let cost = self.cost(amount);
            let less = |spent: u64| Some(spent.saturating_sub(cost));
            let _ = self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

/// A namespace's budgets.
#[derive(Debug)]
pub(crate) struct Pace {
    epoch: Instant,
    burst: u64,
    /// Of all, of reads, of writes: commands, then bytes.
    budgets: [[Budget; 3]; 2],
}

impl Pace {
    /// `None`: nothing is limited.
    pub(crate) fn new(rates: &Rates, epoch: Instant) -> Option<Self> {
        let budgets = |rate: Rate| [rate.all, rate.reads, rate.writes].map(Budget::new);
        rates.limit_anything().then(|| Self {
            epoch,
            burst: rates.burst.min(MAX_BURST).as_nanos() as u64,
            budgets: [budgets(rates.commands), budgets(rates.bytes)],
        })
    }

    /// Books a command, and says when it may start.
    pub(crate) fn book(&self, cost: Cost, now: Instant) -> Instant {
        let since = now.saturating_duration_since(self.epoch).as_nanos();
        // A burst is there from the beginning.
        let now = (since as u64).saturating_add(self.burst);
        let budgets = self.budgets_of(cost);
        let starts = budgets.map(|(budget, amount)| budget.book(amount, now, self.burst));
        let start = starts.max().unwrap_or(0);
        let start = start.min(now.saturating_add(LONGEST_WAIT.as_nanos() as u64));
        self.epoch + Duration::from_nanos(start.saturating_sub(self.burst))
    }

    /// A command that was booked is not carried out.
    pub(crate) fn give_back(&self, cost: Cost) {
        self.budgets_of(cost).for_each(|(budget, amount)| budget.give_back(amount));
    }

    /// What a command is on, and how much it takes of each.
    fn budgets_of(&self, cost: Cost) -> impl Iterator<Item = (&Budget, u64)> {
        let own = match cost.kind {
            PaceKind::Read => 1,
            PaceKind::Write => 2,
        };
        let amounts = [1, cost.bytes];
        let budgets = self.budgets.iter().zip(amounts);
        budgets.flat_map(move |(budgets, amount)| [0, own].map(|index| (&budgets[index], amount)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(kind: PaceKind, bytes: u64) -> Cost {
        Cost { namespace: NamespaceId(1), kind, bytes }
    }

    /// When each of these starts that are booked at once, in milliseconds.
    fn starts(rates: Rates, costs: &[Cost]) -> Vec<u128> {
        let epoch = Instant::now();
        let pace = Pace::new(&rates, epoch).expect("something is limited");
        let now = epoch + Duration::from_secs(1);
        let ms = |start: Instant| start.saturating_duration_since(epoch).as_millis();
        costs.iter().map(|cost| ms(pace.book(*cost, now))).collect()
    }

    #[test]
    fn each_budget_is_spent_in_turn() {
        let burst = Duration::from_millis(20);
        let (read, write) = (cost(PaceKind::Read, 4096), cost(PaceKind::Write, 4096));
        let commands = Rate { all: 100, ..Rate::default() };
        let rates = Rates { commands, burst, ..Rates::default() };
        assert_eq!(starts(rates, &[read, write, read, read]), [980, 990, 1000, 1010]);
        let commands = Rate { reads: 100, writes: 10, ..Rate::default() };
        let rates = Rates { commands, burst, ..Rates::default() };
        assert_eq!(starts(rates, &[read, write, read, write]), [980, 980, 990, 1080]);
        let bytes = Rate { all: 4096 * 10, ..Rate::default() };
        let rates = Rates { bytes, burst, ..Rates::default() };
        let nothing = cost(PaceKind::Write, 0);
        assert_eq!(starts(rates, &[read, nothing, write, read]), [980, 0, 1080, 1180]);
        assert!(Pace::new(&Rates::default(), Instant::now()).is_none());
    }

    #[test]
    fn what_is_given_back_is_there_for_others_and_no_burst_grows_by_it() {
        let rates =
            |commands| Rates { commands, burst: Duration::from_nanos(1), ..Rates::default() };
        let (epoch, read) = (Instant::now(), cost(PaceKind::Read, 4096));
        let pace = Pace::new(&rates(Rate { reads: 1, ..Rate::default() }), epoch).expect("limited");
        let now = epoch + Duration::from_secs(10);
        let seconds = |now| pace.book(read, now).saturating_duration_since(epoch).as_secs_f32();
        assert_eq!([(); 3].map(|()| seconds(now).round()), [10., 11., 12.]);
        pace.give_back(read);
        assert_eq!(seconds(now).round(), 12.);
        (0..99).for_each(|_| pace.give_back(read));
        assert_eq!([(); 2].map(|()| seconds(now).round()), [10., 11.]);
    }

    #[test]
    fn sizes_beyond_all_measure_wait_and_do_not_wrap() {
        let bytes = Rate { all: 1, ..Rate::default() };
        let huge = cost(PaceKind::Write, u64::MAX);
        let found = starts(Rates { bytes, ..Rates::default() }, &[huge, huge, huge]);
        assert!(found.is_sorted() && found[2] > 1 << 34, "{found:?}");
        assert!(found[2] <= LONGEST_WAIT.as_millis() + 1000, "no timer can be set: {found:?}");
    }
}
