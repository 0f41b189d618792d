//! Queries a target's discovery service.

use crate::controller::Controller;
use crate::error::Error;
use crate::limits;
use crate::options::Options;
use crate::url::{Bracketed, Carriage, Url};
use farblock_proto::host::DiscoveryEntry;
use farblock_wire::log::{AddressFamily, TransportType};
use farblock_wire::nqn::DISCOVERY_NQN;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};

/// Returns the records of the discovery service at `address`. Replaces addresses that are valid
/// only on the target's machine, such as 0.0.0.0, with the address of the service. Adds the zone of
/// the service's address to link-local addresses.
///
/// # Errors
/// Fails for the same reasons as [`Controller::connect`] and [`Controller::discovery`].
pub fn discover(address: &str, options: &Options) -> Result<Vec<DiscoveryEntry>, Error> {
    Ok(ask(address, options)?.1)
}

/// Queries the service like [`discover`]. Also returns the service's socket address.
fn ask(address: &str, options: &Options) -> Result<(SocketAddr, Vec<DiscoveryEntry>), Error> {
    let controller = Controller::connect(address, DISCOVERY_NQN, options)?;
    let asked = controller.address();
    let mut socket = asked;
    socket.set_port(0);
    let own = UdpSocket::bind(socket).is_ok();
    Ok((asked, intended(controller.discovery()?, asked, own)))
}

/// Replaces the addresses that are valid only on the target's machine; see [`discover`]. `asked` is
/// the address of the discovery service, and `own` whether that address is on this machine.
fn intended(entries: Vec<DiscoveryEntry>, asked: SocketAddr, own: bool) -> Vec<DiscoveryEntry> {
    let mut all: Vec<DiscoveryEntry> = Vec::new();
    for mut entry in entries {
        let address = meant(&entry.address, asked, own);
        let is_another = address.is_some();
        if let Some(address) = address {
            tracing::debug!("{asked} reports {}, which is {address} from here", entry.address);
            let is_v4 = asked.is_ipv4();
            entry.address_family = if is_v4 { AddressFamily::IPV4 } else { AddressFamily::IPV6 };
            entry.address = address;
        }
        // A record for the IPv4 wildcard and a record for the IPv6 wildcard may have the same
        // address after the replacement. Keep only one.
        if !is_another || !all.contains(&entry) {
            all.push(entry);
        }
    }
    all
}

/// Returns the address that replaces `text`, the address in a record; `None` if `text` needs no
/// replacement.
fn meant(text: &str, asked: SocketAddr, own: bool) -> Option<String> {
    // Over the memory transport, the service has the unspecified address, which cannot replace
    // another one.
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
        // Replace a wildcard address even if the service is on this machine.
        _ if said.is_unspecified() => Some(format!("{}{zone}", asked.ip())),
        _ if said.is_loopback() && !own => Some(format!("{}{zone}", asked.ip())),
        _ => None,
    }
}

/// Queries the service like [`discover`], and follows the referrals in its answer. The records of a
/// referral's service replace the referral. The function follows at most [`limits::REFERRALS`]
/// referrals, each once. A referral whose service does not answer stays in the list, and the log
/// has a warning.
///
/// # Errors
/// Fails for the same reasons as [`discover`], but only for the service at `address`. A referral
/// that fails causes no error.
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

/// The state of a search that follows referrals from one discovery service to others.
struct Journey<'a> {
    options: &'a Options,
    /// The addresses that this search has queried.
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

    /// Returns the records of a referral's service. Returns `None` if the referral exceeds a limit,
    /// or if the service does not answer.
    fn ask(&mut self, referral: &DiscoveryEntry, depth: usize) -> Option<Vec<DiscoveryEntry>> {
        let address = entry_address(referral);
        if depth == 0 || self.left == 0 {
            tracing::warn!("too many referrals: ignoring the one to {address}");
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
                tracing::warn!("cannot query the discovery service at {address}: {error}");
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

/// Whether a record has a link-local address without an interface. This occurs if the address of
/// the discovery service is not link-local: the host then does not know the interface.
#[must_use]
pub fn lacks_zone(entry: &DiscoveryEntry) -> bool {
    entry.address.parse::<Ipv6Addr>().is_ok_and(|it| it.is_unicast_link_local())
}

/// Returns the URL of a record's subsystem, in printable ASCII. Returns `None` if the record does
/// not describe a subsystem over TCP or RDMA. Also returns `None` for an invalid address or port,
/// since a discovery service may put anything into a record.
#[must_use]
pub fn entry_url(entry: &DiscoveryEntry) -> Option<Url> {
    let port = match entry.service.as_str() {
        "" => None,
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => Some(text.parse().ok()?),
        _ => return None,
    };
    let carriage = match entry.transport {
        TransportType::TCP => Carriage::Tcp,
        TransportType::RDMA => Carriage::Rdma,
        _ => return None,
    };
    let url = Url {
        carriage,
        host: entry.address.clone(),
        port,
        subsystem: Some(entry.subnqn.clone()),
        ..Url::default()
    };
    let text = url.to_string();
    let connectable = entry.is_subsystem() && !lacks_zone(entry);
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    (connectable && plain && text.parse().as_ref() == Ok(&url)).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovered_wildcard_and_link_local_addresses_become_usable_by_the_host() {
        let asked = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let (four, six) = (asked("192.0.2.7:8009"), asked("[fe80::7%3]:8009"));
        let here = |text: &str, asked| meant(text, asked, false).unwrap_or(text.to_owned());
        assert_eq!(here("0.0.0.0", four), "192.0.2.7");
        assert_eq!(here("::", four), "192.0.2.7");
        assert_eq!(here("::", six), "fe80::7%3");
        assert_eq!(here("fe80::9", six), "fe80::9%3");
        assert_eq!(here("fe80::9", four), "fe80::9", "a link-local address needs an interface");
        assert_eq!(here("2001:db8::1", six), "2001:db8::1");
        assert_eq!(here("127.0.0.1", four), "192.0.2.7");
        assert_eq!(here("::1", six), "fe80::7%3");
        assert_eq!(
            meant("127.0.0.1", four, true),
            None,
            "the loopback address of a service on this machine stays"
        );
        assert_eq!(here("storage.example", four), "storage.example");
    }
}
