//! Sockets and files of the system or of a simulation.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "sim")]
use crate::sim;

/// A connected TCP socket.
#[derive(Debug)]
pub struct Socket(pub(crate) Inner);

#[derive(Debug)]
pub(crate) enum Inner {
    Tcp(TcpStream),
    #[cfg(feature = "sim")]
    Sim(sim::Stream),
}

macro_rules! either {
    ($self:expr, $socket:ident => $call:expr) => {
        match $self {
            Inner::Tcp($socket) => $call,
            #[cfg(feature = "sim")]
            Inner::Sim($socket) => $call,
        }
    };
}

impl From<TcpStream> for Socket {
    fn from(stream: TcpStream) -> Socket {
        Socket(Inner::Tcp(stream))
    }
}

#[cfg(feature = "sim")]
impl From<sim::Stream> for Socket {
    fn from(stream: sim::Stream) -> Socket {
        Socket(Inner::Sim(stream))
    }
}

impl Socket {
    /// Returns both ends of a connection in the calling thread's simulation: the client's end, then
    /// the server's end.
    #[cfg(feature = "sim")]
    #[must_use]
    pub fn simulated_pair() -> (Socket, Socket) {
        let (client, server) = sim::Stream::pair();
        (client.into(), server.into())
    }

    /// Connects within `timeout`.
    ///
    /// # Errors
    /// Returns the system's error, or a timeout.
    pub fn connect_timeout(address: &SocketAddr, timeout: Duration) -> io::Result<Socket> {
        #[cfg(feature = "sim")]
        if super::is_simulated() {
            return sim::Stream::connect(*address, timeout).map(Socket::from);
        }
        TcpStream::connect_timeout(address, timeout).map(Socket::from)
    }

    /// Returns the system's socket, for options that a simulated socket lacks. `None` in a
    /// simulation.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match &self.0 {
            Inner::Tcp(stream) => Some(stream),
            #[cfg(feature = "sim")]
            Inner::Sim(_) => None,
        }
    }

    /// Sets whether the system sends small data immediately (`TCP_NODELAY`).
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.tcp().map_or(Ok(()), |stream| stream.set_nodelay(nodelay))
    }

    /// Makes closing the socket reset the connection and discard unsent data.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn reset_on_close(&self) -> io::Result<()> {
        match &self.0 {
            Inner::Tcp(stream) => socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)),
            #[cfg(feature = "sim")]
            Inner::Sim(stream) => {
                stream.reset_on_close();
                Ok(())
            }
        }
    }

    /// Sets the time limit of a read; `None`: no limit.
    ///
    /// # Errors
    /// Returns the system's error, or an error if the limit is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        either!(&self.0, stream => stream.set_read_timeout(timeout))
    }

    /// Sets the time limit of a write; `None`: no limit.
    ///
    /// # Errors
    /// Returns the system's error, or an error if the limit is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        either!(&self.0, stream => stream.set_write_timeout(timeout))
    }

    /// Returns the address of this end.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        either!(&self.0, stream => stream.local_addr())
    }

    /// Returns the address of the other end.
    ///
    /// # Errors
    /// Returns the system's error if the socket is no longer connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        either!(&self.0, stream => stream.peer_addr())
    }
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        either!(&mut self.0, stream => stream.read(into))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        either!(&mut self.0, stream => stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A listening TCP socket.
#[derive(Debug)]
pub enum ListenSocket {
    /// A listening socket of the system.
    Tcp(TcpListener),
    /// A listening socket of a simulation.
    #[cfg(feature = "sim")]
    Sim(sim::Listener),
}

impl From<TcpListener> for ListenSocket {
    fn from(listener: TcpListener) -> ListenSocket {
        ListenSocket::Tcp(listener)
    }
}

impl ListenSocket {
    /// Creates a listener in the calling thread's simulation. `None` outside a simulation.
    pub fn simulated(address: SocketAddr) -> Option<io::Result<ListenSocket>> {
        #[cfg(feature = "sim")]
        if super::is_simulated() {
            return Some(sim::Listener::bind(address).map(ListenSocket::Sim));
        }
        let _ = address;
        None
    }

    /// Returns the address on which the socket listens.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            ListenSocket::Tcp(listener) => listener.local_addr(),
            #[cfg(feature = "sim")]
            ListenSocket::Sim(listener) => Ok(listener.address()),
        }
    }
}

/// A file or block device. Clones share one handle. So many event loops can use a file through one
/// descriptor.
#[derive(Clone, Debug)]
pub enum File {
    /// A file of the system.
    System(Arc<std::fs::File>),
    /// A file of a simulation.
    #[cfg(feature = "sim")]
    Sim(sim::Medium),
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        File::System(Arc::new(file))
    }
}

impl File {
    /// Returns the size of a simulated file in bytes; `None` for a file of the system.
    pub fn simulated_size(&self) -> Option<u64> {
        match self {
            File::System(_) => None,
            #[cfg(feature = "sim")]
            File::Sim(medium) => Some(sim::size(*medium)),
        }
    }
}
