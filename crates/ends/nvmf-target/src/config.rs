//! Configuration of a target, and the errors that keep it from starting.

use crate::host_keys::HostKeys;
use farblock_block::Namespace;
use farblock_proto::controller::{ConfigError, PortAccess, Referral, SubsystemConfig};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{CallBytes, EngineKind, Polling};
use farblock_secure::TlsKey;
use farblock_tls::TlsError;
use farblock_wire::fabrics::CNTLID_MAX;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::identity;
use crate::pace::Rates;
use crate::reservations::ReservationStore;
use crate::sharing::Sharing;

/// A namespace that a subsystem shares.
#[derive(Clone)]
pub struct Export {
    /// Its store.
    pub namespace: Arc<dyn Namespace>,
    /// Identifies the disk, so that the namespace's identifiers stay the same over restarts. A UUID
    /// becomes the namespace's UUID wherever it is shared. Any other text, for example a path, is
    /// combined with the subsystem's name and the namespace number.
    pub identity: String,
}

/// A subsystem and its namespaces.
#[derive(Clone)]
pub struct Subsystem {
    /// Name, limits and allowed hosts. Its `namespaces` are filled in from `exports`.
    pub config: SubsystemConfig,
    /// Its namespaces by identifier.
    pub exports: BTreeMap<NamespaceId, Export>,
    /// Settings of namespaces that do not have the default settings.
    pub sharing: BTreeMap<NamespaceId, Sharing>,
    /// Rate limits of single hosts, by host name. Each covers all namespaces together.
    pub host_rates: BTreeMap<String, Rates>,
    /// Stores for reservations that persist through power loss. Namespaces without a store report
    /// that they do not support this.
    pub reservations: BTreeMap<NamespaceId, Arc<dyn ReservationStore>>,
    /// Hosts, by name, that must prove their identity. They may connect even if they are not among
    /// the allowed hosts.
    pub keys: BTreeMap<String, HostKeys>,
}

impl Subsystem {
    /// A subsystem without namespaces, with a serial number made from its name.
    #[must_use]
    pub fn new(nqn: &str) -> Self {
        let config = SubsystemConfig::new(nqn, &identity::serial(nqn));
        Self {
            config,
            exports: BTreeMap::new(),
            sharing: BTreeMap::new(),
            host_rates: BTreeMap::new(),
            reservations: BTreeMap::new(),
            keys: BTreeMap::new(),
        }
    }

    pub(crate) fn sharing(&self, nsid: NamespaceId) -> Sharing {
        let mut sharing = self.sharing.get(&nsid).cloned().unwrap_or_default();
        if sharing.visible_to.is_none() {
            sharing.visible_to = self.config.visible_to.get(&nsid).cloned();
        }
        sharing
    }

    /// The configuration for the registry, with the hosts in `keys` added to the allowed hosts.
    pub(crate) fn offered(&self) -> SubsystemConfig {
        let mut offered = self.config.clone();
        for host in self.keys.keys().filter(|_| !self.config.allow_any_host) {
            if !offered.allowed_hosts.contains(host) {
                offered.allowed_hosts.push(host.clone());
            }
        }
        offered
    }
}

/// The hosts that may connect to a listener without TLS. A host with a TLS key for a subsystem may
/// use that subsystem only with TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsPolicy {
    /// Hosts without a TLS key. The listener has no TLS and refuses hosts that have a key.
    Plain,
    /// Hosts without a TLS key.
    Allowed,
    /// No host.
    Required,
}

