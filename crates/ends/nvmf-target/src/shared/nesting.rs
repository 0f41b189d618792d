//! Prevents a namespace from containing itself, for example through a mirror or stripe set on
//! another target. Reads of such a namespace would never end.

use farblock_block::Namespace;
use farblock_proto::controller::ConfigError;
use farblock_wire::contents::MAX_UUIDS;

/// Returns the UUIDs of the remote namespaces that make up a namespace, in order. Returns at most
/// as many UUIDs as the target can report to hosts.
pub(crate) fn contents(namespace: &dyn Namespace) -> Vec<[u8; 16]> {
    let parts = namespace.parts();
    let mut uuids: Vec<_> = parts.iter().flat_map(|part| part.contents()).collect();
    uuids.sort_unstable();
    uuids.dedup();
    uuids.truncate(MAX_UUIDS);
    uuids
}

/// Passes a namespace's UUID to its parts. From then on, the parts refuse to connect to a namespace
/// that contains this UUID. Returns the namespace's [`contents`].
///
/// # Errors
/// Fails if the namespace already contains itself.
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
