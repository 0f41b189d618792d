//! Reasons for a failed connection, with advice to the operator.

use crate::tcp::TcpRefusal;
use alloc::string::String;
use core::fmt;
use core::time::Duration;
use farblock_wire::Status;
use farblock_wire::fabrics::{ConnectCommand, ConnectData, ConnectInvalidParameter, ConnectResult};

/// The reason why a host could not connect to a controller or bring it up.
///
/// The driver produces the network errors. The state machines produce all other errors.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The resolver found no address for the host name. The text is the resolver's reason.
    Unresolved(String),
    /// No process listens at the address.
    Refused,
    /// The network has no route to the address. The text is the system's reason.
    Unreachable(String),
    /// The controller did not answer in time.
    TimedOut {
        /// The step that the host waited for.
        during: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// The peer closed the connection.
    Closed {
        /// The step that the host waited for.
        during: &'static str,
    },
    /// The connection or this machine failed in another way. The text is the system's reason.
    Io(String),
    /// A failure specific to TCP.
    Tcp(TcpRefusal),
    /// A failure specific to RDMA. The text is the reason.
    Rdma(String),
    /// The controller violated the protocol.
    Protocol(&'static str),
    /// The target has no subsystem with the requested name.
    NoSuchSubsystem,
    /// The subsystem does not accept this host.
    HostNotAllowed,
    /// The subsystem does not accept this host with its identifier (HOSTID).
    IdentifierNotAllowed,
    /// The controller does not accept the queue size.
    QueueSizeInvalid,
    /// The controller rejects a parameter of the Connect command.
    InvalidParameter(ConnectInvalidParameter),
    /// The subsystem has no free controller or queue.
    ControllerBusy,
    /// The controller does not support the format of the Connect command.
    IncompatibleFormat,
    /// The discovery information is outdated.
    RestartDiscovery,
    /// The controller requires authentication, and the host has no secret for the controller.
    AuthenticationRequired,
    /// The host requires the controller to authenticate itself, and the controller does not support
    /// this.
    AuthenticationNotOffered,
    /// The authentication failed. The text is the reason.
    AuthenticationFailed(String),
    /// The controller closed the connection after it received the host's authentication response.
    /// The controller may have rejected the response, or crashed.
    ProofNotJudged,
    /// The host could not read a secret. The text is the reason.
    KeyFile(String),
    /// The controller requires a secure channel (TLS) with a key from the authentication, and the
    /// host did not request one.
    SecureChannelRequired,
    /// A command of the bring-up failed.
    CommandFailed {
        /// The command.
        what: &'static str,
        /// The command's status.
        status: Status,
    },
    /// The controller did not become ready in time.
    NotReady {
        /// The controller's own time limit.
        after: Duration,
    },
    /// The controller reports a fatal error (CSTS.CFS).
    ControllerFatal,
    /// All I/O queues that the controller granted are in use.
    NoQueueLeft {
        /// The number of I/O queues that the controller granted.
        granted: u16,
    },
}

impl ConnectError {
    /// Whether a later attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::ControllerBusy
            | Self::Refused
            | Self::Unreachable(_)
            | Self::TimedOut { .. }
            | Self::Closed { .. }
            | Self::ProofNotJudged
            | Self::NotReady { .. } => true,
            Self::CommandFailed { status, .. } => !status.is_dnr(),
            _ => false,
        }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unresolved(reason) => write!(f, "the address cannot be resolved: {reason}"),
            Self::Refused => f.write_str("connection refused: nothing listens at this address"),
            Self::Unreachable(reason) => write!(f, "the address is unreachable: {reason}"),
            Self::TimedOut { during, after } => {
                write!(f, "timed out after {after:?} while waiting for {during}")
            }
            Self::Closed { during } => {
                write!(f, "the peer closed the connection before it sent {during}")
            }
            Self::Io(reason) => write!(f, "the connection failed: {reason}"),
            Self::Tcp(refusal) => refusal.fmt(f),
            Self::Rdma(sentence) => f.write_str(sentence),
            Self::Protocol(reason) => write!(f, "the controller broke the protocol: {reason}"),
            Self::NoSuchSubsystem => f.write_str("the target has no such subsystem"),
            Self::HostNotAllowed => f.write_str("the subsystem does not allow this host"),
            Self::IdentifierNotAllowed => f.write_str(IDENTIFIER),
            Self::QueueSizeInvalid => {
                f.write_str("the controller does not accept the queue size: use a smaller depth")
            }
            Self::InvalidParameter(parameter) => {
                write!(f, "the controller rejects {}", Parameter(*parameter))
            }
            Self::ControllerBusy => {
                f.write_str("the controller is busy: no controller or queue is free")
            }
            Self::IncompatibleFormat => {
                f.write_str("the controller does not know this format of the Connect command")
            }
            Self::RestartDiscovery => {
                f.write_str("the discovery information is out of date: discover again")
            }
            Self::AuthenticationRequired => {
                f.write_str("the controller requires authentication: give --dhchap-secret FILE")
            }
            Self::AuthenticationNotOffered => f.write_str(
                "the controller does not authenticate this host, and so cannot authenticate \
                 itself: give this host a key at the target, or omit --dhchap-ctrl-secret",
            ),
            Self::AuthenticationFailed(sentence) => {
                write!(f, "authentication failed: {sentence}")
            }
            Self::ProofNotJudged => f.write_str(NOT_JUDGED),
            Self::KeyFile(sentence) => f.write_str(sentence),
            Self::SecureChannelRequired => f.write_str(CONCATENATE),
            Self::CommandFailed { what, status } => write!(f, "{what} failed: {status}"),
            Self::NotReady { after } => {
                write!(f, "the controller did not become ready within {after:?}")
            }
            Self::ControllerFatal => f.write_str("the controller reports a fatal internal error"),
            Self::NoQueueLeft { granted } => {
                write!(f, "all {granted} I/O queues that the controller granted are in use")
            }
        }
    }
}

