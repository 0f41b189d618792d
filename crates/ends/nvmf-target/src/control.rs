//! Changing a target while it runs, from any thread that is none of its cores.

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

/// Changes a running target: from any thread, and for as long as the target runs. Hosts are told of
/// every change by the events that they asked for.
///
/// A change is made when the call returns: whoever connects then, or asks, finds it. The cores hear
/// of it in their mailboxes, and carry out by the old state what hosts send until then.
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

    /// The same, and from its first moment it is shared like this.
    ///
    /// # Errors
    /// Those of [`Control::add_namespace`], and if it cannot be shared like this.
    pub fn add_namespace_as(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
    ) -> Result<(), ChangeError> {
        self.shared.add_namespace(nqn, nsid, export, sharing, None)
    }

    /// The same, and its reservations are kept in `store`: those that were kept there hold from its
    /// first moment.
    ///
    /// # Errors
    /// Those of [`Control::add_namespace_as`], and if what was kept cannot be taken up.
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

    /// Changes how a namespace is shared, all of it at once: no host sees a part of the change, or
    /// what only the old and the new together would allow it.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or it cannot be shared like this: then it stays
    /// as it was.
    pub fn set_sharing(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        sharing: &Sharing,
    ) -> Result<(), ChangeError> {
        self.shared.set_sharing(nqn, nsid, sharing)
    }

    /// Says which hosts see a namespace from now on, by name; `None`: all that may connect. To the
    /// others it is inactive. What was handed to it already runs to its end.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or these cannot be hosts.
    pub fn set_visible_to(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        hosts: Option<&BTreeSet<String>>,
    ) -> Result<(), ChangeError> {
        self.shared.set_visible_to(nqn, nsid, hosts)
    }

    /// Makes a namespace a member of another ANA group.
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
        self.shared.replace_namespace(nqn, nsid, export, None)
    }

    /// The same, and from its first moment the new one is shared like this.
    ///
    /// # Errors
    /// Those of [`Control::replace_namespace`] and [`Control::set_sharing`].
    pub fn replace_namespace_as(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
    ) -> Result<Removal, ChangeError> {
        self.shared.replace_namespace(nqn, nsid, export, Some(sharing))
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

    /// Limits what a host may do with a subsystem's namespaces in a second, with all of them
    /// together and through all of its controllers; with the default, it is not limited. What the
    /// namespaces' own limits say holds, too.
    ///
    /// # Errors
    /// If there is no such subsystem.
    pub fn set_host_rates(&self, nqn: &str, host: &str, rates: &Rates) -> Result<(), ChangeError> {
        self.shared.set_host_rates(nqn, host, rates)
    }

    /// Limits what hosts may do with a namespace in a second, all of them together; with the
    /// default, nothing is limited. What waits at the moment asks anew; the same limits as before
    /// go on as they are.
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

    /// Looks at a namespace's size and abilities again, and tells the hosts if they changed.
    ///
    /// # Errors
    /// If there is no such subsystem or namespace, or it cannot be shared as it has become.
    pub fn refresh_namespace(&self, nqn: &str, nsid: NamespaceId) -> Result<(), ChangeError> {
        self.shared.refresh_namespace(nqn, nsid)
    }
}

/// How a namespace is shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// Its ANA group.
    pub ana_group: u32,
    /// The hosts that see it, by name; `None`: all that may connect.
    pub visible_to: Option<BTreeSet<String>>,
    /// Its NGUID, if not the one that its identity gives it.
    pub nguid: Option<[u8; 16]>,
    /// Its EUI-64, if not the one that its identity gives it.
    pub eui64: Option<[u8; 8]>,
    /// How many of its blocks are shared, if not all.
    pub blocks: Option<u64>,
    /// It is not to be written to, whether it can be or not.
    pub read_only: bool,
    /// What hosts may do with it in a second, all of them together.
    pub rates: Rates,
}

impl Default for Sharing {
    /// All of it, in the usual group, for all hosts, without limits.
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
    /// What hosts are told of a namespace that is like this by itself.
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
    /// What was kept of the namespace's reservations cannot be taken up, and why.
    Reservations(NamespaceId, String),
    /// Hosts would have to use TLS, and there is no library for it.
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
