//! The fabric's networks and nodes, and the handles of their objects.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::state::{
    Calls, ChannelState, CqState, Event, Key, Objects, Qp, QpLimits, Region, SrqState, Stage,
};
use crate::error::{PostError, VerbsError};
use crate::memory::{Keys, Memory};
use crate::request::{Access, Completion, ReceiveRequest, SendRequest};
use crate::verbs::{
    CmEvent, CmEventType, ConnParam, Device, Port, QpOptions, Source, Verbs, Waker,
};

/// Limits that every node's device reports.
const MAX_QP_WR: u32 = 16384;
const MAX_SGE: u32 = 32;
const MAX_CQE: u32 = 1 << 22;
const MAX_READS: u8 = 16;

/// A network in memory, to which nodes belong.
#[derive(Clone, Default)]
pub struct Network(Arc<Mutex<Objects>>);

impl Network {
    /// A network without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node with one device, which has this address.
    #[must_use]
    pub fn node(&self, address: IpAddr) -> Node {
        self.with(|objects| {
            let node = objects.nodes.entry(address).or_default();
            (node.is_unplugged, node.is_removed) = (false, false);
        });
        Node { network: self.clone(), address }
    }

    /// Lets the next `count` attempts to resolve an address time out, as if the node's answers were
    /// lost.
    pub fn lose_answers(&self, address: IpAddr, count: u32) {
        self.with(|objects| objects.nodes.entry(address).or_default().unresolved = count);
    }

    /// Unplugs a node's cable. Neither end gets an event, but messages from and to the node fail
    /// with [`RETRY_EXC_ERR`](crate::Status::RETRY_EXC_ERR).
    pub fn unplug(&self, address: IpAddr) {
        self.with(|objects| {
            objects.nodes.entry(address).or_default().is_unplugged = true;
            let all: Vec<Key> = objects.ids.keys().copied().collect();
            for key in all {
                objects.run(key);
            }
        });
    }

    /// Removes a node's device, as an administrator or a failing driver does: every connection and
    /// listener gets [`DeviceRemoval`](CmEventType::DeviceRemoval), and no message leaves or
    /// reaches the node. [`Self::node`] adds a device again.
    pub fn remove_device(&self, address: IpAddr) {
        self.unplug(address);
        self.with(|objects| {
            objects.nodes.entry(address).or_default().is_removed = true;
            objects.announce(address, CmEventType::DeviceRemoval);
        });
    }

    /// Moves a node's address to another device, as bonding does: every connection and listener
    /// gets [`AddrChange`](CmEventType::AddrChange). The listeners then receive no more requests.
    pub fn change_address(&self, address: IpAddr) {
        self.with(|objects| objects.announce(address, CmEventType::AddrChange));
    }

    /// The number of bytes that all programs of the network have registered. A program without
    /// connections should have none.
    #[must_use]
    pub fn registered_bytes(&self) -> usize {
        self.with(|objects| objects.regions.values().map(|region| region.memory.bytes()).sum())
    }

    /// Calls a function under the lock. Then calls the wakers of the events that it caused.
    fn with<R>(&self, call: impl FnOnce(&mut Objects) -> R) -> R {
        let (result, wakers) = {
            let mut objects = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            (call(&mut objects), std::mem::take(&mut objects.wakers))
        };
        for waker in wakers {
            waker.wake();
        }
        result
    }
}

/// A machine of the network: the implementation of [`Verbs`].
#[derive(Clone)]
pub struct Node {
    network: Network,
    address: IpAddr,
}

/// A handle of an object. When the last handle is dropped, the network removes the object.
pub struct Owned {
    network: Network,
    key: Key,
    forget: fn(&mut Objects, Key),
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.network.with(|objects| (self.forget)(objects, self.key));
    }
}

/// The handle of an object that has events, with the waker for them.
#[derive(Clone)]
pub struct Wakes {
    owned: Arc<Owned>,
    waker: Waker,
}

/// A connection's handle.
pub(super) struct IdHandle {
    owned: Owned,
    /// The protection domain and the queues of the queue pair, which must exist as long as the
    /// connection.
    kept: OnceLock<Kept>,
}

type Kept = (Arc<Owned>, Wakes, Wakes, Option<Arc<Owned>>);

/// A connection or a listener.
#[derive(Clone)]
pub struct Id(Arc<IdHandle>);

