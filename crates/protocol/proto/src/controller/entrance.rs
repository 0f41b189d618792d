//! A listener's transport and address. Its text form names the transport, unless that is TCP:
//! `192.0.2.7:4420` and `rdma:192.0.2.7:4420`.

use alloc::string::String;
use alloc::string::ToString;
use core::fmt;
use core::net::{AddrParseError, IpAddr, SocketAddr};
use core::str::FromStr;
use farblock_wire::log::TransportType;

/// The prefix of an RDMA listener's text form.
const RDMA_PREFIX: &str = "rdma:";

/// A transport of NVMe over Fabrics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Transport {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA. It has neither digests nor TLS.
    Rdma,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 2] = [Self::Tcp, Self::Rdma];

    /// The name in lower case, as in nvme-cli.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }

    /// The transport with this name, in upper or lower case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(name))
    }

    /// Whether the transport can use TLS.
    #[must_use]
    pub const fn has_tls(self) -> bool {
        matches!(self, Self::Tcp)
    }

    /// The transport type (TRTYPE) of a discovery log page entry.
    #[must_use]
    pub const fn kind(self) -> TransportType {
        match self {
            Self::Tcp => TransportType::TCP,
            Self::Rdma => TransportType::RDMA,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A listener's transport and address. TCP listeners sort before RDMA listeners.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Entrance {
    /// The transport.
    pub transport: Transport,
    /// The IP address and port.
    pub address: SocketAddr,
}

impl Entrance {
    /// An RDMA listener.
    #[must_use]
    pub const fn rdma(address: SocketAddr) -> Self {
        Self { transport: Transport::Rdma, address }
    }

    /// The address, if this is a TCP listener.
    #[must_use]
    pub fn tcp_address(self) -> Option<SocketAddr> {
        (self.transport == Transport::Tcp).then_some(self.address)
    }

    /// The address, if this is an RDMA listener.
    #[must_use]
    pub fn rdma_address(self) -> Option<SocketAddr> {
        (self.transport == Transport::Rdma).then_some(self.address)
    }

    /// The IP address.
    #[must_use]
    pub const fn ip(self) -> IpAddr {
        self.address.ip()
    }

    /// The port.
    #[must_use]
    pub const fn port(self) -> u16 {
        self.address.port()
    }

    /// This listener at another port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }

    /// Splits text into the transport that its prefix names and the address.
    #[must_use]
    pub fn split(text: &str) -> (Transport, &str) {
        match text.strip_prefix(RDMA_PREFIX) {
            Some(address) => (Transport::Rdma, address),
            None => (Transport::Tcp, text),
        }
    }

    /// Whether this listener also receives the connections to `other`, because it has a wildcard
    /// address with the same IP version, transport and port.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        let (all, one) = (self.address, other.address);
        self.transport == other.transport
            && all.ip().is_unspecified()
            && all.port() == one.port()
            && all.is_ipv4() == one.is_ipv4()
            && all != one
    }
}

impl From<SocketAddr> for Entrance {
    /// A TCP listener.
    fn from(address: SocketAddr) -> Self {
        Self { transport: Transport::Tcp, address }
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Entrance {
    /// A TCP listener.
    fn from((ip, port): (I, u16)) -> Self {
        SocketAddr::new(ip.into(), port).into()
    }
}

impl PartialEq<SocketAddr> for Entrance {
    /// Whether this is a TCP listener at `address`.
    fn eq(&self, address: &SocketAddr) -> bool {
        *self == Self::from(*address)
    }
}

impl fmt::Display for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Tcp => self.address.fmt(f),
            // Format the whole text, so that a width applies to it.
            Transport::Rdma => f.pad(&(String::from(RDMA_PREFIX) + &self.address.to_string())),
        }
    }
}

impl FromStr for Entrance {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        let (transport, address) = Self::split(text);
        Ok(Self { transport, address: address.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_transport_unless_it_is_tcp() {
        for text in ["192.0.2.7:4420", "[::1]:1", "rdma:192.0.2.7:4420", "rdma:[::1]:1"] {
            let entrance: Entrance = text.parse().expect("an entrance");
            assert_eq!(entrance.to_string(), text);
            assert_eq!(entrance.rdma_address().is_some(), text.starts_with("rdma:"));
        }
        for text in ["", "rdma:", "rdma:192.0.2.7", "tcp:192.0.2.7:1", "rdma:rdma:[::1]:1"] {
            assert!(text.parse::<Entrance>().is_err(), "{text}");
        }
        assert_eq!(Transport::from_name("RDMA"), Some(Transport::Rdma));
        assert_eq!(Transport::from_name("fc"), None);
    }

    #[test]
    fn a_wildcard_covers_only_its_own_transport_family_and_port() {
        let parsed = |text: &str| text.parse::<Entrance>().expect("an entrance");
        let all = parsed("rdma:0.0.0.0:1");
        assert!(all.covers(parsed("rdma:192.0.2.7:1")));
        for other in ["192.0.2.7:1", "rdma:192.0.2.7:2", "rdma:[::1]:1", "rdma:0.0.0.0:1"] {
            assert!(!all.covers(parsed(other)), "{other}");
        }
        assert!(parsed("192.0.2.7:2") < parsed("rdma:0.0.0.0:1"));
    }
}
