//! A controller's TCP address.

use super::attempts;
use super::carrier::Tcp;
use super::concatenation;
use super::handshake::Handshake;
use crate::control::blocking;
use crate::system_error::words;
use crate::transport::dial::{Caller, Unreached};
use crate::url::{self, Bracketed, UrlError};
use farblock_proto::host::ConnectError;
use farblock_secure::TlsPsk;
use farblock_wire::tcp::PORT_IO;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// A controller's address, with the TLS keys that the authentication of its admin queue generated.
#[derive(Clone)]
pub(crate) struct TcpAddress {
    place: NamedOrFound,
    generated: Vec<TlsPsk>,
    /// The socket address of an earlier successful connection. The host tries it first.
    first: Option<SocketAddr>,
}

#[derive(Clone)]
enum NamedOrFound {
    /// Name or address, without brackets, and port.
    Named(String, u16),
    /// The socket address of the connected controller.
    Found(SocketAddr),
}

impl TcpAddress {
    pub(crate) fn named(host: &str, port: Option<u16>) -> Result<TcpAddress, UrlError> {
        url::check_place(host, port)?;
        let place = NamedOrFound::Named(host.to_owned(), port.unwrap_or(PORT_IO));
        Ok(TcpAddress { place, generated: Vec::new(), first: None })
    }

    /// See [`Address::beginning_with`](crate::transport::dial::Address::beginning_with).
    pub(crate) fn beginning_with(self, first: Option<SocketAddr>) -> TcpAddress {
        TcpAddress { first, ..self }
    }

    /// Parses `host`, `host:port` or `[v6]:port`.
    pub(crate) fn parse(text: &str) -> Result<TcpAddress, UrlError> {
        let (host, port) = url::parse_authority(text)?;
        TcpAddress::named(&host, port)
    }

    pub(crate) fn is_proved(&self) -> bool {
        !self.generated.is_empty()
    }

    /// Connects to the controller. Also returns the address for further queues, and the socket
    /// address of the connection.
    pub(crate) async fn connect(
        &self,
        caller: &Caller<'_>,
    ) -> Result<(Handshake<Tcp>, TcpAddress, SocketAddr), Unreached> {
        let mut addresses = attempts::order(self.resolve().await?, self.first);
        let generated = match self.is_proved() {
            true => self.generated.clone(),
            false => match concatenation::generate(&addresses, caller).await? {
                // Use the socket address at which the host authenticated: another address may lead
                // to another target, which does not have these keys.
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

    /// Resolves the name. This takes as long as the system's resolver takes.
    async fn resolve(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let (host, port) = match &self.place {
            NamedOrFound::Named(host, port) => (host.clone(), *port),
            NamedOrFound::Found(socket) => return Ok(vec![*socket]),
        };
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let resolve = move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        let unresolved = |error| ConnectError::Unresolved(words(&error));
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
