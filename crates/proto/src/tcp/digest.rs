//! CRC32C, the digest of the TCP transport, with the processor's instructions where it has them.

/// CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC32C of what `crc` was taken of, followed by `bytes`.
#[must_use]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3720, B.4: 32 bytes of zeroes, of ones, and counting up.
    #[test]
    fn known_vectors() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let counting: [u8; 32] = core::array::from_fn(|i| i as u8);
        assert_eq!(crc32c(&counting), 0x46dd_794e);
    }

    #[test]
    fn appending_equals_the_whole() {
        let bytes: [u8; 200] = core::array::from_fn(|i| (i * 7) as u8);
        for cut in 0..bytes.len() {
            assert_eq!(crc32c_append(crc32c(&bytes[..cut]), &bytes[cut..]), crc32c(&bytes));
        }
    }
}
