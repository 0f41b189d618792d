//! Locks a process in memory. To free memory, the kernel writes dirty pages to block devices. The
//! server of such a block device must not itself wait for a page.

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Locks the program and its data now, and locks every later page when the process first touches
/// it. Mapped memory that the process never touches takes no memory.
///
/// Call this function while the process has one thread and little memory. The function first lifts
/// the limit (`RLIMIT_MEMLOCK`), so that the process may drop its privileges afterwards.
///
/// # Errors
/// Fails if the process may not raise the limit. The function then locks nothing, because a process
/// at its limit could not allocate more memory.
pub fn stay_resident() -> Result<(), Errno> {
    if getrlimit(Resource::Memlock).current.is_some() {
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    }
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}
