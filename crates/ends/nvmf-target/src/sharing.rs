//! Settings with which a namespace is shared.

use crate::pace::Rates;
use farblock_proto::controller::{NamespaceInfo, USUAL_ANA_GROUP};
use std::collections::BTreeSet;

/// Settings with which a namespace is shared.
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
