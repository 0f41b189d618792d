//! The keys that a server knows.

use crate::limits;
use farblock_secure::{TlsKey, TlsPsk};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The name of the discovery subsystem.
const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A pre-shared key, and for whom it is.
#[derive(Debug)]
pub struct Named {
    /// The key.
    pub psk: TlsPsk,
    /// The host.
    pub host: String,
    /// The subsystem.
    pub subsystem: String,
}

/// The keys that a server knows, by their hosts. What is made of one for a subsystem is made when
/// a host asks for it: an identity tells the names.
#[derive(Clone, Default, Debug)]
pub struct ServerKeys {
    /// Keys that a host has for every subsystem.
    by_host: HashMap<String, Vec<TlsKey>>,
    /// Keys that a host has for one subsystem: by the host's name, then by the subsystem's.
    by_names: HashMap<String, BTreeMap<String, Vec<TlsKey>>>,
}

impl ServerKeys {
    /// Adds a key that a host has for every subsystem.
    pub fn add(&mut self, key: TlsKey, host: &str) {
        let known = self.by_host.entry(host.to_owned()).or_default();
        if known.len() < limits::KEYS_PER_HOST {
            known.push(key);
        }
    }

    /// Says which keys a host has for one subsystem from now on; none takes them away.
    pub fn set(&mut self, host: &str, subsystem: &str, keys: &[TlsKey]) {
        let of_host = self.by_names.entry(host.to_owned()).or_default();
        let kept = &keys[..keys.len().min(limits::KEYS_PER_HOST)];
        match kept {
            [] => of_host.remove(subsystem),
            kept => of_host.insert(subsystem.to_owned(), kept.to_vec()),
        };
        self.by_names.retain(|_, of_host| !of_host.is_empty());
    }

    /// A subsystem is gone, and the keys for it.
    pub fn forget(&mut self, subsystem: &str) {
        self.by_names.values_mut().for_each(|of_host| drop(of_host.remove(subsystem)));
        self.by_names.retain(|_, of_host| !of_host.is_empty());
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_host.is_empty() && self.by_names.is_empty()
    }

    /// The keys of a host that are good for a subsystem. For discovery, all that it has are, up to
    /// [a limit](limits::DISCOVERY_KEYS).
    #[must_use]
    pub fn keys(&self, host: &str, subsystem: &str) -> Vec<&TlsKey> {
        let mut found: Vec<&TlsKey> = self.by_host.get(host).into_iter().flatten().collect();
        let of_host = self.by_names.get(host);
        if subsystem != DISCOVERY_NQN {
            let own = of_host.and_then(|of_host| of_host.get(subsystem));
            found.extend(own.into_iter().flatten());
            return found;
        }
        for key in of_host.into_iter().flat_map(BTreeMap::values).flatten() {
            if found.len() < limits::DISCOVERY_KEYS && !found.contains(&key) {
                found.push(key);
            }
        }
        found
    }

    /// The hosts that have a key for this subsystem.
    pub fn hosts(&self, subsystem: &str) -> impl Iterator<Item = &String> {
        let own = self.by_names.iter().filter(move |(_, of_host)| of_host.contains_key(subsystem));
        own.map(|(host, _)| host).chain(self.by_host.keys())
    }

    /// Whether the key that a peer has shown is good still.
    #[must_use]
    pub fn is_good(&self, shown: &Named) -> bool {
        let keys = self.keys(&shown.host, &shown.subsystem);
        let mut psks = keys.iter().flat_map(|key| key.psks(&shown.host, &shown.subsystem));
        psks.any(|psk| psk == shown.psk)
    }

    /// What an identity may stand for: of each key of its host both derivations, unless a digest in
    /// it tells which.
    pub(crate) fn find(&self, identity: &[u8]) -> Vec<Arc<Named>> {
        let Ok(identity) = str::from_utf8(identity) else { return Vec::new() };
        // No name has such, and names get into logs.
        if identity.contains(char::is_control) {
            return Vec::new();
        }
        // The form, the host, the subsystem, and a digest or none.
        let mut parts = identity.split(' ');
        let (Some(_), Some(host), Some(subsystem)) = (parts.next(), parts.next(), parts.next())
        else {
            return Vec::new();
        };
        let keys = self.keys(host, subsystem);
        let psks = keys.iter().flat_map(|key| key.psks(host, subsystem));
        let named = |psk| {
            let (host, subsystem) = (host.to_owned(), subsystem.to_owned());
            Arc::new(Named { psk, host, subsystem })
        };
        psks.filter(|psk| psk.identity == identity).map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_secure::Hash;

    const HOST: &str = "nqn.2026-11.h:one";
    const DISK: &str = "nqn.2026-11.s:disk";

    fn key(seed: u8) -> TlsKey {
        let key = TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(seed));
        key.expect("a suite")
    }

    fn named(key: &TlsKey, subsystem: &str) -> Named {
        let psk = key.psks(HOST, subsystem).swap_remove(0);
        Named { psk, host: HOST.to_owned(), subsystem: subsystem.to_owned() }
    }

    #[test]
    fn a_key_is_good_for_its_subsystem_and_discovery() {
        let mut keys = ServerKeys::default();
        keys.set(HOST, DISK, &[key(1)]);
        let finds = |subsystem: &str| {
            keys.find(named(&key(1), subsystem).psk.identity.as_bytes()).len() == 1
        };
        assert!(finds(DISK) && finds(DISCOVERY_NQN));
        assert!(!finds("nqn.2026-11.s:more"), "it is for one subsystem");
        assert!(keys.keys("nqn.2026-11.h:two", DISCOVERY_NQN).is_empty());
    }

    #[test]
    fn what_is_taken_away_is_not_good_any_more() {
        let mut keys = ServerKeys::default();
        keys.set(HOST, DISK, &[key(2), key(1)]);
        let shown = named(&key(1), DISK);
        assert!(keys.is_good(&shown));
        keys.set(HOST, DISK, &[key(2)]);
        assert!(!keys.is_good(&shown) && keys.is_good(&named(&key(2), DISK)));
        keys.set(HOST, DISK, &[]);
        assert!(keys.is_empty());
    }

    #[test]
    fn what_discovery_tries_is_limited() {
        let mut keys = ServerKeys::default();
        for number in 0..100 {
            keys.set(HOST, &format!("{DISK}{number}"), &[key(number), key(100 + number)]);
        }
        assert_eq!(keys.keys(HOST, DISCOVERY_NQN).len(), limits::DISCOVERY_KEYS);
        (0..100).for_each(|number| keys.forget(&format!("{DISK}{number}")));
        assert!(keys.is_empty());
    }
}
