//! The remote namespaces that a composite namespace consists of. Identify Namespace reports them,
//! so that a target can refuse a namespace that would contain itself; see
//! [`farblock_wire::contents`].

use super::config::{ConfigError, SubsystemConfig, SubsystemId};
use super::logs::NamespaceChange;
use super::registry::Registry;
use crate::ids::NamespaceId;
use alloc::vec::Vec;
use farblock_wire::contents;
use farblock_wire::identify::IdentifyNamespace;

impl Registry {
    /// Sets the UUIDs of the remote namespaces that a namespace consists of. Notifies the hosts if
    /// the UUIDs changed.
    ///
    /// # Errors
    /// Fails if the subsystem or the namespace does not exist.
    pub fn set_contents(
        &mut self,
        subsystem: SubsystemId,
        namespace: NamespaceId,
        uuids: Vec<[u8; 16]>,
    ) -> Result<(), ConfigError> {
        let config = &mut self.subsystem_mut(subsystem)?.config;
        let namespaces = &config.namespaces;
        config.contents.retain(|id, _| namespaces.contains_key(id));
        if !namespaces.contains_key(&namespace) {
            return Err(ConfigError::NotFound("namespace"));
        }
        let before = config.contents.remove(&namespace).unwrap_or_default();
        let has_changed = before != uuids;
        if !uuids.is_empty() {
            config.contents.insert(namespace, uuids);
        }
        if has_changed {
            self.namespace_changed(subsystem, namespace, NamespaceChange::Altered);
        }
        Ok(())
    }
}

/// Writes the contents of a namespace to its Identify Namespace data.
pub(super) fn report(
    config: &SubsystemConfig,
    namespace: NamespaceId,
    identify: &mut IdentifyNamespace,
) {
    if let Some(uuids) = config.contents.get(&namespace) {
        contents::emit(uuids, &mut identify.vs);
    }
}
