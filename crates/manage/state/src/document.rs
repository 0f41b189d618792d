//! The configuration document of a target. Each level is a map by name, so that each object has one
//! place and one URL.

use crate::eui64::Eui64;
use farblock_proto::controller::{Entrance, USUAL_ANA_GROUP};
use farblock_wire::fabrics::CNTLID_MAX;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use uuid::Uuid;

/// The version of the documents that this program writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// The default block size in bytes.
const BLOCK_BYTES: u32 = 512;

/// The objects that a target shares.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The version of the format: 1.
    pub version: u32,
    /// The addresses at which the target listens: IP address and port, with the prefix `rdma:` for
    /// NVMe/RDMA.
    #[serde(default, with = "crate::entrances")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Listener>))]
    pub listeners: BTreeMap<Entrance, Listener>,
    /// Other discovery services to which the target refers hosts, by IP address and port.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Referral>))]
    pub referrals: BTreeMap<SocketAddr, Referral>,
    /// The subsystems, by NVMe Qualified Name.
    #[serde(default)]
    pub subsystems: BTreeMap<String, Subsystem>,
}

impl Default for Document {
    fn default() -> Self {
        Self {
            version: VERSION,
            listeners: BTreeMap::new(),
            referrals: BTreeMap::new(),
            subsystems: BTreeMap::new(),
        }
    }
}

impl Document {
    /// The TLS setting of the strictest listener.
    #[must_use]
    pub fn strictest(&self) -> Tls {
        self.listeners.values().map(|listener| listener.tls).max().unwrap_or_default()
    }
}

/// The settings of a listener.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The ANA state of all namespaces at this listener; optimized if it is left out.
    #[serde(default, skip_serializing_if = "Ana::is_optimized")]
    pub ana: Ana,
    /// Other ANA states at this listener, by ANA group: 1 to 128.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Ana>))]
    pub ana_groups: BTreeMap<u32, Ana>,
    /// The TLS requirement of this listener. A new listener that leaves it out gets the requirement
    /// of the strictest existing listener. The default is that hosts with a TLS key must use TLS.
    /// NVMe/RDMA has no TLS: such a listener cannot require it, and refuses hosts with a TLS key.
    #[serde(default, skip_serializing_if = "Tls::is_allowed")]
    pub tls: Tls,
}

/// The TLS requirement of a listener. A host that has a TLS key can never connect without TLS.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Tls {
    /// The listener has no TLS, and refuses hosts that have a TLS key.
    Plain,
    /// Hosts that have a TLS key must use TLS.
    #[default]
    #[serde(alias = "tls-allowed")]
    Allowed,
    /// All hosts must use TLS.
    #[serde(alias = "tls-required")]
    Required,
}

impl Tls {
    /// The setting with this name in a document.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("tls-").unwrap_or(name);
        [Self::Plain, Self::Allowed, Self::Required].into_iter().find(|one| one.name() == name)
    }

    /// The name of the setting in a document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Allowed => "allowed",
            Self::Required => "required",
        }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_allowed(&self) -> bool {
        *self == Self::Allowed
    }
}

/// The ANA state of namespaces: how hosts may access them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Ana {
    /// Hosts have optimal access.
    #[default]
    Optimized,
    /// Hosts have non-optimal access, and use it if there is no better path.
    NonOptimized,
    /// Hosts have no access at present.
    Inaccessible,
    /// Hosts have lost access permanently.
    PersistentLoss,
    /// The state is changing. Hosts wait for up to 30 seconds.
    Change,
}

impl Ana {
    /// All ANA states.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// The name of the state in a document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_optimized(&self) -> bool {
        *self == Self::Optimized
    }
}

/// Another discovery service. It has no settings: its address is the key.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Referral {}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Subsystem {
    /// The serial number, up to 20 characters; derived from the name if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The model number, up to 40 characters; `farblock` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The smallest controller identifier (CNTLID) for hosts; 1 if it is left out. If several
    /// targets share one subsystem, their ranges must not overlap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_cntlid: Option<u16>,
    /// The largest controller identifier for hosts; 65519 if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cntlid: Option<u16>,
    /// Whether hosts that are not listed may connect.
    #[serde(default)]
    pub allow_any_host: bool,
    /// The allowed hosts, by NVMe Qualified Name.
    #[serde(default)]
    pub hosts: BTreeMap<String, Host>,
    /// The namespaces, by namespace identifier: 1 to 10240.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Namespace>))]
    pub namespaces: BTreeMap<u32, Namespace>,
}

impl Subsystem {
    /// The range of controller identifiers for hosts; `None` if the document sets no limit.
    #[must_use]
    pub fn controller_ids(&self) -> Option<RangeInclusive<u16>> {
        let is_said = self.min_cntlid.is_some() || self.max_cntlid.is_some();
        let (least, most) = (self.min_cntlid.unwrap_or(1), self.max_cntlid.unwrap_or(CNTLID_MAX));
        is_said.then_some(least..=most)
    }
}

/// A requirement on how a host uses its keys to connect. Without it, the host must do only what the
/// keys themselves require.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// The host must authenticate.
    Auth,
    /// The host must authenticate, and must request that the target authenticates, too.
    Mutual,
    /// The host must derive TLS keys from its authentication (secure channel concatenation), unless
    /// it has a TLS key.
    Concat,
}

