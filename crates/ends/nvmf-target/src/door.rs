//! The RDMA listeners of a target (a [`Door`]), and the events of their connections. Core 0
//! receives the events of all connections; a [`Link`] passes the end of a connection to the core
//! that serves it.

use farblock_proto::controller::limits::MAX_IO_QUEUES;
use farblock_proto::limits::{KEYED_IN_CAPSULE_BYTES, MAX_QUEUE_DEPTH};
use farblock_proto::rdma::{Admission, Offer, Reads};
use farblock_reactor::{Reactor, TaskId, Waker, WatchId, os};
use farblock_verbs::{
    CmEvent, CmEventType, ConnParam, Device, Provider, ProviderChannel, ProviderId, Source, Verbs,
    VerbsError,
};
use farblock_wire::Sqe;
use farblock_wire::rdma::{ADMIN_QUEUE_ENTRIES, CmReject, RejectStatus};
use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use crate::limits;

/// The reason why a connection has ended, as far as the connection manager has reported it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum End {
    /// The connection has not ended.
    Open,
    /// The host disconnected, or the connection failed.
    Left,
    /// The device is being removed.
    Removed,
}

/// The end of a connection, which core 0 passes to the core that serves it.
#[derive(Debug)]
pub(crate) struct Link {
    end: AtomicU8,
    waker: OnceLock<Waker>,
}

impl Link {
    fn new() -> Self {
        Self { end: AtomicU8::new(End::Open as u8), waker: OnceLock::new() }
    }

    /// Calls `waker` when the connection ends, or at once if it has already ended.
    pub(crate) fn attend(&self, waker: Waker) {
        if self.end() != End::Open {
            waker.wake();
        }
        let _ = self.waker.set(waker.clone());
        if self.end() != End::Open {
            waker.wake();
        }
    }

    pub(crate) fn end(&self) -> End {
        match self.end.load(Ordering::SeqCst) {
            0 => End::Open,
            1 => End::Left,
            _ => End::Removed,
        }
    }

    fn set(&self, end: End) {
        self.end.fetch_max(end as u8, Ordering::SeqCst);
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }
}

/// A connection request that has valid private data.
pub(crate) struct ConnectionRequest {
    pub(crate) verbs: Provider,
    pub(crate) id: ProviderId,
    pub(crate) device: Device,
    pub(crate) admission: Admission,
    pub(crate) link: Arc<Link>,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
}

impl fmt::Debug for ConnectionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRequest").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl ConnectionRequest {
    /// Rejects the connection request and sends `reason` to the host.
    pub(crate) fn reject(&self, reason: RejectStatus) {
        reject(&self.verbs, &self.id, reason);
    }
}

fn reject(verbs: &Provider, id: &ProviderId, reason: RejectStatus) {
    let mut data = [0; CmReject::LEN];
    CmReject::new(reason).emit(&mut data);
    // The reject fails if the host has disconnected in the meantime. No action is needed then.
    if let Err(error) = verbs.reject(id, &data) {
        tracing::debug!("cannot reject an RDMA connection: {error}");
    }
}

/// An event that the core must handle.
pub(crate) enum News {
    /// A host requests a connection.
    Request(Box<ConnectionRequest>),
    /// The door has rejected a request, for example because of its private data.
    Rejected(Option<SocketAddr>, RejectStatus),
    /// A request or the channel failed.
    Failed(VerbsError),
    /// The device of a listener is being removed, or the listener's address has moved to another
    /// device. No more requests arrive until the door listens again.
    ListenerLost(SocketAddr),
}

/// The listeners and their event channel.
pub(crate) struct Door {
    verbs: Provider,
    listeners: Vec<(SocketAddr, ProviderId)>,
    /// The addresses whose listeners are lost. At `retry_at`, the door tries to listen there again.
    lost: Vec<SocketAddr>,
    retry_at: Option<Instant>,
    /// The maximum number of queue entries that the memory limit of a core allows.
    max_entries: u16,
    links: HashMap<u64, Weak<Link>>,
    /// At this number of links, the door drops the links of ended connections.
    sweep_at: usize,
    /// This field is last, so that it is dropped last: the connection identifiers above report
    /// their events to this channel.
    channel: ProviderChannel,
}

