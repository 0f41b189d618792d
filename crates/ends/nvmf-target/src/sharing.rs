//! The settings with which a subsystem shares a namespace.

use crate::pace::Rates;
use farblock_proto::controller::{NamespaceInfo, USUAL_ANA_GROUP};
use std::collections::BTreeSet;

/// The settings with which a subsystem shares a namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sharing {
    /// The namespace's ANA group.
    pub ana_group: u32,
    /// The hosts that see the namespace, by name; `None`: all allowed hosts.
    pub visible_to: Option<BTreeSet<String>>,
    /// The namespace's NGUID; `None`: derived from the namespace's identity.
    pub nguid: Option<[u8; 16]>,
    /// The namespace's EUI-64; `None`: derived from the namespace's identity.
    pub eui64: Option<[u8; 8]>,
    /// The number of shared blocks; `None`: all blocks.
    pub blocks: Option<u64>,
    /// Whether the namespace is write-protected, even if its store is writable.
    pub read_only: bool,
    /// The namespace's rate limits over all hosts.
    pub rates: Rates,
}

impl Default for Sharing {
    /// Returns settings with all blocks, the default ANA group, all hosts and no limits.
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
    /// Returns the properties that hosts see if the store has the properties `info`.
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
