//! Divides a busy core among hosts by deficit round robin.
//!
//! A host with many deep queues can have hundreds of commands waiting in its sockets. If the core
//! executed them all at once, each command of another host with queue depth 1 would wait behind
//! them. So while several hosts have commands for a core, the core executes a limited number of
//! each host's commands per round of the event loop, in proportion to the host's weight. The other
//! commands wait for the next round, and the core polls the sockets in between. If a large command
//! exceeds its host's allowance, later rounds deduct the excess.
//!
//! While only one host uses a core, allowances do not apply. The scheduler then costs one
//! comparison per receive and one per command. A *share* is a host's entry in this scheduler.

use crate::route::ConnectionKey;
use farblock_proto::controller::SubsystemId;
use std::collections::{HashMap, VecDeque};

/// The default weight of a host.
pub const DEFAULT_WEIGHT: u32 = 100;

/// The largest weight of a host.
pub const MAX_WEIGHT: u32 = 1000;

/// The commands per round of a host with the default weight.
const COMMANDS_PER_ROUND: i64 = 32;

/// The number of data bytes that count as one more command.
const BYTES_PER_COMMAND: i64 = 16 << 10;

/// Allowances apply while several hosts use the core, and for this many rounds afterwards: long
/// enough for a host at queue depth 1 to send its next command.
const SHARED_ROUNDS: u64 = 64;

/// Identifies the share of a host of a subsystem on one core.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ShareId(usize);

struct Share {
    name: (SubsystemId, String),
    queues: usize,
    weight: u32,
    /// The host's remaining allowance in this round; negative if its commands exceeded the
    /// allowance.
    left: i64,
    /// Whether this share is listed in [`Shares::taken`].
    has_taken: bool,
    /// The connections whose input waits for the next round, in the order of their turns.
    waiting: VecDeque<ConnectionKey>,
}

impl Share {
    /// Returns the host's allowance per round. A command costs [`DEFAULT_WEIGHT`].
    fn round(&self) -> i64 {
        COMMANDS_PER_ROUND * i64::from(self.weight)
    }
}

#[derive(Default)]
pub(crate) struct Shares {
    all: Vec<Option<Share>>,
    free: Vec<ShareId>,
    by_name: HashMap<(SubsystemId, String), ShareId>,
    /// The host whose input arrived last.
    last: Option<ShareId>,
    /// Whether several hosts had input within the last [`SHARED_ROUNDS`].
    is_shared: bool,
    round: u64,
    shared_until: u64,
    /// The shares with a partly used allowance, which the next round must refill.
    taken: Vec<ShareId>,
    /// The shares with waiting connections, in the order of their turns.
    waiting: VecDeque<ShareId>,
}

impl Shares {
    fn at(&mut self, id: ShareId) -> &mut Share {
        self.all[id.0].as_mut().expect("a share with queues is open")
    }

    pub(crate) fn join(&mut self, subsystem: SubsystemId, host: &str, weight: u32) -> ShareId {
        let name = (subsystem, host.to_owned());
        let id = match self.by_name.get(&name) {
            Some(id) => *id,
            None => self.begin(name, weight),
        };
        let share = self.at(id);
        share.queues += 1;
        share.weight = weight;
        id
    }

