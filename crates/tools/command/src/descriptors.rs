//! The limit of open files: each disk and connection takes descriptors, and the default limit is
//! low.

/// Raises this process's limit of open files to its hard limit. Only programs call this: a library
/// must not change the limits of the process that uses it.
#[cfg(unix)]
pub fn raise() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // macOS refuses "unlimited". The soft limit then stays; the error of a process that reaches it
    // names the limit.
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of open files stays: {error}");
    }
}

/// Does nothing: Windows has no such limit.
#[cfg(not(unix))]
pub fn raise() {}
