//! TLS 1.3 keys in their text form, `NVMeTLSkey-1:hh:base64(key ‖ CRC-32):`, and the pre-shared
//! keys that are derived from them (NVMe/TCP Transport 1.1, "PSK Identities and PSKs").
//!
//! ```text
//!  configured key --HKDF "tls13 HostNQN", host--> retained key --HKDF "tls13 nvme-tls-psk"--> PSK
//! ```

use crate::form::{Form, Problem};
use crate::{Entropy, Hash};
use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use base64ct::{Base64, Encoding};
use core::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The text form of a TLS key.
const FORM: Form = Form { prefix: "NVMeTLSkey-1:", hashes: &Hash::OF_SUITES, key_bytes_max: 48 };
/// The length of the longest label or context of HKDF-Expand-Label, in bytes (RFC 8446, section
/// 7.1).
const CONTEXT_BYTES_MAX: usize = 255;
/// The label that derives a retained key.
const RETAINED_LABEL: &str = "tls13 HostNQN";
/// The label that derives a pre-shared key.
const PSK_LABEL: &str = "tls13 nvme-tls-psk";

/// A key for TLS. It is never printed, and it is wiped from memory when dropped.
#[derive(Clone)]
pub struct TlsKey {
    key: Zeroizing<Vec<u8>>,
    hash: Option<Hash>,
    /// The identity, if the key already is a pre-shared key for one host and one subsystem.
    identity: Option<String>,
}

/// The form of an identity: with or without a digest after the two names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdentityForm {
    /// `NVMe0Rhh HOST SUBSYSTEM`. SPDK supports only this form.
    Names,
    /// `NVMe1Rhh HOST SUBSYSTEM DIGEST`. The digest distinguishes keys.
    Digest,
}

/// The derivation of a pre-shared key. A peer that offers an identity without a digest may have
/// used any of these derivations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Derivation {
    /// The specified derivation: HKDF-Expand-Label.
    Specified,
    /// The derivation of old versions of libnvme, and of new ones with `--compat`. It omits the
    /// lengths of label and context, and the length of the key is little-endian.
    Compatible,
    /// The derivation with which Linux 6.15 to 6.17 derive a key from an authentication. It omits
    /// the lengths of label and context.
    Unframed,
    /// The caller supplied a pre-shared key that was derived elsewhere.
    Given,
}

/// A pre-shared key and its identity.
#[derive(Clone)]
pub struct TlsPsk {
    /// The identity that appears on the wire.
    pub identity: String,
    /// The bytes of the key.
    pub key: Zeroizing<Vec<u8>>,
    /// The hash of the cipher suite for this key.
    pub hash: Hash,
    /// The derivation of the key.
    pub derivation: Derivation,
}

impl TlsKey {
    /// Generates a random key for the cipher suite with `hash`.
    ///
    /// # Errors
    /// Fails if there is no cipher suite with this hash.
    pub fn generate(hash: Hash, entropy: &mut dyn Entropy) -> Result<Self, TlsKeyError> {
        let mut key = Zeroizing::new(alloc::vec![0; hash.bytes()]);
        check(key.len(), Some(hash))?;
        entropy.fill(&mut key);
        Ok(Self { key, hash: Some(hash), identity: None })
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// Fails if the text is not valid. The error never contains a part of the key.
    pub fn parse(text: &str) -> Result<Self, TlsKeyError> {
        let (key, hash) = FORM.parse(text, check)?;
        Ok(Self { key, hash, identity: None })
    }

    /// Returns a key for a supplied pre-shared key. It is valid only for the names in its identity.
    #[must_use]
    pub fn given(psk: TlsPsk) -> Self {
        Self { key: psk.key, hash: None, identity: Some(psk.identity) }
    }

    /// Returns the text form, for a file or the operator. A [given](Self::given) key has no text
    /// form, so its text is not usable.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        FORM.text(&self.key, self.hash)
    }

    /// Returns whether the key already is a retained key (`00`).
    #[must_use]
    pub fn is_retained(&self) -> bool {
        self.hash.is_none()
    }

    /// Returns the hash of the key's cipher suite. SHA-256 stands for `TLS_AES_128_GCM_SHA256`, and
    /// SHA-384 for `TLS_AES_256_GCM_SHA384`.
    #[must_use]
    pub fn suite(&self) -> Hash {
        match self.key.len() {
            32 => Hash::Sha256,
            _ => Hash::Sha384,
        }
    }

