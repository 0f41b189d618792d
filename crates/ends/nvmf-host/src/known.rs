//! The identity of a namespace, and its comparison.

use farblock_proto::host::NamespaceInfo;

/// The identity of a namespace. Every connection of a disk and of its successors must lead to the
/// namespace with this identity.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KnownNamespace {
    /// UUID, if the namespace has one.
    pub uuid: Option<[u8; 16]>,
    /// Namespace globally unique identifier (NGUID), if the namespace has one.
    pub nguid: Option<[u8; 16]>,
    /// IEEE extended unique identifier (EUI-64), if the namespace has one.
    pub eui64: Option<[u8; 8]>,
    /// Serial number of the subsystem, which identifies a namespace without identifiers.
    pub serial: String,
    /// Bytes in a block.
    pub block_size: u32,
    /// Whether the disk has reported a volatile cache to its users: completed writes need a flush
    /// to be durable. This value is not part of the identity.
    pub volatile_cache: bool,
}

impl KnownNamespace {
    pub(crate) fn new(info: &NamespaceInfo, serial: &str, volatile_cache: bool) -> KnownNamespace {
        KnownNamespace {
            uuid: info.uuid,
            nguid: info.nguid,
            eui64: info.eui64,
            serial: serial.to_owned(),
            block_size: info.block_size,
            volatile_cache,
        }
    }

    /// Whether the namespace has a globally unique identifier.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.uuid.is_some() || self.nguid.is_some() || self.eui64.is_some()
    }

    /// Checks that `found` is this namespace; returns the difference if not. The caller has
    /// compared the namespace ID and the name of the subsystem.
    pub(crate) fn check(&self, found: &KnownNamespace) -> Result<(), String> {
        let differs = |name: &str, known: Option<&[u8]>, found: Option<&[u8]>| match (known, found)
        {
            (Some(known), Some(found)) if known != found => {
                Some(format!("it has the {name} {}, but {} was expected", Hex(found), Hex(known)))
            }
            (Some(_), None) => Some(format!("it no longer has the {name}")),
            // A namespace with an identifier may later have another kind of identifier, too. A
            // namespace that had no identifier must not have one now.
            (None, Some(found)) if !self.is_named() => {
                Some(format!("it has the {name} {}, but none was expected", Hex(found)))
            }
            _ => None,
        };
        let difference = differs("UUID", slice(&self.uuid), slice(&found.uuid))
            .or_else(|| differs("NGUID", slice(&self.nguid), slice(&found.nguid)))
            .or_else(|| differs("EUI-64", slice(&self.eui64), slice(&found.eui64)))
            .or_else(|| {
                (!self.is_named() && self.serial != found.serial).then(|| {
                    let (known, found) = (&self.serial, &found.serial);
                    format!("its subsystem has the serial number {found:?} instead of {known:?}")
                })
            })
            .or_else(|| {
                (self.block_size != found.block_size).then(|| {
                    let (known, found) = (self.block_size, found.block_size);
                    format!("its blocks have {found} bytes, but {known} were expected")
                })
            });
        difference.map_or(Ok(()), Err)
    }
}

fn slice<const N: usize>(id: &Option<[u8; N]>) -> Option<&[u8]> {
    id.as_ref().map(|id| id.as_slice())
}

/// Formats bytes in hexadecimal, and 16 bytes as a UUID.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if self.0.len() == 16 && matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> KnownNamespace {
        KnownNamespace {
            uuid: Some([1; 16]),
            nguid: Some([2; 16]),
            eui64: Some([3; 8]),
            serial: "S1".to_owned(),
            block_size: 512,
            volatile_cache: true,
        }
    }

    #[test]
    fn every_identifier_of_a_namespace_is_compared() {
        let known = named();
        assert_eq!(known.check(&known), Ok(()));
        // The serial number and the cache are not part of the identity of a namespace with
        // identifiers.
        let found = KnownNamespace { serial: "S2".into(), volatile_cache: false, ..named() };
        assert_eq!(known.check(&found), Ok(()));
        for (found, text) in [
            (KnownNamespace { uuid: Some([9; 16]), ..named() }, "UUID 0909"),
            (KnownNamespace { nguid: Some([9; 16]), ..named() }, "NGUID 0909"),
            (KnownNamespace { eui64: Some([9; 8]), ..named() }, "EUI-64 0909"),
            (KnownNamespace { uuid: None, ..named() }, "no longer has the UUID"),
            (KnownNamespace { block_size: 4096, ..named() }, "4096 bytes, but 512"),
        ] {
            let error = known.check(&found).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn a_namespace_without_identifiers_is_known_by_its_subsystem() {
        let nameless = KnownNamespace { uuid: None, nguid: None, eui64: None, ..named() };
        assert_eq!(nameless.check(&nameless), Ok(()));
        let other = KnownNamespace { serial: "S2".into(), ..nameless.clone() };
        assert!(
            nameless
                .check(&other)
                .expect_err("a different namespace")
                .contains("serial number \"S2\"")
        );
        let error = nameless.check(&named()).expect_err("a different namespace");
        assert!(error.contains("but none was expected"), "{error}");
        // A namespace with an additional identifier is still the same namespace.
        let eui64 = KnownNamespace { uuid: None, nguid: None, ..named() };
        assert_eq!(eui64.check(&named()), Ok(()));
    }
}
