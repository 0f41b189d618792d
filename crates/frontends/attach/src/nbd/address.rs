//! The listening address of an NBD server: a Unix socket or a TCP port of this machine.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
#[cfg(unix)]
use std::path::Path;
use std::path::PathBuf;

/// The maximum number of connections that the system queues before the server accepts them.
const BACKLOG: i32 = 128;

/// The listening address of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// The path of a Unix socket. Only the owner of the socket may use it.
    Unix(PathBuf),
    /// A TCP port of this machine. With port 0, the system picks a free port.
    Tcp(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{}", path.display()),
            Address::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl Address {
    /// The NBD URI of an export at this address, in the form that most NBD clients accept.
    #[must_use]
    pub fn uri(&self, export: &str) -> String {
        let export = escape(export.as_bytes());
        match self {
            Address::Unix(path) => {
                let path = escape(path.as_os_str().as_encoded_bytes());
                format!("nbd+unix:///{export}?socket={path}")
            }
            Address::Tcp(address) => format!("nbd://{address}/{export}"),
        }
    }
}

/// Escapes bytes for a URI.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The reason why the server cannot listen on an address. Its text tells the user how to fix the
/// problem.
#[derive(Debug)]
#[non_exhaustive]
pub enum ListenError {
    /// The address is not a loopback address, so other machines could connect.
    NotLoopback(SocketAddr),
    /// The system has no Unix sockets.
    NoUnixSockets,
    /// Another process listens on this address.
    InUse(Address),
    /// A file at the path is not a socket.
    NotASocket(PathBuf),
    /// The path is longer than the system allows for a socket.
    TooLong(PathBuf),
    /// Another error of the system.
    System(Address, io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenError::NotLoopback(address) => write!(
                f,
                "NBD does not authenticate clients, so farblock serves it only to this machine: \
                 listen on 127.0.0.1 or a Unix socket instead of {address}"
            ),
            ListenError::NoUnixSockets => {
                f.write_str("this system has no Unix sockets: listen on a port of 127.0.0.1")
            }
            ListenError::InUse(address) => {
                write!(f, "another program listens at {address}: choose another address")
            }
            ListenError::NotASocket(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path} exists, but is not a socket: choose another path, or remove the file"
                )
            }
            ListenError::TooLong(path) => {
                let path = path.display();
                write!(f, "the path {path} is too long for a socket: use a path below 108 bytes")
            }
            ListenError::System(address, error) => {
                write!(f, "cannot listen at {address}: {error}")
            }
        }
    }
}

impl std::error::Error for ListenError {}

/// A listening socket. Dropping a Unix socket removes its path, if the path still refers to this
/// socket.
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) address: Address,
    #[cfg(unix)]
    identity: Option<(u64, u64)>,
}

/// The socket that accepts clients.
pub(crate) enum Socket {
    Tcp(mio::net::TcpListener),
    #[cfg(unix)]
    Unix(mio::net::UnixListener),
}

impl Socket {
    pub(crate) fn source(&mut self) -> &mut dyn mio::event::Source {
        match self {
            Socket::Tcp(listener) => listener,
            #[cfg(unix)]
            Socket::Unix(listener) => listener,
        }
    }

    /// Accepts the next client. Returns its stream, and its name for the log.
    pub(crate) fn accept(&self) -> io::Result<(TcpStream, String)> {
        match self {
            Socket::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((stream.into(), peer.to_string()))
            }
            #[cfg(unix)]
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok(from_unix(std::os::fd::OwnedFd::from(stream)))
            }
        }
    }
}

/// Wraps a Unix stream socket in a [`TcpStream`], which the reactor requires. The reactor uses only
/// operations that Unix sockets also support. Also returns the peer's name.
#[cfg(unix)]
pub(crate) fn from_unix(socket: std::os::fd::OwnedFd) -> (TcpStream, String) {
    #[cfg(target_os = "linux")]
    let peer = rustix::net::sockopt::socket_peercred(&socket)
        .map(|who| format!("process {} of user {}", who.pid.as_raw_nonzero(), who.uid.as_raw()));
    #[cfg(not(target_os = "linux"))]
    let peer = Err(());
    (TcpStream::from(socket), peer.unwrap_or_else(|_| "a local client".to_owned()))
}

