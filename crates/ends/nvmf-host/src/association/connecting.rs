//! Connects controllers and their I/O queues, on the control loop.

use super::Association;
use crate::admin::{self, Pulse};
use crate::authentication;
use crate::control::{Control, Local, reply};
use crate::error::Error;
use crate::exchange::Exchange;
use crate::identity::HostIdentity;
use crate::limits;
use crate::name;
use crate::options::Options;
use crate::shared::ControllerShared;
use crate::transport::Opened;
use crate::transport::dial::{Address, Caller, Dialled, Unreached};
#[cfg(feature = "memory")]
use crate::transport::memory::Memory;
use crate::transport::rdma::Rdma;
use crate::transport::tcp::Link;
use farblock_proto::host::{
    Bringup, ConnectError, ControllerInfo, Identity, Parameters, Step, accepted, command, refused,
};
use farblock_reactor::os;
use farblock_wire::IntoBytes;
use farblock_wire::features::AsyncEventConfig;
use farblock_wire::nqn::DISCOVERY_NQN;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The asynchronous events that the host enables: changes of namespaces and of their access states.
const EVENTS: AsyncEventConfig =
    AsyncEventConfig(0).with_namespace_attributes(true).with_ana_change(true);
/// Entries of the admin queue, 0's-based.
const SQSIZE_Z: u16 = limits::ADMIN_QUEUE_ENTRIES - 1;

/// A controller to connect.
pub(crate) struct Connecting {
    address: Address,
    subsystem: String,
    options: Options,
    identity: HostIdentity,
}

impl Connecting {
    /// Checks the parameters. Sends nothing.
    pub(crate) fn new(address: Address, subsystem: &str, options: &Options) -> Result<Self, Error> {
        check_options(subsystem, options)?;
        Ok(Self {
            address,
            subsystem: subsystem.to_owned(),
            options: options.clone(),
            identity: options.identity(),
        })
    }

    /// Connects to the controller and enables it.
    pub(crate) async fn connect(
        self,
        local: Local,
        control: Arc<Control>,
    ) -> Result<Arc<Association>, Error> {
        let BroughtUp { connected, route, address, info } = match self.until_not_busy(&local).await
        {
            Ok(parts) => parts,
            Err(Unreached { reason, at }) => {
                let place = self.address.to_string();
                let address = match at.filter(|at| *at != place) {
                    Some(at) => format!("{place} ({at})"),
                    None => place,
                };
                return Err(Error::Connect { address, subsystem: self.subsystem, reason });
            }
        };
        tracing::info!(
            %address, subsystem = self.subsystem, cntlid = info.cntlid, queues = info.queues,
            "connected"
        );
        let settings = admin::Settings {
            keep_alive: Pulse::new(self.keep_alive(), self.options.path_timeout),
            timeout: self.options.io_timeout,
            configuration: info.configuration,
            events: info.events_supported.0 & EVENTS.0 != 0,
            depth: connected.depth(SQSIZE_Z),
        };
        let shared = Arc::new(ControllerShared::new(info.queues));
        let (started, runs) = reply();
        let (over, ended) = reply();
        let told = admin::Told { started, ended: over };
        let for_admin = Arc::clone(&shared);
        control.spawn(move |local| -> Pin<Box<dyn Future<Output = ()>>> {
            match connected {
                Opened::Tcp(connected) => {
                    Box::pin(admin::run::<Link>(local, *connected, for_admin, settings, told))
                }
                Opened::Rdma(connected) => {
                    Box::pin(admin::run::<Rdma>(local, connected, for_admin, settings, told))
                }
                #[cfg(feature = "memory")]
                Opened::Memory(wire) => {
                    Box::pin(admin::run::<Memory>(local, wire, for_admin, settings, told))
                }
            }
        });
        let (subsystem, options, identity) = (self.subsystem, self.options, self.identity);
        // From here on, dropping `association` ends the admin queue, even if the caller drops this
        // future.
        let ended = Mutex::new(Some(ended));
        let association = Association {
            shared,
            info,
            route,
            address,
            subsystem,
            identity,
            options,
            ended,
            authenticates: AtomicBool::new(false),
            control,
        };
        match runs.await {
            Some(Ok(())) => Ok(Arc::new(association)),
            Some(Err(error)) => Err(Error::system(error)),
            None => Err(association.shared.lost_error()),
        }
    }

    fn keep_alive(&self) -> Duration {
        if self.subsystem == DISCOVERY_NQN { Duration::ZERO } else { self.options.keep_alive }
    }

    async fn until_not_busy(&self, local: &Local) -> Result<BroughtUp, Unreached> {
        let give_up = os::now() + limits::BUSY_RETRY_TIME;
        loop {
            let result = self.bring_up(local).await;
            let error = result.as_ref().err().map(|unreached| &unreached.reason);
            if !is_worth_another(local, give_up, error).await {
                return result;
            }
        }
    }

    async fn bring_up(&self, local: &Local) -> Result<BroughtUp, Unreached> {
        let identity = wire_identity(&self.identity, &self.subsystem);
        let caller = Caller {
            local,
            identity,
            options: &self.options,
            sqsize_z: SQSIZE_Z,
            qid: 0,
            cntlid: 0,
        };
        let Dialled { mut greeted, again: route, socket: address } =
            self.address.connect(&caller).await?;
        let parameters = Parameters {
            admin_sqsize_z: greeted.depth(SQSIZE_Z),
            keep_alive: self.keep_alive(),
            queues: self.options.queues,
            events: EVENTS,
        };
        let failed = |reason| Unreached { reason, at: Some(address.to_string()) };
        let info = bring_up(&mut greeted, parameters, &caller, route.is_proved()).await;
        let info = info.map_err(failed)?;
        let connected = greeted.finish(false).map_err(failed)?;
        Ok(BroughtUp { connected, route, address, info })
    }
}

