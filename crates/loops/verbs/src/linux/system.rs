//! Implements [`Verbs`] with the system's libraries, and lists the devices.

use std::ffi::CStr;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use libc::c_void;

use super::address;
use super::connection::Id;
use super::events::Channel;
use super::library::{self, Functions, by_number, pointer};
use super::resources::{Cq, Mr, Pd, Srq, request_event};
use super::{post, sys::*};
use crate::error::{PostError, VerbsError};
use crate::memory::{Keys, Memory};
use crate::request::{Access, Completion, ReceiveRequest, SendRequest};
use crate::verbs::{CmEvent, ConnParam, Device, Port, QpOptions, Source, Verbs};

/// The system's libraries.
#[derive(Clone, Copy)]
pub struct System {
    functions: &'static Functions,
}

impl System {
    /// Loads the libraries. The error names the packages to install.
    pub fn load() -> Result<Self, VerbsError> {
        Ok(Self { functions: library::load()? })
    }

    /// # Safety
    /// `context` must be the context of an open device.
    unsafe fn describe(&self, context: *mut ibv_context) -> Result<Device, VerbsError> {
        // SAFETY: zeroes are valid attributes.
        let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: as the caller promises.
        let result = unsafe { (self.functions.ibv_query_device)(context, &mut attributes) };
        by_number("ibv_query_device", result)?;
        // SAFETY: an open context has its device.
        let name = unsafe { self.name((*context).device) };
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        let count = |value: i32| value.clamp(0, u8::MAX.into()) as u8;
        let mut ports = Vec::new();
        for number in 1..=attributes.phys_port_cnt {
            // SAFETY: zeroes are valid attributes.
            let mut port: ibv_port_attr = unsafe { std::mem::zeroed() };
            // SAFETY: as the caller promises. Older libraries fill a part of the structure.
            let result = unsafe { (self.functions.ibv_query_port)(context, number, &mut port) };
            by_number("ibv_query_port", result)?;
            ports.push(Port {
                is_active: port.state == IBV_PORT_ACTIVE,
                is_ethernet: u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET,
                // The code 1 of `enum ibv_mtu` stands for 256 bytes. Each further code doubles the
                // size.
                mtu_bytes: 128 << port.active_mtu.min(5),
            });
        }
        Ok(Device {
            name,
            max_qp_wr: number(attributes.max_qp_wr),
            max_sge: number(attributes.max_sge),
            max_cqe: number(attributes.max_cqe),
            max_srq_wr: number(attributes.max_srq_wr),
            max_qp_rd_atom: count(attributes.max_qp_rd_atom),
            max_qp_init_rd_atom: count(attributes.max_qp_init_rd_atom),
            can_invalidate: attributes.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS != 0,
            ports,
        })
    }

    /// # Safety
    /// `device` is a live device of the library.
    unsafe fn name(&self, device: *mut c_void) -> String {
        // SAFETY: the library returns a terminated string inside the device.
        let name = unsafe { CStr::from_ptr((self.functions.ibv_get_device_name)(device)) };
        name.to_string_lossy().into_owned()
    }

    fn queue_pair(id: &Id, verb: &'static str) -> Result<*mut ibv_qp, PostError> {
        let missing = || VerbsError::refused(verb, io::ErrorKind::NotConnected);
        id.qp().ok_or_else(|| PostError { posted: 0, error: missing() })
    }
}

impl Verbs for System {
    type EventChannel = Channel;
    type Id = Id;
    type Pd = Pd;
    type Mr = Mr;
    type Cq = Cq;
    type Srq = Srq;

