//! What the target shares, and changes to that while it runs.

use super::{Management, Message, Shared};
use crate::backings::{Backing, BackingId, Backings};
use crate::config::Export;
use crate::control::{ChangeError, Removal};
use crate::identity;
use farblock_block::{Change, Geometry, Watch};
use farblock_proto::controller::{ConfigError, NamespaceInfo, SubsystemId};
use farblock_proto::ids::NamespaceId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

/// A namespace that is shared.
struct Exported {
    backing: Backing,
    /// What it is by itself.
    info: NamespaceInfo,
    /// How many of its blocks are shared, if not all.
    blocks: Option<u64>,
    /// It is not to be written to, whether it can be or not.
    protected: bool,
    /// Its changes are heard of.
    watch: Option<Watch>,
}

impl Exported {
    fn new(backing: Backing, info: NamespaceInfo) -> Self {
        Self { backing, info, blocks: None, protected: false, watch: None }
    }

    /// What hosts are told of it.
    fn offered(&self) -> NamespaceInfo {
        let blocks = self.blocks.map_or(self.info.blocks, |most| most.min(self.info.blocks));
        let read_only = self.info.read_only || self.protected;
        NamespaceInfo { blocks, read_only, ..self.info }
    }
}

/// Everything that is shared. Changed only together with the registry.
#[derive(Default)]
pub(crate) struct Exports {
    subsystems: HashMap<SubsystemId, BTreeMap<NamespaceId, Exported>>,
    last_id: u64,
}

impl Exports {
    /// Adds what the registry has already.
    pub(crate) fn insert(
        &mut self,
        subsystem: SubsystemId,
        nsid: NamespaceId,
        export: &Export,
        info: NamespaceInfo,
    ) {
        let backing = self.backing(export);
        self.of(subsystem).insert(nsid, Exported::new(backing, info));
    }

    fn backing(&mut self, export: &Export) -> Backing {
        self.last_id += 1;
        Backing { id: BackingId(self.last_id), namespace: Arc::clone(&export.namespace) }
    }

    fn of(&mut self, subsystem: SubsystemId) -> &mut BTreeMap<NamespaceId, Exported> {
        self.subsystems.entry(subsystem).or_default()
    }

    fn find(
        &mut self,
        subsystem: SubsystemId,
        nsid: NamespaceId,
    ) -> Result<&mut Exported, ChangeError> {
        let missing = ChangeError::Namespace(nsid, ConfigError::NotFound("namespace"));
        self.of(subsystem).get_mut(&nsid).ok_or(missing)
    }

    /// What stores a subsystem's namespaces now.
    pub(crate) fn snapshot(&self, subsystem: SubsystemId) -> Arc<Backings> {
        let exported = self.subsystems.get(&subsystem).into_iter().flatten();
        Arc::new(exported.map(|(nsid, exported)| (*nsid, exported.backing.clone())).collect())
    }

    /// Everything that is shared, by subsystem and number.
    fn keys(&self) -> Vec<(SubsystemId, NamespaceId)> {
        let subsystems = self.subsystems.iter();
        subsystems
            .flat_map(|(subsystem, namespaces)| namespaces.keys().map(|nsid| (*subsystem, *nsid)))
            .collect()
    }

    /// All of it, to be opened.
    pub(crate) fn snapshots(&self) -> Vec<Arc<Backings>> {
        self.subsystems.keys().map(|subsystem| self.snapshot(*subsystem)).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.subsystems.values().map(BTreeMap::len).sum()
    }
}

/// What a registry is to say about `export` as number `nsid` of `nqn`.
pub(crate) fn describe(nqn: &str, nsid: NamespaceId, export: &Export) -> NamespaceInfo {
    let identity = identity::namespace(nqn, nsid.0, &export.identity);
    let info = NamespaceInfo {
        uuid: identity.uuid,
        nguid: identity.nguid,
        eui64: identity.eui64,
        ..NamespaceInfo::new(0, 0)
    };
    with_geometry(info, &export.namespace.geometry())
}