impl Door {
    /// Listens at these addresses. Port 0 takes a free one.
    ///
    /// # Errors
    /// Returns the address at which the target cannot listen, and the reason.
    pub(crate) fn open(
        verbs: Provider,
        addresses: &[SocketAddr],
    ) -> Result<Self, (SocketAddr, VerbsError)> {
        let any = addresses.first().copied().unwrap_or((std::net::Ipv4Addr::UNSPECIFIED, 0).into());
        let channel = verbs.create_event_channel().map_err(|error| (any, error))?;
        let mut door = Self {
            verbs,
            listeners: Vec::new(),
            lost: Vec::new(),
            retry_at: None,
            max_entries: MAX_QUEUE_DEPTH,
            links: HashMap::new(),
            sweep_at: 64,
            channel,
        };
        for &address in addresses {
            door.listen(address).map_err(|error| (address, error))?;
        }
        Ok(door)
    }

    /// Listens at one more address.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> Result<(), VerbsError> {
        let id = self.verbs.listen(&self.channel, address, limits::RDMA_BACKLOG)?;
        let bound = self.verbs.local_addr(&id).unwrap_or(address);
        self.listeners.push((bound, id));
        Ok(())
    }

    /// Stops listening at an address. Connections continue.
    pub(crate) fn unlisten(&mut self, address: SocketAddr) {
        self.listeners.retain(|(at, _)| *at != address);
        self.lost.retain(|at| *at != address);
    }

    /// Returns the listeners' addresses, with the actual ports.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|(address, _)| *address).collect()
    }

    /// Wakes `task` when the connection manager has reported an event.
    pub(crate) fn attend(&self, reactor: &Reactor, task: TaskId) -> std::io::Result<()> {
        // The door lives as long as the event loop, so never end this watch.
        watch(reactor, task, self.verbs.event_source(&self.channel)).map(drop)
    }

    /// Limits the queue depth, so that a queue uses at most a quarter of a core's memory limit.
    pub(crate) fn limit(&mut self, core_bytes: usize) {
        let entry_bytes = limits::RDMA_ENTRY_BYTES + Sqe::LEN + KEYED_IN_CAPSULE_BYTES as usize;
        let most = core_bytes / 4 / entry_bytes;
        self.max_entries = u16::try_from(most).unwrap_or(u16::MAX).min(MAX_QUEUE_DEPTH);
    }

    /// Closes the listeners.
    pub(crate) fn close(&mut self) {
        self.listeners.clear();
        self.lost.clear();
        self.retry_at = None;
    }

    /// The time of the next attempt to replace lost listeners; `None` if no listener is lost.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Listens again at the addresses of lost listeners, if [`Self::retry_at`] has passed. Returns
    /// the addresses where this succeeded.
    pub(crate) fn listen_again(&mut self, now: Instant) -> Vec<SocketAddr> {
        let mut found = Vec::new();
        if self.retry_at.is_none_or(|at| at > now) {
            return found;
        }
        for address in std::mem::take(&mut self.lost) {
            match self.listen(address) {
                Ok(()) => found.push(address),
                Err(error) => {
                    tracing::debug!("cannot listen at rdma:{address} again: {error}");
                    self.lost.push(address);
                }
            }
        }
        self.retry_at = (!self.lost.is_empty()).then_some(now + limits::RDMA_LISTEN_PERIOD);
        found
    }

    /// Returns the next event that the core must handle; `None` if there is none yet.
    pub(crate) fn next(&mut self) -> Option<News> {
        loop {
            let event = match self.verbs.get_cm_event(&self.channel) {
                Ok(event) => event?,
                Err(error) => return Some(News::Failed(error)),
            };
            if let Some(news) = self.handle(event) {
                return Some(news);
            }
        }
    }

    fn handle(&mut self, event: CmEvent<ProviderId>) -> Option<News> {
        let end = match event.event {
            CmEventType::ConnectRequest => return Some(self.requested(event)),
            CmEventType::DeviceRemoval => End::Removed,
            CmEventType::Disconnected
            | CmEventType::ConnectError
            | CmEventType::Unreachable
            | CmEventType::Rejected
            | CmEventType::AddrChange => End::Left,
            // Ignore the event that reports the established connection: the host's first command
            // may arrive before it.
            _ => return None,
        };
        let key = self.verbs.id_key(&event.id);
        if let Some(link) = self.links.get(&key).and_then(Weak::upgrade) {
            link.set(end);
        }
        let is_it = |(_, id): &(SocketAddr, ProviderId)| self.verbs.id_key(id) == key;
        let lost = self.listeners.iter().position(is_it)?;
        let (address, _) = self.listeners.swap_remove(lost);
        self.lost.push(address);
        self.retry_at = Some(os::now());
        Some(News::ListenerLost(address))
    }

    fn requested(&mut self, event: CmEvent<ProviderId>) -> News {
        let (verbs, id) = (self.verbs.clone(), event.id);
        let peer = verbs.peer_addr(&id);
        let device = match verbs.device(&id) {
            Ok(device) => device,
            Err(error) => {
                reject(&verbs, &id, RejectStatus::NO_RESOURCES);
                return News::Failed(error);
            }
        };
        let admission = match admit(&event.param, &device, self.max_entries) {
            Ok(admission) => admission,
            Err(reason) => {
                reject(&verbs, &id, reason);
                return News::Rejected(peer, reason);
            }
        };
        let (Some(peer), Some(local)) = (peer, verbs.local_addr(&id)) else {
            reject(&verbs, &id, RejectStatus::NO_RESOURCES);
            return News::Rejected(peer, RejectStatus::NO_RESOURCES);
        };
        let link = Arc::new(Link::new());
        self.remember(verbs.id_key(&id), &link);
        News::Request(Box::new(ConnectionRequest {
            verbs,
            id,
            device,
            admission,
            link,
            peer,
            local,
        }))
    }

    fn remember(&mut self, key: u64, link: &Arc<Link>) {
        if self.links.len() >= self.sweep_at {
            self.links.retain(|_, link| link.strong_count() > 0);
            self.sweep_at = 2 * self.links.len().max(32);
        }
        self.links.insert(key, Arc::downgrade(link));
    }
}

