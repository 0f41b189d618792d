//! The resources of one queue pair: its completion queue, registered memory, and requests in
//! flight. Both the connection attempt ([`dial`](super::dial)) and the later I/O use them.

use super::limits;
use farblock_proto::capsule::SlotId;
use farblock_verbs::{
    Access, Arming, Chunk, Completion, Operation, Pages, Payload, Provider, ProviderCq, ProviderId,
    ProviderMr, QpOptions, SendRequest, Slice, Staging, StagingSizes, Status, Verbs, VerbsError,
    receive_index,
};
use farblock_wire::sgl::KeyedBlock;
use farblock_wire::{Cqe, SglDescriptor, Sqe};
use slab::Slab;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// The maximum number of requests that one call posts.
const BATCH: usize = 16;

/// The descriptor of a command without data. Linux nvmet refuses a data block that is not keyed,
/// even if it is empty.
pub(super) const NO_DATA: SglDescriptor =
    SglDescriptor::keyed(KeyedBlock { address: 0, length_bytes: 0, key: 0, invalidate: false });

/// The reason why a queue pair has ended.
#[derive(Debug)]
pub(super) enum Failure {
    /// A request failed.
    Request(Status),
    /// A verb failed.
    Verb(VerbsError),
    /// The controller sent a message of this many bytes that is not a response.
    Message(usize),
    /// The controller invalidated this key. The host never requests that.
    Invalidated(u32),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(status) => write!(f, "an RDMA request failed: {status}"),
            Self::Verb(error) => error.fmt(f),
            Self::Invalidated(key) => {
                write!(f, "it invalidated the key {key:#x} without a request")
            }
            Self::Message(bytes) => {
                write!(f, "it sent a message of {bytes} bytes, which is not a response")
            }
        }
    }
}

impl From<VerbsError> for Failure {
    fn from(error: VerbsError) -> Self {
        Self::Verb(error)
    }
}

/// A command capsule to send.
struct Capsule {
    sqe: Sqe,
    /// The capsule with its data, in registered memory.
    chunk: Option<(Chunk, usize)>,
}

/// A queue pair. Fields are dropped in this order: the connection closes before its memory is
/// freed.
pub(super) struct QueuePair {
    pub(super) verbs: Provider,
    pub(super) id: ProviderId,
    cq: ProviderCq,
    responses: Arc<Pages>,
    responses_mr: ProviderMr,
    staging: Staging<Provider>,
    sends: Sends,
    arming: Arming,
    /// Receives to post again.
    used_receives: Vec<u16>,
}

/// The capsules to send, and the capsules in the send queue.
struct Sends {
    /// Capsules that wait for a free place in the send queue.
    outbox: VecDeque<Capsule>,
    /// Capsules in flight, whose memory the device may still read.
    flights: Slab<Option<Chunk>>,
    most: usize,
}

impl Sends {
    fn has_room(&self) -> bool {
        self.flights.len() < self.most
    }
}

impl QueuePair {
    /// Creates the queue pair of a connection whose route is known, with `entries` receives.
    pub(super) fn new(
        verbs: &Provider,
        id: &ProviderId,
        entries: u16,
        max_send_wr: u32,
    ) -> Result<Self, VerbsError> {
        // A separate domain: the controller of another queue cannot use this memory.
        let pd = verbs.alloc_pd(id)?;
        let most = (2 * u32::from(entries)).min(max_send_wr);
        let cq = verbs.create_cq(&pd, most + u32::from(entries))?;
        let options = QpOptions {
            pd: pd.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            max_send_wr: most,
            max_recv_wr: entries.into(),
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: Sqe::LEN as u32,
        };
        verbs.create_qp(id, options)?;
        let responses = Arc::new(Pages::new(usize::from(entries) * Cqe::LEN));
        let responses_mr = verbs.reg_mr(&pd, responses.clone(), Access::LOCAL_WRITE)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let sizes = StagingSizes {
            bytes: limits::STAGING_BYTES,
            slab_bytes: limits::STAGING_SLAB_BYTES,
            chunk_bytes: limits::STAGING_CHUNK_BYTES_MIN,
        };
        let mut queue = Self {
            verbs: verbs.clone(),
            id: id.clone(),
            cq,
            responses,
            responses_mr,
            staging: Staging::new(verbs.clone(), pd, access, sizes),
            sends: Sends { outbox: VecDeque::new(), flights: Slab::new(), most: most as usize },
            arming: Arming::default(),
            used_receives: (0..entries).collect(),
        };
        queue.post_receives()?;
        Ok(queue)
    }

    pub(super) fn cq(&self) -> &ProviderCq {
        &self.cq
    }

    /// A chunk of registered memory; `None` if all of it is in use.
    ///
    /// # Errors
    /// Fails if a transfer is larger than the host supports, for example because a controller
    /// reports a wrong length, or if the device registers no memory.
    pub(super) fn take(&mut self, bytes: usize) -> Result<Option<Chunk>, VerbsError> {
        if bytes > limits::STAGING_SLAB_BYTES {
            let error = std::io::Error::other(format!("a transfer of {bytes} bytes is too large"));
            return Err(VerbsError::Refused { verb: "a command", error });
        }
        self.staging.take(bytes)
    }

    pub(super) fn give(&mut self, chunk: Chunk) {
        self.staging.give(chunk);
    }

    pub(super) fn read(&self, chunk: &Chunk, out: &mut [u8]) {
        self.staging.read(chunk, out);
    }

