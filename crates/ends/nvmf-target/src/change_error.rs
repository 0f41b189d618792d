//! Why a change to a running target failed.

use farblock_proto::controller::ConfigError;
use farblock_proto::ids::NamespaceId;
use farblock_tls::TlsError;
use std::fmt;

/// Why a change to a running target failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangeError {
    /// The target has no subsystem with this name.
    NoSubsystem(String),
    /// The subsystem's new settings are not valid.
    Subsystem(String, ConfigError),
    /// The address cannot be added, referred to or removed, for this reason.
    Address(String, String),
    /// The namespace's new settings or properties are not valid.
    Namespace(NamespaceId, ConfigError),
    /// The namespace has fewer blocks than requested.
    TooFewBlocks {
        /// The namespace.
        namespace: NamespaceId,
        /// Requested blocks.
        wanted: u64,
        /// Existing blocks.
        blocks: u64,
    },
    /// The stored reservations of the namespace cannot be used, for this reason.
    Reservations(NamespaceId, String),
    /// Hosts would have to use TLS, and there is no TLS library.
    Tls(TlsError),
    /// The target is stopping.
    Stopping,
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSubsystem(nqn) => write!(f, "the target shares no subsystem {nqn}"),
            Self::Subsystem(nqn, error) => write!(f, "subsystem {nqn}: {error}"),
            Self::Address(address, sentence) => write!(f, "{address}: {sentence}"),
            Self::Namespace(NamespaceId(nsid), error) => write!(f, "namespace {nsid}: {error}"),
            Self::TooFewBlocks { namespace: NamespaceId(nsid), wanted, blocks } => write!(
                f,
                "namespace {nsid} has {blocks} blocks, so the target cannot share {wanted}: \
                 enlarge its file or device first"
            ),
            Self::Reservations(NamespaceId(nsid), why) => write!(
                f,
                "cannot share namespace {nsid}: its stored reservations cannot be used, and \
                 without them a fenced host could write ({why})"
            ),
            Self::Tls(error) => write!(f, "cannot require TLS of hosts: {error}"),
            Self::Stopping => f.write_str("the target is stopping"),
        }
    }
}

impl std::error::Error for ChangeError {}
