//! [`Verbs`]: the interface of both implementations, with the names of the C interface.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{PostError, VerbsError};
use crate::memory::{Keys, Memory};
use crate::request::{Access, Completion, ReceiveRequest, SendRequest};

/// RDMA verbs with connections of reliable queue pairs (RC).
///
/// A handle keeps the objects that it needs: a connection keeps its queues, and a queue its
/// protection domain. All methods return at once, and may be called on any thread.
///
/// - Requests of one queue pair start in order, and complete in order.
/// - After an error, every request of a queue pair completes with
///   [`WR_FLUSH_ERR`](crate::Status::WR_FLUSH_ERR), except receives in a shared queue.
/// - A peer's disconnection does not flush this end's requests: call
///   [`disconnect`](Self::disconnect), too.
/// - A receive may complete before the event [`Established`](CmEventType::Established).
pub trait Verbs {
    /// `struct rdma_event_channel`
    type EventChannel: Send + Sync;
    /// `struct rdma_cm_id` with its queue pair; the last clone destroys both.
    type Id: Clone + Send + Sync + fmt::Debug;
    /// `struct ibv_pd`
    type Pd: Clone + Send + Sync;
    /// `struct ibv_mr`, which owns its memory.
    type Mr: Send + Sync;
    /// `struct ibv_cq` with its own completion channel.
    type Cq: Clone + Send + Sync;
    /// `struct ibv_srq`
    type Srq: Clone + Send + Sync;

    /// The machine's devices.
    fn devices(&self) -> Result<Vec<Device>, VerbsError>;

