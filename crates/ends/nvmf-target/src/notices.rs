//! What the target logs about its peers: some lines for each kind of thing and each peer in a
//! period, and then how many there were besides. Whoever can cause a line can cause a million.

use crate::limits;
use farblock_proto::ids::NamespaceId;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// A kind of thing that is logged about a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    /// A connection could not be accepted or served.
    NotServed,
    /// A connection was refused or given up since others need its place.
    NoRoom,
    /// A queue was refused.
    Refused,
    /// A peer broke the protocol, or says that we did.
    Fault,
    /// A peer took too long.
    Late,
    /// A namespace's storage failed.
    Storage(NamespaceId),
}

impl Kind {
    /// What there are more of.
    fn plural(self) -> &'static str {
        match self {
            Kind::NotServed => "connections that could not be served",
            Kind::NoRoom => "connections for which there was no room",
            Kind::Refused => "queues refused",
            Kind::Fault => "protocol errors",
            Kind::Late => "connections that were too slow",
            Kind::Storage(_) => "operations that the storage failed",
        }
    }

    /// Lines in a period.
    fn lines(self) -> u32 {
        match self {
            Kind::Storage(_) => 1,
            _ => limits::LOGGED_LINES,
        }
    }
}

/// Who is counted as one peer: an IPv4 address, or the 64-bit prefix of an IPv6 address, of whose
/// addresses anybody may have as many as he likes.
pub(crate) fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

struct Entry {
    since: Instant,
    said: u32,
    left_out: u64,
}

/// `None` is everybody for whom there was no entry left.
type Key = (Kind, Option<IpAddr>);

/// See the module's text.
#[derive(Default)]
pub(crate) struct Notices {
    entries: Mutex<HashMap<Key, Entry>>,
}

impl Notices {
    /// Logs, or counts. True if somebody has to call [`Self::settle`] later who did not have to.
    pub(crate) fn say(&self, kind: Kind, peer: IpAddr, now: Instant, log: impl FnOnce()) -> bool {
        let mut entries = self.lock();
        let mut key = (kind, Some(origin(peer)));
        if !entries.contains_key(&key) && entries.len() >= limits::LOGGED_PEERS {
            key = (kind, None);
        }
        let entry = entries.entry(key).or_insert(Entry { since: now, said: 0, left_out: 0 });
        if now.saturating_duration_since(entry.since) >= limits::LOG_PERIOD {
            sum_up(&key, entry, now);
            *entry = Entry { since: now, said: 0, left_out: 0 };
        }
        if entry.said < kind.lines() {
            entry.said += 1;
            // A log that cannot be written as fast as it comes must not hold others up.
            drop(entries);
            log();
            return false;
        }
        entry.left_out += 1;
        entry.left_out == 1
    }

    /// Tells how many lines were left out where the period is over; gives when the next one is.
    pub(crate) fn settle(&self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        self.lock().retain(|key, entry| {
            let end = entry.since + limits::LOG_PERIOD;
            let over = now >= end;
            if over {
                sum_up(key, entry, now);
            } else if entry.left_out > 0 {
                next = Some(next.map_or(end, |next| next.min(end)));
            }
            !over
        });
        next
    }

    /// Tells how many lines were left out, since nothing more will come.
    pub(crate) fn finish(&self) {
        let now = farblock_reactor::os::now();
        self.lock().drain().for_each(|(key, entry)| sum_up(&key, &entry, now));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Entry>> {
        self.entries.lock().expect("no holder panics")
    }
}

fn sum_up((kind, peer): &Key, entry: &Entry, now: Instant) {
    if entry.left_out == 0 {
        return;
    }
    let who = peer.map_or("others".to_owned(), |peer| peer.to_string());
    let seconds = now.saturating_duration_since(entry.since).as_secs().max(1);
    let (count, what) = (entry.left_out, kind.plural());
    tracing::warn!("{who}: {count} more {what} in {seconds} s");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn peer(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn a_flood_is_some_lines_and_a_number() {
        let (notices, begin, mut lines) = (Notices::default(), Instant::now(), 0);
        let mut to_settle = 0;
        for _ in 0..1000 {
            to_settle += u32::from(notices.say(Kind::Refused, peer(1), begin, || lines += 1));
        }
        assert_eq!((lines, to_settle), (limits::LOGGED_LINES, 1));
        notices.say(Kind::Refused, peer(2), begin, || lines += 1);
        notices.say(Kind::Fault, peer(1), begin, || lines += 1);
        assert_eq!(lines, limits::LOGGED_LINES + 2, "others have lines of their own");
        let end = begin + limits::LOG_PERIOD;
        assert_eq!(notices.settle(begin + Duration::from_millis(1)), Some(end));
        assert_eq!(notices.settle(end), None);
        assert!(notices.lock().is_empty());
        notices.say(Kind::Refused, peer(1), end, || lines += 1);
        assert_eq!(lines, limits::LOGGED_LINES + 3);
    }

    #[test]
    fn a_million_peers_are_a_bounded_number_of_lines() {
        let (notices, now, mut lines) = (Notices::default(), Instant::now(), 0);
        for number in 0..10_000 {
            notices.say(Kind::Refused, peer(number), now, || lines += 1);
        }
        assert_eq!(lines as usize, limits::LOGGED_PEERS + limits::LOGGED_LINES as usize);
        assert_eq!(notices.lock().len(), limits::LOGGED_PEERS + 1);
    }

    #[test]
    fn an_address_of_the_same_network_is_the_same_peer() {
        let of = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
