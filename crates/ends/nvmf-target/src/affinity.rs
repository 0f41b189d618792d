//! Pins a thread to a processor on Linux and Windows. Other systems have no call for this.

use std::io;

/// Pins the calling thread to processor `cpu`.
#[cfg(target_os = "linux")]
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Pins the calling thread to processor `cpu` of the thread's processor group. A group has at most
/// 64 processors.
#[cfg(windows)]
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    use core_affinity::{CoreId, set_for_current};
    if cpu < 64 && set_for_current(CoreId { id: cpu }) {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

/// Does nothing: this system cannot pin threads.
#[cfg(not(any(target_os = "linux", windows)))]
pub(crate) fn pin(_cpu: usize) -> io::Result<()> {
    Ok(())
}
