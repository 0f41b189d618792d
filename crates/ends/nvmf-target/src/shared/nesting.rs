//! Prevents a namespace from containing itself through sets of this or of other targets: its reads
//! would never end.

use farblock_block::Namespace;
use farblock_proto::controller::ConfigError;
use farblock_wire::contents::MAX_UUIDS;

/// UUIDs of the remote namespaces of which a namespace consists, in order; at most as many as the
/// target can report to hosts.
pub(crate) fn contents(namespace: &dyn Namespace) -> Vec<[u8; 16]> {
    let parts = namespace.parts();
    let mut uuids: Vec<_> = parts.iter().flat_map(|part| part.contents()).collect();
    uuids.sort_unstable();
    uuids.dedup();
    uuids.truncate(MAX_UUIDS);
    uuids
}

/// Tells a namespace's parts its UUID. From now on they refuse to connect to a namespace that
/// contains this UUID. Returns the namespace's contents.
///
/// # Errors
/// If it contains itself already.
pub(crate) fn nest(
    namespace: &dyn Namespace,
    uuid: [u8; 16],
) -> Result<Vec<[u8; 16]>, ConfigError> {
    let parts = namespace.parts();
    parts.iter().for_each(|part| part.add_whole(uuid));
    if parts.iter().any(|part| part.contents().contains(&uuid)) {
        return Err(ConfigError::ContainsItself);
    }
    Ok(contents(namespace))
}
