//! Finds the address at which peers reach a listener.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns an address to connect to. For a wildcard address, returns an address of this machine.
pub fn reachable(listening: SocketAddr) -> SocketAddr {
    if !listening.ip().is_unspecified() {
        return listening;
    }
    let (any, elsewhere, loopback): (IpAddr, IpAddr, IpAddr) = if listening.is_ipv4() {
        let documentation = Ipv4Addr::new(192, 0, 2, 1);
        (Ipv4Addr::UNSPECIFIED.into(), documentation.into(), Ipv4Addr::LOCALHOST.into())
    } else {
        let documentation = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        (Ipv6Addr::UNSPECIFIED.into(), documentation.into(), Ipv6Addr::LOCALHOST.into())
    };
    // Connecting a datagram socket sends no packet: the kernel only looks up the route.
    let routed = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((elsewhere, 9))?;
        socket.local_addr()
    });
    SocketAddr::new(routed.map_or(loopback, |address| address.ip()), listening.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_becomes_an_address_of_this_machine() {
        for text in ["0.0.0.0:4420", "[::]:4420"] {
            let address = reachable(text.parse().unwrap());
            assert!(!address.ip().is_unspecified() && address.port() == 4420, "{address}");
        }
    }
}
