//! The keys of one direction. They encrypt or decrypt the direction's records (RFC 8446, sections
//! 5.2, 5.3, 7.2 and 7.3).

use super::cipher::{Cipher, NONCE_BYTES, Sealing};
use super::{HEADER_BYTES, TAG_BYTES};
use farblock_secure::Hash;
use ring::hkdf;
use zeroize::Zeroizing;

/// The type and version in every record's header.
const SHOWN: [u8; 3] = [super::APPLICATION, 3, 3];
/// The prefix of every label of HKDF-Expand-Label.
const PREFIX: &[u8] = b"tls13 ";

/// The keys and the record count of one direction of a connection.
pub(super) struct Direction {
    hash: Hash,
    secret: Zeroizing<Vec<u8>>,
    key: Cipher,
    iv: [u8; NONCE_BYTES],
    /// The number of records encrypted or decrypted with the current key.
    sequence: u64,
}

/// The number of bytes to derive.
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Direction {
    /// Returns a direction with a secret of the handshake. `None` if no cipher suite has the hash.
    pub(super) fn new(hash: Hash, secret: Zeroizing<Vec<u8>>) -> Option<Self> {
        let mut key = Zeroizing::new(vec![0; Cipher::key_bytes(hash)?]);
        expand(hash, &secret, b"key", &mut key)?;
        let mut iv = [0; NONCE_BYTES];
        expand(hash, &secret, b"iv", &mut iv)?;
        let key = Cipher::new(&key)?;
        Some(Self { hash, secret, key, iv, sequence: 0 })
    }

    /// Returns the direction with its next keys, after a key update.
    pub(super) fn updated(&self) -> Option<Self> {
        let mut secret = Zeroizing::new(vec![0; self.secret.len()]);
        expand(self.hash, &self.secret, b"traffic upd", &mut secret)?;
        Self::new(self.hash, secret)
    }

    /// Returns the number of records encrypted or decrypted with the current key.
    pub(super) fn records(&self) -> u64 {
        self.sequence
    }

    /// Returns a nonce that this key has never used. `None` if all nonces are used.
    fn nonce(&mut self) -> Option<[u8; NONCE_BYTES]> {
        let mut bytes = self.iv;
        for (byte, number) in bytes[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence = self.sequence.checked_add(1)?;
        Some(bytes)
    }

    /// Encrypts a record in place: the content is already between the header and the tag.
    pub(super) fn seal(&mut self, record: &mut [u8]) -> Option<()> {
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        show(header, body.len())?;
        let nonce = self.nonce()?;
        self.key.seal_in_place(nonce, header, body)
    }

    /// Encrypts `content`, which is in a different buffer, into a record without padding.
    pub(super) fn seal_from(&mut self, kind: u8, content: &[u8], record: &mut [u8]) -> Option<()> {
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let body = &mut body[..content.len() + 1 + TAG_BYTES];
        show(header, body.len())?;
        let nonce = self.nonce()?;
        self.key.seal(&Sealing { nonce, header, content, kind }, body)
    }

    /// Decrypts the body of a record into `plain`, which has the same length. Returns the number of
    /// decrypted bytes: the body without the tag.
    pub(super) fn open(&mut self, header: &[u8], body: &[u8], plain: &mut [u8]) -> Option<usize> {
        let nonce = self.nonce()?;
        self.key.open(nonce, header, body, plain)
    }
}

/// Writes a record's header.
fn show(header: &mut [u8], body_bytes: usize) -> Option<()> {
    header[..SHOWN.len()].copy_from_slice(&SHOWN);
    header[SHOWN.len()..].copy_from_slice(&u16::try_from(body_bytes).ok()?.to_be_bytes());
    Some(())
}

/// Computes HKDF-Expand-Label without a context (RFC 8446, section 7.1).
fn expand(hash: Hash, secret: &[u8], label: &[u8], into: &mut [u8]) -> Option<()> {
    let algorithm = match hash {
        Hash::Sha256 => hkdf::HKDF_SHA256,
        Hash::Sha384 => hkdf::HKDF_SHA384,
        Hash::Sha512 => hkdf::HKDF_SHA512,
    };
    let length = u16::try_from(into.len()).ok()?.to_be_bytes();
    let label_bytes = [u8::try_from(PREFIX.len() + label.len()).ok()?];
    let info = [&length[..], &label_bytes, PREFIX, label, &[0]];
    let key = hkdf::Prk::new_less_safe(algorithm, secret);
    key.expand(&info, Length(into.len())).ok()?.fill(into).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8448, section 3: the secret of the client's direction, and the client's first record.
    const SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
    const RECORD: &str = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819\
                          a8a5b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb2169\
                          4915e4";

    fn bytes(hex: &str) -> Vec<u8> {
        let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        (0..hex.len()).step_by(2).map(pair).collect()
    }

    fn direction() -> Direction {
        Direction::new(Hash::Sha256, Zeroizing::new(bytes(SECRET))).expect("a supported suite")
    }

    #[test]
    fn a_sealed_record_matches_the_specification() {
        let record = bytes(RECORD);
        let inner: Vec<u8> = (0..50).chain([super::super::APPLICATION]).collect();
        let mut sealed = vec![0; record.len()];
        sealed[HEADER_BYTES..][..inner.len()].copy_from_slice(&inner);
        direction().seal(&mut sealed).expect("room for all bytes");
        assert_eq!(sealed, record);
        let (content, kind) = (&inner[..50], inner[50]);
        let mut elsewhere = vec![0; record.len()];
        direction().seal_from(kind, content, &mut elsewhere).expect("room for all bytes");
        assert_eq!(elsewhere, record);
        let (header, body) = record.split_at(HEADER_BYTES);
        let mut plain = vec![0; body.len()];
        assert_eq!(direction().open(header, body, &mut plain), Some(inner.len()));
        assert_eq!(plain[..inner.len()], inner);
    }

    #[test]
    fn each_record_and_each_key_update_uses_another_key_stream() {
        let sealed = |direction: &mut Direction| {
            let mut record = vec![0; 64];
            direction.seal(&mut record).expect("room for all bytes");
            record
        };
        let mut first = direction();
        let mut updated = first.updated().expect("a supported suite");
        let records = [sealed(&mut first), sealed(&mut first), sealed(&mut updated)];
        assert!(records[0] != records[1] && records[0] != records[2] && records[1] != records[2]);
    }
}
