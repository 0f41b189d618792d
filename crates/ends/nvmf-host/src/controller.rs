//! A connected controller: bringing it up, admin commands, namespaces and I/O queues.

use crate::admin::{self, Pulse, check_request};
use crate::authentication;
use crate::control::{self, Control, Receiver, reply};
use crate::error::Error;
use crate::handshake::{Connected, Handshake};
use crate::identity::HostIdentity;
use crate::limits;
use crate::namespace::RemoteNamespace;
use crate::options::Options;
use crate::shared::{Request, Shared};
use crate::url::{self, Url};
use farblock_proto::host::command::{self, LogPage};
use farblock_proto::host::{
    AnaLog, Bringup, Command, CommandLimits, ConnectError, ControllerInfo, DiscoveryEntry,
    DiscoveryReader, DiscoveryStep, Identity, InfoError, NamespaceInfo, Parameters, Step, accepted,
    ana_log_page, parse_namespace_list, refused,
};
use farblock_reactor::os;
use farblock_secure::TlsPsk;
use farblock_wire::features::AsyncEventConfig;
use farblock_wire::identify::Cns;
use farblock_wire::log::AnaState;
use farblock_wire::nqn::DISCOVERY_NQN;
use farblock_wire::reset::CrossControllerReset;
use farblock_wire::tcp::PORT_IO;
use farblock_wire::{Cqe, IntoBytes, Status};
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Asynchronous events to ask for: changed namespaces, and changed access to them.
const EVENTS: AsyncEventConfig =
    AsyncEventConfig(0).with_namespace_attributes(true).with_ana_change(true);

/// A controller of a remote subsystem. Clones are the same controller; it is shut down when the
/// last of them, and of its namespaces and queues, is gone.
#[derive(Clone)]
pub struct Controller {
    inner: Arc<Inner>,
}

/// See [`Controller`].
pub(crate) struct Inner {
    shared: Arc<Shared>,
    info: ControllerInfo,
    address: SocketAddr,
    subsystem: String,
    identity: HostIdentity,
    options: Options,
    /// The keys for TLS that came of its authentication.
    generated: Vec<TlsPsk>,
    /// Nothing is left of the admin queue when nobody is left to answer.
    ended: Mutex<Option<Receiver<()>>>,
    /// Where it runs.
    _control: Arc<Control>,
}

impl Controller {
    /// Connects to `subsystem` at `address`: `host`, `host:port` or `[v6]:port`, the port being
    /// 4420 if it is left out.
    ///
    /// # Errors
    /// [`Error::Connect`] with the reason, or another if it does not come to that.
    pub fn connect(address: &str, subsystem: &str, options: &Options) -> Result<Self, Error> {
        let (host, port) = url::parse_authority(address)?;
        check_options(subsystem, options)?;
        let (port, identity) = (port.unwrap_or(PORT_IO), options.identity());
        Connecting { host, port, subsystem, options, identity }.connect()
    }

    /// Connects to the subsystem that the URL names, or to the discovery service if it names
    /// none. What the URL says about digests and identity comes before the options.
    ///
    /// # Errors
    /// As [`Controller::connect`].
    pub fn connect_url(url: &Url, options: &Options) -> Result<Self, Error> {
        let options = options.with_url(url);
        let subsystem = url.subsystem.as_deref().unwrap_or(DISCOVERY_NQN);
        Self::connect(&url.address(), subsystem, &options)
    }

    /// What the controller says about itself.
    #[must_use]
    pub fn info(&self) -> &ControllerInfo {
        &self.inner.info
    }

    /// Where the controller is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// NQN of its subsystem.
    #[must_use]
    pub fn subsystem(&self) -> &str {
        &self.inner.subsystem
    }

