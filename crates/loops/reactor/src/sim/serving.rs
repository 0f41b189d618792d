//! Simulates the processor time that a machine needs for each connection and each piece of data.

use std::time::Duration;

/// The speed at which a machine serves the clients of one of its addresses. The default has no
/// limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// The processor time for each new connection.
    pub accept: Duration,
    /// The processor time for each arriving piece of a stream. The processor handles one piece at a
    /// time.
    pub piece: Duration,
    /// The maximum number of connections that wait for an accept. Further requests get no answer,
    /// and their clients repeat them.
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
    /// The time at which the processor becomes idle.
    busy_until: u64,
    /// The number of connection requests that found the backlog full.
    pub(super) overflows: u64,
}

impl Serving {
    /// Returns the time at which the processor has finished an arrival at `now`.
    pub(super) fn serve(&mut self, now: u64, is_accept: bool) -> u64 {
        let Service { accept, piece, .. } = self.service;
        let takes = if is_accept { accept } else { piece };
        self.busy_until = self.busy_until.max(now) + takes.as_nanos() as u64;
        self.busy_until
    }
}
