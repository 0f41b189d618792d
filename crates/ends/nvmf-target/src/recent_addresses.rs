//! A bounded set of recently seen addresses.

use crate::limits;
use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;

#[derive(Default)]
pub(crate) struct RecentAddresses {
    all: HashSet<IpAddr>,
    in_order: VecDeque<IpAddr>,
}

impl RecentAddresses {
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.all.contains(&address)
    }

    /// Adds an address. Drops the oldest address if there are too many.
    pub(crate) fn insert(&mut self, address: IpAddr) {
        if !self.all.insert(address) {
            return;
        }
        self.in_order.push_back(address);
        if self.in_order.len() > limits::KNOWN_ADDRESSES {
            let oldest = self.in_order.pop_front().expect("the list is full");
            self.all.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_address_is_forgotten() {
        let address = |number: usize| IpAddr::from((number as u32).to_be_bytes());
        let mut known = RecentAddresses::default();
        for number in 0..=limits::KNOWN_ADDRESSES {
            known.insert(address(number));
            known.insert(address(number));
        }
        assert!(!known.contains(address(0)));
        assert!(known.contains(address(1)) && known.contains(address(limits::KNOWN_ADDRESSES)));
        assert_eq!(known.all.len(), limits::KNOWN_ADDRESSES);
    }
}
