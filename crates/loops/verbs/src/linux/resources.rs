//! Protection domains, registrations of memory, completion queues and shared receive queues.

use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use libc::{c_int, sockaddr_storage};

use super::address;
use super::library::{Functions, by_errno, by_number, last_error, pointer};
use super::sys::*;
use crate::error::VerbsError;
use crate::memory::{Keys, Memory};
use crate::request::Access;

/// Makes a descriptor non-blocking, so that the library's functions that get events from it return
/// at once.
pub(super) fn unblock(verb: &'static str, fd: RawFd) -> Result<(), VerbsError> {
    // SAFETY: reading and setting flags of an open descriptor touches no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(last_error(verb));
    }
    // SAFETY: as above.
    let result = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    if result < 0 { Err(last_error(verb)) } else { Ok(()) }
}

/// Keeps a device open while protection domains and queues use its context. Without it, librdmacm
/// would close the context of a removed device together with its last connection.
struct Anchor {
    functions: &'static Functions,
    raw: *mut rdma_cm_id,
}

impl Anchor {
    /// Makes an anchor for the device of `context`, which must have this address.
    fn new(
        functions: &'static Functions,
        context: *mut ibv_context,
        mut local: sockaddr_storage,
    ) -> Result<Self, VerbsError> {
        if let Some(mut any_port) = address::from_storage(&local) {
            any_port.set_port(0);
            local = address::to_storage(any_port);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: without a channel the library makes one for this identifier.
        let result = unsafe {
            (functions.rdma_create_id)(ptr::null_mut(), &mut raw, ptr::null_mut(), RDMA_PS_TCP)
        };
        by_errno("rdma_create_id", result)?;
        let anchor = Self { functions, raw };
        // SAFETY: the identifier is alive, and `local` has an address.
        let result =
            unsafe { (functions.rdma_bind_addr)(anchor.raw, address::pointer_to(&mut local)) };
        by_errno("rdma_bind_addr", result)?;
        // SAFETY: the identifier is alive.
        let is_same = unsafe { (*anchor.raw).verbs } == context;
        let other = || VerbsError::refused("rdma_bind_addr", std::io::ErrorKind::NotFound);
        is_same.then_some(anchor).ok_or_else(other)
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // SAFETY: `new` made the identifier, and nothing else knows it.
        unsafe { (self.functions.rdma_destroy_id)(self.raw) };
    }
}

/// A protection domain.
#[derive(Clone)]
pub struct Pd(Arc<PdOwner>);

struct PdOwner {
    functions: &'static Functions,
    raw: *mut ibv_pd,
    context: *mut ibv_context,
    _anchor: Anchor,
}

// SAFETY: libibverbs may be called on any thread, also at the same time.
unsafe impl Send for PdOwner {}
// SAFETY: as above.
unsafe impl Sync for PdOwner {}

impl Drop for PdOwner {
    fn drop(&mut self) {
        // SAFETY: every object of the domain holds a reference to the domain, so no object is left.
        unsafe { (self.functions.ibv_dealloc_pd)(self.raw) };
    }
}

impl Pd {
    /// # Safety
    /// `context` is the device of a live connection with the address `local`.
    pub(super) unsafe fn new(
        functions: &'static Functions,
        context: *mut ibv_context,
        local: sockaddr_storage,
    ) -> Result<Self, VerbsError> {
        let anchor = Anchor::new(functions, context, local)?;
        // SAFETY: the anchor keeps the context open.
        let raw = pointer("ibv_alloc_pd", unsafe { (functions.ibv_alloc_pd)(context) })?;
        Ok(Self(Arc::new(PdOwner { functions, raw, context, _anchor: anchor })))
    }

    pub(super) fn raw(&self) -> *mut ibv_pd {
        self.0.raw
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.0.context
    }
}

/// A registration of memory, which owns the memory.
pub struct Mr {
    pd: Pd,
    raw: *mut ibv_mr,
    keys: Keys,
    memory: Option<Arc<dyn Memory>>,
}

// SAFETY: libibverbs may be called on any thread, also at the same time.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    pub(super) fn new(
        pd: &Pd,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let address = memory.address().as_ptr();
        let bytes = memory.bytes();
        // SAFETY: `Memory` promises that the range is valid as long as `memory` lives, and this
        // value keeps it until the registration has ended.
        let raw = unsafe {
            (pd.0.functions.ibv_reg_mr)(pd.raw(), address.cast(), bytes, access.0 as c_int)
        };
        let raw = pointer("ibv_reg_mr", raw)?;
        // SAFETY: the library returned a registration.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        let keys = Keys { address: address as u64, bytes: bytes as u64, lkey, rkey };
        Ok(Self { pd: pd.clone(), raw, keys, memory: Some(memory) })
    }

    pub(super) fn keys(&self) -> Keys {
        self.keys
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: `new` made the registration, and nothing else ends it.
        let result = unsafe { (self.pd.0.functions.ibv_dereg_mr)(self.raw) };
        if result != 0 {
            // The device may still write to this memory.
            std::mem::forget(self.memory.take());
        }
    }
}

