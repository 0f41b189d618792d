//! Reads TLS keys from files or from the kernel's keyrings.

use crate::key_file::{KEYRING, read_tls};
#[cfg(target_os = "linux")]
use crate::keyring;
use farblock_proto::host::Identity;
use farblock_secure::{TlsKey, TlsPsk};
use farblock_wire::nqn::DISCOVERY_NQN;
use std::path::Path;

/// Reads a host's TLS keys for a subsystem. The keys come from a file, as with [`read_tls`], or
/// from the kernel's keyrings. If the path selects no particular key in the keyrings, the result
/// includes the host's keys for discovery.
///
/// # Errors
/// Fails for the same reasons as [`key_file::read`](crate::key_file::read).
pub fn read(path: &Path, host: &str, subsystem: &str) -> Result<Vec<TlsKey>, String> {
    let Some(name) = in_keyring(path) else { return read_tls(path) };
    // The NQNs of the host and the subsystem identify a key. The host identifier is not used.
    let of = |subnqn| in_kernel(name, &Identity { hostnqn: host, hostid: [0; 16], subnqn });
    let mut keys = of(subsystem)?;
    // A key that the path selects by identity or number is only for this subsystem.
    if name.is_empty() {
        keys.extend(of(DISCOVERY_NQN).unwrap_or_default());
    }
    Ok(keys.into_iter().map(TlsKey::given).collect())
}

/// Reads the pre-shared keys of a host for a subsystem; blocks for file and keyring I/O.
pub(crate) fn psks(path: &Path, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    if let Some(name) = in_keyring(path) {
        return in_kernel(name, identity);
    }
    let keys = read_tls(path)?;
    Ok(keys.iter().flat_map(|key| key.psks(identity.hostnqn, identity.subnqn)).collect())
}

/// The part of the path that selects keys in the kernel's keyrings; `None` for the path of a file.
fn in_keyring(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(KEYRING)
}

#[cfg(target_os = "linux")]
fn in_kernel(name: &str, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    keyring::ask(name, identity)
}

#[cfg(not(target_os = "linux"))]
fn in_kernel(_: &str, _: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    Err("this system has no kernel keyrings: give the path of a key file".to_owned())
}
