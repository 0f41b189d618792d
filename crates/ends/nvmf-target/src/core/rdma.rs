//! RDMA connections of a core. Core 0 receives the connection requests for all cores.

use super::Core;
use crate::admissions::Reason;
use crate::connection::Connection;
use crate::door::{ConnectionRequest, Door, News};
use crate::limits;
use crate::mailbox::Message;
use crate::notices::NoticeKind;
use crate::session::Session;
use crate::transport::rdma::{Rdma as Transport, Staging};
use farblock_proto::controller::Entrance;
use farblock_reactor::{TaskId, os};
use farblock_verbs::{Provider, Verbs, VerbsError};
use farblock_wire::rdma::RejectStatus;
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::{Rc, Weak};
use std::time::Instant;

#[derive(Default)]
pub(super) struct Rdma {
    door: Option<Door>,
    /// The registered memory of each device that connections of this core use, by device name.
    devices: Vec<(String, Weak<RefCell<Staging>>)>,
}

impl Rdma {
    /// Stops accepting connection requests. The core still receives the events that report the ends
    /// of existing connections.
    pub(super) fn close(&mut self) {
        if let Some(door) = &mut self.door {
            door.close();
        }
    }

    /// The time of the next attempt to replace a lost listener.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.door.as_ref().and_then(Door::retry_at)
    }

    /// Whether connections wait for registered memory.
    pub(super) fn is_starved(&self) -> bool {
        self.devices
            .iter()
            .filter_map(|(_, device)| device.upgrade())
            .any(|device| device.borrow().is_starved())
    }

    /// Stops listening at an address. The core still receives the events that report the ends of
    /// connections accepted there.
    pub(super) fn unlisten(&mut self, address: SocketAddr) {
        if let Some(door) = &mut self.door {
            door.unlisten(address);
        }
    }

    /// Returns the registered memory of the request's device. All connections of this core to the
    /// device share this memory.
    fn staging(&mut self, request: &ConnectionRequest) -> Result<Rc<RefCell<Staging>>, VerbsError> {
        let is_usable = |device: Rc<RefCell<Staging>>| !device.borrow().is_removed;
        self.devices.retain(|(_, device)| device.upgrade().is_some_and(is_usable));
        let name = &request.device.name;
        let known = self.devices.iter().find(|(other, _)| other == name);
        if let Some(staging) = known.and_then(|(_, device)| device.upgrade()) {
            return Ok(staging);
        }
        let pd = request.verbs.alloc_pd(&request.id)?;
        let can_invalidate = request.device.can_invalidate;
        let staging = Staging::new(request.verbs.clone(), pd, can_invalidate);
        let staging = Rc::new(RefCell::new(staging));
        self.devices.push((name.clone(), Rc::downgrade(&staging)));
        Ok(staging)
    }
}

impl Core {
    /// Makes the core receive the connection requests of the listeners in `door`.
    pub(crate) fn open(&mut self, mut door: Option<Door>) -> std::io::Result<()> {
        if let Some(door) = &mut door {
            door.limit(self.cx.shared.budget.core_bytes());
            door.attend(&self.cx.reactor, self.task)?;
        }
        self.doors.rdma.door = door;
        Ok(())
    }

    /// Opens a further RDMA listener.
    pub(super) fn listen_by_rdma(
        &mut self,
        provider: Provider,
        address: SocketAddr,
    ) -> Result<(), String> {
        if let Some(door) = &mut self.doors.rdma.door {
            return door.listen(address).map_err(|error| error.to_string());
        }
        let door = Door::open(provider, &[address]).map_err(|(_, error)| error.to_string())?;
        self.open(Some(door)).map_err(|error| error.to_string())
    }

    /// Handles the events of the connection manager.
    pub(super) fn receive_requests(&mut self) {
        for _ in 0..limits::RDMA_REQUESTS_PER_ROUND {
            let Some(news) = self.doors.rdma.door.as_mut().and_then(Door::next) else {
                return self.listen_again();
            };
            match news {
                News::Request(request) => self.requested(request),
                News::Rejected(peer, reason) => {
                    let peer = peer.map_or(IpAddr::from(Ipv4Addr::UNSPECIFIED), |it| it.ip());
                    self.cx.shared.admissions.refused(Reason::NotServed);
                    self.cx.notice(NoticeKind::Refused, peer, || {
                        tracing::warn!(%peer, "rejected an RDMA connection: {reason}");
                    });
                }
                News::ListenerLost(address) => {
                    self.cx.shared.listening.set_lost(Entrance::rdma(address), true);
                    tracing::error!(
                        "rdma:{address} accepts no connections, because its device was removed or \
                         its address moved: the target tries to listen there again every {:?}",
                        limits::RDMA_LISTEN_PERIOD
                    );
                }
                News::Failed(error) => {
                    let peer = Ipv4Addr::UNSPECIFIED.into();
                    self.cx.shared.admissions.refused(Reason::NotServed);
                    self.cx.notice(NoticeKind::NotServed, peer, || {
                        tracing::warn!("cannot accept an RDMA connection: {error}");
                    });
                    // Do not poll the channel again in this tick: it may fail each time.
                    return;
                }
            }
        }
        // More events may be waiting.
        self.cx.reactor.notify(self.task);
    }

    /// Replaces lost listeners.
    fn listen_again(&mut self) {
        let Some(door) = &mut self.doors.rdma.door else { return };
        for address in door.listen_again(os::now()) {
            self.cx.shared.listening.set_lost(Entrance::rdma(address), false);
            tracing::info!("listening again at rdma:{address}");
        }
    }

    fn requested(&mut self, request: Box<ConnectionRequest>) {
        let Some(serial) = self.admit(request.peer) else {
            return request.reject(RejectStatus::NO_RESOURCES);
        };
        let core = self.turn();
        if core == self.cx.index {
            self.adopt_request(&request, serial);
        } else {
            self.cx.shared.mailboxes()[core].post(Message::Requested(request, serial));
        }
    }

    /// Serves a request as a connection of this core.
    pub(super) fn adopt_request(&mut self, request: &ConnectionRequest, serial: u64) {
        let task = self.cx.reactor.add_task();
        match self.accept_request(request, task) {
            Ok(transport) => {
                let (peer, local) = (request.peer, request.local);
                self.entrances.insert(serial, Entrance::rdma(local));
                self.begin(task, serial, |route| {
                    Connection::Rdma(Session::new(route, task, transport, peer, local))
                });
            }
            Err(error) => {
                self.cx.reactor.remove_task(task);
                request.reject(RejectStatus::NO_RESOURCES);
                self.not_served(request.peer, serial, &error);
            }
        }
    }

    fn accept_request(
        &mut self,
        request: &ConnectionRequest,
        task: TaskId,
    ) -> Result<Transport, VerbsError> {
        if self.stopping {
            let error = std::io::Error::other("the target is stopping");
            return Err(VerbsError::Refused { verb: "rdma_accept", error });
        }
        if !self.cx.memory.may_last_at(request.peer.ip(), Transport::most_bytes(request)) {
            let error = std::io::Error::other("other connections use all memory for RDMA queues");
            return Err(VerbsError::Refused { verb: "rdma_accept", error });
        }
        let staging = self.doors.rdma.staging(request)?;
        Transport::accept(&self.cx.reactor, task, request, staging)
    }
}
