//! Parses a ClientHello: finds its end, and the identities in its extension `pre_shared_key` (RFC
//! 8446, section 4.2.11).

use crate::limits;

/// The length of `obfuscated_ticket_age`, in bytes.
const AGE_BYTES: usize = 4;

/// The content type of a record with handshake messages.
const HANDSHAKE: u8 = 22;
/// The message type of a ClientHello.
const CLIENT_HELLO: u8 = 1;
/// The length of a record's header (type, version, length), in bytes.
const RECORD_HEAD_BYTES: usize = 5;
/// The length of a handshake message's header (type, length), in bytes.
const MESSAGE_HEAD_BYTES: usize = 4;

/// Returns whether a client's first message is complete. Also returns true if the bytes are not a
/// ClientHello, so that OpenSSL reports the error.
pub(crate) fn has_come(bytes: &[u8]) -> bool {
    let (mut left, mut head, mut came) = (bytes, [0; MESSAGE_HEAD_BYTES], 0);
    while let Some((record, rest)) = left.split_first_chunk::<RECORD_HEAD_BYTES>() {
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        if record[0] != HANDSHAKE || !(1..=limits::RECORD_BYTES).contains(&length) {
            return true;
        }
        let (part, next) = rest.split_at(length.min(rest.len()));
        if let Some(missing) = head.get_mut(came..) {
            missing.iter_mut().zip(part).for_each(|(place, byte)| *place = *byte);
        }
        came += part.len();
        let wanted = u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
        if came >= MESSAGE_HEAD_BYTES
            && (head[0] != CLIENT_HELLO || came - MESSAGE_HEAD_BYTES >= wanted)
        {
            return true;
        }
        left = next;
    }
    false
}

/// Returns the identities in the extension's content, up to the first malformed one.
pub(crate) fn identities(extension: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut left = prefixed(extension).map_or(&[][..], |(list, _)| list);
    std::iter::from_fn(move || {
        let (identity, rest) = prefixed(left)?;
        left = rest.get(AGE_BYTES..)?;
        Some(identity)
    })
}

/// Formats an identity for messages. Unknown peers choose identities, so this function replaces
/// control characters, which must not reach a terminal.
pub(crate) fn shown(identity: &[u8]) -> String {
    let text = String::from_utf8_lossy(identity);
    let plain = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    text.chars().take(limits::NAMED_CHARACTERS).map(plain).collect()
}

/// Reads a two-byte length, and as many bytes after it. Returns these bytes and the remaining
/// bytes.
fn prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = b"\0\x0e\0\x01a\0\0\0\0\0\x01b\0\0\0\0";

    /// Returns a message of type `kind`, split into records of `piece` bytes.
    fn in_records(kind: u8, length: u8, piece: usize) -> Vec<u8> {
        let mut message = vec![kind, 0, 0, length];
        message.resize(MESSAGE_HEAD_BYTES + usize::from(length), 7);
        let record = |part: &[u8]| [&[HANDSHAKE, 3, 1, 0, part.len() as u8], part].concat();
        message.chunks(piece).flat_map(record).collect()
    }

    #[test]
    fn the_end_of_a_client_hello_is_found_in_any_records() {
        for (length, piece) in [(0, 4), (100, 200), (100, 104), (100, 1), (100, 3), (100, 50)] {
            let message = in_records(CLIENT_HELLO, length, piece);
            for at in 0..message.len() {
                assert!(!has_come(&message[..at]), "{length} in pieces of {piece}: {at}");
            }
            assert!(has_come(&message), "{length} in pieces of {piece}");
        }
    }

    #[test]
    fn other_messages_count_as_complete() {
        assert!(
            has_come(&in_records(2, 100, 50)[..9]),
            "a message of another type counts as complete"
        );
        assert!(has_come(b"\x15\x03\x03\0\x02"), "an alert counts as complete");
        assert!(has_come(b"\x16\x03\x01\0\0") && has_come(b"\x16\x03\x01\xff\xff"));
    }

    #[test]
    fn identities_are_listed_in_order() {
        assert_eq!(identities(TWO).collect::<Vec<_>>(), [b"a", b"b"]);
    }

    #[test]
    fn a_truncated_identity_list_is_empty() {
        for cut in 0..TWO.len() {
            assert!(
                identities(&TWO[..cut]).count() == 0,
                "a truncated list of {cut} bytes has no identities"
            );
        }
        assert_eq!(identities(b"\0\x09\0\x01a\0\0\0\0\xff\xff").count(), 1);
    }

    #[test]
    fn shown_identities_have_no_control_characters() {
        assert_eq!(shown(b"NVMe0R01 \x1b[2J\xffa\n"), "NVMe0R01 ?[2J?a?");
        assert_eq!(shown(&[b'a'; 10_000]).len(), limits::NAMED_CHARACTERS);
    }
}
