//! The configuration of a registry, and the errors of an invalid configuration.

use super::limits;
use super::namespace::NamespaceInfo;
use crate::ids::NamespaceId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use farblock_wire::fabrics::CNTLID_MAX;
use farblock_wire::log::TransportType;
use farblock_wire::nqn::{self, NqnError};
use farblock_wire::origin::ControllerIds;

/// Length in bytes of the serial number field (SN).
const SERIAL_BYTES: usize = 20;
/// Length in bytes of the model number field (MN).
const MODEL_BYTES: usize = 40;
/// Length in bytes of the firmware revision field (FR).
const FIRMWARE_BYTES: usize = 8;
/// Length in bytes of the transport address field (TRADDR) of a discovery log page entry.
const ADDRESS_BYTES: usize = 256;
/// Length in bytes of the transport service identifier field (TRSVCID).
const SERVICE_BYTES: usize = 32;

/// The number of a subsystem. A registry never uses a number twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubsystemId(pub u32);

impl fmt::Display for SubsystemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A listener's number. It is also PORTID in the discovery log page, unless [`Listener::number`]
/// sets another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(pub u16);

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An NVM subsystem to offer (NVMe Base Specification 2.0, "NVM Subsystem").
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemConfig {
    /// NVMe Qualified Name of the subsystem (SUBNQN).
    pub nqn: String,
    /// Serial number (SN): printable ASCII, 1 to 20 characters.
    pub serial: String,
    /// Model number (MN): printable ASCII, at most 40 characters.
    pub model: String,
    /// Firmware revision (FR): printable ASCII, at most 8 characters.
    pub firmware: String,
    /// Whether hosts that are not in `allowed_hosts` may also connect.
    pub allow_any_host: bool,
    /// NQNs of the allowed hosts.
    pub allowed_hosts: Vec<String>,
    /// The namespaces by identifier. Identifiers are 1 to [`limits::MAX_NAMESPACE_ID`].
    pub namespaces: BTreeMap<NamespaceId, NamespaceInfo>,
    /// For each composite namespace, the UUIDs of the remote namespaces that it consists of.
    pub contents: BTreeMap<NamespaceId, Vec<[u8; 16]>>,
    /// For each namespace that only some of the allowed hosts see, the names of these hosts. The
    /// map contains at most [`limits::MAX_VISIBLE_TO`] different hosts.
    pub visible_to: BTreeMap<NamespaceId, BTreeSet<String>>,
    /// The range of controller identifiers to assign; `None`: the registry's range. No two
    /// controllers of a registry have the same identifier. So if two subsystems have the same
    /// range, they share its identifiers.
    pub controller_ids: Option<RangeInclusive<u16>>,
    /// The largest number of I/O queues of one controller (the result of Number of Queues).
    pub max_io_queues: u16,
    /// The largest number of entries in an I/O queue (CAP.MQES is one less).
    pub max_queue_depth: u16,
    /// The largest number of bytes that one command transfers (MDTS): a power of two, at least two
    /// pages.
    pub max_transfer_bytes: u32,
    /// The largest in-capsule data of I/O queues, in bytes (IOCCSZ): a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Whether a host's shutdown waits until the target has flushed the namespaces. The registry
    /// then requests [`Action::Flush`](super::Action::Flush), and the target reports the end of the
    /// flush with [`Registry::shutdown_flushed`](super::Registry::shutdown_flushed).
    pub flush_on_shutdown: bool,
}

impl SubsystemConfig {
    /// The controller identifiers of this subsystem in a registry that assigns the range
    /// `registry`.
    pub(super) fn controller_ids_of(&self, registry: &RangeInclusive<u16>) -> ControllerIds {
        let (first, last) = registry.clone().into_inner();
        let own = self.controller_ids.clone().unwrap_or_else(|| registry.clone());
        ControllerIds { first: first.max(*own.start()), last: last.min(*own.end()) }
    }

