//! Connections of librdmacm (`struct rdma_cm_id`), with their queue pairs.

use std::fmt;
use std::net::SocketAddr;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use libc::{c_int, c_void, sockaddr_storage};

use super::address;
use super::events::Channel;
use super::library::{Functions, by_errno};
use super::resources::{Cq, Pd, Srq};
use super::sys::*;
use super::system::System;
use crate::error::VerbsError;
use crate::limits;
use crate::verbs::{ConnParam, QpOptions};

/// A connection or a listener.
#[derive(Clone)]
pub struct Id(pub(super) Arc<IdOwner>);

/// Owns the C identifier and its queue pair.
pub(super) struct IdOwner {
    functions: &'static Functions,
    raw: *mut rdma_cm_id,
    channel: Channel,
    /// Held while a verb changes the connection, because the library accesses the identifier's
    /// fields without a lock.
    changing: Mutex<()>,
    qp: OnceLock<QueuePair>,
}

/// A queue pair, and the objects that it uses.
pub(super) struct QueuePair {
    raw: *mut ibv_qp,
    srq: Option<Srq>,
    _kept: (Pd, Cq, Cq),
}

// SAFETY: libibverbs and librdmacm may be called on any thread; `changing` orders the calls that
// change the same identifier.
unsafe impl Send for IdOwner {}
// SAFETY: as above.
unsafe impl Sync for IdOwner {}

impl Drop for IdOwner {
    fn drop(&mut self) {
        // First remove this identifier from the channel: after its destruction, a new identifier
        // may get the same address in memory.
        self.channel.forget(self.raw);
        // SAFETY: no handle is left. The channel acknowledges events before it drops a handle, so
        // destroying the identifier does not wait for an event.
        unsafe {
            if self.qp.get().is_some() {
                (self.functions.rdma_destroy_qp)(self.raw);
            }
            (self.functions.rdma_destroy_id)(self.raw);
        }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Id").field(&self.0.raw).field(&self.qp_num()).finish()
    }
}

impl Id {
    /// Makes a new identifier, which reports its events to the channel.
    pub(super) fn create(
        functions: &'static Functions,
        channel: &Channel,
    ) -> Result<Self, VerbsError> {
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is alive.
        let result = unsafe {
            (functions.rdma_create_id)(channel.raw(), &mut raw, ptr::null_mut(), RDMA_PS_TCP)
        };
        by_errno("rdma_create_id", result)?;
        // SAFETY: the library just made the identifier for this channel.
        Ok(unsafe { Self::own(functions, channel, raw) })
    }

    /// # Safety
    /// `raw` must be an identifier of `channel`, and no other code may own it.
    pub(super) unsafe fn own(
        functions: &'static Functions,
        channel: &Channel,
        raw: *mut rdma_cm_id,
    ) -> Self {
        let channel = channel.clone();
        let (changing, qp) = (Mutex::new(()), OnceLock::new());
        let id = Self(Arc::new(IdOwner { functions, raw, channel, changing, qp }));
        id.0.channel.remember(raw, &id);
        id
    }

    /// Calls a verb that changes the connection.
    fn change(
        &self,
        verb: &'static str,
        call: impl FnOnce(&'static Functions, *mut rdma_cm_id) -> c_int,
    ) -> Result<(), VerbsError> {
        let _alone = self.0.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        by_errno(verb, call(self.0.functions, self.0.raw))
    }

    pub(super) fn listen(&self, at: SocketAddr, backlog: u32) -> Result<(), VerbsError> {
        if address::is_v6(at) {
            let mut only: c_int = 1;
            self.change("rdma_set_option", |functions, raw| {
                let option = (RDMA_OPTION_ID as c_int, RDMA_OPTION_ID_AFONLY as c_int);
                let value: *mut c_void = (&raw mut only).cast();
                // SAFETY: the identifier is alive, and the option's value is an `int`.
                unsafe {
                    (functions.rdma_set_option)(raw, option.0, option.1, value, size_of::<c_int>())
                }
            })?;
        }
        let mut storage = address::to_storage(at);
        let local = address::pointer_to(&mut storage);
        self.change("rdma_bind_addr", |functions, raw| {
            // SAFETY: the identifier is alive, and the storage has an address.
            unsafe { (functions.rdma_bind_addr)(raw, local) }
        })?;
        let backlog = backlog.min(i32::MAX as u32) as c_int;
        // SAFETY: the identifier is alive.
        self.change("rdma_listen", |f, raw| unsafe { (f.rdma_listen)(raw, backlog) })
    }

    pub(super) fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        target: SocketAddr,
        timeout_ms: u32,
    ) -> Result<(), VerbsError> {
        let mut target = address::to_storage(target);
        let mut source = source.map(address::to_storage);
        let from = source.as_mut().map_or(ptr::null_mut(), address::pointer_to);
        let to = address::pointer_to(&mut target);
        self.change("rdma_resolve_addr", |functions, raw| {
            // SAFETY: the identifier is alive, the library copies the addresses, and `source` may
            // be null.
            unsafe { (functions.rdma_resolve_addr)(raw, from, to, milliseconds(timeout_ms)) }
        })
    }

    pub(super) fn resolve_route(&self, timeout_ms: u32) -> Result<(), VerbsError> {
        self.change("rdma_resolve_route", |functions, raw| {
            // SAFETY: the identifier is alive; the library checks its state.
            unsafe { (functions.rdma_resolve_route)(raw, milliseconds(timeout_ms)) }
        })
    }

