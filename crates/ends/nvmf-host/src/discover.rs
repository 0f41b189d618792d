//! Queries a target's discovery service.

use crate::controller::Controller;
use crate::error::Error;
use crate::limits;
use crate::options::Options;
use crate::url::{Bracketed, Url};
use farblock_proto::host::DiscoveryEntry;
use farblock_wire::log::AddressFamily;
use farblock_wire::nqn::DISCOVERY_NQN;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

/// The records of the discovery service at `address`. If a record's address is only valid on the
/// target's machine, like 0.0.0.0, the address that answered replaces it. A link-local address gets
/// the zone of this address.
///
/// # Errors
/// As [`Controller::connect`] and [`Controller::discovery`].
pub fn discover(address: &str, options: &Options) -> Result<Vec<DiscoveryEntry>, Error> {
    Ok(ask(address, options)?.1)
}

/// As [`discover`]; also returns the socket address that answered.
fn ask(address: &str, options: &Options) -> Result<(SocketAddr, Vec<DiscoveryEntry>), Error> {
    let controller = Controller::connect(address, DISCOVERY_NQN, options)?;
    let asked = controller.address();
    let mut socket = asked;
    socket.set_port(0);
    let own = UdpSocket::bind(socket).is_ok();
    Ok((asked, intended(controller.discovery()?, asked, own)))
}

/// The records with addresses that are valid on this machine. `own`: whether `asked` is an address
/// of this machine.
fn intended(entries: Vec<DiscoveryEntry>, asked: SocketAddr, own: bool) -> Vec<DiscoveryEntry> {
    let mut all: Vec<DiscoveryEntry> = Vec::new();
    for mut entry in entries {
        let address = meant(&entry.address, asked, own);
        let is_another = address.is_some();
        if let Some(address) = address {
            tracing::debug!("{asked} says {}, which is {address}", entry.address);
            let is_v4 = asked.is_ipv4();
            entry.address_family = if is_v4 { AddressFamily::IPV4 } else { AddressFamily::IPV6 };
            entry.address = address;
        }
        // After the replacement, the records of an IPv4 and an IPv6 wildcard address may be equal.
        if !is_another || !all.contains(&entry) {
            all.push(entry);
        }
    }
    all
}

/// The address that a record's text means on this machine, if it differs from the text.
fn meant(text: &str, asked: SocketAddr, own: bool) -> Option<String> {
    // A memory transport has no address.
    if asked.ip().is_unspecified() {
        return None;
    }
    let said = text.parse::<IpAddr>().ok()?.to_canonical();
    let zone = match asked {
        SocketAddr::V6(asked) if asked.scope_id() != 0 => format!("%{}", asked.scope_id()),
        _ => String::new(),
    };
    match said {
        IpAddr::V6(said) if said.is_unicast_link_local() => {
            (!zone.is_empty()).then(|| format!("{said}{zone}"))
        }
        // The wildcard address stands for all addresses, also when the service is on this machine.
        _ if said.is_unspecified() => Some(format!("{}{zone}", asked.ip())),
        _ if said.is_loopback() && !own => Some(format!("{}{zone}", asked.ip())),
        _ => None,
    }
}

/// As [`discover`], but follows referrals, and replaces each with the records of its service. It
/// follows up to [`limits::REFERRALS`], each once. A referral whose service does not answer stays
/// in the list, with a warning in the log.
///
/// # Errors
/// As [`discover`], for the service at `address` itself.
pub fn discover_all(address: &str, options: &Options) -> Result<Vec<DiscoveryEntry>, Error> {
    let (asked, entries) = ask(address, options)?;
    let mut journey = Journey {
        options,
        seen: HashSet::from([address.to_owned(), asked.to_string()]),
        found: Vec::new(),
        left: limits::REFERRALS,
    };
    journey.follow(entries, limits::REFERRAL_DEPTH);
    Ok(journey.found)
}