    /// Creates a subsystem without namespaces and without allowed hosts, with the default limits.
    #[must_use]
    pub fn new(nqn: &str, serial: &str) -> Self {
        Self {
            nqn: nqn.to_string(),
            serial: serial.to_string(),
            model: "farblock".to_string(),
            firmware: env!("CARGO_PKG_VERSION").chars().take(FIRMWARE_BYTES).collect(),
            allow_any_host: false,
            allowed_hosts: Vec::new(),
            namespaces: BTreeMap::new(),
            contents: BTreeMap::new(),
            visible_to: BTreeMap::new(),
            controller_ids: None,
            max_io_queues: 128,
            max_queue_depth: 128,
            max_transfer_bytes: crate::limits::MAX_TRANSFER_BYTES,
            in_capsule_bytes: crate::limits::IN_CAPSULE_BYTES,
            flush_on_shutdown: false,
        }
    }

    /// Whether the host named `host_nqn` may use the subsystem.
    #[must_use]
    pub fn allows(&self, host_nqn: &str) -> bool {
        self.allow_any_host || self.allowed_hosts.iter().any(|allowed| allowed == host_nqn)
    }

    /// Checks the length and the limit of every value.
    ///
    /// # Errors
    /// Returns the first invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_nqn(&self.nqn)?;
        if self.nqn == nqn::DISCOVERY_NQN {
            return Err(ConfigError::DiscoveryNqn);
        }
        check_text("serial number", &self.serial, SERIAL_BYTES)?;
        check_text("model number", &self.model, MODEL_BYTES)?;
        check_text("firmware revision", &self.firmware, FIRMWARE_BYTES)?;
        if self.allowed_hosts.len() > limits::MAX_ALLOWED_HOSTS {
            return Err(ConfigError::TooMany("allowed hosts"));
        }
        self.allowed_hosts.iter().try_for_each(|host| check_nqn(host))?;
        self.namespaces.iter().try_for_each(|(&id, info)| info.check(id))?;
        self.check_visibility()?;
        self.check_numbers()
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let is_range = |ids: &RangeInclusive<u16>| {
            !ids.is_empty() && *ids.start() > 0 && *ids.end() <= CNTLID_MAX
        };
        let transfer = limits::MIN_TRANSFER_BYTES..=limits::MAX_TRANSFER_BYTES;
        let depth = limits::MIN_QUEUE_DEPTH..=crate::limits::MAX_QUEUE_DEPTH;
        let checks = [
            ("controller_ids", self.controller_ids.as_ref().is_none_or(is_range)),
            ("max_io_queues", (1..=limits::MAX_IO_QUEUES).contains(&self.max_io_queues)),
            ("max_queue_depth", depth.contains(&self.max_queue_depth)),
            (
                "max_transfer_bytes",
                self.max_transfer_bytes.is_power_of_two()
                    && transfer.contains(&self.max_transfer_bytes),
            ),
            (
                "in_capsule_bytes",
                self.in_capsule_bytes.is_multiple_of(16)
                    && self.in_capsule_bytes <= limits::MAX_IN_CAPSULE_BYTES,
            ),
        ];
        match checks.into_iter().find(|(_, fits)| !fits) {
            Some((name, _)) => Err(ConfigError::OutOfRange(name)),
            None => Ok(()),
        }
    }
}

/// Address family of a transport address (ADRFAM).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressFamily {
    /// IPv4 (01h).
    V4,
    /// IPv6 (02h).
    V6,
}

/// Whether hosts may or must use TLS at a listener. The discovery log page reports it in TREQ, and
/// in SECTYPE of TCP.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ChannelSecurity {
    /// No TLS.
    #[default]
    None,
    /// Hosts may use TLS 1.3.
    Allowed,
    /// Hosts must use TLS 1.3.
    Required,
}