    /// The context of the connection's device. Fails before the address is resolved.
    pub(super) fn context(&self) -> Result<*mut ibv_context, VerbsError> {
        // SAFETY: the identifier is alive.
        let context = unsafe { (*self.0.raw).verbs };
        let unbound = || VerbsError::refused("rdma_resolve_addr", std::io::ErrorKind::NotConnected);
        if context.is_null() { Err(unbound()) } else { Ok(context) }
    }

    /// Both ends' addresses, this end's first.
    pub(super) fn addresses(&self) -> (sockaddr_storage, sockaddr_storage) {
        let _alone = self.0.changing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the identifier is alive.
        unsafe { ((*self.0.raw).src_addr, (*self.0.raw).dst_addr) }
    }

    pub(super) fn create_qp(&self, options: QpOptions<System>) -> Result<(), VerbsError> {
        let QpOptions { pd, send_cq, recv_cq, srq, .. } = &options;
        let context = self.context()?;
        let srq_context = srq.as_ref().map_or(context, Srq::context);
        let contexts = [pd.context(), send_cq.context(), recv_cq.context(), srq_context];
        let is_taken = self.0.qp.get().is_some();
        if is_taken || contexts.iter().any(|other| *other != context) {
            let kind = std::io::ErrorKind::InvalidInput;
            return Err(VerbsError::refused("rdma_create_qp", kind));
        }
        let mut attributes = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: srq.as_ref().map_or(ptr::null_mut(), Srq::raw),
            max_send_wr: options.max_send_wr,
            max_recv_wr: options.max_recv_wr,
            max_send_sge: options.max_send_sge,
            max_recv_sge: options.max_recv_sge,
            max_inline_data: options.max_inline_bytes,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let domain = pd.raw();
        let mut made = ptr::null_mut();
        self.change("rdma_create_qp", |functions, raw| {
            // SAFETY: identifier, domain and queues are alive and of one device; the library
            // refuses a second queue pair.
            unsafe {
                let result = (functions.rdma_create_qp)(raw, domain, &mut attributes);
                made = (*raw).qp;
                result
            }
        })?;
        let QpOptions { pd, send_cq, recv_cq, srq, .. } = options;
        let qp = QueuePair { raw: made, srq, _kept: (pd, send_cq, recv_cq) };
        // The library refuses a second queue pair, so the cell is still empty.
        let _ = self.0.qp.set(qp);
        Ok(())
    }

    /// The queue pair; `None` before [`Self::create_qp`].
    pub(super) fn qp(&self) -> Option<*mut ibv_qp> {
        self.0.qp.get().map(|qp| qp.raw)
    }

    pub(super) fn has_srq(&self) -> bool {
        self.0.qp.get().is_some_and(|qp| qp.srq.is_some())
    }

    pub(super) fn qp_num(&self) -> Option<u32> {
        // SAFETY: the queue pair lives as long as the identifier.
        self.qp().map(|qp| unsafe { (*qp).qp_num })
    }

    /// Converts `param` to the C structure, which points to the private data in `param`. Fails if
    /// the connection has no queue pair, because then the library would read `qp_num`.
    fn to_c(
        &self,
        verb: &'static str,
        param: &ConnParam,
        most: usize,
    ) -> Result<rdma_conn_param, VerbsError> {
        if self.qp().is_none() {
            return Err(VerbsError::refused(verb, std::io::ErrorKind::InvalidInput));
        }
        Ok(rdma_conn_param {
            private_data: param.private_data.as_ptr().cast(),
            private_data_len: data_bytes(verb, &param.private_data, most)?,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: 0,
            qp_num: 0,
        })
    }

    pub(super) fn connect(&self, param: &ConnParam) -> Result<(), VerbsError> {
        let mut c_param = self.to_c("rdma_connect", param, limits::REQUEST_DATA_BYTES)?;
        self.change("rdma_connect", |functions, raw| {
            // SAFETY: the identifier is alive; the library copies the parameters and the data.
            unsafe { (functions.rdma_connect)(raw, &mut c_param) }
        })
    }

    pub(super) fn accept(&self, param: &ConnParam) -> Result<(), VerbsError> {
        let mut c_param = self.to_c("rdma_accept", param, limits::ACCEPT_DATA_BYTES)?;
        self.change("rdma_accept", |functions, raw| {
            // SAFETY: as in `connect`.
            unsafe { (functions.rdma_accept)(raw, &mut c_param) }
        })
    }

    pub(super) fn reject(&self, data: &[u8]) -> Result<(), VerbsError> {
        let bytes = data_bytes("rdma_reject", data, limits::REJECT_DATA_BYTES)?;
        self.change("rdma_reject", |functions, raw| {
            // SAFETY: the identifier is alive, and the library copies the data.
            unsafe { (functions.rdma_reject)(raw, data.as_ptr().cast(), bytes) }
        })
    }

    pub(super) fn disconnect(&self) -> Result<(), VerbsError> {
        // SAFETY: the identifier is alive; the library checks its state.
        self.change("rdma_disconnect", |f, raw| unsafe { (f.rdma_disconnect)(raw) })
    }
}

fn milliseconds(timeout_ms: u32) -> c_int {
    timeout_ms.min(i32::MAX as u32) as c_int
}

fn data_bytes(verb: &'static str, data: &[u8], most: usize) -> Result<u8, VerbsError> {
    let too_long = || VerbsError::refused(verb, std::io::ErrorKind::InvalidInput);
    u8::try_from(data.len()).ok().filter(|_| data.len() <= most).ok_or_else(too_long)
}
