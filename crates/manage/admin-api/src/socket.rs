//! A Unix socket that only its owner can open.

use rustix::process::Pid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const BACKLOG: i32 = 128;
/// The maximum number of symbolic links on a path, as in Linux.
const MAX_LINKS: usize = 40;
/// The mode bits that let the group or others write.
const OTHERS_WRITE: u32 = 0o022;
/// The mode bit (sticky) of a folder in which only an entry's owner may remove it.
const STICKY: u32 = 0o1000;

/// Creates a listening socket at `path`. Only its owner can ever open it, because the socket gets
/// its mode before its name. Replaces the socket of a dead process, but not of a live one.
///
/// # Errors
/// Fails if the system cannot create the socket, a process answers at `path`, or other users could
/// replace the socket.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        check_folder(folder)?;
        check_way(folder)?;
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "the path exists, but is not a socket",
            ));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another farblock process uses this socket",
            ));
        }
        Ok(_) => fs::remove_file(path)?,
    }
    remove_unfinished(path);
    let new = beside(path);
    let _ = fs::remove_file(&new);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(&new)?)?;
    // The umask may allow other users, so restrict the socket before it listens.
    let placed = fs::set_permissions(&new, fs::Permissions::from_mode(0o600))
        .and_then(|()| socket.listen(BACKLOG))
        .and_then(|()| fs::rename(&new, path))
        .and_then(|()| socket.set_nonblocking(true));
    match placed {
        Ok(()) => Ok(socket.into()),
        Err(error) => {
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

/// Removes the temporary sockets that dead processes have left for this path.
fn remove_unfinished(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return };
    for left in unfinished_in(folder) {
        let of = left.file_name().and_then(made);
        if of.is_some_and(|(it, _)| it == name) {
            let _ = fs::remove_file(&left);
        }
    }
}

/// Refuses a folder in which other users could replace the socket, and so receive this process's
/// requests. Sticky folders such as /tmp are safe.
fn check_folder(folder: &Path) -> io::Result<()> {
    let found = fs::metadata(folder)?;
    let (mode, shown) = (found.mode(), folder.display());
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Err(io::Error::other(format!(
            "other users can write to the folder {shown} (mode {:04o}) and put their own socket \
             there: chmod 700 {shown}, or choose another place with --control",
            mode & 0o7777
        )));
    }
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us && found.uid() != 0 {
        return Err(io::Error::other(format!(
            "the folder {shown} belongs to another user, who could replace the socket: choose \
             another place with --control"
        )));
    }
    Ok(())
}

/// Refuses a path if other users could replace one of its folders.
fn check_way(folder: &Path) -> io::Result<()> {
    match step_of_others(folder)? {
        None => Ok(()),
        Some(step) => {
            Err(io::Error::other(format!("{step}, or choose another place with --control")))
        }
    }
}

/// The first component of a path that users other than this one and root could replace, to redirect
/// the path. Resolves symbolic links one by one, as the kernel does, and checks every folder on the
/// way.
///
/// # Errors
/// Fails if the system cannot inspect a component.
pub fn step_of_others(folder: &Path) -> io::Result<Option<OthersStep>> {
    let us = rustix::process::geteuid().as_raw();
    let (mut at, mut links) = (PathBuf::new(), 0);
    let mut ahead = parts_reversed(&std::path::absolute(folder)?);
    while let Some(part) = ahead.pop() {
        if part == ".." {
            // The path before ".." contains no links at this point.
            at.pop();
        }
        if part == ".." || part == "." {
            continue;
        }
        let step = at.join(part);
        let found = fs::symlink_metadata(&step)?;
        let (uid, mode) = (found.uid(), found.mode());
        if let Some(by) = is_others(uid, mode, us) {
            return Ok(Some(OthersStep { path: step, by }));
        }
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            ahead.extend(parts_reversed(&fs::read_link(&step)?));
        } else {
            at = step;
        }
    }
    Ok(None)
}

