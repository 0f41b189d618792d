//! Descriptors: each disk and each connection takes some, and systems give a process few at first.

/// Raises this process's limit of open files to its hard limit. Only programs call this: a library
/// must not change the limits of the process that uses it.
#[cfg(unix)]
pub fn raise() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // macOS refuses "unlimited". The limit stays, and an error names it if it is too low.
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of open files stays: {error}");
    }
}

/// Does nothing: Windows has no such limit.
#[cfg(not(unix))]
pub fn raise() {}
