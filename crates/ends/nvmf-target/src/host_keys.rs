//! The secrets and TLS keys with which a host proves its identity.

use farblock_proto::controller::HostChannel;
use farblock_secure::{ControllerTerms, Demand, Group, Hash, Secret, TlsKey};

/// The keys with which a host of a subsystem must prove its identity, and the accepted algorithms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostKeys {
    /// DH-HMAC-CHAP secrets, of which the host must use one. There are two while a secret is being
    /// rotated. Empty if TLS alone proves the identity.
    pub host: Vec<Secret>,
    /// The controller's secret, if hosts may authenticate the controller too.
    pub controller: Option<Secret>,
    /// Accepted hash functions, best first.
    pub hashes: Vec<Hash>,
    /// Accepted Diffie-Hellman groups, best first.
    pub groups: Vec<Group>,
    /// The host identifier (HOSTID) that this host must use. No other host may use it, because
    /// reservations identify hosts by this identifier.
    pub id: Option<[u8; 16]>,
    /// TLS keys, of which the host must use one. There are two while a key is being rotated.
    pub tls: Vec<TlsKey>,
    /// Whether the host must also authenticate the controller, or use a secure channel.
    pub demand: Demand,
}

impl HostKeys {
    /// Returns keys with one secret, which accept every hash function and group.
    #[must_use]
    pub fn new(host: Secret) -> Self {
        Self { host: vec![host], ..Self::of_tls(Vec::new()) }
    }

    /// Returns keys for a host that only uses TLS, without authentication.
    #[must_use]
    pub fn of_tls(tls: Vec<TlsKey>) -> Self {
        let (hashes, groups) = (Hash::ALL.to_vec(), Group::ALL.to_vec());
        let demand = Demand::Authentication;
        Self { host: Vec::new(), controller: None, hashes, groups, id: None, tls, demand }
    }

    pub(crate) fn authenticates(&self) -> bool {
        !self.host.is_empty()
    }

    /// Returns the kind of channel that the host must use.
    pub(crate) fn channel(&self) -> HostChannel {
        match self.demand {
            _ if !self.tls.is_empty() => HostChannel::Tls,
            Demand::SecureChannel if self.authenticates() => HostChannel::Concatenated,
            _ => HostChannel::Plain,
        }
    }

    pub(crate) fn terms(&self, subsystem: &str, host: &str) -> ControllerTerms {
        ControllerTerms {
            host_nqn: host.to_owned(),
            subsystem_nqn: subsystem.to_owned(),
            host_secrets: self.host.clone(),
            controller_secret: self.controller.clone(),
            hashes: self.hashes.clone(),
            groups: self.groups.clone(),
            demand: self.demand,
        }
    }
}
