//! A decorator that makes selected operations fail, to test the layers above.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farblock_block::{
    Availability, BlockError, Changes, Command, Completion, Geometry, Namespace, Op, Part, Queue,
};
use farblock_reactor::{Reactor, TaskId};

use farblock_random::Random;

/// Selects the operations that fail, and their error. An operation fails if it meets all
/// conditions of the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The command of the operations. `None` selects any command.
    pub command: Option<Command>,
    /// Selects operations that touch one of these blocks; a flush touches none. `None` selects all.
    pub blocks: Option<Range<u64>>,
    /// Selects among the operations that meet the conditions above.
    pub when: When,
    /// The error with which the operations fail.
    pub error: BlockError,
}

/// Selects among the operations that meet the other conditions of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All operations.
    Always,
    /// Every n-th operation, counted over all queues: the first n - 1 operations succeed. 0 selects
    /// no operation.
    Every(u64),
    /// Each operation with this probability, in millionths. The same seed ([`Fault::new`]) selects
    /// the same operations again.
    PerMillion(u32),
}

impl Rule {
    /// Makes every operation fail with `error`.
    pub fn new(error: BlockError) -> Rule {
        Rule { command: None, blocks: None, when: When::Always, error }
    }

    /// Limits the rule to operations with this command.
    pub fn command(self, command: Command) -> Rule {
        Rule { command: Some(command), ..self }
    }

    /// Limits the rule to operations that touch one of these blocks.
    pub fn blocks(self, blocks: Range<u64>) -> Rule {
        Rule { blocks: Some(blocks), ..self }
    }

    /// Limits the rule to the operations that `when` selects.
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

/// A namespace that makes selected operations fail.
///
/// A selected operation fails at once and does not reach the inner namespace. So a failed write
/// changes no block, and a failed flush flushes no data.
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
    /// Wraps a namespace so that each operation selected by a rule fails. If several rules select
    /// an operation, the first of them determines the error.
    pub fn new(inner: Arc<dyn Namespace>, rules: Vec<Rule>, seed: u64) -> Fault {
        let counted = |rule| Counted { rule, met: AtomicU64::new(0) };
        let rules = rules.into_iter().map(counted).collect();
        let (enabled, injected) = (AtomicBool::new(true), AtomicU64::new(0));
        Fault { inner, plan: Arc::new(Plan { rules, seed, enabled, injected }) }
    }

    /// Enables or disables the rules, also for queues that are already open.
    pub fn set_enabled(&self, enabled: bool) {
        self.plan.enabled.store(enabled, Ordering::Relaxed);
    }

    /// The number of operations that failed because of a rule.
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
        format!("{}, with {rules} fault rules", self.inner.describe())
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
    /// The completions of failed operations, which the next `poll` returns.
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
