//! Keeps a process in memory. To free memory, the kernel writes dirty pages to a block device, so
//! the device's server must not itself wait for a page.

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Locks the program and its data at once, and every later page when the process first touches it.
/// Mapped memory that the process never uses stays free. Call it while the process has one thread
/// and little memory. The call first lifts the limit (`RLIMIT_MEMLOCK`), so that the process may
/// drop its privileges afterwards.
///
/// # Errors
/// If the process may not lift the limit. Then nothing is locked: a process at its limit could not
/// allocate memory any more.
pub fn stay_resident() -> Result<(), Errno> {
    if getrlimit(Resource::Memlock).current.is_some() {
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    }
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}
