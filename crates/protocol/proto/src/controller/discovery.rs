//! The discovery log page (NVMe Base Specification 2.0, "Discovery Log Page").
//!
//! The page of a host lists every subsystem that the host may use, once for each address at which
//! the host may use it. The referrals follow, then the discovery service itself at every such
//! address. This module builds only the records that the host requests, because a page may have
//! thousands.

use super::config::{AddressFamily, ChannelSecurity, PortId, SubsystemConfig};
use super::limits;
use super::registry::Registry;
use super::state::Controller;
use alloc::vec::Vec;
use farblock_wire::Status;
use farblock_wire::fabrics::CNTLID_DYNAMIC;
use farblock_wire::log::{
    AddressFamily as WireFamily, DiscoveryLogEntry, DiscoveryLogHeader, SubsystemType,
    TransportType, text_field,
};
use farblock_wire::nqn::{DISCOVERY_NQN, nqn_field};

/// Length in bytes of the page's header, and of each record.
const RECORD_BYTES: u64 = DiscoveryLogEntry::LEN as u64;
const _: () = assert!(DiscoveryLogHeader::LEN == DiscoveryLogEntry::LEN);

/// An address that hosts can connect to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Address<'a> {
    transport: TransportType,
    family: AddressFamily,
    address: &'a str,
    service: &'a str,
    port: PortId,
    /// The port identifier (PORTID).
    number: u16,
    security: ChannelSecurity,
}

/// The service that a record describes.
#[derive(Clone, Copy, Debug)]
enum Target<'a> {
    Subsystem(&'a SubsystemConfig),
    Referral,
    Itself,
}

/// A subsystem that the host may use.
struct Listed<'a> {
    /// The index of the subsystem's first record.
    first: usize,
    config: &'a SubsystemConfig,
    /// The index of the subsystem's list in [`DiscoveryPage::places`]. Many subsystems share one
    /// list.
    places: usize,
}

/// The contents of the page for one host.
pub(super) struct DiscoveryPage<'a> {
    generation: u64,
    subsystems: Vec<Listed<'a>>,
    /// The number of records about subsystems.
    listed: usize,
    /// Lists of addresses, indexed by [`Listed::places`].
    places: Vec<Vec<Address<'a>>>,
    referrals: Vec<Address<'a>>,
    itself: Vec<Address<'a>>,
}

impl<'a> DiscoveryPage<'a> {
    pub(super) fn new(registry: &'a Registry, controller: &'a Controller) -> Self {
        let referrals = registry.referrals.iter().map(|referral| Address {
            transport: TransportType::TCP,
            family: referral.family,
            address: &referral.address,
            service: &referral.service,
            port: PortId(0),
            number: 0,
            security: ChannelSecurity::None,
        });
        let host = controller.host_nqn.as_str();
        let addresses = addresses(registry, &controller.local_address);
        let mut page = Self {
            generation: registry.discovery_generation,
            subsystems: Vec::new(),
            listed: 0,
            places: Vec::new(),
            referrals: referrals.collect(),
            itself: places(&addresses, registry.channels.of_discovery(host)),
        };
        for (id, config) in registry.subsystems().filter(|(_, config)| config.allows(host)) {
            page.list(config, places(&addresses, registry.channels.of_subsystem(host, id)));
        }
        page
    }

    fn list(&mut self, config: &'a SubsystemConfig, places: Vec<Address<'a>>) {
        let (first, records) = (self.listed, places.len());
        if records == 0 {
            return;
        }
        let known = self.places.iter().position(|known| *known == places);
        let places = known.unwrap_or_else(|| {
            self.places.push(places);
            self.places.len() - 1
        });
        self.subsystems.push(Listed { first, config, places });
        self.listed += records;
    }

    fn records(&self) -> usize {
        self.listed + self.referrals.len() + self.itself.len()
    }

