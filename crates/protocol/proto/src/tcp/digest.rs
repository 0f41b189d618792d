//! CRC32C, the digest of the TCP transport. Uses special processor instructions if the processor
//! has them.
//!
//! Wide carry-less multiplication (AVX-512) is three to four times as fast as the CRC32
//! instruction. Narrow carry-less multiplication, which crc-fast uses on other processors, is
//! slower.

use core::sync::atomic::{AtomicU8, Ordering};
use crc_fast::{CrcAlgorithm, Digest, checksum};

const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

/// Returns the CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    match multiplies_wide() {
        // The result fits, because a CRC32C has 32 bits.
        true => checksum(ALGORITHM, bytes) as u32,
        false => crc32c::crc32c(bytes),
    }
}

/// Returns the CRC32C of earlier data followed by `bytes`. `crc` is the CRC32C of the earlier data.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if !multiplies_wide() {
        return crc32c::crc32c_append(crc, bytes);
    }
    // A CRC32C result is the inverted internal state of crc-fast, so invert it to continue from
    // there.
    let mut digest = Digest::new_with_init_state(ALGORITHM, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// The digest of data that arrives in parts.
#[derive(Clone, Copy, Default, Debug)]
pub struct DataDigest(u32);

impl DataDigest {
    /// Adds the next part.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c_append(self.0, bytes);
    }

    /// Returns the four digest bytes that follow the data.
    #[must_use]
    pub fn finish(self) -> [u8; 4] {
        self.0.to_le_bytes()
    }
}

/// Whether crc-fast uses wide carry-less multiplication on this processor.
fn multiplies_wide() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static KNOWN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let wide = crc_fast::get_calculator_target(ALGORITHM).contains("avx512-vpclmulqdq");
            KNOWN.store(if wide { YES } else { NO }, Ordering::Relaxed);
            wide
        }
        known => known == YES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Test vectors of RFC 3720, B.4: 32 bytes of zeroes, of ones, and counting up.
    #[test]
    fn crc32c_matches_the_vectors_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let counting: [u8; 32] = core::array::from_fn(|i| i as u8);
        assert_eq!(crc32c(&counting), 0x46dd_794e);
    }

    /// On a processor with both kinds of instructions, both implementations return the same result.
    #[test]
    fn both_crc32c_implementations_agree() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
        for (start, len) in [(0, 0), (1, 1), (3, 24), (5, 255), (7, 4096), (0, 70_000)] {
            let part = &bytes[start..start + len];
            assert_eq!(checksum(ALGORITHM, part) as u32, crc32c::crc32c(part));
            assert_eq!(crc32c(part), crc32c::crc32c(part));
            let crc = 0x1234_5678 + len as u32;
            assert_eq!(crc32c_append(crc, part), crc32c::crc32c_append(crc, part));
        }
    }

    #[test]
    fn appending_parts_gives_the_digest_of_the_whole() {
        let bytes: [u8; 200] = core::array::from_fn(|i| (i * 7) as u8);
        for cut in 0..bytes.len() {
            assert_eq!(crc32c_append(crc32c(&bytes[..cut]), &bytes[cut..]), crc32c(&bytes));
            let mut parts = DataDigest::default();
            parts.update(&bytes[..cut]);
            parts.update(&bytes[cut..]);
            assert_eq!(parts.finish(), crc32c(&bytes).to_le_bytes());
        }
    }
}