fn admit(param: &ConnParam, device: &Device, most: u16) -> Result<Admission, RejectStatus> {
    // The queue pair makes a completion queue for three completions per entry, and eight more.
    let completions = device.max_cqe.saturating_sub(8) / 3;
    let entries = u32::from(most).min(device.max_qp_wr / 2).min(completions);
    let offer = Offer {
        max_io_queues: MAX_IO_QUEUES,
        max_entries: u16::try_from(entries).unwrap_or(MAX_QUEUE_DEPTH),
        has_resources: entries >= u32::from(ADMIN_QUEUE_ENTRIES),
    };
    // The event swaps the values: the host's responder resources are this end's initiator depth.
    let host = Reads { answers: param.initiator_depth, starts: param.responder_resources };
    let own = Reads { answers: device.max_qp_rd_atom, starts: device.max_qp_init_rd_atom };
    Admission::admit(&param.private_data, host, own, &offer)
}

/// Wakes a task for the events of a source. If this returns a watch, the caller must end it with
/// [`unwatch`].
pub(crate) fn watch(
    reactor: &Reactor,
    task: TaskId,
    source: Source<'_>,
) -> std::io::Result<Option<WatchId>> {
    match source {
        #[cfg(target_os = "linux")]
        Source::Descriptor(descriptor) => {
            reactor.watch(task, descriptor.try_clone_to_owned()?).map(Some)
        }
        Source::Call(call) => {
            let waker = reactor.waker(task);
            call.set(move || waker.wake());
            // Events that arrived before the watch started cause no wake-up, so wake the task now.
            reactor.notify(task);
            Ok(None)
        }
    }
}

/// Ends a watch.
pub(crate) fn unwatch(reactor: &Reactor, watch: WatchId) {
    #[cfg(unix)]
    reactor.unwatch(watch);
    #[cfg(not(unix))]
    let _ = (reactor, watch);
}
