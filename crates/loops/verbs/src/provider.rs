//! [`Provider`]: an implementation of [`Verbs`] that is chosen at run time.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::error::{PostError, VerbsError};
use crate::fabric::Node;
#[cfg(target_os = "linux")]
use crate::linux::System;
use crate::memory::{Keys, Memory};
use crate::request::{Access, Completion, ReceiveRequest, SendRequest};
use crate::verbs::{CmEvent, ConnParam, Device, QpOptions, Source, Verbs};

/// One of the implementations of [`Verbs`]: a program can use real devices, and its tests a network
/// in memory. The choice costs one predictable branch per call.
///
/// # Panics
/// Panics if a method gets a handle of the other implementation.
#[derive(Clone)]
pub enum Provider {
    /// The system's devices.
    #[cfg(target_os = "linux")]
    System(System),
    /// A node of a network in memory.
    Memory(Node),
}

impl Provider {
    /// The system's devices.
    ///
    /// # Errors
    /// Returns a sentence that says why this machine cannot use RDMA.
    pub fn system() -> Result<Self, VerbsError> {
        #[cfg(target_os = "linux")]
        return Ok(Self::System(System::load()?));
        #[cfg(not(target_os = "linux"))]
        return Err(VerbsError::NoLibrary("RDMA needs Linux: use TCP on this system".to_owned()));
    }
}