impl core::error::Error for ConnectError {}

impl From<TcpRefusal> for ConnectError {
    fn from(refusal: TcpRefusal) -> ConnectError {
        ConnectError::Tcp(refusal)
    }
}

/// Returns the error for the status and result of a failed Connect (Base 2.0c, "Connect Command and
/// Response", status values).
#[must_use]
pub fn refused(status: Status, result: u64) -> ConnectError {
    const SQSIZE: ConnectInvalidParameter =
        ConnectInvalidParameter::in_command(core::mem::offset_of!(ConnectCommand, sqsize_z));
    const SUBNQN: ConnectInvalidParameter =
        ConnectInvalidParameter::in_data(core::mem::offset_of!(ConnectData, subnqn));
    const HOSTNQN: ConnectInvalidParameter =
        ConnectInvalidParameter::in_data(core::mem::offset_of!(ConnectData, hostnqn));
    const HOSTID: ConnectInvalidParameter =
        ConnectInvalidParameter::in_data(core::mem::offset_of!(ConnectData, hostid));
    match Status(status.code()) {
        Status::CONNECT_INCOMPATIBLE_FORMAT => ConnectError::IncompatibleFormat,
        Status::CONNECT_CONTROLLER_BUSY => ConnectError::ControllerBusy,
        Status::CONNECT_INVALID_PARAMETERS => match ConnectInvalidParameter::parse(result) {
            SUBNQN => ConnectError::NoSuchSubsystem,
            HOSTNQN => ConnectError::HostNotAllowed,
            SQSIZE => ConnectError::QueueSizeInvalid,
            other => ConnectError::InvalidParameter(other),
        },
        Status::CONNECT_RESTART_DISCOVERY => ConnectError::RestartDiscovery,
        Status::CONNECT_INVALID_HOST => match ConnectInvalidParameter::parse(result) {
            HOSTID => ConnectError::IdentifierNotAllowed,
            _ => ConnectError::HostNotAllowed,
        },
        Status::AUTHENTICATION_REQUIRED => ConnectError::AuthenticationRequired,
        _ => ConnectError::CommandFailed { what: "Connect", status },
    }
}