impl Demand {
    /// The demand with this name in a document.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Auth, Self::Mutual, Self::Concat].into_iter().find(|one| one.name() == name)
    }

    /// The name of the demand in a document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Mutual => "mutual",
            Self::Concat => "concat",
        }
    }
}

/// A host that may connect. A document contains no secrets, only their locations.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The location of the host's secret: an absolute path, or `credential:NAME` for a systemd
    /// credential. If it is set, the host must authenticate (DH-HMAC-CHAP). Otherwise the target
    /// trusts the host's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_key: Option<String>,
    /// The location of the target's own secret. With it the target authenticates to this host, if
    /// the host requests that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_key: Option<String>,
    /// The host identifier (HOSTID). If it is set, the host must use it, and no other host may use
    /// it: reservations identify hosts by their HOSTID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub host_id: Option<Uuid>,
    /// The allowed hash functions, the best first; all if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhchap_hashes: Vec<String>,
    /// The allowed Diffie-Hellman groups, the best first; all if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhchap_dhgroups: Vec<String>,
    /// The location of the host's TLS key, as for `dhchap_key`. `keyring:` selects the keys in the
    /// kernel's keyrings whose identity contains both the host and the subsystem.
    /// `keyring:IDENTITY` or `keyring:NUMBER` selects one of them. If it is set, the host must use
    /// TLS 1.3 with that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<String>,
    /// A further requirement on the host. It needs a key in this entry, so remove the demand before
    /// you remove that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<Demand>,
    /// The host's limits per second, for all namespaces of the subsystem together; unlimited if
    /// they are left out. The limits of namespaces apply, too.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
}

impl Host {
    /// Whether the host must prove its identity, by authentication, by TLS, or by both.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.keys().iter().any(|(_, key)| key.is_some())
    }

    /// The fields with the locations of the host's keys.
    #[must_use]
    pub fn keys(&self) -> [(&'static str, Option<&String>); 2] {
        [("dhchap_key", self.dhchap_key.as_ref()), ("tls_key", self.tls_key.as_ref())]
    }
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// The backend, in the syntax of `farblock serve`: a file, a block device, mem:1GiB, …
    pub path: String,
    /// The block size in bytes: 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Whether the target refuses writes.
    #[serde(default)]
    pub read_only: bool,
    /// The size in bytes; the size of the backend if it is left out. The target extends a file if
    /// necessary, and never shrinks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The UUID of the disk. If it is left out, the disk has the UUID that is stored with the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub uuid: Option<Uuid>,
    /// The NGUID of the disk, another identifier for hosts; derived from the identity of the disk
    /// if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub nguid: Option<Uuid>,
    /// The EUI-64 of the disk, another identifier for hosts, as 16 hexadecimal digits; derived like
    /// the NGUID if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub eui64: Option<Eui64>,
    /// The ANA group: 1 to 128; 1 if it is left out.
    #[serde(default = "usual_group", skip_serializing_if = "is_usual_group")]
    pub ana_group: u32,
    /// The allowed hosts that see the namespace, by NVMe Qualified Name. All see it if the list is
    /// left out; none sees it if the list is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible_to: Option<BTreeSet<String>>,
    /// The limits per second, for all hosts together; unlimited if they are left out.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// The limit for a mirror, in bytes per second, on copies to stale legs and on comparisons of
    /// legs; unlimited if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bytes_per_second: Option<u64>,
}

/// The limits per second of a namespace, or of a host in a subsystem. A limit that is left out does
/// not apply.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The maximum number of reads and writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// The maximum number of reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    /// The maximum number of writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
    /// The maximum number of bytes read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The maximum number of bytes read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// The maximum number of bytes written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
    /// The longest burst, in milliseconds: after a pause, hosts may do the I/O that the limits
    /// allow in this time at once. 20 if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ms: Option<u32>,
    /// Only for a host: its share of a busy core, relative to other hosts; 100 if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

impl Limits {
    /// The name of each rate, and the rate.
    #[must_use]
    pub fn rates(&self) -> [(&'static str, Option<u64>); 6] {
        [
            ("iops", self.iops),
            ("read_iops", self.read_iops),
            ("write_iops", self.write_iops),
            ("bytes", self.bytes),
            ("read_bytes", self.read_bytes),
            ("write_bytes", self.write_bytes),
        ]
    }

    /// Whether no limit is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Namespace {
    /// A namespace with the whole backend at `path`.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            block_size: BLOCK_BYTES,
            read_only: false,
            size: None,
            uuid: None,
            nguid: None,
            eui64: None,
            ana_group: USUAL_ANA_GROUP,
            visible_to: None,
            limits: Limits::default(),
            copy_bytes_per_second: None,
        }
    }

    /// Whether hosts see both namespaces as the same disk, even if other settings differ.
    pub(crate) fn is_same_disk(&self, other: &Self) -> bool {
        let is_named_so =
            (self.uuid, self.nguid, self.eui64) == (other.uuid, other.nguid, other.eui64);
        self.path == other.path && self.block_size == other.block_size && is_named_so
    }
}

fn usual_group() -> u32 {
    USUAL_ANA_GROUP
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_usual_group(group: &u32) -> bool {
    *group == USUAL_ANA_GROUP
}

fn default_block_size() -> u32 {
    BLOCK_BYTES
}
