//! Accounts for the memory that peers make a core hold: per host, and for the whole core. If a host
//! reaches its own limit, only the commands of this host wait.
//!
//! ```text
//!   0 ............... 3/4 of the limit ............... limit ............... limit + reserve
//!         any single host               all hosts together        hosts that hold little
//! ```
//!
//! Once the reserve is used up, too, the core admits no command that needs memory. If in-capsule
//! data arrive nevertheless, the target fails their command with a retryable status.
//!
//! If a connection waits while hosts hold more than half of the limit, the core closes connections
//! of the biggest holders ([`Account::next_epoch`]). It closes only connections whose host has kept
//! a command or output waiting for longer than [`limits::PRESSED_EPOCHS`].

use crate::limits;
use crate::notices::origin;
use farblock_reactor::os;
use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;

/// The name of a gauge that simulations read: the bytes that a core holds for its peers.
const HELD: &str = "target: bytes that a core's peers hold";

/// The name of a holder: the peer's address before Connect, and the host afterwards.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Name {
    Address(IpAddr),
    Host(String),
}

/// Identifies a holder by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HolderId(u32);

struct Holder {
    name: Name,
    held_bytes: usize,
    /// The part of `held_bytes` that connections keep until they close.
    lasting_bytes: usize,
    connections: usize,
}

pub(crate) struct Account {
    limit_bytes: usize,
    held_bytes: usize,
    /// The part of `held_bytes` that connections keep until they close.
    lasting_bytes: usize,
    holders: Vec<Option<Holder>>,
    free: Vec<HolderId>,
    by_name: HashMap<Name, HolderId>,
    epoch: u32,
    /// Whether the core has refused memory to a connection since the current epoch began. An epoch
    /// lasts [`limits::PRESSED_PERIOD`].
    is_short: Cell<bool>,
}

/// Returns the size in bytes of a buffer for `bytes` bytes. The size is a power of two.
pub(crate) fn footprint(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.next_power_of_two().max(limits::BUFFER_BYTES_MIN) }
}

