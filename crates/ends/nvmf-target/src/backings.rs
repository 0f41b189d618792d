//! The stores (files, devices, memory) of a subsystem's namespaces.
//!
//! A namespace number can be reused, so every store gets a unique identifier. A core looks up its
//! queue to a store by this identifier, not by the namespace number. So when a number is reused, a
//! core that still has the old list of namespaces cannot reach the new store. A core with the new
//! list cannot reach the old store.

use crate::by_namespace::ByNamespace;
use crate::losses::Losses;
use crate::pace::Pace;
use crate::permit::Permit;
use crate::shares::DEFAULT_WEIGHT;
use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Identifies a store; never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BackingId(pub(crate) u64);

/// The store of a namespace. A `Backing` exists as long as the target shares the store under the
/// same namespace number.
#[derive(Clone)]
pub(crate) struct Backing {
    pub(crate) id: BackingId,
    pub(crate) namespace: Arc<dyn Namespace>,
    pub(crate) pace: Option<Arc<Pace>>,
    pub(crate) losses: Arc<Losses>,
    /// The [`Permit`] of the group of targets that shares the store: only the target with a valid
    /// permit may use it. `None`: no group shares the store.
    pub(crate) permit: Option<Arc<Permit>>,
}

/// An immutable list of a subsystem's stores, shared by the subsystem's queues.
#[derive(Clone, Default)]
pub(crate) struct Backings {
    all: ByNamespace<Backing>,
    is_paced: bool,
    is_led: bool,
    hosts: BTreeMap<String, HostTerms>,
}

#[derive(Clone)]
pub(crate) struct HostTerms {
    /// The host's rate limits over all namespaces of the subsystem.
    pub(crate) pace: Option<Arc<Pace>>,
    /// The host's scheduling weight on a core that several hosts keep busy.
    pub(crate) weight: u32,
}

impl Backings {
    pub(crate) fn is_paced(&self) -> bool {
        self.is_paced
    }

    /// Returns whether at least one of the stores needs a permit.
    #[inline]
    pub(crate) fn is_led(&self) -> bool {
        self.is_led
    }

    pub(crate) fn with_hosts(mut self, hosts: BTreeMap<String, HostTerms>) -> Self {
        self.hosts = hosts;
        self
    }

    pub(crate) fn pace_of(&self, host: &str) -> Option<&Arc<Pace>> {
        self.hosts.get(host)?.pace.as_ref()
    }

    pub(crate) fn weight_of(&self, host: &str) -> u32 {
        self.hosts.get(host).map_or(DEFAULT_WEIGHT, |terms| terms.weight)
    }

    pub(crate) fn find(&self, nsid: NamespaceId) -> Option<&Backing> {
        self.all.find(nsid)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(NamespaceId, Backing)> {
        self.all.iter()
    }

    /// Returns whether `nsid` has the same store in both lists.
    pub(crate) fn agree(&self, other: &Self, nsid: NamespaceId) -> bool {
        let id = |backings: &Self| backings.find(nsid).map(|backing| backing.id);
        id(self) == id(other)
    }

    /// Returns whether both lists have the same rate limiter ([`Pace`]) for `nsid`. If so, the
    /// start times that it has assigned to waiting commands stay valid.
    pub(crate) fn pace_alike(&self, other: &Self, nsid: NamespaceId) -> bool {
        let pace = |backings: &Self| {
            backings.find(nsid).and_then(|backing| backing.pace.as_ref().map(Arc::as_ptr))
        };
        pace(self) == pace(other)
    }
}

impl FromIterator<(NamespaceId, Backing)> for Backings {
    fn from_iter<I: IntoIterator<Item = (NamespaceId, Backing)>>(backings: I) -> Self {
        let all: ByNamespace<Backing> = backings.into_iter().collect();
        let is_paced = all.iter().any(|(_, backing)| backing.pace.is_some());
        let is_led = all.iter().any(|(_, backing)| backing.permit.is_some());
        Self { all, is_paced, is_led, hosts: BTreeMap::new() }
    }
}

// Implemented by hand, since `dyn Namespace` has no `Debug`.
impl std::fmt::Debug for Backings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.all.iter().map(|(nsid, backing)| (nsid, backing.id))).finish()
    }
}
