//! Limits the rate of log lines about peers, so that a peer cannot flood the log. In each period, a
//! server logs only the first few lines of each kind about each peer. It counts the further lines,
//! and logs their number in one line.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of lines of one kind about one peer in a period. Further lines are only
/// counted.
pub const LOGGED_LINES: u32 = 5;

/// The length of the first period.
pub const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The length of the longest period. Each period with too many lines doubles the length of the next
/// period, up to this limit. So a peer that never stops cannot fill the disk with log lines.
pub const LOG_PERIOD_MAX: Duration = Duration::from_secs(600);

/// The maximum number of pairs of kind and peer with their own counter. All further peers share one
/// counter for each kind.
pub const LOGGED_PEERS: usize = 64;

/// A kind of event that a log line reports about a peer.
pub trait LoggedKind: Copy + Eq + Hash {
    /// Returns the name of the events in the plural, for the line with their number.
    fn plural(self) -> &'static str;

    /// Returns the number of lines to log in a period.
    fn lines(self) -> u32 {
        LOGGED_LINES
    }

    /// Returns the length of the first period; see [`LOG_PERIOD_MAX`].
    fn period(self) -> Duration {
        LOG_PERIOD
    }

    /// Whether these events are logged as warnings. Otherwise as information.
    fn is_trouble(self) -> bool {
        true
    }
}

/// A kind that consists only of the events' name in the plural, with the default limits.
impl LoggedKind for &'static str {
    fn plural(self) -> &'static str {
        self
    }
}

/// Returns the address under which [`Notices`] counts a peer: an IPv4 address, or the 64-bit prefix
/// of an IPv6 address. A peer can use every address with its prefix.
#[must_use]
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

struct Entry {
    since: Instant,
    period: Duration,
    said: u32,
    left_out: u64,
}

impl Entry {
    fn new(period: Duration, now: Instant) -> Entry {
        Entry { since: now, period, said: 0, left_out: 0 }
    }

    fn end(&self) -> Instant {
        self.since + self.period
    }

    /// Logs the number of omitted lines of the last period, and starts the next period.
    fn renew<K: LoggedKind>(&mut self, key: &Key<K>, now: Instant) {
        sum_up(key, self, now);
        let first = key.0.period();
        let period = match self.left_out {
            0 => first,
            _ => (self.period * 2).min(LOG_PERIOD_MAX.max(first)),
        };
        *self = Entry::new(period, now);
    }
}

/// A kind and a peer. `None`: the shared entry for peers that do not fit in the table.
type Key<K> = (K, Option<IpAddr>);

/// Counts log lines about peers, and limits their rate.
pub struct Notices<K: LoggedKind> {
    entries: Mutex<HashMap<Key<K>, Entry>>,
}

impl<K: LoggedKind> Default for Notices<K> {
    fn default() -> Notices<K> {
        Notices { entries: Mutex::default() }
    }
}

impl<K: LoggedKind> Notices<K> {
    /// Calls `log` for an event, or only counts the event. Returns `true` for the first omitted
    /// line in a period: the caller must then call [`Self::settle`] at the period's end.
    pub fn say(&self, kind: K, peer: IpAddr, now: Instant, log: impl FnOnce()) -> bool {
        let mut entries = self.lock();
        let mut key = (kind, Some(origin(peer)));
        if !entries.contains_key(&key) && entries.len() >= LOGGED_PEERS {
            entries.retain(|_, entry| now < entry.end() || entry.left_out > 0);
            if entries.len() >= LOGGED_PEERS {
                key = (kind, None);
            }
        }
        let entry = entries.entry(key).or_insert_with(|| Entry::new(kind.period(), now));
        if now >= entry.end() {
            entry.renew(&key, now);
        }
        if entry.said < kind.lines() {
            entry.said += 1;
            // Release the lock first, so that a slow log does not block other threads.
            drop(entries);
            log();
            return false;
        }
        entry.left_out += 1;
        entry.left_out == 1
    }

    /// Logs the number of omitted lines for each ended period. Returns the end of the next period.
    pub fn settle(&self, now: Instant) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        self.lock().retain(|key, entry| {
            let end = entry.end();
            match (now >= end, entry.left_out) {
                (true, 0) => return false,
                (true, _) => entry.renew(key, now),
                (false, 0) => {}
                (false, _) => next = Some(next.map_or(end, |next| next.min(end))),
            }
            true
        });
        next
    }

    /// Logs the numbers of omitted lines of all peers, at shutdown.
    pub fn finish(&self) {
        let now = crate::os::now();
        self.lock().drain().for_each(|(key, entry)| sum_up(&key, &entry, now));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key<K>, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum_up<K: LoggedKind>((kind, peer): &Key<K>, entry: &Entry, now: Instant) {
    if entry.left_out == 0 {
        return;
    }
    let who = peer.map_or("others".to_owned(), |peer| peer.to_string());
    let seconds = now.saturating_duration_since(entry.since).as_secs().max(1);
    let (count, what) = (entry.left_out, kind.plural());
    match kind.is_trouble() {
        true => tracing::warn!("{who}: {count} more {what} in {seconds} s"),
        false => tracing::info!("{who}: {count} more {what} in {seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: &str = "refusals";
    const FAULT: &str = "errors";

    fn peer(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn a_flood_logs_a_few_lines_and_a_count() {
        let (notices, begin, mut lines) = (Notices::default(), Instant::now(), 0);
        let mut to_settle = 0;
        for _ in 0..1000 {
            to_settle += u32::from(notices.say(REFUSED, peer(1), begin, || lines += 1));
        }
        assert_eq!((lines, to_settle), (LOGGED_LINES, 1));
        notices.say(REFUSED, peer(2), begin, || lines += 1);
        notices.say(FAULT, peer(1), begin, || lines += 1);
        assert_eq!(lines, LOGGED_LINES + 2, "another peer's lines are dropped, too");
        let end = begin + LOG_PERIOD;
        assert_eq!(notices.settle(begin + Duration::from_millis(1)), Some(end));
        assert_eq!(notices.settle(end), None);
        notices.say(REFUSED, peer(1), end, || lines += 1);
        assert_eq!(lines, LOGGED_LINES + 3);
        assert_eq!(notices.settle(end + 2 * LOG_PERIOD), None);
        assert!(notices.lock().is_empty());
    }

    #[test]
    fn a_persistent_peer_gets_fewer_and_fewer_lines() {
        let (notices, begin, mut lines) = (Notices::default(), Instant::now(), 0);
        for second in (0..86_400).step_by(5) {
            let now = begin + Duration::from_secs(second);
            for _ in 0..10 {
                notices.say(REFUSED, peer(1), now, || lines += 1);
            }
            notices.settle(now);
        }
        assert!(lines < 1000, "a persistent peer logged {lines} lines");
        let quiet = begin + 2 * Duration::from_secs(86_400);
        notices.settle(quiet);
        notices.settle(quiet + LOG_PERIOD_MAX);
        assert!(notices.lock().is_empty(), "an idle peer keeps its entry");
    }

    #[test]
    fn many_peers_log_a_bounded_number_of_lines() {
        let (notices, now, mut lines) = (Notices::default(), Instant::now(), 0);
        for number in 0..10_000 {
            notices.say(REFUSED, peer(number), now, || lines += 1);
        }
        assert_eq!(lines as usize, LOGGED_PEERS + LOGGED_LINES as usize);
        assert_eq!(notices.lock().len(), LOGGED_PEERS + 1);
    }

    #[test]
    fn ipv6_addresses_of_one_network_count_as_one_peer() {
        let of = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1:2:3"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
