//! The state of a network in memory, protected by one lock.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use super::node::IdHandle;
use crate::error::VerbsError;
use crate::limits::RNR_RETRY_FOREVER;
use crate::memory::{Memory, Slice};
use crate::request::{Access, Completion, Operation, Status};
use crate::verbs::{CmEventType, ConnParam, Waker};

/// The key of an object in its table.
pub(super) type Key = u32;

/// All objects of a network.
#[derive(Default)]
pub(super) struct Objects {
    last_key: Key,
    pub(super) nodes: BTreeMap<IpAddr, NodeState>,
    pub(super) channels: BTreeMap<Key, ChannelState>,
    pub(super) ids: BTreeMap<Key, IdState>,
    pub(super) regions: BTreeMap<Key, Region>,
    pub(super) cqs: BTreeMap<Key, CqState>,
    pub(super) srqs: BTreeMap<Key, SrqState>,
    /// The wakers to call after the lock is released.
    pub(super) wakers: Vec<Waker>,
}

/// A machine (node) of the network.
#[derive(Default)]
pub(super) struct NodeState {
    /// True if no message leaves or reaches the node.
    pub(super) is_unplugged: bool,
    /// True if the node has no device. Programs then cannot listen.
    pub(super) is_removed: bool,
    /// The number of attempts to resolve this address that will time out.
    pub(super) unresolved: u32,
    pub(super) calls: Calls,
}

/// The numbers of calls by a node's programs, to measure the cost of an I/O. On a real device, each
/// post writes to a doorbell register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls {
    /// Calls of [`post_send`](crate::Verbs::post_send).
    pub post_send: u64,
    /// Requests in these calls.
    pub sends: u64,
    /// Calls of [`post_recv`](crate::Verbs::post_recv) and
    /// [`post_srq_recv`](crate::Verbs::post_srq_recv).
    pub post_recv: u64,
    /// Completions that polls have returned.
    pub completions: u64,
    /// Calls of [`poll_cq`](crate::Verbs::poll_cq).
    pub poll_cq: u64,
    /// Calls of [`req_notify_cq`](crate::Verbs::req_notify_cq).
    pub req_notify_cq: u64,
    /// Calls of [`get_cq_event`](crate::Verbs::get_cq_event).
    pub get_cq_event: u64,
    /// Calls of [`reg_mr`](crate::Verbs::reg_mr).
    pub reg_mr: u64,
}

pub(super) struct ChannelState {
    pub(super) events: VecDeque<Event>,
    pub(super) waker: Waker,
}

/// An event that waits in its channel.
pub(super) struct Event {
    pub(super) id: Key,
    pub(super) listener: Option<Key>,
    pub(super) event: CmEventType,
    pub(super) status: i32,
    pub(super) param: ConnParam,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Idle,
    Listening {
        backlog: u32,
    },
    AddrResolved,
    RouteResolved,
    /// The end that connects waits for the answer.
    Connecting,
    /// The program has not answered the connection request.
    Requested {
        listener: Key,
    },
    Established,
    /// The peer has disconnected. This end has not confirmed this yet.
    PeerClosed,
    /// This end has disconnected. The peer has not confirmed this yet.
    Disconnecting,
    Closed,
}

/// A connection or a listener.
pub(super) struct IdState {
    pub(super) channel: Key,
    pub(super) local: SocketAddr,
    pub(super) remote: Option<SocketAddr>,
    pub(super) stage: Stage,
    pub(super) peer: Option<Key>,
    /// The parameters in the connection request.
    pub(super) param: ConnParam,
    pub(super) qp: Option<Qp>,
    pub(super) handle: Weak<IdHandle>,
}

/// A queue pair.
pub(super) struct Qp {
    pub(super) pd: Key,
    pub(super) send_cq: Key,
    pub(super) recv_cq: Key,
    pub(super) srq: Option<Key>,
    pub(super) limits: QpLimits,
    pub(super) state: QpState,
    pub(super) rnr_retry_count: u8,
    /// Requests that have not started.
    pub(super) sends: VecDeque<Send>,
    pub(super) receives: VecDeque<Receive>,
    /// The number of requests posted to the send queue so far.
    pub(super) posted: u64,
    /// The number of requests whose entries in the send queue are free again.
    pub(super) retired: u64,
    /// The number of receives that occupy entries: posted, or completed but not polled.
    pub(super) receives_held: u32,
}