    /// Why the controller is lost, or `None` while it is not.
    #[must_use]
    pub fn lost(&self) -> Option<Error> {
        self.inner.shared.is_lost().then(|| self.inner.shared.lost_error())
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// Ends another controller of this host's in the same subsystem: true once it is gone with
    /// all that was sent to it, false if it is to be asked again.
    ///
    /// # Errors
    /// As [`Controller::admin`], and when this controller cannot or will not.
    pub fn end_other(&self, other: CrossControllerReset) -> Result<bool, Error> {
        let (cqe, _) = self.admin(&command::cross_controller_reset(other), &[])?;
        let status = cqe.status();
        match Status(status.code()) {
            Status::SUCCESS => Ok(cqe.result() & CrossControllerReset::IMMEDIATE != 0),
            Status::CROSS_CONTROLLER_RESET_IN_PROGRESS
            | Status::CROSS_CONTROLLER_RESET_LOG_FULL
            | Status::CROSS_CONTROLLER_RESET_LIMIT => Ok(false),
            _ => Err(Error::Command { what: "Cross-Controller Reset".to_owned(), status }),
        }
    }

    /// How a namespace can be reached through this controller (ANA); optimized if it does not say.
    ///
    /// # Errors
    /// As [`Controller::namespace_info`] and [`Controller::log_page`].
    pub fn access(&self, nsid: u32) -> Result<AnaState, Error> {
        let Some(groups) = self.inner.info.ana_groups else { return Ok(AnaState::OPTIMIZED) };
        let group = self.namespace_info(nsid)?.ana_group;
        if group == 0 {
            return Ok(AnaState::OPTIMIZED);
        }
        let data = self.log_page(ana_log_page(groups))?;
        let answer = |reason| Error::Answer { what: "the ANA log page".to_owned(), reason };
        let state = AnaLog::parse(&data).map_err(answer)?.state(group);
        // A group that is not listed is one whose state is about to be known.
        Ok(state.unwrap_or(AnaState::CHANGE))
    }

    /// Executes an admin command and waits for it. `data` is what it moves to the controller.
    /// Gives its completion, whatever its status, and what it moved from the controller.
    ///
    /// # Errors
    /// When the command cannot be sent, or the controller is lost before it answers.
    pub fn admin(&self, command: &Command, data: &[u8]) -> Result<(Cqe, Vec<u8>), Error> {
        check_request(command, data)?;
        let (reply, answer) = reply();
        let shared = &self.inner.shared;
        shared.request(Request { command: *command, data: data.to_vec(), reply })?;
        // The admin queue answers in time, or ends and drops the sender.
        answer.wait().unwrap_or_else(|| Err(shared.lost_error()))
    }

    /// Executes an admin command that moves nothing to the controller and has to succeed.
    fn query(&self, command: &Command, what: impl Fn() -> String) -> Result<Vec<u8>, Error> {
        let (cqe, data) = self.admin(command, &[])?;
        let status = cqe.status();
        if status.is_success() { Ok(data) } else { Err(Error::Command { what: what(), status }) }
    }

    /// Identify with any CNS: 4096 bytes.
    ///
    /// # Errors
    /// As [`Controller::admin`], and when the command fails.
    pub fn identify(&self, cns: Cns, nsid: u32) -> Result<Vec<u8>, Error> {
        self.query(&command::identify(cns, nsid), || format!("Identify, {cns}"))
    }

    /// A part of a log page.
    ///
    /// # Errors
    /// As [`Controller::identify`].
    ///
    /// # Panics
    /// If offset or length is not a multiple of 4, or the length is 0.
    pub fn log_page(&self, log: LogPage) -> Result<Vec<u8>, Error> {
        let page = log.page;
        let data = self.query(&command::log_page(log), || format!("Get Log Page, {page}"))?;
        if data.len() < log.bytes as usize {
            let what = format!("log page {page}");
            return Err(Error::Answer { what, reason: InfoError::TooShort });
        }
        Ok(data)
    }

    /// The identifiers of the active namespaces, in ascending order.
    ///
    /// # Errors
    /// As [`Controller::identify`], and when the answer makes no sense.
    pub fn namespace_ids(&self) -> Result<Vec<u32>, Error> {
        let mut all = Vec::new();
        loop {
            let after = all.last().copied().unwrap_or(0);
            let data = self.identify(Cns::ACTIVE_NAMESPACES, after)?;
            let (list, full) = parse_namespace_list(&data, after).map_err(|reason| {
                Error::Answer { what: "the list of namespaces".to_owned(), reason }
            })?;
            all.extend(list);
            // A list that ends with the last identifier there can be has no successor.
            let exhausted = all.last().is_some_and(|&last| last >= u32::MAX - 1);
            if !full || exhausted || all.len() >= limits::NAMESPACES {
                return Ok(all);
            }
        }
    }

    /// What the controller says about a namespace.
    ///
    /// # Errors
    /// As [`Controller::identify`], and when the namespace does not exist or cannot be used.
    pub fn namespace_info(&self, nsid: u32) -> Result<NamespaceInfo, Error> {
        let data = self.identify(Cns::NAMESPACE, nsid)?;
        let mut info = NamespaceInfo::parse(nsid, &data)
            .map_err(|reason| Error::Answer { what: format!("namespace {nsid}"), reason })?;
        match self.identify(Cns::NAMESPACE_ID_DESCRIPTORS, nsid) {
            Ok(data) => info.add_descriptors(&data),
            Err(Error::Command { status, .. }) if admin::has_no_descriptors(status) => {}
            // A namespace must not be taken for one without a name.
            Err(error) => return Err(error),
        }
        Ok(info)
    }

    /// The active namespaces. One that cannot be used is left out, with a warning in the log.
    ///
    /// # Errors
    /// As [`Controller::namespace_ids`].
    pub fn namespaces(&self) -> Result<Vec<NamespaceInfo>, Error> {
        let mut infos = Vec::new();
        for nsid in self.namespace_ids()? {
            match self.namespace_info(nsid) {
                Ok(info) => infos.push(info),
                Err(Error::Answer { what, reason }) => tracing::warn!("{what}: {reason}"),
                Err(error) => return Err(error),
            }
        }
        Ok(infos)
    }

    /// What one command may name: nothing is said by controllers that are older than that.
    fn command_limits(&self) -> Result<CommandLimits, Error> {
        match self.identify(Cns::COMMAND_SET_CONTROLLER, 0) {
            Ok(data) => Ok(CommandLimits::parse(&data)),
            Err(Error::Command { .. }) => Ok(CommandLimits::default()),
            Err(error) => Err(error),
        }
    }

    /// A namespace to read and write.
    ///
    /// # Errors
    /// As [`Controller::namespace_info`].
    pub fn namespace(&self, nsid: u32) -> Result<RemoteNamespace, Error> {
        for _ in 0..limits::LOOKS {
            let changes = self.inner.shared.changes();
            let info = self.namespace_info(nsid)?;
            let most = self.command_limits()?;
            let namespace = RemoteNamespace::new(Arc::clone(&self.inner), info, most);
            // What changes from here on is read for those in use, of which it is one now.
            if self.inner.shared.changes() == changes {
                return Ok(namespace);
            }
        }
        Err(Error::Lost("its namespaces change all the time".into()))
    }

    /// The records of the discovery log page, which discovery controllers have.
    ///
    /// # Errors
    /// As [`Controller::log_page`], and when the page makes no sense.
    pub fn discovery(&self) -> Result<Vec<DiscoveryEntry>, Error> {
        let mut reader = DiscoveryReader::new();
        while let DiscoveryStep::Read(log) = reader.step() {
            let data = self.log_page(log)?;
            reader.handle_data(&data).map_err(|reason| Error::Answer {
                what: "the discovery log page".to_owned(),
                reason,
            })?;
        }
        Ok(reader.into_entries())
    }
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { address, subsystem, info, .. } = &*self.inner;
        write!(f, "Controller({subsystem} at {address}, CNTLID {})", info.cntlid)
    }
}

