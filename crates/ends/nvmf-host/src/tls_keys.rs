//! TLS keys by their names: in files, or in the kernel's keyrings.

use crate::key_file::{KEYRING, read_tls};
#[cfg(target_os = "linux")]
use crate::keyring;
use farblock_proto::host::Identity;
use farblock_secure::{TlsKey, TlsPsk};
use farblock_wire::nqn::DISCOVERY_NQN;
use std::path::Path;

/// Reads a host's TLS keys for a subsystem: from a file as [`read_tls`], or from the kernel's
/// keyrings. From these it also reads the host's keys for discovery.
///
/// # Errors
/// As [`key_file::read`](crate::key_file::read).
pub fn read(path: &Path, host: &str, subsystem: &str) -> Result<Vec<TlsKey>, String> {
    let Some(name) = in_keyring(path) else { return read_tls(path) };
    // Only the two names identify a key.
    let of = |subnqn| in_kernel(name, &Identity { hostnqn: host, hostid: [0; 16], subnqn });
    let mut keys = of(subsystem)?;
    // A key given by identity or number is only for these names.
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

/// The name of keys in the kernel's keyrings; `None` for a file's path.
fn in_keyring(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(KEYRING)
}

#[cfg(target_os = "linux")]
fn in_kernel(name: &str, identity: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    keyring::ask(name, identity)
}

#[cfg(not(target_os = "linux"))]
fn in_kernel(_: &str, _: &Identity<'_>) -> Result<Vec<TlsPsk>, String> {
    Err("there are no keyrings on this system: name a file".to_owned())
}
