//! Changes to a running target, from any thread except its cores.

use crate::config::Export;
use crate::pace::Rates;
use crate::reservations::ReservationStore;
use crate::shared::TargetShared;
use farblock_block::Namespace;
use farblock_proto::controller::{ConfigError, NamespaceInfo, USUAL_ANA_GROUP};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use farblock_tls::TlsError;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

/// Changes a running target, from any thread. Hosts learn of every change by the events that they
/// enabled.
///
/// A change is made when the call returns, and every later Connect or query sees it. Each core
/// receives it in its mailbox, and executes commands that arrive before by the old state.
#[derive(Clone)]
pub struct Control {
    pub(crate) shared: Arc<TargetShared>,
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
        self.shared.add_namespace(nqn, nsid, export, &Sharing::default(), None)
    }

    /// Adds a namespace that is shared like this from the start.
    ///
    /// # Errors
    /// As for [`Control::add_namespace`], and if it cannot be shared like this.
    pub fn add_namespace_as(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
    ) -> Result<(), ChangeError> {
        self.shared.add_namespace(nqn, nsid, export, sharing, None)
    }

    /// The same, with its reservations in `store`: those already stored there hold from the start.
    ///
    /// # Errors
    /// As for [`Control::add_namespace_as`], and if the stored reservations cannot be used.
    pub fn add_namespace_kept(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
        store: Option<&Arc<dyn ReservationStore>>,
    ) -> Result<(), ChangeError> {
        self.shared.add_namespace(nqn, nsid, export, sharing, store)
    }

    /// Changes how a namespace is shared, atomically: no host sees part of the change, or gains
    /// access from a mix of the old and new settings.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or it cannot be shared like this. It stays
    /// unchanged then.
    pub fn set_sharing(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        sharing: &Sharing,
    ) -> Result<(), ChangeError> {
        self.shared.set_sharing(nqn, nsid, sharing)
    }

    /// Sets the hosts, by name, that see a namespace; `None`: all allowed hosts. To other hosts it
    /// is inactive. Submitted operations complete.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or a host name is not valid.
    pub fn set_visible_to(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        hosts: Option<&BTreeSet<String>>,
    ) -> Result<(), ChangeError> {
        self.shared.set_visible_to(nqn, nsid, hosts)
    }

    /// Moves a namespace to another ANA group.
    ///
    /// # Errors
    /// If there is no such subsystem, namespace or group.
    pub fn set_ana_group(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        ana_group: u32,
    ) -> Result<(), ChangeError> {
        self.shared.set_ana_group(nqn, nsid, ana_group)
    }

    /// Removes a namespace. Submitted operations complete and get their responses. All other
    /// commands fail with Invalid Namespace or Format, even if another namespace gets the number at
    /// once.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace.
    pub fn remove_namespace(&self, nqn: &str, nsid: NamespaceId) -> Result<Removal, ChangeError> {
        self.shared.remove_namespace(nqn, nsid)
    }

    /// Replaces a namespace by another under the same number. For hosts it is a new namespace,
    /// unless its identity is the same, and their commands for the old one see it removed. The set
    /// size and write protection do not carry over.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or the new one cannot be shared. The old one
    /// stays then.
    pub fn replace_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
    ) -> Result<Removal, ChangeError> {
        self.shared.replace_namespace(nqn, nsid, export, None)
    }

    /// Replaces a namespace by one that is shared like this from the start.
    ///
    /// # Errors
    /// As for [`Control::replace_namespace`] and [`Control::set_sharing`].
    pub fn replace_namespace_as(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
    ) -> Result<Removal, ChangeError> {
        self.shared.replace_namespace(nqn, nsid, export, Some(sharing))
    }

    /// Shares only the first `blocks` blocks of a namespace; `None`: all.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or it has fewer blocks.
    pub fn resize_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        blocks: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.shared.resize_namespace(nqn, nsid, blocks)
    }

    /// Sets or clears a namespace's write protection. Submitted writes complete.
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

    /// Limits the rates of one host over all namespaces and controllers of a subsystem; the default
    /// has no limit. The limits of each namespace apply as well.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn set_host_rates(&self, nqn: &str, host: &str, rates: &Rates) -> Result<(), ChangeError> {
        self.shared.set_host_rates(nqn, host, rates)
    }

    /// Limits the rates of a namespace over all hosts; the default has no limit. Waiting commands
    /// book again. Setting the same limits keeps their consumption.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace.
    pub fn set_rates(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        rates: &Rates,
    ) -> Result<(), ChangeError> {
        self.shared.set_rates(nqn, nsid, rates)
    }

    /// Rereads a namespace's size and abilities, and notifies hosts of changes.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or its new properties cannot be shared.
    pub fn refresh_namespace(&self, nqn: &str, nsid: NamespaceId) -> Result<(), ChangeError> {
        self.shared.refresh_namespace(nqn, nsid)
    }
}

