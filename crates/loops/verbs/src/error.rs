//! The errors of RDMA verbs.

use std::fmt;
use std::io;

/// The reason why a verb failed.
#[derive(Debug)]
pub enum VerbsError {
    /// The libraries are missing or too old. The text names the packages to install.
    NoLibrary(String),
    /// The library, the kernel or the device refused a verb.
    Refused {
        /// The verb's name in the C interface, for example `ibv_reg_mr`.
        verb: &'static str,
        /// The operating system's reason.
        error: io::Error,
    },
}

impl VerbsError {
    /// Makes the error of a verb that failed for this reason.
    pub(crate) fn refused(verb: &'static str, kind: io::ErrorKind) -> Self {
        Self::Refused { verb, error: kind.into() }
    }

    /// The kind of the operating system's error; `Unsupported` if the libraries are missing.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NoLibrary(_) => io::ErrorKind::Unsupported,
            Self::Refused { error, .. } => error.kind(),
        }
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary(sentence) => f.write_str(sentence),
            Self::Refused { verb, error } => match advice(verb, error) {
                Some(advice) => write!(f, "{verb} failed ({error}): {advice}"),
                None => write!(f, "{verb} failed: {error}"),
            },
        }
    }
}

impl std::error::Error for VerbsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoLibrary(_) => None,
            Self::Refused { error, .. } => Some(error),
        }
    }
}

/// Advice to the user, for errors whose usual cause is known.
fn advice(verb: &str, error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind::{AddrNotAvailable, NotFound, OutOfMemory, PermissionDenied};
    #[cfg(target_os = "linux")]
    let no_device = matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOSYS));
    #[cfg(not(target_os = "linux"))]
    let no_device = false;
    match (verb, error.kind()) {
        ("rdma_create_event_channel" | "ibv_get_device_list", kind)
            if no_device || kind == NotFound =>
        {
            Some("load the driver of the RDMA device, and the modules rdma_ucm and ib_uverbs")
        }
        ("rdma_create_event_channel", PermissionDenied) => Some(
            "let this process open /dev/infiniband; a target that starts with --allow-path but \
             without RDMA needs --allow-path /dev/infiniband",
        ),
        ("rdma_bind_addr" | "rdma_resolve_addr" | "rdma_listen", kind)
            if no_device || kind == AddrNotAvailable =>
        {
            Some("no RDMA device has this address: `rdma link` lists the devices")
        }
        ("ibv_reg_mr", OutOfMemory) => Some("raise the limit of locked memory (`ulimit -l`)"),
        _ => None,
    }
}

/// The error of posting several requests. The queue has accepted the first `posted` of them, and no
/// further one.
#[derive(Debug)]
pub struct PostError {
    /// Number of requests that the queue accepted.
    pub posted: usize,
    /// Why the queue refused the next request.
    pub error: VerbsError,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, after {} requests", self.error, self.posted)
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