/// A registration of memory.
pub struct Mr {
    keys: Keys,
    owned: Owned,
    /// The protection domain must exist as long as the registration.
    _pd: Arc<Owned>,
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Id").field(&self.key()).finish()
    }
}

impl Id {
    fn key(&self) -> Key {
        self.0.owned.key
    }
}

impl Wakes {
    fn key(&self) -> Key {
        self.owned.key
    }
}

impl Node {
    /// The numbers of calls so far.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.network.with(|objects| objects.nodes.entry(self.address).or_default().calls)
    }

    /// Counts calls, and calls a function under the lock.
    fn counted<R>(
        &self,
        count: impl FnOnce(&mut Calls),
        call: impl FnOnce(&mut Objects) -> R,
    ) -> R {
        self.network.with(|objects| {
            count(&mut objects.nodes.entry(self.address).or_default().calls);
            call(objects)
        })
    }

    fn own(&self, key: Key, forget: fn(&mut Objects, Key)) -> Owned {
        Owned { network: self.network.clone(), key, forget }
    }

    /// Makes a handle of a connection. The network keeps a weak reference to the handle.
    fn handle(&self, key: Key) -> Id {
        let owned = self.own(key, Objects::destroy_id);
        let handle = Arc::new(IdHandle { owned, kept: OnceLock::new() });
        let weak = Arc::downgrade(&handle);
        self.network.with(|objects| {
            objects.ids.entry(key).and_modify(|id| id.handle = weak);
        });
        Id(handle)
    }

    fn description(&self) -> Device {
        Device {
            name: format!("memory-{}", self.address),
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_cqe: MAX_CQE,
            max_srq_wr: MAX_QP_WR,
            max_qp_rd_atom: MAX_READS,
            max_qp_init_rd_atom: MAX_READS,
            can_invalidate: true,
            ports: vec![Port { is_active: true, is_ethernet: true, mtu_bytes: 4096 }],
        }
    }

    /// Checks each pair of a value and its limit.
    fn check(verb: &'static str, pairs: &[(u32, u32)]) -> Result<(), VerbsError> {
        let fits = pairs.iter().all(|(value, most)| value <= most);
        let error = || VerbsError::refused(verb, io::ErrorKind::InvalidInput);
        fits.then_some(()).ok_or_else(error)
    }
}

impl Verbs for Node {
    type EventChannel = Wakes;
    type Id = Id;
    type Pd = Arc<Owned>;
    type Mr = Mr;
    type Cq = Wakes;
    type Srq = Arc<Owned>;

    fn devices(&self) -> Result<Vec<Device>, VerbsError> {
        Ok(vec![self.description()])
    }

    fn create_event_channel(&self) -> Result<Wakes, VerbsError> {
        let waker = Waker::default();
        let channel = ChannelState { events: VecDeque::new(), waker: waker.clone() };
        let key = self.network.with(|objects| {
            let key = objects.next_key();
            objects.channels.insert(key, channel);
            key
        });
        let forget = |objects: &mut Objects, key| drop(objects.channels.remove(&key));
        Ok(Wakes { owned: Arc::new(self.own(key, forget)), waker })
    }