/// Binds a socket to the address, and listens.
pub(crate) fn bind(address: &Address) -> Result<Listener, ListenError> {
    match address {
        Address::Tcp(address) => bind_tcp(*address),
        #[cfg(unix)]
        Address::Unix(path) => bind_unix(path),
        #[cfg(not(unix))]
        Address::Unix(_) => Err(ListenError::NoUnixSockets),
    }
}

fn failed(address: &Address, error: io::Error) -> ListenError {
    match error.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse(address.clone()),
        _ => ListenError::System(address.clone(), error),
    }
}

fn bind_tcp(address: SocketAddr) -> Result<Listener, ListenError> {
    if !address.ip().is_loopback() {
        return Err(ListenError::NotLoopback(address));
    }
    let listen = || -> io::Result<TcpListener> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        // Windows would let two programs share the port, so set this option only on Unix.
        #[cfg(unix)]
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    let listener = listen().map_err(|error| failed(&Address::Tcp(address), error))?;
    let bound = listener.local_addr().unwrap_or(address);
    Ok(Listener {
        socket: Socket::Tcp(mio::net::TcpListener::from_std(listener)),
        address: Address::Tcp(bound),
        #[cfg(unix)]
        identity: None,
    })
}

#[cfg(unix)]
fn bind_unix(path: &Path) -> Result<Listener, ListenError> {
    use std::os::unix::fs::PermissionsExt;
    let address = Address::Unix(path.to_path_buf());
    let Ok(name) = socket2::SockAddr::unix(path) else {
        return Err(ListenError::TooLong(path.to_path_buf()));
    };
    make_way(path, &name)?;
    let listen = || -> io::Result<std::os::unix::net::UnixListener> {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
        socket.bind(&name)?;
        // Set the mode before `listen`: until then no client can connect.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(std::os::fd::OwnedFd::from(socket).into())
    };
    let listener = listen().map_err(|error| failed(&address, error))?;
    let socket = Socket::Unix(mio::net::UnixListener::from_std(listener));
    Ok(Listener { socket, address, identity: identity(path) })
}

/// Removes the socket that a killed server left at the path.
#[cfg(unix)]
fn make_way(path: &Path, name: &socket2::SockAddr) -> Result<(), ListenError> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(path.to_path_buf()));
    }
    let address = Address::Unix(path.to_path_buf());
    let probe = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).and_then(
        |socket| {
            socket.set_nonblocking(true)?;
            socket.connect(name)
        },
    );
    match probe {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!("removing the socket {address}, which no program listens to any more");
            std::fs::remove_file(path).map_err(|error| failed(&address, error))
        }
        // A server listens on the path, or accepts no client now because its queue is full.
        Ok(()) => Err(ListenError::InUse(address)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(ListenError::InUse(address)),
        Err(error) => Err(failed(&address, error)),
    }
}

/// The device and inode number of a file, which identify it independently of its name.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(unix)]
impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address
            && self.identity.is_some()
            && identity(path) == self.identity
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_as_nbd_uris() {
        let unix = Address::Unix("/run/a b.sock".into());
        assert_eq!(unix.uri("disk"), "nbd+unix:///disk?socket=/run/a%20b.sock");
        let tcp = Address::Tcp(([127, 0, 0, 1], 10809).into());
        assert_eq!(tcp.uri(""), "nbd://127.0.0.1:10809/");
    }

    #[test]
    fn only_loopback_addresses_are_accepted() {
        let error =
            bind(&Address::Tcp(([0, 0, 0, 0], 0).into())).err().expect("the address is refused");
        assert!(error.to_string().contains("listen on 127.0.0.1"), "{error}");
    }
}