/// The components of a path in reverse order. The root of an absolute path comes last.
fn parts_reversed(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

/// A path component that other users can replace. `Display` tells the user what to do.
#[derive(PartialEq, Eq, Debug)]
pub struct OthersStep {
    path: PathBuf,
    by: By,
}

/// The reason why others can replace a component.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// The user with this ID owns the component.
    Owning(u32),
    /// Others can write to the component, which has this mode.
    Writing(u32),
}

impl fmt::Display for OthersStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.path.display();
        match self.by {
            By::Owning(user) => write!(
                f,
                "user {user} owns {shown} and could replace its contents: change its owner (chown)"
            ),
            By::Writing(mode) => write!(
                f,
                "other users can write to {shown} (mode {:04o}) and could replace its contents: \
                 chmod go-w {shown}",
                mode & 0o7777
            ),
        }
    }
}

/// The reason why users other than `us` and root can replace a file, or entries of a folder, with
/// this owner and mode. `None` if they cannot. The file's group counts as other users: its members
/// may change, and an ACL's write entries appear as group permissions. In a sticky folder (/tmp),
/// only the owner of an entry can replace it. A symbolic link's mode has no effect. An owner that a
/// container does not know counts as harmless.
fn is_others(owner: u32, mode: u32, us: u32) -> Option<By> {
    const NOBODY: u32 = 65534;
    const KIND: u32 = 0o170_000;
    const LINK: u32 = 0o120_000;
    if ![us, 0, NOBODY].contains(&owner) {
        return Some(By::Owning(owner));
    }
    let may_write = mode & KIND != LINK && mode & OTHERS_WRITE != 0 && mode & STICKY == 0;
    may_write.then_some(By::Writing(mode))
}

/// The sockets in a folder, of live and dead processes. Excludes temporary sockets: they have no
/// listener, although their process may be alive.
#[must_use]
pub fn sockets_in(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let made = found.filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."));
    made.map(|entry| entry.path()).collect()
}

/// The temporary sockets of processes that died before the sockets got their final names.
#[must_use]
pub fn unfinished_in(folder: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let unfinished = found.filter(|entry| {
        entry.file_type().is_ok_and(|kind| kind.is_socket())
            && made(&entry.file_name()).is_some_and(|(_, maker)| is_dead(maker))
    });
    unfinished.map(|entry| entry.path()).collect()
}

/// The final name and the process ID in a temporary name, as [`beside`] makes it.
fn made(name: &OsStr) -> Option<(&str, Pid)> {
    let (name, process) = name.to_str()?.strip_prefix('.')?.rsplit_once('.')?;
    let process: u32 = process.parse().ok()?;
    Some((name, Pid::from_raw(process.try_into().ok()?)?))
}

fn is_dead(process: Pid) -> bool {
    rustix::process::test_kill_process(process) == Err(rustix::io::Errno::SRCH)
}

