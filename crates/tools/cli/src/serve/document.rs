//! What is shared, as a document and as what a target is started with.

use super::disks;
use farblock_admin::{Disks, Opened};
use farblock_backends::Spec;
use farblock_proto::ids::NamespaceId;
use farblock_state::{Document, Host, Listener, Namespace, Referral};
use farblock_target::{Export, Subsystem, TargetConfig};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// What a target begins with: the same thing said in three ways.
#[derive(Default)]
pub(super) struct Shares {
    pub(super) config: TargetConfig,
    pub(super) document: Document,
    pub(super) disks: Disks,
}

impl Shares {
    /// Adds what was opened to the subsystem of this number.
    pub(super) fn add(&mut self, index: usize, nsid: NamespaceId, opened: Opened) {
        let subsystem = &mut self.config.subsystems[index];
        let namespace = std::sync::Arc::clone(&opened.namespace);
        let export = Export { namespace, identity: opened.identity.clone() };
        subsystem.exports.insert(nsid, export);
        self.disks.insert((subsystem.config.nqn.clone(), nsid.0), opened);
    }

    /// Says where reservations of a namespace are kept, if there is a place.
    pub(super) fn keep_reservations(&mut self, index: usize, nsid: NamespaceId, spec: &Spec) {
        if let Some(store) = disks::reservations(spec) {
            self.config.subsystems[index].reservations.insert(nsid, store);
        }
    }

    pub(super) fn describe(&mut self, nqn: &str, nsid: NamespaceId, namespace: Namespace) {
        let subsystem = self.document.subsystems.entry(nqn.to_owned()).or_default();
        subsystem.namespaces.insert(nsid.0, namespace);
    }

    /// With an identity of its own for each namespace.
    pub(super) fn distinguished(mut self) -> Self {
        disks::distinguish(&mut self.config.subsystems);
        for subsystem in &self.config.subsystems {
            for (nsid, export) in &subsystem.exports {
                if let Some(opened) = self.disks.get_mut(&(subsystem.config.nqn.clone(), nsid.0)) {
                    opened.identity.clone_from(&export.identity);
                }
            }
        }
        self
    }
}

/// What a configuration says, but for its namespaces.
pub(super) fn of(config: &TargetConfig) -> Document {
    let referrals = config.referrals.iter().filter_map(|referral| {
        let address: IpAddr = referral.address.parse().ok()?;
        Some((SocketAddr::new(address, referral.service.parse().ok()?), Referral {}))
    });
    let subsystems = config.subsystems.iter().map(|subsystem| {
        let (given, usual) = (&subsystem.config, Subsystem::new(&subsystem.config.nqn).config);
        let hosts = given.allowed_hosts.iter().map(|host| (host.clone(), Host {}));
        let described = farblock_state::Subsystem {
            serial: Some(given.serial.clone()).filter(|serial| *serial != usual.serial),
            model: Some(given.model.clone()).filter(|model| *model != usual.model),
            allow_any_host: given.allow_any_host,
            hosts: hosts.collect(),
            namespaces: BTreeMap::new(),
        };
        (given.nqn.clone(), described)
    });
    Document {
        listeners: listeners(&config.listeners),
        referrals: referrals.collect(),
        subsystems: subsystems.collect(),
        ..Document::default()
    }
}

/// What is listened on.
pub(super) fn listeners(addresses: &[SocketAddr]) -> BTreeMap<SocketAddr, Listener> {
    addresses.iter().map(|address| (*address, Listener {})).collect()
}

/// A namespace that is stored there.
pub(super) fn namespace(spec: &Spec, block_size: u32, read_only: bool) -> Namespace {
    Namespace { block_size, read_only, ..Namespace::new(disks::name(spec)) }
}
