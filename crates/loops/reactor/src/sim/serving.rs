//! Models the processor time that machines need for each arrival.

use std::time::Duration;

/// How a machine serves the clients of one of its addresses. The default has no limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// The processor time of a new connection.
    pub accept: Duration,
    /// The processor time of each arriving piece of a stream. Pieces wait for one another.
    pub piece: Duration,
    /// How many connections may wait to be accepted; a further request gets no answer, and the
    /// client repeats it.
    pub backlog: usize,
}

impl Default for Service {
    fn default() -> Service {
        Service { accept: Duration::ZERO, piece: Duration::ZERO, backlog: usize::MAX }
    }
}

/// The processor that serves one address.
#[derive(Default)]
pub(super) struct Serving {
    pub(super) service: Service,
    /// When the processor becomes idle.
    busy_until: u64,
    /// Connection requests that found the backlog full.
    pub(super) overflows: u64,
}

impl Serving {
    /// When the processor finishes an arrival at `now`.
    pub(super) fn serve(&mut self, now: u64, is_accept: bool) -> u64 {
        let Service { accept, piece, .. } = self.service;
        let takes = if is_accept { accept } else { piece };
        self.busy_until = self.busy_until.max(now) + takes.as_nanos() as u64;
        self.busy_until
    }
}