/// The temporary name of a socket. [`sockets_in`] skips such names.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_folder_that_other_users_can_replace_is_detected() {
        const FOLDER: u32 = 0o040_000;
        for (owner, mode, others) in [
            (1000, FOLDER | 0o700, None),
            (0, FOLDER | 0o755, None),
            (0, FOLDER | 0o1777, None),
            (0, FOLDER | 0o1775, None),
            (65534, FOLDER | 0o755, None),
            (0, FOLDER | 0o777, Some(By::Writing(FOLDER | 0o777))),
            (0, FOLDER | 0o775, Some(By::Writing(FOLDER | 0o775))),
            (1000, FOLDER | 0o2770, Some(By::Writing(FOLDER | 0o2770))),
            (1001, FOLDER | 0o700, Some(By::Owning(1001))),
            (1001, FOLDER | 0o1777, Some(By::Owning(1001))),
            (0, 0o120_777, None),
            (1000, 0o120_777, None),
            (1001, 0o120_777, Some(By::Owning(1001))),
        ] {
            assert_eq!(is_others(owner, mode, 1000), others, "{owner} {mode:o}");
        }
    }

    #[test]
    fn a_socket_follows_our_links_and_never_replaces_a_link() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir(path("real")).unwrap();
        fs::set_permissions(path("real"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink(path("real"), path("link")).unwrap();
        bind(&path("link/control")).unwrap();
        assert_eq!(fs::metadata(path("real/control")).unwrap().mode() & 0o777, 0o600);
        // If a link is in the socket's place, its target must not change.
        fs::write(path("victim"), "a").unwrap();
        symlink(path("victim"), path("real/other")).unwrap();
        let refused = bind(&path("real/other")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(path("victim")).unwrap(), b"a");
        // A temporary socket of a live process is not a leftover.
        let made = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        made.bind(&SockAddr::unix(beside(&path("real/second"))).unwrap()).unwrap();
        let mut found = sockets_in(&path("real"));
        found.sort();
        assert_eq!(found, [path("real/control"), path("real/other")]);
        // A link in the place of the temporary name is not followed either.
        symlink(path("victim"), beside(&path("real/third"))).unwrap();
        bind(&path("real/third")).unwrap();
        assert_eq!(fs::read(path("victim")).unwrap(), b"a");
    }

    #[test]
    fn leftover_sockets_of_dead_processes_are_found() {
        // No kernel uses process IDs this high.
        const NOBODY: i32 = i32::MAX;
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let make = |path: &Path| {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.bind(&SockAddr::unix(path).unwrap()).unwrap();
        };
        let [left, other] = [4420, 4421].map(|port| path(&format!(".127.0.0.1:{port}.{NOBODY}")));
        make(&left);
        make(&other);
        make(&beside(&path("127.0.0.1:4422")));
        for stays in [".odd", "finished.1", &format!("finished.{NOBODY}"), ".a.0", ".a.-1", ".a.b"]
        {
            make(&path(stays));
        }
        fs::write(path(&format!(".file.{NOBODY}")), "a").unwrap();
        let mut found = unfinished_in(place.path());
        found.sort();
        assert_eq!(found, [left, other.clone()]);
        // Binding the same path removes the temporary socket.
        chmod(place.path(), 0o700);
        bind(&path("127.0.0.1:4420")).unwrap();
        assert_eq!(unfinished_in(place.path()), [other]);
    }

    /// Creates folders with these modes, regardless of the umask.
    fn place(folders: &[(&str, u32)]) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for (name, mode) in folders {
            fs::create_dir(place.path().join(name)).unwrap();
            chmod(&place.path().join(name), *mode);
        }
        place
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_parent_folder_that_others_can_write_to_is_refused() {
        for mode in [0o777, 0o775] {
            let place = place(&[("open", mode), ("open/ours", 0o700)]);
            let path = |name: &str| place.path().join(name);
            let refused = bind(&path("open/ours/control")).unwrap_err().to_string();
            let wanted = format!("/open (mode {mode:04o}) and could replace");
            assert!(refused.contains(&wanted) && refused.contains("--control"), "{refused}");
            assert!(refused.contains("chmod go-w /") && !refused.contains('\n'), "{refused}");
            chmod(&path("open"), 0o1000 | mode);
            bind(&path("open/ours/control")).unwrap();
        }
    }

    #[test]
    fn folders_behind_links_are_checked_too() {
        let folders = [
            ("open", 0o755),
            ("open/ours", 0o700),
            ("first", 0o700),
            ("last", 0o755),
            ("up", 0o700),
        ];
        let place = place(&folders);
        let path = |name: &str| place.path().join(name);
        // A chain of links, each in a folder that no other path contains.
        symlink(path("first/link"), path("link")).unwrap();
        symlink("../open/ours/link", path("first/link")).unwrap();
        symlink("../../up/../last", path("open/ours/link")).unwrap();
        let step = |name: &str| step_of_others(&path(name)).unwrap().map(|step| step.path);
        assert_eq!(step("link"), None);
        for (name, mode) in folders {
            chmod(&path(name), 0o775);
            let found = step("link");
            // A folder that the path leaves with ".." counts, too.
            assert_eq!(found, Some(path(name)), "{name}");
            chmod(&path(name), mode);
        }
        assert_eq!(step("link"), None);
        symlink(path("round"), path("round")).unwrap();
        assert!(step_of_others(&path("round")).is_err());
    }
}
