//! Checks that legs which are remote namespaces do not contain the mirror itself.

use std::sync::Arc;

use farblock_block::{Change, Namespace, Part};

use super::shared::{Shared, lock};

impl Part for Shared {
    fn contents(&self) -> Vec<[u8; 16]> {
        self.leg_parts().iter().flat_map(|part| part.contents()).collect()
    }

    fn add_whole(&self, uuid: [u8; 16]) {
        lock(&self.wholes).push(uuid);
        self.leg_parts().iter().for_each(|part| part.add_whole(uuid));
    }
}

impl Shared {
    fn leg_parts(&self) -> Vec<Arc<dyn Part>> {
        let legs = self.legs.iter().filter_map(|leg| leg.namespace());
        legs.flat_map(|leg| leg.parts()).collect()
    }

    /// Tells the remote parts of a newly opened leg which namespaces contain this mirror.
    pub(super) fn nest(&self, leg: &dyn Namespace) {
        let parts = leg.parts();
        if parts.is_empty() {
            return;
        }
        let wholes = lock(&self.wholes).clone();
        for part in &parts {
            wholes.iter().for_each(|uuid| part.add_whole(*uuid));
        }
        self.changes.tell(Change::Parts);
    }
}
