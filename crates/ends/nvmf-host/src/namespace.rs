//! A remote namespace that implements the [`Namespace`] contract.

use crate::association::Association;
use crate::control::Local;
use crate::error::Error;
use crate::known::KnownNamespace;
use crate::limits;
use crate::queue::{IoQueue, Settings};
use crate::shared::NamespaceState;
use crate::transport::Opened;
use farblock_block::size::Size;
use farblock_block::{Availability, BlockError, Changes, Geometry, Namespace, Queue};
use farblock_proto::host::{CommandLimits, ConnectError, InfoError, NamespaceInfo};
use farblock_reactor::{Reactor, TaskId};
use std::sync::Arc;

/// A namespace of a connected [`Controller`](crate::Controller), for reads and writes.
///
/// Each open queue has its own connection. The call that opens a queue waits for the network, up to
/// the timeouts in the options. No other call waits. If other users share the event loop, use a
/// [`Disk`](crate::Disk), which connects on another thread.
#[derive(Clone)]
pub struct RemoteNamespace {
    association: Arc<Association>,
    state: Arc<NamespaceState>,
    info: NamespaceInfo,
    most: CommandLimits,
}

impl RemoteNamespace {
    /// Implements [`Controller::namespace`](crate::Controller::namespace).
    pub(crate) async fn find(
        association: &Arc<Association>,
        nsid: u32,
    ) -> Result<RemoteNamespace, Error> {
        if association.info().discovery {
            let what = format!("namespace {nsid}");
            return Err(Error::Answer { what, reason: InfoError::DiscoveryController });
        }
        for _ in 0..limits::LOOKS {
            let changes = association.shared().changes();
            let info = association.namespace_info(nsid).await?;
            let most = association.command_limits().await?;
            let namespace = RemoteNamespace::new(Arc::clone(association), info, most);
            // The namespace did not change during the lookup. From now on, the admin queue handles
            // its changes, because the namespace is in use.
            if association.shared().changes() == changes {
                return Ok(namespace);
            }
        }
        Err(Error::Lost("its namespaces change too often".into()))
    }

    fn new(
        association: Arc<Association>,
        info: NamespaceInfo,
        most: CommandLimits,
    ) -> RemoteNamespace {
        let geometry = Geometry {
            read_only: info.read_only,
            volatile_cache: association.info().volatile_cache,
            deallocate: association.info().has_deallocate(),
            optimal_blocks: info.optimal_blocks,
            preferred_blocks: info.preferred_blocks,
            ..Geometry::new(info.block_size, info.blocks)
        };
        let state = association.shared().namespace(&info, geometry, &association.info().serial);
        RemoteNamespace { association, state, info, most }
    }

