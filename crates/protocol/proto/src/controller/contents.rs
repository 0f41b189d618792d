//! The remote namespaces of which a subsystem's namespaces consist. Identify Namespace reports
//! them, so that no set becomes a part of itself; see [`farblock_wire::contents`].

use super::config::{ConfigError, SubsystemConfig, SubsystemId};
use super::logs::NamespaceChange;
use super::registry::Registry;
use crate::ids::NamespaceId;
use alloc::vec::Vec;
use farblock_wire::contents;
use farblock_wire::identify::IdentifyNamespace;

impl Registry {
    /// Sets the UUIDs of the remote namespaces of which a namespace consists, and notifies the
    /// hosts of a change.
    ///
    /// # Errors
    /// When there is no such subsystem or namespace.
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

/// Reports the contents of a namespace.
pub(super) fn report(
    config: &SubsystemConfig,
    namespace: NamespaceId,
    identify: &mut IdentifyNamespace,
) {
    if let Some(uuids) = config.contents.get(&namespace) {
        contents::emit(uuids, &mut identify.vs);
    }
}
