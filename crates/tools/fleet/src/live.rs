//! The current state of a fleet, for observers.

use crate::step::Step;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// The plan's name.
    pub plan: String,
    /// The current step, in words.
    pub phase: String,
    /// The part of the step; empty if it has none.
    pub part: String,
    /// Each agent with hosts, in the plan's order.
    pub hosts: Vec<LiveHost>,
    /// Set at the end, with the reason of a failure.
    pub ended: Option<Result<(), String>>,
}

/// The hosts of one agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveHost {
    /// The agent's name.
    pub name: String,
    /// I/Os per second of all of its clients.
    pub iops: f64,
    /// The mean latency in microseconds: I/Os in flight, divided by I/Os per second. During a
    /// verify, the longest latency since the last check.
    pub latency_us: Option<f64>,
    /// True if the agent has finished its part.
    pub is_done: bool,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks whose content differed from the acknowledged one.
    pub lost: u64,
    /// The numbers of connected paths and of all paths.
    pub paths: Option<[u64; 2]>,
}

impl Live {
    fn take(&mut self, step: &Step<'_>) {
        step.what.clone_into(&mut self.phase);
        step.part.clone_into(&mut self.part);
    }
}

/// The controller's record of the current state.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Live>>);

impl Board {
    /// The current state.
    #[must_use]
    pub fn read(&self) -> Live {
        self.lock().clone()
    }

    pub(crate) fn begin(&self, plan: &str) {
        *self.lock() = Live { plan: plan.to_owned(), ..Live::default() };
    }

    /// Records the current step. Hosts are idle until their next report.
    pub(crate) fn step(&self, step: &Step<'_>) {
        let mut live = self.lock();
        live.take(step);
        for host in &mut live.hosts {
            *host = LiveHost { name: std::mem::take(&mut host.name), ..LiveHost::default() };
        }
    }

    /// Records the state of the hosts.
    pub(crate) fn hosts(&self, step: &Step<'_>, hosts: Vec<LiveHost>) {
        let mut live = self.lock();
        live.take(step);
        live.hosts = hosts;
    }

    pub(crate) fn end(&self, ended: Result<(), String>) {
        self.lock().ended = Some(ended);
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
