//! The discovery log page (NVMe Base Specification 2.0, "Discovery Log Page").
//!
//! The page lists, for one host: every subsystem that it may use at every address, then the
//! referrals, then the discovery service itself at every address. Only the records that the host
//! asks for are put together, since there may be thousands.

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

/// Bytes of the page's header, and of each record.
const RECORD_BYTES: u64 = DiscoveryLogEntry::LEN as u64;
const _: () = assert!(DiscoveryLogHeader::LEN == DiscoveryLogEntry::LEN);

/// Where hosts can connect to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Address<'a> {
    family: AddressFamily,
    address: &'a str,
    service: &'a str,
    port: PortId,
    security: ChannelSecurity,
}

/// What a record points to.
#[derive(Clone, Copy, Debug)]
enum Target<'a> {
    Subsystem(&'a SubsystemConfig),
    Referral,
    Itself,
}

/// The page as one host sees it, not yet in bytes.
pub(super) struct DiscoveryPage<'a> {
    generation: u64,
    addresses: Vec<Address<'a>>,
    subsystems: Vec<&'a SubsystemConfig>,
    referrals: Vec<Address<'a>>,
}

impl<'a> DiscoveryPage<'a> {
    pub(super) fn new(registry: &'a Registry, controller: &'a Controller) -> Self {
        let referrals = registry.referrals.iter().map(|referral| Address {
            family: referral.family,
            address: &referral.address,
            service: &referral.service,
            port: PortId(0),
            security: ChannelSecurity::None,
        });
        let visible = registry.subsystems().map(|(_, config)| config);
        Self {
            generation: registry.discovery_generation,
            addresses: addresses(registry, &controller.local_address),
            subsystems: visible.filter(|config| config.allows(&controller.host_nqn)).collect(),
            referrals: referrals.collect(),
        }
    }

    fn records(&self) -> usize {
        self.addresses.len() * (self.subsystems.len() + 1) + self.referrals.len()
    }

    /// `bytes` of the page from `offset` on, with zeroes for what lies behind its end.
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

    /// What the record with this number, which is less than [`Self::records`], is about.
    fn target(&self, index: usize) -> (Address<'a>, Target<'a>) {
        let listed = self.addresses.len() * self.subsystems.len();
        if index < listed {
            let subsystem = self.subsystems[index / self.addresses.len()];
            let address = self.addresses[index % self.addresses.len()];
            return (address, Target::Subsystem(subsystem));
        }
        let index = index - listed;
        match self.referrals.get(index) {
            Some(&address) => (address, Target::Referral),
            None => (self.addresses[index - self.referrals.len()], Target::Itself),
        }
    }

    fn record(&self, index: usize) -> DiscoveryLogEntry {
        type Entry = DiscoveryLogEntry;
        /// Queue entries that every discovery service has to have.
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
        let (requirement, tsas) = channel(address.security);
        Entry {
            trtype: TransportType::TCP.0,
            adrfam: family.0,
            subtype: subtype.0,
            treq: requirement | Entry::TREQ_DISABLE_SQ_FLOW,
            portid: address.port.0.into(),
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

/// TREQ's bits about a secure channel, and TSAS.
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

/// The addresses of the listeners, as a host can use them that reached us at `local_address`.
fn addresses<'a>(registry: &'a Registry, local_address: &'a str) -> Vec<Address<'a>> {
    let local_family = match local_address.contains(':') {
        true => AddressFamily::V6,
        false => AddressFamily::V4,
    };
    let mut addresses: Vec<Address<'a>> = Vec::new();
    for listener in &registry.listeners {
        let (family, address) = match (listener.is_wildcard(), listener.family) {
            // A wildcard of IPv6 usually takes IPv4 as well; the other way round never.
            (true, AddressFamily::V4) if local_family == AddressFamily::V6 => continue,
            (true, _) => (local_family, local_address),
            (false, family) => (family, listener.address.as_str()),
        };
        let (service, port) = (listener.service.as_str(), listener.port);
        let is_known = addresses.iter().any(|known| {
            (known.family, known.address, known.service) == (family, address, service)
        });
        if !is_known {
            let security = registry.security.get(&port).copied().unwrap_or_default();
            addresses.push(Address { family, address, service, port, security });
        }
    }
    addresses
}