fn with_geometry(info: NamespaceInfo, geometry: &Geometry) -> NamespaceInfo {
    NamespaceInfo {
        block_size: geometry.block_size,
        blocks: geometry.blocks,
        read_only: geometry.read_only,
        volatile_cache: geometry.volatile_cache,
        deallocate: geometry.deallocate,
        optimal_blocks: geometry.optimal_blocks,
        preferred_blocks: geometry.preferred_blocks,
        max_blocks: geometry.max_blocks,
        ..info
    }
}

/// Changes while the target runs; see [`Control`](crate::control::Control).
impl Shared {
    /// Everything that is shared, to be opened.
    pub(crate) fn all_backings(&self) -> Vec<Arc<Backings>> {
        self.lock().exports.snapshots()
    }

    /// The target has ended: nothing is shared any more, and nobody reads what was posted.
    pub(crate) fn forget_exports(&self) {
        let exports = std::mem::take(&mut self.lock().exports);
        // Without the lock: closing them may take long, and some may just tell of a change.
        drop(exports);
        for mailbox in self.mailboxes() {
            mailbox.take();
        }
    }

    /// Hears of the changes of everything that is shared.
    pub(crate) fn watch_exports(self: &Arc<Self>) {
        let keys = self.lock().exports.keys();
        keys.into_iter().for_each(|(subsystem, nsid)| self.watch_export(subsystem, nsid));
    }

    /// Hears of a namespace's changes from now on, and looks at what changed before.
    fn watch_export(self: &Arc<Self>, subsystem: SubsystemId, nsid: NamespaceId) {
        let mut management = self.lock();
        let Ok(exported) = management.exports.find(subsystem, nsid) else { return };
        let Some(changes) = exported.backing.namespace.changes() else { return };
        let (shared, backing) = (Arc::downgrade(self), exported.backing.id);
        exported.watch = Some(changes.watch(move |change| {
            if let (Change::Geometry, Some(shared)) = (change, shared.upgrade()) {
                tracing::info!(nsid = nsid.0, "what stores the namespace has another size now");
                shared.look_again(subsystem, nsid, backing);
            }
        }));
        drop(management);
        self.look_again(subsystem, nsid, backing);
    }

    /// A namespace says that it has changed.
    fn look_again(&self, subsystem: SubsystemId, nsid: NamespaceId, backing: BackingId) {
        let mut management = self.lock();
        let found = management.exports.find(subsystem, nsid);
        if found.is_ok_and(|exported| exported.backing.id == backing)
            && let Err(error) = adjust(&mut management, subsystem, nsid, |_| Ok(()))
        {
            tracing::error!("hosts cannot be told of a change: {error}");
        }
        self.act(&mut management);
    }

    /// Makes a change, which may take a namespace away, and does what follows from it.
    fn change(
        &self,
        nqn: &str,
        make: impl FnOnce(&mut Management, SubsystemId) -> Result<Option<Exported>, ChangeError>,
    ) -> Result<Option<Removal>, ChangeError> {
        let mut management = self.lock();
        if self.stopping.load(Ordering::Relaxed) {
            return Err(ChangeError::Stopping);
        }
        let subsystem = management.registry.find_subsystem(nqn);
        let subsystem = subsystem.ok_or_else(|| ChangeError::NoSubsystem(nqn.to_owned()))?;
        let removed = make(&mut management, subsystem)?;
        self.act(&mut management);
        Ok(removed.map(|exported| self.retire(exported.backing)))
    }

    /// Has every core close its queue into what no list has any more: behind the new list in the
    /// mailbox, so that nobody there can reach it then.
    fn retire(&self, backing: Backing) -> Removal {
        let (share, shares) = mpsc::channel();
        for mailbox in self.mailboxes() {
            mailbox.post(Message::Retire(backing.id, share.clone()));
        }
        Removal::new(shares, backing.namespace)
    }

