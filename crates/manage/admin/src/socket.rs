//! A Unix socket that only its owner can open.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket that listens at `path`. What a dead process left there is replaced; a living one's is
/// not. It is made under another name and for its owner alone before anybody can find it.
pub(crate) fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
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
    let listener = UnixListener::bind(&new)?;
    let placed = fs::set_permissions(&new, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&new, path))
        .and_then(|()| listener.set_nonblocking(true));
    match placed {
        Ok(()) => Ok(listener),
        Err(error) => {
            let _ = fs::remove_file(&new);
            Err(error)
        }
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    path.with_file_name(name)
}
