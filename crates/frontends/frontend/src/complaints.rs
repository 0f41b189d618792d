//! Limits the warnings that a server logs about its peers. Without a limit, a peer could cause any
//! number of log lines.

use farblock_reactor::notices::Notices;
use farblock_reactor::os;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A server's warnings about its peers. In each period, logs a few warnings of each kind about each
/// peer. Then logs only the number of further warnings ([`farblock_reactor::notices`]).
#[derive(Default)]
pub struct Complaints(Notices<&'static str>);

impl Complaints {
    /// Logs a warning about a peer, or only counts it. `kind` groups the warnings. All peers
    /// without an IP address count as one peer.
    pub fn say(&self, kind: &'static str, peer: &str, log: impl FnOnce()) {
        // The number of suppressed warnings is logged with the next warning, or when `self` is
        // dropped.
        self.0.say(kind, address(peer), os::now(), log);
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// The IP address of a peer without its port; 0.0.0.0 if the peer has no IP address.
fn address(peer: &str) -> IpAddr {
    let with_port = peer.parse::<SocketAddr>().map(|peer| peer.ip());
    with_port.or_else(|_| peer.parse()).unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_reactor::notices::LOGGED_LINES;

    #[test]
    fn a_flood_from_many_ports_logs_a_few_lines() {
        let (complaints, mut lines) = (Complaints::default(), 0);
        for port in 1..1000 {
            complaints.say("refusals", &format!("192.0.2.1:{port}"), || lines += 1);
        }
        assert_eq!(lines, LOGGED_LINES);
        for number in 1..1000 {
            complaints.say("refusals", &format!("a socket {number}"), || lines += 1);
        }
        assert_eq!(lines, 2 * LOGGED_LINES);
        complaints.say("refusals", "[2001:db8::1]:7", || lines += 1);
        assert_eq!(lines, 2 * LOGGED_LINES + 1);
    }
}
