//! The hosts that must use TLS, and their keys.

use crate::admissions::Reason;
use crate::config::{TargetConfig, TlsPolicy};
use farblock_proto::controller::{ChannelSecurity, PortId};
use farblock_reactor::os;
use farblock_secure::{Concatenation, TlsKey, TlsPsk};
use farblock_tls::{Named, ServerKeys, TlsError};
use farblock_wire::nqn::DISCOVERY_NQN;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

#[derive(Default)]
pub(crate) struct TlsTerms {
    now: RwLock<Now>,
}

#[derive(Default)]
struct Now {
    /// The current keys, which Connect checks. A handshake uses the keys that were current at its
    /// start.
    keys: Arc<ServerKeys>,
    policies: BTreeMap<PortId, TlsPolicy>,
}

/// The result of a key change for the host's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stay {
    /// Whether the host's connections to the subsystem stay: a previous key is still valid, or the
    /// host had no key and has none now.
    pub(crate) at_subsystem: bool,
    /// Whether the host's connections to discovery stay: a previous key for discovery is still
    /// valid, or the host had none.
    pub(crate) at_discovery: bool,
}

impl TlsTerms {
    /// Returns the policies and keys of `config`.
    ///
    /// `seed` starts the random number generator for secrets. No peer may know `seed`.
    ///
    /// # Errors
    /// Fails if a host must use TLS, and there is no TLS library.
    pub(crate) fn new(config: &TargetConfig, seed: u64) -> Result<Self, TlsError> {
        let mut keys = ServerKeys::new(seed);
        for (host, of_host) in &config.tls_keys {
            of_host.iter().for_each(|key| keys.add(key.clone(), host));
        }
        let usual = config.tls.unwrap_or(match keys.is_empty() {
            true => TlsPolicy::Allowed,
            false => TlsPolicy::Required,
        });
        for subsystem in &config.subsystems {
            for (host, of_host) in &subsystem.keys {
                keys.set(host, &subsystem.config.nqn, &of_host.tls);
            }
        }
        let policy = |index| config.tls_listeners.get(&index).copied().unwrap_or(usual);
        let ports = (0..config.entrances().len()).map(|at| (PortId(at as u16 + 1), policy(at)));
        let policies: BTreeMap<_, _> = ports.collect();
        if !keys.is_empty() || policies.values().any(|one| *one == TlsPolicy::Required) {
            farblock_tls::available()?;
        }
        Ok(Self { now: RwLock::new(Now { keys: Arc::new(keys), policies }) })
    }

    /// Returns the keys and policy for a new connection on `port`; `None`: no TLS.
    pub(crate) fn begin(&self, port: Option<PortId>) -> Option<(Arc<ServerKeys>, TlsPolicy)> {
        let now = self.read();
        now.keys.expire(os::now());
        match now.policy(port) {
            TlsPolicy::Plain => None,
            TlsPolicy::Allowed if now.keys.is_empty() => None,
            policy => Some((Arc::clone(&now.keys), policy)),
        }
    }

    /// Sets the policy of a listener. Returns the previous policy.
    pub(crate) fn set_policy(&self, port: PortId, policy: TlsPolicy) -> Option<TlsPolicy> {
        self.now.write().unwrap_or_else(PoisonError::into_inner).policies.insert(port, policy)
    }

    pub(crate) fn forget_port(&self, port: PortId) {
        self.now.write().unwrap_or_else(PoisonError::into_inner).policies.remove(&port);
    }

    pub(crate) fn set_keys(&self, subsystem: &str, host: &str, keys: &[TlsKey]) -> Stay {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        let (before, mut after) = (Arc::clone(&now.keys), (*now.keys).clone());
        let mut good = keys.to_vec();
        if os::has_mistake("target: a removed TLS key stays valid") {
            good.extend(before.keys(host, subsystem).into_iter().cloned());
            good.dedup();
        }
        after.set(host, subsystem, &good);
        let (had, has) = (before.keys(host, subsystem), after.keys(host, subsystem));
        let is_same = had.iter().any(|key| has.contains(key));
        let stay = Stay {
            at_subsystem: is_same || (had.is_empty() && has.is_empty()),
            // A host without a key for discovery may use discovery without TLS.
            at_discovery: !before.has_for_discovery(host)
                || after.keeps_for_discovery(&before, host),
        };
        now.keys = Arc::new(after);
        stay
    }

