//! The order between the requests of disconnected clients and of later clients. When a client
//! disconnects, some of its requests may still be in the namespace or unread in its socket. The
//! server must not execute them after requests of a later client.
//!
//! So after a client's negotiation the server asks every core for the client's *admission*. The
//! server reads no requests of the client until every core has granted the admission. A core first
//! closes the connections of disconnected clients, so that their unread requests never start. It
//! grants the admission when the namespace has no operation of its disconnected clients. The core
//! does not wait for connected clients, because concurrent requests have no order.

use super::shared::{ExportShared, Message};
use farblock_frontend::ConnectionKey;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The admission that a client waits for. The client's connection owns it. The cores have weak
/// references, so an admission disappears when its client disconnects.
#[derive(Debug)]
pub(super) struct Admission {
    core: usize,
    client: ConnectionKey,
    /// The number of cores that have not granted the admission.
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

/// Grants the admission for one core. The last grant notifies the client's core.
fn grant(admission: &Weak<Admission>, shared: &ExportShared) {
    let Some(admission) = admission.upgrade() else { return };
    if admission.awaited.fetch_sub(1, Ordering::AcqRel) == 1 {
        shared.post(admission.core, Message::Admitted(admission.client));
    }
}

/// The admissions that a core has not granted, each with the disconnected connections for which it
/// waits.
#[derive(Default)]
pub(super) struct Waiting(Vec<(Weak<Admission>, Vec<ConnectionKey>)>);

impl Waiting {
    /// Grants an admission once all connections in `leaving` are [`spent`](Self::spent).
    pub(super) fn ask(
        &mut self,
        admission: Weak<Admission>,
        leaving: Vec<ConnectionKey>,
        shared: &ExportShared,
    ) {
        // Forget the admissions of clients that have disconnected.
        self.0.retain(|(admission, _)| admission.strong_count() > 0);
        if leaving.is_empty() {
            return grant(&admission, shared);
        }
        self.0.push((admission, leaving));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records that the namespace has no more operations of a disconnected client.
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
