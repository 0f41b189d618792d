//! Channels through which librdmacm reports events of connections.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::connection::{Id, IdOwner};
use super::library::{Functions, pointer};
use super::resources::unblock;
use super::sys::*;
use crate::error::VerbsError;
use crate::verbs::{CmEvent, CmEventType, ConnParam};

/// An event channel. It exists as long as one of its identifiers does.
#[derive(Clone)]
pub struct Channel(Arc<ChannelOwner>);

struct ChannelOwner {
    functions: &'static Functions,
    raw: *mut rdma_event_channel,
    /// The owners of the channel's identifiers, by the identifier's address in memory.
    ids: Mutex<HashMap<usize, Weak<IdOwner>>>,
}

// SAFETY: librdmacm may be called on any thread, also at the same time.
unsafe impl Send for ChannelOwner {}
// SAFETY: as above.
unsafe impl Sync for ChannelOwner {}

impl Drop for ChannelOwner {
    fn drop(&mut self) {
        // SAFETY: identifiers hold their channel, so none is left, and `next` has acknowledged
        // every event.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.raw) };
    }
}

/// A copy of an event, without pointers into the library's memory.
struct Copied {
    id: *mut rdma_cm_id,
    listener: *mut rdma_cm_id,
    event: u32,
    status: i32,
    param: ConnParam,
}

impl Channel {
    pub(super) fn new(functions: &'static Functions) -> Result<Self, VerbsError> {
        // SAFETY: the function has no precondition.
        let raw = unsafe { (functions.rdma_create_event_channel)() };
        let raw = pointer("rdma_create_event_channel", raw)?;
        let channel = Self(Arc::new(ChannelOwner { functions, raw, ids: Mutex::default() }));
        // SAFETY: the channel is alive.
        unblock("rdma_create_event_channel", unsafe { (*raw).fd })?;
        Ok(channel)
    }

    pub(super) fn raw(&self) -> *mut rdma_event_channel {
        self.0.raw
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.0.raw).fd) }
    }

    fn ids(&self) -> MutexGuard<'_, HashMap<usize, Weak<IdOwner>>> {
        self.0.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remember(&self, raw: *mut rdma_cm_id, id: &Id) {
        self.ids().insert(raw as usize, Arc::downgrade(&id.0));
    }

    pub(super) fn forget(&self, raw: *mut rdma_cm_id) {
        self.ids().remove(&(raw as usize));
    }

    fn find(&self, raw: *mut rdma_cm_id) -> Option<Id> {
        self.ids().get(&(raw as usize)).and_then(Weak::upgrade).map(Id)
    }

    /// The next event. `None` if no event is pending.
    pub(super) fn next(&self) -> Result<Option<CmEvent<Id>>, VerbsError> {
        loop {
            let Some(copied) = self.take()? else { return Ok(None) };
            let event = to_type(copied.event);
            let id = if event == CmEventType::ConnectRequest {
                // SAFETY: the library made this identifier for the request, on this channel.
                Some(unsafe { Id::own(self.0.functions, self, copied.id) })
            } else {
                self.find(copied.id)
            };
            // The identifier's last owner is destroying it, so skip its event.
            let Some(id) = id else { continue };
            let listener = self.find(copied.listener);
            let Copied { status, param, .. } = copied;
            return Ok(Some(CmEvent { id, listener, event, status, param }));
        }
    }

    /// Takes, copies and acknowledges one event. Holds no handle of an identifier: dropping the
    /// last handle would wait forever for the acknowledgement of this event.
    fn take(&self) -> Result<Option<Copied>, VerbsError> {
        let functions = self.0.functions;
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive.
        let result = unsafe { (functions.rdma_get_cm_event)(self.0.raw, &mut event) };
        if result != 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(VerbsError::Refused { verb: "rdma_get_cm_event", error }),
            };
        }
        // SAFETY: the library returned an event, which is valid until it is acknowledged. Every
        // event of this port space has `conn`, which is all zeroes if there are no parameters.
        let copied = unsafe {
            let event = &*event;
            Copied {
                id: event.id,
                listener: event.listen_id,
                event: event.event,
                status: event.status,
                param: from_c(&event.conn),
            }
        };
        // SAFETY: the event is acknowledged once, and nothing points to it any more.
        unsafe { (functions.rdma_ack_cm_event)(event) };
        Ok(Some(copied))
    }
}

/// # Safety
/// The private data's pointer is null or valid for its length.
unsafe fn from_c(param: &rdma_conn_param) -> ConnParam {
    let bytes = usize::from(param.private_data_len);
    let private_data = if param.private_data.is_null() || bytes == 0 {
        Vec::new()
    } else {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), bytes) }.to_vec()
    };
    ConnParam {
        private_data,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
    }
}

fn to_type(event: u32) -> CmEventType {
    match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => CmEventType::AddrResolved,
        RDMA_CM_EVENT_ADDR_ERROR => CmEventType::AddrError,
        RDMA_CM_EVENT_ROUTE_RESOLVED => CmEventType::RouteResolved,
        RDMA_CM_EVENT_ROUTE_ERROR => CmEventType::RouteError,
        RDMA_CM_EVENT_CONNECT_REQUEST => CmEventType::ConnectRequest,
        RDMA_CM_EVENT_CONNECT_ERROR => CmEventType::ConnectError,
        RDMA_CM_EVENT_UNREACHABLE => CmEventType::Unreachable,
        RDMA_CM_EVENT_REJECTED => CmEventType::Rejected,
        RDMA_CM_EVENT_ESTABLISHED => CmEventType::Established,
        RDMA_CM_EVENT_DISCONNECTED => CmEventType::Disconnected,
        RDMA_CM_EVENT_DEVICE_REMOVAL => CmEventType::DeviceRemoval,
        RDMA_CM_EVENT_ADDR_CHANGE => CmEventType::AddrChange,
        RDMA_CM_EVENT_TIMEWAIT_EXIT => CmEventType::TimewaitExit,
        other => CmEventType::Other(other),
    }
}