/// Configuration of a target.
#[derive(Clone)]
pub struct TargetConfig {
    /// Subsystems that the target has at its start.
    pub subsystems: Vec<Subsystem>,
    /// Listen addresses; port 0 takes a free port.
    pub listeners: Vec<SocketAddr>,
    /// ANA access by index in `listeners`. Via other listeners, every namespace is in the ANA
    /// Optimized state.
    pub access: BTreeMap<usize, PortAccess>,
    /// Controller identifiers to allocate. Targets that offer the same subsystem need disjoint
    /// ranges, since hosts identify its controllers by these numbers.
    pub controller_ids: RangeInclusive<u16>,
    /// Hosts, by name, that must use TLS for every subsystem and for discovery, with their keys:
    /// two while a key is being rotated. A host with a key here must also be an allowed host of a
    /// subsystem.
    pub tls_keys: BTreeMap<String, Vec<TlsKey>>,
    /// The TLS policy of listeners that `tls_listeners` does not name. `None`:
    /// [`TlsPolicy::Required`] if there are `tls_keys`, otherwise [`TlsPolicy::Allowed`].
    pub tls: Option<TlsPolicy>,
    /// TLS policies by index in `listeners`.
    pub tls_listeners: BTreeMap<usize, TlsPolicy>,
    /// Referrals to other discovery services.
    pub referrals: Vec<Referral>,
    /// Processors: one pinned reactor thread for each. Empty: one unpinned thread per processor.
    pub cores: Vec<usize>,
    /// The event loop engine.
    pub engine: EngineKind,
    /// The time that a core polls for events before it sleeps.
    pub polling: Polling,
    /// Limits the bytes of one system call. Set only for measurements; the default is no limit.
    #[doc(hidden)]
    pub call_bytes: CallBytes,
    /// Bytes that peers may make all cores hold together. `None`: 512 MiB, or 32 MiB a core if that
    /// is more, but at most a quarter of the memory that the process may use.
    pub buffer_bytes: Option<u64>,
    /// Bytes that peers may make each core hold; for tests only.
    #[doc(hidden)]
    pub core_buffer_bytes: Option<usize>,
    /// Maximum number of connections, if below [`MAX_CONNECTIONS`]; for tests only.
    ///
    /// [`MAX_CONNECTIONS`]: crate::limits::MAX_CONNECTIONS
    #[doc(hidden)]
    pub max_connections: Option<usize>,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            subsystems: Vec::new(),
            listeners: Vec::new(),
            access: BTreeMap::new(),
            controller_ids: 1..=CNTLID_MAX,
            tls_keys: BTreeMap::new(),
            tls: None,
            tls_listeners: BTreeMap::new(),
            referrals: Vec::new(),
            cores: Vec::new(),
            engine: EngineKind::Auto,
            polling: Polling::default(),
            call_bytes: CallBytes::default(),
            buffer_bytes: None,
            core_buffer_bytes: None,
            max_connections: None,
        }
    }
}

/// Why a target did not start.
#[derive(Debug)]
pub enum StartError {
    /// The target cannot listen on this address.
    Listen(SocketAddr, io::Error),
    /// An address is listed twice.
    Twice(SocketAddr),
    /// The reactor could not be created.
    Reactor(EngineKind, io::Error),
    /// The system returned no random numbers.
    Random(io::Error),
    /// A thread could not be started.
    Thread(io::Error),
    /// The thread could not be pinned to this processor.
    Core(usize, io::Error),
    /// The subsystem is not valid.
    Subsystem(String, ConfigError),
    /// A listener or referral is not valid.
    Address(String, ConfigError),
    /// The subsystem requires a feature that this target lacks.
    NotOffered(String, &'static str),
    /// The controller identifiers are not valid.
    ControllerIds(ConfigError),
    /// The stored reservations of this namespace cannot be used.
    Reservations(String, NamespaceId, io::Error),
    /// There is no listener.
    NoListener,
    /// Hosts must use TLS, and there is no TLS library.
    Tls(TlsError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => {
                write!(f, "cannot listen on {address}: {}", listen_problem(error))
            }
            Self::Twice(address) => {
                write!(f, "{address} is listed twice: list each listen address once")
            }
            Self::Reactor(engine, error) => write!(f, "cannot start the {engine} engine: {error}"),
            Self::Random(error) => write!(f, "the system gave no random numbers: {error}"),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
            Self::Core(core, error) => {
                write!(
                    f,
                    "cannot use processor {core}: {error} (`nproc --all` shows how many there are)"
                )
            }
            Self::Subsystem(nqn, error) => write!(f, "subsystem {nqn}: {error}"),
            Self::Address(address, error) => write!(f, "address {address}: {error}"),
            Self::NotOffered(nqn, what) => {
                write!(f, "subsystem {nqn}: this target does not support {what}")
            }
            Self::Reservations(nqn, nsid, error) => write!(
                f,
                "subsystem {nqn}: cannot read the stored reservations of namespace {nsid}, and \
                 without them a fenced host could write: {error}"
            ),
            Self::ControllerIds(error) => error.fmt(f),
            Self::NoListener => f.write_str("no address to listen on is configured"),
            Self::Tls(error) => write!(f, "cannot require TLS of hosts: {error}"),
        }
    }
}

fn listen_problem(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is in use by another program; choose another port".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "a port below 1024 needs more privileges; choose a higher port".to_owned()
        }
        _ => error.to_string(),
    }
}

impl std::error::Error for StartError {}
