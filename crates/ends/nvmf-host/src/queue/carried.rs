//! An I/O queue over any transport. Each call checks once which transport the queue uses.

use super::{RemoteQueue, Settings};
use crate::association::Association;
use crate::shared::NamespaceState;
#[cfg(feature = "memory")]
use crate::transport::memory::Memory;
use crate::transport::rdma::Rdma;
use crate::transport::tcp::Link;
use crate::transport::{Loss, Opened};
use farblock_block::{Completion, Op, Queue};
use farblock_reactor::{Reactor, TaskId};
use std::io;
use std::sync::Arc;

#[allow(clippy::large_enum_variant, reason = "only tests use the smaller one")]
pub(crate) enum IoQueue {
    Tcp(RemoteQueue<Link>),
    Rdma(RemoteQueue<Rdma>),
    #[cfg(feature = "memory")]
    Memory(RemoteQueue<Memory>),
}

macro_rules! each {
    ($self:expr, $queue:ident => $call:expr) => {
        match $self {
            IoQueue::Tcp($queue) => $call,
            IoQueue::Rdma($queue) => $call,
            #[cfg(feature = "memory")]
            IoQueue::Memory($queue) => $call,
        }
    };
}

impl IoQueue {
    /// Moves a connected queue to an event loop.
    pub(crate) fn new(
        reactor: &Reactor,
        parent: TaskId,
        opened: Opened,
        namespace: Arc<NamespaceState>,
        settings: Settings,
        association: (Arc<Association>, u16),
    ) -> io::Result<IoQueue> {
        match opened {
            Opened::Tcp(connected) => {
                RemoteQueue::new(reactor, parent, *connected, namespace, settings, association)
                    .map(IoQueue::Tcp)
            }
            Opened::Rdma(connected) => {
                RemoteQueue::new(reactor, parent, connected, namespace, settings, association)
                    .map(IoQueue::Rdma)
            }
            #[cfg(feature = "memory")]
            Opened::Memory(wire) => {
                RemoteQueue::new(reactor, parent, wire, namespace, settings, association)
                    .map(IoQueue::Memory)
            }
        }
    }

    /// Whether the connection is lost. All operations without a complete answer then fail.
    pub(crate) fn is_lost(&self) -> bool {
        each!(self, queue => queue.is_lost())
    }

    pub(crate) fn loss(&self) -> Option<&Loss> {
        each!(self, queue => queue.loss())
    }
}

impl Queue for IoQueue {
    fn submit(&mut self, op: Op) {
        each!(self, queue => queue.submit(op));
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        each!(self, queue => queue.poll(done));
    }

    fn in_flight(&self) -> usize {
        each!(self, queue => queue.in_flight())
    }
}
