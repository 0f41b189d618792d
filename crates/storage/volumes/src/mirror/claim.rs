//! A claim marks a leg for a mirror. The mirror writes the claim before it writes its first record
//! to the leg.
//!
//! The power may fail while the mirror writes the first record. The half-written record is invalid,
//! so that without a claim the leg would look as if it held other data. A claim cannot be
//! half-written, because it is one sector, which a disk writes completely or not at all. Once the
//! leg has a record, the mirror removes the claim.

use uuid::Uuid;

use super::record::USED_BYTES;

/// The offset of a claim in the reserved part, behind the records and the bitmap.
pub(crate) const OFFSET: u64 = USED_BYTES;
/// The size of a claim, in bytes: the smallest sector that disks write atomically.
const BYTES: usize = 512;
const MAGIC: &[u8; 8] = b"FBCLAIM1";
const CHECKSUM_AT: usize = BYTES - 4;

pub(crate) fn emit(mirror: Uuid) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..24].copy_from_slice(mirror.as_bytes());
    let checksum = crc32c::crc32c(&bytes[..CHECKSUM_AT]);
    bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Zeroes, which the mirror writes over a claim to remove it.
pub(crate) const NONE: [u8; BYTES] = [0; BYTES];

/// The mirror that has claimed a leg, parsed from the whole reserved part of the leg.
pub(crate) fn parse(reserved: &[u8]) -> Option<Uuid> {
    let bytes = reserved.get(OFFSET as usize..)?.get(..BYTES)?;
    let mirror = Uuid::from_slice(&bytes[8..24]).ok()?;
    (bytes == emit(mirror)).then_some(mirror)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RESERVED_BYTES;

    #[test]
    fn a_damaged_claim_is_ignored() {
        let mut reserved = vec![0; RESERVED_BYTES as usize];
        assert_eq!(parse(&reserved), None);
        let mirror = Uuid::from_bytes([7; 16]);
        let at = OFFSET as usize;
        reserved[at..at + BYTES].copy_from_slice(&emit(mirror));
        assert_eq!(parse(&reserved), Some(mirror));
        for bit in 0..8 * BYTES {
            reserved[at + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&reserved), None, "bit {bit}");
            reserved[at + bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(parse(&reserved[..at + 100]), None);
    }
}
