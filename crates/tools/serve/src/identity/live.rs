//! Detects two files with the same identity that targets of this machine share at the same time.
//!
//! The attributes of a file do not show that its whole file system is a copy (`dd`, a snapshot of a
//! storage array). Therefore each target announces the identity and the place (device and inode
//! number) of each of its files: it binds a socket whose name, in the abstract namespace, contains
//! both. The kernel lists these names for every user. The open disk owns the socket, so closing the
//! disk ends the announcement.
//!
//! It does not see targets of other machines or network namespaces. It ignores disks with a UUID
//! from the configuration, because two files may legitimately have the same one (DRBD, a cluster
//! file system).

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// The sockets of this process, by name.
static SOCKETS: Mutex<BTreeMap<String, Socket>> = Mutex::new(BTreeMap::new());

/// The socket of a file that this process shares.
struct Socket {
    /// The bound socket; `None` if the kernel refused to bind it.
    _bound: Option<UnixDatagram>,
    /// The number of open disks that use the file; 2 while the target reopens a disk.
    disks: usize,
}

/// An announced file. While this value exists, other targets see that an open disk uses the file.
pub(crate) struct Announced {
    name: String,
}

impl Announced {
    fn begin(name: String) -> Announced {
        let socket = || {
            let address = SocketAddr::from_abstract_name(&name);
            let bound = address.and_then(|address| UnixDatagram::bind_addr(&address));
            Socket { _bound: bound.ok(), disks: 0 }
        };
        sockets().entry(name.clone()).or_insert_with(socket).disks += 1;
        Announced { name }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let mut sockets = sockets();
        let Some(socket) = sockets.get_mut(&self.name) else { return };
        socket.disks -= 1;
        if socket.disks == 0 {
            sockets.remove(&self.name);
        }
    }
}

fn sockets() -> MutexGuard<'static, BTreeMap<String, Socket>> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The files of this thread that [`Gathering::check`] will compare; `None` outside of a
    /// [`Gathering`].
    static GATHERED: RefCell<Option<Vec<(PathBuf, Uuid)>>> = const { RefCell::new(None) };
}

/// Announces that this process shares the file at `path` with this identity. Returns `None` if
/// `path` is not a regular file.
///
/// # Errors
/// Returns a sentence that names both files if a process shares another file with the same
/// identity. During a [`Gathering`], only [`Gathering::check`] detects this.
pub(crate) fn announce(path: &Path, uuid: Uuid) -> Result<Option<Announced>, String> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(None) };
    if !found.is_file() {
        return Ok(None);
    }
    // Announce before comparing: if two targets start at once, at least one of them sees the other.
    let name = format!("{PREFIX}{uuid}/{}/{}", place(&found), std::process::id());
    let announced = Announced::begin(name);
    let file = (path.to_owned(), uuid);
    let is_gathered = GATHERED.with_borrow_mut(|gathered| match gathered {
        Some(gathered) => {
            gathered.push(file.clone());
            true
        }
        None => false,
    });
    if !is_gathered {
        refuse_twins(&[file])?;
    }
    Ok(Some(announced))
}

/// The files that a target opens at its start, on one thread. Comparing them together reads the
/// kernel's list of sockets once instead of once for each file.
pub(crate) struct Gathering(());

impl Gathering {
    pub(crate) fn begin() -> Gathering {
        GATHERED.set(Some(Vec::new()));
        Gathering(())
    }

    /// Compares all files that this thread announced since [`Gathering::begin`].
    ///
    /// # Errors
    /// Fails like [`announce`].
    pub(crate) fn check(self) -> Result<(), String> {
        refuse_twins(&GATHERED.take().unwrap_or_default())
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        GATHERED.set(None);
    }
}

const PREFIX: &str = "farblock-disk/";

fn refuse_twins(files: &[(PathBuf, Uuid)]) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let shared = shared(&sockets);
    for (path, uuid) in files {
        let Ok(found) = std::fs::metadata(path) else { continue };
        let places = shared.get(uuid.to_string().as_str());
        let other = shared_elsewhere(places.map_or(&[], Vec::as_slice), &place(&found));
        if let Some((other, process)) = other {
            return Err(format!(
                "{} has the same identity as {other}, which process {process} shares, so hosts \
                 would treat both as one disk: if it is a copy and should be its own disk, {}",
                path.display(),
                remedy(path, *uuid)
            ));
        }
    }
    Ok(())
}

/// Returns advice on how to give a copy another identity. An identity from a mirror's record is not
/// an attribute and needs other advice.
fn remedy(path: &Path, uuid: Uuid) -> String {
    let text = File::open(path).ok().and_then(|file| super::attribute(&file, super::IDENTITY));
    match text.and_then(|text| super::parse(&text)) {
        Some((attribute, _)) if attribute == uuid => {
            format!("run `setfattr -x user.farblock.identity {}` first", path.display())
        }
        _ => "give it another UUID (`uuid` in a configuration, or farblock ctl add-namespace \
              --uuid)"
            .to_owned(),
    }
}