/// A listener, as the discovery log page shows it (NVMe Base Specification 2.0, "Discovery Log
/// Page"). Every subsystem is offered on every listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The listener's number, unique in the registry.
    pub port: PortId,
    /// The number in the discovery log page (PORTID). `None`: `port`.
    pub number: Option<u16>,
    /// Transport type (TRTYPE): TCP or RDMA.
    pub transport: TransportType,
    /// Address family (ADRFAM).
    pub family: AddressFamily,
    /// Address as text, without brackets (TRADDR). Instead of a wildcard (`0.0.0.0`, `::`), the
    /// page shows each host the address to which the host connected.
    pub address: String,
    /// Port as text (TRSVCID).
    pub service: String,
}

impl Listener {
    /// Whether the address is a wildcard, which means every address of the machine.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        match self.family {
            AddressFamily::V4 => self.address == "0.0.0.0",
            AddressFamily::V6 => self.address.chars().all(|c| c == ':' || c == '0'),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_text("listener address", &self.address, ADDRESS_BYTES)?;
        check_text("listener service", &self.service, SERVICE_BYTES)
    }
}

/// A reference to another discovery service (NVMe Base Specification 2.0, "Discovery Log Page",
/// subsystem type 1h).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Referral {
    /// Address family (ADRFAM).
    pub family: AddressFamily,
    /// Address as text (TRADDR).
    pub address: String,
    /// TCP port as text (TRSVCID).
    pub service: String,
}

impl Referral {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_text("referral address", &self.address, ADDRESS_BYTES)?;
        check_text("referral service", &self.service, SERVICE_BYTES)
    }
}

/// The reason why a registry refused a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not a valid NVMe Qualified Name.
    Nqn(String, NqnError),
    /// The subsystem has the well-known discovery name, which is reserved.
    DiscoveryNqn,
    /// The named field is empty, too long or not printable ASCII.
    Text(&'static str),
    /// The named number is outside its limits.
    OutOfRange(&'static str),
    /// The number of items of this kind is already at its limit.
    TooMany(&'static str),
    /// The namespace identifier is 0 or above the limit.
    NamespaceId(NamespaceId),
    /// The block size is not a power of two, or is outside its limits.
    BlockSize(u32),
    /// The capacity is zero blocks, or its size in bytes does not fit in 64 bits.
    Capacity(u64),
    /// An item of this kind with the same name or number already exists.
    Exists(&'static str),
    /// There is no item of this kind with this name or number.
    NotFound(&'static str),
    /// The namespace contains itself, through composite namespaces of this target or of other
    /// targets.
    ContainsItself,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nqn(name, error) => write!(f, "{name:?}: {error}"),
            Self::DiscoveryNqn => f.write_str("the discovery NQN cannot name a subsystem"),
            Self::Text(what) => {
                write!(f, "the {what} is empty, too long or not printable ASCII")
            }
            Self::OutOfRange(what) => write!(f, "{what} is out of range"),
            Self::TooMany(what) => write!(f, "too many {what}"),
            Self::NamespaceId(id) => {
                write!(f, "namespace identifier {id} is not in 1..={}", limits::MAX_NAMESPACE_ID)
            }
            Self::BlockSize(size) => write!(f, "no namespace can have blocks of {size} bytes"),
            Self::Capacity(blocks) => write!(f, "no namespace can have {blocks} blocks"),
            Self::Exists(what) => write!(f, "the {what} exists already"),
            Self::NotFound(what) => write!(f, "the {what} does not exist"),
            Self::ContainsItself => f.write_str(
                "the namespace would contain itself, because one of its remote disks contains it: \
                 remove that disk from this namespace, or this namespace from that disk",
            ),
        }
    }
}

impl core::error::Error for ConfigError {}

/// Checks a name that the operator configures. It must be a valid NQN, or not start with `nqn.`.
/// Names from peers only need to be text.
pub(crate) fn check_nqn(name: &str) -> Result<(), ConfigError> {
    nqn::validate_name(name).map_err(|error| ConfigError::Nqn(name.to_string(), error))
}

fn check_text(what: &'static str, text: &str, longest: usize) -> Result<(), ConfigError> {
    let printable = text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if text.is_empty() || text.len() > longest || !printable {
        return Err(ConfigError::Text(what));
    }
    Ok(())
}