impl Inner {
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn info(&self) -> &ControllerInfo {
        &self.info
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// `nvme+tcp://…` for logs.
    pub(crate) fn url(&self, nsid: u32) -> String {
        let url = Url {
            host: self.address.ip().to_string(),
            port: Some(self.address.port()).filter(|&port| port != PORT_IO),
            subsystem: Some(self.subsystem.clone()),
            namespace: Some(nsid),
            ..Url::default()
        };
        url.to_string()
    }

    pub(crate) fn connect_error(&self, reason: ConnectError) -> Error {
        let (address, subsystem) = (self.address.to_string(), self.subsystem.clone());
        Error::Connect { address, subsystem, reason }
    }

    /// Connects I/O queue `qid` for `depth` commands.
    pub(crate) fn connect_queue(&self, qid: u16, depth: u16) -> Result<Connected, ConnectError> {
        until_not_busy(|| self.try_connect_queue(qid, depth))
    }

    fn try_connect_queue(&self, qid: u16, depth: u16) -> Result<Connected, ConnectError> {
        let identity = wire_identity(&self.identity, &self.subsystem);
        let (mut handshake, _) =
            Handshake::connect(&[self.address], &identity, depth, &self.options, &self.generated)?;
        handshake.reset_on_close()?;
        let data = command::connect_data(&identity, Some(self.info.cntlid));
        // One entry more than commands in flight, and 0's-based.
        let command = command::connect(qid, depth, 0);
        let during = "the answer to Connect of an I/O queue";
        let (cqe, _) = handshake.execute(&command, data.as_bytes(), during)?;
        if !cqe.status().is_success() {
            return Err(refused(cqe.status(), cqe.result()));
        }
        match accepted(cqe.result())?.must_authenticate {
            true => authentication::authenticate(&mut handshake, &identity, &self.options)?,
            false if self.generated.is_empty() => authentication::not_asked_for(&self.options)?,
            // It has proved who it is, and what came of that is what this queue goes through.
            false => {}
        }
        handshake.finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.stop();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // It ends within a bounded time.
        if !control::is_here() {
            let _ = ended.map(Receiver::wait);
        }
    }
}

/// Tries again for a while when the controller is busy: with letting go of the last queue, or of
/// what this host left behind when it lost its last controller.
fn until_not_busy<T>(
    mut connect: impl FnMut() -> Result<T, ConnectError>,
) -> Result<T, ConnectError> {
    let give_up = os::now() + limits::BUSY_RETRY_TIME;
    loop {
        match connect() {
            Err(ConnectError::ControllerBusy) if os::now() < give_up => {
                os::sleep(limits::BUSY_RETRY_PAUSE);
            }
            result => return result,
        }
    }
}

fn wire_identity<'a>(identity: &'a HostIdentity, subnqn: &'a str) -> Identity<'a> {
    Identity { hostid: identity.id.0, hostnqn: &identity.nqn, subnqn }
}

fn check_options(subsystem: &str, options: &Options) -> Result<(), Error> {
    let check = |what: &str, name: &str| {
        url::check_name(name).map_err(|reason| Error::Options(format!("{what}: {reason}")))
    };
    check("the subsystem's name is not usable", subsystem)?;
    if let Some(hostnqn) = &options.hostnqn {
        check("the host NQN is not usable", hostnqn)?;
    }
    if options.queue_depth == 0 {
        return Err(Error::Options(
            "a queue depth of 0 lets no command through: use 1 or more".to_owned(),
        ));
    }
    if options.path_timeout.is_some_and(|timeout| timeout < limits::PATH_TIMEOUT_MIN) {
        let least = limits::PATH_TIMEOUT_MIN;
        return Err(Error::Options(format!(
            "a path timeout below {least:?} takes a slow path for a lost one: use {least:?} or more"
        )));
    }
    if options.connect_timeout.is_zero() {
        return Err(Error::Options(
            "a connect timeout of 0 is over at once: use 1 ms or more".to_owned(),
        ));
    }
    Ok(())
}

/// An admin queue, where it is, what its controller says of itself, and the keys for TLS that came
/// of its authentication.
type BroughtUp = (Connected, SocketAddr, ControllerInfo, Vec<TlsPsk>);

/// A controller being connected.
struct Connecting<'a> {
    /// Name or address, without brackets.
    host: String,
    port: u16,
    subsystem: &'a str,
    options: &'a Options,
    identity: HostIdentity,
}