/// Follows referrals from one discovery service to others.
struct Journey<'a> {
    options: &'a Options,
    /// Addresses queried, or excluded.
    seen: HashSet<String>,
    found: Vec<DiscoveryEntry>,
    /// The number of referrals that may still be followed.
    left: usize,
}

impl Journey<'_> {
    fn follow(&mut self, entries: Vec<DiscoveryEntry>, depth: usize) {
        for entry in entries {
            let is_referral = entry.is_referral() && entry.is_tcp();
            if is_referral && self.is_known(&entry_address(&entry)) {
                continue;
            }
            match is_referral.then(|| self.ask(&entry, depth)).flatten() {
                Some(entries) => self.follow(entries, depth - 1),
                None if self.found.contains(&entry) => {}
                None => self.found.push(entry),
            }
        }
    }

    fn is_known(&self, address: &str) -> bool {
        self.seen.contains(address)
    }

    /// The records of a referral's service. `None`: the referral exceeds a limit, or the service
    /// does not answer.
    fn ask(&mut self, referral: &DiscoveryEntry, depth: usize) -> Option<Vec<DiscoveryEntry>> {
        let address = entry_address(referral);
        if depth == 0 || self.left == 0 {
            tracing::warn!("the referral to {address} is one too many, and not followed");
            return None;
        }
        self.left -= 1;
        self.seen.insert(address.clone());
        match ask(&address, self.options) {
            Ok((asked, entries)) => {
                self.seen.insert(asked.to_string());
                Some(entries)
            }
            Err(error) => {
                tracing::warn!("the discovery service that {address} is said to be: {error}");
                None
            }
        }
    }
}

/// The address of a record's subsystem, in the form for [`Controller::connect`].
#[must_use]
pub fn entry_address(entry: &DiscoveryEntry) -> String {
    let host = Bracketed(&entry.address);
    if entry.service.is_empty() { host.to_string() } else { format!("{host}:{}", entry.service) }
}

/// Whether a record has a link-local address without an interface. The host queried an address that
/// is not link-local, so it does not know the interface.
#[must_use]
pub fn lacks_zone(entry: &DiscoveryEntry) -> bool {
    entry.address.parse::<Ipv6Addr>().is_ok_and(|it| it.is_unicast_link_local())
}

/// The URL of a record's subsystem: `None` if the record is not of a subsystem over TCP, or its
/// address or port is invalid, since a peer may write anything into a record. The URL is printable
/// ASCII.
#[must_use]
pub fn entry_url(entry: &DiscoveryEntry) -> Option<Url> {
    let port = match entry.service.as_str() {
        "" => None,
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => Some(text.parse().ok()?),
        _ => return None,
    };
    let url = Url {
        host: entry.address.clone(),
        port,
        subsystem: Some(entry.subnqn.clone()),
        ..Url::default()
    };
    let text = url.to_string();
    let connectable = entry.is_tcp() && entry.is_subsystem() && !lacks_zone(entry);
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    (connectable && plain && text.parse().as_ref() == Ok(&url)).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_one_end_is_not_taken_at_the_other() {
        let asked = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let (four, six) = (asked("192.0.2.7:8009"), asked("[fe80::7%3]:8009"));
        let here = |text: &str, asked| meant(text, asked, false).unwrap_or(text.to_owned());
        assert_eq!(here("0.0.0.0", four), "192.0.2.7");
        assert_eq!(here("::", four), "192.0.2.7");
        assert_eq!(here("::", six), "fe80::7%3");
        assert_eq!(here("fe80::9", six), "fe80::9%3");
        assert_eq!(here("fe80::9", four), "fe80::9", "through which interface is not known");
        assert_eq!(here("2001:db8::1", six), "2001:db8::1");
        assert_eq!(here("127.0.0.1", four), "192.0.2.7");
        assert_eq!(here("::1", six), "fe80::7%3");
        assert_eq!(meant("127.0.0.1", four, true), None, "the same machine");
        assert_eq!(here("storage.example", four), "storage.example");
    }
}
