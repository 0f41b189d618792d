//! The default paths of control sockets, and the sockets of running processes there.

use crate::socket::{sockets_in, unfinished_in};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// The default folder for targets' control sockets; `None` if this system has none.
pub fn sockets() -> Option<PathBuf> {
    place("serve")
}

/// The folder for the sockets of running fleets; `None` if this system has none.
pub fn fleet_sockets() -> Option<PathBuf> {
    place("fleet")
}

fn place(of: &str) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    if let Some(given) = variable("FARBLOCK_RUNTIME_DIR") {
        let mut name = given.file_name()?.to_owned();
        name.push(format!("-{of}"));
        return Some(given.with_file_name(name));
    }
    if rustix::process::geteuid().is_root() {
        return Some(format!("/run/farblock-{of}").into());
    }
    variable("XDG_RUNTIME_DIR").map(|folder| folder.join(format!("farblock-{of}")))
}

/// The default control socket of a target that listens on `address`.
pub fn default_socket(address: &SocketAddr) -> Option<PathBuf> {
    sockets().map(|folder| folder.join(address.to_string()))
}

/// The control sockets of this user's running targets.
pub fn living() -> Option<Vec<PathBuf>> {
    sockets().map(|folder| living_in(&folder))
}

/// The sockets of this user's running fleets.
pub fn fleets() -> Vec<PathBuf> {
    fleet_sockets().map(|folder| living_in(&folder)).unwrap_or_default()
}

/// Removes the sockets of dead processes from a folder, including temporary sockets that were not
/// renamed yet.
pub fn remove_left_behind(folder: &Path) {
    for path in unfinished_in(folder) {
        let _ = std::fs::remove_file(&path);
    }
    for path in sockets_in(folder) {
        let connected = connect(&path);
        if connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn living_in(folder: &Path) -> Vec<PathBuf> {
    let mut living = sockets_in(folder);
    living.retain(|path| is_living(path));
    living.sort();
    living
}

/// Whether a process listens on the socket, even if it does not accept at present.
fn is_living(path: &Path) -> bool {
    connect(path).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |()| true)
}

/// Connects without blocking, because the queue of a stopped process may be full.
fn connect(path: &Path) -> std::io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}