    fn event_source<'a>(&self, channel: &'a Wakes) -> Source<'a> {
        Source::Call(&channel.waker)
    }

    fn get_cm_event(&self, channel: &Wakes) -> Result<Option<CmEvent<Id>>, VerbsError> {
        let take = |objects: &mut Objects| -> Option<(Event, Option<Id>, Option<Id>)> {
            let channel = objects.channels.get_mut(&channel.key())?;
            let event = channel.events.pop_front()?;
            let find = |key| Some(Id(objects.ids.get(&key)?.handle.upgrade()?));
            let (id, listener) = (find(event.id), event.listener.and_then(find));
            Some((event, id, listener))
        };
        loop {
            let Some((event, id, listener)) = self.network.with(take) else { return Ok(None) };
            let Event { id: key, event, status, param, .. } = event;
            let id = match event {
                CmEventType::ConnectRequest => Some(self.handle(key)),
                _ => id,
            };
            // The connection's last handle is being dropped, so skip its event.
            let Some(id) = id else { continue };
            return Ok(Some(CmEvent { id, listener, event, status, param }));
        }
    }

    fn listen(&self, channel: &Wakes, address: SocketAddr, backlog: u32) -> Result<Id, VerbsError> {
        let key = self
            .network
            .with(|objects| objects.listen(channel.key(), self.address, address, backlog))?;
        Ok(self.handle(key))
    }

    fn resolve_addr(
        &self,
        channel: &Wakes,
        source: Option<SocketAddr>,
        target: SocketAddr,
        _timeout_ms: u32,
    ) -> Result<Id, VerbsError> {
        let source = source.unwrap_or((self.address, 0).into());
        if source.ip() != self.address {
            let kind = io::ErrorKind::AddrNotAvailable;
            return Err(VerbsError::refused("rdma_resolve_addr", kind));
        }
        let resolve = |objects: &mut Objects| objects.resolve_addr(channel.key(), source, target);
        Ok(self.handle(self.network.with(resolve)))
    }

    fn resolve_route(&self, id: &Id, _timeout_ms: u32) -> Result<(), VerbsError> {
        self.network.with(|objects| objects.resolve_route(id.key()))
    }

    fn id_key(&self, id: &Id) -> u64 {
        id.key().into()
    }

    fn local_addr(&self, id: &Id) -> Option<SocketAddr> {
        self.network.with(|objects| Some(objects.id(id.key())?.local))
    }

    fn peer_addr(&self, id: &Id) -> Option<SocketAddr> {
        self.network.with(|objects| objects.id(id.key())?.remote)
    }

    fn device(&self, id: &Id) -> Result<Device, VerbsError> {
        let is_bound = self
            .network
            .with(|objects| objects.id(id.key()).is_some_and(|id| id.stage != Stage::Idle));
        let unbound = || VerbsError::refused("rdma_resolve_addr", io::ErrorKind::NotConnected);
        is_bound.then(|| self.description()).ok_or_else(unbound)
    }

    fn alloc_pd(&self, id: &Id) -> Result<Arc<Owned>, VerbsError> {
        self.device(id)?;
        let key = self.network.with(Objects::next_key);
        Ok(Arc::new(self.own(key, |_, _| ())))
    }

    fn reg_mr(
        &self,
        pd: &Arc<Owned>,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<Mr, VerbsError> {
        if access.permits(Access::REMOTE_WRITE) && !access.permits(Access::LOCAL_WRITE) {
            return Err(VerbsError::refused("ibv_reg_mr", io::ErrorKind::InvalidInput));
        }
        let address = memory.address().as_ptr() as u64;
        let bytes = memory.bytes() as u64;
        let region = Region { pd: pd.key, access, memory, is_invalid: false };
        let insert = |objects: &mut Objects| {
            let key = objects.next_key();
            objects.regions.insert(key, region);
            key
        };
        let key = self.counted(|calls| calls.reg_mr += 1, insert);
        let owned = self.own(key, |objects, key| drop(objects.regions.remove(&key)));
        let keys = Keys { address, bytes, lkey: key, rkey: key };
        Ok(Mr { keys, owned, _pd: pd.clone() })
    }

    fn keys(&self, mr: &Mr) -> Keys {
        debug_assert_eq!(mr.owned.key, mr.keys.lkey);
        mr.keys
    }

    fn create_cq(&self, _pd: &Arc<Owned>, entries: u32) -> Result<Wakes, VerbsError> {
        Self::check("ibv_create_cq", &[(1, entries), (entries, MAX_CQE)])?;
        let waker = Waker::default();
        let cq = CqState {
            entries: VecDeque::new(),
            capacity: entries as usize,
            is_armed: false,
            events: 0,
            has_overflowed: false,
            waker: waker.clone(),
        };
        let key = self.network.with(|objects| {
            let key = objects.next_key();
            objects.cqs.insert(key, cq);
            key
        });
        let forget = |objects: &mut Objects, key| drop(objects.cqs.remove(&key));
        Ok(Wakes { owned: Arc::new(self.own(key, forget)), waker })
    }

    fn cq_source<'a>(&self, cq: &'a Wakes) -> Source<'a> {
        Source::Call(&cq.waker)
    }

    fn req_notify_cq(&self, cq: &Wakes) -> Result<(), VerbsError> {
        let arm = |objects: &mut Objects| {
            objects.cqs.entry(cq.key()).and_modify(|cq| cq.is_armed = true);
        };
        self.counted(|calls| calls.req_notify_cq += 1, arm);
        Ok(())
    }

    fn get_cq_event(&self, cq: &Wakes) -> Result<bool, VerbsError> {
        let take = |objects: &mut Objects| {
            let events = objects.cqs.get_mut(&cq.key()).map(|cq| &mut cq.events);
            events.filter(|events| **events > 0).map(|events| *events -= 1).is_some()
        };
        Ok(self.counted(|calls| calls.get_cq_event += 1, take))
    }

    fn poll_cq(&self, cq: &Wakes, out: &mut [Completion]) -> Result<usize, VerbsError> {
        let polled =
            self.counted(|calls| calls.poll_cq += 1, |objects| objects.poll(cq.key(), out));
        let count = *polled.as_ref().unwrap_or(&0) as u64;
        self.counted(|calls| calls.completions += count, |_| ());
        polled
    }

    fn create_srq(
        &self,
        pd: &Arc<Owned>,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<Arc<Owned>, VerbsError> {
        Self::check("ibv_create_srq", &[(1, max_wr), (max_wr, MAX_QP_WR), (max_sge, MAX_SGE)])?;
        let srq = SrqState {
            pd: pd.key,
            capacity: max_wr,
            max_sge,
            receives: VecDeque::new(),
            held: 0,
            waiting: VecDeque::new(),
        };
        let key = self.network.with(|objects| {
            let key = objects.next_key();
            objects.srqs.insert(key, srq);
            key
        });
        let forget = |objects: &mut Objects, key| drop(objects.srqs.remove(&key));
        Ok(Arc::new(self.own(key, forget)))
    }

    fn create_qp(&self, id: &Id, options: QpOptions<Self>) -> Result<(), VerbsError> {
        let limits = QpLimits {
            send_wr: options.max_send_wr,
            recv_wr: options.max_recv_wr,
            send_sge: options.max_send_sge,
            recv_sge: options.max_recv_sge,
            inline_bytes: options.max_inline_bytes,
        };
        let sizes = [(limits.send_wr, MAX_QP_WR), (limits.recv_wr, MAX_QP_WR)];
        Self::check("rdma_create_qp", &sizes)?;
        Self::check("rdma_create_qp", &[(limits.send_sge, MAX_SGE), (limits.recv_sge, MAX_SGE)])?;
        let QpOptions { pd, send_cq, recv_cq, srq, .. } = options;
        let keys = (pd.key, send_cq.key(), recv_cq.key(), srq.as_ref().map(|srq| srq.key));
        self.network.with(|objects| {
            let error = || VerbsError::refused("rdma_create_qp", io::ErrorKind::InvalidInput);
            let of_other_pd = |key| objects.srqs.get(&key).is_some_and(|srq| srq.pd != pd.key);
            if keys.3.is_some_and(of_other_pd) {
                return Err(error());
            }
            let is_bound = |stage| stage != Stage::Idle && stage != Stage::Closed;
            let id = objects.id(id.key()).filter(|id| id.qp.is_none() && is_bound(id.stage));
            id.ok_or_else(error)?.qp = Some(Qp::new(keys, limits));
            Ok(())
        })?;
        // A connection has only one queue pair, so the cell is still empty.
        let _ = id.0.kept.set((pd, send_cq, recv_cq, srq));
        Ok(())
    }

    fn qp_num(&self, id: &Id) -> Option<u32> {
        self.network.with(|objects| objects.qp(id.key()).map(|_| id.key()))
    }

    fn connect(&self, id: &Id, param: &ConnParam) -> Result<(), VerbsError> {
        self.network.with(|objects| objects.connect(id.key(), param))
    }

    fn accept(&self, id: &Id, param: &ConnParam) -> Result<(), VerbsError> {
        self.network.with(|objects| objects.accept(id.key(), param))
    }

    fn reject(&self, id: &Id, private_data: &[u8]) -> Result<(), VerbsError> {
        self.network.with(|objects| objects.reject(id.key(), private_data))
    }

    fn disconnect(&self, id: &Id) -> Result<(), VerbsError> {
        self.network.with(|objects| objects.disconnect(id.key()))
    }

    fn post_send(&self, id: &Id, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        let count = |calls: &mut Calls| {
            calls.post_send += 1;
            calls.sends += requests.len() as u64;
        };
        self.counted(count, |objects| objects.post_send(id.key(), requests))
    }

    fn post_recv(&self, id: &Id, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let post = |objects: &mut Objects| objects.post_recv(id.key(), requests);
        self.counted(|calls| calls.post_recv += 1, post)
    }

    fn post_srq_recv(
        &self,
        srq: &Arc<Owned>,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let post = |objects: &mut Objects| objects.post_srq_recv(srq.key, requests);
        self.counted(|calls| calls.post_recv += 1, post)
    }
}
