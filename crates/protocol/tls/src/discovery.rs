//! The keys that a host may use for discovery: all keys that it has for individual subsystems.
//!
//! An identity with a digest names one key. An identity without a digest (`NVMe0R`) may stand for
//! any key of the host. A stranger may offer such an identity to make the server try many keys. So
//! the server tries only [some keys](limits::DISCOVERY_KEYS) per ClientHello. It tries the next
//! keys when another ClientHello offers the same identity. The key that matched last time is always
//! first.
//!
//! The server tries all keys in a round that starts at a secret position. A stranger that offers
//! the identity moves the server on to the next keys, but cannot tell which keys the server will
//! try when the host connects next.

use crate::limits;
use crate::named::Named;
use farblock_random::Random;
use farblock_secure::TlsKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name of the discovery subsystem.
pub(crate) const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The keys by their identities. Each key has a count of the subsystems for which it is set. The
/// server computes the identities when it sets keys, not when a client connects: a host may have
/// thousands of keys, and any peer can connect.
#[derive(Clone, Default, Debug)]
pub(crate) struct ForDiscovery {
    known: BTreeMap<String, Vec<(TlsKey, usize)>>,
    /// For each identity that has too many keys for one ClientHello: the keys to try next. All
    /// clones of this struct share this map until their keys change.
    turns: Arc<Mutex<BTreeMap<String, Turns>>>,
}

/// The next keys to try for an identity. One turn is the keys that the server tries for one
/// ClientHello; a round of turns covers all keys.
#[derive(Default, Debug)]
struct Turns {
    /// The key that matched last time.
    right: Option<Arc<Named>>,
    /// The position of the next key to try.
    next: usize,
    /// The number of turns left in this round.
    left: usize,
}

/// Generates the random positions at which rounds start.
#[derive(Debug)]
pub(crate) struct Places(Mutex<Random>);

impl Places {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(Random::new(seed)))
    }

    fn below(&self, count: usize) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).index(count)
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::new(0)
    }
}

impl ForDiscovery {
    fn identities(key: &TlsKey, host: &str) -> BTreeSet<String> {
        key.psks(host, DISCOVERY_NQN).into_iter().map(|psk| psk.identity).collect()
    }

    pub(crate) fn add(&mut self, key: &TlsKey, host: &str) {
        self.turns = Arc::default();
        for identity in Self::identities(key, host) {
            let known = self.known.entry(identity).or_default();
            match known.iter_mut().find(|(known, _)| known == key) {
                Some((_, subsystems)) => *subsystems += 1,
                None => known.push((key.clone(), 1)),
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &TlsKey, host: &str) {
        self.turns = Arc::default();
        for identity in Self::identities(key, host) {
            let Some(known) = self.known.get_mut(&identity) else { continue };
            known.iter_mut().filter(|(known, _)| known == key).for_each(|(_, count)| *count -= 1);
            known.retain(|(_, subsystems)| *subsystems > 0);
            if known.is_empty() {
                self.known.remove(&identity);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns all keys that an identity may denote.
    pub(crate) fn of(&self, identity: &str) -> impl Iterator<Item = &TlsKey> + Clone {
        self.known.get(identity).into_iter().flatten().map(|(key, _)| key)
    }

    /// Returns whether the two sets have a key in common.
    pub(crate) fn shares_one_with(&self, other: &Self) -> bool {
        let mut all = other
            .known
            .iter()
            .flat_map(|(identity, keys)| keys.iter().map(move |(key, _)| (identity.as_str(), key)));
        all.any(|(identity, key)| self.of(identity).any(|known| known == key))
    }

    /// Returns the number of keys for an identity. `None` if the server tries all of them with one
    /// ClientHello.
    pub(crate) fn too_many(&self, identity: &str) -> Option<usize> {
        let count = self.of(identity).count();
        (count > limits::DISCOVERY_KEYS).then_some(count)
    }

    /// Returns the key that matched last time, and the keys to try after it for this ClientHello.
    pub(crate) fn turn(
        &self,
        identity: &str,
        places: &Places,
    ) -> (Option<Arc<Named>>, Vec<&TlsKey>) {
        let Some(count) = self.too_many(identity) else {
            return (None, self.of(identity).collect());
        };
        let mut turns = self.turns();
        let turn = turns.entry(identity.to_owned()).or_default();
        if turn.left == 0 {
            turn.next = places.below(count);
            turn.left = count.div_ceil(limits::DISCOVERY_KEYS);
        }
        let next = turn.next % count;
        turn.next = next + limits::DISCOVERY_KEYS;
        turn.left -= 1;
        let right = turn.right.clone();
        let keys = self.of(identity).cycle().skip(next);
        (right, keys.take(limits::DISCOVERY_KEYS).collect())
    }

    /// Records the key with which a host proved its identity.
    pub(crate) fn was_right(&self, named: &Arc<Named>) {
        let identity = &named.psk.identity;
        if self.too_many(identity).is_some() {
            self.turns().entry(identity.clone()).or_default().right = Some(Arc::clone(named));
        }
    }

    fn turns(&self) -> MutexGuard<'_, BTreeMap<String, Turns>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
