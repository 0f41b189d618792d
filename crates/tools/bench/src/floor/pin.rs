//! Pins threads to processors, if the system supports it.

/// Pins the calling thread to a processor, if one is given. If that fails, the thread runs on any
/// processor, perhaps more slowly.
#[cfg(target_os = "linux")]
pub(super) fn pin(cpu: Option<usize>) {
    use nix::sched::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    if let Some(cpu) = cpu
        && set.set(cpu).is_ok()
    {
        let _ = sched_setaffinity(nix::unistd::Pid::from_raw(0), &set);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin(_: Option<usize>) {}
