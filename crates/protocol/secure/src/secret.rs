//! Secrets in the form that people pass on: `DHHC-1:hh:base64(key ‖ CRC-32):` (TP 8006, "secret
//! representation"; nvme-cli's `gen-dhchap-key` makes it).

use crate::form::{Form, Problem};
use crate::{Entropy, Hash};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// What the form is.
const FORM: Form = Form {
    prefix: "DHHC-1:",
    hashes: &[Hash::Sha256, Hash::Sha384, Hash::Sha512],
    key_bytes_max: 64,
};
/// What the transformation adds to the name.
const TRANSFORMATION: &[u8] = b"NVMe-over-Fabrics";

/// A secret of DH-HMAC-CHAP. It is never shown, and its memory is cleared when it is dropped.
#[derive(Clone)]
pub struct Secret {
    key: Zeroizing<Vec<u8>>,
    hash: Option<Hash>,
}

impl Secret {
    /// Lengths of keys that there are, in bytes.
    pub const LENGTHS: [usize; 3] = [32, 48, 64];

    /// A new random secret of `bytes` bytes, to be transformed with `hash` before it is used.
    ///
    /// # Errors
    /// When keys of that length, or with that hash, do not exist.
    pub fn generate(
        bytes: usize,
        hash: Option<Hash>,
        entropy: &mut dyn Entropy,
    ) -> Result<Self, SecretError> {
        let mut key = Zeroizing::new(alloc::vec![0; bytes]);
        check_length(bytes, hash)?;
        entropy.fill(&mut key);
        Ok(Self { key, hash })
    }

    /// Reads the form.
    ///
    /// # Errors
    /// What is wrong with it; never with a part of the secret.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let (key, hash) = FORM.parse(text, check_length)?;
        Ok(Self { key, hash })
    }

    /// The form, to be given to a file or a person.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        FORM.text(&self.key, self.hash)
    }

    /// With what it is transformed, if it is.
    #[must_use]
    pub fn hash(&self) -> Option<Hash> {
        self.hash
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.key.len()
    }

    /// Tells it from others without giving it away, for people who compare what two ends have.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        const BYTES: usize = 8;
        let hash = self.hash.map_or(0, Hash::id);
        let digest = Hash::Sha256.hmac(&self.key, &[b"farblock fingerprint", &[hash]]);
        digest[..BYTES].iter().map(|byte| alloc::format!("{byte:02x}")).collect()
    }

    /// The key that is used, of the host or subsystem of this name.
    pub(crate) fn transformed(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.hash {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), TRANSFORMATION]),
        }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.key.as_slice().ct_eq(&other.key).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.key.len())
    }
}

/// A key is as long as a hash value; one that is transformed as that hash's, or it is not
/// interchangeable with others.
fn check_length(bytes: usize, hash: Option<Hash>) -> Result<(), SecretError> {
    if !Secret::LENGTHS.contains(&bytes) {
        return Err(SecretError::Length(bytes));
    }
    match hash {
        Some(hash) if hash.bytes() != bytes => Err(SecretError::Mismatch { bytes, hash }),
        _ => Ok(()),
    }
}

/// What is wrong with a secret's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SecretError {
    /// It begins with something else.
    Prefix,
    /// Its parts are not as they should be.
    Form,
    /// The hash is none of 00 to 03.
    Hash,
    /// What should be base64 is not.
    Base64,
    /// There are no keys of so many bytes.
    Length(usize),
    /// A transformed key is as long as its hash.
    Mismatch {
        /// So long it is.
        bytes: usize,
        /// Its hash.
        hash: Hash,
    },
    /// The checksum is another one.
    Checksum,
}

impl From<Problem> for SecretError {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Prefix => Self::Prefix,
            Problem::TooLong(bytes) => Self::Length(bytes),
            Problem::Form => Self::Form,
            Problem::Hash => Self::Hash,
            Problem::Base64 => Self::Base64,
            Problem::Empty => Self::Length(0),
            Problem::Checksum => Self::Checksum,
        }
    }
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => f.write_str("it does not begin with DHHC-1:"),
            Self::Form => {
                f.write_str("it is not of the form DHHC-1:hh:BASE64: with its last colon")
            }
            Self::Hash => f.write_str("its hash is not one of 00, 01, 02 and 03"),
            Self::Base64 => f.write_str("its key is not base64: a character is missing or wrong"),
            Self::Length(bytes) => {
                write!(f, "its key has {bytes} bytes, and there are only those of 32, 48 and 64")
            }
            Self::Mismatch { bytes, hash } => {
                write!(f, "its key has {bytes} bytes, but one for {hash} has {}", hash.bytes())
            }
            Self::Checksum => {
                f.write_str("its checksum does not match: a character is wrong, or one is missing")
            }
        }
    }
}

impl core::error::Error for SecretError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = Secret::generate(32, None, &mut |out: &mut [u8]| out.fill(0x41)).unwrap();
        assert_eq!(std::format!("{secret:?}"), "Secret(32 bytes)");
    }

    #[test]
    fn a_fingerprint_tells_secrets_apart() {
        let secret = |byte: u8, hash| {
            Secret::generate(32, hash, &mut |out: &mut [u8]| out.fill(byte)).unwrap().fingerprint()
        };
        let all = [secret(1, None), secret(2, None), secret(1, Some(Hash::Sha256))];
        assert!(all[0] != all[1] && all[0] != all[2] && all[0] == secret(1, None));
        assert!(all[0].len() == 16 && !all[0].contains("0101"), "{}", all[0]);
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        let good = Secret::generate(32, None, &mut |out: &mut [u8]| out.fill(0x41)).unwrap();
        let good = good.text();
        let cases: [(String, SecretError); 7] = [
            (good.replace("DHHC-1", "DHHC-2"), SecretError::Prefix),
            (good.trim_end_matches(':').into(), SecretError::Form),
            (good.replace(":00:", ":04:"), SecretError::Hash),
            (good.replace(":00:Q", ":00:!"), SecretError::Base64),
            (good.replace(":00:Q", ":00:R"), SecretError::Checksum),
            ("DHHC-1:00:QUFBQUFBQUE=:".into(), SecretError::Length(4)),
            (good.replace(":00:", ":02:"), SecretError::Mismatch { bytes: 32, hash: Hash::Sha384 }),
        ];
        for (text, error) in cases {
            assert_eq!(Secret::parse(&text).unwrap_err(), error, "{text}");
            assert!(!error.to_string().contains("QUFB"));
        }
        assert!(Secret::parse(&std::format!("DHHC-1:00:{}:", "A".repeat(1 << 20))).is_err());
    }

    #[test]
    fn every_length_goes_there_and_back() {
        for (bytes, hash) in [
            (32, None),
            (48, None),
            (64, None),
            (32, Some(Hash::Sha256)),
            (48, Some(Hash::Sha384)),
            (64, Some(Hash::Sha512)),
        ] {
            let mut next = 0;
            let mut count = |out: &mut [u8]| {
                out.fill_with(|| {
                    next += 1;
                    next
                })
            };
            let secret = Secret::generate(bytes, hash, &mut count).unwrap();
            assert_eq!(Secret::parse(&secret.text()).unwrap(), secret);
        }
    }
}
