//! Where a controller is, for TCP.

use super::attempts;
use super::carrier::Tcp;
use super::concatenation;
use super::handshake::Handshake;
use crate::control::blocking;
use crate::transport::dial::{Caller, Unreached};
use crate::url::{self, Bracketed, UrlError};
use farblock_proto::host::ConnectError;
use farblock_secure::TlsPsk;
use farblock_wire::tcp::PORT_IO;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// Where a controller is, and the keys for TLS that came of the authentication of its admin queue.
#[derive(Clone)]
pub(crate) struct TcpAddress {
    place: NamedOrFound,
    generated: Vec<TlsPsk>,
    /// The address of the name that worked before: the host tries it first.
    first: Option<SocketAddr>,
}

#[derive(Clone)]
enum NamedOrFound {
    /// Name or address, without brackets, and port.
    Named(String, u16),
    /// What answered there.
    Found(SocketAddr),
}

impl TcpAddress {
    pub(crate) fn named(host: &str, port: Option<u16>) -> Result<TcpAddress, UrlError> {
        url::check_place(host, port)?;
        let place = NamedOrFound::Named(host.to_owned(), port.unwrap_or(PORT_IO));
        Ok(TcpAddress { place, generated: Vec::new(), first: None })
    }

    /// As [`Address::beginning_with`](crate::transport::dial::Address::beginning_with).
    pub(crate) fn beginning_with(self, first: Option<SocketAddr>) -> TcpAddress {
        TcpAddress { first, ..self }
    }

    /// Reads `host`, `host:port` or `[v6]:port`.
    pub(crate) fn parse(text: &str) -> Result<TcpAddress, UrlError> {
        let (host, port) = url::parse_authority(text)?;
        TcpAddress::named(&host, port)
    }

    pub(crate) fn is_proved(&self) -> bool {
        !self.generated.is_empty()
    }

    /// Connects, and gives what answered: as an address that is found again, and as itself.
    pub(crate) async fn connect(
        &self,
        caller: &Caller<'_>,
    ) -> Result<(Handshake<Tcp>, TcpAddress, SocketAddr), Unreached> {
        let mut addresses = attempts::order(self.resolve().await?, self.first);
        let generated = match self.is_proved() {
            true => self.generated.clone(),
            false => match concatenation::generate(&addresses, caller).await? {
                // Another address may be another target, which does not know these keys.
                Some((keys, socket)) => {
                    addresses = vec![socket];
                    keys
                }
                None => Vec::new(),
            },
        };
        let (handshake, socket) = Handshake::connect(&addresses, caller, &generated).await?;
        let found = TcpAddress { place: NamedOrFound::Found(socket), generated, first: None };
        Ok((handshake, found, socket))
    }

    /// The addresses that a name has. The system's resolver takes its time.
    async fn resolve(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let (host, port) = match &self.place {
            NamedOrFound::Named(host, port) => (host.clone(), *port),
            NamedOrFound::Found(socket) => return Ok(vec![*socket]),
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let resolve = move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        let unresolved = |error| ConnectError::Unresolved(crate::error::words(&error));
        match blocking(resolve).await {
            Ok(addresses) => addresses.map_err(unresolved),
            Err(error) => Err(ConnectError::Unresolved(error.to_string())),
        }
    }
}

impl fmt::Display for TcpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            NamedOrFound::Named(host, port) => write!(f, "{}:{port}", Bracketed(host)),
            NamedOrFound::Found(socket) => socket.fmt(f),
        }
    }
}
