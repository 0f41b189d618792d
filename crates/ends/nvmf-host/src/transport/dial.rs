//! The beginning of a connection, whatever carries it: where the controller is, what leads there,
//! and commands one at a time.
//!
//! ```text
//!   session                                 transport
//!   Address::connect(caller)          --->  a connection that takes commands
//!   Exchange::execute(command, data)  --->  sends one, and waits for its answer
//!   Greeted::finish()                 --->  gives the connection up, for another event loop
//! ```
//! What a transport has to agree on with the controller first (the IC exchange and TLS, of TCP) is
//! done when `connect` returns, and what it can be asked for is in [`Options`] under its name.
//! Everything here has a deadline, so that a silent peer becomes an error in words.

#[cfg(feature = "memory")]
use super::memory;
use super::{Opened, tcp};
use crate::control::Local;
use crate::options::Options;
use crate::url::{Url, UrlError};
use farblock_proto::host::{Command, ConnectError, Identity};
use farblock_wire::Cqe;
use std::fmt;
use std::io;
#[cfg(feature = "memory")]
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::time::Duration;

/// Where a controller is, over the transport that leads there.
#[derive(Clone)]
pub(crate) enum Address {
    Tcp(tcp::TcpAddress),
    /// In the same process.
    #[cfg(feature = "memory")]
    Memory(memory::Dial),
}

/// Who connects a queue.
pub(crate) struct Caller<'a> {
    /// The loop that the connection is made on.
    pub(crate) local: &'a Local,
    pub(crate) identity: Identity<'a>,
    pub(crate) options: &'a Options,
    /// Entries of the queue, 0's-based.
    pub(crate) sqsize_z: u16,
}

/// A connection, and where it leads.
pub(crate) struct Dialled {
    pub(crate) greeted: Greeted,
    /// Where the controller is found again: its other queues go there.
    pub(crate) again: Address,
    /// The same as the network knows it.
    pub(crate) socket: SocketAddr,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) struct Unreached {
    pub(crate) reason: ConnectError,
    /// The addresses that were tried, for messages.
    pub(crate) at: Option<String>,
}

impl Unreached {
    /// Combines failed attempts: the most telling error, the addresses that gave it, and then each
    /// other address with its error.
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

/// A connection that takes commands, and is no queue yet.
pub(crate) enum Greeted {
    Tcp(Box<tcp::Handshake<tcp::Tcp>>),
    #[cfg(feature = "memory")]
    Memory(memory::Greeted),
}

/// A queue on which commands are executed one at a time, whatever carries it.
pub(crate) trait Exchange {
    /// Executes one command; `data` is what it moves to the controller. Gives the completion and
    /// what it moved from the controller.
    async fn execute(
        &mut self,
        command: &Command,
        data: &[u8],
        during: &'static str,
    ) -> Result<(Cqe, Vec<u8>), ConnectError>;
}

impl Address {
    /// The controller at `host`, `host:port` or `[v6]:port`, over TCP.
    pub(crate) fn parse(text: &str) -> Result<Address, UrlError> {
        tcp::TcpAddress::parse(text).map(Address::Tcp)
    }

    /// The controller that a URL names.
    pub(crate) fn of_url(url: &Url) -> Result<Address, UrlError> {
        tcp::TcpAddress::named(&url.host, url.port).map(Address::Tcp)
    }

    pub(crate) async fn connect(&self, caller: &Caller<'_>) -> Result<Dialled, Unreached> {
        match self {
            Address::Tcp(address) => {
                let (handshake, found, socket) = address.connect(caller).await?;
                let greeted = Greeted::Tcp(Box::new(handshake));
                Ok(Dialled { greeted, again: Address::Tcp(found), socket })
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

    /// The same place, whose attempts begin with this address if the name still has it.
    pub(crate) fn beginning_with(self, first: Option<SocketAddr>) -> Address {
        match self {
            Address::Tcp(address) => Address::Tcp(address.beginning_with(first)),
            #[cfg(feature = "memory")]
            Address::Memory(_) => self,
        }
    }

    /// A connection there is made with keys that came of an authentication: its maker need not
    /// authenticate once more.
    pub(crate) fn is_proved(&self) -> bool {
        match self {
            Address::Tcp(address) => address.is_proved(),
            #[cfg(feature = "memory")]
            Address::Memory(_) => false,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            #[cfg(feature = "memory")]
            Address::Memory(_) => f.write_str("memory"),
        }
    }
}

impl Greeted {
    /// Hands the connection over. If it `forgets`, what the controller's side has not taken when
    /// the connection ends is not sent any more: not even after the end of the process.
    pub(crate) fn finish(self, forgets: bool) -> Result<Opened, ConnectError> {
        match self {
            Greeted::Tcp(handshake) => {
                handshake.finish(forgets).map(|connected| Opened::Tcp(Box::new(connected)))
            }
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
            #[cfg(feature = "memory")]
            Greeted::Memory(greeted) => greeted.execute(command, data, during).await,
        }
    }
}

/// Why a connection was not made, by the network's error.
pub(crate) fn from_io(error: &io::Error, during: &'static str, after: Duration) -> ConnectError {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::ConnectionRefused => ConnectError::Refused,
        Kind::TimedOut | Kind::WouldBlock => ConnectError::TimedOut { during, after },
        Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
            ConnectError::Closed { during }
        }
        Kind::NetworkUnreachable | Kind::HostUnreachable | Kind::NetworkDown => {
            ConnectError::Unreachable(crate::error::words(error))
        }
        _ => ConnectError::Io(crate::error::words(error)),
    }
}
