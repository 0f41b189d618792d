//! The shared namespaces, and the changes to them while the target runs.

use super::nesting::{contents, nest};
use super::{Management, TargetShared};
use crate::backings::{Backing, BackingId, Backings, HostTerms};
use crate::change_error::ChangeError;
use crate::config::Export;
use crate::events::Event;
use crate::identity;
use crate::mailbox::Message;
use crate::pace::{Pace, Rates};
use crate::permit::Permit;
use crate::quiet::Quiet;
use crate::removal::Removal;
use crate::reservations::{self, ReservationStore};
use crate::shares::DEFAULT_WEIGHT;
use crate::sharing::Sharing;
use farblock_block::{Change, Geometry, Namespace, Watch};
use farblock_proto::controller::{ConfigError, NamespaceInfo, SubsystemId};
use farblock_proto::ids::NamespaceId;
use farblock_reactor::os;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Exported {
    backing: Backing,
    /// The store's properties before the settings below apply.
    info: NamespaceInfo,
    /// The configured NGUID, if set.
    nguid: Option<[u8; 16]>,
    /// The configured EUI-64, if set.
    eui64: Option<[u8; 8]>,
    /// The number of shared blocks; `None`: all blocks.
    blocks: Option<u64>,
    /// Whether the namespace is write-protected, even if its store is writable.
    protected: bool,
    /// The rate limits from which `backing.pace` was created.
    rates: Rates,
    /// The subscription to the namespace's reports of changes.
    watch: Option<Watch>,
}

impl Exported {
    fn new(backing: Backing, info: NamespaceInfo, sharing: &Sharing) -> Self {
        let rates = Rates::default();
        let (nguid, eui64, blocks, watch) = (None, None, None, None);
        let mut new = Self { backing, info, nguid, eui64, blocks, protected: false, rates, watch };
        new.share(sharing);
        new
    }

    /// Applies new settings, except for `visible_to`. The registry stores `visible_to`.
    fn share(&mut self, sharing: &Sharing) {
        self.info.ana_group = sharing.ana_group;
        self.nguid = sharing.nguid;
        self.eui64 = sharing.eui64;
        self.blocks = sharing.blocks;
        self.protected = sharing.read_only;
        self.limit(&sharing.rates);
    }

    /// Sets rate limits. If they equal the current limits, does nothing and returns false, since a
    /// new [`Pace`] would allow a whole burst at once.
    fn limit(&mut self, rates: &Rates) -> bool {
        let is_new = self.rates != *rates;
        if is_new {
            self.rates = *rates;
            self.backing.pace = Pace::new(rates, os::now()).map(Arc::new);
        }
        is_new
    }

    /// Returns the namespace's settings, without `visible_to`.
    fn sharing(&self) -> Sharing {
        Sharing {
            ana_group: self.info.ana_group,
            visible_to: None,
            nguid: self.nguid,
            eui64: self.eui64,
            blocks: self.blocks,
            read_only: self.protected,
            rates: self.rates,
        }
    }

    fn offered(&self) -> NamespaceInfo {
        self.sharing().of(self.info)
    }
}

/// All shared namespaces. This changes only together with the registry.
#[derive(Default)]
pub(crate) struct Exports {
    subsystems: HashMap<SubsystemId, BTreeMap<NamespaceId, Exported>>,
    /// The rate limits of hosts by host name, and their consumption.
    hosts: HashMap<SubsystemId, BTreeMap<String, (Rates, HostTerms)>>,
    /// For each subsystem, the list of stores that was last built, unless a change has made it out
    /// of date. The queues of all hosts share this list.
    snapshots: HashMap<SubsystemId, Arc<Backings>>,
    /// The permits of the ANA groups that a group of targets controls.
    permits: BTreeMap<u32, Arc<Permit>>,
    last_id: u64,
}

impl Exports {
    pub(crate) fn new(permits: BTreeMap<u32, Arc<Permit>>) -> Self {
        Self { permits, ..Self::default() }
    }

    /// Adds a namespace that the registry already contains.
    pub(crate) fn insert(
        &mut self,
        subsystem: SubsystemId,
        nsid: NamespaceId,
        export: &Export,
        (info, sharing): (NamespaceInfo, &Sharing),
    ) {
        let backing = self.backing(export);
        self.of(subsystem).insert(nsid, Exported::new(backing, info, sharing));
    }

