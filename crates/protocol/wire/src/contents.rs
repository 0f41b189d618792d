//! The remote namespaces of which a namespace consists. farblock targets put their UUIDs into the
//! vendor specific bytes of Identify Namespace, so that no set becomes a part of itself.
//!
//! Other targets use these bytes differently, or not at all, so readers ignore bytes that do not
//! start with [`MAGIC`].

/// The first 16 vendor specific bytes, if farblock wrote them.
pub const MAGIC: [u8; 16] = *b"farblock.parts01";

/// The most UUIDs that fit the vendor specific bytes.
pub const MAX_UUIDS: usize = 3712 / UUID_BYTES - 1;

const UUID_BYTES: usize = 16;

/// The UUIDs in the vendor specific bytes; none if farblock did not write them.
pub fn parse(bytes: &[u8]) -> impl Iterator<Item = [u8; 16]> {
    let (uuids, _) = bytes.as_chunks::<UUID_BYTES>();
    let uuids = if uuids.first() == Some(&MAGIC) { &uuids[1..] } else { &[] };
    uuids.iter().copied().take_while(|uuid| *uuid != [0; UUID_BYTES])
}

/// Writes as many UUIDs as fit to the vendor specific bytes; writes nothing if there are no UUIDs.
pub fn emit(uuids: &[[u8; 16]], bytes: &mut [u8]) {
    if uuids.is_empty() {
        return;
    }
    let (places, _) = bytes.as_chunks_mut::<UUID_BYTES>();
    for (place, uuid) in places.iter_mut().zip([MAGIC].iter().chain(uuids)) {
        *place = *uuid;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_bytes_count() {
        let mut bytes = [0; 3712];
        emit(&[], &mut bytes);
        assert_eq!(bytes, [0; 3712]);
        emit(&[[1; 16], [2; 16]], &mut bytes);
        assert!(parse(&bytes).eq([[1; 16], [2; 16]]));
        assert_eq!(parse(&bytes[16..]).count(), 0);
        assert_eq!(parse(&bytes[..15]).count(), 0);
    }

    #[test]
    fn as_many_are_reported_as_fit() {
        let mut bytes = [0; 3712];
        emit(&[[7; 16]; MAX_UUIDS + 1], &mut bytes);
        assert_eq!(parse(&bytes).count(), MAX_UUIDS);
    }
}
