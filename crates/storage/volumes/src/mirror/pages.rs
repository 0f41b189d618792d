//! The bitmap on a leg. It consists of pages with a checksum each.
//!
//! If a page is torn or corrupt, every region of the page counts as dirty. Without the checksum, a
//! lost bit would stay undetected, and the legs would differ permanently.

use uuid::Uuid;

use super::record::{BITMAP_OFFSET, CHECKED, OLD_BITMAP_OFFSET, Record};
use crate::limits::MAX_REGIONS;

/// The size of a page in bytes, unless a block is larger. A block never contains two pages: the
/// mirror writes whole blocks, so writing one page would overwrite the other.
const PAGE_BYTES: usize = 4096;
/// The bytes of the checksum, of the page's index, and of the number of earlier page writes.
const HEADER_BYTES: usize = 16;

/// The size of a page on a leg, in bytes.
pub(crate) fn page_bytes(block_size: u32) -> usize {
    PAGE_BYTES.max(block_size as usize)
}

/// The number of bitmap bytes in a page.
pub(crate) fn payload_bytes(block_size: u32) -> usize {
    page_bytes(block_size) - HEADER_BYTES
}

/// The checksum of a page. It covers the mirror's UUID and the index of the page, so that a
/// misplaced page is invalid.
fn checksum(mirror: Uuid, page: &[u8]) -> [u8; 4] {
    crc32c::crc32c_append(crc32c::crc32c(mirror.as_bytes()), &page[4..]).to_le_bytes()
}

pub(crate) fn emit(record: &Record, page: usize, count: u64, bits: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; page_bytes(record.block_size)];
    bytes[4..8].copy_from_slice(&(page as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&count.to_le_bytes());
    bytes[HEADER_BYTES..][..bits.len()].copy_from_slice(bits);
    let checksum = checksum(record.mirror, &bytes);
    bytes[..4].copy_from_slice(&checksum);
    bytes
}

/// The bitmap read from a leg.
#[derive(Clone, Default)]
pub(crate) struct Bitmap {
    /// The bits for the maximum number of regions.
    pub(crate) bits: Vec<u8>,
    /// For each page, whether it is damaged. All regions of a damaged page are set in `bits`.
    pub(crate) damaged: Vec<bool>,
    /// The number of the newest page write.
    pub(crate) count: u64,
}

impl Bitmap {
    /// Parses the bitmap in the reserved part of a leg that has this record.
    pub(crate) fn parse(record: &Record, area: &[u8]) -> Bitmap {
        let mut bits = vec![0; (MAX_REGIONS / 8) as usize];
        if record.version < CHECKED {
            bits.copy_from_slice(&area[OLD_BITMAP_OFFSET as usize..][..(MAX_REGIONS / 8) as usize]);
            return Bitmap { bits, ..Bitmap::default() };
        }
        let length = record.regions().div_ceil(8);
        let (mut damaged, mut count) = (Vec::new(), 0);
        let pages = area[BITMAP_OFFSET as usize..].chunks(page_bytes(record.block_size));
        let parts = bits[..length].chunks_mut(payload_bytes(record.block_size));
        for (at, (page, part)) in pages.zip(parts).enumerate() {
            let is_whole = page[..4] == checksum(record.mirror, page)
                && page[4..8] == (at as u32).to_le_bytes();
            damaged.push(!is_whole);
            if is_whole {
                part.copy_from_slice(&page[HEADER_BYTES..][..part.len()]);
                count = count.max(u64::from_le_bytes(
                    page[8..16].try_into().expect("the range has eight bytes"),
                ));
            } else {
                part.fill(0xff);
            }
        }
        Bitmap { bits, damaged, count }
    }

    pub(crate) fn has_whole(&self, page: usize) -> bool {
        self.damaged.get(page) == Some(&false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::USED_BYTES;
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_bitmap_page_is_detected() {
        for block_size in [512, 4096, 65536] {
            let record = Record::new(Uuid::from_bytes([7; 16]), block_size, 1 << 40, 2).unwrap();
            let bits: Vec<u8> = (0..record.regions().div_ceil(8)).map(|at| at as u8).collect();
            let mut area = vec![0; USED_BYTES as usize];
            let (step, payload) = (page_bytes(block_size), payload_bytes(block_size));
            for (page, part) in bits.chunks(payload).enumerate() {
                let at = BITMAP_OFFSET as usize + page * step;
                area[at..at + step].copy_from_slice(&emit(&record, page, 40 + page as u64, part));
            }
            let pages = bits.len().div_ceil(payload);
            let whole = Bitmap::parse(&record, &area);
            assert!(whole.bits == bits && whole.damaged == vec![false; pages]);
            assert_eq!(whole.count, 39 + pages as u64);
            for bit in (0..8 * step * pages).step_by(1009) {
                let at = BITMAP_OFFSET as usize + bit / 8;
                area[at] ^= 1 << (bit % 8);
                let found = Bitmap::parse(&record, &area);
                let page = bit / 8 / step;
                assert!(!found.has_whole(page), "bit {bit}");
                let all = found.bits[page * payload..].iter().take(payload);
                assert!(all.take(bits.len() - page * payload).all(|&byte| byte == 0xff));
                area[at] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn a_bitmap_page_of_another_place_or_mirror_is_ignored() {
        let record = Record::new(Uuid::from_bytes([7; 16]), 512, 1 << 40, 2).unwrap();
        let mut area = vec![0; USED_BYTES as usize];
        let first = BITMAP_OFFSET as usize;
        area[first..first + 4096].copy_from_slice(&emit(&record, 1, 9, &[]));
        assert!(!Bitmap::parse(&record, &area).has_whole(0));
        let other = Record { mirror: Uuid::from_bytes([8; 16]), ..record.clone() };
        area[first..first + 4096].copy_from_slice(&emit(&other, 0, 9, &[]));
        assert!(!Bitmap::parse(&record, &area).has_whole(0));
        assert!(Bitmap::parse(&other, &area).has_whole(0));
    }

    #[test]
    fn a_bitmap_without_checksums_is_read() {
        let record = Record::new(Uuid::from_bytes([7; 16]), 512, 1 << 40, 2).unwrap();
        let mut area = vec![0; USED_BYTES as usize];
        area[OLD_BITMAP_OFFSET as usize + 5] = 0x81;
        let found = Bitmap::parse(&Record { version: 1, ..record }, &area);
        assert_eq!(
            (found.bits[5], found.bits.iter().filter(|&&byte| byte != 0).count()),
            (0x81, 1)
        );
    }
}
