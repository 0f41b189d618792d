//! The UUIDs of the remote namespaces that a namespace consists of. farblock targets put these
//! UUIDs into the vendor specific bytes of Identify Namespace. A target reads them to prevent a
//! namespace from containing itself.
//!
//! Other targets use these bytes differently or not at all. Readers therefore ignore bytes that do
//! not start with [`MAGIC`].

/// The first 16 vendor specific bytes that a farblock target writes.
pub const MAGIC: [u8; 16] = *b"farblock.parts01";

/// The vendor specific bytes have room for this many UUIDs.
pub const MAX_UUIDS: usize = 3712 / UUID_BYTES - 1;

const UUID_BYTES: usize = 16;

/// Returns the UUIDs in the vendor specific bytes. Returns no UUIDs if farblock did not write the
/// bytes.
pub fn parse(bytes: &[u8]) -> impl Iterator<Item = [u8; 16]> {
    let (uuids, _) = bytes.as_chunks::<UUID_BYTES>();
    let uuids = if uuids.first() == Some(&MAGIC) { &uuids[1..] } else { &[] };
    uuids.iter().copied().take_while(|uuid| *uuid != [0; UUID_BYTES])
}

/// Writes as many of the UUIDs as fit into the vendor specific bytes. Without UUIDs, leaves the
/// bytes unchanged.
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
    fn contents_without_our_signature_are_ignored() {
        let mut bytes = [0; 3712];
        emit(&[], &mut bytes);
        assert_eq!(bytes, [0; 3712]);
        emit(&[[1; 16], [2; 16]], &mut bytes);
        assert!(parse(&bytes).eq([[1; 16], [2; 16]]));
        assert_eq!(parse(&bytes[16..]).count(), 0);
        assert_eq!(parse(&bytes[..15]).count(), 0);
    }

    #[test]
    fn contents_report_as_many_uuids_as_fit() {
        let mut bytes = [0; 3712];
        emit(&[[7; 16]; MAX_UUIDS + 1], &mut bytes);
        assert_eq!(parse(&bytes).count(), MAX_UUIDS);
    }
}