    /// Reads `bytes` of the page from `offset`. Bytes beyond the page's end are zero.
    pub(super) fn read(&self, offset: u64, bytes: u32) -> Result<Vec<u8>, Status> {
        let length = (self.records() as u64 + 1) * RECORD_BYTES;
        if offset > length {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let bytes = bytes as usize;
        let first = offset / RECORD_BYTES;
        let skipped = (offset % RECORD_BYTES) as usize;
        let mut page = Vec::with_capacity(skipped + bytes + RECORD_BYTES as usize);
        for index in first..length / RECORD_BYTES {
            if page.len() >= skipped + bytes {
                break;
            }
            let start = page.len();
            page.resize(start + RECORD_BYTES as usize, 0);
            match index.checked_sub(1) {
                None => self.header().emit(&mut page[start..]),
                Some(index) => self.record(index as usize).emit(&mut page[start..]),
            };
        }
        page.drain(..skipped.min(page.len()));
        page.resize(bytes, 0);
        Ok(page)
    }

    fn header(&self) -> DiscoveryLogHeader {
        DiscoveryLogHeader {
            genctr: self.generation.into(),
            numrec: (self.records() as u64).into(),
            ..DiscoveryLogHeader::zeroed()
        }
    }

    /// Returns the address and the service of record `index`, which must be less than
    /// [`Self::records`].
    fn target(&self, index: usize) -> (Address<'a>, Target<'a>) {
        if let Some(index) = index.checked_sub(self.listed) {
            return match self.referrals.get(index) {
                Some(&address) => (address, Target::Referral),
                None => (self.itself[index - self.referrals.len()], Target::Itself),
            };
        }
        let behind = self.subsystems.partition_point(|listed| listed.first <= index);
        let listed = &self.subsystems[behind - 1];
        (self.places[listed.places][index - listed.first], Target::Subsystem(listed.config))
    }

    fn record(&self, index: usize) -> DiscoveryLogEntry {
        type Entry = DiscoveryLogEntry;
        /// The number of admin queue entries that every discovery controller must support.
        const ANY_ADMIN_ENTRIES: u16 = 32;
        let (address, target) = self.target(index);
        let own_entries = limits::ADMIN_QUEUE_ENTRIES;
        let (subtype, nqn, admin_entries, flags) = match target {
            Target::Referral => (SubsystemType::REFERRAL, DISCOVERY_NQN, ANY_ADMIN_ENTRIES, 0),
            Target::Subsystem(config) => (SubsystemType::NVM, config.nqn.as_str(), own_entries, 0),
            Target::Itself => {
                let (subtype, flags) = (SubsystemType::CURRENT_DISCOVERY, Entry::EFLAGS_PERSISTENT);
                (subtype, DISCOVERY_NQN, own_entries, flags)
            }
        };
        let family = match address.family {
            AddressFamily::V4 => WireFamily::IPV4,
            AddressFamily::V6 => WireFamily::IPV6,
        };
        let (requirement, tsas) = match address.transport {
            TransportType::RDMA => (Entry::TREQ_SECURE_NOT_REQUIRED, Entry::RDMA_SUBTYPE),
            _ => channel(address.security),
        };
        Entry {
            trtype: address.transport.0,
            adrfam: family.0,
            subtype: subtype.0,
            treq: requirement | Entry::TREQ_DISABLE_SQ_FLOW,
            portid: address.number.into(),
            cntlid: CNTLID_DYNAMIC.into(),
            asqsz: admin_entries.into(),
            eflags: flags.into(),
            trsvcid: text_field(address.service),
            subnqn: nqn_field(nqn),
            traddr: text_field(address.address),
            tsas,
            ..Entry::zeroed()
        }
    }
}

/// Returns the secure channel bits of TREQ, and TSAS.
fn channel(security: ChannelSecurity) -> (u8, [u8; 256]) {
    type Entry = DiscoveryLogEntry;
    let (requirement, kind) = match security {
        ChannelSecurity::None => (Entry::TREQ_SECURE_NOT_REQUIRED, Entry::SECTYPE_NONE),
        ChannelSecurity::Allowed => (Entry::TREQ_SECURE_NOT_REQUIRED, Entry::SECTYPE_TLS13),
        ChannelSecurity::Required => (Entry::TREQ_SECURE_REQUIRED, Entry::SECTYPE_TLS13),
    };
    let mut tsas = [0; 256];
    tsas[0] = kind;
    (requirement, tsas)
}

/// Returns the addresses to which the host may connect, each with the required security.
fn places<'a>(
    addresses: &[Address<'a>],
    security: impl Fn(PortId) -> Option<ChannelSecurity>,
) -> Vec<Address<'a>> {
    let place = |address: &Address<'a>| {
        security(address.port).map(|security| Address { security, ..*address })
    };
    addresses.iter().filter_map(place).collect()
}

/// Returns the addresses of the listeners for a host that connected to `local_address`. The caller
/// sets the required security, which depends on the host.
fn addresses<'a>(registry: &'a Registry, local_address: &'a str) -> Vec<Address<'a>> {
    let local_family = match local_address.contains(':') {
        true => AddressFamily::V6,
        false => AddressFamily::V4,
    };
    let mut addresses: Vec<Address<'a>> = Vec::new();
    for listener in &registry.listeners {
        let (family, address) = match (listener.is_wildcard(), listener.family) {
            // The host connected by IPv6, and an IPv4 wildcard socket never accepts IPv6, so leave
            // this listener out. The reverse is possible: an IPv6 wildcard socket usually also
            // accepts IPv4.
            (true, AddressFamily::V4) if local_family == AddressFamily::V6 => continue,
            (true, _) => (local_family, local_address),
            (false, family) => (family, listener.address.as_str()),
        };
        let (service, port) = (listener.service.as_str(), listener.port);
        let transport = listener.transport;
        let is_known = addresses.iter().any(|known| {
            (known.transport, known.family, known.address, known.service)
                == (transport, family, address, service)
        });
        if !is_known {
            let security = ChannelSecurity::None;
            let number = listener.number.unwrap_or(port.0);
            addresses.push(Address { transport, family, address, service, port, number, security });
        }
    }
    addresses
}