/// The admin queue of an enabled controller.
struct BroughtUp {
    connected: Opened,
    route: Address,
    address: SocketAddr,
    info: ControllerInfo,
}

async fn bring_up(
    queue: &mut impl Exchange,
    parameters: Parameters,
    caller: &Caller<'_>,
    mut authenticated: bool,
) -> Result<ControllerInfo, ConnectError> {
    let Caller { local, identity, options, .. } = caller;
    let mut bringup = Bringup::new(parameters, identity);
    let info = loop {
        match bringup.step() {
            Step::Command(command, data) => {
                let during = "the answer to a command that brings the controller up";
                let (cqe, data) = queue.execute(&command, &data, during).await?;
                bringup.handle_completion(&cqe, &data)?;
            }
            Step::Wait(pause) => {
                local.sleep_until(os::now() + pause).await;
                bringup.handle_waited();
            }
            Step::Authenticate => {
                authentication::authenticate(queue, identity, options).await?;
                authenticated = true;
                bringup.handle_authenticated();
            }
            Step::Ready(info) => break info,
        }
    };
    // Only controllers with the well-known discovery NQN may skip authentication. A controller that
    // merely claims to be a discovery service must authenticate like any other.
    if !authenticated && identity.subnqn != DISCOVERY_NQN {
        authentication::not_asked_for(options)?;
    }
    Ok(info)
}

impl Association {
    /// Connects I/O queue `qid` for `depth` commands.
    pub(crate) async fn connect_queue(
        &self,
        local: &Local,
        qid: u16,
        depth: u16,
    ) -> Result<Opened, ConnectError> {
        let give_up = os::now() + limits::BUSY_RETRY_TIME;
        loop {
            let result = self.try_connect_queue(local, qid, depth).await;
            if !is_worth_another(local, give_up, result.as_ref().err()).await {
                return result;
            }
        }
    }

    async fn try_connect_queue(
        &self,
        local: &Local,
        qid: u16,
        depth: u16,
    ) -> Result<Opened, ConnectError> {
        let identity = wire_identity(&self.identity, &self.subsystem);
        let (options, cntlid) = (&self.options, self.info.cntlid);
        let mut caller = Caller { local, identity, options, sqsize_z: depth, qid, cntlid };
        let mut greeted = self.route.connect(&caller).await?.greeted;
        caller.sqsize_z = greeted.depth(depth);
        self.greet_queue(&mut greeted, &caller, qid).await?;
        greeted.finish(true)
    }

    /// Connects an I/O queue over a new connection.
    async fn greet_queue(
        &self,
        queue: &mut impl Exchange,
        caller: &Caller<'_>,
        qid: u16,
    ) -> Result<(), ConnectError> {
        let Caller { identity, options, sqsize_z, .. } = caller;
        let data = command::connect_data(identity, Some(self.info.cntlid));
        // The wire value is the number of entries minus one. A queue has one entry more than its
        // maximum of commands in flight, so this value is that maximum.
        let command = command::connect(qid, *sqsize_z, 0);
        let during = "the answer to Connect of an I/O queue";
        let (cqe, _) = queue.execute(&command, data.as_bytes(), during).await?;
        if !cqe.status().is_success() {
            return Err(refused(cqe.status(), cqe.result()));
        }
        match accepted(cqe.result())?.must_authenticate {
            true => authentication::authenticate(queue, identity, options).await,
            false if self.route.is_proved() => Ok(()),
            false => authentication::not_asked_for(options),
        }
    }
}

/// Whether to retry: until `give_up`, if the error means that the controller is still releasing
/// this host's previous queue or controller. Pauses before it returns true.
async fn is_worth_another(local: &Local, give_up: Instant, error: Option<&ConnectError>) -> bool {
    let is_busy = matches!(error, Some(ConnectError::ControllerBusy)) && os::now() < give_up;
    if is_busy {
        local.sleep_until(os::now() + limits::BUSY_RETRY_PAUSE).await;
    }
    is_busy
}

pub(super) fn wire_identity<'a>(identity: &'a HostIdentity, subnqn: &'a str) -> Identity<'a> {
    Identity { hostid: identity.id.0, hostnqn: &identity.nqn, subnqn }
}

fn check_options(subsystem: &str, options: &Options) -> Result<(), Error> {
    let check = |what: &str, nqn: &str| {
        name::check(nqn).map_err(|reason| Error::Options(format!("{what}: {reason}")))
    };
    check("the subsystem NQN is not usable", subsystem)?;
    if let Some(hostnqn) = &options.hostnqn {
        check("the host NQN is not usable", hostnqn)?;
    }
    if options.queue_depth == 0 {
        return Err(Error::Options(
            "a queue depth of 0 allows no commands: use 1 or more".to_owned(),
        ));
    }
    if options.path_timeout.is_some_and(|timeout| timeout < limits::PATH_TIMEOUT_MIN) {
        let least = limits::PATH_TIMEOUT_MIN;
        return Err(Error::Options(format!(
            "a path timeout below {least:?} would treat slow paths as lost: use {least:?} or more"
        )));
    }
    if options.connect_timeout.is_zero() {
        return Err(Error::Options(
            "a connect timeout of 0 expires at once: use 1 ms or more".to_owned(),
        ));
    }
    Ok(())
}
