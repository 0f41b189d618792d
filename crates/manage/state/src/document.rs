//! The document: everything by its name, so that each thing has one place and one address.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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

/// A TCP listener: its address says it all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Listener {}

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

/// A host that may connect.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Host {}

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
        }
    }

    /// Whether hosts see the same disk in both, changed or not.
    pub(crate) fn is_same_disk(&self, other: &Self) -> bool {
        self.path == other.path && self.block_size == other.block_size && self.uuid == other.uuid
    }
}

fn default_block_size() -> u32 {
    BLOCK_BYTES
}