    /// Makes a channel for the events of connections.
    fn create_event_channel(&self) -> Result<Self::EventChannel, VerbsError>;
    /// The descriptor or waker through which an event loop notices events of the channel.
    fn event_source<'a>(&self, channel: &'a Self::EventChannel) -> Source<'a>;
    /// The next event. `None` if no event is pending.
    fn get_cm_event(
        &self,
        channel: &Self::EventChannel,
    ) -> Result<Option<CmEvent<Self::Id>>, VerbsError>;

    /// Listens at an address. At most `backlog` connection requests wait for the program.
    fn listen(
        &self,
        channel: &Self::EventChannel,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<Self::Id, VerbsError>;
    /// Starts a connection, and binds it to the device that reaches the peer.
    /// [`AddrResolved`](CmEventType::AddrResolved) follows.
    fn resolve_addr(
        &self,
        channel: &Self::EventChannel,
        source: Option<SocketAddr>,
        target: SocketAddr,
        timeout_ms: u32,
    ) -> Result<Self::Id, VerbsError>;
    /// Resolves the route to the peer, after `AddrResolved`.
    /// [`RouteResolved`](CmEventType::RouteResolved) follows.
    fn resolve_route(&self, id: &Self::Id, timeout_ms: u32) -> Result<(), VerbsError>;
    /// A number that identifies the connection while it exists. The identifier in an event has the
    /// number of the event's connection.
    fn id_key(&self, id: &Self::Id) -> u64;
    /// This end's address; `None` before it is known.
    fn local_addr(&self, id: &Self::Id) -> Option<SocketAddr>;
    /// The peer's address; `None` for a listener.
    fn peer_addr(&self, id: &Self::Id) -> Option<SocketAddr>;
    /// The connection's device.
    fn device(&self, id: &Self::Id) -> Result<Device, VerbsError>;

    /// Makes a protection domain on the connection's device. Other connections on this device can
    /// share it.
    fn alloc_pd(&self, id: &Self::Id) -> Result<Self::Pd, VerbsError>;
    /// Registers memory, which exists until the registration is dropped.
    fn reg_mr(
        &self,
        pd: &Self::Pd,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<Self::Mr, VerbsError>;
    /// Addresses and keys of a registration.
    fn keys(&self, mr: &Self::Mr) -> Keys;

    /// Makes a completion queue. The caller must poll often enough: more than `entries` completions
    /// overflow the queue.
    fn create_cq(&self, pd: &Self::Pd, entries: u32) -> Result<Self::Cq, VerbsError>;
    /// The descriptor or waker through which an event loop notices an event of the queue.
    fn cq_source<'a>(&self, cq: &'a Self::Cq) -> Source<'a>;
    /// Requests one event for the next completion. Poll again afterwards: a completion that arrived
    /// before this call causes no event.
    fn req_notify_cq(&self, cq: &Self::Cq) -> Result<(), VerbsError>;
    /// Takes and acknowledges one event. `false` if none is pending.
    fn get_cq_event(&self, cq: &Self::Cq) -> Result<bool, VerbsError>;
    /// Moves completions to the start of `out` and returns their number. An error means that the
    /// queue has overflowed and is unusable.
    fn poll_cq(&self, cq: &Self::Cq, out: &mut [Completion]) -> Result<usize, VerbsError>;

    /// Makes a receive queue for several queue pairs.
    fn create_srq(&self, pd: &Self::Pd, max_wr: u32, max_sge: u32)
    -> Result<Self::Srq, VerbsError>;
    /// Makes the connection's queue pair, which keeps its queues. Receives can be posted from now
    /// on.
    fn create_qp(&self, id: &Self::Id, options: QpOptions<Self>) -> Result<(), VerbsError>
    where
        Self: Sized;
    /// The queue pair's number on its device; `None` before [`create_qp`](Self::create_qp).
    fn qp_num(&self, id: &Self::Id) -> Option<u32>;

    /// Sends a connection request, after `RouteResolved` and `create_qp`.
    fn connect(&self, id: &Self::Id, param: &ConnParam) -> Result<(), VerbsError>;
    /// Accepts a request, after `create_qp`.
    fn accept(&self, id: &Self::Id, param: &ConnParam) -> Result<(), VerbsError>;
    /// Rejects a request. The peer's event contains the private data.
    fn reject(&self, id: &Self::Id, private_data: &[u8]) -> Result<(), VerbsError>;
    /// Closes the connection and flushes the queue pair. The peer gets
    /// [`Disconnected`](CmEventType::Disconnected).
    fn disconnect(&self, id: &Self::Id) -> Result<(), VerbsError>;

    /// Posts to the send queue, in order.
    fn post_send(&self, id: &Self::Id, requests: &[SendRequest<'_>]) -> Result<(), PostError>;
    /// Posts to the queue pair's own receive queue, in order.
    fn post_recv(&self, id: &Self::Id, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;
    /// Posts to a shared receive queue.
    fn post_srq_recv(
        &self,
        srq: &Self::Srq,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError>;
}

/// A source of events for an event loop.
pub enum Source<'a> {
    /// A descriptor that is readable while there are events.
    #[cfg(target_os = "linux")]
    Descriptor(std::os::fd::BorrowedFd<'a>),
    /// A function that is called for every event.
    Call(&'a Waker),
}

/// A function that an implementation without descriptors calls for every event.
#[derive(Clone, Default)]
pub struct Waker(Arc<Mutex<Option<WakeFunction>>>);

type WakeFunction = Arc<dyn Fn() + Send + Sync>;

impl Waker {
    /// Replaces the function.
    pub fn set(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(wake));
    }

    pub(crate) fn wake(&self) {
        let wake = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(wake) = wake {
            wake();
        }
    }
}

/// A device and its limits (`struct ibv_device_attr`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The kernel's name, for example `mlx5_0`: unique on the machine.
    pub name: String,
    /// Largest number of requests in a queue of a queue pair.
    pub max_qp_wr: u32,
    /// Largest number of slices in a request.
    pub max_sge: u32,
    /// Largest number of entries in a completion queue.
    pub max_cqe: u32,
    /// Largest number of requests in a shared receive queue. 0 if the device has none.
    pub max_srq_wr: u32,
    /// Largest number of READs of a peer that a queue pair can answer at the same time.
    pub max_qp_rd_atom: u8,
    /// Largest number of READs that a queue pair can have in flight.
    pub max_qp_init_rd_atom: u8,
    /// Whether the device reports that it can invalidate keys
    /// (`IBV_DEVICE_MEM_MGT_EXTENSIONS`).
    pub can_invalidate: bool,
    /// The ports, from number 1.
    pub ports: Vec<Port>,
}

/// A port of a device (`struct ibv_port_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Port {
    /// Whether the link is up.
    pub is_active: bool,
    /// Whether the link is Ethernet (RoCE) instead of InfiniBand.
    pub is_ethernet: bool,
    /// Largest payload of a packet in bytes.
    pub mtu_bytes: u32,
}

/// The queues of a new queue pair (`struct ibv_qp_init_attr`).
pub struct QpOptions<V: Verbs> {
    /// The protection domain.
    pub pd: V::Pd,
    /// The completion queue for requests of the send queue.
    pub send_cq: V::Cq,
    /// The completion queue for receives.
    pub recv_cq: V::Cq,
    /// A shared receive queue. `None` if the queue pair has its own.
    pub srq: Option<V::Srq>,
    /// Largest number of requests in the send queue.
    pub max_send_wr: u32,
    /// Largest number of requests in the queue pair's own receive queue.
    pub max_recv_wr: u32,
    /// Largest number of slices of a request in the send queue.
    pub max_send_sge: u32,
    /// Largest number of slices of a receive.
    pub max_recv_sge: u32,
    /// Largest number of bytes of an inline request.
    pub max_inline_bytes: u32,
}

/// The parameters that each end of a connection sends (`struct rdma_conn_param`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnParam {
    /// Bytes for the peer. The peer may receive additional zeroes: see [`limits`](crate::limits).
    pub private_data: Vec<u8>,
    /// Number of READs of the peer that this end can answer at the same time.
    pub responder_resources: u8,
    /// Number of READs that this end may have in flight.
    pub initiator_depth: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// Retries while the peer has no receive posted (RNR): 0 to 6, or 7 for unlimited retries.
    pub rnr_retry_count: u8,
}

impl Default for ConnParam {
    /// No private data, one READ each way, 7 transport retries, and endless RNR retries.
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: crate::limits::RNR_RETRY_FOREVER,
        }
    }
}

