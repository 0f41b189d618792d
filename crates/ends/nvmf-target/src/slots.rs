//! Admission control: each connection has a slot, and no peer can occupy all slots. A connection is
//! half-open until its Connect (and authentication) has succeeded.
//!
//! ```text
//!   accepted --> half-open --> connected --> gone
//!                   |  evicted: the oldest of its address, if the address has too many half-open;
//!                   v  if the target is full, the oldest of the address with the most, or of all
//!                  gone
//! ```
//!
//! Some slots are reserved for addresses from which a host has connected before. An IPv6 network
//! counts as one address ([`origin`]).

use crate::limits;
use crate::notices::origin;
use crate::recent_addresses::RecentAddresses;
use crate::route::Route;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

struct Slot {
    origin: IpAddr,
    /// The connection's core and key; `None` until a core has taken over the connection.
    route: Option<Route>,
}

#[derive(Default)]
struct Origin {
    connections: usize,
    half_open: BTreeSet<u64>,
}

/// The slots of all connections, by ascending serial number.
pub(crate) struct Slots {
    most: usize,
    slots: HashMap<u64, Slot>,
    half_open: BTreeSet<u64>,
    origins: HashMap<IpAddr, Origin>,
    /// The addresses, sorted by their number of half-open connections.
    crowds: BTreeSet<(usize, IpAddr)>,
    known: RecentAddresses,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The target has reached its connection limit and cannot evict a connection.
    Full(usize),
    /// The address has reached its connection limit.
    Share(usize),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(most) => write!(f, "the target is at its limit of {most} connections"),
            Self::Share(share) => write!(f, "this address is at its limit of {share} connections"),
        }
    }
}

