//! A connected controller: admin commands, and namespaces to read and write.

use crate::association::{Association, Connecting};
use crate::control::{self, Control, Local};
use crate::error::Error;
use crate::namespace::RemoteNamespace;
use crate::options::Options;
use crate::transport::dial::Address;
use crate::url::Url;
use farblock_proto::host::command::LogPage;
use farblock_proto::host::{Command, ControllerInfo, DiscoveryEntry, NamespaceInfo};
use farblock_wire::Cqe;
use farblock_wire::identify::Cns;
use farblock_wire::log::AnaState;
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::reset::CrossControllerReset;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// A controller of a remote subsystem. Clones refer to the same controller. When the program has
/// dropped all clones, namespaces and queues of the controller, the host shuts the controller down.
#[derive(Clone)]
pub struct Controller {
    association: Arc<Association>,
}

impl Controller {
    /// Connects to `subsystem` at `address`: `host`, `host:port` or `[v6]:port`; the default port
    /// is 4420.
    ///
    /// # Errors
    /// Returns [`Error::Connect`] if the connection fails, and another error if the host fails
    /// before it contacts the controller.
    pub fn connect(address: &str, subsystem: &str, options: &Options) -> Result<Self, Error> {
        Self::dial(Address::parse(address)?, subsystem, options)
    }

    fn dial(address: Address, subsystem: &str, options: &Options) -> Result<Self, Error> {
        let connecting = Connecting::new(address, subsystem, options)?;
        let control = Control::shared(options.engine).map_err(Error::System)?;
        let for_loop = Arc::clone(&control);
        let association = control.run(|local| connecting.connect(local, for_loop));
        let not_waited = || Err(Error::Lost("the host's control thread failed".into()));
        Ok(Self { association: association.unwrap_or_else(not_waited)? })
    }

    /// Connects to `subsystem` of a target in the same process, for tests. The controller's address
    /// is the unspecified address.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::connect`].
    #[cfg(feature = "memory")]
    pub fn connect_in_memory(
        dial: crate::memory::Dial,
        subsystem: &str,
        options: &Options,
    ) -> Result<Self, Error> {
        Self::dial(Address::Memory(dial), subsystem, options)
    }

    /// Connects to `subsystem` over a network of RDMA nodes in memory, for tests.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::connect`].
    #[cfg(feature = "memory")]
    pub fn connect_by_rdma(
        provider: farblock_verbs::Provider,
        address: SocketAddr,
        subsystem: &str,
        options: &Options,
    ) -> Result<Self, Error> {
        let address = crate::transport::rdma::RdmaAddress::on(provider, address);
        Self::dial(Address::Rdma(address), subsystem, options)
    }

    /// Connects to the subsystem in the URL, or to the discovery service if the URL names no
    /// subsystem. The URL's digests and identity override the options.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::connect`].
    pub fn connect_url(url: &Url, options: &Options) -> Result<Self, Error> {
        let options = options.with_url(url);
        let subsystem = url.subsystem.as_deref().unwrap_or(DISCOVERY_NQN);
        Self::dial(Address::of_url(url).map_err(Error::Url)?, subsystem, &options)
    }

    /// Connects like [`Controller::connect_url`], without blocking: the caller is a future on the
    /// control loop.
    pub(crate) async fn connect_on(
        local: &Local,
        control: &Arc<Control>,
        url: &Url,
        options: &Options,
        first: Option<SocketAddr>,
    ) -> Result<Self, Error> {
        let options = options.with_url(url);
        let subsystem = url.subsystem.as_deref().unwrap_or(DISCOVERY_NQN);
        let address = Address::of_url(url).map_err(Error::Url)?.beginning_with(first);
        let connecting = Connecting::new(address, subsystem, &options)?;
        let association = connecting.connect(local.clone(), Arc::clone(control)).await?;
        Ok(Self { association })
    }

    /// The controller's properties.
    #[must_use]
    pub fn info(&self) -> &ControllerInfo {
        self.association.info()
    }

