//! What stores the namespaces of a subsystem.
//!
//! A number may be given to one namespace after another, so every store that is put behind a number
//! has a name of its own, which is never given again: a queue into it is found by that, and whoever
//! holds an old list cannot reach a new store by its number, nor the other way round.

use farblock_block::Namespace;
use farblock_proto::ids::NamespaceId;
use std::sync::Arc;

/// The name of a store; never given out twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BackingId(pub(crate) u64);

/// What stores one namespace, for as long as it is shared under one number.
#[derive(Clone)]
pub(crate) struct Backing {
    pub(crate) id: BackingId,
    pub(crate) namespace: Arc<dyn Namespace>,
}

/// What stores a subsystem's namespaces at one moment: shared, never changed.
#[derive(Clone, Default)]
pub(crate) struct Backings(Vec<(NamespaceId, Backing)>);

impl Backings {
    pub(crate) fn find(&self, nsid: NamespaceId) -> Option<&Backing> {
        self.0.iter().find(|(id, _)| *id == nsid).map(|(_, backing)| backing)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(NamespaceId, Backing)> {
        self.0.iter()
    }

    /// Whether a number stands for the same store in both lists.
    pub(crate) fn agree(&self, other: &Self, nsid: NamespaceId) -> bool {
        let id = |backings: &Self| backings.find(nsid).map(|backing| backing.id);
        id(self) == id(other)
    }
}

impl FromIterator<(NamespaceId, Backing)> for Backings {
    fn from_iter<I: IntoIterator<Item = (NamespaceId, Backing)>>(backings: I) -> Self {
        Self(backings.into_iter().collect())
    }
}

// By hand, since a namespace has no other description.
impl std::fmt::Debug for Backings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(nsid, backing)| (nsid, backing.id))).finish()
    }
}
