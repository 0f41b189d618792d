//! The keys of a host for single subsystems as they are good for discovery, where all of them are.
//!
//! An identity with a digest tells which key is meant. One without (`NVMe0R`) may stand for each,
//! and a stranger may have them tried: so [some](limits::DISCOVERY_KEYS) are tried with one first
//! message, the next ones with the next that has this identity. The one that was right last time
//! comes before these, whoever else has asked since. Each round of all keys begins at a place that
//! nobody knows: a stranger who takes turns of it cannot know which it leaves to the host.

use crate::keys::Named;
use crate::limits;
use farblock_random::Random;
use farblock_secure::TlsKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The name of the discovery subsystem.
pub(crate) const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The keys by their identities, each with the number of subsystems that it is for. Identities are
/// made when keys are set and not when somebody asks: strangers ask, and there may be thousands of
/// subsystems.
#[derive(Clone, Default, Debug)]
pub(crate) struct ForDiscovery {
    known: BTreeMap<String, Vec<(TlsKey, usize)>>,
    /// Of identities with more keys than are tried at a time. Every copy has the same, until the
    /// keys are others.
    turns: Arc<Mutex<BTreeMap<String, Turns>>>,
}

/// See the module's text.
#[derive(Default, Debug)]
struct Turns {
    /// What was the right one last time.
    right: Option<Arc<Named>>,
    /// The place of the key that is tried next.
    next: usize,
    /// How many turns the round has still.
    left: usize,
}

/// Where rounds begin.
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

    /// All keys that an identity may stand for.
    pub(crate) fn of(&self, identity: &str) -> impl Iterator<Item = &TlsKey> + Clone {
        self.known.get(identity).into_iter().flatten().map(|(key, _)| key)
    }

    /// Whether this has a key still that another one has.
    pub(crate) fn shares_one_with(&self, other: &Self) -> bool {
        let mut all = other
            .known
            .iter()
            .flat_map(|(identity, keys)| keys.iter().map(move |(key, _)| (identity.as_str(), key)));
        all.any(|(identity, key)| self.of(identity).any(|known| known == key))
    }

    /// How many keys an identity may stand for, if that is more than are tried at a time.
    pub(crate) fn too_many(&self, identity: &str) -> Option<usize> {
        let count = self.of(identity).count();
        (count > limits::DISCOVERY_KEYS).then_some(count)
    }

    /// The keys that are tried now for an identity, and what comes before them.
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

    /// A host has this key.
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
