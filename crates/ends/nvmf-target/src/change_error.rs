//! The errors of a [`Control`](crate::Control)'s changes.

use farblock_proto::controller::ConfigError;
use farblock_proto::ids::NamespaceId;
use farblock_tls::TlsError;
use std::fmt;

/// The reason why a change to a running target failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangeError {
    /// The target has no subsystem with this name.
    NoSubsystem(String),
    /// The subsystem's new settings are not valid.
    Subsystem(String, ConfigError),
    /// The target cannot add or remove the listener or referral with this address. The second text
    /// is the reason.
    Address(String, String),
    /// The namespace's new settings or properties are not valid.
    Namespace(NamespaceId, ConfigError),
    /// The namespace has fewer blocks than requested.
    TooFewBlocks {
        /// The namespace's identifier.
        namespace: NamespaceId,
        /// The requested number of blocks.
        wanted: u64,
        /// The namespace's number of blocks.
        blocks: u64,
    },
    /// The target cannot use the stored reservations of the namespace. The text is the reason.
    Reservations(NamespaceId, String),
    /// The change requires TLS, and the target cannot load a TLS library.
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
