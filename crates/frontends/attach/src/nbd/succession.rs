//! A client that leaves may leave requests behind: they are with the namespace, or in its socket.
//! One that comes after it must not find them carried out after its own.
//!
//! So a client that has agreed with the server asks every core for its *admission*, and nothing of
//! what it sends is looked at before each of them has granted it. A core first closes the
//! connections whose clients are gone, so that what they had sent and nobody has read is not begun,
//! and grants the admission when none of its clients that have left has an operation with the
//! namespace. Clients that are still there are not waited for: what they do at the same time has no
//! order.

use super::shared::{ExportShared, Message};
use farblock_frontend::ConnectionKey;
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a client waits for. Its connection has it; cores have only a weak reference, so that a
/// client that gives up is forgotten.
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

/// A core grants it; the last one tells the client's core.
fn grant(admission: &Weak<Admission>, shared: &ExportShared) {
    let Some(admission) = admission.upgrade() else { return };
    if admission.awaited.fetch_sub(1, Ordering::AcqRel) == 1 {
        shared.post(admission.core, Message::Admitted(admission.client));
    }
}

/// The admissions that a core has not granted, each with the connections that it waits for.
#[derive(Default)]
pub(super) struct Waiting(Vec<(Weak<Admission>, Vec<ConnectionKey>)>);

impl Waiting {
    /// Grants an admission when the connections are all [`spent`](Self::spent).
    pub(super) fn ask(
        &mut self,
        admission: Weak<Admission>,
        leaving: Vec<ConnectionKey>,
        shared: &ExportShared,
    ) {
        // Of those whose client gave up there is nothing to keep.
        self.0.retain(|(admission, _)| admission.strong_count() > 0);
        if leaving.is_empty() {
            return grant(&admission, shared);
        }
        self.0.push((admission, leaving));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A connection that was left has nothing with the namespace any more.
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