    fn backing(&mut self, export: &Export) -> Backing {
        self.last_id += 1;
        let namespace = Arc::clone(&export.namespace);
        let id = BackingId(self.last_id);
        Backing { id, namespace, pace: None, losses: Arc::default(), permit: None }
    }

    fn of(&mut self, subsystem: SubsystemId) -> &mut BTreeMap<NamespaceId, Exported> {
        self.snapshots.remove(&subsystem);
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

    pub(crate) fn storage(
        &self,
        subsystem: SubsystemId,
        nsid: NamespaceId,
    ) -> Option<&dyn Namespace> {
        let exported = self.subsystems.get(&subsystem)?.get(&nsid)?;
        Some(&*exported.backing.namespace)
    }

    pub(crate) fn snapshot(&mut self, subsystem: SubsystemId) -> Arc<Backings> {
        if let Some(snapshot) = self.snapshots.get(&subsystem) {
            return Arc::clone(snapshot);
        }
        let exported = self.subsystems.get(&subsystem).into_iter().flatten();
        let permit = |exported: &Exported| self.permits.get(&exported.info.ana_group).cloned();
        let backings = exported.map(|(nsid, exported)| {
            (*nsid, Backing { permit: permit(exported), ..exported.backing.clone() })
        });
        let hosts = self.hosts.get(&subsystem).into_iter().flatten();
        let hosts = hosts.map(|(host, (_, terms))| (host.clone(), terms.clone()));
        let snapshot = Arc::new(backings.collect::<Backings>().with_hosts(hosts.collect()));
        self.snapshots.insert(subsystem, Arc::clone(&snapshot));
        snapshot
    }

    /// Sets a host's rate limits. If they equal the current limits, does nothing and returns false.
    fn limit_host(&mut self, subsystem: SubsystemId, host: &str, rates: &Rates) -> bool {
        self.snapshots.remove(&subsystem);
        let hosts = self.hosts.entry(subsystem).or_default();
        let known = hosts.get(host);
        let before = known.map_or_else(Rates::default, |(rates, _)| *rates);
        if before == *rates {
            return false;
        }
        let pace = match known {
            // If only the weight has changed, keep the rate limiter and its spent budget.
            Some((_, terms)) if before.limit_alike(rates) => terms.pace.clone(),
            _ => Pace::new(rates, os::now()).map(Arc::new),
        };
        let weight = rates.weight;
        if pace.is_some() || weight != DEFAULT_WEIGHT {
            hosts.insert(host.to_owned(), (*rates, HostTerms { pace, weight }));
        } else {
            hosts.remove(host);
        }
        if hosts.is_empty() {
            self.hosts.remove(&subsystem);
        }
        true
    }

    /// Sets the rate limits of the hosts of a new subsystem, which no host uses yet.
    pub(crate) fn limit_hosts(&mut self, subsystem: SubsystemId, hosts: &BTreeMap<String, Rates>) {
        for (host, rates) in hosts {
            self.limit_host(subsystem, host, rates);
        }
    }

    pub(crate) fn forget_hosts(&mut self, subsystem: SubsystemId) {
        self.snapshots.remove(&subsystem);
        self.hosts.remove(&subsystem);
    }

    fn keys(&self) -> Vec<(SubsystemId, NamespaceId)> {
        let subsystems = self.subsystems.iter();
        subsystems
            .flat_map(|(subsystem, namespaces)| namespaces.keys().map(|nsid| (*subsystem, *nsid)))
            .collect()
    }

    /// Returns the stores of all subsystems, for the cores to open.
    pub(crate) fn snapshots(&mut self) -> Vec<Arc<Backings>> {
        let subsystems: Vec<_> = self.subsystems.keys().copied().collect();
        subsystems.into_iter().map(|subsystem| self.snapshot(subsystem)).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.subsystems.values().map(BTreeMap::len).sum()
    }
}

/// Returns the registry's description of `export` as namespace `nsid` of subsystem `nqn`.
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
impl TargetShared {
    /// Returns the stores of all subsystems, for the cores to open.
    pub(crate) fn all_backings(&self) -> Vec<Arc<Backings>> {
        self.lock().exports.snapshots()
    }

