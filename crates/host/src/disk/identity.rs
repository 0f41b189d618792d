//! Whether two paths lead to the same namespace.

use farblock_proto::host::NamespaceInfo;

/// Compares what a path says about its namespace with what is known of the disk's. Both are of
/// the same subsystem and have the same identifier in it.
pub(super) fn check(known: &NamespaceInfo, found: &NamespaceInfo) -> Result<(), String> {
    let differs = |name: &str, known: Option<&[u8]>, found: Option<&[u8]>| match (known, found) {
        (Some(known), Some(found)) if known != found => {
            Some(format!("it has the {name} {} where {} was expected", Hex(found), Hex(known)))
        }
        (Some(_), None) => Some(format!("it has no {name} any more")),
        _ => None,
    };
    let difference = differs("UUID", slice(&known.uuid), slice(&found.uuid))
        .or_else(|| differs("NGUID", slice(&known.nguid), slice(&found.nguid)))
        .or_else(|| differs("EUI-64", slice(&known.eui64), slice(&found.eui64)))
        .or_else(|| {
            (known.block_size != found.block_size).then(|| {
                let (known, found) = (known.block_size, found.block_size);
                format!("its blocks have {found} bytes where {known} were expected")
            })
        });
    match difference {
        Some(difference) => Err(format!(
            "namespace {} is not the one that this disk is made of: {difference}; \
             attach it as a disk of its own",
            found.nsid
        )),
        None => Ok(()),
    }
}

fn slice<const N: usize>(id: &Option<[u8; N]>) -> Option<&[u8]> {
    id.as_ref().map(|id| id.as_slice())
}

/// Bytes as people compare them.
struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_identifier_is_compared() {
        let known = NamespaceInfo {
            nsid: 3,
            block_size: 512,
            uuid: Some([1; 16]),
            nguid: Some([2; 16]),
            eui64: Some([3; 8]),
            ..Default::default()
        };
        assert_eq!(check(&known, &known), Ok(()));
        assert_eq!(check(&known, &NamespaceInfo { blocks: 7, ..known.clone() }), Ok(()));
        for (found, text) in [
            (NamespaceInfo { uuid: Some([9; 16]), ..known.clone() }, "UUID 0909"),
            (NamespaceInfo { nguid: Some([9; 16]), ..known.clone() }, "NGUID 0909"),
            (NamespaceInfo { eui64: Some([9; 8]), ..known.clone() }, "EUI-64 0909"),
            (NamespaceInfo { uuid: None, ..known.clone() }, "no UUID any more"),
            (NamespaceInfo { block_size: 4096, ..known.clone() }, "4096 bytes where 512"),
        ] {
            let error = check(&known, &found).expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }
}
