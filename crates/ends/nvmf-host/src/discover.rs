//! Asking a target what it has.

use crate::controller::Controller;
use crate::error::Error;
use crate::limits;
use crate::options::Options;
use crate::url::{Bracketed, Url};
use farblock_proto::host::DiscoveryEntry;
use farblock_wire::nqn::DISCOVERY_NQN;
use std::collections::HashSet;

/// The records of the discovery service at `address`, as it gives them.
///
/// # Errors
/// As [`Controller::connect`] and [`Controller::discovery`].
pub fn discover(address: &str, options: &Options) -> Result<Vec<DiscoveryEntry>, Error> {
    Controller::connect(address, DISCOVERY_NQN, options)?.discovery()
}

/// As [`discover`], with the records of the services that it refers to in place of the referrals.
/// A referral that leads nowhere is left as it is, with a warning in the log.
///
/// # Errors
/// As [`discover`], for the service at `address` itself.
pub fn discover_all(address: &str, options: &Options) -> Result<Vec<DiscoveryEntry>, Error> {
    let mut seen = HashSet::from([address.to_owned()]);
    follow(discover(address, options)?, options, &mut seen, limits::REFERRAL_DEPTH)
}

fn follow(
    entries: Vec<DiscoveryEntry>,
    options: &Options,
    seen: &mut HashSet<String>,
    depth: usize,
) -> Result<Vec<DiscoveryEntry>, Error> {
    let mut all = Vec::new();
    for entry in entries {
        let referral = entry.is_referral() && entry.is_tcp() && depth > 0;
        let address = entry_address(&entry);
        if !referral {
            all.push(entry);
        } else if seen.insert(address.clone()) {
            match discover(&address, options) {
                Ok(entries) => all.extend(follow(entries, options, seen, depth - 1)?),
                Err(error) => {
                    tracing::warn!("the discovery service that {address} is said to be: {error}");
                    all.push(entry);
                }
            }
        }
    }
    Ok(all)
}

/// Where a record says that its subsystem is, as [`Controller::connect`] takes it.
#[must_use]
pub fn entry_address(entry: &DiscoveryEntry) -> String {
    let host = Bracketed(&entry.address);
    if entry.service.is_empty() { host.to_string() } else { format!("{host}:{}", entry.service) }
}

/// The URL of a record's subsystem, if the record is one of a subsystem over TCP, with an address
/// and a port that can be one: whoever answers may write anything there. It is printable ASCII.
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
    let connectable = entry.is_tcp() && entry.is_subsystem();
    let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    (connectable && plain && text.parse().as_ref() == Ok(&url)).then_some(url)
}
