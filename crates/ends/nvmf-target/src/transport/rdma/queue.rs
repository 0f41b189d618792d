//! The resources of one queue pair: its completion queue, receives, and requests in flight.

use super::staging::Staging;
use crate::door::ConnectionRequest;
use crate::limits;
use farblock_proto::capsule::SlotId;
use farblock_proto::ids::QueueId;
use farblock_proto::limits::KEYED_IN_CAPSULE_BYTES;
use farblock_proto::rdma::Admission;
use farblock_verbs::{
    Access, Arming, Chunk, Completion, ConnParam, Pages, PostError, Provider, ProviderCq,
    ProviderId, ProviderMr, QpOptions, SendRequest, Verbs, VerbsError, receive_index,
};
use farblock_wire::rdma::CmAccept;
use farblock_wire::{Cqe, Sqe};
use slab::Slab;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A request of the send queue that has not completed.
#[derive(Debug)]
pub(super) enum Flight {
    /// Data from the host.
    Read { slot: SlotId, offset: usize, bytes: usize, chunk: Chunk },
    /// A part of the data to the host.
    Write { chunk: Chunk, bytes: usize },
    /// A response, with the last part of its data, and the memory charged for the command.
    Response { data: Option<(Chunk, usize)>, held_bytes: usize },
}

impl Flight {
    /// Returns the number of send queue entries that the request uses.
    pub(super) fn entries(&self) -> u32 {
        match self {
            Self::Response { data: Some(_), .. } => 2,
            _ => 1,
        }
    }

    /// Returns the registered memory, and its number of bytes.
    pub(super) fn into_chunk(self) -> Option<(Chunk, usize)> {
        match self {
            Self::Read { chunk, bytes, .. } | Self::Write { chunk, bytes } => Some((chunk, bytes)),
            Self::Response { data, .. } => data,
        }
    }
}

/// A completed request.
pub(super) enum Done {
    /// A receive got a capsule: the receive's index, and the capsule's length in bytes.
    Received(u16, usize),
    /// A request of the send queue completed, perhaps with an error.
    Sent(Flight),
}

/// The registered memory of `count` consecutive receives, from index `first`.
struct Room {
    first: u16,
    count: u16,
    pages: Arc<Pages>,
    mr: ProviderMr,
}

/// A queue pair. Fields are dropped in this order, so the connection is closed before its memory is
/// freed.
pub(super) struct QueuePair {
    verbs: Provider,
    id: ProviderId,
    cq: ProviderCq,
    /// The bytes of a receive: a submission queue entry, and in-capsule data on I/O queues.
    capsule_bytes: usize,
    rooms: Vec<Room>,
    flights: Slab<Flight>,
    /// The send queue entries in use, and their maximum number.
    used: u32,
    most: u32,
    arming: Arming,
}

/// Returns the bytes of a receive. Only I/O queues have in-capsule data.
fn capsule_bytes(queue: QueueId) -> usize {
    Sqe::LEN + if queue == QueueId(0) { 0 } else { KEYED_IN_CAPSULE_BYTES as usize }
}

impl QueuePair {
    /// Creates the queue pair of a connection request, with one receive. Does not accept the
    /// request yet.
    pub(super) fn new(
        request: &ConnectionRequest,
        staging: &Rc<RefCell<Staging>>,
    ) -> Result<Self, VerbsError> {
        let (verbs, admission) = (request.verbs.clone(), &request.admission);
        let pd = staging.borrow().pd().clone();
        let receives = u32::from(admission.entries);
        // Each command needs a READ and a response, or WRITEs and a response. A response may
        // complete only after the host's next command has arrived.
        let most = (2 * receives + 8).min(request.device.max_qp_wr);
        let cq = verbs.create_cq(&pd, most + receives)?;
        let options = QpOptions {
            pd,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            max_send_wr: most,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: Cqe::LEN as u32,
        };
        verbs.create_qp(&request.id, options)?;
        let mut queue = Self {
            id: request.id.clone(),
            verbs,
            cq,
            capsule_bytes: capsule_bytes(admission.announced.queue),
            rooms: Vec::new(),
            flights: Slab::new(),
            used: 0,
            most,
            arming: Arming::default(),
        };
        queue.add_receives(staging, 1)?;
        Ok(queue)
    }

    pub(super) fn cq(&self) -> &ProviderCq {
        &self.cq
    }

    /// Accepts the connection request.
    pub(super) fn accept(&self, request: &ConnectionRequest) -> Result<(), VerbsError> {
        let mut private_data = vec![0; CmAccept::LEN];
        request.admission.answer().emit(&mut private_data);
        let param = ConnParam {
            private_data,
            responder_resources: 0,
            initiator_depth: request.admission.reads,
            ..ConnParam::default()
        };
        self.verbs.accept(&self.id, &param)
    }

