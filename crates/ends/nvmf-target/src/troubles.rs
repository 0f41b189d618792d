//! What the storage of each namespace said last when it failed: what a status tells of a disk's
//! health. This is looked at when an operation has failed, and by whoever asks; never for an I/O
//! that succeeds.

use farblock_proto::controller::SubsystemId;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

type TroublePlace = (SubsystemId, NamespaceId);

/// See the module's text. There are no more of them than namespaces.
#[derive(Default)]
pub(crate) struct Troubles(Mutex<HashMap<TroublePlace, (Instant, String)>>);

impl Troubles {
    pub(crate) fn note(&self, place: TroublePlace, sentence: String) {
        self.0.lock().expect("no holder panics").insert(place, (os::now(), sentence));
    }

    /// What stores it is another, or it is gone.
    pub(crate) fn forget(&self, place: TroublePlace) {
        self.0.lock().expect("no holder panics").remove(&place);
    }

    pub(crate) fn forget_subsystem(&self, subsystem: SubsystemId) {
        self.0.lock().expect("no holder panics").retain(|(of, _), _| *of != subsystem);
    }

    /// The last one, and how long ago.
    pub(crate) fn last(&self, place: TroublePlace) -> Option<(Duration, String)> {
        let all = self.0.lock().expect("no holder panics");
        let (at, sentence) = all.get(&place)?;
        Some((os::elapsed(*at), sentence.clone()))
    }
}
