//! Locks a process in memory (`mlockall`). To free memory, the kernel writes dirty pages to block
//! devices. A server of such a device must not wait for a page that was swapped out.

use rustix::io::Errno;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Locks the program and its data now, and every later page when the process first touches it.
/// Pages that it never touches take no memory.
///
/// Call this function while the process has one thread and uses little memory. The function also
/// removes the limit `RLIMIT_MEMLOCK`, so that the process may then drop its privileges.
///
/// # Errors
/// Fails if the process may not raise the limit. The function then locks nothing: once locked
/// memory reached the limit, the process could not allocate more.
pub fn stay_resident() -> Result<(), Errno> {
    if getrlimit(Resource::Memlock).current.is_some() {
        setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None })?;
    }
    mlockall(MlockAllFlags::CURRENT)?;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
}
