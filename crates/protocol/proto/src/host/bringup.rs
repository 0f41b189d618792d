//! Brings a controller up: sends the admin commands from Connect to readiness, one after the other.
//!
//! ```text
//!  Connect (-> Authenticate) -> ReadCapabilities -> ReadVersion -> Enable -> PollReady <-> Wait
//!                                                             | ready
//!                      discovery controller                   v
//!  Ready <--------------------------------------------- Identify
//!    ^                                                        | others
//!    +------------ ConfigureEvents <---- RequestQueues <------+
//! ```
//! The driver gets the next [`Step`], executes it, and reports the result with
//! [`Bringup::handle_completion`], [`Bringup::handle_authenticated`] or [`Bringup::handle_waited`].
//! An error ends the bring-up.

use super::command::{self, Command, Identity};
use super::error::{ConnectError, accepted, refused};
use super::info::ControllerInfo;
use alloc::vec::Vec;
use core::time::Duration;
use farblock_wire::fabrics::PropertySize;
use farblock_wire::features::{AsyncEventConfig, FeatureId};
use farblock_wire::property::{Cap, Cc, Csts, Version, offset};
use farblock_wire::{Cqe, IntoBytes};

/// The unit of CAP.TO.
const READY_TIMEOUT_UNIT: Duration = Duration::from_millis(500);
/// The first pause between two reads of CSTS. Each further pause is twice as long, up to
/// [`READY_POLL_MAX`].
const READY_POLL_MIN: Duration = Duration::from_millis(1);
/// The pause between two reads of CSTS grows up to this value.
const READY_POLL_MAX: Duration = Duration::from_millis(100);

/// The host's parameters for a new controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Number of entries of the admin queue, 0's-based.
    pub admin_sqsize_z: u16,
    /// Keep alive timeout; zero: no timeout.
    pub keep_alive: Duration,
    /// Number of I/O queue pairs to request.
    pub queues: u16,
    /// Asynchronous events to enable, where the controller supports them.
    pub events: AsyncEventConfig,
}

/// The driver's next step.
#[expect(clippy::large_enum_variant, reason = "one value exists per controller")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Send this command on the admin queue. The bytes are the command's data for the controller,
    /// or empty.
    Command(Command, Vec<u8>),
    /// Authenticate the admin queue, then call [`Bringup::handle_authenticated`].
    Authenticate,
    /// Wait for this time.
    Wait(Duration),
    /// The controller is ready.
    Ready(ControllerInfo),
}

/// The state of the bring-up; see the diagram of the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BringUpState {
    /// The next step sends Connect.
    Connect,
    /// The next step authenticates, because the controller requires it before other commands.
    Authenticate,
    /// The next step reads CAP.
    ReadCapabilities,
    /// The next step reads VS.
    ReadVersion,
    /// The next step sets CC.EN.
    Enable,
    /// The next step reads CSTS.
    PollReady,
    /// The next step pauses for this time, because the controller was not ready.
    Wait(Duration),
    /// The next step sends Identify Controller.
    Identify,
    /// The next step requests I/O queues.
    RequestQueues,
    /// The next step enables asynchronous events.
    ConfigureEvents,
    /// The controller is ready.
    Ready,
}

/// The bring-up of one controller; see the module.
#[derive(Clone, Debug)]
pub struct Bringup {
    state: BringUpState,
    parameters: Parameters,
    connect_data: Vec<u8>,
    /// Whether the host connects to the well-known discovery NQN.
    discovery_nqn: bool,
    cap: Cap,
    waited: Duration,
    info: ControllerInfo,
}

impl Bringup {
    /// Starts the bring-up of a new controller of the subsystem.
    #[must_use]
    pub fn new(parameters: Parameters, identity: &Identity<'_>) -> Self {
        let connect_data = command::connect_data(identity, None).as_bytes().to_vec();
        let discovery_nqn = identity.subnqn == farblock_wire::nqn::DISCOVERY_NQN;
        Self {
            state: BringUpState::Connect,
            parameters,
            connect_data,
            discovery_nqn,
            cap: Cap::default(),
            waited: Duration::ZERO,
            info: ControllerInfo::default(),
        }
    }

    /// Returns the next step. Repeated calls without a report return the same step.
    #[must_use]
    pub fn step(&self) -> Step {
        let command = match self.state {
            BringUpState::Connect => {
                let keep_alive = self.parameters.keep_alive.as_millis();
                let keep_alive_ms = u32::try_from(keep_alive).unwrap_or(u32::MAX);
                let command = command::connect(0, self.parameters.admin_sqsize_z, keep_alive_ms);
                return Step::Command(command, self.connect_data.clone());
            }
            BringUpState::Authenticate => return Step::Authenticate,
            BringUpState::ReadCapabilities => command::property(offset::CAP, PropertySize::Eight),
            BringUpState::ReadVersion => command::property(offset::VS, PropertySize::Four),
            BringUpState::Enable => command::set_property(offset::CC, self.configuration().0),
            BringUpState::PollReady => command::property(offset::CSTS, PropertySize::Four),
            BringUpState::Wait(pause) => return Step::Wait(pause),
            BringUpState::Identify => command::identify_controller(),
            BringUpState::RequestQueues => command::set_number_of_queues(self.parameters.queues),
            BringUpState::ConfigureEvents => {
                command::set_features(FeatureId::ASYNC_EVENT_CONFIGURATION, self.events().0)
            }
            BringUpState::Ready => return Step::Ready(self.info.clone()),
        };
        Step::Command(command, Vec::new())
    }

