//! Descriptions of namespaces, and the table of namespaces for I/O queues.

use super::ana::{USUAL_ANA_GROUP, check_group};
use super::config::{ConfigError, PortId};
use super::limits;
use super::visibility::ByHost;
use crate::ids::NamespaceId;
use alloc::sync::Arc;
use alloc::vec::Vec;
use farblock_wire::status::Status;

/// A controller's description of a namespace (NVM Command Set Specification 1.0, "Identify
/// Namespace Data Structure"). The target checks commands against it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamespaceInfo {
    /// Logical block size in bytes (LBADS): a power of two.
    pub block_size: u32,
    /// Capacity in logical blocks (NSZE, NCAP, NUSE).
    pub blocks: u64,
    /// Whether the target refuses commands that change the namespace (NSATTR bit 0).
    pub read_only: bool,
    /// Whether completed writes may be lost until a flush (VWC).
    pub volatile_cache: bool,
    /// Whether the target supports deallocation. Deallocated blocks then read as zeroes (DLFEAT).
    pub deallocate: bool,
    /// Optimal I/O boundary in blocks (NOIOB): commands that do not cross a multiple of it are
    /// fastest. 0: unknown.
    pub optimal_blocks: u32,
    /// Preferred size and alignment in blocks of writes and deallocations (NPWG, NPWA, NPDG, NPDA,
    /// NOWS). Writes and deallocations are fastest if their start and length are multiples of this
    /// number. 0: unknown.
    pub preferred_blocks: u32,
    /// Largest number of blocks that one command may read or write. 0: no limit except MDTS.
    pub max_blocks: u32,
    /// The ANA group (ANAGRPID). All namespaces of a group have the same ANA state.
    pub ana_group: u32,
    /// UUID (namespace identification descriptor 3h). All zero: the namespace has no UUID.
    pub uuid: [u8; 16],
    /// NGUID (descriptor 2h). All zero: the namespace has no NGUID.
    pub nguid: [u8; 16],
    /// EUI-64 (descriptor 1h). All zero: the namespace has no EUI-64.
    pub eui64: [u8; 8],
}

impl NamespaceInfo {
    /// Creates a writable namespace without a cache, hints or identifiers.
    #[must_use]
    pub fn new(block_size: u32, blocks: u64) -> Self {
        Self {
            block_size,
            blocks,
            read_only: false,
            volatile_cache: false,
            deallocate: false,
            optimal_blocks: 0,
            preferred_blocks: 0,
            max_blocks: 0,
            ana_group: USUAL_ANA_GROUP,
            uuid: [0; 16],
            nguid: [0; 16],
            eui64: [0; 8],
        }
    }

    /// Returns the base-two logarithm of the block size (LBADS).
    #[must_use]
    pub fn block_shift(&self) -> u32 {
        self.block_size.trailing_zeros()
    }

    /// Returns the largest number of blocks in one source range of a Copy command (MSSRL).
    #[must_use]
    pub fn copy_range_blocks(&self) -> u16 {
        let blocks = limits::COPY_RANGE_BYTES / self.block_size;
        u16::try_from(blocks).unwrap_or(u16::MAX)
    }

    /// Returns the largest number of blocks that a Copy command copies (MCL).
    #[must_use]
    pub fn copy_blocks(&self) -> u32 {
        limits::COPY_BYTES / self.block_size
    }

    /// Checks that a subsystem can contain this namespace under `id`.
    pub(crate) fn check(&self, id: NamespaceId) -> Result<(), ConfigError> {
        if id.0 == 0 || id.0 > limits::MAX_NAMESPACE_ID {
            return Err(ConfigError::NamespaceId(id));
        }
        let size = self.block_size;
        let size_fits = (limits::MIN_BLOCK_BYTES..=limits::MAX_BLOCK_BYTES).contains(&size);
        if !size.is_power_of_two() || !size_fits {
            return Err(ConfigError::BlockSize(size));
        }
        // The capacity in bytes must fit in 64 bits, so that no byte offset overflows.
        if self.blocks == 0 || self.blocks.checked_mul(u64::from(size)).is_none() {
            return Err(ConfigError::Capacity(self.blocks));
        }
        check_group(self.ana_group)
    }
}

/// An immutable snapshot of a subsystem's namespaces. I/O queues share it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceTable {
    generation: u64,
    max_transfer_bytes: u32,
    /// All namespaces, sorted by identifier. Includes the inaccessible namespaces.
    namespaces: Vec<(NamespaceId, NamespaceInfo)>,
    /// The inaccessible namespaces, sorted by identifier. Commands for such a namespace fail with
    /// the status.
    barred: Vec<(NamespaceId, Status)>,
    /// The tables of the ports through which at least one namespace is inaccessible.
    views: Vec<(PortId, Arc<Self>)>,
    /// The tables of individual hosts, if some hosts do not see every namespace.
    hosts: Option<ByHost>,
    /// The namespaces whose reservations several targets share, sorted.
    shared: Vec<NamespaceId>,
}

