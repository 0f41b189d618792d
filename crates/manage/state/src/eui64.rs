//! The text form of an EUI-64.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The number of hexadecimal digits of an EUI-64.
const DIGITS: usize = 16;

/// An EUI-64. In documents it has 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Eui64(pub [u8; 8]);

impl Eui64 {
    /// Whether all bits are zero, which means that there is no EUI-64.
    #[must_use]
    pub fn is_nil(self) -> bool {
        self.0 == [0; 8]
    }
}

impl fmt::Display for Eui64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Eui64 {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_hex = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
        let number =
            number.ok_or("an EUI-64 has 16 hexadecimal digits, for example 0011223344556677")?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl TryFrom<String> for Eui64 {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Eui64> for String {
    fn from(id: Eui64) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eui64_has_sixteen_hexadecimal_digits() {
        let id: Eui64 = "001A22FF44556677".parse().unwrap();
        assert_eq!(id.0, [0, 0x1a, 0x22, 0xff, 0x44, 0x55, 0x66, 0x77]);
        assert_eq!(id.to_string(), "001a22ff44556677");
        for text in ["", "12", "+01A22FF44556677", "001A22FF445566778", "g01A22FF44556677"] {
            assert!(text.parse::<Eui64>().is_err(), "{text}");
        }
    }
}