    pub(crate) fn generate(&self, psks: Vec<TlsPsk>, host: &str, subsystem: &str) {
        self.read().keys.generate(psks, host, subsystem, os::now());
    }

    /// Drops the keys that were generated from a host's secrets, since the secrets are no longer
    /// valid.
    pub(crate) fn forget_generated(&self, host: &str, subsystem: &str) {
        self.read().keys.forget_generated(Some(host), subsystem);
    }

    /// Returns the secure channel that authentication on an admin queue may establish.
    pub(crate) fn offer(&self, port: Option<PortId>, shown: Option<&Named>) -> Concatenation {
        match shown {
            Some(named) if named.psk.is_generated() => Concatenation::REPLACE_TLS_PSK,
            Some(_) => Concatenation::NONE,
            None if self.read().policy(port) == TlsPolicy::Plain => Concatenation::NONE,
            None => Concatenation::NEW_TLS_PSK,
        }
    }

    pub(crate) fn forget(&self, subsystem: &str) {
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        let mut keys = (*now.keys).clone();
        keys.forget(subsystem);
        now.keys = Arc::new(keys);
    }

    pub(crate) fn hosts(&self, subsystem: &str) -> Vec<String> {
        self.read().keys.hosts(subsystem).cloned().collect()
    }

    pub(crate) fn policy(&self, port: PortId) -> TlsPolicy {
        self.read().policy(Some(port))
    }

