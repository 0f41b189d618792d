//! Errors of calls to the host. Block operations have their own error type.

use crate::control::Panicked;
use crate::url::UrlError;
use farblock_proto::host::{ConnectError, InfoError};
use farblock_proto::tcp::TcpRefusal;
use farblock_wire::Status;
use std::fmt;
use std::io;
use std::sync::Arc;

/// The reason why a call to the host failed. Block operations return
/// [`BlockError`](farblock_block::BlockError) instead.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The URL is malformed.
    Url(UrlError),
    /// An option is invalid. Contains the reason.
    Options(String),
    /// The host could not connect to the controller.
    Connect {
        /// The controller's address.
        address: String,
        /// The subsystem.
        subsystem: String,
        /// The reason.
        reason: ConnectError,
    },
    /// Reauthentication of the host or the controller failed.
    Authentication {
        /// The controller's address.
        address: String,
        /// The subsystem.
        subsystem: String,
        /// The reason.
        reason: ConnectError,
    },
    /// The controller answered a command with an error.
    Command {
        /// The name of the command, and what it was for.
        what: String,
        /// The status of the command.
        status: Status,
    },
    /// The controller's answer is invalid, or describes an unsupported feature.
    Answer {
        /// The subject of the host's request.
        what: String,
        /// Why the host cannot use the answer.
        reason: InfoError,
    },
    /// The namespace is not the expected one. Contains the difference.
    Namespace(String),
    /// The target is a copy with the same name as the target of the disk's other paths. Contains
    /// the evidence.
    Twin(String),
    /// The disk could not store the state for its successor. Contains the reason.
    Record(String),
    /// The connection to the controller is lost. Contains the reason.
    Lost(Arc<str>),
    /// Too many admin commands are waiting.
    Busy,
    /// The operating system refused a resource (threads, sockets, event queues).
    System(Arc<io::Error>),
}

/// The class of an error that is specific to TCP; see [`Error::reason`].
fn tcp_reason(refusal: &TcpRefusal) -> &'static str {
    match refusal {
        TcpRefusal::DigestsRefused | TcpRefusal::DigestMismatch => "digest",
        TcpRefusal::Tls(_) => "tls",
        _ => "protocol",
    }
}

impl Error {
    /// Returns a word that classifies the error, for counters.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        use ConnectError as E;
        let (Error::Connect { reason, .. } | Error::Authentication { reason, .. }) = self else {
            return match self {
                Error::Lost(_) => "lost",
                Error::Namespace(_) => "other_namespace",
                Error::Twin(_) => "twin",
                Error::Command { .. } | Error::Answer { .. } => "protocol",
                _ => "other",
            };
        };
        match reason {
            E::Refused => "refused",
            E::Unresolved(_) | E::Unreachable(_) => "unreachable",
            E::TimedOut { .. } => "timeout",
            E::Closed { .. } => "closed",
            E::HostNotAllowed | E::IdentifierNotAllowed => "host_not_allowed",
            E::NoSuchSubsystem => "no_such_subsystem",
            E::ControllerBusy | E::NoQueueLeft { .. } => "busy",
            E::AuthenticationRequired
            | E::AuthenticationNotOffered
            | E::AuthenticationFailed(_)
            | E::ProofNotJudged
            | E::SecureChannelRequired => "authentication",
            E::KeyFile(_) => "key_file",
            E::Protocol(_) => "protocol",
            E::Tcp(refusal) => tcp_reason(refusal),
            _ => "other",
        }
    }

    pub(crate) fn system(error: io::Error) -> Error {
        Error::System(Arc::new(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Url(error) => error.fmt(f),
            Error::Options(reason)
            | Error::Namespace(reason)
            | Error::Twin(reason)
            | Error::Record(reason) => f.write_str(reason),
            Error::Connect { address, subsystem, reason } => {
                write!(f, "cannot connect to {subsystem} at {address}: {reason}")
            }
            Error::Authentication { address, subsystem, reason } => {
                write!(f, "cannot reauthenticate with {subsystem} at {address}: {reason}")
            }
            Error::Command { what, status } => write!(f, "{what} failed: {status}"),
            Error::Answer { what, reason } => write!(f, "{what}: {reason}"),
            Error::Lost(reason) => write!(f, "the connection to the controller is lost: {reason}"),
            Error::Busy => f.write_str("too many admin commands are waiting"),
            Error::System(error) => write!(f, "the operating system refused a resource: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Url(error) => Some(error),
            Error::Connect { reason, .. } | Error::Authentication { reason, .. } => Some(reason),
            Error::Answer { reason, .. } => Some(reason),
            Error::System(error) => Some(&**error),
            _ => None,
        }
    }
}

impl From<Panicked> for Error {
    fn from(panicked: Panicked) -> Error {
        Error::Lost(panicked.to_string().into())
    }
}

impl From<UrlError> for Error {
    fn from(error: UrlError) -> Error {
        Error::Url(error)
    }
}
