//! The pre-shared keys that a server knows.

use crate::discovery::{DISCOVERY_NQN, ForDiscovery, Places};
use crate::limits;
use crate::named::Named;
use farblock_secure::{TlsKey, TlsPsk};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The pre-shared keys of a server, by host. An identity contains the names of the host and the
/// subsystem. When a host offers an identity, the server derives the host's key for the subsystem.
#[derive(Clone, Default, Debug)]
pub struct ServerKeys {
    /// The keys of each host for every subsystem.
    by_host: HashMap<String, Vec<TlsKey>>,
    /// The keys of each host for single subsystems: by the host's name, then by the subsystem's
    /// name.
    by_names: HashMap<String, BTreeMap<String, Vec<TlsKey>>>,
    /// The keys of `by_names` for use in discovery, by the host's name.
    for_discovery: HashMap<String, ForDiscovery>,
    /// The generator of the positions at which the server starts to try the keys of
    /// `for_discovery`. All clones of this struct share it.
    places: Arc<Places>,
    /// The keys that authentications generated. All clones of this struct share these keys.
    generated: Arc<Generated>,
    /// The hosts that dropped a connection when the server asked for a key update. All clones of
    /// this struct share this set.
    unable: Arc<Mutex<HashSet<String>>>,
}

/// The valid keys that authentications generated: by host and subsystem, oldest first.
#[derive(Default, Debug)]
struct Generated(Mutex<HashMap<(String, String), VecDeque<Made>>>);

/// The key that one authentication generated, in each derivation that hosts use.
#[derive(Debug)]
struct Made {
    at: Instant,
    keys: Vec<Arc<Named>>,
}

impl Made {
    /// Returns whether a connection uses the key.
    fn is_used(&self) -> bool {
        self.keys.iter().any(|key| Arc::strong_count(key) > 1)
    }
}

impl Generated {
    fn all(&self) -> MutexGuard<'_, HashMap<(String, String), VecDeque<Made>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, host: &str, subsystem: &str) -> Vec<Arc<Named>> {
        let all = self.all();
        if all.is_empty() {
            return Vec::new();
        }
        let made = all.get(&(host.to_owned(), subsystem.to_owned())).into_iter().flatten();
        made.flat_map(|made| made.keys.iter().map(Arc::clone)).collect()
    }
}