/// The sizes of a queue pair.
#[derive(Clone, Copy)]
pub(super) struct QpLimits {
    pub(super) send_wr: u32,
    pub(super) recv_wr: u32,
    pub(super) send_sge: u32,
    pub(super) recv_sge: u32,
    pub(super) inline_bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QpState {
    /// Not connected: receives may be posted.
    Init,
    Ready,
    Error,
}

/// A posted request of the send queue.
pub(super) struct Send {
    pub(super) id: u64,
    pub(super) operation: Operation,
    pub(super) source: Local,
    pub(super) signaled: bool,
    /// The request's number among all requests of the queue, from 0.
    pub(super) position: u64,
}

/// The local bytes of a request.
pub(super) enum Local {
    Slices(Vec<Slice>),
    Inline(Vec<u8>),
}

pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) slices: Vec<Slice>,
}

/// A registration of memory.
pub(super) struct Region {
    pub(super) pd: Key,
    pub(super) access: Access,
    pub(super) memory: Arc<dyn Memory>,
    /// True after a peer's SEND with Invalidate has invalidated the key.
    pub(super) is_invalid: bool,
}

/// A completion queue.
pub(super) struct CqState {
    pub(super) entries: VecDeque<Entry>,
    pub(super) capacity: usize,
    pub(super) is_armed: bool,
    pub(super) events: u32,
    pub(super) has_overflowed: bool,
    pub(super) waker: Waker,
}

/// A completion, and the queue entries that its poll frees.
pub(super) struct Entry {
    pub(super) completion: Completion,
    pub(super) frees: Frees,
}

/// The queue entries that become free when the program polls a completion.
pub(super) enum Frees {
    /// The entries of the send queue up to this position.
    Sends { id: Key, position: u64 },
    /// An entry of the queue pair's own receive queue.
    Receive { id: Key },
    /// An entry of a shared receive queue.
    Shared { srq: Key },
}

/// A shared receive queue.
pub(super) struct SrqState {
    pub(super) pd: Key,
    pub(super) capacity: u32,
    pub(super) max_sge: u32,
    pub(super) receives: VecDeque<Receive>,
    /// The number of receives that occupy entries of the queue.
    pub(super) held: u32,
    /// Connections whose message waits for a receive, in order.
    pub(super) waiting: VecDeque<Key>,
}

impl Objects {
    /// Returns a key that no object has had before.
    pub(super) fn next_key(&mut self) -> Key {
        self.last_key += 1;
        self.last_key
    }

    pub(super) fn id(&mut self, key: Key) -> Option<&mut IdState> {
        self.ids.get_mut(&key)
    }

    pub(super) fn qp(&mut self, key: Key) -> Option<&mut Qp> {
        self.ids.get_mut(&key)?.qp.as_mut()
    }

    /// Whether the nodes at both addresses can be reached.
    pub(super) fn is_reachable(&self, from: IpAddr, to: IpAddr) -> bool {
        [from, to].iter().all(|ip| self.nodes.get(ip).is_some_and(|node| !node.is_unplugged))
    }

    /// Puts an event into the connection's channel.
    pub(super) fn report(&mut self, event: Event) {
        let Some(channel) = self.ids.get(&event.id).map(|id| id.channel) else { return };
        let Some(channel) = self.channels.get_mut(&channel) else { return };
        channel.events.push_back(event);
        self.wakers.push(channel.waker.clone());
    }

    /// Adds a completion, and an event if the queue is armed.
    pub(super) fn complete(&mut self, cq: Key, entry: Entry) {
        let Some(cq) = self.cqs.get_mut(&cq) else { return };
        if cq.entries.len() == cq.capacity {
            cq.has_overflowed = true;
            return;
        }
        cq.entries.push_back(entry);
        if std::mem::take(&mut cq.is_armed) {
            cq.events += 1;
            self.wakers.push(cq.waker.clone());
        }
    }

