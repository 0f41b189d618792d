//! What stores the namespaces of a subsystem.
//!
//! A number may be given to one namespace after another, so every store that is put behind a number
//! has a name of its own, which is never given again: a queue into it is found by that, and whoever
//! holds an old list cannot reach a new store by its number, nor the other way round.

use crate::by_namespace::ByNamespace;
use crate::losses::Losses;
use crate::pace::Pace;
use crate::shares::DEFAULT_WEIGHT;
use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The name of a store; never given out twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BackingId(pub(crate) u64);

/// What stores one namespace, for as long as it is shared under one number.
#[derive(Clone)]
pub(crate) struct Backing {
    pub(crate) id: BackingId,
    pub(crate) namespace: Arc<dyn Namespace>,
    /// What hosts may do with it in a second, if that is limited.
    pub(crate) pace: Option<Arc<Pace>>,
    /// Flushes of it that failed.
    pub(crate) losses: Arc<Losses>,
}

/// What stores a subsystem's namespaces at one moment: shared, never changed.
#[derive(Clone, Default)]
pub(crate) struct Backings {
    all: ByNamespace<Backing>,
    is_paced: bool,
    /// What was said of single hosts, by name.
    hosts: BTreeMap<String, HostTerms>,
}

/// What was said of a host.
#[derive(Clone)]
pub(crate) struct HostTerms {
    /// What it may do with all namespaces in a second, if that is limited.
    pub(crate) pace: Option<Arc<Pace>>,
    /// What it gets of a core that is full.
    pub(crate) weight: u32,
}

impl Backings {
    /// Whether any of them is limited.
    pub(crate) fn is_paced(&self) -> bool {
        self.is_paced
    }

    /// The same, and this was said of single hosts.
    pub(crate) fn with_hosts(mut self, hosts: BTreeMap<String, HostTerms>) -> Self {
        self.hosts = hosts;
        self
    }

    /// What a host may do in a second, if that is limited.
    pub(crate) fn pace_of(&self, host: &str) -> Option<&Arc<Pace>> {
        self.hosts.get(host)?.pace.as_ref()
    }

    /// What a host gets of a core that is full, beside others.
    pub(crate) fn weight_of(&self, host: &str) -> u32 {
        self.hosts.get(host).map_or(DEFAULT_WEIGHT, |terms| terms.weight)
    }

    pub(crate) fn find(&self, nsid: NamespaceId) -> Option<&Backing> {
        self.all.find(nsid)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(NamespaceId, Backing)> {
        self.all.iter()
    }

    /// Whether a number stands for the same store in both lists.
    pub(crate) fn agree(&self, other: &Self, nsid: NamespaceId) -> bool {
        let id = |backings: &Self| backings.find(nsid).map(|backing| backing.id);
        id(self) == id(other)
    }

    /// Whether a number has the same limits in both lists, spent as far.
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
        Self { all, is_paced, hosts: BTreeMap::new() }
    }
}

// By hand, since a namespace has no other description.
impl std::fmt::Debug for Backings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.all.iter().map(|(nsid, backing)| (nsid, backing.id))).finish()
    }
}
