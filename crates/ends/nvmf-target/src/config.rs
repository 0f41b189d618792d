//! What a target is started with, and why it may not start.

use crate::authentication::HostKeys;
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

use crate::control::Sharing;
use crate::identity;
use crate::pace::Rates;
use crate::reservations::ReservationStore;

/// A namespace that a subsystem shares.
#[derive(Clone)]
pub struct Export {
    /// What stores it.
    pub namespace: Arc<dyn Namespace>,
    /// What tells it apart from other disks, for identifiers that stay the same over restarts. A
    /// UUID becomes the namespace's own, wherever it is shared; from anything else, a path for
    /// example, identifiers are made that hang on the subsystem and the number, too.
    pub identity: String,
}

/// A subsystem and what it shares.
#[derive(Clone)]
pub struct Subsystem {
    /// Name, limits and allowed hosts. Its `namespaces` are filled in from `exports`.
    pub config: SubsystemConfig,
    /// Its namespaces by identifier.
    pub exports: BTreeMap<NamespaceId, Export>,
    /// How namespaces are shared, where it is not the usual way.
    pub sharing: BTreeMap<NamespaceId, Sharing>,
    /// What single hosts, by name, may do with all of them in a second.
    pub host_rates: BTreeMap<String, Rates>,
    /// Where reservations of namespaces are kept that can persist through a power loss. Others
    /// have none that persist, and say so.
    pub reservations: BTreeMap<NamespaceId, Arc<dyn ReservationStore>>,
    /// Hosts, by name, that have to prove who they are. Those may connect whether they are among
    /// the allowed ones or not.
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

    /// How a namespace is shared.
    pub(crate) fn sharing(&self, nsid: NamespaceId) -> Sharing {
        let mut sharing = self.sharing.get(&nsid).cloned().unwrap_or_default();
        if sharing.visible_to.is_none() {
            sharing.visible_to = self.config.visible_to.get(&nsid).cloned();
        }
        sharing
    }

    /// What is offered: those who have to authenticate may connect.
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

/// Who may connect without TLS where a listener is. A host that has a key for TLS never may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsPolicy {
    /// Hosts that have no key for TLS, and there is no TLS for others: they are refused.
    Plain,
    /// Hosts that have no key for TLS.
    Allowed,
    /// Nobody.
    Required,
}

/// What a target is started with.
#[derive(Clone)]
pub struct TargetConfig {
    /// What it shares.
    pub subsystems: Vec<Subsystem>,
    /// Where it listens; port 0 takes a free one.
    pub listeners: Vec<SocketAddr>,
    /// How namespaces can be reached by the listeners, by their places in `listeners`; of which
    /// nothing is said here, each at its best.
    pub access: BTreeMap<usize, PortAccess>,
    /// Identifiers that controllers may get. Targets that offer the same subsystem need ranges of
    /// their own, as hosts know controllers by these.
    pub controller_ids: RangeInclusive<u16>,
    /// Hosts, by name, that have to use TLS for every subsystem and discovery, each with its key,
    /// or with two while one takes the other's place. Who may use what is said elsewhere.
    pub tls_keys: BTreeMap<String, Vec<TlsKey>>,
    /// Who may connect without TLS, where `tls_listeners` does not say it: unless it is said,
    /// nobody if there are `tls_keys`, and otherwise hosts that have no key.
    pub tls: Option<TlsPolicy>,
    /// The same by listener, by their places in `listeners`.
    pub tls_listeners: BTreeMap<usize, TlsPolicy>,
    /// Other discovery services to point hosts to.
    pub referrals: Vec<Referral>,
    /// One reactor thread for each, pinned to this processor; empty: one unpinned thread for
    /// each processor.
    pub cores: Vec<usize>,
    /// The event loop.
    pub engine: EngineKind,
    /// What a core does before it sleeps.
    pub polling: Polling,
    /// No limit, but for measuring.
    #[doc(hidden)]
    pub call_bytes: CallBytes,
    /// Memory that peers may make all cores hold together, in bytes. `None`: 512 MiB, or 32 MiB a
    /// core if that is more, but at most a quarter of what the process may use.
    pub buffer_bytes: Option<u64>,
    /// Memory that peers may make each core hold, in bytes; but for tests.
    #[doc(hidden)]
    pub core_buffer_bytes: Option<usize>,
    /// Connections that there may be, if fewer than [`MAX_CONNECTIONS`]; but for tests.
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

/// Why a target did not start; nothing of it runs then.
#[derive(Debug)]
pub enum StartError {
    /// An address could not be listened on.
    Listen(SocketAddr, io::Error),
    /// An address is given twice.
    Twice(SocketAddr),
    /// The event loop could not be made.
    Reactor(EngineKind, io::Error),
    /// The system gave no random numbers.
    Random(io::Error),
    /// A thread could not be started.
    Thread(io::Error),
    /// The thread could not be pinned to this processor.
    Core(usize, io::Error),
    /// A subsystem cannot be offered like this.
    Subsystem(String, ConfigError),
    /// A listener or referral cannot be offered like this.
    Address(String, ConfigError),
    /// The subsystem asks for something that this target does not do.
    NotOffered(String, &'static str),
    /// These cannot be controllers' identifiers.
    ControllerIds(ConfigError),
    /// The reservations of this namespace that were kept cannot be used.
    Reservations(String, NamespaceId, io::Error),
    /// There is nothing to listen on.
    NoListener,
    /// Hosts have to use TLS, and there is no library for it.
    Tls(TlsError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => {
                write!(f, "cannot listen on {address}: {}", listen_problem(error))
            }
            Self::Twice(address) => write!(f, "{address} is listed twice to listen on"),
            Self::Reactor(engine, error) => write!(f, "cannot start the {engine} engine: {error}"),
            Self::Random(error) => write!(f, "the system gives no random numbers: {error}"),
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
            Self::Core(core, error) => {
                write!(f, "cannot use processor {core}: {error} (`nproc --all` tells how many)")
            }
            Self::Subsystem(nqn, error) => write!(f, "subsystem {nqn}: {error}"),
            Self::Address(address, error) => write!(f, "address {address}: {error}"),
            Self::NotOffered(nqn, what) => {
                write!(f, "subsystem {nqn}: this target does not do {what}")
            }
            Self::Reservations(nqn, nsid, error) => write!(
                f,
                "subsystem {nqn}: the reservations that were kept for namespace {nsid} cannot be \
                 read, and without them a host that was fenced could write: {error}"
            ),
            Self::ControllerIds(error) => error.fmt(f),
            Self::NoListener => f.write_str("there is no address to listen on"),
            Self::Tls(error) => write!(f, "hosts have to use TLS, and {error}"),
        }
    }
}

fn listen_problem(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is in use by another program; choose another one".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need more rights; choose a higher one".to_owned()
        }
        _ => error.to_string(),
    }
}

impl std::error::Error for StartError {}
