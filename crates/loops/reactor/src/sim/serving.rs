//! The processors of machines, which take time for what arrives.

use std::time::Duration;

/// How a machine serves those that connect to one of its addresses. The default has no limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Service {
    /// Its processor's time for a connection that is made.
    pub accept: Duration,
    /// And for each piece of a stream that arrives. One waits behind the other.
    pub piece: Duration,
    /// Connections that wait to be accepted; a request beyond is not answered, and made again.
    pub backlog: usize,
}

impl Default for Service {
    fn default() -> Service {
        Service { accept: Duration::ZERO, piece: Duration::ZERO, backlog: usize::MAX }
    }
}

/// What an address has of its machine.
#[derive(Default)]
pub(super) struct Serving {
    pub(super) service: Service,
    /// When its processor is idle again.
    busy_until: u64,
    /// Requests to connect that found the backlog full.
    pub(super) overflows: u64,
}

impl Serving {
    /// When it will have done what arrives now.
    pub(super) fn serve(&mut self, now: u64, is_accept: bool) -> u64 {
        let Service { accept, piece, .. } = self.service;
        let takes = if is_accept { accept } else { piece };
        self.busy_until = self.busy_until.max(now) + takes.as_nanos() as u64;
        self.busy_until
    }
}