    pub(crate) fn add_namespace(
        self: &Arc<Self>,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
    ) -> Result<(), ChangeError> {
        let info = describe(nqn, nsid, export);
        let mut added_to = None;
        self.change(nqn, |management, subsystem| {
            let added = management.registry.add_namespace(subsystem, nsid, info);
            added.map_err(|error| ChangeError::Namespace(nsid, error))?;
            management.exports.insert(subsystem, nsid, export, info);
            added_to = Some(subsystem);
            Ok(None)
        })?;
        added_to.into_iter().for_each(|subsystem| self.watch_export(subsystem, nsid));
        Ok(())
    }

    pub(crate) fn remove_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
    ) -> Result<Removal, ChangeError> {
        let removed = self.change(nqn, |management, subsystem| {
            let removed = management.registry.remove_namespace(subsystem, nsid);
            removed.map_err(|error| ChangeError::Namespace(nsid, error))?;
            let removed = management.exports.of(subsystem).remove(&nsid);
            Ok(Some(removed.expect("the registry had it")))
        })?;
        Ok(removed.expect("it was removed"))
    }

    pub(crate) fn replace_namespace(
        self: &Arc<Self>,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
    ) -> Result<Removal, ChangeError> {
        let info = describe(nqn, nsid, export);
        let mut changed_in = None;
        let removed = self.change(nqn, |management, subsystem| {
            let replaced = management.registry.replace_namespace(subsystem, nsid, info);
            replaced.map_err(|error| ChangeError::Namespace(nsid, error))?;
            let backing = management.exports.backing(export);
            changed_in = Some(subsystem);
            let exported = management.exports.find(subsystem, nsid)?;
            Ok(Some(std::mem::replace(exported, Exported::new(backing, info))))
        })?;
        changed_in.into_iter().for_each(|subsystem| self.watch_export(subsystem, nsid));
        Ok(removed.expect("it was replaced"))
    }

    pub(crate) fn resize_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        blocks: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.adjust(nqn, nsid, |exported| {
            let has = exported.info.blocks;
            let wanted = blocks.unwrap_or(has);
            if wanted > has {
                return Err(ChangeError::TooFewBlocks { namespace: nsid, wanted, blocks: has });
            }
            exported.blocks = blocks;
            Ok(())
        })
    }

    pub(crate) fn set_read_only(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        read_only: bool,
    ) -> Result<(), ChangeError> {
        self.adjust(nqn, nsid, |exported| {
            exported.protected = read_only;
            Ok(())
        })
    }

    pub(crate) fn refresh_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
    ) -> Result<(), ChangeError> {
        self.adjust(nqn, nsid, |_| Ok(()))
    }

    fn adjust(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        change: impl FnOnce(&mut Exported) -> Result<(), ChangeError>,
    ) -> Result<(), ChangeError> {
        self.change(nqn, |management, subsystem| {
            adjust(management, subsystem, nsid, change).map(|()| None)
        })
        .map(|_| ())
    }
}

/// Changes how a namespace is shared, and looks at what it is. Hosts are told if that makes a
/// difference to them.
fn adjust(
    management: &mut Management,
    subsystem: SubsystemId,
    nsid: NamespaceId,
    change: impl FnOnce(&mut Exported) -> Result<(), ChangeError>,
) -> Result<(), ChangeError> {
    let Management { registry, exports, .. } = management;
    let exported = exports.find(subsystem, nsid)?;
    let (info, blocks, protected) = (exported.info, exported.blocks, exported.protected);
    let before = exported.offered();
    exported.info = with_geometry(info, &exported.backing.namespace.geometry());
    change(exported)?;
    let offered = exported.offered();
    if offered != before {
        registry.replace_namespace(subsystem, nsid, offered).map_err(|error| {
            // Hosts go on with what they know.
            exported.info = info;
            (exported.blocks, exported.protected) = (blocks, protected);
            ChangeError::Namespace(nsid, error)
        })?;
    }
    Ok(())
}
