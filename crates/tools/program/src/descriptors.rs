//! Raises the limit of open files. Each disk and connection uses descriptors, and the default limit
//! is low.

/// Raises this process's limit of open files to its hard limit. Only programs may call this: a
/// library must not change the limits of its process.
#[cfg(unix)]
pub fn raise() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // macOS refuses "unlimited". Then the old limit stays; if it is too low, an error says so.
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!("cannot raise the limit of open files: {error}");
    }
}

/// Does nothing: Windows has no such limit.
#[cfg(not(unix))]
pub fn raise() {}
