//! The hash functions of DH-HMAC-CHAP, and HMAC with these functions.

use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use farblock_wire::auth::HashId;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

/// The output of a hash function or HMAC. It is wiped when dropped, since it may be as sensitive as
/// a secret.
pub(crate) type Digested = Zeroizing<Vec<u8>>;

/// A hash function of DH-HMAC-CHAP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All hash functions, cheapest first.
    pub const ALL: [Hash; 3] = [Hash::Sha256, Hash::Sha384, Hash::Sha512];

    /// The hash functions that TLS cipher suites use.
    pub(crate) const OF_SUITES: [Hash; 2] = [Hash::Sha256, Hash::Sha384];

    /// Returns the hash function with this identifier (HashID).
    #[must_use]
    pub fn from_id(id: u8) -> Option<Hash> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Returns the identifier of the hash function (HashID).
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Hash::Sha256 => HashId::SHA256.0,
            Hash::Sha384 => HashId::SHA384.0,
            Hash::Sha512 => HashId::SHA512.0,
        }
    }

    /// Returns the hash function with this name, in any usual spelling: `sha256`, `SHA-256`,
    /// `hmac(sha256)`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Hash> {
        let name = name.strip_prefix("hmac(").and_then(|n| n.strip_suffix(')')).unwrap_or(name);
        let is_it = |hash: &Hash| {
            let plain = |text: &str| text.replace('-', "").to_ascii_lowercase();
            plain(name) == plain(hash.name())
        };
        Self::ALL.into_iter().find(is_it)
    }

    /// Returns the name of the hash function.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Hash::Sha256 => "SHA-256",
            Hash::Sha384 => "SHA-384",
            Hash::Sha512 => "SHA-512",
        }
    }

    /// Returns the length of a hash value, in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Returns the hash of `data`.
    pub(crate) fn digest(self, data: &[u8]) -> Digested {
        let digested = match self {
            Hash::Sha256 => Sha256::digest(data).to_vec(),
            Hash::Sha384 => Sha384::digest(data).to_vec(),
            Hash::Sha512 => Sha512::digest(data).to_vec(),
        };
        Zeroizing::new(digested)
    }

    /// Returns the HMAC of the concatenated parts.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Digested {
        match self {
            Hash::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Hash::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            Hash::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digested {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    Zeroizing::new(mac.finalize().into_bytes().to_vec())
}

impl FromStr for Hash {
    /// A text that lists the valid names.
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Hash, &'static str> {
        Hash::from_name(name).ok_or("use sha256, sha384 or sha512")
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
