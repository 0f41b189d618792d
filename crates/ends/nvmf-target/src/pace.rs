//! Rate limits. One kind limits all hosts together at one namespace. The other kind limits one host
//! over all namespaces of a subsystem.
//!
//! A budget is a single point in time, up to which the allowance is spent. Each command *books* its
//! cost: it moves this time forward by the time that the cost takes at the limit. The command may
//! start when the clock reaches the old value minus one burst. So the cores can share a budget with
//! one atomic update per command.
//!
//! A connection books only its first waiting command of each kind (read or write). So the waiting
//! connections take turns, and a closing connection has few bookings to return.

use crate::shares::DEFAULT_WEIGHT;
use farblock_proto::controller::IoCommand;
use farblock_proto::ids::NamespaceId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The default of [`Rates::burst`].
pub const DEFAULT_BURST: Duration = Duration::from_millis(20);

/// The largest [`Rates::burst`].
pub const MAX_BURST: Duration = Duration::from_secs(60);

/// A command waits at most this long, so that its deadline always fits a timer.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Amounts per second. 0 means no limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rate {
    /// Reads and writes together.
    pub all: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// The limits of a namespace or host. Flushes and reservation commands are not limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rates {
    /// Commands per second.
    pub commands: Rate,
    /// Bytes per second.
    pub bytes: Rate,
    /// The burst: after a pause, commands may spend the allowance of this much time at once.
    pub burst: Duration,
    /// The host's scheduling weight on a core that several hosts keep busy. Unused for namespaces.
    pub weight: u32,
}

impl Default for Rates {
    /// Returns rates without limits, with the default burst and weight.
    fn default() -> Self {
        let (commands, bytes) = (Rate::default(), Rate::default());
        Self { commands, bytes, burst: DEFAULT_BURST, weight: DEFAULT_WEIGHT }
    }
}

impl Rates {
    /// Returns whether any limit is set.
    #[must_use]
    pub fn limit_anything(&self) -> bool {
        self.commands != Rate::default() || self.bytes != Rate::default()
    }

    /// Returns whether both have the same limits. Their weights may differ.
    pub(crate) fn limit_alike(&self, other: &Self) -> bool {
        *self == Self { weight: self.weight, ..*other }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PaceKind {
    Read,
    Write,
}

/// The cost of a command for the budgets: its namespace, kind and bytes.
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

    /// Returns the cost of a command; `None` if no limit applies to it. A Copy is charged step by
    /// step.
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

/// A budget. `spent` is the time up to which the allowance has been spent, in nanoseconds.
#[derive(Default, Debug)]
struct Budget {
    per_second: u64,
    spent: AtomicU64,
}

impl Budget {
    fn new(per_second: u64) -> Self {
        Self { per_second, spent: AtomicU64::new(0) }
    }

    /// Books an amount. Returns the time from which the amount may be spent, in nanoseconds.
    fn book(&self, amount: u64, now: u64, burst: u64) -> u64 {
        if self.per_second == 0 || amount == 0 {
            return 0;
        }
        let cost = self.cost(amount);
        // Allowance that was not spent expires, except for one burst.
        let unspent = now.saturating_sub(burst);
        let found = self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent| {
            Some(spent.max(unspent).saturating_add(cost))
        });
        found.unwrap_or_else(|spent| spent).max(unspent)
    }

    /// Returns the nanoseconds that `amount` takes at this rate.
    fn cost(&self, amount: u64) -> u64 {
        let cost = u128::from(amount) * 1_000_000_000 / u128::from(self.per_second.max(1));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// Gives an unused booking of `amount` back to the budget.
    fn give_back(&self, amount: u64) {
        if self.per_second > 0 {
            let cost = self.cost(amount);
            let less = |spent: u64| Some(spent.saturating_sub(cost));
            let _ = self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pace {
    epoch: Instant,
    burst: u64,
    /// The outer index selects commands or bytes. The inner index selects all, reads or writes.
    budgets: [[Budget; 3]; 2],
}

impl Pace {
    /// Returns the budgets for `rates`; `None` if `rates` has no limits.
    pub(crate) fn new(rates: &Rates, epoch: Instant) -> Option<Self> {
        let budgets = |rate: Rate| [rate.all, rate.reads, rate.writes].map(Budget::new);
        rates.limit_anything().then(|| Self {
            epoch,
            burst: rates.burst.min(MAX_BURST).as_nanos() as u64,
            budgets: [budgets(rates.commands), budgets(rates.bytes)],
        })
    }

    /// Books a command in all its budgets. Returns the time at which the command may start.
    pub(crate) fn book(&self, cost: Cost, now: Instant) -> Instant {
        let since = now.saturating_duration_since(self.epoch).as_nanos();
        // Start with one burst of unspent allowance.
        let now = (since as u64).saturating_add(self.burst);
        let budgets = self.budgets_of(cost);
        let starts = budgets.map(|(budget, amount)| budget.book(amount, now, self.burst));
        let start = starts.max().unwrap_or(0);
        let start = start.min(now.saturating_add(LONGEST_WAIT.as_nanos() as u64));
        self.epoch + Duration::from_nanos(start.saturating_sub(self.burst))
    }

    /// Gives the booking of a command that does not execute back to its budgets.
    pub(crate) fn give_back(&self, cost: Cost) {
        self.budgets_of(cost).for_each(|(budget, amount)| budget.give_back(amount));
    }

    /// Returns the budgets that a command uses, and the amount that it books in each.
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

    /// Returns the start times in milliseconds of commands that book at the same time.
    fn starts(rates: Rates, costs: &[Cost]) -> Vec<u128> {
        let epoch = Instant::now();
        let pace = Pace::new(&rates, epoch).expect("at least one limit");
        let now = epoch + Duration::from_secs(1);
        let ms = |start: Instant| start.saturating_duration_since(epoch).as_millis();
        costs.iter().map(|cost| ms(pace.book(*cost, now))).collect()
    }

    #[test]
    fn commands_start_when_all_their_budgets_allow() {
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
    fn returned_budget_is_reusable_and_does_not_enlarge_the_burst() {
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
    fn huge_sizes_wait_without_overflow() {
        let bytes = Rate { all: 1, ..Rate::default() };
        let huge = cost(PaceKind::Write, u64::MAX);
        let found = starts(Rates { bytes, ..Rates::default() }, &[huge, huge, huge]);
        assert!(found.is_sorted() && found[2] > 1 << 34, "{found:?}");
        assert!(found[2] <= LONGEST_WAIT.as_millis() + 1000, "no timer can be set: {found:?}");
    }
}
