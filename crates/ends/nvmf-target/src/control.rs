//! Changing a target while it runs, from any thread that is none of its cores.

use crate::config::Export;
use crate::shared::Shared;
use farblock_block::Namespace;
use farblock_proto::controller::ConfigError;
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

/// Changes a running target: from any thread, and for as long as the target runs. Hosts are told of
/// every change by the events that they asked for.
///
/// A change is made when the call returns: whoever connects then, or asks, finds it. The cores hear
/// of it in their mailboxes, and carry out by the old state what hosts send until then.
#[derive(Clone)]
pub struct Control {
    pub(crate) shared: Arc<Shared>,
}

impl Control {
    /// Shares a namespace as number `nsid` of the subsystem named `nqn`.
    ///
    /// # Errors
    /// If there is no such subsystem, the number is taken, or the namespace cannot be shared.
    pub fn add_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
    ) -> Result<(), ChangeError> {
        self.shared.add_namespace(nqn, nsid, export)
    }

    /// Takes a namespace away. What was handed to it runs to its end and is answered; what hosts
    /// sent besides, and send from now on, is answered with Invalid Namespace or Format, also if
    /// the number is given to another namespace at once.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace.
    pub fn remove_namespace(&self, nqn: &str, nsid: NamespaceId) -> Result<Removal, ChangeError> {
        self.shared.remove_namespace(nqn, nsid)
    }

    /// Puts another namespace in a namespace's place. For hosts it is another one behind the same
    /// number (unless its identity is the same), and for what they have sent the old one was
    /// removed. The size and the protection that were set are not kept.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or the new one cannot be shared: then the old
    /// one stays.
    pub fn replace_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
    ) -> Result<Removal, ChangeError> {
        self.shared.replace_namespace(nqn, nsid, export)
    }

    /// Shares only the first `blocks` blocks of a namespace, or all that there are.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or it has not so many blocks.
    pub fn resize_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        blocks: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.shared.resize_namespace(nqn, nsid, blocks)
    }

    /// Protects a namespace from being written to, or ends that. Writes that were handed to it
    /// already run to their end.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace.
    pub fn set_read_only(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        read_only: bool,
    ) -> Result<(), ChangeError> {
        self.shared.set_read_only(nqn, nsid, read_only)
    }

    /// Looks at a namespace's size and abilities again, and tells the hosts if they changed.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or it cannot be shared as it has become.
    pub fn refresh_namespace(&self, nqn: &str, nsid: NamespaceId) -> Result<(), ChangeError> {
        self.shared.refresh_namespace(nqn, nsid)
    }
}

/// A core's share of a [`Removal`]: given back by being dropped.
pub(crate) type Share = Sender<Infallible>;

/// A namespace that is being taken away: its last operations end.
///
/// It is gone when every core has closed its queue into it and this is dropped or
/// [waited](Self::wait) for: then its file is closed and unlocked, unless somebody else holds the
/// namespace, too. What closes a namespace may take long, so it should not happen on a core: keep
/// this until it [is over](Self::is_over).
#[must_use = "the namespace is in use until this is over"]
pub struct Removal {
    shares: Receiver<Infallible>,
    namespace: Arc<dyn Namespace>,
}

impl Removal {
    pub(crate) fn new(shares: Receiver<Infallible>, namespace: Arc<dyn Namespace>) -> Self {
        Self { shares, namespace }
    }

    /// Whether the target has nothing of the namespace any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shares.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Waits until the target has nothing of the namespace any more, and drops it.
    ///
    /// # Errors
    /// Itself, if that takes longer than `timeout`: a slow disk may take what it likes.
    pub fn wait(self, timeout: Duration) -> Result<(), Self> {
        match os::recv_timeout(&self.shares, timeout) {
            Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(self),
            Ok(never) => match never {},
        }
    }
}

impl fmt::Debug for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "removal of {}", self.namespace.describe())
    }
}

/// Why a running target was not changed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangeError {
    /// The target does not share a subsystem with this name.
    NoSubsystem(String),
    /// The subsystem cannot be shared, or changed, like this.
    Subsystem(String, ConfigError),
    /// The address cannot be listened on, referred to or given up, and why.
    Address(String, String),
    /// The namespace cannot be shared, or changed, like this.
    Namespace(NamespaceId, ConfigError),
    /// The namespace has fewer blocks than are to be shared.
    TooFewBlocks {
        /// Which namespace.
        namespace: NamespaceId,
        /// How many were asked for.
        wanted: u64,
        /// How many it has.
        blocks: u64,
    },
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
                "namespace {nsid} has {blocks} blocks, so {wanted} cannot be shared: enlarge what \
                 stores it first"
            ),
            Self::Stopping => f.write_str("the target is stopping"),
        }
    }
}

impl std::error::Error for ChangeError {}
