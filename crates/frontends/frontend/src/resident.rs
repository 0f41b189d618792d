//! Keeping a process in memory. The kernel writes memory back through a server of a block device,
//! so that server must not wait for a page.

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Locks the program and its data at once, and every later page when the process first touches it:
/// mapped memory that the process never uses stays free. To be called while the process has one
/// thread and little memory. The limit (`RLIMIT_MEMLOCK`) is lifted first, so that rights which
/// the process gives up afterwards do not matter.
///
/// # Errors
/// Without the right to lift the limit: nothing is locked, since a process at its limit could not
/// allocate any more.
pub fn stay_resident() -> Result<(), Errno> {
    if getrlimit(Resource::Memlock).current.is_some() {
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    }
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}