macro_rules! handles {
    ($($(#[$attribute:meta])* $name:ident, $member:ident;)+) => {$(
        $(#[$attribute])*
        pub enum $name {
            /// A handle of the system's devices.
            #[cfg(target_os = "linux")]
            System(<System as Verbs>::$member),
            /// A handle of a network in memory.
            Memory(<Node as Verbs>::$member),
        }
    )+};
}

handles! {
    /// `struct rdma_event_channel`
    ProviderChannel, EventChannel;
    /// `struct rdma_cm_id`
    #[derive(Clone, Debug)]
    ProviderId, Id;
    /// `struct ibv_pd`
    #[derive(Clone)]
    ProviderPd, Pd;
    /// `struct ibv_mr`
    ProviderMr, Mr;
    /// `struct ibv_cq`
    #[derive(Clone)]
    ProviderCq, Cq;
    /// `struct ibv_srq`
    #[derive(Clone)]
    ProviderSrq, Srq;
}

/// Calls the implementation to which a handle belongs.
macro_rules! with {
    ($provider:expr, $handle:expr, $name:ident, |$verbs:ident, $inner:ident| $call:expr) => {
        match ($provider, $handle) {
            #[cfg(target_os = "linux")]
            (Provider::System($verbs), $name::System($inner)) => $call,
            (Provider::Memory($verbs), $name::Memory($inner)) => $call,
            #[cfg(target_os = "linux")]
            _ => panic!("the handle belongs to another implementation"),
        }
    };
}

/// Calls the implementation, and wraps the handle that it returns.
macro_rules! make {
    (
        $provider:expr,
        $handle:expr,
        $name:ident,
        $made:ident,
        |$verbs:ident, $inner:ident| $call:expr
    ) => {
        match ($provider, $handle) {
            #[cfg(target_os = "linux")]
            (Provider::System($verbs), $name::System($inner)) => $call.map($made::System),
            (Provider::Memory($verbs), $name::Memory($inner)) => $call.map($made::Memory),
            #[cfg(target_os = "linux")]
            _ => panic!("the handle belongs to another implementation"),
        }
    };
}

/// Returns the implementation's own handle.
macro_rules! inner {
    ($handle:expr, $name:ident, $which:ident) => {
        match $handle {
            $name::$which(inner) => inner,
            #[cfg(target_os = "linux")]
            _ => panic!("the handle belongs to another implementation"),
        }
    };
}

macro_rules! create_qp {
    ($verbs:expr, $id:expr, $options:expr, $which:ident) => {{
        let options = $options;
        let options = QpOptions {
            pd: inner!(options.pd, ProviderPd, $which),
            send_cq: inner!(options.send_cq, ProviderCq, $which),
            recv_cq: inner!(options.recv_cq, ProviderCq, $which),
            srq: options.srq.map(|srq| inner!(srq, ProviderSrq, $which)),
            max_send_wr: options.max_send_wr,
            max_recv_wr: options.max_recv_wr,
            max_send_sge: options.max_send_sge,
            max_recv_sge: options.max_recv_sge,
            max_inline_bytes: options.max_inline_bytes,
        };
        $verbs.create_qp($id, options)
    }};
}

impl Verbs for Provider {
    type EventChannel = ProviderChannel;
    type Id = ProviderId;
    type Pd = ProviderPd;
    type Mr = ProviderMr;
    type Cq = ProviderCq;
    type Srq = ProviderSrq;

    fn devices(&self) -> Result<Vec<Device>, VerbsError> {
        match self {
            #[cfg(target_os = "linux")]
            Self::System(verbs) => verbs.devices(),
            Self::Memory(verbs) => verbs.devices(),
        }
    }

    fn create_event_channel(&self) -> Result<ProviderChannel, VerbsError> {
        match self {
            #[cfg(target_os = "linux")]
            Self::System(verbs) => verbs.create_event_channel().map(ProviderChannel::System),
            Self::Memory(verbs) => verbs.create_event_channel().map(ProviderChannel::Memory),
        }
    }

    fn event_source<'a>(&self, channel: &'a ProviderChannel) -> Source<'a> {
        with!(self, channel, ProviderChannel, |verbs, channel| verbs.event_source(channel))
    }

    fn get_cm_event(
        &self,
        channel: &ProviderChannel,
    ) -> Result<Option<CmEvent<ProviderId>>, VerbsError> {
        match (self, channel) {
            #[cfg(target_os = "linux")]
            (Self::System(verbs), ProviderChannel::System(channel)) => {
                Ok(verbs.get_cm_event(channel)?.map(|event| event.map(ProviderId::System)))
            }
            (Self::Memory(verbs), ProviderChannel::Memory(channel)) => {
                Ok(verbs.get_cm_event(channel)?.map(|event| event.map(ProviderId::Memory)))
            }
            #[cfg(target_os = "linux")]
            _ => panic!("the handle belongs to another implementation"),
        }
    }

    fn listen(
        &self,
        channel: &ProviderChannel,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<ProviderId, VerbsError> {
        make!(self, channel, ProviderChannel, ProviderId, |verbs, channel| {
            verbs.listen(channel, address, backlog)
        })
    }

    fn resolve_addr(
        &self,
        channel: &ProviderChannel,
        source: Option<SocketAddr>,
        target: SocketAddr,
        timeout_ms: u32,
    ) -> Result<ProviderId, VerbsError> {
        make!(self, channel, ProviderChannel, ProviderId, |verbs, channel| {
            verbs.resolve_addr(channel, source, target, timeout_ms)
        })
    }

    fn resolve_route(&self, id: &ProviderId, timeout_ms: u32) -> Result<(), VerbsError> {
        with!(self, id, ProviderId, |verbs, id| verbs.resolve_route(id, timeout_ms))
    }

    fn id_key(&self, id: &ProviderId) -> u64 {
        with!(self, id, ProviderId, |verbs, id| verbs.id_key(id))
    }

    fn local_addr(&self, id: &ProviderId) -> Option<SocketAddr> {
        with!(self, id, ProviderId, |verbs, id| verbs.local_addr(id))
    }

    fn peer_addr(&self, id: &ProviderId) -> Option<SocketAddr> {
        with!(self, id, ProviderId, |verbs, id| verbs.peer_addr(id))
    }

    fn device(&self, id: &ProviderId) -> Result<Device, VerbsError> {
        with!(self, id, ProviderId, |verbs, id| verbs.device(id))
    }

    fn alloc_pd(&self, id: &ProviderId) -> Result<ProviderPd, VerbsError> {
        make!(self, id, ProviderId, ProviderPd, |verbs, id| verbs.alloc_pd(id))
    }

    fn reg_mr(
        &self,
        pd: &ProviderPd,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<ProviderMr, VerbsError> {
        make!(self, pd, ProviderPd, ProviderMr, |verbs, pd| verbs.reg_mr(pd, memory, access))
    }

    fn keys(&self, mr: &ProviderMr) -> Keys {
        with!(self, mr, ProviderMr, |verbs, mr| verbs.keys(mr))
    }

    fn create_cq(&self, pd: &ProviderPd, entries: u32) -> Result<ProviderCq, VerbsError> {
        make!(self, pd, ProviderPd, ProviderCq, |verbs, pd| verbs.create_cq(pd, entries))
    }

    fn cq_source<'a>(&self, cq: &'a ProviderCq) -> Source<'a> {
        with!(self, cq, ProviderCq, |verbs, cq| verbs.cq_source(cq))
    }

    fn req_notify_cq(&self, cq: &ProviderCq) -> Result<(), VerbsError> {
        with!(self, cq, ProviderCq, |verbs, cq| verbs.req_notify_cq(cq))
    }

    fn get_cq_event(&self, cq: &ProviderCq) -> Result<bool, VerbsError> {
        with!(self, cq, ProviderCq, |verbs, cq| verbs.get_cq_event(cq))
    }

    fn poll_cq(&self, cq: &ProviderCq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        with!(self, cq, ProviderCq, |verbs, cq| verbs.poll_cq(cq, out))
    }

    fn create_srq(
        &self,
        pd: &ProviderPd,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<ProviderSrq, VerbsError> {
        make!(self, pd, ProviderPd, ProviderSrq, |verbs, pd| verbs.create_srq(pd, max_wr, max_sge))
    }

    fn create_qp(&self, id: &ProviderId, options: QpOptions<Self>) -> Result<(), VerbsError> {
        match (self, id) {
            #[cfg(target_os = "linux")]
            (Self::System(verbs), ProviderId::System(id)) => {
                create_qp!(verbs, id, options, System)
            }
            (Self::Memory(verbs), ProviderId::Memory(id)) => {
                create_qp!(verbs, id, options, Memory)
            }
            #[cfg(target_os = "linux")]
            _ => panic!("the handle belongs to another implementation"),
        }
    }

    fn qp_num(&self, id: &ProviderId) -> Option<u32> {
        with!(self, id, ProviderId, |verbs, id| verbs.qp_num(id))
    }

    fn connect(&self, id: &ProviderId, param: &ConnParam) -> Result<(), VerbsError> {
        with!(self, id, ProviderId, |verbs, id| verbs.connect(id, param))
    }

    fn accept(&self, id: &ProviderId, param: &ConnParam) -> Result<(), VerbsError> {
        with!(self, id, ProviderId, |verbs, id| verbs.accept(id, param))
    }

    fn reject(&self, id: &ProviderId, private_data: &[u8]) -> Result<(), VerbsError> {
        with!(self, id, ProviderId, |verbs, id| verbs.reject(id, private_data))
    }

    fn disconnect(&self, id: &ProviderId) -> Result<(), VerbsError> {
        with!(self, id, ProviderId, |verbs, id| verbs.disconnect(id))
    }

    fn post_send(&self, id: &ProviderId, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        with!(self, id, ProviderId, |verbs, id| verbs.post_send(id, requests))
    }

    fn post_recv(&self, id: &ProviderId, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        with!(self, id, ProviderId, |verbs, id| verbs.post_recv(id, requests))
    }

    fn post_srq_recv(
        &self,
        srq: &ProviderSrq,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        with!(self, srq, ProviderSrq, |verbs, srq| verbs.post_srq_recv(srq, requests))
    }
}
