//! The start of a connection over any transport: the controller's address, the connection, and
//! single commands.
//!
//! ```text
//!   session                                 transport
//!   Address::connect(caller)          --->  a connection that takes commands
//!   Exchange::execute(command, data)  --->  sends a command, and waits for its answer
//!   Greeted::finish()                 --->  hands the connection to another event loop
//! ```
//! `connect` returns once the transport and the controller have agreed on the connection's
//! parameters (for TCP, the IC exchange and TLS). [`Options`] has a field for each transport's own
//! options. Every step has a deadline, so a peer that does not answer causes an error.

#[cfg(feature = "memory")]
use super::memory;
use super::{Opened, rdma, tcp};
use crate::control::Local;
use crate::exchange::Exchange;
use crate::options::Options;
use crate::system_error::words;
use crate::tcp_options::TcpOptions;
use crate::url::{Carriage, Url, UrlError};
use farblock_proto::host::{Command, ConnectError, Identity};
use farblock_wire::Cqe;
use std::fmt;
use std::io;
#[cfg(feature = "memory")]
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::time::Duration;

/// The prefix of an address over RDMA.
const RDMA: &str = "rdma:";

/// A controller's address on its transport.
#[derive(Clone)]
pub(crate) enum Address {
    Tcp(tcp::TcpAddress),
    Rdma(rdma::RdmaAddress),
    /// A target in the same process.
    #[cfg(feature = "memory")]
    Memory(memory::Dial),
}

/// The host's side of a connection attempt: the queue to connect and the host's parameters.
pub(crate) struct Caller<'a> {
    /// The control loop on which to connect.
    pub(crate) local: &'a Local,
    pub(crate) identity: Identity<'a>,
    pub(crate) options: &'a Options,
    /// The number of queue entries minus one.
    pub(crate) sqsize_z: u16,
    /// The queue's identifier.
    pub(crate) qid: u16,
    /// The controller of an I/O queue; 0 for the admin queue.
    pub(crate) cntlid: u16,
}

/// A new connection and its addresses.
pub(crate) struct Dialled {
    pub(crate) greeted: Greeted,
    /// The address at which to connect the controller's other queues.
    pub(crate) again: Address,
    /// The controller's socket address.
    pub(crate) socket: SocketAddr,
}

#[derive(Debug)]
pub(crate) struct Unreached {
    pub(crate) reason: ConnectError,
    /// The addresses that the host tried, for messages.
    pub(crate) at: Option<String>,
}

impl Unreached {
    /// Combines the errors of failed attempts. The result begins with the most informative error
    /// and the addresses that had it. The other addresses and their errors follow.
    pub(crate) fn of(failed: Vec<(SocketAddr, ConnectError)>) -> Unreached {
        use ConnectError as E;
        let silence = |error: &ConnectError| match error {
            E::Unreachable(_) | E::Io(_) => 3,
            E::Refused => 2,
            E::TimedOut { .. } => 1,
            _ => 0,
        };
        let best = failed.iter().map(|(_, error)| error).min_by_key(|error| silence(error));
        let Some(reason) = best.cloned() else {
            return E::Unresolved("the name has no address".to_owned()).into();
        };
        let (same, others): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|(_, error)| *error == reason);
        let same: Vec<String> = same.iter().map(|(address, _)| address.to_string()).collect();
        let mut at = same.join(", ");
        for (address, error) in others {
            at.push_str(&format!("; {address}: {error}"));
        }
        Unreached { reason, at: Some(at) }
    }
}

impl From<ConnectError> for Unreached {
    fn from(reason: ConnectError) -> Unreached {
        Unreached { reason, at: None }
    }
}

impl From<Unreached> for ConnectError {
    fn from(unreached: Unreached) -> ConnectError {
        unreached.reason
    }
}

/// A connection that can carry single commands, before its Connect command makes it a queue.
pub(crate) enum Greeted {
    Tcp(Box<tcp::Handshake<tcp::Tcp>>),
    Rdma(Box<rdma::Greeted>),
    #[cfg(feature = "memory")]
    Memory(memory::Greeted),
}

impl Address {
    /// Parses the address `host`, `host:port` or `[v6]:port` for TCP. The prefix `rdma:` selects
    /// RDMA.
    pub(crate) fn parse(text: &str) -> Result<Address, UrlError> {
        if let Some(text) = text.strip_prefix(RDMA) {
            return rdma::RdmaAddress::parse(text).map(Address::Rdma);
        }
        tcp::TcpAddress::parse(text).map(Address::Tcp)
    }

    /// The address of a URL's controller.
    pub(crate) fn of_url(url: &Url) -> Result<Address, UrlError> {
        match url.carriage {
            Carriage::Tcp => tcp::TcpAddress::named(&url.host, url.port).map(Address::Tcp),
            Carriage::Rdma => rdma::RdmaAddress::named(&url.host, url.port).map(Address::Rdma),
        }
    }

