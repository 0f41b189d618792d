//! What a fleet does at the moment, for whoever watches.

use crate::step::Step;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// The plan's name.
    pub plan: String,
    /// What is done, in words.
    pub phase: String,
    /// Which part of it; empty where it has none.
    pub part: String,
    /// Each agent with hosts, in the plan's order.
    pub hosts: Vec<LiveHost>,
    /// It is over; why, if it has failed.
    pub ended: Option<Result<(), String>>,
}

/// The hosts of one agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveHost {
    /// The agent's name.
    pub name: String,
    /// I/Os per second of all of its clients.
    pub iops: f64,
    /// The mean latency in microseconds: what is in flight, divided by I/Os per second. While it
    /// verifies, the longest one since the last look.
    pub latency_us: Option<f64>,
    /// Whether it has done its part.
    pub is_done: bool,
    /// Operations that failed.
    pub failed: u64,
    /// Blocks that held something else than what was acknowledged.
    pub lost: u64,
    /// Paths that are connected, and that should be.
    pub paths: Option<[u64; 2]>,
}

impl Live {
    fn take(&mut self, step: &Step<'_>) {
        step.what.clone_into(&mut self.phase);
        step.part.clone_into(&mut self.part);
    }
}

/// Where a controller writes it down.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Live>>);

impl Board {
    /// As it is now.
    #[must_use]
    pub fn read(&self) -> Live {
        self.lock().clone()
    }

    pub(crate) fn begin(&self, plan: &str) {
        *self.lock() = Live { plan: plan.to_owned(), ..Live::default() };
    }

    /// What is done now; whoever has done something is idle until it is heard of again.
    pub(crate) fn step(&self, step: &Step<'_>) {
        let mut live = self.lock();
        live.take(step);
        for host in &mut live.hosts {
            *host = LiveHost { name: std::mem::take(&mut host.name), ..LiveHost::default() };
        }
    }

    /// How the hosts do with this.
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