    /// Returns every pre-shared key that a peer may derive from this key for a host and a
    /// subsystem. The most specific identities are first.
    #[must_use]
    pub fn psks(&self, host: &str, subsystem: &str) -> Vec<TlsPsk> {
        if let Some(identity) = &self.identity {
            let is_it = TlsPsk::is_for(identity, host, subsystem);
            return is_it
                .then(|| TlsPsk::given(identity, &self.key))
                .flatten()
                .into_iter()
                .collect();
        }
        let mut psks: Vec<TlsPsk> = Vec::new();
        for form in [IdentityForm::Digest, IdentityForm::Names] {
            for derivation in [Derivation::Specified, Derivation::Compatible] {
                psks.extend(self.psk(host, subsystem, form, derivation));
            }
        }
        psks
    }

    /// Returns the pre-shared key for a host and a subsystem. `None` if the names are too long, or
    /// if this is a [given](Self::given) key.
    #[must_use]
    pub fn psk(
        &self,
        host: &str,
        subsystem: &str,
        form: IdentityForm,
        derivation: Derivation,
    ) -> Option<TlsPsk> {
        if self.identity.is_some() {
            return None;
        }
        let hash = self.suite();
        let retained = match self.hash {
            None => self.key.clone(),
            Some(_) => derivation.expand(hash, &self.key, RETAINED_LABEL, host)?,
        };
        let id = hash.id();
        let names = format!("{host} {subsystem}");
        let (identity, context) = match form {
            IdentityForm::Names => {
                let identity = format!("NVMe0R{id:02} {names}");
                (identity.clone(), identity)
            }
            IdentityForm::Digest => {
                let (digest, context) = digest(hash, &retained, &names);
                (format!("NVMe1R{id:02} {names} {digest}"), context)
            }
        };
        let key = derivation.expand(hash, &retained, PSK_LABEL, &context)?;
        Some(TlsPsk { identity, key, hash, derivation })
    }
}

impl TlsPsk {
    /// Returns the pre-shared keys of an authentication (Base 2.1, "Generated PSK for TLS"). The
    /// input of their derivation is an HMAC of both challenges, keyed with the session key. This
    /// HMAC takes the place of a retained key. The key with the specified derivation is first. The
    /// list is empty if the names are too long, or if no cipher suite has the hash.
    pub(crate) fn generated(
        hash: Hash,
        session_key: &[u8],
        challenges: [&[u8]; 2],
        host: &str,
        subsystem: &str,
    ) -> Vec<TlsPsk> {
        if !Hash::OF_SUITES.contains(&hash) {
            return Vec::new();
        }
        let generated = hash.hmac(session_key, &challenges);
        let names = format!("{host} {subsystem}");
        let (digest, context) = digest(hash, &generated, &names);
        let identity = format!("NVMe1G{:02} {names} {digest}", hash.id());
        let with = |derivation: Derivation| {
            let key = derivation.expand(hash, &generated, PSK_LABEL, &context)?;
            Some(TlsPsk { identity: identity.clone(), key, hash, derivation })
        };
        [Derivation::Specified, Derivation::Unframed].into_iter().filter_map(with).collect()
    }

    /// Returns a pre-shared key that the caller supplies, with its identity. `None` if the identity
    /// is not valid, or if the length of the key differs from the length of the identity's hash.
    #[must_use]
    pub fn given(identity: &str, key: &[u8]) -> Option<Self> {
        let hash = identity_hash(identity)?;
        let fits = key.len() == hash.bytes();
        fits.then(|| Self {
            identity: identity.to_owned(),
            key: Zeroizing::new(key.to_vec()),
            hash,
            derivation: Derivation::Given,
        })
    }

    /// Returns whether an identity has the form for configured keys, and names this host and
    /// subsystem.
    #[must_use]
    pub fn is_for(identity: &str, host: &str, subsystem: &str) -> bool {
        let mut parts = identity.split(' ').skip(1);
        identity_hash(identity).is_some()
            && parts.next() == Some(host)
            && parts.next() == Some(subsystem)
    }

    /// Returns whether an authentication generated the key.
    #[must_use]
    pub fn is_generated(&self) -> bool {
        self.identity.starts_with("NVMe1G")
    }
}

/// Returns the hash in the identity of a configured key; `None` for any other identity.
fn identity_hash(identity: &str) -> Option<Hash> {
    let (form, _) = identity.split_once(' ')?;
    let id = form.strip_prefix("NVMe0R").or(form.strip_prefix("NVMe1R"))?;
    let hash = Hash::OF_SUITES.into_iter().find(|hash| id == format!("{:02}", hash.id()))?;
    (identity.split(' ').count() == if form.starts_with("NVMe0") { 3 } else { 4 }).then_some(hash)
}

