//! The document: everything by its name, so that each thing has one place and one address.

use farblock_proto::controller::USUAL_ANA_GROUP;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use uuid::Uuid;

/// The version of the documents that this program writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// Bytes in a block where nothing else is said.
const BLOCK_BYTES: u32 = 512;

/// All that a target shares.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// What the rest means: 1.
    pub version: u32,
    /// Where the target listens, by IP address and port.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Listener>))]
    pub listeners: BTreeMap<SocketAddr, Listener>,
    /// Other discovery services that hosts are pointed to, by IP address and port.
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
    /// What the strictest of its listeners asks for.
    #[must_use]
    pub fn strictest(&self) -> Tls {
        self.listeners.values().map(|listener| listener.tls).max().unwrap_or_default()
    }
}

/// A TCP listener, and how namespaces can be reached there.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Listener {
    /// The ANA state of all namespaces, as hosts see it that come in there; optimized if it is left
    /// out.
    #[serde(default, skip_serializing_if = "Ana::is_optimized")]
    pub ana: Ana,
    /// Other states, by ANA group: 1 to 128.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Ana>))]
    pub ana_groups: BTreeMap<u32, Ana>,
    /// Who has to use TLS there. If it is left out of a new one, what the strictest of the others
    /// asks for; otherwise hosts that have a key for it.
    #[serde(default, skip_serializing_if = "Tls::is_allowed")]
    pub tls: Tls,
}

/// Who has to use TLS where a listener is. A host that has a key for it never comes in without.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Tls {
    /// There is none, and hosts that have a key for it are refused.
    Plain,
    /// Hosts that have a key for it.
    #[default]
    #[serde(alias = "tls-allowed")]
    Allowed,
    /// Everybody.
    #[serde(alias = "tls-required")]
    Required,
}

impl Tls {
    /// What a name stands for.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.strip_prefix("tls-").unwrap_or(name);
        [Self::Plain, Self::Allowed, Self::Required].into_iter().find(|one| one.name() == name)
    }

    /// What a document calls it.
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

/// How namespaces can be reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Ana {
    /// As well as possible.
    #[default]
    Optimized,
    /// Not as well as elsewhere: hosts use it when there is nothing better.
    NonOptimized,
    /// Not now.
    Inaccessible,
    /// Never again.
    PersistentLoss,
    /// It is about to be known: hosts wait for up to 30 seconds.
    Change,
}

impl Ana {
    /// Every one.
    pub const ALL: [Self; 5] = [
        Self::Optimized,
        Self::NonOptimized,
        Self::Inaccessible,
        Self::PersistentLoss,
        Self::Change,
    ];

    /// What a document calls it.
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

/// Another discovery service: its address says it all.
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
    /// Whether hosts may connect that are not listed.
    #[serde(default)]
    pub allow_any_host: bool,
    /// The hosts that may connect, by NVMe Qualified Name.
    #[serde(default)]
    pub hosts: BTreeMap<String, Host>,
    /// The namespaces, by identifier: 1 to 1024.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, Namespace>))]
    pub namespaces: BTreeMap<u32, Namespace>,
}

/// What is demanded of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// To authenticate.
    Auth,
    /// To authenticate, and to ask the target for proof of who it is.
    Mutual,
    /// To have TLS come of its authentication (secure channel concatenation), unless it has a key
    /// for TLS.
    Concat,
}

impl Demand {
    /// What a name stands for.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Auth, Self::Mutual, Self::Concat].into_iter().find(|one| one.name() == name)
    }

    /// What a document calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Mutual => "mutual",
            Self::Concat => "concat",
        }
    }
}

/// A host that may connect. Secrets themselves are never part of a document, only where they are.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Where its secret is: a file, from the root, or `credential:NAME` for one of systemd's. With
    /// it the host has to authenticate (DH-HMAC-CHAP); without, its name is believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_key: Option<String>,
    /// Where the target's own secret is, with which it proves itself to this host if that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_key: Option<String>,
    /// Its host identifier (HOSTID), if it has to give that one and no other host may: reservations
    /// know hosts by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub host_id: Option<Uuid>,
    /// The hash functions that it may use, the best first; all if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhchap_hashes: Vec<String>,
    /// The Diffie-Hellman groups that it may use, the best first; all if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dhchap_dhgroups: Vec<String>,
    /// Where its key for TLS is, as with `dhchap_key`; `keyring:` for those of the kernel's
    /// keyrings that have both names, `keyring:IDENTITY` or `keyring:NUMBER` for one of them. With
    /// it the host has to use TLS 1.3 and show that key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<String>,
    /// What is demanded of it besides, and that it has the key for it: nothing takes that key away
    /// before the demand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<Demand>,
    /// What it may do in a second with all of the subsystem's namespaces together; as much as it
    /// can if it is left out. The limits of namespaces hold, too.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
}

impl Host {
    /// Whether it has to prove who it is: by authentication, by TLS, or both.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.keys().iter().any(|(_, key)| key.is_some())
    }

    /// The fields that say where its keys are.
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
    /// What stores it, as `farblock serve` takes it: a file, a block device, mem:1GiB, …
    pub path: String,
    /// Bytes in a block: 512 or 4096.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Whether writes are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Its size in bytes; as large as what stores it if it is left out. A file is made longer if
    /// need be, and never shorter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// What tells it from other disks; kept with the data if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub uuid: Option<Uuid>,
    /// By which hosts know it as well (NGUID); made from what tells it from other disks if it is
    /// left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>, format = "uuid"))]
    pub nguid: Option<Uuid>,
    /// Its ANA group: 1 to 128; 1 if it is left out.
    #[serde(default = "usual_group", skip_serializing_if = "is_usual_group")]
    pub ana_group: u32,
    /// The hosts that see it, by NVMe Qualified Name, of those that may connect; all of them if it
    /// is left out, none if it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visible_to: Option<BTreeSet<String>>,
    /// What hosts may do with it in a second, all of them together; as much as it can if it is left
    /// out.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Of a mirror: the most bytes a second that are copied to legs that catch up, or compared; as
    /// fast as it goes if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_bytes_per_second: Option<u64>,
}

/// What hosts may do with a namespace, or a host with a subsystem's, in a second; no limit where
/// nothing is said.
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
    /// Bytes that are read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Bytes that are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes that are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
    /// After a pause, as much may be done at once as the limits allow in so many milliseconds; 20
    /// if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ms: Option<u32>,
    /// Of a host: how much it gets of a core that is full, beside other hosts; 100 if it is left
    /// out.
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

    /// Whether nothing is said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Namespace {
    /// All of what is at `path`.
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            block_size: BLOCK_BYTES,
            read_only: false,
            size: None,
            uuid: None,
            nguid: None,
            ana_group: USUAL_ANA_GROUP,
            visible_to: None,
            limits: Limits::default(),
            copy_bytes_per_second: None,
        }
    }

    /// Whether hosts see the same disk in both, changed or not.
    pub(crate) fn is_same_disk(&self, other: &Self) -> bool {
        let is_named_so = self.uuid == other.uuid && self.nguid == other.nguid;
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