/// A completion queue, and the channel that reports its events.
#[derive(Clone)]
pub struct Cq(Arc<CqOwner>);

struct CqOwner {
    pd: Pd,
    raw: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
}

// SAFETY: libibverbs may be called on any thread, also at the same time.
unsafe impl Send for CqOwner {}
// SAFETY: as above.
unsafe impl Sync for CqOwner {}

impl Drop for CqOwner {
    fn drop(&mut self) {
        let functions = self.pd.0.functions;
        // SAFETY: each queue pair keeps a clone of its `Cq`, so no queue pair uses this completion
        // queue any more. Each event was acknowledged when it was read. The channel has events of
        // this completion queue only.
        unsafe {
            if !self.raw.is_null() {
                (functions.ibv_destroy_cq)(self.raw);
            }
            (functions.ibv_destroy_comp_channel)(self.channel);
        }
    }
}

impl Cq {
    pub(super) fn new(pd: &Pd, entries: u32) -> Result<Self, VerbsError> {
        let functions = pd.0.functions;
        // SAFETY: the domain keeps the context open.
        let channel = unsafe { (functions.ibv_create_comp_channel)(pd.context()) };
        let channel = pointer("ibv_create_comp_channel", channel)?;
        let mut owner = CqOwner { pd: pd.clone(), raw: ptr::null_mut(), channel };
        // SAFETY: the channel is alive.
        unblock("ibv_create_comp_channel", unsafe { (*channel).fd })?;
        let entries = entries.min(i32::MAX as u32) as c_int;
        // SAFETY: context and channel are alive, and belong together.
        let raw = unsafe {
            (functions.ibv_create_cq)(pd.context(), entries, ptr::null_mut(), channel, 0)
        };
        owner.raw = pointer("ibv_create_cq", raw)?;
        Ok(Self(Arc::new(owner)))
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.0.raw
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.0.pd.context()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.0.channel).fd) }
    }

    /// Takes and acknowledges one event. Returns false if no event is pending.
    pub(super) fn take_event(&self) -> Result<bool, VerbsError> {
        let functions = self.0.pd.0.functions;
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive.
        let result = unsafe { (functions.ibv_get_cq_event)(self.0.channel, &mut cq, &mut user) };
        if result != 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(false),
                _ => Err(VerbsError::Refused { verb: "ibv_get_cq_event", error }),
            };
        }
        // SAFETY: the library returned this queue, whose channel has no other.
        unsafe { (functions.ibv_ack_cq_events)(cq, 1) };
        Ok(true)
    }
}

/// A shared receive queue.
#[derive(Clone)]
pub struct Srq(Arc<SrqOwner>);

struct SrqOwner {
    pd: Pd,
    raw: *mut ibv_srq,
}

// SAFETY: libibverbs may be called on any thread, also at the same time.
unsafe impl Send for SrqOwner {}
// SAFETY: as above.
unsafe impl Sync for SrqOwner {}

impl Drop for SrqOwner {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their queues, so none uses this one.
        unsafe { (self.pd.0.functions.ibv_destroy_srq)(self.raw) };
    }
}

impl Srq {
    pub(super) fn new(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self, VerbsError> {
        let mut options =
            ibv_srq_init_attr { srq_context: ptr::null_mut(), max_wr, max_sge, srq_limit: 0 };
        // SAFETY: the domain is alive, and the library only reads and writes `options`.
        let raw = unsafe { (pd.0.functions.ibv_create_srq)(pd.raw(), &mut options) };
        let raw = pointer("ibv_create_srq", raw)?;
        Ok(Self(Arc::new(SrqOwner { pd: pd.clone(), raw })))
    }

    pub(super) fn raw(&self) -> *mut ibv_srq {
        self.0.raw
    }

    pub(super) fn context(&self) -> *mut ibv_context {
        self.0.pd.context()
    }
}

/// Requests an event for the next completion, successful or not.
pub(super) fn request_event(cq: &Cq) -> Result<(), VerbsError> {
    // SAFETY: the queue keeps its context open, and the functions of the context accept its queues.
    let result = unsafe {
        let ask = (*cq.context()).req_notify_cq;
        ask.map_or(libc::EOPNOTSUPP, |ask| ask(cq.raw(), 0))
    };
    by_number("ibv_req_notify_cq", result)
}
