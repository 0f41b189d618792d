//! The `key=value` texts of logins and text requests (RFC 7143, section 6.1).

use crate::limits;

/// The error for a malformed text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// The longest key, in bytes (RFC 7143, 6.1).
const MAX_KEY_BYTES: usize = 63;

/// Splits a text into pairs of key and value.
pub(crate) fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, Malformed> {
    let text = str::from_utf8(text).map_err(|_| Malformed)?;
    // Skip empty pairs: some initiators put extra zeroes at the end.
    text.split('\0')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').ok_or(Malformed)?;
            let fits = (1..=MAX_KEY_BYTES).contains(&key.len());
            if fits { Ok((key, value)) } else { Err(Malformed) }
        })
        .collect()
}

/// A text, which may arrive in several PDUs.
#[derive(Default, Debug)]
pub(crate) struct Pieces(Vec<u8>);

impl Pieces {
    /// Appends a part of the text. Returns false if the text would exceed
    /// [`limits::MAX_TEXT_BYTES`].
    pub(crate) fn add(&mut self, piece: &[u8]) -> bool {
        let fits = self.0.len() + piece.len() <= limits::MAX_TEXT_BYTES;
        if fits {
            self.0.extend_from_slice(piece);
        }
        fits
    }

    /// Returns the whole text, and clears it.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

pub(crate) fn emit(out: &mut Vec<u8>, key: &str, value: &str) {
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
    out.extend_from_slice(value.as_bytes());
    out.push(0);
}

/// Parses a decimal or hexadecimal number.
pub(crate) fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        // Check the digits, because `from_str_radix` would accept a sign.
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u32::from_str_radix(hex, 16).ok()
        }
        None if value.bytes().all(|byte| byte.is_ascii_digit()) => value.parse().ok(),
        _ => None,
    }
}

/// Parses `Yes` or `No`.
pub(crate) fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

/// The text of a boolean value: `Yes` or `No`.
pub(crate) fn yes_or_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// True if this is a valid name of an initiator or target: `iqn.`, `eui.` or `naa.` and a suffix
/// (RFC 7143, 4.2.7).
pub(crate) fn is_name(name: &str) -> bool {
    let known = ["iqn.", "eui.", "naa."].iter().any(|prefix| {
        name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(prefix)) && name.len() > 4
    });
    let plain = |c: char| !c.is_ascii_control() && !c.is_whitespace() && !"/,;=\"'<>".contains(c);
    known && name.len() <= limits::MAX_NAME_BYTES && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_value_pairs_are_parsed() {
        assert_eq!(parse(b"a=b\0Key=\0x=y=z\0\0"), Ok(vec![("a", "b"), ("Key", ""), ("x", "y=z")]));
        assert_eq!(parse(b""), Ok(Vec::new()));
        for bad in [&b"a"[..], b"=b\0", b"a=\xff\0"] {
            assert_eq!(parse(bad), Err(Malformed));
        }
        let key = "k".repeat(MAX_KEY_BYTES);
        assert!(parse(format!("{key}=v").as_bytes()).is_ok());
        assert!(parse(format!("{key}k=v").as_bytes()).is_err());
    }

    #[test]
    fn numbers_are_parsed() {
        assert_eq!(number("262144"), Some(262_144));
        assert_eq!(number("0x1F"), Some(31));
        for bad in ["", "0x", "+1", "0x+1", "-1", "1 ", "4294967296"] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_length_of_texts_is_limited() {
        let mut pieces = Pieces::default();
        assert!(pieces.add(&vec![b'x'; limits::MAX_TEXT_BYTES]));
        assert!(!pieces.add(b"x"));
        assert_eq!(pieces.take().len(), limits::MAX_TEXT_BYTES);
        assert!(pieces.take().is_empty());
    }

    #[test]
    fn iscsi_names_are_validated() {
        assert!(is_name("iqn.1991-05.com.microsoft:host") && is_name("eui.0123456789abcdef"));
        assert!(!is_name("iqn.") && !is_name("host") && !is_name("iqn.a b") && !is_name("ïqn.x"));
        assert!(is_name(&format!("iqn.{}", "x".repeat(limits::MAX_NAME_BYTES - 4))));
        assert!(!is_name(&format!("iqn.{}", "x".repeat(limits::MAX_NAME_BYTES - 3))));
    }
}
