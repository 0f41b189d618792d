//! Diffie-Hellman in the finite field groups of RFC 7919.
//!
//! Private exponents are short, as RFC 7919 (section 5.2) allows: they have at least twice as many
//! bits as the group's security strength.
//! With such short exponents, a controller can afford the calculation for the larger groups even
//! for unknown hosts.

use crate::Entropy;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use farblock_wire::auth::GroupId;
use zeroize::Zeroizing;

mod primes;

/// A Diffie-Hellman group of DH-HMAC-CHAP.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Group {
    /// No Diffie-Hellman exchange. The response uses the challenge unchanged.
    Null,
    /// The group with 2048 bits.
    Ffdhe2048,
    /// The group with 3072 bits.
    Ffdhe3072,
    /// The group with 4096 bits.
    Ffdhe4096,
    /// The group with 6144 bits.
    Ffdhe6144,
    /// The group with 8192 bits.
    Ffdhe8192,
}

impl Group {
    /// All groups: first the groups with an exchange, cheapest first, and then the NULL group.
    pub const ALL: [Group; 6] = [
        Group::Ffdhe2048,
        Group::Ffdhe3072,
        Group::Ffdhe4096,
        Group::Ffdhe6144,
        Group::Ffdhe8192,
        Group::Null,
    ];

    /// Returns the group with this identifier (DHgID).
    #[must_use]
    pub fn from_id(id: u8) -> Option<Group> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Returns the group's identifier (DHgID).
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Group::Null => GroupId::NULL.0,
            Group::Ffdhe2048 => GroupId::FFDHE2048.0,
            Group::Ffdhe3072 => GroupId::FFDHE3072.0,
            Group::Ffdhe4096 => GroupId::FFDHE4096.0,
            Group::Ffdhe6144 => GroupId::FFDHE6144.0,
            Group::Ffdhe8192 => GroupId::FFDHE8192.0,
        }
    }

    /// Returns the group with this name, such as `null` or `ffdhe2048`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Group> {
        Self::ALL.into_iter().find(|group| group.name().eq_ignore_ascii_case(name))
    }

    /// Returns the group's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Group::Null => "null",
            Group::Ffdhe2048 => "ffdhe2048",
            Group::Ffdhe3072 => "ffdhe3072",
            Group::Ffdhe4096 => "ffdhe4096",
            Group::Ffdhe6144 => "ffdhe6144",
            Group::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// Returns the length of a public value in bytes; 0 for the NULL group.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
            Group::Ffdhe4096 => 512,
            Group::Ffdhe6144 => 768,
            Group::Ffdhe8192 => 1024,
        }
    }

    /// Returns the length of a private exponent in bits. RFC 7919 defines it (section 5.2 and
    /// appendix A); this function rounds up to whole words.
    const fn exponent_bits(self) -> u32 {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 320,
            Group::Ffdhe4096 | Group::Ffdhe6144 => 384,
            Group::Ffdhe8192 => 448,
        }
    }

    /// Returns the cost of a modular exponentiation, in thousands of word multiplications. The cost
    /// is 1 for the NULL group.
    pub(crate) const fn cost(self) -> u64 {
        let words = self.bytes() as u64 / 8;
        1 + words * words * self.exponent_bits() as u64 / 1000
    }

    const fn prime(self) -> &'static str {
        match self {
            Group::Null => "",
            Group::Ffdhe2048 => primes::FFDHE2048,
            Group::Ffdhe3072 => primes::FFDHE3072,
            Group::Ffdhe4096 => primes::FFDHE4096,
            Group::Ffdhe6144 => primes::FFDHE6144,
            Group::Ffdhe8192 => primes::FFDHE8192,
        }
    }

    const fn bits(self) -> u32 {
        8 * self.bytes() as u32
    }

    fn modulus(self) -> Odd<BoxedUint> {
        let prime = BoxedUint::from_be_hex(self.prime(), self.bits());
        let prime: Option<BoxedUint> = prime.into();
        Odd::new(prime.expect("a constant")).into_option().expect("a prime")
    }

    fn number(self, bytes: &[u8]) -> Option<BoxedUint> {
        BoxedUint::from_be_slice(bytes, self.bits()).ok()
    }

    /// Returns base^exponent modulo the prime, padded to the length of the group.
    fn power(self, base: BoxedUint, exponent: &[u8]) -> Zeroizing<Vec<u8>> {
        let bits = self.exponent_bits();
        let exponent = BoxedUint::from_be_slice(exponent, bits).expect("the lengths match");
        let exponent = Zeroizing::new(exponent);
        let parameters = BoxedMontyParams::new(self.modulus());
        let base = BoxedMontyForm::new(base, &parameters);
        let power = Zeroizing::new(base.pow_bounded_exp(&exponent, bits).retrieve());
        let bytes = Zeroizing::new(power.to_be_bytes().into_vec());
        debug_assert_eq!(
            bytes.len(),
            self.bytes(),
            "the value is not padded to the length of the group"
        );
        bytes
    }
}

impl FromStr for Group {
    /// A text that lists the valid names.
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Group, &'static str> {
        let names = "use null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192";
        Group::from_name(name).ok_or(names)
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The values of one side of an exchange: a private exponent, and the public value for the other
/// side. Use each pair only once.
pub(crate) struct KeyPair {
    group: Group,
    exponent: Zeroizing<Vec<u8>>,
    public: Vec<u8>,
}

impl KeyPair {
    pub(crate) fn generate(group: Group, entropy: &mut dyn Entropy) -> Self {
        let mut exponent = Zeroizing::new(alloc::vec![0; group.exponent_bits() as usize / 8]);
        entropy.fill(&mut exponent);
        Self::with(group, exponent)
    }

    fn with(group: Group, exponent: Zeroizing<Vec<u8>>) -> Self {
        /// The generator of every group.
        const GENERATOR: u8 = 2;
        let public = match group {
            Group::Null => Vec::new(),
            group => {
                let generator = group.number(&[GENERATOR]).expect("the number is small");
                group.power(generator, &exponent).to_vec()
            }
        };
        Self { group, exponent, public }
    }

    pub(crate) fn group(&self) -> Group {
        self.group
    }

    /// Returns the public value for the other side; empty for the NULL group.
    pub(crate) fn public(&self) -> &[u8] {
        &self.public
    }

    /// Returns the shared secret, padded to the length of the group; `None` for the NULL group.
    /// `theirs` is the other side's public value, most significant byte first.
    pub(crate) fn shared(&self, theirs: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, BadValue> {
        if self.group == Group::Null {
            return if theirs.is_empty() { Ok(None) } else { Err(BadValue) };
        }
        let value = self.group.number(theirs).ok_or(BadValue)?;
        // For the values 0, 1 and p - 1, any eavesdropper would know the shared secret. All valid
        // values are below p.
        let least = self.group.number(&[2]).expect("the number is small");
        let most = self.group.modulus().get().wrapping_sub(&least);
        if theirs.is_empty() || value < least || value > most {
            return Err(BadValue);
        }
        Ok(Some(self.group.power(value, &self.exponent)))
    }
}

/// The other side's public value is not in the group, or would reveal the shared secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadValue;

#[cfg(test)]
mod tests;
