//! [`Allowance`]: the limits on the memory and the threads of this process.
//!
//! The system kills a process that exceeds the memory limit of its control group, so farblock
//! derives its limits on buffers from that limit. The lowest of these limits applies: the machine's
//! memory, the limits of the control group and its ancestors (version 1 and 2), `RLIMIT_AS` and
//! `RLIMIT_DATA`.

use crate::limits;
use std::sync::OnceLock;
use std::thread;

#[cfg(target_os = "linux")]
mod linux;

/// The origin of a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// The machine's memory.
    Machine,
    /// A control group. The text is the path of the file that contains the limit.
    Group(String),
    /// A resource limit of the process. The text is its name.
    Resource(&'static str),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Machine => f.write_str("this machine's memory"),
            Source::Group(file) => f.write_str(file),
            Source::Resource(name) => f.write_str(name),
        }
    }
}

/// A limit of this process, and its origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// The limit: bytes of memory, or a number of threads.
    pub amount: u64,
    /// The origin of the limit.
    pub source: Source,
}

/// Returns the lowest memory limit of this process, in bytes. `None` if this system reports no
/// limit.
///
/// The first call reads the limits, so it must come before a sandbox hides the files.
#[must_use]
pub fn memory() -> Option<&'static Allowance> {
    static MEMORY: OnceLock<Option<Allowance>> = OnceLock::new();
    MEMORY.get_or_init(read_memory).as_ref()
}

/// Returns the default number of event loops of a process. This is the number of processors that
/// the process may use, by its affinity and by `cpu.max` of its control groups. The result is lower
/// if the control groups allow few threads.
#[must_use]
pub fn loops() -> usize {
    static LOOPS: OnceLock<usize> = OnceLock::new();
    *LOOPS.get_or_init(|| {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        loops_within(processors, read_threads().map(|it| it.amount))
    })
}

/// Reads all limits now. A sandbox may hide the files later.
pub fn read() {
    let _ = (memory(), loops());
}

fn loops_within(processors: usize, threads: Option<u64>) -> usize {
    let Some(threads) = threads else { return processors };
    let most = usize::try_from(threads / limits::THREAD_SHARE).unwrap_or(usize::MAX);
    processors.min(most).max(1)
}

/// Returns the number of bytes of buffers for each of `parts` equal users (for example
/// connections). The result is `usual`, or less if all users together would exceed a quarter of the
/// memory that the process may use. If the result is smaller than one request, the caller admits
/// one request at a time.
#[must_use]
pub fn portion(usual: usize, parts: usize) -> usize {
    portion_of(memory().map(|it| it.amount), limits::BUDGET_SHARE, usual, parts)
}

/// The number of bytes that the buffer pool of one thread may keep for reuse.
pub(crate) fn pool_bytes() -> usize {
    static POOL: OnceLock<usize> = OnceLock::new();
    *POOL.get_or_init(|| {
        let all = memory().map(|it| it.amount);
        portion_of(all, limits::POOL_SHARE, limits::POOL_BYTES, loops())
    })
}

fn portion_of(all: Option<u64>, share: u64, usual: usize, parts: usize) -> usize {
    let Some(all) = all else { return usual };
    let part = all / share / parts.max(1) as u64;
    usize::try_from(part).unwrap_or(usize::MAX).min(usual)
}

fn read_memory() -> Option<Allowance> {
    #[cfg(target_os = "linux")]
    return linux::Tree::new("/").memory();
    #[cfg(not(target_os = "linux"))]
    None
}

/// Returns how many more threads this process may start within the limits of its control groups.
fn read_threads() -> Option<Allowance> {
    #[cfg(target_os = "linux")]
    return linux::Tree::new("/").threads();
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_with_few_threads_gets_few_loops() {
        assert_eq!(loops_within(64, None), 64);
        assert_eq!(loops_within(64, Some(4000)), 64);
        assert_eq!(loops_within(64, Some(40)), 10);
        assert_eq!(loops_within(2, Some(0)), 1);
    }

    #[test]
    fn a_portion_exceeds_neither_the_default_nor_its_share() {
        assert_eq!(portion_of(None, 4, 512, 8), 512);
        assert_eq!(portion_of(Some(1 << 40), 4, 512, 8), 512);
        assert_eq!(portion_of(Some(128 << 20), 4, 512 << 20, 2), 16 << 20);
        assert_eq!(portion_of(Some(128 << 20), 4, 512 << 20, 0), 32 << 20);
    }
}
