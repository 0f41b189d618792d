//! What a controller says about a namespace, and about which namespaces there are.

use super::info::InfoError;
use alloc::vec::Vec;
use farblock_wire::IDENTIFY_BYTES;

/// Block sizes that the host uses: 512 bytes to 64 KiB.
const BLOCK_SHIFT_MIN: u8 = 9;
const BLOCK_SHIFT_MAX: u8 = 16;
/// Identifiers in one list of namespaces.
const LIST_ENTRIES: usize = IDENTIFY_BYTES / 4;
/// NSFEAT: NPWG and its kin are defined.
const NSFEAT_OPTPERF: u8 = 1 << 4;
/// NSATTR: write protected.
const NSATTR_WRITE_PROTECTED: u8 = 1 << 0;

/// A namespace as the host needs to know it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Bytes in a block: a power of two from 512 to 65536.
    pub block_size: u32,
    /// Capacity in blocks (NSZE); the product with the block size fits an `i64`.
    pub blocks: u64,
    /// Blocks allocated (NUSE).
    pub used_blocks: u64,
    /// Write protected at present (NSATTR).
    pub read_only: bool,
    /// NSFEAT, as it is.
    pub features: u8,
    /// Operations that do not cross a multiple of this are fastest (NOIOB); 0 if not said.
    pub optimal_blocks: u32,
    /// Preferred write granularity in blocks (NPWG); 0 if not said.
    pub preferred_blocks: u32,
    /// The namespace may be used by several controllers (NMIC).
    pub shared: bool,
    /// Namespace globally unique identifier, if it has one.
    pub nguid: Option<[u8; 16]>,
    /// IEEE extended unique identifier, if it has one.
    pub eui64: Option<[u8; 8]>,
    /// UUID, if it has one.
    pub uuid: Option<[u8; 16]>,
}

impl NamespaceInfo {
    /// Reads an Identify Namespace data structure.
    ///
    /// # Errors
    /// When there is no such namespace, or none that the host can use.
    pub fn parse(nsid: u32, data: &[u8]) -> Result<Self, InfoError> {
        if data.len() < IDENTIFY_BYTES {
            return Err(InfoError::TooShort);
        }
        let u16_at = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
        let u64_at =
            |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"));
        let blocks = u64_at(0);
        if blocks == 0 {
            return Err(InfoError::NoSuchNamespace);
        }
        let (features, flbas) = (data[24], data[26]);
        let formats = usize::from(data[25]) + 1;
        // Bits 6:5 are the upper part, which only exists with more than 16 formats.
        let upper = if formats > 16 { usize::from(flbas >> 5 & 0b11) << 4 } else { 0 };
        let format = usize::from(flbas & 0xf) | upper;
        if format >= formats.min(64) {
            return Err(InfoError::FormatOutOfRange);
        }
        let at = 128 + format * 4;
        let (metadata, shift) = (u16_at(at), data[at + 2]);
        if !(BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&shift) {
            return Err(InfoError::BlockSize { shift });
        }
        if metadata != 0 {
            return Err(InfoError::Metadata { bytes: metadata });
        }
        if blocks > i64::MAX as u64 >> shift {
            return Err(InfoError::TooLarge { blocks });
        }
        let preferred = u32::from(u16_at(64)) + 1;
        let preferred_blocks = if features & NSFEAT_OPTPERF != 0 { preferred } else { 0 };
        let nguid: [u8; 16] = data[104..120].try_into().expect("sixteen bytes");
        let eui64: [u8; 8] = data[120..128].try_into().expect("eight bytes");
        Ok(Self {
            nsid,
            block_size: 1 << shift,
            blocks,
            used_blocks: u64_at(16),
            read_only: data[99] & NSATTR_WRITE_PROTECTED != 0,
            features,
            optimal_blocks: u16_at(46).into(),
            preferred_blocks,
            shared: data[30] & 1 != 0,
            nguid: (nguid != [0; 16]).then_some(nguid),
            eui64: (eui64 != [0; 8]).then_some(eui64),
            uuid: None,
        })
    }

    /// Adds what a namespace identification descriptor list says. A malformed list adds what
    /// stands before the fault.
    pub fn add_descriptors(&mut self, data: &[u8]) {
        let mut rest = data;
        while let [kind, length, _, _, tail @ ..] = rest {
            let length = usize::from(*length);
            if length == 0 || length > tail.len() {
                return;
            }
            let (value, next) = tail.split_at(length);
            match (*kind, length) {
                (1, 8) => self.eui64 = value.try_into().ok().filter(|id| *id != [0; 8]),
                (2, 16) => self.nguid = value.try_into().ok().filter(|id| *id != [0; 16]),
                (3, 16) => self.uuid = value.try_into().ok().filter(|id| *id != [0; 16]),
                _ => {}
            }
            rest = next;
        }
    }
}

/// Reads a list of active namespaces above `after`: ascending, ended by a zero. The flag says
/// that the list is full, so that there may be more.
///
/// # Errors
/// When the list is too short, or not in order.
pub fn parse_namespace_list(data: &[u8], after: u32) -> Result<(Vec<u32>, bool), InfoError> {
    if data.len() < IDENTIFY_BYTES {
        return Err(InfoError::TooShort);
    }
    let mut list = Vec::new();
    let mut last = after;
    for nsid in identifiers(data) {
        if nsid <= last {
            return Err(InfoError::NotAscending);
        }
        list.push(nsid);
        last = nsid;
    }
    let full = list.len() == LIST_ENTRIES;
    Ok((list, full))
}

/// Reads a changed namespace list log page: `None` if more changed than it could hold.
#[must_use]
pub fn parse_changed_namespaces(data: &[u8]) -> Option<Vec<u32>> {
    let list: Vec<u32> = identifiers(data).collect();
    (list.first() != Some(&u32::MAX)).then_some(list)
}

fn identifiers(data: &[u8]) -> impl Iterator<Item = u32> {
    let entries = data.chunks_exact(4).take(LIST_ENTRIES);
    entries
        .map(|entry| u32::from_le_bytes(entry.try_into().expect("four bytes")))
        .take_while(|&nsid| nsid != 0)
}