    /// Drops all namespaces and unread messages after the target has ended.
    pub(crate) fn forget_exports(&self) {
        let exports = std::mem::take(&mut self.lock().exports);
        // Drop the exports after the release of the lock: the close of a store may take long, and a
        // namespace that reports a change waits for the lock.
        drop(exports);
        for mailbox in self.mailboxes() {
            mailbox.take();
        }
    }

    pub(crate) fn watch_exports(self: &Arc<Self>) {
        let keys = self.lock().exports.keys();
        keys.into_iter().for_each(|(subsystem, nsid)| self.watch_export(subsystem, nsid));
    }

    /// Subscribes to a namespace's changes, and checks whether it has changed since it was added.
    fn watch_export(self: &Arc<Self>, subsystem: SubsystemId, nsid: NamespaceId) {
        let mut management = self.lock();
        let Ok(exported) = management.exports.find(subsystem, nsid) else { return };
        let Some(changes) = exported.backing.namespace.changes() else { return };
        let (shared, backing) = (Arc::downgrade(self), exported.backing.id);
        exported.watch = Some(changes.watch(move |change| {
            let is_told = matches!(change, Change::Geometry | Change::Parts);
            if let (true, Some(shared)) = (is_told, shared.upgrade()) {
                shared.look_again(subsystem, nsid, backing);
            }
        }));
        drop(management);
        self.look_again(subsystem, nsid, backing);
    }

    fn look_again(&self, subsystem: SubsystemId, nsid: NamespaceId, backing: BackingId) {
        let mut management = self.lock();
        let found = management.exports.find(subsystem, nsid);
        if found.is_ok_and(|exported| exported.backing.id == backing) {
            match adjusted(&mut management, subsystem, nsid, |_| Ok(())) {
                Ok(event) => event.iter().for_each(|event| self.observed.log(event)),
                Err(error) => {
                    tracing::error!("cannot notify hosts of a changed namespace: {error}")
                }
            }
        }
        self.act_after_batch(&mut management);
    }

    /// Makes a change, which may remove a namespace. Then executes the actions that follow from the
    /// change.
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
        let removal = removed.map(|exported| management.batches.retire(exported.backing));
        self.act_after_batch(&mut management);
        Ok(removal)
    }

    pub(crate) fn add_namespace(
        self: &Arc<Self>,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: &Sharing,
        store: Option<&Arc<dyn ReservationStore>>,
    ) -> Result<(), ChangeError> {
        let info = describe(nqn, nsid, export);
        check_blocks(nsid, sharing.blocks, &info)?;
        let contents = nested(nsid, export, &info)?;
        let wrong = |error: std::io::Error| ChangeError::Reservations(nsid, error.to_string());
        let mut kept =
            store.map(|store| reservations::read(&**store)).transpose().map_err(wrong)?;
        if store.is_some() {
            self.start_keeper().map_err(wrong)?;
        }
        let mut added_to = None;
        self.change(nqn, |management, subsystem| {
            let registry = &mut management.registry;
            let (offered, hosts) = (sharing.of(info), sharing.visible_to.clone());
            let added = registry.add_namespace_for(subsystem, nsid, offered, hosts, kept.take());
            added
                .and_then(|()| registry.set_contents(subsystem, nsid, contents))
                .map_err(|error| ChangeError::Namespace(nsid, error))?;
            management.exports.insert(subsystem, nsid, export, (info, sharing));
            if let Some(store) = store {
                self.keeper.keep_in((subsystem, nsid), Arc::clone(store));
            }
            added_to = Some(subsystem);
            self.observed.log_change(&Event::NamespaceAdded(nqn.to_owned(), nsid.0));
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
            self.keeper.forget((subsystem, nsid));
            self.meters.forget_namespace(subsystem, nsid);
            self.store_errors.forget((subsystem, nsid));
            self.observed.log_change(&Event::NamespaceRemoved(nqn.to_owned(), nsid.0));
            Ok(Some(removed.expect("the registry listed the namespace")))
        })?;
        Ok(removed.expect("the change removed the namespace"))
    }

