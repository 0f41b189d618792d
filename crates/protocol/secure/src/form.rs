//! The text form of all kinds of keys: a prefix, and then `hh:base64(key ‖ CRC-32):`.

use crate::Hash;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base64ct::{Base64, Encoding};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The length of the checksum, in bytes.
const CRC_BYTES: usize = 4;

/// The text form of one kind of key.
pub(crate) struct Form {
    /// The prefix of the text.
    pub(crate) prefix: &'static str,
    /// The valid values of `hh` besides `00`, which means no hash.
    pub(crate) hashes: &'static [Hash],
    /// The length of the longest key, in bytes.
    pub(crate) key_bytes_max: usize,
}

/// A key, and the hash (`hh`) in its text.
pub(crate) type Key = (Zeroizing<Vec<u8>>, Option<Hash>);

/// The reason why the text of a key is invalid.
pub(crate) enum Problem {
    /// The text has a different prefix.
    Prefix,
    /// The text has this many bytes, which is more than any key's text has.
    TooLong(usize),
    /// The text lacks one of its parts.
    Form,
    /// The hash is not valid for this kind of key.
    Hash,
    /// The base64 part is invalid.
    Base64,
    /// The base64 part contains only the checksum.
    Empty,
    /// The checksum does not match.
    Checksum,
}

impl Form {
    /// Reads a key. `check` checks the length and hash of the key.
    pub(crate) fn parse<E: From<Problem>>(
        &self,
        text: &str,
        check: impl FnOnce(usize, Option<Hash>) -> Result<(), E>,
    ) -> Result<Key, E> {
        let rest = text.strip_prefix(self.prefix).ok_or(Problem::Prefix)?;
        if text.len() > self.text_bytes_max() {
            return Err(Problem::TooLong(text.len()).into());
        }
        let (hash, rest) = rest.split_once(':').ok_or(Problem::Form)?;
        let hash = self.hash(hash).ok_or(Problem::Hash)?;
        let encoded = rest.strip_suffix(':').ok_or(Problem::Form)?;
        let decoded = Base64::decode_vec(encoded).map_err(|_| Problem::Base64)?;
        let mut decoded = Zeroizing::new(decoded);
        let length = decoded.len().checked_sub(CRC_BYTES).ok_or(Problem::Empty)?;
        check(length, hash)?;
        let crc = crc32(&decoded[..length]).to_le_bytes();
        if !bool::from(crc.ct_eq(&decoded[length..])) {
            return Err(Problem::Checksum.into());
        }
        decoded.truncate(length);
        Ok((decoded, hash))
    }

    /// Returns the text of a key.
    pub(crate) fn text(&self, key: &[u8], hash: Option<Hash>) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(key.len() + CRC_BYTES));
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&crc32(key).to_le_bytes());
        let encoded = Zeroizing::new(Base64::encode_string(&bytes));
        let hash = hash.map_or(0, Hash::id);
        Zeroizing::new(format!("{}{hash:02}:{}:", self.prefix, encoded.as_str()))
    }

    fn text_bytes_max(&self) -> usize {
        self.prefix.len() + "hh:".len() + (self.key_bytes_max + CRC_BYTES).div_ceil(3) * 4 + 1
    }

    fn hash(&self, written: &str) -> Option<Option<Hash>> {
        let is_it = |hash: &&Hash| written.as_bytes() == [b'0', b'0' + hash.id()];
        match written {
            "00" => Some(None),
            _ => self.hashes.iter().find(is_it).copied().map(Some),
        }
    }
}

/// Returns the CRC-32 (IEEE 802.3), computed bit by bit. An implementation with a table could
/// reveal the key to another process through the processor's cache.
fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (POLYNOMIAL & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32_matches_the_ieee_check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