    /// Moves completions to `out`, and frees the queue entries of their requests.
    pub(super) fn poll(&mut self, cq: Key, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let Some(cq) = self.cqs.get_mut(&cq).filter(|cq| !cq.has_overflowed) else {
            return Err(VerbsError::refused("ibv_poll_cq", io::ErrorKind::Other));
        };
        let count = cq.entries.len().min(out.len());
        let entries: Vec<Entry> = cq.entries.drain(..count).collect();
        for (entry, out) in entries.into_iter().zip(out) {
            *out = entry.completion;
            match entry.frees {
                Frees::Sends { id, position } => {
                    if let Some(qp) = self.qp(id) {
                        qp.retired = position + 1;
                    }
                }
                Frees::Receive { id } => {
                    if let Some(qp) = self.qp(id) {
                        qp.receives_held -= 1;
                    }
                }
                Frees::Shared { srq } => {
                    if let Some(srq) = self.srqs.get_mut(&srq) {
                        srq.held -= 1;
                    }
                }
            }
        }
        Ok(count)
    }

    /// Returns the bytes of local slices. Fails if a key or a range is wrong.
    pub(super) fn gather(&self, pd: Key, slices: &[Slice]) -> Result<Vec<u8>, Status> {
        let mut bytes = Vec::new();
        for slice in slices.iter().filter(|slice| slice.bytes > 0) {
            let (region, offset) = self
                .region(pd, slice.lkey, slice.address, slice.bytes as usize, Access::LOCAL_READ)
                .ok_or(Status::LOC_PROT_ERR)?;
            region.read(offset, slice.bytes as usize, &mut bytes);
        }
        Ok(bytes)
    }

    /// Writes bytes to local slices. Fails if a key, a range or an access right is wrong.
    pub(super) fn scatter(&self, pd: Key, slices: &[Slice], bytes: &[u8]) -> Result<(), Status> {
        let room: usize = slices.iter().map(|slice| slice.bytes as usize).sum();
        if bytes.len() > room {
            return Err(Status::LOC_LEN_ERR);
        }
        let mut rest = bytes;
        for slice in slices {
            let (now, later) = rest.split_at(rest.len().min(slice.bytes as usize));
            if now.is_empty() {
                break;
            }
            let (region, offset) = self
                .region(pd, slice.lkey, slice.address, slice.bytes as usize, Access::LOCAL_WRITE)
                .ok_or(Status::LOC_PROT_ERR)?;
            region.write(offset, now);
            rest = later;
        }
        Ok(())
    }

    /// Returns the registration with this key, and the offset of the range in it. Fails if the
    /// range, the protection domain or the access is wrong.
    pub(super) fn region(
        &self,
        pd: Key,
        key: Key,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Option<(&Region, usize)> {
        let region = self.regions.get(&key)?;
        let start = region.memory.address().as_ptr() as u64;
        let offset = usize::try_from(address.checked_sub(start)?).ok()?;
        let end = offset.checked_add(bytes)?;
        let fits = region.pd == pd
            && !region.is_invalid
            && region.access.permits(access)
            && end <= region.memory.bytes();
        fits.then_some((region, offset))
    }
}

impl Region {
    /// Appends the bytes of a range to `out`. The range must be inside the memory.
    pub(super) fn read(&self, offset: usize, bytes: usize, out: &mut Vec<u8>) {
        assert!(offset + bytes <= self.memory.bytes(), "`region` has checked the range");
        let before = out.len();
        out.resize(before + bytes, 0);
        // SAFETY: the range is inside memory that `Memory` promises to be readable, and `out` is
        // separate memory. The owner has no reference that conflicts with this access.
        unsafe {
            let from = self.memory.address().as_ptr().add(offset);
            from.copy_to_nonoverlapping(out[before..].as_mut_ptr(), bytes);
        }
    }

    /// Writes bytes to the memory at `offset`. The bytes must fit in the memory.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.memory.bytes(), "`region` has checked the range");
        // SAFETY: as in `read`, and the memory is writable.
        unsafe {
            let to = self.memory.address().as_ptr().add(offset);
            to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }
}

impl Qp {
    pub(super) fn new(
        (pd, send_cq, recv_cq, srq): (Key, Key, Key, Option<Key>),
        limits: QpLimits,
    ) -> Self {
        Self {
            pd,
            send_cq,
            recv_cq,
            srq,
            limits,
            state: QpState::Init,
            rnr_retry_count: RNR_RETRY_FOREVER,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            posted: 0,
            retired: 0,
            receives_held: 0,
        }
    }
}