impl Account {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            held_bytes: 0,
            lasting_bytes: 0,
            holders: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            epoch: 0,
            is_short: Cell::new(false),
        }
    }

    /// Adds a connection from `address`, whose host is not known yet.
    pub(crate) fn join(&mut self, address: IpAddr) -> HolderId {
        self.join_as(Name::Address(origin(address)))
    }

    fn join_as(&mut self, name: Name) -> HolderId {
        let next = HolderId(self.holders.len() as u32);
        let id = *self.by_name.entry(name.clone()).or_insert_with(|| {
            let id = self.free.pop().unwrap_or(next);
            if id == next {
                self.holders.push(None);
            }
            let holder = Holder { name, held_bytes: 0, lasting_bytes: 0, connections: 0 };
            self.holders[id.0 as usize] = Some(holder);
            id
        });
        self.holder(id).connections += 1;
        id
    }

    /// Moves a connection and its held bytes from its address to its host, after Connect has named
    /// the host. The connection keeps `lasting_bytes` of the `held_bytes` until it closes.
    pub(crate) fn rename(
        &mut self,
        id: HolderId,
        host: &str,
        held_bytes: usize,
        lasting_bytes: usize,
    ) -> HolderId {
        self.holder(id).held_bytes -= held_bytes;
        self.holder(id).lasting_bytes -= lasting_bytes;
        self.leave(id);
        let id = self.join_as(Name::Host(host.to_owned()));
        self.holder(id).held_bytes += held_bytes;
        self.holder(id).lasting_bytes += lasting_bytes;
        id
    }

    /// Returns whether a connection may keep `bytes` until it closes. All connections together may
    /// keep half of the limit, and the connections of one host three quarters of this half.
    pub(crate) fn may_last(&self, id: HolderId, bytes: usize) -> bool {
        let holder = self.holders[id.0 as usize].as_ref();
        self.may_all_last(holder.map_or(0, |holder| holder.lasting_bytes), bytes)
    }

    /// Like [`Self::may_last`], for a new connection from `address`.
    pub(crate) fn may_last_at(&self, address: IpAddr, bytes: usize) -> bool {
        match self.by_name.get(&Name::Address(origin(address))) {
            Some(&id) => self.may_last(id, bytes),
            None => self.may_all_last(0, bytes),
        }
    }

    fn may_all_last(&self, of_holder: usize, bytes: usize) -> bool {
        let most = self.limit_bytes / 2;
        of_holder + bytes <= most / 4 * 3 && self.lasting_bytes + bytes <= most
    }

    /// Charges memory that a connection keeps until it closes.
    pub(crate) fn hold_lasting(&mut self, id: HolderId, bytes: usize) {
        self.lasting_bytes += bytes;
        self.holder(id).lasting_bytes += bytes;
        self.hold(id, bytes);
    }

    /// Releases memory that [`Self::hold_lasting`] has charged.
    pub(crate) fn release_lasting(&mut self, id: HolderId, bytes: usize) {
        self.lasting_bytes -= bytes;
        self.holder(id).lasting_bytes -= bytes;
        self.release(id, bytes);
    }

    /// Removes a connection, which must not hold memory.
    pub(crate) fn leave(&mut self, id: HolderId) {
        let holder = self.holder(id);
        holder.connections -= 1;
        if holder.connections == 0 {
            assert_eq!(holder.held_bytes, 0, "the holder's last connection left memory charged");
            let holder = self.holders[id.0 as usize].take().expect("looked at above");
            self.by_name.remove(&holder.name);
            self.free.push(id);
        }
    }

    fn holder(&mut self, id: HolderId) -> &mut Holder {
        self.holders[id.0 as usize].as_mut().expect("a connection has a holder")
    }

    pub(crate) fn may_hold(&self, id: HolderId, bytes: usize) -> bool {
        let host = self.host_bytes(id);
        let lasting = self.holders[id.0 as usize].as_ref().map_or(0, |it| it.lasting_bytes);
        let limit = self.limit_bytes;
        let in_common = host + bytes <= limit / 4 * 3 && self.held_bytes + bytes <= limit;
        let is_poor = host == lasting || host + bytes <= limit / limits::POOR_SHARE;
        let may = in_common || is_poor && self.has_room(bytes);
        let may = may || os::has_mistake("target: memory has no limit");
        if !may {
            self.is_short.set(true);
        }
        may
    }

    /// Returns whether the core can hold `bytes` more, including the reserve. A core whose
    /// connections hold only their lasting memory has room for any command.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.held_bytes == self.lasting_bytes
            || self.held_bytes + bytes
                <= self.limit_bytes + self.limit_bytes / limits::RESERVE_SHARE
    }

    /// Returns the bytes that the holder's connections on this core hold together.
    pub(crate) fn host_bytes(&self, id: HolderId) -> usize {
        self.holders[id.0 as usize].as_ref().map_or(0, |holder| holder.held_bytes)
    }

    pub(crate) fn hold(&mut self, id: HolderId, bytes: usize) {
        self.held_bytes += bytes;
        self.holder(id).held_bytes += bytes;
        os::note_level(HELD, self.held_bytes);
    }

    pub(crate) fn release(&mut self, id: HolderId, bytes: usize) {
        self.held_bytes -= bytes;
        self.holder(id).held_bytes -= bytes;
    }

    /// Returns whether peers hold more than [`Self::pressed_bytes`]. The core must then free its
    /// caches.
    pub(crate) fn is_pressed(&self) -> bool {
        self.held_bytes > self.pressed_bytes()
    }

    /// Returns the lasting bytes of all connections, plus half of the rest of the limit.
    fn pressed_bytes(&self) -> usize {
        self.lasting_bytes + self.limit_bytes.saturating_sub(self.lasting_bytes) / 2
    }

    /// Returns whether peers hold almost no memory besides the connections' lasting memory. The
    /// core can then stop its sweeps.
    pub(crate) fn is_calm(&self) -> bool {
        self.held_bytes - self.lasting_bytes <= self.limit_bytes / limits::POOR_SHARE
    }

    /// Returns the number of the current epoch. A command stores it when it starts, for
    /// [`Self::is_overdue`].
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Starts the next epoch, if a connection waits and peers hold more than
    /// [`Self::pressed_bytes`], or if connections wait for registered memory (`is_starved`).
    /// Returns the number of bytes to free then.
    pub(crate) fn next_epoch(&mut self, is_starved: bool) -> Option<usize> {
        let over = self.held_bytes.checked_sub(self.pressed_bytes());
        let wanted = over.or(is_starved.then_some(1))?;
        (self.is_short.take() || is_starved).then(|| {
            self.epoch = self.epoch.wrapping_add(1);
            wanted
        })
    }

    /// Returns whether a command that started in epoch `began` is overdue.
    pub(crate) fn is_overdue(&self, began: u32) -> bool {
        self.epoch.wrapping_sub(began) > limits::PRESSED_EPOCHS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    /// Takes one MiB at a time until the account refuses. Returns the number of MiB.
    fn take_all(memory: &mut Account, id: HolderId) -> usize {
        let mut taken = 0;
        while memory.may_hold(id, MIB) {
            memory.hold(id, MIB);
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_greedy_host_leaves_the_reserve_to_small_holders() {
        let mut memory = Account::new(64 * MIB);
        let greedy = memory.join(address(1));
        assert_eq!(take_all(&mut memory, greedy), 48);
        let second = memory.join(address(2));
        assert_eq!(take_all(&mut memory, second), 16, "the second host gets the rest of the limit");
        // The reserve is eight MiB: one MiB for each small holder.
        for number in 3..11 {
            let poor = memory.join(address(number));
            assert_eq!(take_all(&mut memory, poor), 1);
        }
        let late = memory.join(address(99));
        assert!(!memory.may_hold(late, MIB) && !memory.has_room(1));
        assert_eq!(memory.held_bytes, 72 * MIB);
    }

    #[test]
    fn connect_moves_held_memory_from_the_address_to_the_host() {
        let mut memory = Account::new(64 * MIB);
        let (first, second) = (memory.join(address(1)), memory.join(address(1)));
        assert_eq!(first, second);
        memory.hold(first, 10);
        memory.hold(second, 5);
        let host = memory.rename(first, "nqn.2026-11.org.example:host", 10, 0);
        assert_eq!((memory.host_bytes(host), memory.host_bytes(second)), (10, 5));
        memory.release(host, 10);
        memory.leave(host);
        memory.release(second, 5);
        memory.leave(second);
        assert_eq!((memory.held_bytes, memory.by_name.len()), (0, 0));
        let other = memory.join(address(2));
        assert!(other == host || other == first, "a free entry is reused");
    }

    #[test]
    fn lasting_memory_is_bounded_and_leaves_room_for_commands() {
        let mut memory = Account::new(64 * MIB);
        let id = memory.join(address(1));
        let mut kept = 0;
        while memory.may_last(id, MIB) {
            memory.hold_lasting(id, MIB);
            kept += MIB;
        }
        assert_eq!(kept, 24 * MIB, "three quarters of half the limit");
        assert!(!memory.may_last_at(address(1), MIB) && memory.may_last_at(address(2), MIB));
        assert!(
            memory.is_calm() && !memory.is_pressed(),
            "lasting memory alone causes no pressure"
        );
        // While the core holds no other memory, it admits a command of any size.
        assert!(memory.may_hold(id, 63 * MIB) && memory.has_room(63 * MIB));
        let host = memory.rename(id, "nqn.2026-11.org.example:host", kept, kept);
        assert!(memory.may_last_at(address(1), MIB) && !memory.may_last(host, MIB));
        memory.release_lasting(host, kept);
        memory.leave(host);
        assert_eq!((memory.held_bytes, memory.lasting_bytes), (0, 0));
    }

    #[test]
    fn memory_epochs_advance_for_starved_connections() {
        let mut memory = Account::new(64 * MIB);
        let id = memory.join(address(1));
        memory.hold(id, MIB);
        assert_eq!((memory.next_epoch(false), memory.epoch()), (None, 0));
        assert_eq!((memory.next_epoch(true), memory.epoch()), (Some(1), 1));
    }

    #[test]
    fn memory_epochs_advance_only_while_a_host_waits() {
        let mut memory = Account::new(64 * MIB);
        let id = memory.join(address(1));
        memory.hold(id, 40 * MIB);
        assert_eq!(memory.next_epoch(false), None);
        let began = memory.epoch();
        for _ in 0..=limits::PRESSED_EPOCHS {
            assert!(!memory.is_overdue(began));
            assert!(!memory.may_hold(id, 25 * MIB), "memory is granted beyond the limit");
            assert_eq!(memory.next_epoch(false), Some(8 * MIB));
        }
        assert!(memory.is_overdue(began) && !memory.is_overdue(memory.epoch()));
    }
}
