//! [`Budget`]: the number of cores, connections and bytes that a target may use, within the
//! system's limits for the process.

use crate::config::TargetConfig;
use crate::limits;
use farblock_reactor::allowance::{self, Source};
use farblock_reactor::os;

/// Memory, cores and connections of a target, and the memory limit of its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Budget {
    /// The maximum memory of all cores for peers, in bytes: command buffers, and responses that
    /// hosts have not received yet.
    pub buffer_bytes: u64,
    /// Whether the user set `buffer_bytes`.
    pub is_set: bool,
    /// The number of event loops.
    pub cores: usize,
    /// The maximum number of concurrent connections.
    pub connections: usize,
    /// The bytes that the process may use, and the source of that limit. `None`: unknown.
    pub allowed: Option<(u64, String)>,
}

/// Returns one entry per event loop: the configured processor, or `None` for an unpinned thread.
/// Without a configuration, the number of event loops depends on the processors, threads and memory
/// that the process may use.
pub(crate) fn cores(config: &TargetConfig) -> Vec<Option<usize>> {
    if !config.cores.is_empty() {
        // All simulated cores run on the same thread.
        return config.cores.iter().map(|&core| (!os::is_simulated()).then_some(core)).collect();
    }
    let bytes = config.buffer_bytes.or(allowed_bytes().map(|bytes| bytes / 4));
    vec![None; cores_within(allowance::loops(), bytes)]
}

fn cores_within(loops: usize, bytes: Option<u64>) -> usize {
    let Some(bytes) = bytes else { return loops };
    let most = usize::try_from(bytes).unwrap_or(usize::MAX) / limits::CORE_BUFFER_BYTES_FLOOR;
    loops.min(most).max(1)
}

/// Returns the bytes that the process may use. A simulated machine has no limit.
fn allowed_bytes() -> Option<u64> {
    if os::is_simulated() { None } else { allowance::memory().map(|it| it.amount) }
}

/// Returns the maximum number of bytes that peers can make each of `cores` cores hold.
pub(crate) fn core_bytes(config: &TargetConfig, cores: usize) -> usize {
    if let Some(bytes) = config.core_buffer_bytes {
        return bytes;
    }
    core_bytes_of(config.buffer_bytes, allowed_bytes(), cores)
}

fn core_bytes_of(set: Option<u64>, allowed: Option<u64>, cores: usize) -> usize {
    let usual = (limits::BUFFER_BYTES / cores).max(limits::CORE_BUFFER_BYTES_MIN);
    let of_core = |all: u64| usize::try_from(all / cores as u64).unwrap_or(usize::MAX);
    match (set, allowed) {
        (Some(set), _) => of_core(set),
        (None, Some(allowed)) => usual.min(of_core(allowed / 4)),
        (None, None) => usual,
    }
}

/// Returns the number of connections for which the process has memory, but at least
/// [`limits::CONNECTIONS_MIN`].
pub(crate) fn connections() -> usize {
    allowed_bytes().map_or(usize::MAX, connections_within)
}

fn connections_within(allowed: u64) -> usize {
    let most = usize::try_from(allowed / 4 / limits::CONNECTION_BYTES).unwrap_or(usize::MAX);
    most.max(limits::CONNECTIONS_MIN)
}

impl Budget {
    pub(crate) fn new(config: &TargetConfig, cores: usize, connections: usize) -> Self {
        let memory = allowance::memory().filter(|_| !os::is_simulated());
        let of = |source: &Source| source.to_string();
        Self {
            buffer_bytes: core_bytes(config, cores) as u64 * cores as u64,
            is_set: config.buffer_bytes.is_some() || config.core_buffer_bytes.is_some(),
            cores,
            connections,
            allowed: memory.map(|it| (it.amount, of(&it.source))),
        }
    }

    pub(crate) fn core_bytes(&self) -> usize {
        usize::try_from(self.buffer_bytes).unwrap_or(usize::MAX) / self.cores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn buffers_of_all_cores_fit_into_a_quarter_of_a_control_group() {
        for allowed in [16, 128, 256, 1024] {
            for loops in [1, 2, 64] {
                let cores = cores_within(loops, Some(allowed * MIB / 4));
                let all = core_bytes_of(None, Some(allowed * MIB), cores) * cores;
                assert!(all as u64 <= allowed * MIB / 4, "{allowed} MiB, {loops} processors");
                assert!(all >= cores * limits::CORE_BUFFER_BYTES_FLOOR, "less than the minimum");
            }
        }
    }

    #[test]
    fn a_core_has_its_default_buffers_if_memory_is_plentiful() {
        assert_eq!(core_bytes_of(None, None, 64), 32 << 20);
        assert_eq!(core_bytes_of(None, Some(64 << 30), 64), 32 << 20);
        assert_eq!(core_bytes_of(None, Some(64 << 30), 2), 256 << 20);
        assert_eq!(core_bytes_of(Some(64 << 20), Some(64 << 30), 2), 32 << 20);
    }

    #[test]
    fn a_small_control_group_admits_fewer_connections() {
        assert_eq!(connections_within(128 * MIB), 512);
        assert_eq!(connections_within(0), limits::CONNECTIONS_MIN);
    }
}