    /// Reports that the driver has waited for the time of [`Step::Wait`].
    pub fn handle_waited(&mut self) {
        if let BringUpState::Wait(pause) = self.state {
            self.waited = self.waited.saturating_add(pause);
            self.state = BringUpState::PollReady;
        }
    }

    /// Reports that the driver has authenticated the admin queue, as [`Step::Authenticate`]
    /// requires.
    pub fn handle_authenticated(&mut self) {
        if self.state == BringUpState::Authenticate {
            self.state = BringUpState::ReadCapabilities;
        }
    }

    /// Reports the completion of the command of [`Step::Command`], with `data` from the controller.
    ///
    /// # Errors
    /// Fails if the host cannot bring the controller up. The caller then closes the connection.
    pub fn handle_completion(&mut self, cqe: &Cqe, data: &[u8]) -> Result<(), ConnectError> {
        let (status, result) = (cqe.status(), cqe.result());
        let succeeded = |what| {
            if status.is_success() {
                Ok(())
            } else {
                Err(ConnectError::CommandFailed { what, status })
            }
        };
        match self.state {
            BringUpState::Connect if !status.is_success() => return Err(refused(status, result)),
            BringUpState::Connect => {
                let accepted = accepted(result)?;
                self.info.cntlid = accepted.cntlid;
                self.state = match accepted.must_authenticate {
                    true => BringUpState::Authenticate,
                    false => BringUpState::ReadCapabilities,
                };
            }
            BringUpState::ReadCapabilities => {
                succeeded("reading the capabilities (CAP)")?;
                self.handle_capabilities(Cap(result))?;
            }
            BringUpState::ReadVersion => {
                succeeded("reading the version (VS)")?;
                self.info.version = Version(result as u32);
                self.state = BringUpState::Enable;
            }
            BringUpState::Enable => {
                succeeded("enabling the controller")?;
                self.info.configuration = self.configuration();
                self.state = BringUpState::PollReady;
            }
            BringUpState::PollReady => {
                succeeded("reading the controller's status (CSTS)")?;
                self.handle_status(Csts(result as u32))?;
            }
            BringUpState::Identify => {
                succeeded("Identify Controller")?;
                self.handle_identity(data)?;
            }
            BringUpState::RequestQueues => {
                succeeded("requesting I/O queues")?;
                let granted = command::granted_queues(result as u32);
                self.info.queues = granted.min(self.parameters.queues);
                self.state = self.after_queues();
            }
            // If this command fails, the host works without events and detects changes later.
            BringUpState::ConfigureEvents => self.state = BringUpState::Ready,
            BringUpState::Authenticate | BringUpState::Wait(_) | BringUpState::Ready => {
                panic!("a completion arrived without a command")
            }
        }
        Ok(())
    }

    fn handle_capabilities(&mut self, cap: Cap) -> Result<(), ConnectError> {
        if cap.mqes_z() == 0 {
            return Err(ConnectError::Protocol("MQES is 0: no queue is large enough"));
        }
        self.cap = cap;
        self.info.max_queue_entries = u32::from(cap.mqes_z()) + 1;
        self.info.ready_timeout = READY_TIMEOUT_UNIT * (u32::from(cap.to()) + 1);
        self.state = BringUpState::ReadVersion;
        Ok(())
    }

    fn configuration(&self) -> Cc {
        let css = self.cap.css();
        let admin_only = css & Cap::CSS_NVM == 0 && css & Cap::CSS_ADMIN_ONLY != 0;
        let mut cc = Cc::default()
            .with_en(true)
            .with_mps(self.cap.mpsmin())
            .with_iosqes(Cc::IOSQES_64)
            .with_iocqes(Cc::IOCQES_16);
        if admin_only {
            cc = cc.with_css(Cc::CSS_ADMIN_ONLY);
        }
        cc
    }

    fn handle_status(&mut self, csts: Csts) -> Result<(), ConnectError> {
        if csts.cfs() {
            return Err(ConnectError::ControllerFatal);
        }
        if csts.rdy() {
            self.state = BringUpState::Identify;
            return Ok(());
        }
        let after = self.info.ready_timeout;
        let left = after.saturating_sub(self.waited);
        if left.is_zero() {
            return Err(ConnectError::NotReady { after });
        }
        // Pause for as long as all pauses so far together, so that the pauses grow exponentially.
        self.state =
            BringUpState::Wait(self.waited.clamp(READY_POLL_MIN, READY_POLL_MAX).min(left));
        Ok(())
    }

    fn handle_identity(&mut self, data: &[u8]) -> Result<(), ConnectError> {
        let connected_as = self.info.cntlid;
        self.info.read_identify(data, self.cap.mpsmin())?;
        self.info.discovery |= self.discovery_nqn;
        if self.info.discovery {
            // Some discovery controllers with old firmware report a different identifier in
            // Identify, so use the identifier from Connect.
            self.info.cntlid = connected_as;
            self.state = BringUpState::Ready;
            return Ok(());
        }
        if self.info.cntlid != connected_as {
            return Err(ConnectError::Protocol(
                "Identify Controller and Connect report different controller IDs",
            ));
        }
        self.state = if self.parameters.queues > 0 {
            BringUpState::RequestQueues
        } else {
            self.after_queues()
        };
        Ok(())
    }

    fn after_queues(&self) -> BringUpState {
        if self.events().0 == 0 { BringUpState::Ready } else { BringUpState::ConfigureEvents }
    }

    /// Returns the requested events that the controller supports.
    fn events(&self) -> AsyncEventConfig {
        AsyncEventConfig(self.parameters.events.0 & self.info.events_supported.0)
    }
}
