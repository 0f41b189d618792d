//! Reports of a running target's state, for people and programs.

use super::listeners::transport;
use super::{Management, TargetShared};
use crate::budget::Budget;
use crate::config::TlsPolicy;
use farblock_block::{Availability, Namespace};
use farblock_proto::controller::{
    Entrance, Lifecycle, NamespaceInfo, SmartCounters, SubsystemId, Transport,
};
use farblock_proto::ids::{ControllerId, NamespaceId};
use farblock_reactor::Polling;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A snapshot of a running target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The listeners that accept connections.
    pub addresses: Vec<Entrance>,
    /// The RDMA listeners without a device. The target tries to listen there again.
    pub lost: BTreeSet<Entrance>,
    /// The time since the target started.
    pub uptime: Duration,
    /// The number of connections, including those that have not completed Connect.
    pub connections: usize,
    /// TLS policies by listener.
    pub tls: BTreeMap<Entrance, TlsPolicy>,
    /// The time that event loops poll before they sleep.
    pub polling: Polling,
    /// The memory, cores and connections that the target may use.
    pub budget: Budget,
    /// The target's subsystems.
    pub subsystems: Vec<SubsystemReport>,
    /// The controllers of the target's hosts.
    pub controllers: Vec<ControllerReport>,
}

/// A subsystem and its I/O counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubsystemReport {
    /// The subsystem's name.
    pub nqn: String,
    /// Whether hosts outside the list of allowed hosts may connect.
    pub allow_any_host: bool,
    /// The allowed hosts.
    pub hosts: Vec<String>,
    /// The hosts that must authenticate, with the fingerprints of their valid secrets.
    pub keys: BTreeMap<String, Vec<String>>,
    /// The hosts that must use TLS.
    pub tls_hosts: Vec<String>,
    /// Commands, bytes and errors since the subsystem was added.
    pub counters: SmartCounters,
    /// The subsystem's namespaces.
    pub namespaces: Vec<NamespaceReport>,
}

/// A namespace as hosts see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceReport {
    /// The namespace's identifier.
    pub nsid: u32,
    /// The size of a block in bytes.
    pub block_size: u32,
    /// The namespace's capacity in blocks.
    pub blocks: u64,
    /// Whether the target refuses writes.
    pub read_only: bool,
    /// The namespace's UUID.
    pub uuid: [u8; 16],
    /// The namespace's NGUID.
    pub nguid: [u8; 16],
    /// The age and text of the store's last error.
    pub last_failure: Option<(Duration, String)>,
    /// The current fault of the store and its remedy, if the store reports them.
    pub trouble: Option<String>,
    /// Whether the storage can currently execute operations.
    pub availability: Availability,
}

/// A host's controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerReport {
    /// The controller's identifier.
    pub id: u16,
    /// The subsystem's name; `None` for a discovery controller.
    pub subsystem: Option<String>,
    /// The host's name.
    pub host_nqn: String,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The host's address.
    pub peer: Option<IpAddr>,
    /// The local address of the admin queue's connection.
    pub local: String,
    /// The transport of the admin queue's connection.
    pub transport: Transport,
    /// Whether the host has enabled the controller.
    pub is_ready: bool,
    /// The number of connected I/O queues.
    pub io_queues: usize,
    /// The error count of the controller's error information log.
    pub errors: u64,
}

impl TargetShared {
    pub(crate) fn hosts(&self) -> Vec<String> {
        let management = self.lock();
        let all = management.registry.controllers().filter(|summary| summary.io_queues > 0);
        let names: BTreeSet<&str> = all.map(|summary| summary.host_nqn).collect();
        names.into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn report(&self) -> Report {
        let mut management = self.lock();
        self.publish_counters(&mut management.registry);
        let Management { registry, exports, origins, .. } = &mut *management;
        let name = |id: SubsystemId| registry.subsystem(id).map(|config| config.nqn.clone());
        let controllers = registry.controllers().map(|summary| ControllerReport {
            id: summary.controller.0,
            subsystem: summary.subsystem.and_then(name),
            host_nqn: summary.host_nqn.to_owned(),
            host_id: summary.host_id,
            peer: origins.get(&summary.controller).map(|it| it.address),
            local: summary.local_address.to_owned(),
            transport: transport(summary.remote),
            is_ready: summary.lifecycle == Lifecycle::Ready,
            io_queues: summary.io_queues,
            errors: summary.errors,
        });
        let controllers: Vec<_> = controllers.collect();
        let subsystems = registry.subsystems().map(|(id, config)| SubsystemReport {
            nqn: config.nqn.clone(),
            allow_any_host: config.allow_any_host,
            hosts: config.allowed_hosts.clone(),
            keys: self.authenticator.fingerprints(&config.nqn),
            tls_hosts: self.tls.hosts(&config.nqn),
            counters: registry.smart_counters(id),
            namespaces: config
                .namespaces
                .iter()
                .map(|(nsid, info)| {
                    let last_failure = self.store_errors.last((id, *nsid));
                    namespace(*nsid, info, exports.storage(id, *nsid), last_failure)
                })
                .collect(),
        });
        let subsystems = subsystems.collect();
        let living = |id: &ControllerId| controllers.iter().any(|one| one.id == id.0);
        origins.retain(|id, _| living(id));
        drop(management);
        Report {
            addresses: self.listening.alive(),
            lost: self.listening.lost(),
            uptime: farblock_reactor::os::elapsed(self.epoch),
            tls: self.listening.policies(&self.tls),
            connections: self.connections.load(Ordering::Relaxed),
            budget: self.budget.clone(),
            polling: self.polling.get().copied().unwrap_or_default(),
            subsystems,
            controllers,
        }
    }
}

fn namespace(
    nsid: NamespaceId,
    info: &NamespaceInfo,
    storage: Option<&dyn Namespace>,
    last_failure: Option<(Duration, String)>,
) -> NamespaceReport {
    NamespaceReport {
        nsid: nsid.0,
        block_size: info.block_size,
        blocks: info.blocks,
        read_only: info.read_only,
        uuid: info.uuid,
        nguid: info.nguid,
        last_failure,
        trouble: storage.and_then(Namespace::trouble),
        availability: storage.map_or(Availability::Ready, Namespace::availability),
    }
}