fn place(found: &Metadata) -> String {
    format!("{}-{}", found.dev(), found.ino())
}

/// Returns the places and processes of announced files, by identity.
fn shared(sockets: &str) -> HashMap<&str, Vec<(&str, u32)>> {
    let mut shared: HashMap<_, Vec<_>> = HashMap::new();
    for line in sockets.lines() {
        let name = line.find('@').and_then(|at| line[at + 1..].strip_prefix(PREFIX));
        let parts = name.and_then(|name| name.split_once('/'));
        let Some((uuid, (place, process))) =
            parts.and_then(|(uuid, rest)| Some((uuid, rest.split_once('/')?)))
        else {
            continue;
        };
        if let Ok(process) = process.parse() {
            shared.entry(uuid).or_default().push((place, process));
        }
    }
    shared
}

/// Returns the name of an open file at another place than `own`, and the process that shares it.
fn shared_elsewhere(places: &[(&str, u32)], own: &str) -> Option<(String, u32)> {
    let others = places.iter().filter(|(place, _)| *place != own);
    let mut open =
        others.filter_map(|(place, process)| Some((open_file(*process, place)?, *process)));
    open.next()
}

/// Returns the name of the file at this place if the process has it open, and `None` if not. If the
/// kernel hides the open files of that process from a sandboxed target, the file counts as open.
fn open_file(process: u32, at: &str) -> Option<String> {
    let wanted = at.split('-').nth(1)?;
    let unseen = || {
        Some(format!(
            "the file with the inode number {wanted} (`find MOUNTPOINT -inum {wanted}` finds it)"
        ))
    };
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{process}/fd")) else {
        return unseen();
    };
    let mut is_hidden = false;
    let found = descriptors.flatten().find_map(|entry| {
        // Do not open or stat the file: its file system may hang.
        let number = entry.file_name().into_string().ok()?;
        let details = std::fs::read_to_string(format!("/proc/{process}/fdinfo/{number}"));
        is_hidden |= details.as_ref().is_err_and(|it| it.kind() == ErrorKind::PermissionDenied);
        let details = details.ok()?;
        let inode = details.lines().find_map(|line| line.strip_prefix("ino:"))?.trim();
        let link = std::fs::read_link(entry.path()).ok()?;
        (inode == wanted && link.is_absolute()).then(|| link.display().to_string())
    });
    found.or_else(|| is_hidden.then(unseen).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates two files, and an identity that no other test uses.
    fn two_files() -> (tempfile::TempDir, PathBuf, PathBuf, Uuid) {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a.img"), folder.path().join("b.img"));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "b").unwrap();
        let text = folder.path().as_os_str().as_encoded_bytes();
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, text);
        (folder, a, b, uuid)
    }

    #[test]
    fn a_second_live_disk_with_the_same_identity_is_refused() {
        let (_folder, a, b, uuid) = two_files();
        let shared = File::open(&a).unwrap();
        let _first = announce(&a, uuid).expect("the first disk");
        let _again = announce(&a, uuid).expect("the same disk again");
        let refused = announce(&b, uuid).err().expect("another disk has this UUID");
        assert!(refused.contains("a.img") && refused.contains("b.img"), "{refused}");
        assert!(
            refused.contains("another UUID"),
            "the advice for a disk without an attribute: {refused}"
        );
        let gathering = Gathering::begin();
        let _gathered = announce(&b, uuid).expect("the disks are compared later");
        let refused = gathering.check().expect_err("another disk has this UUID");
        assert!(refused.contains("a.img") && refused.contains("b.img"), "{refused}");
        drop(shared);
        announce(&b, uuid).expect("the first disk is closed");
    }

    #[test]
    fn the_message_about_a_copy_advises_to_remove_the_identity_attribute() {
        let (_folder, a, _, _) = two_files();
        let Some(kept) = super::super::of(&a) else { return };
        if kept.origin != super::super::Origin::Made {
            return; // The file system has no extended attributes.
        }
        assert!(remedy(&a, kept.uuid).contains("setfattr -x user.farblock.identity"));
    }

    /// The test keeps the file open, so only the end of the announcement frees the identity.
    #[test]
    fn another_file_may_use_the_identity_after_the_last_disk_closes() {
        let (_folder, a, b, uuid) = two_files();
        let _open = File::open(&a).unwrap();
        let first = announce(&a, uuid).unwrap();
        let again = announce(&a, uuid).unwrap();
        drop(first);
        announce(&b, uuid).err().expect("one disk is still open");
        drop(again);
        let moved = announce(&b, uuid).expect("no disk is open");
        drop(moved);
        let _back = announce(&a, uuid).expect("the refused and the removed disk left no entry");
    }
}