    /// The maximum number of commands in flight on each I/O queue: the requested number, or fewer
    /// if the controller's queues are shorter.
    #[must_use]
    pub fn queue_depth(&self) -> u16 {
        let requested = self.info().queue_depth(self.association.options().queue_depth);
        self.association.shared().depth().unwrap_or(requested)
    }

    /// The controller's socket address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.association.address()
    }

    /// The NQN of the controller's subsystem.
    #[must_use]
    pub fn subsystem(&self) -> &str {
        self.association.subsystem()
    }

    /// The reason why the controller is lost; `None` while the controller is connected.
    #[must_use]
    pub fn lost(&self) -> Option<Error> {
        self.association.lost()
    }

    pub(crate) fn association(&self) -> &Arc<Association> {
        &self.association
    }

    /// Resets another controller of this host in the same subsystem (Cross-Controller Reset).
    /// Returns true once that controller and all commands sent to it have ended. After false, call
    /// this method again.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::admin`], and if this controller does not support
    /// the reset or rejects it.
    pub fn end_other(&self, other: CrossControllerReset) -> Result<bool, Error> {
        control::wait(self.association.end_other(other))
    }

    /// The ANA state of a namespace through this controller. If the controller reports no ANA
    /// states, the state is optimized.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::namespace_info`] and [`Controller::log_page`].
    pub fn access(&self, nsid: u32) -> Result<AnaState, Error> {
        control::wait(self.association.access(nsid))
    }

    /// Reauthenticates this host with the current secret in its key file, and the controller if the
    /// options require it. The exchange uses the admin queue and does not affect other queues. A
    /// controller that rejects the host closes the connection.
    ///
    /// # Errors
    /// Returns [`Error::Authentication`] with the reason. It also returns this error if there is no
    /// secret, or if reauthentication is already in progress.
    pub fn authenticate(&self) -> Result<(), Error> {
        control::wait(self.association.authenticate())
    }

    /// Executes an admin command and waits for its completion. The host sends `data` to the
    /// controller. Returns the completion, with any status, and the controller's data.
    ///
    /// # Errors
    /// Fails if the command cannot be sent, or the controller is lost before it answers.
    pub fn admin(&self, command: &Command, data: &[u8]) -> Result<(Cqe, Vec<u8>), Error> {
        control::wait(self.association.admin(command, data))
    }

    /// Returns the 4096 bytes of an Identify command with the given CNS.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::admin`], and if the command fails.
    pub fn identify(&self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Error> {
        control::wait(self.association.identify(cns, nsid))
    }

    /// Reads a part of a log page.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::identify`].
    ///
    /// # Panics
    /// Panics if offset or length is not a multiple of 4, or the length is 0.
    pub fn log_page(&self, log: LogPage) -> Result<Vec<u8>, Error> {
        control::wait(self.association.log_page(log))
    }

    /// The identifiers of the active namespaces, in ascending order.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::identify`], and if the answer is invalid.
    pub fn namespace_ids(&self) -> Result<Vec<u32>, Error> {
        control::wait(self.association.namespace_ids())
    }

    /// The properties of a namespace.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::identify`], and if the namespace does not exist
    /// or cannot be used.
    pub fn namespace_info(&self, nsid: u32) -> Result<NamespaceInfo, Error> {
        control::wait(self.association.namespace_info(nsid))
    }

    /// The active namespaces. Leaves out unusable namespaces, and logs a warning for each.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::namespace_ids`].
    pub fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        control::wait(self.association.namespaces())
    }

    /// Finds a namespace, for reads and writes.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::namespace_info`].
    pub fn namespace(&self, nsid: u32) -> Result<RemoteNamespace, Error> {
        control::wait(RemoteNamespace::find(&self.association, nsid))
    }

    /// The records of a discovery controller's discovery log page.
    ///
    /// # Errors
    /// Fails for the same reasons as [`Controller::log_page`], and if the page is invalid.
    pub fn discovery(&self) -> Result<Vec<DiscoveryEntry>, Error> {
        control::wait(self.association.discovery())
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subsystem, address) = (self.subsystem(), self.address());
        write!(f, "Controller({subsystem} at {address}, CNTLID {})", self.info().cntlid)
    }
}