    pub(crate) fn replace_namespace(
        self: &Arc<Self>,
        nqn: &str,
        nsid: NamespaceId,
        export: &Export,
        sharing: Option<&Sharing>,
    ) -> Result<Removal, ChangeError> {
        let info = describe(nqn, nsid, export);
        check_blocks(nsid, sharing.and_then(|sharing| sharing.blocks), &info)?;
        let contents = nested(nsid, export, &info)?;
        let mut changed_in = None;
        let removed = self.change(nqn, |management, subsystem| {
            let before = management.exports.find(subsystem, nsid)?.sharing();
            let kept =
                Sharing { nguid: None, eui64: None, blocks: None, read_only: false, ..before };
            let (rates, registry) = (kept.rates, &mut management.registry);
            let (to, hosts) = match sharing {
                Some(sharing) => (sharing, sharing.visible_to.clone()),
                None => (&kept, registry.visible_to(subsystem, nsid)),
            };
            let replaced = registry.replace_namespace_for(subsystem, nsid, to.of(info), hosts);
            replaced
                .and_then(|()| registry.set_contents(subsystem, nsid, contents))
                .map_err(|error| ChangeError::Namespace(nsid, error))?;
            let backing = management.exports.backing(export);
            changed_in = Some(subsystem);
            self.store_errors.forget((subsystem, nsid));
            self.observed.log_change(&changed(nqn.to_owned(), nsid, &to.of(info)));
            let exported = management.exports.find(subsystem, nsid)?;
            let backing = Backing { pace: exported.backing.pace.clone(), ..backing };
            let mut new = Exported { rates, ..Exported::new(backing, info, &kept) };
            new.share(to);
            Ok(Some(std::mem::replace(exported, new)))
        })?;
        changed_in.into_iter().for_each(|subsystem| self.watch_export(subsystem, nsid));
        Ok(removed.expect("the change replaced the namespace"))
    }

    /// Returns a [`Quiet`] that waits for the operations in flight at a namespace.
    pub(crate) fn quiet(&self, nqn: &str, nsid: NamespaceId) -> Result<Quiet, ChangeError> {
        let (share, quiet) = Quiet::new();
        self.change(nqn, |management, subsystem| {
            let backing = management.exports.find(subsystem, nsid)?.backing.id;
            for mailbox in self.mailboxes() {
                mailbox.post(Message::Settle(backing, share.clone()));
            }
            Ok(None)
        })?;
        Ok(quiet)
    }

