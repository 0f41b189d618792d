//! The configuration of a target, and the errors that prevent its start.

use crate::host_keys::HostKeys;
use farblock_block::Namespace;
use farblock_proto::controller::{ConfigError, Entrance, PortAccess, Referral, SubsystemConfig};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::{CallBytes, EngineKind, Polling};
use farblock_secure::TlsKey;
use farblock_tls::TlsError;
use farblock_verbs::{Provider, VerbsError};
use farblock_wire::fabrics::CNTLID_MAX;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::identity;
use crate::pace::Rates;
use crate::permit::Permit;
use crate::reservations::{ReservationStore, SharedReservations};
use crate::sharing::Sharing;

/// A namespace that a subsystem shares with hosts.
#[derive(Clone)]
pub struct Export {
    /// The namespace's store.
    pub namespace: Arc<dyn Namespace>,
    /// A text that identifies the disk. The target derives the namespace's identifiers from it, so
    /// they stay the same across restarts. If the text is a UUID, the namespace has this UUID in
    /// every subsystem. From any other text, for example a path, the target derives the identifiers
    /// together with the subsystem's name and the namespace number.
    pub identity: String,
}

/// A subsystem and its namespaces.
#[derive(Clone)]
pub struct Subsystem {
    /// Name, limits and allowed hosts. The target fills in `namespaces` from `exports`.
    pub config: SubsystemConfig,
    /// The namespaces, by namespace identifier.
    pub exports: BTreeMap<NamespaceId, Export>,
    /// Settings of namespaces that do not have the default settings.
    pub sharing: BTreeMap<NamespaceId, Sharing>,
    /// Rate limits of individual hosts, by host name. Each limit covers all namespaces together.
    pub host_rates: BTreeMap<String, Rates>,
    /// Stores for reservations that persist through power loss. A namespace without a store reports
    /// that it does not support such reservations.
    pub reservations: BTreeMap<NamespaceId, Arc<dyn ReservationStore>>,
    /// For namespaces that other targets share, too: the group of targets that stores their
    /// reservations. Such a namespace needs no reservation store.
    pub shared_reservations: BTreeMap<NamespaceId, Arc<dyn SharedReservations>>,
    /// Keys of the hosts that must prove their identity, by host name. These hosts may connect even
    /// if the list of allowed hosts does not contain them.
    pub keys: BTreeMap<String, HostKeys>,
}