/// How a namespace is shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// Its ANA group.
    pub ana_group: u32,
    /// The hosts that see it, by name; `None`: all allowed hosts.
    pub visible_to: Option<BTreeSet<String>>,
    /// Its NGUID, if not derived from its identity.
    pub nguid: Option<[u8; 16]>,
    /// Its EUI-64, if not derived from its identity.
    pub eui64: Option<[u8; 8]>,
    /// The number of shared blocks; `None`: all.
    pub blocks: Option<u64>,
    /// Whether it is write-protected, even if its store is writable.
    pub read_only: bool,
    /// Its rate limits over all hosts.
    pub rates: Rates,
}

impl Default for Sharing {
    /// All blocks, the default ANA group, all hosts, no limits.
    fn default() -> Self {
        Self {
            ana_group: USUAL_ANA_GROUP,
            visible_to: None,
            nguid: None,
            eui64: None,
            blocks: None,
            read_only: false,
            rates: Rates::default(),
        }
    }
}

impl Sharing {
    /// The properties that hosts see of a namespace with the properties `info`.
    pub(crate) fn of(&self, info: NamespaceInfo) -> NamespaceInfo {
        NamespaceInfo {
            ana_group: self.ana_group,
            nguid: self.nguid.unwrap_or(info.nguid),
            eui64: self.eui64.unwrap_or(info.eui64),
            blocks: self.blocks.map_or(info.blocks, |most| most.min(info.blocks)),
            read_only: info.read_only || self.read_only,
            ..info
        }
    }
}

/// A core's handle on a [`Removal`]; dropped when the core has closed its queue.
pub(crate) type Share = Sender<Infallible>;

/// A namespace that is being removed: its last operations complete.
///
/// Once every core has closed its queue into it, and this value is dropped or [waited](Self::wait)
/// for, its file closes and unlocks, unless it has other owners. Closing may take long, so do not
/// drop this on a core: keep it until it [is over](Self::is_over).
#[must_use = "the namespace is in use until this is over"]
pub struct Removal {
    shares: Receiver<Infallible>,
    namespace: Arc<dyn Namespace>,
}

impl Removal {
    pub(crate) fn new(shares: Receiver<Infallible>, namespace: Arc<dyn Namespace>) -> Self {
        Self { shares, namespace }
    }

    /// Whether the target has released the namespace.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shares.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Waits until the target has released the namespace, and drops it.
    ///
    /// # Errors
    /// Returns itself after `timeout`: a slow disk takes unbounded time.
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

/// Why a change to a running target failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ChangeError {
    /// The target has no subsystem with this name.
    NoSubsystem(String),
    /// The subsystem cannot be shared, or changed, like this.
    Subsystem(String, ConfigError),
    /// The address cannot be added, referred to or removed, and why.
    Address(String, String),
    /// The namespace cannot be shared, or changed, like this.
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
    /// The stored reservations of the namespace cannot be used, and why.
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
                "namespace {nsid} has {blocks} blocks, so {wanted} cannot be shared: enlarge what \
                 stores it first"
            ),
            Self::Reservations(NamespaceId(nsid), why) => write!(
                f,
                "the reservations of namespace {nsid} that were kept cannot be taken up, and who \
                 was fenced would get in: {why}"
            ),
            Self::Tls(error) => write!(f, "hosts would have to use TLS, and {error}"),
            Self::Stopping => f.write_str("the target is stopping"),
        }
    }
}

impl std::error::Error for ChangeError {}
