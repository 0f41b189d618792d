//! Pinning a thread to a processor, where the system can.

/// Pins the calling thread to processor `cpu`. Elsewhere than on Linux it does nothing.
#[cfg(target_os = "linux")]
pub(crate) fn pin(cpu: usize) -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpu >= CpuSet::MAX_CPU {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn pin(_cpu: usize) -> std::io::Result<()> {
    Ok(())
}