    /// Checks whether a connection may use these names of a host and a subsystem on this listener.
    /// `peer` is the owner of the TLS key that the host used; `None`: no TLS.
    ///
    /// # Errors
    /// Returns the reason to count, and one sentence for the log.
    pub(crate) fn check(
        &self,
        port: Option<PortId>,
        peer: Option<&Named>,
        host: &str,
        subsystem: &str,
    ) -> Result<(), (Reason, String)> {
        let now = self.read();
        let missing = |sentence: &str| Err((Reason::TlsMissing, sentence.to_owned()));
        match peer {
            Some(peer) if (peer.host.as_str(), peer.subsystem.as_str()) != (host, subsystem) => {
                let (host, subsystem) = (&peer.host, &peer.subsystem);
                let sentence = format!("the host used the TLS key of host {host} for {subsystem}");
                Err((Reason::TlsOtherHost, sentence))
            }
            Some(peer) if !now.keys.is_good(peer) => {
                let sentence = "the host's TLS key was removed during the handshake".to_owned();
                Err((Reason::TlsUnknownIdentity, sentence))
            }
            Some(_) => Ok(()),
            None if now.policy(port) == TlsPolicy::Required => {
                missing("the host connected without TLS, which this listener requires")
            }
            // Hosts that may connect without TLS may read the discovery log page.
            None if subsystem == DISCOVERY_NQN => Ok(()),
            None if !now.keys.keys(host, subsystem).is_empty() => {
                missing("the host connected without TLS, although this target has a TLS key for it")
            }
            None => Ok(()),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Now> {
        self.now.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the security requirement for a listener's discovery log entry.
pub(crate) fn security(policy: TlsPolicy) -> ChannelSecurity {
    match policy {
        TlsPolicy::Plain => ChannelSecurity::None,
        TlsPolicy::Allowed => ChannelSecurity::Allowed,
        TlsPolicy::Required => ChannelSecurity::Required,
    }
}

impl Now {
    /// Returns the policy of a listener. An unknown or removed listener gets the strictest policy
    /// in use.
    fn policy(&self, port: Option<PortId>) -> TlsPolicy {
        let known = port.and_then(|port| self.policies.get(&port)).copied();
        let is_required = || self.policies.values().any(|one| *one == TlsPolicy::Required);
        known.unwrap_or_else(|| match is_required() {
            true => TlsPolicy::Required,
            false => TlsPolicy::Allowed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_secure::Hash;

    const HOST: &str = "nqn.2026-11.h:one";
    const OTHER: &str = "nqn.2026-11.h:two";
    const DISK: &str = "nqn.2026-11.s:disk";
    const MORE: &str = "nqn.2026-11.s:more";
    const PORT: Option<PortId> = Some(PortId(1));

    fn key(seed: u8) -> TlsKey {
        let key = TlsKey::generate(Hash::Sha256, &mut |out: &mut [u8]| out.fill(seed));
        key.expect("a suite")
    }

    fn named(key: &TlsKey, subsystem: &str) -> Named {
        let psk = key.psks(HOST, subsystem).swap_remove(0);
        let (host, subsystem) = (HOST.to_owned(), subsystem.to_owned());
        Named { psk, made_of: Some(key.clone()), host, subsystem }
    }

    fn terms(policy: TlsPolicy) -> TlsTerms {
        let terms = TlsTerms::default();
        terms.set_policy(PortId(1), policy);
        terms.set_keys(DISK, HOST, &[key(1)]);
        terms
    }

    #[test]
    fn a_tls_key_admits_only_its_own_host_and_subsystem() {
        let (shown, listed) = (named(&key(1), DISK), named(&key(1), DISCOVERY_NQN));
        for policy in [TlsPolicy::Plain, TlsPolicy::Allowed, TlsPolicy::Required] {
            let terms = terms(policy);
            let check = |peer, host, subsystem| terms.check(PORT, peer, host, subsystem).is_ok();
            assert!(check(Some(&shown), HOST, DISK) && check(Some(&listed), HOST, DISCOVERY_NQN));
            assert!(!check(Some(&shown), OTHER, DISK), "the host claims another host's key");
            assert!(!check(Some(&shown), HOST, MORE), "the key is for another disk");
            assert!(!check(Some(&shown), HOST, DISCOVERY_NQN));
        }
    }

    #[test]
    fn the_policy_decides_which_hosts_connect_without_tls() {
        for policy in [TlsPolicy::Plain, TlsPolicy::Allowed, TlsPolicy::Required] {
            let terms = terms(policy);
            let check = |host, subsystem| terms.check(PORT, None, host, subsystem).is_ok();
            let may = policy != TlsPolicy::Required;
            assert_eq!(check(OTHER, DISK), may);
            assert_eq!(check(HOST, DISCOVERY_NQN), may);
            assert_eq!(check(HOST, MORE), may, "the host has no key for this disk");
            assert!(!check(HOST, DISK), "the host has a key but does not use it");
        }
        let strict = terms(TlsPolicy::Required);
        assert!(strict.check(None, None, OTHER, DISK).is_err(), "the port is unknown");
        assert!(strict.check(Some(PortId(7)), None, OTHER, DISK).is_err());
        assert_eq!(strict.begin(Some(PortId(7))).expect("a guard").1, TlsPolicy::Required);
        let nobody = TlsTerms::default();
        nobody.set_policy(PortId(1), TlsPolicy::Required);
        assert!(nobody.check(PORT, None, HOST, DISK).is_err(), "TLS is required");
        assert!(nobody.begin(PORT).is_some());
    }

    #[test]
    fn concatenation_is_offered_unless_the_policy_or_a_key_forbids_it() {
        let shown = named(&key(1), DISK);
        for policy in [TlsPolicy::Plain, TlsPolicy::Allowed, TlsPolicy::Required] {
            let terms = terms(policy);
            let new = match policy {
                TlsPolicy::Plain => Concatenation::NONE,
                _ => Concatenation::NEW_TLS_PSK,
            };
            assert_eq!(terms.offer(PORT, None), new, "{policy:?}");
            assert_eq!(
                terms.offer(PORT, Some(&shown)),
                Concatenation::NONE,
                "the host uses TLS already"
            );
        }
    }

    #[test]
    fn a_removed_tls_key_is_refused() {
        let terms = terms(TlsPolicy::Required);
        let shown = named(&key(1), DISK);
        let stay = |keys: &[TlsKey]| terms.set_keys(DISK, HOST, keys);
        let (yes, no) = (
            Stay { at_subsystem: true, at_discovery: true },
            Stay { at_subsystem: false, at_discovery: false },
        );
        assert_eq!(stay(&[key(2), key(1)]), yes, "a second key is added");
        assert_eq!(terms.check(PORT, Some(&shown), HOST, DISK), Ok(()));
        assert_eq!(stay(&[key(2)]), yes, "the first key is removed");
        assert!(terms.check(PORT, Some(&shown), HOST, DISK).is_err());
        assert_eq!(stay(&[key(3)]), no, "all keys are replaced");
        assert_eq!(stay(&[]), no, "all keys are replaced by none");
        assert_eq!(stay(&[]), yes, "all keys are removed");
        assert_eq!(stay(&[key(4)]), Stay { at_discovery: true, ..no }, "the first key is added");
        assert!(terms.set_keys(MORE, HOST, &[key(5)]).at_discovery);
        assert!(terms.set_keys(MORE, HOST, &[]).at_discovery, "the host has another key");
    }
}