impl Connecting<'_> {
    fn connect(self) -> Result<Controller, Error> {
        let control = Control::shared(self.options.engine).map_err(Error::System)?;
        let sqsize_z = limits::ADMIN_QUEUE_ENTRIES - 1;
        let (connected, address, info, generated) = match until_not_busy(|| self.bring_up(sqsize_z))
        {
            Ok(parts) => parts,
            Err(reason) => {
                let address = format!("{}:{}", url::Bracketed(&self.host), self.port);
                let subsystem = self.subsystem.to_owned();
                return Err(Error::Connect { address, subsystem, reason });
            }
        };
        tracing::info!(
            %address, subsystem = self.subsystem, cntlid = info.cntlid, queues = info.queues,
            "connected"
        );
        let shared = Arc::new(Shared::new(info.queues));
        let settings = admin::Settings {
            keep_alive: Pulse::new(self.keep_alive(), self.options.path_timeout),
            timeout: self.options.io_timeout,
            configuration: info.configuration,
            events: info.events_supported.0 & EVENTS.0 != 0,
        };
        let (started, runs) = reply();
        let (over, ended) = reply();
        let told = admin::Told { started, ended: over };
        let for_admin = Arc::clone(&shared);
        control
            .spawn(move |local| admin::run(local, connected, for_admin, settings, sqsize_z, told));
        match runs.wait() {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(Error::system(error)),
            None => return Err(shared.lost_error()),
        }
        let Connecting { subsystem, options, identity, .. } = self;
        let inner = Inner {
            shared,
            info,
            address,
            subsystem: subsystem.to_owned(),
            identity,
            options: options.clone(),
            generated,
            ended: Mutex::new(Some(ended)),
            _control: control,
        };
        Ok(Controller { inner: Arc::new(inner) })
    }

    fn keep_alive(&self) -> Duration {
        if self.subsystem == DISCOVERY_NQN { Duration::ZERO } else { self.options.keep_alive }
    }

    fn bring_up(&self, sqsize_z: u16) -> Result<BroughtUp, ConnectError> {
        let addresses: Vec<SocketAddr> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| ConnectError::Unresolved(crate::error::words(&error)))?
            .collect();
        let Options { queues, .. } = *self.options;
        let identity = wire_identity(&self.identity, self.subsystem);
        // Discovery services do not authenticate.
        let generated = match self.options.concatenate && self.subsystem != DISCOVERY_NQN {
            true => authentication::concatenate(&addresses, &identity, sqsize_z, self.options)?,
            false => Vec::new(),
        };
        let (mut handshake, address) =
            Handshake::connect(&addresses, &identity, sqsize_z, self.options, &generated)?;
        let parameters = Parameters {
            admin_sqsize_z: sqsize_z,
            keep_alive: self.keep_alive(),
            queues,
            events: EVENTS,
        };
        let mut authenticated = !generated.is_empty();
        let mut bringup = Bringup::new(parameters, &identity);
        let info = loop {
            match bringup.step() {
                Step::Command(command, data) => {
                    let during = "the answer to a command that brings the controller up";
                    let (cqe, data) = handshake.execute(&command, &data, during)?;
                    bringup.handle_completion(&cqe, &data)?;
                }
                Step::Wait(pause) => {
                    os::sleep(pause);
                    bringup.handle_waited();
                }
                Step::Authenticate => {
                    authentication::authenticate(&mut handshake, &identity, self.options)?;
                    authenticated = true;
                    bringup.handle_authenticated();
                }
                Step::Ready(info) => break info,
            }
        };
        // Whoever just says that it is a discovery service has to, too.
        if !authenticated && self.subsystem != DISCOVERY_NQN {
            authentication::not_asked_for(self.options)?;
        }
        Ok((handshake.finish()?, address, info, generated))
    }
}