/// Returns the digest that distinguishes keys in an identity, and the context that derives the key.
fn digest(hash: Hash, key: &[u8], names: &str) -> (String, String) {
    let digest = hash.hmac(key, &[names.as_bytes(), b" NVMe-over-Fabrics"]);
    let digest = Base64::encode_string(&digest);
    let context = format!("{:02} {digest}", hash.id());
    (digest, context)
}

impl Derivation {
    /// Derives from `key` a key with the length of the hash: HKDF-Extract without a salt, then one
    /// block of HKDF-Expand (RFC 5869).
    fn expand(
        self,
        hash: Hash,
        key: &[u8],
        label: &str,
        context: &str,
    ) -> Option<Zeroizing<Vec<u8>>> {
        if context.len() > CONTEXT_BYTES_MAX || self == Derivation::Given {
            return None;
        }
        const BLOCK: [u8; 1] = [1];
        let length = hash.bytes() as u16;
        let (label_bytes, context_bytes) = ([label.len() as u8], [context.len() as u8]);
        let (label, context) = (label.as_bytes(), context.as_bytes());
        let pseudorandom = hash.hmac(&[], &[key]);
        Some(match self {
            Derivation::Specified => hash.hmac(
                &pseudorandom,
                &[&length.to_be_bytes(), &label_bytes, label, &context_bytes, context, &BLOCK],
            ),
            Derivation::Compatible => {
                hash.hmac(&pseudorandom, &[&length.to_le_bytes(), label, context, &BLOCK])
            }
            Derivation::Unframed | Derivation::Given => {
                hash.hmac(&pseudorandom, &[&length.to_be_bytes(), label, context, &BLOCK])
            }
        })
    }
}

impl fmt::Display for Derivation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Derivation::Specified => "as specified",
            Derivation::Compatible => "as with nvme-cli's --compat",
            Derivation::Unframed => "as with Linux 6.15 to 6.17",
            Derivation::Given => "as stored in the keyring",
        })
    }
}

impl PartialEq for TlsKey {
    fn eq(&self, other: &Self) -> bool {
        let is_as = self.hash == other.hash && self.identity == other.identity;
        is_as && self.key.as_slice().ct_eq(&other.key).into()
    }
}

impl Eq for TlsKey {}

impl PartialEq for TlsPsk {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity && bool::from(self.key.as_slice().ct_eq(&other.key))
    }
}

impl Eq for TlsPsk {}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsKey({} bytes)", self.key.len())
    }
}

impl fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsPsk({})", self.identity)
    }
}

/// Checks that a key is as long as the hash of its cipher suite.
fn check(bytes: usize, hash: Option<Hash>) -> Result<(), TlsKeyError> {
    match hash {
        _ if bytes != 32 && bytes != 48 => Err(TlsKeyError::Length(bytes)),
        Some(hash) if hash.bytes() != bytes => Err(TlsKeyError::Mismatch { bytes, hash }),
        _ => Ok(()),
    }
}

/// The reason why the text of a key is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsKeyError {
    /// The prefix is not `NVMeTLSkey-1:`.
    Prefix,
    /// The text lacks one of its parts.
    Form,
    /// The hash is not in the range 00 to 02.
    Hash,
    /// The base64 part is invalid.
    Base64,
    /// This number of bytes is not a valid length.
    Length(usize),
    /// The length of the key differs from the length of its hash.
    Mismatch {
        /// The length of the key, in bytes.
        bytes: usize,
        /// The hash in the text.
        hash: Hash,
    },
    /// The checksum does not match.
    Checksum,
}

impl From<Problem> for TlsKeyError {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Prefix => Self::Prefix,
            Problem::TooLong(_) | Problem::Form => Self::Form,
            Problem::Hash => Self::Hash,
            Problem::Base64 => Self::Base64,
            Problem::Empty => Self::Length(0),
            Problem::Checksum => Self::Checksum,
        }
    }
}

impl fmt::Display for TlsKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix => f.write_str("the key does not start with NVMeTLSkey-1:"),
            Self::Form => f.write_str(
                "the key does not have the form NVMeTLSkey-1:hh:BASE64: with its last colon",
            ),
            Self::Hash => f.write_str("the key's hash is not 00, 01 or 02"),
            Self::Base64 => f.write_str("the key is not base64: a character is missing or wrong"),
            Self::Length(bytes) => {
                write!(f, "the key has {bytes} bytes instead of 32 or 48")
            }
            Self::Mismatch { bytes, hash } => {
                write!(f, "the key has {bytes} bytes, but a key for {hash} has {}", hash.bytes())
            }
            Self::Checksum => {
                f.write_str("the key's checksum does not match: a character is wrong or missing")
            }
        }
    }
}

impl core::error::Error for TlsKeyError {}