    pub(super) fn write(&self, chunk: &Chunk, bytes: &[u8]) {
        self.staging.write(chunk, 0, bytes);
    }

    /// The descriptor of a chunk's first bytes, for the controller.
    pub(super) fn keyed(&self, chunk: &Chunk, bytes: u32) -> SglDescriptor {
        let (address, key) = self.staging.remote(chunk);
        SglDescriptor::keyed(KeyedBlock { address, length_bytes: bytes, key, invalidate: false })
    }

    /// Queues a command for [`Self::post`].
    pub(super) fn send(&mut self, slot: SlotId, sqe: &Sqe) {
        let sqe = Sqe { cid: slot.0.into(), ..*sqe };
        self.sends.outbox.push_back(Capsule { sqe, chunk: None });
    }

    /// Queues a command with its data behind it, in a chunk that has room for both.
    pub(super) fn send_with(&mut self, slot: SlotId, sqe: &Sqe, chunk: Chunk, data: &[u8]) {
        let sqe = Sqe { cid: slot.0.into(), ..*sqe };
        let mut entry = [0; Sqe::LEN];
        sqe.emit(&mut entry);
        self.staging.write(&chunk, 0, &entry);
        self.staging.write(&chunk, Sqe::LEN, data);
        self.sends.outbox.push_back(Capsule { sqe, chunk: Some((chunk, Sqe::LEN + data.len())) });
    }

    /// Posts receives, and as many queued commands as the send queue has room for.
    pub(super) fn post(&mut self) -> Result<(), Failure> {
        self.post_receives()?;
        while !self.sends.outbox.is_empty() && self.sends.has_room() {
            let mut batch: [Option<(u64, Local)>; BATCH] = [const { None }; BATCH];
            let mut count = 0;
            while count < BATCH
                && self.sends.has_room()
                && let Some(capsule) = self.sends.outbox.pop_front()
            {
                batch[count] = Some(self.begin(capsule));
                count += 1;
            }
            let requests = batch.each_ref().map(|entry| {
                entry.as_ref().map_or(SendRequest::new(0, Operation::Send, &[]), request)
            });
            let posted = self.verbs.post_send(&self.id, &requests[..count]);
            posted.map_err(|error| Failure::Verb(error.error))?;
        }
        Ok(())
    }

    fn begin(&mut self, capsule: Capsule) -> (u64, Local) {
        let (local, chunk) = match capsule.chunk {
            Some((chunk, bytes)) => {
                (Local::Registered([self.staging.slice(&chunk, bytes)]), Some(chunk))
            }
            None => {
                let mut entry = [0; Sqe::LEN];
                capsule.sqe.emit(&mut entry);
                (Local::Inline(entry), None)
            }
        };
        (self.sends.flights.insert(chunk) as u64, local)
    }

    fn post_receives(&mut self) -> Result<(), VerbsError> {
        let keys = self.verbs.keys(&self.responses_mr);
        let memory = |index: u16| keys.slice(usize::from(index) * Cqe::LEN, Cqe::LEN as u32);
        farblock_verbs::post_receives(&self.verbs, &self.id, &self.used_receives, memory)
            .map_err(|error| error.error)?;
        self.used_receives.clear();
        Ok(())
    }

    /// Adds the next responses to `found`. If there are none, arms the queue for the next
    /// completion.
    pub(super) fn poll(&mut self, found: &mut Vec<Cqe>) -> Result<(), Failure> {
        let mut out = [Completion::default(); BATCH];
        loop {
            let count = self.verbs.poll_cq(&self.cq, &mut out)?;
            for completion in &out[..count] {
                found.extend(self.done(completion)?);
            }
            if !self.arming.after(&self.verbs, &self.cq, count)? {
                return Ok(());
            }
        }
    }

    fn done(&mut self, completion: &Completion) -> Result<Option<Cqe>, Failure> {
        if !completion.status.is_success() {
            return Err(Failure::Request(completion.status));
        }
        let Some(index) = receive_index(completion.id) else {
            let chunk = self.sends.flights.try_remove(completion.id as usize).flatten();
            chunk.into_iter().for_each(|chunk| self.staging.give(chunk));
            return Ok(None);
        };
        if let Some(key) = completion.invalidated {
            return Err(Failure::Invalidated(key));
        }
        let bytes = completion.bytes as usize;
        let mut response = [0; Cqe::LEN];
        self.responses.read(usize::from(index) * Cqe::LEN, &mut response);
        self.used_receives.push(index);
        match Cqe::parse(&response) {
            Some(cqe) if bytes == Cqe::LEN => Ok(Some(cqe)),
            _ => Err(Failure::Message(bytes)),
        }
    }

    /// Disconnects the queue pair, which notifies the peer.
    pub(super) fn disconnect(&self) {
        if let Err(error) = self.verbs.disconnect(&self.id) {
            tracing::debug!("{error}");
        }
    }
}

/// The bytes of a request.
enum Local {
    Registered([Slice; 1]),
    Inline([u8; Sqe::LEN]),
}

fn request<'a>((id, local): &'a (u64, Local)) -> SendRequest<'a> {
    let payload = match local {
        Local::Registered(slices) => Payload::Registered(slices),
        Local::Inline(bytes) => Payload::Inline(bytes),
    };
    SendRequest { id: *id, operation: Operation::Send, payload, signaled: true, fence: false }
}
