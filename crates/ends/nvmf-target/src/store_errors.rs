//! The last error text of each namespace's store. Reports show it as the reason for a disk's state.
//! A core writes it when an operation fails; successful operations do not touch it.

use farblock_proto::controller::SubsystemId;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

type StorePlace = (SubsystemId, NamespaceId);

/// The errors by store, with at most one entry per namespace.
#[derive(Default)]
pub(crate) struct StoreErrors(Mutex<HashMap<StorePlace, (Instant, String)>>);

impl StoreErrors {
    pub(crate) fn note(&self, place: StorePlace, sentence: String) {
        self.0.lock().expect("no holder panics").insert(place, (os::now(), sentence));
    }

    /// Removes the entry of a namespace that was removed or has a new store.
    pub(crate) fn forget(&self, place: StorePlace) {
        self.0.lock().expect("no holder panics").remove(&place);
    }

    pub(crate) fn forget_subsystem(&self, subsystem: SubsystemId) {
        self.0.lock().expect("no holder panics").retain(|(of, _), _| *of != subsystem);
    }

    pub(crate) fn last(&self, place: StorePlace) -> Option<(Duration, String)> {
        let all = self.0.lock().expect("no holder panics");
        let (at, sentence) = all.get(&place)?;
        Some((os::elapsed(*at), sentence.clone()))
    }
}
