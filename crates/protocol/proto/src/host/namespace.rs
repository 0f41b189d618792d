//! Reads a controller's descriptions and lists of namespaces.

use super::info::InfoError;
use alloc::vec::Vec;
use farblock_wire::contents;
use farblock_wire::identify::{
    IdentifyControllerNvm, IdentifyNamespace, NamespaceIdDescriptor, NamespaceIdType, NamespaceList,
};

/// Base-two logarithms of the smallest and the largest supported block size: 512 bytes and 64 KiB.
const BLOCK_SHIFT_MIN: u8 = 9;
const BLOCK_SHIFT_MAX: u8 = 16;

/// Limits of commands that name blocks but do not transfer data; see [`IdentifyControllerNvm`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CommandLimits {
    /// Largest range of a Write Zeroes command in bytes (WZSL); `None`: no limit. The value assumes
    /// NVMe's smallest page size, so it is never above the controller's limit.
    pub zeroes_bytes: Option<u64>,
    /// Largest number of blocks of a deallocation with one range (DMRSL and DMSL); `None`: no
    /// limit.
    pub deallocate_blocks: Option<u32>,
}

impl CommandLimits {
    /// Reads an Identify Controller data structure of the NVM command set.
    #[must_use]
    pub fn parse(data: &[u8]) -> Self {
        const PAGE_BYTES: u64 = 4096;
        let Some(limits) = IdentifyControllerNvm::parse(data) else { return Self::default() };
        let pages = match limits.wzsl {
            0 => None,
            shift => 1_u64.checked_shl(shift.into()),
        };
        let range = limits.dmrsl.get();
        let total = u32::try_from(limits.dmsl.get()).unwrap_or(u32::MAX);
        let deallocate_blocks = [range, total].into_iter().filter(|&most| most != 0).min();
        let zeroes_bytes = pages.and_then(|pages| pages.checked_mul(PAGE_BYTES));
        Self { zeroes_bytes, deallocate_blocks }
    }
}

/// The properties of a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Block size in bytes: a power of two from 512 to 65536.
    pub block_size: u32,
    /// Capacity in blocks (NSZE). The capacity in bytes fits in an `i64`.
    pub blocks: u64,
    /// Number of allocated blocks (NUSE).
    pub used_blocks: u64,
    /// Whether the namespace is currently write protected (NSATTR).
    pub read_only: bool,
    /// NSFEAT, as reported.
    pub features: u8,
    /// Optimal I/O boundary in blocks (NOIOB): commands that do not cross a multiple of it are
    /// fastest. 0: unknown.
    pub optimal_blocks: u32,
    /// Preferred write granularity in blocks (NPWG); 0: unknown.
    pub preferred_blocks: u32,
    /// Whether several controllers may use the namespace (NMIC).
    pub shared: bool,
    /// ANA group of the namespace (ANAGRPID); 0: no group.
    pub ana_group: u32,
    /// Namespace globally unique identifier, if the namespace has one.
    pub nguid: Option<[u8; 16]>,
    /// IEEE extended unique identifier, if the namespace has one.
    pub eui64: Option<[u8; 8]>,
    /// UUID, if the namespace has one.
    pub uuid: Option<[u8; 16]>,
    /// UUIDs of the remote namespaces that the namespace consists of, if its target reports them.
    pub contents: Vec<[u8; 16]>,
}

impl NamespaceInfo {
    /// Reads an Identify Namespace data structure.
    ///
    /// # Errors
    /// Fails if the namespace does not exist, or the host cannot use it.
    pub fn parse(nsid: u32, data: &[u8]) -> Result<Self, InfoError> {
        let identify = IdentifyNamespace::parse(data).ok_or(InfoError::TooShort)?;
        let blocks = identify.nsze.get();
        if blocks == 0 {
            return Err(InfoError::NoSuchNamespace);
        }
        let formats = u16::from(identify.nlbaf_z) + u16::from(identify.nulbaf) + 1;
        let index = usize::from(identify.format_index());
        if index >= usize::from(formats) {
            return Err(InfoError::FormatOutOfRange);
        }
        let format = identify.lbaf.get(index).ok_or(InfoError::FormatOutOfRange)?;
        let (bytes, shift) = (format.ms.get(), format.lbads);
        if !(BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&shift) {
            return Err(InfoError::BlockSize { shift });
        }
        if bytes != 0 {
            return Err(InfoError::Metadata { bytes });
        }
        if blocks > i64::MAX as u64 >> shift {
            return Err(InfoError::TooLarge { blocks });
        }
        let features = identify.nsfeat;
        let has_preferred = features & IdentifyNamespace::NSFEAT_OPTIMAL_IO != 0;
        let preferred = u32::from(identify.npwg_z.get()) + 1;
        Ok(Self {
            nsid,
            block_size: 1 << shift,
            blocks,
            used_blocks: identify.nuse.get(),
            read_only: identify.nsattr & IdentifyNamespace::NSATTR_WRITE_PROTECTED != 0,
            features,
            optimal_blocks: identify.noiob.get().into(),
            preferred_blocks: if has_preferred { preferred } else { 0 },
            shared: identify.nmic & IdentifyNamespace::NMIC_SHARED != 0,
            ana_group: identify.anagrpid.get(),
            nguid: not_zero(&identify.nguid),
            eui64: not_zero(&identify.eui64),
            uuid: None,
            contents: contents::parse(&identify.vs).collect(),
        })
    }

    /// Adds the identifiers from a namespace identification descriptor list. If the list is
    /// malformed, adds the identifiers before the error.
    pub fn add_descriptors(&mut self, data: &[u8]) {
        for (id_type, id) in NamespaceIdDescriptor::iter(data) {
            match id_type {
                NamespaceIdType::EUI64 => self.eui64 = not_zero(id).or(self.eui64),
                NamespaceIdType::NGUID => self.nguid = not_zero(id).or(self.nguid),
                NamespaceIdType::UUID => self.uuid = not_zero(id).or(self.uuid),
                _ => {}
            }
        }
    }
}

/// Returns the identifier if it has the right length. All zeroes mean that there is no identifier.
fn not_zero<const N: usize>(id: &[u8]) -> Option<[u8; N]> {
    id.try_into().ok().filter(|id| *id != [0; N])
}

/// Reads a list of active namespaces above `after`, in ascending order and ended by a zero. The
/// returned flag is true if the list is full: more namespaces may follow.
///
/// # Errors
/// Fails if the data is too short, or the identifiers do not ascend.
pub fn parse_namespace_list(data: &[u8], after: u32) -> Result<(Vec<u32>, bool), InfoError> {
    let identifiers = NamespaceList::parse(data).ok_or(InfoError::TooShort)?;
    let mut list = Vec::new();
    let mut last = after;
    for nsid in identifiers.iter() {
        if nsid <= last {
            return Err(InfoError::NotAscending);
        }
        list.push(nsid);
        last = nsid;
    }
    let full = list.len() == identifiers.nsids.len();
    Ok((list, full))
}

/// Reads a Changed Namespace List log page. `None`: more namespaces have changed than fit in the
/// page, or the page is malformed.
#[must_use]
pub fn parse_changed_namespaces(data: &[u8]) -> Option<Vec<u32>> {
    let list: Vec<u32> = NamespaceList::parse(data)?.iter().collect();
    (list.first() != Some(&u32::MAX)).then_some(list)
}