    /// Whether the namespace was removed or replaced.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.geometry().blocks == 0
    }

    /// The namespace's identity.
    pub(crate) fn known(&self) -> &KnownNamespace {
        self.state.known()
    }

    /// The UUIDs of the namespace and of its remote parts.
    pub(crate) fn contents(&self) -> Vec<[u8; 16]> {
        self.state.contents()
    }

    /// The namespace's properties at the time of the lookup.
    #[must_use]
    pub fn info(&self) -> &NamespaceInfo {
        &self.info
    }

    /// Opens a queue like [`Namespace::open`], but returns a more detailed error.
    ///
    /// # Errors
    /// Fails if the controller has no I/O queue left, or the host cannot connect one.
    pub fn open_queue(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, Error> {
        let (namespace, control) = (self.clone(), Arc::clone(self.association.control()));
        let connected = control.run(|local| async move { namespace.connect_queue(&local).await });
        let lost = || Err(self.association.shared().lost_error());
        Ok(Box::new(connected.unwrap_or_else(lost)?.settle(reactor, parent)?))
    }

    /// Connects a queue on the control loop, which waits for the network. The caller then moves it
    /// to its own event loop with [`ConnectedQueue::settle`], which does not wait.
    pub(crate) async fn connect_queue(&self, local: &Local) -> Result<ConnectedQueue, Error> {
        let shared = self.association.shared();
        if shared.is_lost() {
            return Err(shared.lost_error());
        }
        let Some(qid) = shared.take_queue() else {
            let granted = self.association.info().queues;
            return Err(self.association.connect_error(ConnectError::NoQueueLeft { granted }));
        };
        let settings = self.settings();
        let namespace = self.clone();
        let mut queue =
            ConnectedQueue { namespace, qid, connected: None, settings, settled: false };
        let connected = self.association.connect_queue(local, qid, queue.settings.depth).await;
        let connected = connected.map_err(|reason| self.association.connect_error(reason))?;
        queue.settings.depth = connected.depth(queue.settings.depth);
        shared.note_depth(queue.settings.depth);
        queue.connected = Some(connected);
        Ok(queue)
    }

    fn settings(&self) -> Settings {
        let (info, options) = (self.association.info(), self.association.options());
        let most = info.max_transfer_bytes.unwrap_or(u32::MAX).min(limits::MAX_COMMAND_BYTES);
        let block_size = self.info.block_size;
        let in_capsule_bytes = info.in_capsule_bytes.min(limits::MAX_IN_CAPSULE_BYTES);
        Settings {
            nsid: self.info.nsid,
            depth: info.queue_depth(options.queue_depth),
            // Send at least one block, even if the controller's limit is lower and the controller
            // will refuse the command.
            command_bytes: (most / block_size).max(1) * block_size,
            in_capsule_bytes: if options.in_capsule { in_capsule_bytes } else { 0 },
            write_zeroes: info.has_write_zeroes(),
            zeroes_blocks: self.most.zeroes_bytes.map_or(u32::MAX, |bytes| {
                u32::try_from(bytes / u64::from(block_size)).unwrap_or(u32::MAX).max(1)
            }),
            deallocate_blocks: self.most.deallocate_blocks.unwrap_or(u32::MAX),
            io_timeout: options.io_timeout,
            retry_delays: info.retry_delays,
        }
    }
}

impl Namespace for RemoteNamespace {
    fn geometry(&self) -> Geometry {
        self.state.geometry()
    }

    fn changes(&self) -> Option<&Changes> {
        Some(self.state.changes())
    }

    fn availability(&self) -> Availability {
        let is_gone = self.is_gone() || self.association.shared().is_lost();
        if is_gone { Availability::Gone } else { Availability::Ready }
    }

    fn trouble(&self) -> Option<String> {
        self.association.shared().loss().map(|why| why.to_string())
    }

    fn describe(&self) -> String {
        let geometry = self.geometry();
        let size = Size(geometry.capacity_bytes());
        let url = self.association.url(self.info.nsid);
        format!("{url} ({size}, {}-byte blocks)", geometry.block_size)
    }

    fn open(&self, reactor: &Reactor, parent: TaskId) -> Result<Box<dyn Queue>, BlockError> {
        self.open_queue(reactor, parent).map_err(|error| {
            tracing::warn!("cannot open an I/O queue: {error}");
            match error {
                Error::System(_) => BlockError::NoResources,
                Error::Connect {
                    reason: ConnectError::NoQueueLeft { .. } | ConnectError::ControllerBusy,
                    ..
                } => BlockError::NoResources,
                _ => BlockError::Disconnected,
            }
        })
    }
}

/// A connected I/O queue that is not on an event loop yet. If it is dropped before its move to an
/// event loop, it releases its queue identifier.
pub(crate) struct ConnectedQueue {
    namespace: RemoteNamespace,
    qid: u16,
    connected: Option<Opened>,
    settings: Settings,
    settled: bool,
}

impl ConnectedQueue {
    /// Moves the queue to an event loop. Does not wait.
    pub(crate) fn settle(mut self, reactor: &Reactor, parent: TaskId) -> Result<IoQueue, Error> {
        let connected = self.connected.take().expect("a queue moves once");
        let association = (Arc::clone(&self.namespace.association), self.qid);
        let (state, settings) = (Arc::clone(&self.namespace.state), self.settings.clone());
        let queue = IoQueue::new(reactor, parent, connected, state, settings, association);
        // The queue now owns the queue identifier, and releases it.
        self.settled = queue.is_ok();
        queue.map_err(Error::system)
    }
}

impl Drop for ConnectedQueue {
    fn drop(&mut self) {
        if !self.settled {
            self.namespace.association.shared().return_queue(self.qid);
        }
    }
}
