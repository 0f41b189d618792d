//! The current state of a fleet, for observers.

use crate::step::Step;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// The name of the plan.
    pub plan: String,
    /// The current step, in words.
    pub phase: String,
    /// The part of the step; empty if the step has no parts.
    pub part: String,
    /// The state of each agent with hosts, in the order of the plan.
    pub hosts: Vec<LiveHost>,
    /// The result of the run, once it has ended. The error is the reason for a failure.
    pub ended: Option<Result<(), String>>,
}

/// The state of the hosts of one agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveHost {
    /// The name of the agent.
    pub name: String,
    /// The I/Os per second of all clients of the agent.
    pub iops: f64,
    /// The mean latency in microseconds: the number of I/Os in flight, divided by the I/Os per
    /// second. During a verification, the longest latency since the last check.
    pub latency_us: Option<f64>,
    /// Whether the agent has finished its part.
    pub is_done: bool,
    /// The number of operations that failed.
    pub failed: u64,
    /// The number of blocks whose content differed from the acknowledged content.
    pub lost: u64,
    /// The number of connected paths, and the number of all paths.
    pub paths: Option<[u64; 2]>,
}

impl Live {
    fn take(&mut self, step: &Step<'_>) {
        step.what.clone_into(&mut self.phase);
        step.part.clone_into(&mut self.part);
    }
}

/// The state that the controller publishes.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Live>>);

impl Board {
    /// Returns a copy of the current state.
    #[must_use]
    pub fn read(&self) -> Live {
        self.lock().clone()
    }

    pub(crate) fn begin(&self, plan: &str) {
        *self.lock() = Live { plan: plan.to_owned(), ..Live::default() };
    }

    /// Sets the current step. Hosts count as idle until their next report.
    pub(crate) fn step(&self, step: &Step<'_>) {
        let mut live = self.lock();
        live.take(step);
        for host in &mut live.hosts {
            *host = LiveHost { name: std::mem::take(&mut host.name), ..LiveHost::default() };
        }
    }

    /// Sets the state of the hosts.
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