    fn devices(&self) -> Result<Vec<Device>, VerbsError> {
        let mut count = 0;
        // SAFETY: the function stores the count.
        let list = unsafe { (self.functions.ibv_get_device_list)(&mut count) };
        let list = pointer("ibv_get_device_list", list)?;
        let mut found = Vec::new();
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has `count` live devices.
            let device = unsafe { *list.add(at) };
            // SAFETY: the device is alive until the list is freed, and an open context keeps it.
            let context = unsafe { (self.functions.ibv_open_device)(device) };
            // SAFETY: the context is open until it is closed here.
            found.push(pointer("ibv_open_device", context).and_then(|context| unsafe {
                let described = self.describe(context);
                (self.functions.ibv_close_device)(context);
                described
            }));
        }
        // SAFETY: the list is freed once.
        unsafe { (self.functions.ibv_free_device_list)(list) };
        found.into_iter().collect()
    }

    fn create_event_channel(&self) -> Result<Channel, VerbsError> {
        Channel::new(self.functions)
    }

    fn event_source<'a>(&self, channel: &'a Channel) -> Source<'a> {
        Source::Descriptor(channel.fd())
    }

    fn get_cm_event(&self, channel: &Channel) -> Result<Option<CmEvent<Id>>, VerbsError> {
        channel.next()
    }

    fn listen(
        &self,
        channel: &Channel,
        address: SocketAddr,
        backlog: u32,
    ) -> Result<Id, VerbsError> {
        let id = Id::create(self.functions, channel)?;
        id.listen(address, backlog)?;
        Ok(id)
    }

    fn resolve_addr(
        &self,
        channel: &Channel,
        source: Option<SocketAddr>,
        target: SocketAddr,
        timeout_ms: u32,
    ) -> Result<Id, VerbsError> {
        let id = Id::create(self.functions, channel)?;
        id.resolve_addr(source, target, timeout_ms)?;
        Ok(id)
    }

    fn resolve_route(&self, id: &Id, timeout_ms: u32) -> Result<(), VerbsError> {
        id.resolve_route(timeout_ms)
    }

    fn id_key(&self, id: &Id) -> u64 {
        Arc::as_ptr(&id.0) as u64
    }

    fn local_addr(&self, id: &Id) -> Option<SocketAddr> {
        address::from_storage(&id.addresses().0)
    }

    fn peer_addr(&self, id: &Id) -> Option<SocketAddr> {
        address::from_storage(&id.addresses().1)
    }

    fn device(&self, id: &Id) -> Result<Device, VerbsError> {
        // SAFETY: the connection keeps its device open.
        unsafe { self.describe(id.context()?) }
    }

    fn alloc_pd(&self, id: &Id) -> Result<Pd, VerbsError> {
        // SAFETY: the connection keeps its device open during the call.
        unsafe { Pd::new(self.functions, id.context()?, id.addresses().0) }
    }

    fn reg_mr(&self, pd: &Pd, memory: Arc<dyn Memory>, access: Access) -> Result<Mr, VerbsError> {
        Mr::new(pd, memory, access)
    }

    fn keys(&self, mr: &Mr) -> Keys {
        mr.keys()
    }

    fn create_cq(&self, pd: &Pd, entries: u32) -> Result<Cq, VerbsError> {
        Cq::new(pd, entries)
    }

    fn cq_source<'a>(&self, cq: &'a Cq) -> Source<'a> {
        Source::Descriptor(cq.fd())
    }

    fn req_notify_cq(&self, cq: &Cq) -> Result<(), VerbsError> {
        request_event(cq)
    }

    fn get_cq_event(&self, cq: &Cq) -> Result<bool, VerbsError> {
        cq.take_event()
    }

    fn poll_cq(&self, cq: &Cq, out: &mut [Completion]) -> Result<usize, VerbsError> {
        post::poll(cq, out)
    }

    fn create_srq(&self, pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Srq, VerbsError> {
        Srq::new(pd, max_wr, max_sge)
    }

    fn create_qp(&self, id: &Id, options: QpOptions<Self>) -> Result<(), VerbsError> {
        id.create_qp(options)
    }

    fn qp_num(&self, id: &Id) -> Option<u32> {
        id.qp_num()
    }

    fn connect(&self, id: &Id, param: &ConnParam) -> Result<(), VerbsError> {
        id.connect(param)
    }

    fn accept(&self, id: &Id, param: &ConnParam) -> Result<(), VerbsError> {
        id.accept(param)
    }

    fn reject(&self, id: &Id, private_data: &[u8]) -> Result<(), VerbsError> {
        id.reject(private_data)
    }

    fn disconnect(&self, id: &Id) -> Result<(), VerbsError> {
        id.disconnect()
    }

    fn post_send(&self, id: &Id, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        let qp = Self::queue_pair(id, "ibv_post_send")?;
        // SAFETY: `id` keeps its queue pair.
        unsafe { post::send(qp, requests) }
    }

    fn post_recv(&self, id: &Id, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let qp = Self::queue_pair(id, "ibv_post_recv")?;
        if id.has_srq() {
            let error = VerbsError::refused("ibv_post_recv", io::ErrorKind::InvalidInput);
            return Err(PostError { posted: 0, error });
        }
        // SAFETY: `id` keeps its queue pair, which has its own receive queue.
        unsafe { post::receive(qp, requests) }
    }

    fn post_srq_recv(&self, srq: &Srq, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        post::receive_shared(srq, requests)
    }
}
