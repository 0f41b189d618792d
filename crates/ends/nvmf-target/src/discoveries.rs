//! Discovery controllers. The target creates one for every host that asks, and closes old ones
//! beyond a limit per address and a limit for all addresses.

use crate::limits;
use crate::notices::origin;
use farblock_proto::controller::limits::MAX_DISCOVERY_CONTROLLERS;
use farblock_proto::ids::ControllerId;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// The discovery controllers and their hosts' addresses, oldest first.
#[derive(Default)]
pub(crate) struct Discoveries(VecDeque<(ControllerId, IpAddr)>);

impl Discoveries {
    /// Returns the controller to close before a host at `peer` gets a new one. If the host's
    /// address is at its limit, this is the oldest controller of that address. If all addresses
    /// together are at the total limit, this is the oldest controller of the address with the most
    /// controllers.
    pub(crate) fn victim(&self, peer: IpAddr) -> Option<ControllerId> {
        let of = |wanted: IpAddr| self.0.iter().filter(move |(_, from)| *from == wanted);
        let own = origin(peer);
        if of(own).count() >= limits::DISCOVERIES_PER_ADDRESS {
            return of(own).next().map(|(id, _)| *id);
        }
        if self.0.len() < MAX_DISCOVERY_CONTROLLERS {
            return None;
        }
        let mut counts = HashMap::new();
        self.0.iter().for_each(|(_, from)| *counts.entry(*from).or_insert(0) += 1);
        let (biggest, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        of(biggest).next().map(|(id, _)| *id)
    }

    pub(crate) fn begun(&mut self, controller: ControllerId, peer: IpAddr) {
        self.0.push_back((controller, origin(peer)));
    }

    pub(crate) fn ended(&mut self, controller: ControllerId) {
        self.0.retain(|(id, _)| *id != controller);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    #[test]
    fn a_full_table_evicts_the_oldest_controller_of_the_requester_or_largest_user() {
        let mut all = Discoveries::default();
        let share = limits::DISCOVERIES_PER_ADDRESS;
        for number in 0..MAX_DISCOVERY_CONTROLLERS {
            assert_eq!(all.victim(peer((number / share) as u32)), None);
            all.begun(ControllerId(number as u16), peer((number / share) as u32));
        }
        assert_eq!(
            all.victim(peer(1)),
            Some(ControllerId(share as u16)),
            "another address loses a controller"
        );
        all.ended(ControllerId(0));
        all.begun(ControllerId(60_000), peer(99));
        let victim = all.victim(peer(98)).expect("a controller to remove");
        assert!(victim.0 >= share as u16 && victim.0 % share as u16 == 0, "{victim:?}");
        all.ended(victim);
        assert_eq!(all.victim(peer(98)), None);
    }
}