/// An event of a connection (`struct rdma_cm_event`).
#[derive(Clone, Debug)]
pub struct CmEvent<Id> {
    /// The connection. For a request, this is a new connection.
    pub id: Id,
    /// The listener of a request.
    pub listener: Option<Id>,
    /// The type of the event.
    pub event: CmEventType,
    /// 0, or a negative error number. For `Rejected`, the connection manager's reason.
    pub status: i32,
    /// The peer's parameters, in a request, its answer or a rejection. Otherwise empty.
    pub param: ConnParam,
}

impl<Id> CmEvent<Id> {
    /// The same event with converted identifiers.
    pub(crate) fn map<Other>(self, convert: impl Fn(Id) -> Other) -> CmEvent<Other> {
        let Self { id, listener, event, status, param } = self;
        CmEvent { id: convert(id), listener: listener.map(convert), event, status, param }
    }
}

/// Reason of a rejection: the peer's program rejected the request, and may have sent private data.
pub const REJECTED_BY_CONSUMER: i32 = 28;
/// Reason of a rejection: nothing listens at the port.
pub const REJECTED_NO_LISTENER: i32 = 8;
/// Status of an event after a time limit: `-ETIMEDOUT` on Linux.
pub const TIMED_OUT: i32 = -110;

/// The type of an event (`enum rdma_cm_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CmEventType {
    /// The connection is bound to a device.
    AddrResolved,
    /// No device reaches the address.
    AddrError,
    /// The route is resolved: the program can now send the connection request.
    RouteResolved,
    /// There is no route.
    RouteError,
    /// A peer requests a connection.
    ConnectRequest,
    /// The connection failed.
    ConnectError,
    /// The peer did not answer.
    Unreachable,
    /// The peer rejected the request.
    Rejected,
    /// The connection is up.
    Established,
    /// The peer disconnected, or confirmed the disconnection.
    Disconnected,
    /// The device is being removed: drop all handles of its objects.
    DeviceRemoval,
    /// The address moved to another device.
    AddrChange,
    /// The queue pair's number may be reused.
    TimewaitExit,
    /// Another event, by its code.
    Other(u32),
}