impl NamespaceTable {
    /// Creates a table of `namespaces`. `generation` increases with every change of a subsystem's
    /// table.
    #[must_use]
    pub fn new(
        generation: u64,
        max_transfer_bytes: u32,
        namespaces: impl IntoIterator<Item = (NamespaceId, NamespaceInfo)>,
    ) -> Self {
        let mut namespaces: Vec<_> = namespaces.into_iter().collect();
        namespaces.sort_by_key(|&(id, _)| id);
        let (barred, views, hosts) = (Vec::new(), Vec::new(), None);
        let shared = Vec::new();
        Self { generation, max_transfer_bytes, namespaces, barred, views, hosts, shared }
    }

    /// Returns this table without access to the `barred` namespaces, which must be sorted by
    /// identifier.
    pub(crate) fn without(&self, barred: Vec<(NamespaceId, Status)>) -> Self {
        let (namespaces, shared) = (self.namespaces.clone(), self.shared.clone());
        Self { namespaces, barred, views: Vec::new(), hosts: None, shared, ..*self }
    }

    /// Returns this table with these namespaces marked: several targets share their reservations.
    pub(super) fn with_shared_reservations(self, shared: Vec<NamespaceId>) -> Self {
        Self { shared, ..self }
    }

    /// Returns this table with a separate table for each port in `views`.
    pub(crate) fn with_views(mut self, views: Vec<(PortId, Arc<Self>)>) -> Self {
        self.views = views;
        self
    }

    /// Returns this table with separate tables for hosts that do not see every namespace.
    pub(super) fn with_hosts(mut self, hosts: ByHost) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// Returns the table for a host. Call this function before [`NamespaceTable::seen_from`].
    #[must_use]
    pub fn seen_by(self: &Arc<Self>, host_nqn: &str) -> Arc<Self> {
        Arc::clone(self.hosts.as_ref().map_or(self, |hosts| hosts.seen_by(host_nqn)))
    }

    /// Returns the table for the queues of a host that connected through `port`.
    #[must_use]
    pub fn seen_from(self: &Arc<Self>, port: Option<PortId>) -> Arc<Self> {
        let view = self.views.iter().find(|(other, _)| Some(*other) == port);
        view.map_or_else(|| Arc::clone(self), |(_, view)| Arc::clone(view))
    }

    /// Checks that a namespace is accessible. For [`NamespaceId::ALL`], checks that all namespaces
    /// are accessible.
    ///
    /// # Errors
    /// Returns the status with which a command for an inaccessible namespace fails.
    pub fn check_reach(&self, id: NamespaceId) -> Result<(), Status> {
        let barred = match id {
            NamespaceId::ALL => self.barred.first(),
            id => {
                let place = self.barred.binary_search_by_key(&id, |&(barred, _)| barred);
                place.ok().map(|place| &self.barred[place])
            }
        };
        barred.map_or(Ok(()), |(_, status)| Err(*status))
    }

    /// Checks that reservation commands for a namespace are possible. If several targets share the
    /// reservations, a target through which the namespace is inaccessible executes them as well.
    ///
    /// # Errors
    /// Returns the status with which to complete a command.
    pub(crate) fn check_reach_of_reservations(&self, id: NamespaceId) -> Result<(), Status> {
        match self.check_reach(id) {
            Err(Status::ANA_INACCESSIBLE) if self.shares_reservations(id) => Ok(()),
            checked => checked,
        }
    }

    /// Whether several targets share the reservations of a namespace.
    #[must_use]
    pub fn shares_reservations(&self, id: NamespaceId) -> bool {
        self.shared.binary_search(&id).is_ok()
    }

    /// Returns the version of this table. Newer tables of the subsystem have higher versions.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the largest number of bytes that one command may transfer (MDTS).
    #[must_use]
    pub fn max_transfer_bytes(&self) -> u32 {
        self.max_transfer_bytes
    }

    /// Returns the namespace `id` if it is active.
    #[must_use]
    pub fn find(&self, id: NamespaceId) -> Option<&NamespaceInfo> {
        let index = self.namespaces.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(&self.namespaces[index].1)
    }

    /// Returns all namespaces, sorted by identifier.
    pub fn iter(&self) -> impl Iterator<Item = (NamespaceId, &NamespaceInfo)> {
        self.namespaces.iter().map(|(id, info)| (*id, info))
    }
}
