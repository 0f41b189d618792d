//! Detects two disks with one identity that targets of this machine share at the same time.
//!
//! A copy of a whole file system (`dd`, a snapshot of a storage array) cannot be told from its
//! original by its files. Therefore each target announces the identity and the place of its files
//! through a socket in the abstract namespace, whose name contains both. The kernel lists these
//! names for every user, and removes them with the process.
//!
//! **Not covered.** Targets of other machines and network namespaces, and disks with a UUID from
//! the configuration: there two places may rightly have one identity (DRBD, a cluster file system).

use std::fs::Metadata;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use uuid::Uuid;

/// The sockets of this process, which stay until it exits. The process's open files show whether an
/// announced file is still shared.
static ANNOUNCED: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());

/// Announces that this process shares the file at `path` with this identity.
///
/// # Errors
/// A sentence that names both files, if a process shares another file with the same identity.
pub(in crate::serve) fn announce(path: &Path, uuid: Uuid) -> Result<(), String> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    if !found.is_file() {
        return Ok(());
    }
    let prefix = format!("farblock-disk/{uuid}/");
    let place = place(&found);
    // Announced first: of two targets that start at once, at least one sees the other.
    let name = format!("{prefix}{place}/{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name);
    let socket = address.and_then(|address| UnixDatagram::bind_addr(&address));
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    if let Some((other, process)) = shared_elsewhere(&sockets, &prefix, &place) {
        let path = path.display();
        return Err(format!(
            "{path} has the same identity as {other}, which process {process} shares, and hosts \
             would take the two for one disk: if it is a copy that is to be another disk, run \
             `setfattr -x user.farblock.identity {path}` first"
        ));
    }
    // The name is in use if this process shares the file already.
    ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner).extend(socket);
    Ok(())
}

fn place(found: &Metadata) -> String {
    format!("{}-{}", found.dev(), found.ino())
}

/// A file at another place that a process announces under this prefix, and the process.
fn shared_elsewhere(sockets: &str, prefix: &str, own: &str) -> Option<(String, u32)> {
    sockets.lines().find_map(|line| {
        let name = &line[line.find('@')? + 1..];
        let (place, process) = name.strip_prefix(prefix)?.split_once('/')?;
        let process = process.parse().ok()?;
        let is_other = place != own;
        is_other.then(|| open_file(process, place))?.map(|file| (file, process))
    })
}

/// The file at this place that a process has open; `None` if it has closed the file.
fn open_file(process: u32, at: &str) -> Option<String> {
    let wanted = at.split('-').nth(1)?;
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{process}/fd")) else {
        return Some("a file that this user cannot see".to_owned());
    };
    descriptors.flatten().find_map(|entry| {
        // Do not open or stat the file itself: its mount may hang.
        let number = entry.file_name().into_string().ok()?;
        let details = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).ok()?;
        let inode = details.lines().find_map(|line| line.strip_prefix("ino:"))?.trim();
        let link = std::fs::read_link(entry.path()).ok()?;
        (inode == wanted && link.is_absolute()).then(|| link.display().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn two_live_disks_with_one_identity_are_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a.img"), folder.path().join("b.img"));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "b").unwrap();
        let text = folder.path().as_os_str().as_encoded_bytes();
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, text);
        let shared = File::open(&a).unwrap();
        announce(&a, uuid).expect("the first disk");
        announce(&a, uuid).expect("the same disk again");
        let refused = announce(&b, uuid).expect_err("another disk");
        assert!(refused.contains("a.img") && refused.contains("b.img"), "{refused}");
        drop(shared);
        announce(&b, uuid).expect("the first disk is closed");
    }
}
