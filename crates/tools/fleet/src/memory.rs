//! The memory of an agent that controllers may use: for memory disks, for the rings of virtual
//! machines' disks, and for the buffers of loads.

use crate::message::{Client, Load, Share};
use farblock_backends::Spec;
use farblock_block::size::Size;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A memory budget that all controllers of an agent share.
#[derive(Clone, Debug)]
pub struct Memory(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    bytes: u64,
    held: AtomicU64,
}

impl Memory {
    /// A budget of this many bytes.
    #[must_use]
    pub fn limited(bytes: u64) -> Memory {
        Memory(Arc::new(Budget { bytes, held: AtomicU64::new(0) }))
    }

    /// A budget without a limit, for a controller that has started the agent.
    #[must_use]
    pub fn unlimited() -> Memory {
        Memory::limited(u64::MAX)
    }

    /// The default budget of a listening agent, which is half of the machine's memory.
    #[must_use]
    pub fn by_default() -> Memory {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = of_machine(&text, "MemTotal:");
        Memory::limited(total.map_or(UNKNOWN_BYTES, |total| total / 2))
    }

    /// Takes bytes from the budget until the returned value is dropped. `what` names the consumer
    /// of the memory in an error.
    pub(crate) fn take(&self, bytes: u64, what: &str) -> Result<Held, String> {
        let Budget { bytes: most, held } = &*self.0;
        let more = |held: u64| held.checked_add(bytes).filter(|sum| sum <= most);
        match held.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Held { budget: Arc::clone(&self.0), bytes }),
            Err(held) => Err(format!(
                "{what} need {} of memory, but this agent allows controllers only {}, of which {} \
                 are in use: start the agent with a larger --memory",
                Size(bytes),
                Size(*most),
                Size(held)
            )),
        }
    }
}

/// The budget in bytes, if the size of the machine's memory is unknown.
const UNKNOWN_BYTES: u64 = 4 << 30;

/// Parses a line such as `MemTotal:       24689012 kB`. Returns bytes.
pub(crate) fn of_machine(meminfo: &str, what: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(what))?;
    let number: u64 = line.split_whitespace().next()?.parse().ok()?;
    number.checked_mul(1024)
}

/// A used part of the budget.
#[derive(Debug)]
pub(crate) struct Held {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The memory for the drives of a share, in bytes.
pub(crate) fn of_share(share: &Share) -> u64 {
    let of = |name: &String| Spec::parse(name).map_or(0, |spec| of_drive(&spec));
    share.drives.iter().map(of).fold(0, u64::saturating_add)
}

fn of_drive(spec: &Spec) -> u64 {
    match spec {
        Spec::Mem { bytes } => *bytes,
        spec => spec.parts().iter().map(of_drive).fold(0, u64::saturating_add),
    }
}

/// The memory for the rings of virtual machines' disks, and for the I/Os in flight in all queues,
/// in bytes.
pub(crate) fn of_clients(clients: &[Client]) -> u64 {
    clients.iter().map(crate::vm::memory_bytes).fold(0, u64::saturating_add)
}

/// The memory for the buffers of a load with this many clients, in bytes.
pub(crate) fn of_load(load: &Load, clients: usize) -> u64 {
    let pattern = &load.pattern;
    let kinds = u64::from(pattern.rw.reads()) + u64::from(pattern.rw.writes());
    let factors = [pattern.iodepth, pattern.numjobs, pattern.block_size_bytes].map(u64::from);
    factors.into_iter().chain([clients as u64]).fold(kinds, u64::saturating_mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_memory_is_returned_on_drop() {
        let memory = Memory::limited(100);
        let first = memory.take(60, "a disk").unwrap();
        let why = memory.clone().take(41, "another").unwrap_err();
        assert!(why.contains("another") && why.contains("--memory"), "{why}");
        assert!(memory.take(u64::MAX, "all").is_err());
        let second = memory.take(40, "a disk").unwrap();
        drop((first, second));
        drop(memory.take(100, "all").unwrap());
        assert_eq!(memory.0.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_memory_of_nested_ram_disks_is_summed() {
        let of = |name: &str| of_drive(&Spec::parse(name).unwrap());
        assert_eq!(of("mem:1MiB"), 1 << 20);
        assert_eq!(of("limit:9/s,delay:1ms,fault:3,mem:1MiB"), 1 << 20);
        assert_eq!(of("stripe:64KiB,mem:1MiB,mem:2MiB,null:1TiB,some.img"), 3 << 20);
        let total = |text: &str| of_machine(text, "MemTotal:");
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       24689012 kB\n"), Some(24_689_012 << 10));
        assert_eq!(total("MemTotal: lots"), None);
    }
}