impl ServerKeys {
    /// Creates an empty set. `seed` is secret: it determines which of a host's keys the server
    /// tries first for discovery.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { places: Arc::new(Places::new(seed)), ..Self::default() }
    }

    /// Adds a key with which a host may access every subsystem.
    pub fn add(&mut self, key: TlsKey, host: &str) {
        let known = self.by_host.entry(host.to_owned()).or_default();
        if known.len() < limits::KEYS_PER_HOST {
            known.push(key);
        }
    }

    /// Sets the keys of a host for one subsystem. An empty list removes the host's keys.
    pub fn set(&mut self, host: &str, subsystem: &str, keys: &[TlsKey]) {
        let of_host = self.by_names.entry(host.to_owned()).or_default();
        let kept = &keys[..keys.len().min(limits::KEYS_PER_HOST)];
        let before = match kept {
            [] => of_host.remove(subsystem),
            kept => of_host.insert(subsystem.to_owned(), kept.to_vec()),
        };
        if of_host.is_empty() {
            self.by_names.remove(host);
        }
        let for_discovery = self.for_discovery.entry(host.to_owned()).or_default();
        kept.iter().for_each(|key| for_discovery.add(key, host));
        before.iter().flatten().for_each(|key| for_discovery.remove(key, host));
        if for_discovery.is_empty() {
            self.for_discovery.remove(host);
        }
    }

    /// Drops all keys for a subsystem that was removed.
    pub fn forget(&mut self, subsystem: &str) {
        self.forget_generated(None, subsystem);
        let has_some = |of_host: &BTreeMap<_, _>| of_host.contains_key(subsystem);
        let of_these = self.by_names.iter().filter(|(_, of_host)| has_some(of_host));
        let hosts: Vec<String> = of_these.map(|(host, _)| host.clone()).collect();
        hosts.iter().for_each(|host| self.set(host, subsystem, &[]));
    }

    /// Returns whether the set has no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.has_configured() && self.generated.all().is_empty()
    }

    /// Returns whether the set has configured keys.
    #[must_use]
    pub fn has_configured(&self) -> bool {
        !self.by_host.is_empty() || !self.by_names.is_empty()
    }

    /// Adds the key that an authentication of a host for a subsystem generated. `psks` contains the
    /// key in each derivation that hosts use. If the host and the subsystem then have more keys
    /// than [the limit](limits::GENERATED_KEYS), drops the oldest key that no connection uses, or
    /// the oldest key if connections use all of them.
    pub fn generate(&self, psks: Vec<TlsPsk>, host: &str, subsystem: &str, now: Instant) {
        let named = |psk| {
            let (host, subsystem) = (host.to_owned(), subsystem.to_owned());
            Arc::new(Named { psk, made_of: None, host, subsystem })
        };
        let made = Made { at: now, keys: psks.into_iter().map(named).collect() };
        let mut all = self.generated.all();
        let of_host = all.entry((host.to_owned(), subsystem.to_owned())).or_default();
        of_host.push_back(made);
        if of_host.len() > limits::GENERATED_KEYS {
            let unused = of_host.iter().position(|made| !made.is_used()).unwrap_or(0);
            of_host.remove(unused);
        }
    }

    /// Drops the generated keys that no connection uses and that are older than [a
    /// limit](limits::GENERATED_TIME).
    pub fn expire(&self, now: Instant) {
        self.generated.all().retain(|_, of_host| {
            let is_new = |at| now.saturating_duration_since(at) < limits::GENERATED_TIME;
            of_host.retain(|made| is_new(made.at) || made.is_used());
            !of_host.is_empty()
        });
    }

    /// Drops the generated keys for a subsystem: the keys of `host`, or of every host if `host` is
    /// `None`.
    pub fn forget_generated(&self, host: Option<&str>, subsystem: &str) {
        let is_meant = |name: &str| host.is_none_or(|host| host == name);
        self.generated.all().retain(|(name, of), _| of != subsystem || !is_meant(name));
    }

    /// Returns whether the server may ask a host for a key update. It must not if the host once
    /// dropped a connection after such a request.
    pub(crate) fn may_ask(&self, host: &str) -> bool {
        !self.unable.lock().unwrap_or_else(PoisonError::into_inner).contains(host)
    }

    /// Records that a host dropped a connection when the server asked for a key update.
    pub(crate) fn is_unable(&self, host: &str) {
        let mut unable = self.unable.lock().unwrap_or_else(PoisonError::into_inner);
        if unable.len() < limits::UNABLE_HOSTS && unable.insert(host.to_owned()) {
            tracing::warn!(
                "host {host} dropped its connection when the target requested a key update, as \
                 Linux hosts do: the target requests no more updates from it, so its connections \
                 may exceed the AES-GCM limit for one key"
            );
        }
    }

    /// Returns the keys of a host for a subsystem other than discovery.
    #[must_use]
    pub fn keys(&self, host: &str, subsystem: &str) -> Vec<&TlsKey> {
        let own = self.by_names.get(host).and_then(|of_host| of_host.get(subsystem));
        self.by_host.get(host).into_iter().chain(own).flatten().collect()
    }

    /// Returns whether a host has a key for discovery.
    #[must_use]
    pub fn has_for_discovery(&self, host: &str) -> bool {
        self.by_host.contains_key(host) || self.for_discovery.contains_key(host)
    }

    /// Returns whether a host still has at least one of the discovery keys that it had in `before`.
    #[must_use]
    pub fn keeps_for_discovery(&self, before: &Self, host: &str) -> bool {
        let (had, has) = (before.for_discovery.get(host), self.for_discovery.get(host));
        // Keys that are valid for every subsystem never change, so a host that has one still has
        // it.
        self.by_host.contains_key(host)
            || had.zip(has).is_some_and(|(had, has)| has.shares_one_with(had))
    }

    /// Returns the configured keys that `identity` may stand for, if `host` offers it for
    /// `subsystem`. An identity with a digest stands for one key, unless the digests of two keys
    /// collide. For discovery, an identity without a digest stands for every key of the host. The
    /// server tries some of these keys at a time ([`discovery`](crate::discovery)).
    fn meant(&self, identity: &str, host: &str, subsystem: &str) -> Vec<&TlsKey> {
        if subsystem != DISCOVERY_NQN {
            return self.keys(host, subsystem);
        }
        let own = self.for_discovery.get(host).into_iter().flat_map(|keys| keys.of(identity));
        let for_all = self.by_host.get(host).into_iter().flatten();
        for_all.chain(own).collect()
    }

    /// Returns the hosts that have a configured key for this subsystem.
    pub fn hosts(&self, subsystem: &str) -> impl Iterator<Item = &String> {
        let own = self.by_names.iter().filter(move |(_, of_host)| of_host.contains_key(subsystem));
        own.map(|(host, _)| host).chain(self.by_host.keys())
    }

    /// Returns whether the key with which a peer proved its identity is still valid. Does not
    /// derive any key, since an identity may denote thousands of keys.
    #[must_use]
    pub fn is_good(&self, shown: &Named) -> bool {
        let Some(key) = &shown.made_of else {
            let known = self.generated.of(&shown.host, &shown.subsystem);
            return known.iter().any(|known| known.psk == shown.psk);
        };
        self.meant(&shown.psk.identity, &shown.host, &shown.subsystem).contains(&key)
    }

    /// Returns the keys to try for an identity: all derivations of each key that the identity may
    /// denote. A digest selects one derivation of one key.
    pub(crate) fn find(&self, identity: &[u8]) -> Vec<Arc<Named>> {
        let Ok(identity) = str::from_utf8(identity) else { return Vec::new() };
        // Refuse control characters: valid names have none, and names appear in logs.
        if identity.contains(char::is_control) {
            return Vec::new();
        }
        // The parts are the form, the host, the subsystem, and optionally a digest.
        let mut parts = identity.split(' ');
        let (Some(_), Some(host), Some(subsystem)) = (parts.next(), parts.next(), parts.next())
        else {
            return Vec::new();
        };
        let mut found = self.generated.of(host, subsystem);
        found.retain(|named| named.psk.identity == identity);
        if !found.is_empty() {
            return found;
        }
        let discovery = self.for_discovery.get(host).filter(|_| subsystem == DISCOVERY_NQN);
        let (right, keys) = match discovery {
            Some(discovery) => {
                let (right, own) = discovery.turn(identity, &self.places);
                let for_all = self.by_host.get(host).into_iter().flatten();
                (right, for_all.chain(own).collect())
            }
            None => (None, self.meant(identity, host, subsystem)),
        };
        let named = |psk: TlsPsk, key: &TlsKey| {
            let (host, subsystem) = (host.to_owned(), subsystem.to_owned());
            Arc::new(Named { psk, made_of: Some(key.clone()), host, subsystem })
        };
        let made = keys.into_iter().flat_map(|key| {
            let psks = key.psks(host, subsystem).into_iter();
            psks.filter(|psk| psk.identity == identity).map(move |psk| named(psk, key))
        });
        right.into_iter().chain(made).collect()
    }

    /// Returns the identity forms for which the server has a key of the host and subsystem that
    /// `identity` names. An error message lists these forms.
    pub(crate) fn forms_beside(&self, identity: &[u8]) -> Vec<String> {
        let Ok(identity) = str::from_utf8(identity) else { return Vec::new() };
        let mut parts = identity.split(' ').skip(1);
        let (Some(host), Some(subsystem)) = (parts.next(), parts.next()) else {
            return Vec::new();
        };
        let keys = self.keys(host, subsystem).into_iter();
        let psks = keys.flat_map(|key| key.psks(host, subsystem));
        let form = |psk: TlsPsk| psk.identity.split(' ').next().map(str::to_owned);
        psks.filter_map(form).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Records the key with which a host proved its identity. The server tries it first next time.
    pub(crate) fn was_right(&self, named: &Arc<Named>) {
        if named.subsystem == DISCOVERY_NQN
            && let Some(discovery) = self.for_discovery.get(&named.host)
        {
            discovery.was_right(named);
        }
    }

    /// Returns the number of keys that the identity of `named` may denote. `None` if the server
    /// tries all of them at once.
    pub(crate) fn too_many(&self, named: &Named) -> Option<usize> {
        let discovery = self.for_discovery.get(&named.host);
        let discovery = discovery.filter(|_| named.subsystem == DISCOVERY_NQN);
        discovery.and_then(|discovery| discovery.too_many(&named.psk.identity))
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
        let (host, subsystem) = (HOST.to_owned(), subsystem.to_owned());
        Named { psk, made_of: Some(key.clone()), host, subsystem }
    }

    #[test]
    fn a_key_is_valid_for_its_subsystem_and_discovery() {
        let mut keys = ServerKeys::default();
        keys.set(HOST, DISK, &[key(1)]);
        let finds = |subsystem: &str| {
            keys.find(named(&key(1), subsystem).psk.identity.as_bytes()).len() == 1
        };
        assert!(finds(DISK) && finds(DISCOVERY_NQN));
        assert!(!finds("nqn.2026-11.s:more"), "the key is for one subsystem");
        assert!(keys.has_for_discovery(HOST) && !keys.has_for_discovery("nqn.2026-11.h:two"));
    }

    #[test]
    fn a_removed_key_is_invalid() {
        let mut keys = ServerKeys::default();
        keys.set(HOST, DISK, &[key(2), key(1)]);
        let shown = named(&key(1), DISK);
        assert!(keys.is_good(&shown));
        keys.set(HOST, DISK, &[key(2)]);
        assert!(!keys.is_good(&shown) && keys.is_good(&named(&key(2), DISK)));
        keys.set(HOST, DISK, &[]);
        assert!(keys.is_empty());
    }

    /// The server does not derive a key again to check that the key is still valid.
    #[test]
    fn checking_a_used_key_derives_nothing() {
        let mut keys = ServerKeys::default();
        keys.set(HOST, DISK, &[key(1)]);
        for subsystem in [DISK, DISCOVERY_NQN] {
            let mut shown = named(&key(1), subsystem);
            shown.psk.key.fill(0);
            assert!(keys.is_good(&shown), "{subsystem}");
            shown.made_of = Some(key(2));
            assert!(!keys.is_good(&shown), "{subsystem}");
            shown.made_of = None;
            assert!(!keys.is_good(&shown), "{subsystem}");
        }
    }

    /// A stranger that offers a host's identity cannot tell which keys the server tries next.
    #[test]
    fn every_key_is_tried_although_a_stranger_offers_the_same_identity() {
        const KEYS: u8 = 16;
        let round = usize::from(KEYS) / limits::DISCOVERY_KEYS;
        let psks = (0..KEYS).map(|number| key(number).psks(HOST, DISCOVERY_NQN).pop().unwrap());
        let psks: Vec<_> = psks.collect();
        let mut keys = ServerKeys::new(7);
        for number in 0..KEYS {
            keys.set(HOST, &format!("{DISK}{number}"), &[key(number)]);
        }
        // The host connects once in each round through the keys, always at the same place in the
        // round.
        let mut tried = vec![false; psks.len()];
        for _ in 0..20 {
            let found = keys.find(psks[0].identity.as_bytes());
            tried.iter_mut().zip(&psks).for_each(|(tried, psk)| {
                *tried |= found.iter().any(|one| one.psk == *psk);
            });
            (1..round).for_each(|_| drop(keys.find(psks[0].identity.as_bytes())));
        }
        assert!(tried.iter().all(|&tried| tried), "{tried:?}");
    }

    fn generated(seed: u8) -> Vec<TlsPsk> {
        let mut psk = key(seed).psks(HOST, DISK).swap_remove(0);
        psk.identity = format!("NVMe1G01 {HOST} {DISK} {seed}");
        vec![psk.clone(), psk]
    }

    #[test]
    fn a_generated_key_is_valid_until_it_expires() {
        let (keys, begin) = (ServerKeys::default(), Instant::now());
        let copy = keys.clone();
        keys.generate(generated(1), HOST, DISK, begin);
        assert!(!copy.is_empty(), "a copy of the keys shares the generated keys");
        let found = copy.find(b"NVMe1G01 nqn.2026-11.h:one nqn.2026-11.s:disk 1");
        assert_eq!(found.len(), 2, "one key for each derivation");
        assert!(copy.is_good(&found[0]));
        let late = begin + limits::GENERATED_TIME;
        copy.expire(late);
        assert!(copy.is_good(&found[0]), "the key of an open connection stays valid");
        let shown = Named {
            psk: found[0].psk.clone(),
            made_of: None,
            host: HOST.to_owned(),
            subsystem: "nqn.2026-11.s:more".to_owned(),
        };
        assert!(!copy.is_good(&shown), "the key is for one subsystem");
        let shown = Named { subsystem: DISK.to_owned(), ..shown };
        drop(found);
        copy.expire(late - std::time::Duration::from_millis(1));
        assert!(copy.is_good(&shown));
        copy.expire(late);
        assert!(!copy.is_good(&shown) && keys.is_empty());
    }

    #[test]
    fn generated_keys_are_forgotten_with_their_host_or_subsystem() {
        let (mut keys, now) = (ServerKeys::default(), Instant::now());
        let count = |keys: &ServerKeys| keys.generated.of(HOST, DISK).len() / 2;
        keys.generate(generated(1), HOST, DISK, now);
        keys.forget_generated(Some("nqn.2026-11.h:two"), DISK);
        keys.forget_generated(Some(HOST), "nqn.2026-11.s:more");
        assert_eq!(count(&keys), 1);
        keys.forget_generated(Some(HOST), DISK);
        assert!(keys.is_empty());
        keys.generate(generated(1), HOST, DISK, now);
        keys.forget(DISK);
        assert!(keys.is_empty());
        // Above the limit, the oldest unused key is dropped for the new key.
        keys.generate(generated(0), HOST, DISK, now);
        let used = keys.find(generated(0)[0].identity.as_bytes());
        (1..=200).for_each(|seed| keys.generate(generated(seed), HOST, DISK, now));
        assert_eq!(count(&keys), limits::GENERATED_KEYS);
        assert!(keys.is_good(&used[0]));
        assert!(keys.find(generated(1)[0].identity.as_bytes()).is_empty());
        assert!(!keys.find(generated(200)[0].identity.as_bytes()).is_empty());
    }

    #[test]
    fn a_derived_key_is_valid_only_for_its_names() {
        let given = |subsystem: &str| {
            let psk = named(&key(1), subsystem).psk;
            TlsKey::given(TlsPsk::given(&psk.identity, &psk.key).expect("a key"))
        };
        let mut keys = ServerKeys::default();
        keys.set(HOST, DISK, &[given(DISK)]);
        let shown_of = |subsystem: &str| Named {
            made_of: Some(given(subsystem)),
            ..named(&key(1), subsystem)
        };
        let (shown, listed) = (shown_of(DISK), shown_of(DISCOVERY_NQN));
        let finds = |keys: &ServerKeys, shown: &Named| {
            let found = keys.find(shown.psk.identity.as_bytes());
            assert!(found.iter().all(|one| one.psk == shown.psk));
            found.len()
        };
        assert_eq!((finds(&keys, &shown), finds(&keys, &listed)), (1, 0));
        assert!(keys.is_good(&shown) && !keys.is_good(&listed));
        let other = named(&key(2), DISK);
        assert_eq!(finds(&keys, &other), 0);
        keys.set(HOST, DISK, &[given(DISK), given(DISCOVERY_NQN)]);
        assert_eq!((finds(&keys, &shown), finds(&keys, &listed)), (1, 1));
        assert_ne!(given(DISK), given(DISCOVERY_NQN));
        assert_ne!(given(DISK), key(1));
    }

    /// A host has keys for many subsystems, and may use any of them for discovery.
    #[test]
    fn every_key_of_a_host_can_be_found_for_discovery() {
        const SUBSYSTEMS: u8 = 20;
        let (mut own, mut given) = (ServerKeys::default(), ServerKeys::default());
        let psk = |number: u8, subsystem: &str| named(&key(number), subsystem).psk;
        let as_given =
            |psk: &TlsPsk| TlsKey::given(TlsPsk::given(&psk.identity, &psk.key).unwrap());
        for number in 0..SUBSYSTEMS {
            let subsystem = format!("{DISK}{number}");
            own.set(HOST, &subsystem, &[key(number)]);
            // A keyring has several keys for the subsystem, and one key for discovery.
            let listed = as_given(&psk(number, DISCOVERY_NQN));
            let others = (0..7).map(|other| as_given(&psk(100 + other, &subsystem)));
            let keys: Vec<_> = others.chain([listed]).collect();
            given.set(HOST, &subsystem, &keys);
        }
        for number in 0..SUBSYSTEMS {
            let shown = named(&key(number), DISCOVERY_NQN);
            for keys in [&own, &given] {
                let found = keys.find(shown.psk.identity.as_bytes());
                assert!(found.len() == 1 && found[0].psk == shown.psk, "{number}: {found:?}");
                assert!(keys.is_good(&found[0]), "{number}");
            }
            // An identity without a digest may stand for many keys, so the server tries this key
            // only in its turn.
            let names = key(number).psks(HOST, DISCOVERY_NQN).pop().unwrap();
            assert!(names.identity.starts_with("NVMe0R"), "{}", names.identity);
            let round = usize::from(SUBSYSTEMS).div_ceil(limits::DISCOVERY_KEYS);
            // Offer the identity until the present round is over, and then for one whole round.
            let mut turns = (1..2 * round).flat_map(|_| own.find(names.identity.as_bytes()));
            assert!(turns.any(|one| one.psk == names), "{number}");
        }
        for number in 0..SUBSYSTEMS {
            let before = own.clone();
            own.forget(&format!("{DISK}{number}"));
            assert!(!own.is_good(&named(&key(number), DISCOVERY_NQN)), "{number}");
            let is_last = number == SUBSYSTEMS - 1;
            assert_eq!(own.keeps_for_discovery(&before, HOST), !is_last, "{number}");
        }
        assert!(own.is_empty() && !own.has_for_discovery(HOST));
    }

    #[test]
    fn a_key_of_many_subsystems_is_valid_until_the_last_removal() {
        let mut keys = ServerKeys::default();
        let shown = named(&key(1), DISCOVERY_NQN);
        let subsystems = ["a", "b", "c"].map(|name| format!("{DISK}{name}"));
        subsystems.iter().for_each(|subsystem| keys.set(HOST, subsystem, &[key(1)]));
        keys.set(HOST, &subsystems[0], &[key(1), key(2)]);
        for subsystem in &subsystems {
            assert_eq!(keys.find(shown.psk.identity.as_bytes()).len(), 1);
            keys.set(HOST, subsystem, &[]);
        }
        assert!(keys.find(shown.psk.identity.as_bytes()).is_empty() && keys.is_empty());
        assert!(!keys.has_for_discovery(HOST));
    }

    #[test]
    fn the_keys_tried_for_an_identity_without_a_digest_are_limited() {
        let mut keys = ServerKeys::default();
        for number in 0..100 {
            keys.set(HOST, &format!("{DISK}{number}"), &[key(number), key(100 + number)]);
        }
        let names = key(1).psks(HOST, DISCOVERY_NQN).pop().unwrap();
        // Each key has two derivations. After a match, the server tries the matching one first.
        for more in [0, 1] {
            let found = keys.find(names.identity.as_bytes());
            assert_eq!(found.len(), 2 * limits::DISCOVERY_KEYS + more);
            keys.was_right(&found[5]);
        }
        keys.set(HOST, &format!("{DISK}0"), &[]);
        let found = keys.find(names.identity.as_bytes());
        assert_eq!(found.len(), 2 * limits::DISCOVERY_KEYS, "a removed key is not tried first");
    }
}
