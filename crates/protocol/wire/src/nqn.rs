//! NVMe Qualified Names (Base 2.0c, "NVMe Qualified Names").

use crate::text::is_plain;
use core::fmt;

/// An NQN has at most this many bytes, without the terminating NUL.
pub const NQN_MAX_BYTES: usize = 223;
/// Length in bytes of a field that carries an NQN.
pub const NQN_FIELD_BYTES: usize = 256;
/// The well-known discovery service NQN.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The prefix of an NQN made from a UUID.
pub const UUID_NQN_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// The reason for which a name is not a valid NQN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NqnError {
    /// The name is empty.
    Empty,
    /// The field has no NUL, or the name is longer than [`NQN_MAX_BYTES`].
    TooLong,
    /// The name is not UTF-8.
    NotUtf8,
    /// The name contains a character that is not [plain](is_plain), such as a control character.
    /// The specification allows such characters, but farblock refuses them, because logs and
    /// terminals show names.
    ControlCharacter,
    /// The name does not start with `nqn.`.
    NoPrefix,
    /// `nqn.` is not followed by a year, a month and a name: `yyyy-mm.name`.
    BadDate,
    /// The name starts with [`UUID_NQN_PREFIX`], but a UUID does not follow.
    BadUuid,
}

impl fmt::Display for NqnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the NQN is empty",
            Self::TooLong => "the NQN is longer than 223 bytes",
            Self::NotUtf8 => "the NQN is not UTF-8",
            Self::ControlCharacter => {
                "the NQN contains a control character or an invisible character"
            }
            Self::NoPrefix => "the NQN does not start with \"nqn.\"",
            Self::BadDate => "the NQN has no \"yyyy-mm.\" and name after \"nqn.\"",
            Self::BadUuid => "the NQN's UUID is malformed",
        })
    }
}

impl core::error::Error for NqnError {}

/// Returns the text of a NUL-terminated field: UTF-8, not empty, at most 223 bytes, no control
/// characters. Use this function for peers whose names need not be NQNs, and [`parse_field`] for
/// all other peers.
pub fn parse_field_text(field: &[u8; NQN_FIELD_BYTES]) -> Result<&str, NqnError> {
    let len = field.iter().position(|&byte| byte == 0).ok_or(NqnError::TooLong)?;
    let text = core::str::from_utf8(&field[..len]).map_err(|_| NqnError::NotUtf8)?;
    check_text(text)?;
    Ok(text)
}

/// Returns the validated NQN in a NUL-terminated field. Ignores bytes after the NUL.
pub fn parse_field(field: &[u8; NQN_FIELD_BYTES]) -> Result<&str, NqnError> {
    let text = parse_field_text(field)?;
    validate(text)?;
    Ok(text)
}

/// Checks that a name is an NQN: `nqn.yyyy-mm.name`, or [`UUID_NQN_PREFIX`] and a UUID.
pub fn validate(name: &str) -> Result<(), NqnError> {
    check_text(name)?;
    let rest = name.strip_prefix("nqn.").ok_or(NqnError::NoPrefix)?;
    let rest = match rest.as_bytes() {
        [y0, y1, y2, y3, b'-', m0, m1, b'.', rest @ ..]
            if [y0, y1, y2, y3].iter().all(|digit| digit.is_ascii_digit())
                && matches!((m0, m1), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2')) =>
        {
            rest
        }
        _ => return Err(NqnError::BadDate),
    };
    // A name must follow the date: `nqn.2014-08.` and `nqn.2014-08.:x` are not valid.
    if rest.is_empty() || rest[0] == b':' {
        return Err(NqnError::BadDate);
    }
    match name.strip_prefix(UUID_NQN_PREFIX) {
        Some(uuid) if !is_uuid(uuid.as_bytes()) => Err(NqnError::BadUuid),
        _ => Ok(()),
    }
}

/// Checks a subsystem or host name: a name that starts with `nqn.` must be a valid NQN. Any other
/// name must be valid text, but need not be an NQN. Linux and its tests use names such as
/// `blktests-subsystem-1`.
pub fn validate_name(name: &str) -> Result<(), NqnError> {
    if name.starts_with("nqn.") { validate(name) } else { check_text(name) }
}

/// Returns the field for a name: the bytes of the name, padded with NULs.
///
/// # Panics
/// Panics if the name is longer than [`NQN_MAX_BYTES`]. Callers must validate names that users or
/// peers supply.
pub fn nqn_field(name: &str) -> [u8; NQN_FIELD_BYTES] {
    assert!(name.len() <= NQN_MAX_BYTES, "NQN longer than {NQN_MAX_BYTES} bytes");
    let mut field = [0; NQN_FIELD_BYTES];
    field[..name.len()].copy_from_slice(name.as_bytes());
    field
}

fn check_text(text: &str) -> Result<(), NqnError> {
    if text.is_empty() {
        Err(NqnError::Empty)
    } else if text.len() > NQN_MAX_BYTES {
        Err(NqnError::TooLong)
    } else if !text.chars().all(is_plain) {
        Err(NqnError::ControlCharacter)
    } else {
        Ok(())
    }
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36
        && text.iter().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}
