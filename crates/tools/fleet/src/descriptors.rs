//! The limit of open files. Every client needs file descriptors, and the default limit is low.

use crate::message::Client;

/// The number of descriptors of an agent, without the descriptors of its clients.
const OWN: u64 = 64;

/// The number of descriptors of a client: for its admin queue, and for a connection and an event
/// loop of each I/O queue. The disk of a virtual machine also needs an event loop and kick
/// descriptors for each ring.
fn of_client(client: &Client) -> u64 {
    let queues = u64::from(client.queues);
    let disk = if client.vm.is_some() { 4 * queues + 8 } else { 0 };
    1 + 3 * queues + disk
}

/// Checks that the limit is high enough for these clients.
pub(crate) fn check(clients: &[Client]) -> Result<(), String> {
    let needed = clients.iter().map(of_client).sum::<u64>() + OWN;
    enough(clients.len(), needed, limit())
}

fn enough(clients: usize, needed: u64, limit: u64) -> Result<(), String> {
    if needed <= limit {
        return Ok(());
    }
    Err(format!(
        "{clients} clients need about {needed} open files, and this agent may have {limit}: raise \
         its limit (ulimit -n {needed}), or use fewer clients"
    ))
}

/// Raises the limit to the maximum of this process.
#[cfg(unix)]
pub(crate) fn raise() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Some systems refuse the number. The limit then stays the same, and `check` reports if it is
    // too low.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(unix)]
fn limit() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(not(unix))]
pub(crate) fn raise() {}

#[cfg(not(unix))]
fn limit() -> u64 {
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_descriptors_are_reported_with_numbers() {
        assert_eq!(enough(3, 76, 76), Ok(()));
        let why = enough(576, 2368, 1024).unwrap_err();
        assert!(why.contains("576 clients") && why.contains("ulimit -n 2368"), "{why}");
    }
}
