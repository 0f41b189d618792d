//! A Unix socket that only its owner can open.

use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that listens at `path`. What a dead process left there is replaced; a living one's is
/// not. It is made under another name and for its owner alone before anybody can find it.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        check_folder(folder)?;
        check_way(folder)?;
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something else is there"));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another farblock answers there"));
        }
        Ok(_) => fs::remove_file(path)?,
    }
    let new = beside(path);
    let _ = fs::remove_file(&new);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(&new)?)?;
    // It listens only when nobody else can open it, whatever the umask is.
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

/// Whoever may write to a folder may put another socket in this one's place, and be told what is
/// meant for us; not where only owners may take things away, as in /tmp.
fn check_folder(folder: &Path) -> io::Result<()> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let found = fs::metadata(folder)?;
    let (mode, shown) = (found.mode(), folder.display());
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Err(io::Error::other(format!(
            "others can write to the folder {shown} (mode {:04o}) and put their own socket there: \
             chmod 700 {shown}, or choose another place with --control",
            mode & 0o7777
        )));
    }
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us && found.uid() != 0 {
        return Err(io::Error::other(format!(
            "the folder {shown} is another user's, who can put another socket there: choose \
             another place with --control"
        )));
    }
    Ok(())
}

/// The same of each folder on the way there.
fn check_way(folder: &Path) -> io::Result<()> {
    match step_of_others(folder)? {
        None => Ok(()),
        Some(step) => Err(io::Error::other(format!(
            "{} is another user's, or others can write to it, and can lead who looks for the \
             socket to their own: choose another place with --control",
            step.display()
        ))),
    }
}

/// The step on the way to a folder, itself among them, that others than we and root can exchange:
/// they lead who follows it elsewhere, by a symbolic link as well. A link on the way has two ways,
/// the one to it and the one behind it.
///
/// # Errors
/// If a step cannot be looked at.
pub fn step_of_others(folder: &Path) -> io::Result<Option<PathBuf>> {
    let us = rustix::process::geteuid().as_raw();
    let ways = [std::path::absolute(folder)?, fs::canonicalize(folder)?];
    for step in ways.iter().flat_map(|way| way.ancestors()) {
        let found = fs::symlink_metadata(step)?;
        if is_others(found.uid(), found.mode(), us) {
            return Ok(Some(step.to_owned()));
        }
    }
    Ok(None)
}

/// Whether others than we and root can exchange what this is, or is in this folder. A link's mode
/// says nothing; who owns none here (in a container) is nobody.
fn is_others(owner: u32, mode: u32, us: u32) -> bool {
    const NOBODY: u32 = 65534;
    const KIND: u32 = 0o170_000;
    const LINK: u32 = 0o120_000;
    let may_all_write = mode & KIND != LINK && mode & 0o002 != 0 && mode & 0o1000 == 0;
    ![us, 0, NOBODY].contains(&owner) || may_all_write
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn who_can_exchange_a_folder() {
        const FOLDER: u32 = 0o040_000;
        for (owner, mode, others) in [
            (1000, FOLDER | 0o700, false),
            (0, FOLDER | 0o755, false),
            (0, FOLDER | 0o1777, false),
            (65534, FOLDER | 0o755, false),
            (0, FOLDER | 0o777, true),
            (1001, FOLDER | 0o700, true),
            (0, 0o120_777, false),
            (1000, 0o120_777, false),
            (1001, 0o120_777, true),
        ] {
            assert_eq!(is_others(owner, mode, 1000), others, "{owner} {mode:o}");
        }
    }

    #[test]
    fn links_of_ours_lead_to_a_socket_and_one_in_its_place_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir(path("real")).unwrap();
        fs::set_permissions(path("real"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink(path("real"), path("link")).unwrap();
        bind(&path("link/control")).unwrap();
        assert_eq!(fs::metadata(path("real/control")).unwrap().mode() & 0o777, 0o600);
        // Whoever's file a link in the socket's place leads to stays as it is.
        fs::write(path("victim"), "a").unwrap();
        symlink(path("victim"), path("real/other")).unwrap();
        let refused = bind(&path("real/other")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(path("victim")).unwrap(), b"a");
        // The same of the name under which it is made.
        symlink(path("victim"), beside(&path("real/third"))).unwrap();
        bind(&path("real/third")).unwrap();
        assert_eq!(fs::read(path("victim")).unwrap(), b"a");
    }

    #[test]
    fn a_folder_on_the_way_that_everybody_can_write_to_is_none() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir_all(path("open/ours")).unwrap();
        fs::set_permissions(path("open/ours"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::set_permissions(path("open"), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = bind(&path("open/ours/control")).unwrap_err().to_string();
        assert!(refused.contains("/open is another user's") && refused.contains("--control"));
        fs::set_permissions(path("open"), fs::Permissions::from_mode(0o1777)).unwrap();
        bind(&path("open/ours/control")).unwrap();
    }

    #[test]
    fn the_way_behind_a_link_is_one_as_well() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        fs::create_dir_all(path("open/ours")).unwrap();
        fs::set_permissions(path("open"), fs::Permissions::from_mode(0o777)).unwrap();
        symlink(path("open/ours"), path("link")).unwrap();
        assert_eq!(step_of_others(&path("link")).unwrap(), Some(path("open")));
        fs::set_permissions(path("open"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(step_of_others(&path("link")).unwrap(), None);
    }
}
