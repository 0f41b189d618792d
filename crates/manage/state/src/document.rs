//! The document: a map by name at each level, so that each object has one place and one URL.

use crate::eui64::Eui64;
use farblock_proto::controller::USUAL_ANA_GROUP;
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

/// All shared parts of a target.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The version of the format: 1.
    pub version: u32,
    /// The target's listening addresses: IP address and port.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Listener>))]
    pub listeners: BTreeMap<SocketAddr, Listener>,
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
    /// The TLS setting of its strictest listener.
    #[must_use]
    pub fn strictest(&self) -> Tls {
        self.listeners.values().map(|listener| listener.tls).max().unwrap_or_default()
    }
}

/// A TCP listener, and its access to namespaces.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The ANA state of all namespaces at this listener; optimized if it is left out.
    #[serde(default, skip_serializing_if = "Ana::is_optimized")]
    pub ana: Ana,
    /// Other states, by ANA group: 1 to 128.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Ana>))]
    pub ana_groups: BTreeMap<u32, Ana>,
    /// The TLS requirement of this listener. If a new listener leaves it out, it gets that of the
    /// strictest other one. The default is that hosts with a TLS key must use TLS.
    #[serde(default, skip_serializing_if = "Tls::is_allowed")]
    pub tls: Tls,
}

/// The TLS requirement of a listener. A host that has a TLS key can never connect without it.
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
    /// The setting with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("tls-").unwrap_or(name);
        [Self::Plain, Self::Allowed, Self::Required].into_iter().find(|one| one.name() == name)
    }

    /// Its name in a document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Allowed => "allowed",
            Self::Required => "required",
        }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
    fn is_allowed(&self) -> bool {
        *self == Self::Allowed
    }
}

/// The access to namespaces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Ana {
    /// Optimal access.
    #[default]
    Optimized,
    /// Non-optimal access: hosts use it if there is no better path.
    NonOptimized,
    /// No access at present.
    Inaccessible,
    /// No access any more.
    PersistentLoss,
    /// The state is changing: hosts wait for up to 30 seconds.
    Change,
}

impl Ana {
    /// All states.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// Its name in a document.
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

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
    fn is_optimized(&self) -> bool {
        *self == Self::Optimized
    }
}

/// Another discovery service. It has no settings besides its address.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Referral {}

/// A subsystem.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Subsystem {
    /// Serial number, up to 20 characters; made from the name if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Model number, up to 40 characters; `farblock` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The smallest controller identifier (CNTLID) that its hosts get; 1 if it is left out. Targets
    /// that share one subsystem need ranges that do not overlap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_cntlid: Option<u16>,
    /// The largest controller identifier that its hosts get; 65519 if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cntlid: Option<u16>,
    /// Whether hosts that are not listed may connect.
    #[serde(default)]
    pub allow_any_host: bool,
    /// The hosts that may connect, by NVMe Qualified Name.
    #[serde(default)]
    pub hosts: BTreeMap<String, Host>,
    /// The namespaces, by identifier: 1 to 10240.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Namespace>))]
    pub namespaces: BTreeMap<u32, Namespace>,
}

impl Subsystem {
    /// The controller identifiers that its hosts get; `None` if neither limit is set.
    #[must_use]
    pub fn controller_ids(&self) -> Option<RangeInclusive<u16>> {
        let is_said = self.min_cntlid.is_some() || self.max_cntlid.is_some();
        let (least, most) = (self.min_cntlid.unwrap_or(1), self.max_cntlid.unwrap_or(CNTLID_MAX));
        is_said.then_some(least..=most)
    }
}

/// A requirement on a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// The host must authenticate.
    Auth,
    /// The host must authenticate, and must ask the target to prove its identity.
    Mutual,
    /// The host must derive TLS from its authentication (secure channel concatenation), unless it
    /// has a TLS key.
    Concat,
}

impl Demand {
    /// The demand with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Auth, Self::Mutual, Self::Concat].into_iter().find(|one| one.name() == name)
    }

    /// Its name in a document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Mutual => "mutual",
            Self::Concat => "concat",
        }
    }
}

/// A host that may connect. A document never contains secrets, only their locations.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The location of its secret: an absolute path, or `credential:NAME` for a systemd credential.
    /// With it the host must authenticate (DH-HMAC-CHAP); without, the target trusts its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_key: Option<String>,
    /// The location of the target's own secret, with which the target authenticates to this host on
    /// request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_key: Option<String>,
    /// Its host identifier (HOSTID), if it must use this one and no other host may: reservations
    /// identify hosts by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub host_id: Option<Uuid>,
    /// The allowed hash functions, the best first; all if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhchap_hashes: Vec<String>,
    /// The allowed Diffie-Hellman groups, the best first; all if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhchap_dhgroups: Vec<String>,
    /// The location of its TLS key, as with `dhchap_key`. `keyring:` means the keys of the kernel's
    /// keyrings that have both names, and `keyring:IDENTITY` or `keyring:NUMBER` one of them. With
    /// it the host must use TLS 1.3 with that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<String>,
    /// A further requirement on the host. The entry must have the key for it, so remove the demand
    /// before the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<Demand>,
    /// Its limits per second, for all of the subsystem's namespaces together; unlimited if they are
    /// left out. The limits of namespaces apply, too.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
}

impl Host {
    /// True if it must prove its identity: by authentication, by TLS, or both.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.keys().iter().any(|(_, key)| key.is_some())
    }

    /// The fields with the locations of its keys.
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
    /// Its backend, as `farblock serve` takes it: a file, a block device, mem:1GiB, …
    pub path: String,
    /// Bytes in a block: 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Its size in bytes; the size of its backend if it is left out. The target extends a file if
    /// necessary, and never shrinks it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The disk's UUID; if it is left out, the one that is stored with the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub uuid: Option<Uuid>,
    /// The second identifier for hosts (NGUID); made from the disk's identity if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub nguid: Option<Uuid>,
    /// Another identifier of it (EUI-64), as 16 hexadecimal digits; made like the NGUID if it is
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    pub eui64: Option<Eui64>,
    /// Its ANA group: 1 to 128; 1 if it is left out.
    #[serde(default = "usual_group", skip_serializing_if = "is_usual_group")]
    pub ana_group: u32,
    /// The hosts that see it, by NVMe Qualified Name, among those that may connect; all of them if
    /// it is left out, none if it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible_to: Option<BTreeSet<String>>,
    /// Its limits per second, for all hosts together; unlimited if they are left out.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// For a mirror: limit in bytes per second for copying to stale legs and for comparing legs;
    /// unlimited if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bytes_per_second: Option<u64>,
}

/// Limits per second of a namespace, or of a host in a subsystem; unlimited where a limit is left
/// out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Reads and writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    /// Writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
    /// Bytes read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bytes read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
    /// After a pause, a burst may use the limits of this many milliseconds at once; 20 if it is
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ms: Option<u32>,
    /// Of a host: its weight against other hosts on a busy core; 100 if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

impl Limits {
    /// Each rate, by its name.
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

    /// True if no limit is set.
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

    /// True if both are the same disk to hosts, even if other settings differ.
    pub(crate) fn is_same_disk(&self, other: &Self) -> bool {
        let is_named_so =
            (self.uuid, self.nguid, self.eui64) == (other.uuid, other.nguid, other.eui64);
        self.path == other.path && self.block_size == other.block_size && is_named_so
    }
}

fn usual_group() -> u32 {
    USUAL_ANA_GROUP
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
fn is_usual_group(group: &u32) -> bool {
    *group == USUAL_ANA_GROUP
}

fn default_block_size() -> u32 {
    BLOCK_BYTES
}
