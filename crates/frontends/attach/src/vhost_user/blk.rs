//! The layout of virtio-blk structures (virtio 1.2, section 5.2).

use super::limits;
use farblock_block::Geometry;

/// The unit of every address and length in virtio-blk, in bytes. It does not depend on the block
/// size.
pub(super) const SECTOR_BYTES: u64 = 512;

/// Feature bits of virtio-blk (5.2.3) and of all virtio devices (section 6).
pub(super) mod feature {
    pub(crate) const SIZE_MAX: u64 = 1 << 1;
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// Request types (5.2.6).
pub(super) mod request {
    pub(crate) const IN: u32 = 0;
    pub(crate) const OUT: u32 = 1;
    pub(crate) const FLUSH: u32 = 4;
    pub(crate) const GET_ID: u32 = 8;
    pub(crate) const DISCARD: u32 = 11;
    pub(crate) const WRITE_ZEROES: u32 = 13;
}

/// Values of the last byte of every request (5.2.6).
pub(super) mod status {
    pub(crate) const OK: u8 = 0;
    pub(crate) const IOERR: u8 = 1;
    pub(crate) const UNSUPP: u8 = 2;
}

/// The length of a request's header in bytes: type, reserved, sector.
pub(super) const HEADER_BYTES: usize = 16;
/// The length of a disk's serial number in bytes, padded with zeroes.
pub(super) const ID_BYTES: usize = 20;
/// The length in bytes of one range of a discard or Write Zeroes request: sector, count, flags.
pub(super) const RANGE_BYTES: usize = 16;
/// The only flag of a Write Zeroes request: the device may deallocate the range.
pub(super) const UNMAP: u32 = 1;

/// A request's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) kind: u32,
    pub(super) sector: u64,
}

impl Header {
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Header {
        let (kind, rest) = bytes.split_first_chunk::<4>().expect("16 bytes");
        let sector = rest.last_chunk::<8>().expect("12 bytes");
        Header { kind: u32::from_le_bytes(*kind), sector: u64::from_le_bytes(*sector) }
    }
}

/// One range of a discard or Write Zeroes request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) sector: u64,
    pub(super) sectors: u32,
    pub(super) flags: u32,
}

impl Range {
    pub(super) fn parse(bytes: &[u8]) -> Range {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let sector = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        Range { sector, sectors: word(8), flags: word(12) }
    }
}

/// The features that the disk offers to the driver.
pub(super) fn features(geometry: &Geometry, queues: usize) -> u64 {
    use feature::*;
    let mut features = SIZE_MAX | SEG_MAX | BLK_SIZE | FLUSH | CONFIG_WCE | WRITE_ZEROES;
    features |= INDIRECT_DESC | EVENT_IDX | VERSION_1;
    let when = |condition: bool, feature: u64| if condition { feature } else { 0 };
    features |= when(geometry.read_only, RO);
    features |= when(geometry.deallocate, DISCARD);
    features |= when(geometry.preferred_blocks != 0 || geometry.optimal_blocks != 0, TOPOLOGY);
    features | when(queues > 1, MQ)
}

/// The offset of the configuration field with which a driver turns the write cache on or off.
pub(super) const WRITEBACK_OFFSET: u32 = 32;

/// `struct virtio_blk_config` (5.2.4), little-endian, up to the last field that the offered
/// features use.
pub(super) fn config_space(geometry: &Geometry, queues: usize, writeback: bool) -> Vec<u8> {
    let per_block = geometry.block_size / SECTOR_BYTES as u32;
    let preferred = geometry.preferred_blocks.max(1);
    // The field can only hold powers of two.
    let exponent = if preferred.is_power_of_two() { preferred.ilog2() as u8 } else { 0 };
    let minimum = u16::try_from(preferred).unwrap_or(0);
    let mut bytes = Vec::with_capacity(60);
    bytes.extend((geometry.capacity_bytes() / SECTOR_BYTES).to_le_bytes());
    bytes.extend(limits::MAX_SEGMENT_BYTES.to_le_bytes());
    bytes.extend(limits::MAX_SEGMENTS.to_le_bytes());
    bytes.extend([0; 4]); // cylinders, heads, sectors
    bytes.extend(geometry.block_size.to_le_bytes());
    // `physical_block_exp`, then `alignment_offset` 0.
    bytes.extend([exponent, 0]);
    bytes.extend(minimum.to_le_bytes());
    bytes.extend(geometry.optimal_blocks.to_le_bytes());
    assert!(bytes.len() == WRITEBACK_OFFSET as usize, "32 bytes precede the field");
    bytes.extend([u8::from(writeback), 0]);
    bytes.extend((queues as u16).to_le_bytes());
    bytes.extend((u32::MAX / per_block * per_block).to_le_bytes()); // max_discard_sectors
    bytes.extend(limits::MAX_RANGES.to_le_bytes());
    bytes.extend(per_block.to_le_bytes()); // discard_sector_alignment
    bytes.extend(limits::MAX_ZEROES_SECTORS.to_le_bytes());
    bytes.extend(limits::MAX_RANGES.to_le_bytes());
    bytes.extend([u8::from(geometry.deallocate), 0, 0, 0]); // write_zeroes_may_unmap
    bytes
}

/// A part of the configuration space. Bytes beyond its end are zero.
pub(super) fn config_part(space: &[u8], offset: u32, length: u32) -> Vec<u8> {
    let bytes = space.iter().copied().chain(std::iter::repeat(0));
    bytes.skip(offset as usize).take(length as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_space_has_the_specified_layout() {
        let geometry = Geometry {
            deallocate: true,
            preferred_blocks: 8,
            optimal_blocks: 64,
            ..Geometry::new(4096, 1000)
        };
        let space = config_space(&geometry, 3, true);
        let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
        assert_eq!(space.len(), 60);
        assert_eq!(space[..8], 8000_u64.to_le_bytes());
        assert_eq!((word(8), word(12)), (limits::MAX_SEGMENT_BYTES, 126));
        assert_eq!((word(20), space[24], space[25]), (4096, 3, 0));
        assert_eq!((space[26], word(28)), (8, 64));
        assert_eq!((space[32], space[34]), (1, 3));
        assert_eq!((word(36) % 8, word(40), word(44)), (0, 16, 8));
        assert_eq!((word(48), word(52), space[56]), (524_288, 16, 1));
        assert_eq!(config_part(&space, 32, 4), [1, 0, 3, 0]);
        assert_eq!(config_part(&space, 56, 8), [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(config_part(&space, 200, 2), [0, 0]);
    }

    #[test]
    fn features_follow_the_geometry() {
        let plain = Geometry::new(512, 8);
        let has = |geometry: Geometry, queues, feature| features(&geometry, queues) & feature != 0;
        assert!(!has(plain, 1, feature::RO | feature::DISCARD | feature::MQ | feature::TOPOLOGY));
        assert!(has(Geometry { read_only: true, ..plain }, 1, feature::RO));
        assert!(has(Geometry { deallocate: true, ..plain }, 1, feature::DISCARD));
        assert!(has(Geometry { preferred_blocks: 8, ..plain }, 1, feature::TOPOLOGY));
        assert!(has(plain, 2, feature::MQ));
    }
}