    pub(crate) async fn connect(&self, caller: &Caller<'_>) -> Result<Dialled, Unreached> {
        match self {
            Address::Tcp(address) => {
                let (handshake, found, socket) = address.connect(caller).await?;
                let greeted = Greeted::Tcp(Box::new(handshake));
                Ok(Dialled { greeted, again: Address::Tcp(found), socket })
            }
            Address::Rdma(address) => {
                // Never connect in plain text where the user wants TLS.
                if caller.options.tcp != TcpOptions::default() {
                    const NEITHER: &str = "NVMe/RDMA has neither digests nor TLS: use TCP, or omit \
                                           --header-digest, --data-digest, --tls-key and --concat";
                    return Err(ConnectError::Rdma(NEITHER.to_owned()).into());
                }
                let (greeted, found, socket) = address.connect(caller).await?;
                let greeted = Greeted::Rdma(Box::new(greeted));
                Ok(Dialled { greeted, again: Address::Rdma(found), socket })
            }
            #[cfg(feature = "memory")]
            Address::Memory(dial) => {
                let timeout = caller.options.connect_timeout;
                let greeted = memory::Greeted::new(caller.local, dial, timeout);
                let socket = (Ipv4Addr::UNSPECIFIED, 0).into();
                Ok(Dialled { greeted: Greeted::Memory(greeted), again: self.clone(), socket })
            }
        }
    }

    /// Returns this address, but attempts start with the socket address `first` if the name still
    /// resolves to it.
    pub(crate) fn beginning_with(self, first: Option<SocketAddr>) -> Address {
        match self {
            Address::Tcp(address) => Address::Tcp(address.beginning_with(first)),
            Address::Rdma(address) => Address::Rdma(address.beginning_with(first)),
            #[cfg(feature = "memory")]
            Address::Memory(_) => self,
        }
    }

    /// The transport that URLs of this address name.
    pub(crate) fn carriage(&self) -> Carriage {
        match self {
            Address::Rdma(_) => Carriage::Rdma,
            _ => Carriage::Tcp,
        }
    }

    /// Whether connections to this address use TLS keys that an earlier authentication generated,
    /// so that the host need not authenticate again.
    pub(crate) fn is_proved(&self) -> bool {
        match self {
            Address::Tcp(address) => address.is_proved(),
            Address::Rdma(_) => false,
            #[cfg(feature = "memory")]
            Address::Memory(_) => false,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Rdma(address) => address.fmt(f),
            #[cfg(feature = "memory")]
            Address::Memory(_) => f.write_str("memory"),
        }
    }
}

impl Greeted {
    /// The maximum number of commands in flight: `requested`, or fewer if the controller has
    /// granted a shorter queue.
    pub(crate) fn depth(&self, requested: u16) -> u16 {
        match self {
            Greeted::Rdma(greeted) => greeted.depth(),
            _ => requested,
        }
    }

    /// Releases the connection for another event loop. `forgets`: the system discards unsent data
    /// when the connection or the process ends.
    pub(crate) fn finish(self, forgets: bool) -> Result<Opened, ConnectError> {
        match self {
            Greeted::Tcp(handshake) => {
                handshake.finish(forgets).map(|connected| Opened::Tcp(Box::new(connected)))
            }
            Greeted::Rdma(greeted) => Ok(Opened::Rdma(greeted.finish())),
            #[cfg(feature = "memory")]
            Greeted::Memory(greeted) => Ok(Opened::Memory(greeted.finish())),
        }
    }
}

impl Exchange for Greeted {
    async fn execute(
        &mut self,
        command: &Command,
        data: &[u8],
        during: &'static str,
    ) -> Result<(Cqe, Vec<u8>), ConnectError> {
        match self {
            Greeted::Tcp(handshake) => handshake.execute(command, data, during).await,
            Greeted::Rdma(greeted) => greeted.execute(command, data, during).await,
            #[cfg(feature = "memory")]
            Greeted::Memory(greeted) => greeted.execute(command, data, during).await,
        }
    }
}

/// Translates a network error of a connection attempt.
pub(crate) fn from_io(error: &io::Error, during: &'static str, after: Duration) -> ConnectError {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => ConnectError::Refused,
        Kind::TimedOut | Kind::WouldBlock => ConnectError::TimedOut { during, after },
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
            ConnectError::Closed { during }
        }
        Kind::NetworkUnreachable | Kind::HostUnreachable | Kind::NetworkDown => {
            ConnectError::Unreachable(words(error))
        }
        _ => ConnectError::Io(words(error)),
    }
}
