//! An association with a controller: its setup, its admin commands, and the connections of its I/O
//! queues.

mod connecting;
mod questions;

pub(crate) use connecting::Connecting;

use crate::control::{self, Control, Receiver};
use crate::error::Error;
use crate::identity::HostIdentity;
use crate::options::Options;
use crate::shared::ControllerShared;
use crate::transport::dial::Address;
use crate::url::Url;
use farblock_proto::host::{ConnectError, ControllerInfo};
use farblock_wire::tcp::PORT_IO;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// An association of this host with a controller. Its queues and its callers own it together. When
/// the last of them drops it, the host shuts the controller down.
pub(crate) struct Association {
    shared: Arc<ControllerShared>,
    info: ControllerInfo,
    /// The address for the connections of the I/O queues.
    route: Address,
    /// The controller's socket address.
    address: SocketAddr,
    subsystem: String,
    identity: HostIdentity,
    options: Options,
    /// Resolves when the admin queue has ended and released its resources.
    ended: Mutex<Option<Receiver<()>>>,
    /// Whether reauthentication is in progress.
    authenticates: AtomicBool,
    /// The control loop that runs the admin queue.
    control: Arc<Control>,
}

impl Association {
    pub(crate) fn shared(&self) -> &ControllerShared {
        &self.shared
    }

    pub(crate) fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// The controller's socket address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The NQN of the subsystem.
    pub(crate) fn subsystem(&self) -> &str {
        &self.subsystem
    }

    /// The reason why the controller is lost; `None` while the controller is connected.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.shared.is_lost().then(|| self.shared.lost_error())
    }

    /// Takes the receiver that resolves when the admin queue has ended; `None` after the first
    /// call.
    pub(crate) fn take_ended(&self) -> Option<Receiver<()>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The `nvme+tcp://…` URL of a namespace, for logs.
    pub(crate) fn url(&self, nsid: u32) -> String {
        let url = Url {
            host: self.address.ip().to_string(),
            port: Some(self.address.port()).filter(|&port| port != PORT_IO),
            subsystem: Some(self.subsystem.clone()),
            namespace: Some(nsid),
            carriage: self.route.carriage(),
            ..Url::default()
        };
        url.to_string()
    }

    pub(crate) fn connect_error(&self, reason: ConnectError) -> Error {
        let (address, subsystem) = (self.address.to_string(), self.subsystem.clone());
        Error::Connect { address, subsystem, reason }
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        self.shared.stop();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // This wait is short: the admin queue closes within a time limit.
        if control::may_wait() {
            let _ = ended.map(Receiver::wait);
        }
    }
}