impl Slots {
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            slots: HashMap::new(),
            half_open: BTreeSet::new(),
            origins: HashMap::new(),
            crowds: BTreeSet::new(),
            known: RecentAddresses::default(),
        }
    }

    /// Takes a slot for an accepted connection. If another connection must be evicted to free a
    /// slot, returns the route of the evicted connection.
    pub(crate) fn admit(&mut self, serial: u64, peer: IpAddr) -> Result<Option<Route>, Refusal> {
        let origin = origin(peer);
        let is_known = self.known.contains(origin);
        let reserve = if is_known { 0 } else { self.most / limits::KNOWN_SHARE };
        let own = self.origins.get(&origin);
        let share = self.most / 2;
        let has_share = own.is_some_and(|own| own.connections >= share);
        let own_oldest = own
            .filter(|own| has_share || own.half_open.len() >= limits::HALF_OPEN_PER_ADDRESS)
            .and_then(|own| own.half_open.first().copied());
        if has_share && own_oldest.is_none() {
            return Err(Refusal::Share(share));
        }
        let is_full = self.slots.len() + reserve >= self.most;
        let victim = own_oldest.or_else(|| self.spare().filter(|_| is_full));
        if is_full && victim.is_none() {
            return Err(Refusal::Full(self.most - reserve));
        }
        // Evicted connections keep their slots until they have closed, and unknown addresses may
        // connect faster than connections close. So limit the total here: unknown addresses must
        // not take the reserved slots.
        if self.slots.len() + reserve >= self.most + limits::CLOSING_AT_ONCE {
            return Err(Refusal::Full(self.most - reserve));
        }
        let route = victim.and_then(|victim| self.slots[&victim].route);
        victim.into_iter().for_each(|victim| self.settle(victim));
        self.slots.insert(serial, Slot { origin, route: None });
        self.half_open.insert(serial);
        let own = self.origins.entry(origin).or_default();
        own.connections += 1;
        self.crowds.remove(&(own.half_open.len(), origin));
        own.half_open.insert(serial);
        self.crowds.insert((own.half_open.len(), origin));
        Ok(route)
    }

    /// Returns the half-open connection to evict first: the oldest of the address that has the
    /// most, or of all if no address has several. So a host with a single one has time to
    /// authenticate.
    fn spare(&self) -> Option<u64> {
        match self.crowds.last() {
            Some((2.., crowd)) => self.origins[crowd].half_open.first().copied(),
            _ => self.half_open.first().copied(),
        }
    }

    /// Notes that a core has taken over the connection. Returns false if the connection was already
    /// evicted.
    pub(crate) fn begun(&mut self, route: Route) -> bool {
        let slot = self.slots.get_mut(&route.serial);
        slot.into_iter().for_each(|slot| slot.route = Some(route));
        self.half_open.contains(&route.serial)
    }

    pub(crate) fn connected(&mut self, serial: u64) {
        self.settle(serial);
        let Some(&Slot { origin, .. }) = self.slots.get(&serial) else { return };
        self.known.insert(origin);
    }

    /// Removes the connection from the set of half-open connections.
    fn settle(&mut self, serial: u64) {
        if !self.half_open.remove(&serial) {
            return;
        }
        if let Some(&Slot { origin, .. }) = self.slots.get(&serial)
            && let Some(own) = self.origins.get_mut(&origin)
        {
            self.crowds.remove(&(own.half_open.len(), origin));
            own.half_open.remove(&serial);
            if !own.half_open.is_empty() {
                self.crowds.insert((own.half_open.len(), origin));
            }
        }
    }

    pub(crate) fn gone(&mut self, serial: u64) {
        self.settle(serial);
        let Some(slot) = self.slots.remove(&serial) else { return };
        let own = self.origins.get_mut(&slot.origin).expect("the origin of a connection is listed");
        own.connections -= 1;
        if own.connections == 0 {
            self.origins.remove(&slot.origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::ConnectionKey;

    fn peer(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    fn route(serial: u64) -> Route {
        Route { core: 0, key: ConnectionKey(0), serial }
    }

    /// Admits a connection, which a core takes over at once. Returns the evicted connection.
    fn admit(slots: &mut Slots, serial: u64, from: u32) -> Result<Option<u64>, Refusal> {
        let victim = slots.admit(serial, peer(from))?.map(|route| route.serial);
        victim.into_iter().for_each(|victim| slots.gone(victim));
        slots.begun(route(serial));
        Ok(victim)
    }

    #[test]
    fn an_address_with_too_many_half_open_connections_loses_its_oldest() {
        let mut slots = Slots::new(limits::MAX_CONNECTIONS);
        assert_eq!(admit(&mut slots, 0, 2), Ok(None));
        let most = limits::HALF_OPEN_PER_ADDRESS as u64;
        for serial in 1..=most {
            assert_eq!(admit(&mut slots, serial, 1), Ok(None));
        }
        for serial in most + 1..3 * most {
            assert_eq!(admit(&mut slots, serial, 1), Ok(Some(serial - most)));
        }
        assert_eq!(slots.slots.len(), most as usize + 1);
    }

    #[test]
    fn a_full_target_admits_known_hosts_and_closes_half_open_connections() {
        let mut slots = Slots::new(64);
        assert_eq!(admit(&mut slots, 0, 1), Ok(None));
        slots.connected(0);
        // Connect from many addresses, until only the reserved slots are left.
        let others = 64 - 64 / limits::KNOWN_SHARE as u64;
        for serial in 1..others {
            assert_eq!(admit(&mut slots, serial, 100 + serial as u32), Ok(None));
        }
        assert_eq!(admit(&mut slots, 1000, 99), Ok(Some(1)), "the oldest one is closed");
        assert_eq!(admit(&mut slots, 1001, 1), Ok(None), "a known host has room");
        for serial in 2..others {
            slots.connected(serial);
        }
        slots.connected(1000);
        slots.connected(1001);
        assert_eq!(admit(&mut slots, 1002, 77), Err(Refusal::Full(others as usize)));
        assert_eq!(admit(&mut slots, 1003, 99), Ok(None), "the host is known");
    }

    #[test]
    fn a_single_connection_stays_while_other_addresses_reconnect() {
        let mut slots = Slots::new(64);
        assert_eq!(admit(&mut slots, 0, 1), Ok(None));
        let others = 64 - 64 / limits::KNOWN_SHARE as u64;
        for serial in 1..others {
            assert_eq!(admit(&mut slots, serial, 2 + serial as u32 % 4), Ok(None));
        }
        for serial in others..1000 {
            let victim = admit(&mut slots, serial, 2 + serial as u32 % 4).expect("a victim");
            assert!(victim.is_some_and(|victim| victim != 0), "{victim:?} at {serial}");
        }
        assert!(slots.half_open.contains(&0));
        (0..1000).for_each(|serial| slots.gone(serial));
        assert!(slots.crowds.is_empty() && slots.half_open.is_empty());
    }

    #[test]
    fn a_flood_leaves_the_reserved_slots_to_known_addresses() {
        let mut slots = Slots::new(64);
        assert_eq!(admit(&mut slots, 0, 1), Ok(None));
        slots.connected(0);
        let refused = (1..1000).find(|&serial| {
            let admitted = slots.admit(serial, peer(1 + serial as u32));
            slots.begun(route(serial));
            admitted.is_err()
        });
        assert_eq!(
            refused,
            Some((60 + limits::CLOSING_AT_ONCE) as u64),
            "no connection is closed yet"
        );
        for serial in 1000..1004 {
            slots.admit(serial, peer(1)).expect("a known host");
        }
    }

    #[test]
    fn one_address_gets_at_most_half_of_the_slots() {
        let mut slots = Slots::new(64);
        for serial in 0..32 {
            assert_eq!(admit(&mut slots, serial, 1), Ok(None));
            slots.connected(serial);
        }
        assert_eq!(admit(&mut slots, 32, 1), Err(Refusal::Share(32)));
        assert_eq!(admit(&mut slots, 33, 2), Ok(None));
        (0..=33).for_each(|serial| slots.gone(serial));
        assert!(slots.slots.is_empty() && slots.origins.is_empty() && slots.half_open.is_empty());
    }
}
