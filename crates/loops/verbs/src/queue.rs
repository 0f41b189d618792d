//! Functions for the queues of a connection, which both ends use.

use crate::error::{PostError, VerbsError};
use crate::memory::Slice;
use crate::request::ReceiveRequest;
use crate::verbs::Verbs;

/// The number of receives that one call of the library posts.
const BATCH: usize = 16;
/// The bit that marks the identifier of a receive. The other bits are the receive's index.
const RECEIVE: u64 = 1 << 63;

/// Returns the index of the receive with this identifier. `None` if [`post_receives`] did not make
/// the identifier, so that it belongs to a request of the send queue.
#[must_use]
pub fn receive_index(id: u64) -> Option<u16> {
    (id & RECEIVE != 0).then_some((id & !RECEIVE) as u16)
}

/// Posts the receives with these indexes. `memory` returns the memory of a receive.
///
/// # Errors
/// Fails like [`Verbs::post_recv`]. The receives of earlier batches stay posted.
pub fn post_receives<V: Verbs>(
    verbs: &V,
    id: &V::Id,
    indexes: &[u16],
    memory: impl Fn(u16) -> Option<Slice>,
) -> Result<(), PostError> {
    for indexes in indexes.chunks(BATCH) {
        let mut slices = [None; BATCH];
        for (slice, index) in slices.iter_mut().zip(indexes) {
            *slice = memory(*index);
        }
        let mut requests = [ReceiveRequest { id: 0, slices: &[] }; BATCH];
        for ((request, index), slice) in requests.iter_mut().zip(indexes).zip(&slices) {
            *request = ReceiveRequest { id: RECEIVE | u64::from(*index), slices: slice.as_slice() };
        }
        verbs.post_recv(id, &requests[..indexes.len()])?;
    }
    Ok(())
}

/// Whether a completion queue is armed, that is, will report its next completion by an event.
///
/// An armed queue reports one event, for its next completion. The event may become readable later
/// than the completion. It then wakes the event loop once without work.
#[derive(Debug, Default)]
pub struct Arming {
    is_armed: bool,
    /// Whether the last event's completions arrived before the event was readable.
    is_late: bool,
}

impl Arming {
    /// Call this after a poll that returned `count` completions. If there were completions, takes
    /// the event of an armed queue. If there were none, arms the queue. Returns false if the queue
    /// was empty and already armed: the caller may wait for its event. Otherwise the caller must
    /// poll again.
    ///
    /// # Errors
    /// Returns the error of the library.
    pub fn after<V: Verbs>(
        &mut self,
        verbs: &V,
        cq: &V::Cq,
        count: usize,
    ) -> Result<bool, VerbsError> {
        if count > 0 {
            if std::mem::take(&mut self.is_armed) {
                // There is one event, so a second call would only report that there are no more.
                let has_event = verbs.get_cq_event(cq)?;
                while has_event && self.is_late && verbs.get_cq_event(cq)? {}
                self.is_late = !has_event;
            }
            return Ok(true);
        }
        if self.is_armed {
            return Ok(false);
        }
        verbs.req_notify_cq(cq)?;
        self.is_armed = true;
        Ok(true)
    }
}