    pub(crate) fn resize_namespace(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        blocks: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.adjust(nqn, nsid, |exported| {
            check_blocks(nsid, blocks, &exported.info)?;
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

    pub(crate) fn set_ana_group(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        ana_group: u32,
    ) -> Result<(), ChangeError> {
        self.adjust(nqn, nsid, |exported| {
            let before = std::mem::replace(&mut exported.info.ana_group, ana_group);
            if before != ana_group {
                self.ana_changes.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    pub(crate) fn set_rates(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        rates: &Rates,
    ) -> Result<(), ChangeError> {
        self.change(nqn, |management, subsystem| {
            if management.exports.find(subsystem, nsid)?.limit(rates) {
                management.registry.publish(subsystem);
            }
            Ok(None)
        })
        .map(|_| ())
    }

    pub(crate) fn set_sharing(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        sharing: &Sharing,
    ) -> Result<(), ChangeError> {
        self.change(nqn, |management, subsystem| {
            let Management { registry, exports, .. } = management;
            let exported = exports.find(subsystem, nsid)?;
            let info = with_geometry(exported.info, &exported.backing.namespace.geometry());
            check_blocks(nsid, sharing.blocks, &info)?;
            let (before, offered) = (exported.offered(), sharing.of(info));
            let hosts = sharing.visible_to.clone();
            // Notify hosts only if the properties that they see have changed.
            let changed_too = match offered == before {
                true => registry.set_visible_to(subsystem, nsid, hosts),
                false => registry.replace_namespace_for(subsystem, nsid, offered, hosts),
            };
            changed_too.map_err(|error| ChangeError::Namespace(nsid, error))?;
            let rates = exported.rates;
            exported.info = info;
            exported.share(sharing);
            if rates != exported.rates {
                registry.publish(subsystem);
            }
            if offered != before {
                self.observed.log_change(&changed(nqn.to_owned(), nsid, &offered));
            }
            Ok(None)
        })
        .map(|_| ())
    }

    pub(crate) fn set_host_rates(
        &self,
        nqn: &str,
        host: &str,
        rates: &Rates,
    ) -> Result<(), ChangeError> {
        self.change(nqn, |management, subsystem| {
            if management.exports.limit_host(subsystem, host, rates) {
                management.registry.publish(subsystem);
            }
            Ok(None)
        })
        .map(|_| ())
    }

    pub(crate) fn set_visible_to(
        &self,
        nqn: &str,
        nsid: NamespaceId,
        hosts: Option<&BTreeSet<String>>,
    ) -> Result<(), ChangeError> {
        self.change(nqn, |management, subsystem| {
            let set = management.registry.set_visible_to(subsystem, nsid, hosts.cloned());
            set.map_err(|error| ChangeError::Namespace(nsid, error))?;
            Ok(None)
        })
        .map(|_| ())
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
            let event = adjusted(management, subsystem, nsid, change)?;
            event.iter().for_each(|event| self.observed.log_change(event));
            Ok(None)
        })
        .map(|_| ())
    }
}

/// Applies a change to a namespace. Returns the event if hosts see a difference.
fn adjusted(
    management: &mut Management,
    subsystem: SubsystemId,
    nsid: NamespaceId,
    change: impl FnOnce(&mut Exported) -> Result<(), ChangeError>,
) -> Result<Option<Event>, ChangeError> {
    let Some(offered) = adjust(management, subsystem, nsid, change)? else { return Ok(None) };
    let config = management.registry.subsystem(subsystem);
    let nqn = config.map_or_else(String::new, |config| config.nqn.clone());
    Ok(Some(changed(nqn, nsid, &offered)))
}

/// Changes a namespace's settings and rereads its geometry. If hosts see a difference, notifies
/// them and returns the new properties.
fn adjust(
    management: &mut Management,
    subsystem: SubsystemId,
    nsid: NamespaceId,
    change: impl FnOnce(&mut Exported) -> Result<(), ChangeError>,
) -> Result<Option<NamespaceInfo>, ChangeError> {
    let Management { registry, exports, .. } = management;
    let exported = exports.find(subsystem, nsid)?;
    let (info, blocks, protected) = (exported.info, exported.blocks, exported.protected);
    let before = exported.offered();
    exported.info = with_geometry(info, &exported.backing.namespace.geometry());
    let contents = contents(&*exported.backing.namespace);
    registry
        .set_contents(subsystem, nsid, contents)
        .map_err(|error| ChangeError::Namespace(nsid, error))?;
    change(exported)?;
    let offered = exported.offered();
    if offered != before {
        registry.replace_namespace(subsystem, nsid, offered).map_err(|error| {
            // Undo the change, since hosts keep the old properties.
            exported.info = info;
            (exported.blocks, exported.protected) = (blocks, protected);
            ChangeError::Namespace(nsid, error)
        })?;
        return Ok(Some(offered));
    }
    Ok(None)
}

/// Passes the namespace's UUID to its parts with [`nest`]. Returns the UUIDs of the remote
/// namespaces that it consists of.
fn nested(
    nsid: NamespaceId,
    export: &Export,
    info: &NamespaceInfo,
) -> Result<Vec<[u8; 16]>, ChangeError> {
    nest(&*export.namespace, info.uuid).map_err(|error| ChangeError::Namespace(nsid, error))
}

fn check_blocks(
    namespace: NamespaceId,
    wanted: Option<u64>,
    info: &NamespaceInfo,
) -> Result<(), ChangeError> {
    match wanted.filter(|wanted| *wanted > info.blocks) {
        Some(wanted) => Err(ChangeError::TooFewBlocks { namespace, wanted, blocks: info.blocks }),
        None => Ok(()),
    }
}

fn changed(subsystem: String, nsid: NamespaceId, now: &NamespaceInfo) -> Event {
    let bytes = now.blocks * u64::from(now.block_size);
    Event::NamespaceChanged { subsystem, nsid: nsid.0, bytes, read_only: now.read_only }
}
