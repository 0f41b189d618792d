//! Keeps a process in memory. The kernel writes memory back through a block device's server, so
//! that server must not wait for a page.

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Locks the program and its data at once, and every later page when the process first touches it.
/// Mapped memory that the process never uses stays free. Call it while the process has one thread
/// and little memory. It first lifts the limit (`RLIMIT_MEMLOCK`), so that it does not matter if
/// the process gives up its rights afterwards.
///
/// # Errors
/// Without the right to lift the limit. Then nothing is locked, since a process at its limit could
/// not allocate any more.
pub fn stay_resident() -> Result<(), Errno> {
    if getrlimit(Resource::Memlock).current.is_some() {
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    }
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}
