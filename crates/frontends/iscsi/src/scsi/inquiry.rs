//! Answers queries about the unit's properties: standard inquiry data, vital product data and
//! capacity (SPC-4, 6.4 and 7.8; SBC-3, 5.15, 5.16 and 6.6).

use super::sense::Sense;
use crate::limits;
use farblock_block::Geometry;
use uuid::Uuid;

const VENDOR: &[u8; 8] = b"FARBLOCK";
const PRODUCT: &[u8; 16] = b"remote disk     ";
const REVISION: &[u8; 4] = b"1   ";

/// The first byte of the inquiry data for a unit that does not exist.
pub(crate) const NO_UNIT: u8 = 0x7f;

/// The identity of this unit, which stays the same after a restart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// The target's iSCSI name.
    pub(crate) target: String,
    /// The serial number: printable characters, within the length limit.
    pub(crate) serial: String,
}

impl Identity {
    /// An NAA identifier derived from the serial number. Type 3h means locally assigned. The other
    /// 60 bits are a hash.
    fn locally_assigned(&self) -> u64 {
        let (hash, _) = Uuid::new_v5(&Uuid::NAMESPACE_OID, self.serial.as_bytes()).as_u64_pair();
        3 << 60 | hash >> 4
    }
}

/// The standard inquiry data.
pub(crate) fn standard() -> Vec<u8> {
    const SPC_4: u8 = 6;
    const FORMAT: u8 = 2;
    const QUEUES: u8 = 2;
    /// The version descriptors of SAM-5, SPC-4, SBC-3 and iSCSI.
    const VERSIONS: [u16; 4] = [0x00a0, 0x0460, 0x04c0, 0x0960];
    let mut data = vec![0, 0, SPC_4, FORMAT, 0, 0, 0, QUEUES];
    data.extend(VENDOR);
    data.extend(PRODUCT);
    data.extend(REVISION);
    data.resize(58, 0);
    VERSIONS.iter().for_each(|version| data.extend(version.to_be_bytes()));
    data.resize(96, 0);
    data[4] = data.len() as u8 - 5;
    data
}

/// Returns a page of vital product data.
pub(crate) fn page(code: u8, identity: &Identity, geometry: &Geometry) -> Result<Vec<u8>, Sense> {
    let body = match code {
        0x00 => vec![0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2],
        0x80 => identity.serial.as_bytes().to_vec(),
        0x83 => designators(identity),
        0xb0 => block_limits(geometry),
        0xb1 => characteristics(),
        0xb2 => provisioning(geometry),
        _ => return Err(Sense::in_cdb(2)),
    };
    let mut page = vec![0, code];
    page.extend((body.len() as u16).to_be_bytes());
    page.extend(body);
    Ok(page)
}

/// The identifiers (designators) of the unit and of the target.
fn designators(identity: &Identity) -> Vec<u8> {
    const BINARY: u8 = 1;
    const ASCII: u8 = 2;
    const UTF_8: u8 = 0x53; // with the iSCSI protocol identifier
    const OF_TARGET: u8 = 0xa0;
    let mut all = Vec::new();
    let mut add = |set: u8, kind: u8, name: &[u8]| {
        all.extend([set, kind, 0, name.len() as u8]);
        all.extend(name);
    };
    add(BINARY, 3, &identity.locally_assigned().to_be_bytes());
    add(ASCII, 1, &[VENDOR, identity.serial.as_bytes()].concat());
    // The name ends with at least one zero, and is padded to a multiple of four bytes (SPC-4,
    // 7.8.6.11). It has at most 223 bytes.
    let mut target = identity.target.clone().into_bytes();
    target.resize((target.len() + 4) & !3, 0);
    add(UTF_8, OF_TARGET | 8, &target);
    all
}

/// The maximum number of blocks of one COMPARE AND WRITE: at most 255, at most
/// [`limits::MAX_COMPARE_WRITE_BYTES`], and at most as many as one operation.
pub(crate) fn most_compared(geometry: &Geometry) -> u32 {
    let most = (limits::MAX_COMPARE_WRITE_BYTES / geometry.block_size).max(1);
    most.min(u8::MAX.into()).min(farblock_frontend::pieces::piece_blocks(geometry))
}

fn block_limits(geometry: &Geometry) -> Vec<u8> {
    let mut page = vec![0; 60];
    let mut put = |at: usize, value: u32| {
        page[at - 4..at].copy_from_slice(&value.to_be_bytes());
    };
    let block_size = geometry.block_size;
    let (most, deallocates) = (limits::MAX_TRANSFER_BYTES / block_size, geometry.deallocate);
    put(8, most);
    put(12, limits::PIECE_BYTES / block_size);
    if deallocates {
        put(20, u32::MAX);
        put(24, limits::MAX_UNMAP_DESCRIPTORS);
        put(28, geometry.preferred_blocks);
    }
    put(40, limits::MAX_WRITE_SAME_BLOCKS);
    page[1] = most_compared(geometry) as u8;
    page[0] = 1; // the unit refuses a WRITE SAME of 0 blocks
    let optimal = [geometry.optimal_blocks, geometry.preferred_blocks];
    let granularity = optimal.into_iter().find(|&blocks| blocks > 0).unwrap_or(0);
    page[2..4].copy_from_slice(&u16::try_from(granularity).unwrap_or(0).to_be_bytes());
    page
}

