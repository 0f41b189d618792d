//! AES-GCM, from the library that is faster on this processor (decision 26).
//!
//! Both modules read one buffer and write another. `wide` does this in one pass, with the widest
//! instructions. `narrow` copies the data first. It is for all other processors and systems.

mod narrow;
#[cfg(all(feature = "wide", target_arch = "x86_64", target_os = "linux"))]
mod wide;

use super::TAG_BYTES;
use farblock_secure::Hash;

/// The length of a nonce, in bytes.
pub(super) const NONCE_BYTES: usize = 12;

/// An AES-GCM key.
pub(super) enum Cipher {
    Narrow(narrow::Key),
    #[cfg(all(feature = "wide", target_arch = "x86_64", target_os = "linux"))]
    Wide(wide::Key),
}

/// A record to encrypt, without padding.
pub(super) struct Sealing<'a> {
    pub(super) nonce: [u8; NONCE_BYTES],
    pub(super) header: &'a [u8],
    /// The content, in a different buffer from the record's body.
    pub(super) content: &'a [u8],
    pub(super) kind: u8,
}

impl Cipher {
    /// Returns the length of a key in bytes. `None` if no cipher suite has the hash.
    pub(super) fn key_bytes(hash: Hash) -> Option<usize> {
        match hash {
            Hash::Sha256 => Some(16),
            Hash::Sha384 => Some(32),
            Hash::Sha512 => None,
        }
    }

    /// Prepares a key for the library that is faster on this processor.
    pub(super) fn new(key: &[u8]) -> Option<Self> {
        #[cfg(all(feature = "wide", target_arch = "x86_64", target_os = "linux"))]
        if wide::is_fast() {
            return wide::Key::new(key).map(Self::Wide);
        }
        narrow::Key::new(key).map(Self::Narrow)
    }

    /// Encrypts content and type into a record's `body`, which is as long as both plus the tag.
    pub(super) fn seal(&self, what: &Sealing<'_>, body: &mut [u8]) -> Option<()> {
        assert!(body.len() == what.content.len() + 1 + TAG_BYTES, "the body has another length");
        match self {
            Self::Narrow(key) => key.seal(what, body),
            #[cfg(all(feature = "wide", target_arch = "x86_64", target_os = "linux"))]
            Self::Wide(key) => key.seal(what, body),
        }
    }

    /// Encrypts the content that is already in a record's `body`, before the tag.
    pub(super) fn seal_in_place(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        body: &mut [u8],
    ) -> Option<()> {
        match self {
            Self::Narrow(key) => key.seal_in_place(nonce, header, body),
            #[cfg(all(feature = "wide", target_arch = "x86_64", target_os = "linux"))]
            Self::Wide(key) => key.seal_in_place(nonce, header, body),
        }
    }

    /// Decrypts a record's `body` into `plain`, which has the same length. Returns the number of
    /// decrypted bytes: the body without the tag.
    pub(super) fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        header: &[u8],
        body: &[u8],
        plain: &mut [u8],
    ) -> Option<usize> {
        assert!(
            plain.len() == body.len(),
            "the buffer has {} bytes instead of {}",
            plain.len(),
            body.len()
        );
        match self {
            Self::Narrow(key) => key.open(nonce, header, body, plain),
            #[cfg(all(feature = "wide", target_arch = "x86_64", target_os = "linux"))]
            Self::Wide(key) => key.open(nonce, header, body, plain),
        }
    }
}

#[cfg(all(test, feature = "wide", target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use super::*;

    const NONCE: [u8; NONCE_BYTES] = [9; NONCE_BYTES];
    const HEADER: [u8; 5] = [23, 3, 3, 1, 2];

    /// Returns a key for each library. Both libraries run on any processor. If the processor lacks
    /// instructions, they use slower code.
    fn both(key_bytes: usize) -> [Cipher; 2] {
        let key: Vec<u8> = (0..key_bytes as u8).collect();
        [
            Cipher::Narrow(narrow::Key::new(&key).expect("a suite")),
            Cipher::Wide(wide::Key::new(&key).expect("a suite")),
        ]
    }

    #[test]
    fn one_library_opens_records_that_the_other_sealed() {
        for (key_bytes, length) in [(16, 0), (16, 1), (32, 15), (16, 4096), (32, 16_362)] {
            let content: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let what = Sealing { nonce: NONCE, header: &HEADER, content: &content, kind: 23 };
            let ciphers = both(key_bytes);
            let sealed: Vec<Vec<u8>> = ciphers
                .iter()
                .map(|cipher| {
                    let mut body = vec![0; length + 1 + TAG_BYTES];
                    cipher.seal(&what, &mut body).expect("the data is sealed");
                    let mut in_place = [&content[..], &[23], &[0; TAG_BYTES]].concat();
                    cipher.seal_in_place(NONCE, &HEADER, &mut in_place).expect("sealed");
                    assert_eq!(body, in_place, "{length}");
                    body
                })
                .collect();
            assert_eq!(sealed[0], sealed[1], "{length}");
            for cipher in &ciphers {
                let mut plain = vec![0; sealed[0].len()];
                let opened = cipher.open(NONCE, &HEADER, &sealed[0], &mut plain);
                assert_eq!(opened, Some(length + 1));
                assert_eq!((&plain[..length], plain[length]), (&content[..], 23));
            }
        }
    }

    #[test]
    fn a_changed_record_is_not_opened_and_its_plaintext_is_erased() {
        for cipher in both(16) {
            let what = Sealing { nonce: NONCE, header: &HEADER, content: &[7; 300], kind: 23 };
            let mut body = vec![0; 301 + TAG_BYTES];
            cipher.seal(&what, &mut body).expect("the data is sealed");
            for at in [0, 150, 300, 301, 301 + TAG_BYTES - 1] {
                let mut changed = body.clone();
                changed[at] ^= 1;
                let mut plain = vec![0; body.len()];
                assert_eq!(cipher.open(NONCE, &HEADER, &changed, &mut plain), None, "{at}");
                assert!(!plain.windows(8).any(|bytes| bytes == [7; 8]), "{at}");
            }
            let mut plain = vec![0; body.len()];
            assert_eq!(cipher.open([8; NONCE_BYTES], &HEADER, &body, &mut plain), None);
            assert_eq!(cipher.open(NONCE, &[23, 3, 3, 1, 3], &body, &mut plain), None);
            assert_eq!(
                cipher.open(NONCE, &HEADER, &body[..TAG_BYTES - 1], &mut plain[..TAG_BYTES - 1]),
                None
            );
        }
    }

    #[test]
    fn keys_of_other_lengths_are_refused() {
        for key_bytes in [0, 15, 17, 24, 48] {
            let key = vec![1; key_bytes];
            assert!(narrow::Key::new(&key).is_none() && wide::Key::new(&key).is_none());
        }
    }
}