/// The result of a successful Connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The controller's identifier.
    pub cntlid: u16,
    /// Whether the host must authenticate before it sends other commands.
    pub must_authenticate: bool,
}

/// The message with advice if the target refuses this host's identifier.
const IDENTIFIER: &str = "the target refuses this host's identifier (HOSTID): it belongs to \
    another host, or differs from this host's host_id at the target; give the right one \
    (/etc/nvme/hostid, or &hostid= in the URL), or set host_id at the target";

const NOT_JUDGED: &str = "authentication failed: the controller closed the connection without an \
    answer to this host's proof, as some controllers do to refuse it: compare the secrets at \
    both ends, or give --dhchap-ctrl-secret if the controller requires mutual authentication";

/// The message with advice if the controller requires a secure channel.
const CONCATENATE: &str = "the controller requires TLS concatenation: give --concat with \
    --dhchap-secret FILE (or a TLS key that the controller knows, with --tls-key FILE)";

/// Reads the result of a successful Connect.
///
/// # Errors
/// Fails if the controller requires a secure channel.
pub fn accepted(result: u64) -> Result<Accepted, ConnectError> {
    let ConnectResult { cntlid, authreq } = ConnectResult::parse(result);
    if authreq & ConnectResult::AUTHREQ_ASCR != 0 {
        return Err(ConnectError::SecureChannelRequired);
    }
    Ok(Accepted { cntlid, must_authenticate: authreq & ConnectResult::AUTHREQ_ATR != 0 })
}

/// Displays the name of the field at an offset in the Connect command or its data.
struct Parameter(ConnectInvalidParameter);

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.0.in_data, self.0.offset) {
            (true, 0) => "the host identifier",
            (true, 16) => "the controller identifier",
            (true, 256) => "the subsystem NQN",
            (true, 512) => "the host NQN",
            (false, 40) => "the record format",
            (false, 42) => "the queue identifier",
            (false, 44) => "the queue size",
            (false, 46) => "the connect attributes",
            (false, 48) => "the keep alive timeout",
            (in_data, offset) => {
                let place = if in_data { "data" } else { "command" };
                return write!(f, "byte {offset} of the Connect {place}");
            }
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn each_connect_status_has_its_error() {
        let data = |offset| ConnectInvalidParameter::in_data(offset).emit();
        let command = |offset| ConnectInvalidParameter::in_command(offset).emit();
        let invalid = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
        assert_eq!(refused(invalid, data(256)), ConnectError::NoSuchSubsystem);
        assert_eq!(refused(invalid, data(512)), ConnectError::HostNotAllowed);
        assert_eq!(refused(invalid, command(44)), ConnectError::QueueSizeInvalid);
        let other = refused(invalid, command(42));
        assert_eq!(other.to_string(), "the controller rejects the queue identifier");
        let other = refused(invalid, data(300));
        assert_eq!(other.to_string(), "the controller rejects byte 300 of the Connect data");
        let simple = |status: Status| refused(status, 0);
        assert_eq!(simple(Status::CONNECT_INVALID_HOST), ConnectError::HostNotAllowed);
        let identifier = refused(Status::CONNECT_INVALID_HOST.with_dnr(), data(0));
        assert_eq!(identifier, ConnectError::IdentifierNotAllowed);
        assert_eq!(simple(Status::CONNECT_CONTROLLER_BUSY), ConnectError::ControllerBusy);
        assert_eq!(simple(Status::CONNECT_RESTART_DISCOVERY), ConnectError::RestartDiscovery);
        assert_eq!(simple(Status::AUTHENTICATION_REQUIRED), ConnectError::AuthenticationRequired);
        assert!(matches!(simple(Status::INTERNAL_ERROR), ConnectError::CommandFailed { .. }));
    }

    #[test]
    fn the_connect_result_requests_authentication() {
        let accepts = |must_authenticate| Ok(Accepted { cntlid: 7, must_authenticate });
        assert_eq!(accepted(0x0000_0007), accepts(false));
        assert_eq!(accepted(0x0002_0007), accepts(true));
        assert_eq!(accepted(0x0006_0007), Err(ConnectError::SecureChannelRequired));
    }
}
