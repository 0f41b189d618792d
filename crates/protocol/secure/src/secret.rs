//! Secrets in their text form: `DHHC-1:hh:base64(key ‖ CRC-32):` (TP 8006, "secret
//! representation"). nvme-cli's `gen-dhchap-key` generates such secrets.

use crate::form::{Form, Problem};
use crate::{Entropy, Hash};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The text form of a secret.
const FORM: Form = Form {
    prefix: "DHHC-1:",
    hashes: &[Hash::Sha256, Hash::Sha384, Hash::Sha512],
    key_bytes_max: 64,
};
/// The text that the transformation appends to the name.
const TRANSFORMATION: &[u8] = b"NVMe-over-Fabrics";

/// A secret of DH-HMAC-CHAP. It is never printed, and it is wiped from memory when dropped.
#[derive(Clone)]
pub struct Secret {
    key: Zeroizing<Vec<u8>>,
    hash: Option<Hash>,
}

impl Secret {
    /// The valid lengths of a secret, in bytes.
    pub const LENGTHS: [usize; 3] = [32, 48, 64];

    /// Generates a random secret of `bytes` bytes. If `hash` is given, both sides transform the
    /// secret with it.
    ///
    /// # Errors
    /// Fails if `bytes` is not a valid length, or does not fit `hash`.
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

    /// Parses the text form.
    ///
    /// # Errors
    /// Fails if the text is not valid. The error never contains a part of the secret.
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let (key, hash) = FORM.parse(text, check_length)?;
        Ok(Self { key, hash })
    }

    /// Returns the text form, for a file or the operator.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        FORM.text(&self.key, self.hash)
    }

    /// Returns the hash that transforms the secret before use, if any.
    #[must_use]
    pub fn hash(&self) -> Option<Hash> {
        self.hash
    }

    /// Returns the length of the secret, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.key.len()
    }

    /// Returns a short hash that does not reveal the secret. Operators can compare it to check that
    /// both ends have the same secret.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        const BYTES: usize = 8;
        let hash = self.hash.map_or(0, Hash::id);
        let digest = Hash::Sha256.hmac(&self.key, &[b"farblock fingerprint", &[hash]]);
        digest[..BYTES].iter().map(|byte| alloc::format!("{byte:02x}")).collect()
    }

    /// Returns the key that the host or subsystem named `nqn` uses.
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

/// Checks the length of a secret. A secret that is transformed must be as long as the output of its
/// hash, since other implementations reject other lengths.
fn check_length(bytes: usize, hash: Option<Hash>) -> Result<(), SecretError> {
    if !Secret::LENGTHS.contains(&bytes) {
        return Err(SecretError::Length(bytes));
    }
    match hash {
        Some(hash) if hash.bytes() != bytes => Err(SecretError::Mismatch { bytes, hash }),
        _ => Ok(()),
    }
}

/// The reason why the text of a secret is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SecretError {
    /// The prefix is not `DHHC-1:`.
    Prefix,
    /// The text lacks one of its parts.
    Form,
    /// The hash is not in the range 00 to 03.
    Hash,
    /// The base64 part is invalid.
    Base64,
    /// This number of bytes is not a valid length.
    Length(usize),
    /// The length of a transformed secret differs from the length of its hash.
    Mismatch {
        /// The length of the key, in bytes.
        bytes: usize,
        /// The hash in the text.
        hash: Hash,
    },
    /// The checksum does not match.
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
            Self::Prefix => f.write_str("the secret does not start with DHHC-1:"),
            Self::Form => f.write_str(
                "the secret does not have the form DHHC-1:hh:BASE64: with its last colon",
            ),
            Self::Hash => f.write_str("the secret's hash is not 00, 01, 02 or 03"),
            Self::Base64 => {
                f.write_str("the secret's key is not base64: a character is missing or wrong")
            }
            Self::Length(bytes) => {
                write!(f, "the secret's key has {bytes} bytes instead of 32, 48 or 64")
            }
            Self::Mismatch { bytes, hash } => {
                write!(
                    f,
                    "the secret's key has {bytes} bytes, but a key for {hash} has {}",
                    hash.bytes()
                )
            }
            Self::Checksum => {
                f.write_str("the secret's checksum does not match: a character is wrong or missing")
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
    fn debug_output_hides_the_secret() {
        let secret = Secret::generate(32, None, &mut |out: &mut [u8]| out.fill(0x41)).unwrap();
        assert_eq!(std::format!("{secret:?}"), "Secret(32 bytes)");
    }

    #[test]
    fn fingerprints_distinguish_secrets() {
        let secret = |byte: u8, hash| {
            Secret::generate(32, hash, &mut |out: &mut [u8]| out.fill(byte)).unwrap().fingerprint()
        };
        let all = [secret(1, None), secret(2, None), secret(1, Some(Hash::Sha256))];
        assert!(all[0] != all[1] && all[0] != all[2] && all[0] == secret(1, None));
        assert!(all[0].len() == 16 && !all[0].contains("0101"), "{}", all[0]);
    }

    #[test]
    fn parse_errors_do_not_contain_the_secret() {
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
    fn secrets_of_every_length_round_trip() {
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