fn characteristics() -> Vec<u8> {
    let mut page = vec![0; 60];
    page[1] = 1; // non-rotating
    page
}

fn provisioning(geometry: &Geometry) -> Vec<u8> {
    // Supports UNMAP, both kinds of WRITE SAME, and thin provisioning. Unmapped blocks may read as
    // any data.
    if geometry.deallocate { vec![0, 0xe0, 2, 0] } else { vec![0; 4] }
}

/// The answer to READ CAPACITY (10): the last block's address and the block size.
pub(crate) fn capacity_10(geometry: &Geometry) -> Result<Vec<u8>, Sense> {
    let last = geometry.blocks.checked_sub(1).ok_or(Sense::NO_MEDIUM)?;
    let last = u32::try_from(last).unwrap_or(u32::MAX);
    Ok([last.to_be_bytes(), geometry.block_size.to_be_bytes()].concat())
}

/// The answer to READ CAPACITY (16), which supports larger units and also reports deallocation.
pub(crate) fn capacity_16(geometry: &Geometry) -> Result<Vec<u8>, Sense> {
    let last = geometry.blocks.checked_sub(1).ok_or(Sense::NO_MEDIUM)?;
    let mut data = vec![0; 32];
    data[..8].copy_from_slice(&last.to_be_bytes());
    data[8..12].copy_from_slice(&geometry.block_size.to_be_bytes());
    if geometry.preferred_blocks.is_power_of_two() {
        // The number of logical blocks per physical block, as an exponent of two in four bits.
        data[13] = geometry.preferred_blocks.ilog2().min(15) as u8;
    }
    data[14] = u8::from(geometry.deallocate) << 7;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::cdb::{be16, be32, be64};

    fn identity(target: &str) -> Identity {
        Identity { target: target.to_owned(), serial: "0123".to_owned() }
    }

    #[test]
    fn every_listed_page_has_its_stated_length() {
        let geometry = Geometry { deallocate: true, ..Geometry::new(4096, 1 << 20) };
        let long = format!("iqn.{}", "x".repeat(219));
        let first = page(0, &identity(&long), &geometry).expect("a page");
        for &code in &first[4..] {
            let page = page(code, &identity(&long), &geometry).expect("a listed page");
            assert_eq!((page[1], usize::from(be16(&page, 2))), (code, page.len() - 4));
        }
        assert_eq!(page(0x84, &identity(&long), &geometry), Err(Sense::in_cdb(2)));
        assert_eq!(standard()[4], 91);
    }

    #[test]
    fn the_block_limits_page_follows_the_geometry() {
        let geometry = Geometry { preferred_blocks: 8, ..Geometry::new(512, 1 << 20) };
        let page = page(0xb0, &identity("iqn.x"), &geometry).expect("a page");
        assert_eq!(page.len(), 64);
        assert_eq!((page[4], page[5], be16(&page, 6)), (1, 128, 8));
        let narrow = Geometry { max_blocks: 3, ..geometry };
        assert_eq!((most_compared(&narrow), most_compared(&Geometry::new(4096, 9))), (3, 16));
        assert_eq!((be32(&page, 8), be32(&page, 12)), (65_536, 2048));
        assert_eq!((be32(&page, 20), be64(&page, 36)), (0, limits::MAX_WRITE_SAME_BLOCKS.into()));
        let capacity = capacity_16(&geometry).expect("a disk with blocks");
        assert_eq!((be64(&capacity, 0), capacity[13], capacity[14]), ((1 << 20) - 1, 3, 0));
        let large = Geometry::new(512, 1 << 33);
        assert_eq!(be32(&capacity_10(&large).expect("a disk with blocks"), 0), u32::MAX);
        assert_eq!(capacity_10(&Geometry::new(512, 0)), Err(Sense::NO_MEDIUM));
    }

    #[test]
    fn the_identification_page_has_three_designators() {
        let page = page(0x83, &identity("iqn.abc"), &Geometry::new(512, 1)).expect("a page");
        let mut at = 4;
        let mut kinds = Vec::new();
        while at < page.len() {
            kinds.push((page[at + 1], page[at + 3]));
            at += 4 + usize::from(page[at + 3]);
        }
        assert_eq!(kinds, [(3, 8), (1, 12), (0xa8, 8)]);
        assert_eq!(page[8] >> 4, 3);
    }
}
