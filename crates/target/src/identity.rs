//! Names that stay the same over restarts, derived from what is shared.

use uuid::Uuid;

/// Identifiers of a namespace: a UUID, and the NGUID and EUI-64 derived from it.
pub(crate) struct NamespaceIdentity {
    pub(crate) uuid: [u8; 16],
    pub(crate) nguid: [u8; 16],
    pub(crate) eui64: [u8; 8],
}

/// The identity of what `subsystem` shares as number `id`. It hangs on `content` too, so that a
/// host never takes another disk for the one it knew.
pub(crate) fn namespace(subsystem: &str, id: u32, content: &str) -> NamespaceIdentity {
    let name = format!("{subsystem}\n{id}\n{content}");
    let uuid = Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes()).into_bytes();
    let other = Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()).into_bytes();
    let eui64 = other[..8].try_into().expect("eight of sixteen bytes");
    NamespaceIdentity { uuid, nguid: other, eui64 }
}

/// A serial number of 20 hexadecimal digits for `subsystem`.
pub(crate) fn serial(subsystem: &str) -> String {
    let uuid = Uuid::new_v5(&Uuid::NAMESPACE_URL, subsystem.as_bytes());
    uuid.simple().to_string()[..20].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_stable_and_differ_by_every_part() {
        let of = |nqn, id, content| namespace(nqn, id, content).uuid;
        assert_eq!(of("a", 1, "x"), of("a", 1, "x"));
        for other in [of("b", 1, "x"), of("a", 2, "x"), of("a", 1, "y")] {
            assert_ne!(of("a", 1, "x"), other);
        }
        assert_eq!(serial("a").len(), 20);
        assert_ne!(serial("a"), serial("b"));
    }
}