    fn begin(&mut self, name: (SubsystemId, String), weight: u32) -> ShareId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            ShareId(self.all.len() - 1)
        });
        self.by_name.insert(name.clone(), id);
        let waiting = VecDeque::new();
        let mut share = Share { name, queues: 0, weight, left: 0, has_taken: false, waiting };
        share.left = share.round();
        self.all[id.0] = Some(share);
        id
    }

    pub(crate) fn leave(&mut self, id: ShareId, key: ConnectionKey) {
        let share = self.at(id);
        share.queues -= 1;
        share.waiting.retain(|waits| *waits != key);
        let (is_over, nobody_waits) = (share.queues == 0, share.waiting.is_empty());
        if nobody_waits {
            self.waiting.retain(|waits| *waits != id);
        }
        if is_over && let Some(share) = self.all[id.0].take() {
            self.by_name.remove(&share.name);
            self.taken.retain(|other| *other != id);
            self.last = self.last.filter(|last| *last != id);
            self.free.push(id);
        }
    }

    pub(crate) fn set_weight(&mut self, id: ShareId, weight: u32) {
        let share = self.at(id);
        share.weight = weight;
        share.left = share.left.min(share.round());
    }

    /// Starts a round: refills every allowance.
    pub(crate) fn tick(&mut self) {
        self.round += 1;
        if !self.is_shared {
            return;
        }
        self.is_shared = self.round < self.shared_until;
        let all = &mut self.all;
        self.taken.retain(|id| {
            let share = all[id.0].as_mut().expect("a share with queues is open");
            share.left = (share.left + share.round()).min(share.round());
            share.has_taken = share.left < share.round();
            share.has_taken
        });
    }

    /// Notes that input from a host has arrived.
    #[inline]
    pub(crate) fn came(&mut self, id: ShareId) {
        if self.last != Some(id) {
            self.others_came(id);
        }
    }

    #[cold]
    fn others_came(&mut self, id: ShareId) {
        if self.last.replace(id).is_some() {
            self.is_shared = true;
            self.shared_until = self.round + SHARED_ROUNDS;
        }
    }

    /// Returns whether allowances apply.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns whether a host has used up its allowance for this round.
    pub(crate) fn has_none_left(&mut self, id: ShareId) -> bool {
        self.at(id).left <= 0
    }

    /// Charges a host for a command with this many bytes of data.
    pub(crate) fn take(&mut self, id: ShareId, bytes: usize) {
        let bytes = bytes as i64 * i64::from(DEFAULT_WEIGHT) / BYTES_PER_COMMAND;
        let share = self.at(id);
        share.left -= i64::from(DEFAULT_WEIGHT) + bytes;
        if !std::mem::replace(&mut share.has_taken, true) {
            self.taken.push(id);
        }
    }

    /// Makes a connection's input wait until its host has allowance again.
    pub(crate) fn wait(&mut self, id: ShareId, key: ConnectionKey) {
        let waiting = &mut self.at(id).waiting;
        let is_first = waiting.is_empty();
        waiting.push_back(key);
        if is_first {
            self.waiting.push_back(id);
        }
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the next waiting connection of a host with remaining allowance. The hosts take turns.
    /// Returns `None` if no connection of such a host waits.
    pub(crate) fn next(&mut self) -> Option<ConnectionKey> {
        for _ in 0..self.waiting.len() {
            let id = self.waiting.pop_front()?;
            let is_shared = self.is_shared;
            let share = self.at(id);
            if is_shared && share.left <= 0 {
                self.waiting.push_back(id);
                continue;
            }
            let key = share.waiting.pop_front();
            if !share.waiting.is_empty() {
                self.waiting.push_back(id);
            }
            return key;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A core whose connections always have input, and the commands that each host has executed.
    struct World {
        shares: Shares,
        /// The host of each connection, and the number of bytes in each of its commands.
        connections: Vec<(ShareId, usize)>,
        taken: HashMap<ShareId, usize>,
    }

    impl World {
        fn new() -> Self {
            Self { shares: Shares::default(), connections: Vec::new(), taken: HashMap::new() }
        }

        fn host(&mut self, name: &str, weight: u32, connections: usize, bytes: usize) -> ShareId {
            let mut share = None;
            for _ in 0..connections {
                let id = self.shares.join(SubsystemId(1), name, weight);
                self.connections.push((id, bytes));
                share = Some(id);
            }
            share.expect("a host with connections")
        }

        fn serve(&mut self, key: ConnectionKey, most: usize) {
            let (share, bytes) = self.connections[key.0 as usize];
            self.shares.came(share);
            for _ in 0..most {
                if self.shares.is_shared() && self.shares.has_none_left(share) {
                    return self.shares.wait(share, key);
                }
                if self.shares.is_shared() {
                    self.shares.take(share, bytes);
                }
                *self.taken.entry(share).or_default() += 1;
            }
            self.shares.wait(share, key);
        }

        /// Serves all connections. Each connection has input in every round.
        fn run(&mut self, rounds: usize) {
            for key in 0..self.connections.len() as u32 {
                self.serve(ConnectionKey(key), 1);
            }
            self.taken.clear();
            for _ in 0..rounds {
                self.shares.tick();
                while let Some(key) = self.shares.next() {
                    self.serve(key, 64);
                }
            }
        }
    }

    #[test]
    fn many_queues_of_a_host_get_no_larger_share_than_one() {
        let mut world = World::new();
        let (greedy, modest) = (world.host("greedy", 100, 16, 0), world.host("modest", 100, 1, 0));
        world.run(50);
        assert_eq!((world.taken[&greedy], world.taken[&modest]), (50 * 32, 50 * 32));
    }

    #[test]
    fn shares_follow_weights_and_command_sizes() {
        let mut world = World::new();
        let [one, three] = [100, 300].map(|weight| world.host(&weight.to_string(), weight, 4, 0));
        // A command of one MiB costs as much as 65 small commands.
        let large = world.host("large", 100, 1, 1 << 20);
        world.run(65);
        let taken = [one, three, large].map(|id| world.taken[&id]);
        assert_eq!(taken[..2], [65 * 32, 3 * 65 * 32]);
        assert!((31..=33).contains(&taken[2]), "{taken:?}");
        world.shares.set_weight(three, 50);
        world.run(50);
        // The last command before this run exceeded the allowance, so the first round had less.
        assert!((50 * 16 - 96..=50 * 16).contains(&world.taken[&three]), "{:?}", world.taken);
    }

    #[test]
    fn a_single_active_host_is_not_throttled() {
        let mut world = World::new();
        let alone = world.host("alone", 1, 2, 1 << 20);
        (0..2).for_each(|key| world.serve(ConnectionKey(key), 1000));
        assert!(!world.shares.is_shared() && world.taken[&alone] == 2000);
        // Another host sends a single command, which makes the core shared.
        world.host("other", 100, 1, 0);
        world.serve(ConnectionKey(2), 1);
        world.shares.leave(world.connections[2].0, ConnectionKey(2));
        (0..SHARED_ROUNDS).for_each(|_| world.shares.tick());
        assert!(!world.shares.is_shared());
        let mut turns = 0;
        while let Some(key) = world.shares.next() {
            turns += 1;
            assert!(key.0 < 2);
        }
        assert!(turns == 2 && !world.shares.is_waited_for());
    }

    #[test]
    fn a_disconnected_host_takes_no_turn_and_its_share_id_is_reused() {
        let mut world = World::new();
        let (one, two) = (world.host("one", 100, 2, 0), world.host("two", 100, 1, 0));
        world.run(1);
        world.shares.leave(one, ConnectionKey(0));
        world.shares.leave(two, ConnectionKey(2));
        let all = [world.shares.next(), world.shares.next()];
        world.shares.tick();
        let next = world.shares.next();
        assert_eq!(all.into_iter().chain([next]).flatten().collect::<Vec<_>>(), [ConnectionKey(1)]);
        assert_eq!(world.shares.join(SubsystemId(1), "three", 100), two);
        assert!(!world.shares.has_none_left(two));
        world.shares.leave(one, ConnectionKey(1));
        world.shares.leave(two, ConnectionKey(3));
        assert!(world.shares.by_name.is_empty() && world.shares.taken.is_empty());
    }
}