impl Subsystem {
    /// Returns a subsystem without namespaces, with a serial number derived from its name.
    #[must_use]
    pub fn new(nqn: &str) -> Self {
        let config = SubsystemConfig::new(nqn, &identity::serial(nqn));
        Self {
            config,
            exports: BTreeMap::new(),
            sharing: BTreeMap::new(),
            host_rates: BTreeMap::new(),
            reservations: BTreeMap::new(),
            shared_reservations: BTreeMap::new(),
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

    /// Returns the configuration for the registry: the hosts in `keys` are added to the allowed
    /// hosts.
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

/// The TLS policy of a listener: which hosts may connect without TLS. If a host has a TLS key for a
/// subsystem, it may use that subsystem only with TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsPolicy {
    /// Hosts without a TLS key may connect. The listener does not offer TLS and refuses hosts with
    /// a key.
    Plain,
    /// Hosts without a TLS key may connect without TLS. Hosts with a key must use TLS.
    Allowed,
    /// No host may connect without TLS.
    Required,
}

/// RDMA listeners. RDMA has no TLS, so hosts with a TLS key cannot connect there.
#[derive(Clone)]
pub struct RdmaListeners {
    /// The devices.
    pub provider: Provider,
    /// Listen addresses: each is an address of a device, or a wildcard.
    pub addresses: Vec<SocketAddr>,
}

impl RdmaListeners {
    /// Returns listeners on this machine's RDMA devices.
    ///
    /// # Errors
    /// Returns [`StartError::Rdma`] with a sentence that says why this machine cannot use RDMA.
    pub fn here(addresses: Vec<SocketAddr>) -> Result<Self, StartError> {
        let first = addresses.first().copied().unwrap_or(([0; 4], 0).into());
        let provider = Provider::system().map_err(|error| StartError::Rdma(first, error))?;
        Ok(Self { provider, addresses })
    }
}

/// Configuration of a target.
#[derive(Clone)]
pub struct TargetConfig {
    /// The subsystems that exist when the target starts.
    pub subsystems: Vec<Subsystem>,
    /// Listen addresses; port 0 takes a free port.
    pub listeners: Vec<SocketAddr>,
    /// RDMA devices and listen addresses; port 0 takes a free port. `None`: no RDMA.
    pub rdma: Option<RdmaListeners>,
    /// ANA access by index in `listeners`; the indexes of RDMA listeners follow. On a listener
    /// without an entry, every namespace is in the ANA Optimized state.
    pub access: BTreeMap<usize, PortAccess>,
    /// The range of controller identifiers to allocate. Hosts identify the controllers of a
    /// subsystem by these numbers. Targets that offer the same subsystem therefore need disjoint
    /// ranges.
    pub controller_ids: RangeInclusive<u16>,
    /// By ANA group: the permit from the group of targets that shares its namespaces. The target
    /// executes commands for these namespaces only while the permit is valid.
    pub permits: BTreeMap<u32, Arc<Permit>>,
    /// TLS keys by host name: two per host while a key is being rotated. A host with a key here
    /// must use TLS for every subsystem and for discovery. At least one subsystem must also allow
    /// the host.
    pub tls_keys: BTreeMap<String, Vec<TlsKey>>,
    /// The TLS policy of listeners without an entry in `tls_listeners`. `None` means
    /// [`TlsPolicy::Required`] if there are `tls_keys`, otherwise [`TlsPolicy::Allowed`].
    pub tls: Option<TlsPolicy>,
    /// TLS policies by index, as for `access`. No RDMA listener may have [`TlsPolicy::Required`].
    pub tls_listeners: BTreeMap<usize, TlsPolicy>,
    /// Referrals to other discovery services.
    pub referrals: Vec<Referral>,
    /// Processors to use, with one pinned reactor thread for each. Empty: one unpinned thread per
    /// processor.
    pub cores: Vec<usize>,
    /// The event loop engine.
    pub engine: EngineKind,
    /// The time that a core polls for events before it sleeps.
    pub polling: Polling,
    /// The maximum number of bytes that one system call transfers, for measurements only. The
    /// default is no limit.
    #[doc(hidden)]
    pub call_bytes: CallBytes,
    /// The maximum number of bytes that peers can make all cores together hold. `None`: 512 MiB, or
    /// 32 MiB per core if that is more, but at most a quarter of the memory that the process may
    /// use.
    pub buffer_bytes: Option<u64>,
    /// The maximum number of bytes that peers can make each core hold; for tests only.
    #[doc(hidden)]
    pub core_buffer_bytes: Option<usize>,
    /// The maximum number of connections, if below [`MAX_CONNECTIONS`]; for tests only.
    ///
    /// [`MAX_CONNECTIONS`]: crate::limits::MAX_CONNECTIONS
    #[doc(hidden)]
    pub max_connections: Option<usize>,
}

impl TargetConfig {
    /// Returns the requested listeners: those for TCP, then those for RDMA.
    #[must_use]
    pub fn entrances(&self) -> Vec<Entrance> {
        let by_rdma = self.rdma.iter().flat_map(|rdma| &rdma.addresses);
        let by_tcp = self.listeners.iter().copied().map(Entrance::from);
        by_tcp.chain(by_rdma.copied().map(Entrance::rdma)).collect()
    }
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            subsystems: Vec::new(),
            listeners: Vec::new(),
            rdma: None,
            access: BTreeMap::new(),
            controller_ids: 1..=CNTLID_MAX,
            permits: BTreeMap::new(),
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

/// The reason why a target did not start.
#[derive(Debug)]
pub enum StartError {
    /// The target cannot listen on this address.
    Listen(SocketAddr, io::Error),
    /// An address is listed twice.
    Twice(SocketAddr),
    /// The system could not create the reactor.
    Reactor(EngineKind, io::Error),
    /// The system delivered no random numbers.
    Random(io::Error),
    /// The system could not start a thread.
    Thread(io::Error),
    /// The system could not pin a thread to this processor.
    Core(usize, io::Error),
    /// The subsystem of this name is not valid.
    Subsystem(String, ConfigError),
    /// The listener or referral with this address is not valid.
    Address(String, ConfigError),
    /// The subsystem of this name requires a feature that this target lacks.
    NotOffered(String, &'static str),
    /// The range of controller identifiers is not valid.
    ControllerIds(ConfigError),
    /// The target cannot use the stored reservations of this namespace of this subsystem.
    Reservations(String, NamespaceId, io::Error),
    /// The configuration has no listener.
    NoListener,
    /// The target cannot listen on this address by RDMA.
    Rdma(SocketAddr, VerbsError),
    /// The policy of this RDMA listener requires TLS, and NVMe/RDMA has no TLS.
    RdmaTls(SocketAddr),
    /// The configuration requires TLS, and the target cannot load a TLS library.
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
            Self::Random(error) => write!(f, "cannot get random numbers from the system: {error}"),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
            Self::Core(core, error) => {
                write!(
                    f,
                    "cannot use processor {core}: {error} (`nproc --all` prints their number)"
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
            Self::Rdma(address, error) => {
                write!(f, "cannot listen on rdma:{address}: {error}")
            }
            Self::RdmaTls(address) => write!(
                f,
                "cannot listen on rdma:{address} while every host must use TLS: NVMe/RDMA has no \
                 TLS; allow hosts without a key there (tls = \"allowed\", --tls allowed), or \
                 listen by TCP only"
            ),
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