    /// Returns the bytes of the receives that must be added to have `count`.
    pub(super) fn missing_bytes(&self, count: u16) -> usize {
        let there = self.rooms.last().map_or(0, |room| room.first + room.count);
        usize::from(count.saturating_sub(there)) * self.capsule_bytes
    }

    /// Returns the bytes of a queue pair's memory: before Connect, and the maximum.
    pub(super) fn sizes(admission: &Admission) -> (usize, usize) {
        let entries = usize::from(admission.entries);
        let capsule_bytes = capsule_bytes(admission.announced.queue);
        let fixed = entries * limits::RDMA_ENTRY_BYTES;
        (fixed + capsule_bytes, fixed + entries * capsule_bytes)
    }

    /// Adds receives until the queue has `count`, and posts them.
    pub(super) fn add_receives(
        &mut self,
        staging: &Rc<RefCell<Staging>>,
        count: u16,
    ) -> Result<(), VerbsError> {
        let first = self.rooms.last().map_or(0, |room| room.first + room.count);
        let Some(more) = count.checked_sub(first).filter(|more| *more > 0) else { return Ok(()) };
        let pages = Arc::new(Pages::new(usize::from(more) * self.capsule_bytes));
        let access = Access::LOCAL_WRITE;
        let mr = self.verbs.reg_mr(staging.borrow().pd(), pages.clone(), access)?;
        self.rooms.push(Room { first, count: more, pages, mr });
        let indexes: Vec<u16> = (first..count).collect();
        self.post_receives(&indexes).map_err(|error| error.error)
    }

    /// Posts these receives again.
    pub(super) fn post_receives(&self, indexes: &[u16]) -> Result<(), PostError> {
        farblock_verbs::post_receives(&self.verbs, &self.id, indexes, |index| {
            let (room, offset) = self.place(index);
            self.verbs.keys(&room.mr).slice(offset, self.capsule_bytes as u32)
        })
    }

    fn place(&self, index: u16) -> (&Room, usize) {
        let is_in = |room: &&Room| index >= room.first && index - room.first < room.count;
        let room = self.rooms.iter().find(is_in).expect("a receive has its memory");
        (room, usize::from(index - room.first) * self.capsule_bytes)
    }

    /// Copies bytes out of a completed receive.
    pub(super) fn read(&self, index: u16, offset: usize, out: &mut [u8]) {
        let (room, start) = self.place(index);
        assert!(offset + out.len() <= self.capsule_bytes, "within the receive");
        room.pages.read(start + offset, out);
    }

    /// Returns whether the send queue has room for a request with this many entries.
    pub(super) fn has_room(&self, entries: u32) -> bool {
        self.used + entries <= self.most
    }

    /// Notes a request that is about to be posted, and returns its identifier.
    pub(super) fn begin(&mut self, flight: Flight) -> u64 {
        self.used += flight.entries();
        self.flights.insert(flight) as u64
    }

    /// Posts requests that [`Self::begin`] has noted.
    pub(super) fn post(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.verbs.post_send(&self.id, requests)
    }

    /// Returns whether no request of the send queue is in flight.
    pub(super) fn is_quiet(&self) -> bool {
        self.used == 0
    }

    /// Closes the connection, so that every request in flight completes with an error. Returns
    /// false if the disconnect fails: the requests may then never complete.
    pub(super) fn disconnect(&self) -> bool {
        self.verbs.disconnect(&self.id).is_ok()
    }

    /// Takes all requests in flight. They never complete, because the caller destroys the queue
    /// pair.
    pub(super) fn take_flights(&mut self) -> impl Iterator<Item = Flight> + use<> {
        self.used = 0;
        std::mem::take(&mut self.flights).into_iter().map(|(_, flight)| flight)
    }

    /// Moves completions into `out`. If there are none, arms the completion queue and polls again.
    pub(super) fn poll(&mut self, out: &mut [Completion]) -> Result<usize, VerbsError> {
        loop {
            let count = self.verbs.poll_cq(&self.cq, out)?;
            let may_have_more = self.arming.after(&self.verbs, &self.cq, count)?;
            if count > 0 || !may_have_more {
                return Ok(count);
            }
        }
    }

    /// Returns the completed request; `None` for a failed receive, and for the second completion of
    /// a response whose first request failed.
    pub(super) fn done(&mut self, completion: &Completion) -> Option<Done> {
        if let Some(index) = receive_index(completion.id) {
            let bytes = completion.bytes as usize;
            return completion.status.is_success().then_some(Done::Received(index, bytes));
        }
        // Both requests of a response have its identifier, and the first may fail.
        let flight = self.flights.try_remove(completion.id as usize)?;
        self.used -= flight.entries();
        Some(Done::Sent(flight))
    }
}
