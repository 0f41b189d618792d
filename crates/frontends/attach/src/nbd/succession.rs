//! A client that leaves may leave requests behind, in the namespace or in its socket. A later
//! client must not see them executed after its own requests.
//!
//! So a client that has finished the negotiation asks every core for its *admission*, and the
//! server reads none of its requests before each core has granted it. A core first closes the
//! connections of dead clients, so that requests they had sent and the server has not read never
//! start. It grants the admission when none of its clients that left has an operation in the
//! namespace. It does not wait for connected clients: requests at the same time have no order.

use super::shared::{ExportShared, Message};
use farblock_frontend::ConnectionKey;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The admission that a client waits for. Its connection owns it. Cores only have a weak reference,
/// so that a client that gives up is forgotten.
#[derive(Debug)]
pub(super) struct Admission {
    core: usize,
    client: ConnectionKey,
    /// Cores that have not granted it.
    awaited: AtomicUsize,
}

impl Admission {
    pub(super) fn new(core: usize, client: ConnectionKey, cores: usize) -> Admission {
        Admission { core, client, awaited: AtomicUsize::new(cores) }
    }

    pub(super) fn is_granted(&self) -> bool {
        self.awaited.load(Ordering::Acquire) == 0
    }
}

/// Grants the admission for one core; the last grant notifies the client's core.
fn grant(admission: &Weak<Admission>, shared: &ExportShared) {
    let Some(admission) = admission.upgrade() else { return };
    if admission.awaited.fetch_sub(1, Ordering::AcqRel) == 1 {
        shared.post(admission.core, Message::Admitted(admission.client));
    }
}

/// The admissions that a core has not granted, each with the connections it waits for.
#[derive(Default)]
pub(super) struct Waiting(Vec<(Weak<Admission>, Vec<ConnectionKey>)>);

impl Waiting {
    /// Grants an admission once the connections are all [`spent`](Self::spent).
    pub(super) fn ask(
        &mut self,
        admission: Weak<Admission>,
        leaving: Vec<ConnectionKey>,
        shared: &ExportShared,
    ) {
        // Drop the admissions of clients that gave up.
        self.0.retain(|(admission, _)| admission.strong_count() > 0);
        if leaving.is_empty() {
            return grant(&admission, shared);
        }
        self.0.push((admission, leaving));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A connection whose client left has no operation in the namespace any more.
    pub(super) fn spent(&mut self, key: ConnectionKey, shared: &ExportShared) {
        self.0.retain_mut(|(admission, leaving)| {
            leaving.retain(|other| *other != key);
            if leaving.is_empty() {
                grant(admission, shared);
            }
            !leaving.is_empty()
        });
    }
}
