//! A decorator that makes chosen operations fail, to test the layers above.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farblock_block::{
    Availability, BlockError, Changes, Command, Completion, Geometry, Namespace, Op, Part, Queue,
};
use farblock_reactor::{Reactor, TaskId};

use farblock_random::Random;

/// Selects operations that fail, and their error. An operation must meet all conditions of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Only this command. `None`: any.
    pub command: Option<Command>,
    /// Only operations that touch one of these blocks (a flush touches none). `None`: anywhere.
    pub blocks: Option<Range<u64>>,
    /// Selects among the operations that meet the other conditions.
    pub when: When,
    /// The error of these operations.
    pub error: BlockError,
}

/// Selects among the operations that meet a rule's other conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All of them.
    Always,
    /// Every n-th, counted over all queues; the n-th is the first to fail. 0: none.
    Every(u64),
    /// Each with this probability in a million, decided by the seed.
    PerMillion(u32),
}

impl Rule {
    /// Every operation fails.
    pub fn new(error: BlockError) -> Rule {
        Rule { command: None, blocks: None, when: When::Always, error }
    }

    /// Only operations of this command.
    pub fn command(self, command: Command) -> Rule {
        Rule { command: Some(command), ..self }
    }

    /// Only operations that touch one of these blocks.
    pub fn blocks(self, blocks: Range<u64>) -> Rule {
        Rule { blocks: Some(blocks), ..self }
    }

    /// Only operations that `when` selects.
    pub fn when(self, when: When) -> Rule {
        Rule { when, ..self }
    }

    fn concerns(&self, op: &Op) -> bool {
        self.command.is_none_or(|command| command == op.command)
            && self.blocks.as_ref().is_none_or(|blocks| {
                let end = op.lba.saturating_add(u64::from(op.blocks));
                op.command != Command::Flush && op.lba < blocks.end && blocks.start < end
            })
    }
}

/// A namespace some of whose operations fail.
///
/// A chosen operation fails at once and does not reach the namespace: a failed write changes
/// nothing, and a failed flush flushes nothing.
pub struct Fault {
    inner: Arc<dyn Namespace>,
    plan: Arc<Plan>,
}

struct Plan {
    rules: Vec<Counted>,
    seed: u64,
    enabled: AtomicBool,
    injected: AtomicU64,
}

struct Counted {
    rule: Rule,
    met: AtomicU64,
}

impl Fault {
    /// Fails each operation that a rule selects, with the error of the first such rule.
    pub fn new(inner: Arc<dyn Namespace>, rules: Vec<Rule>, seed: u64) -> Fault {
        let counted = |rule| Counted { rule, met: AtomicU64::new(0) };
        let rules = rules.into_iter().map(counted).collect();
        let (enabled, injected) = (AtomicBool::new(true), AtomicU64::new(0));
        Fault { inner, plan: Arc::new(Plan { rules, seed, enabled, injected }) }
    }

    /// Enables or disables the rules, also for open queues.
    pub fn set_enabled(&self, enabled: bool) {
        self.plan.enabled.store(enabled, Ordering::Relaxed);
    }

    /// How many operations the rules have made fail.
    pub fn injected(&self) -> u64 {
        self.plan.injected.load(Ordering::Relaxed)
    }
}

impl Namespace for Fault {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn changes(&self) -> Option<&Changes> {
        self.inner.changes()
    }

    fn availability(&self) -> Availability {
        self.inner.availability()
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn parts(&self) -> Vec<Arc<dyn Part>> {
        self.inner.parts()
    }

    fn describe(&self) -> String {
        let rules = self.plan.rules.len();
        format!("{}, with {rules} rules for faults", self.inner.describe())
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        let inner = self.inner.open(reactor, parent)?;
        Ok(Box::new(FaultQueue { inner, plan: Arc::clone(&self.plan), done: Vec::new() }))
    }
}

impl Plan {
    fn verdict(&self, op: &Op) -> Option<BlockError> {
        if !self.enabled.load(Ordering::Relaxed) {
            return None;
        }
        let counted = self.rules.iter().find(|counted| {
            if !counted.rule.concerns(op) {
                return false;
            }
            let met = counted.met.fetch_add(1, Ordering::Relaxed);
            match counted.rule.when {
                When::Always => true,
                When::Every(n) => n != 0 && (met + 1).is_multiple_of(n),
                When::PerMillion(chance) => {
                    Random::nth(self.seed, met) % 1_000_000 < u64::from(chance)
                }
            }
        })?;
        self.injected.fetch_add(1, Ordering::Relaxed);
        Some(counted.rule.error)
    }
}

struct FaultQueue {
    inner: Box<dyn Queue>,
    plan: Arc<Plan>,
    /// Completions of failed operations, for the next `poll`.
    done: Vec<Completion>,
}

impl Queue for FaultQueue {
    fn submit(&mut self, op: Op) {
        match self.plan.verdict(&op) {
            Some(error) => self.done.push(op.complete(Err(error))),
            None => self.inner.submit(op),
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.done);
        self.inner.poll(done);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.done.len()
    }
}
