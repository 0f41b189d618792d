//! The initial state of a target, as a [`Document`] (the form in which a target saves its state)
//! and as a [`TargetConfig`].

use super::{disks, names};
use crate::args::ServeArgs;
use crate::error::Result;
use farblock_admin::{Disks, Opened, rates, sharing};
use farblock_backends::Spec;
use farblock_proto::controller::PortAccess;
use farblock_proto::ids::NamespaceId;
use farblock_state::{Ana, Document, Entrance, Host, Listener, Namespace, Referral, Tls};
use farblock_target::{Export, Subsystem, TargetConfig, TlsPolicy};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The initial state of a target, in both forms, and its open disks.
#[derive(Default)]
pub(super) struct Shares {
    pub(super) config: TargetConfig,
    pub(super) document: Document,
    pub(super) disks: Disks,
    /// The disks that only the leader of a group opens, by subsystem and namespace ID.
    pub(super) led: BTreeMap<(String, u32), Led>,
}

/// A disk that a group shares: only the group's leader opens it.
pub(super) struct Led {
    pub(super) spec: Spec,
    pub(super) block_size: u32,
    pub(super) read_only: bool,
}

/// A function that opens the disks of the configuration. A target with a saved state does not call
/// it: a disk that was removed at run time may no longer exist.
pub(super) type Opening<'a> =
    Box<dyn FnOnce(Shares, &mut dyn FnMut(String)) -> Result<Shares> + 'a>;

impl Shares {
    pub(super) fn add(&mut self, index: usize, nsid: NamespaceId, opened: Opened) {
        let subsystem = &mut self.config.subsystems[index];
        let namespace = std::sync::Arc::clone(&opened.namespace);
        let export = Export { namespace, identity: opened.identity.clone() };
        subsystem.exports.insert(nsid, export);
        subsystem.reservations.extend(opened.reservations.clone().map(|kept_in| (nsid, kept_in)));
        self.disks.insert((subsystem.config.nqn.clone(), nsid.0), opened);
    }

    /// Adds the listeners to the document. The command line overrides the configuration.
    pub(super) fn listen_as(&mut self, args: &ServeArgs) {
        let access = common_access(&self.document, args.ana);
        let before = std::mem::take(&mut self.document.listeners);
        self.document.listeners = listeners(&self.config.entrances(), &before, &access, tls(args));
        if let Some(ids) = &args.cntlids {
            self.config.controller_ids = ids.clone();
        }
    }

    /// Copies ANA states, TLS policies, visibility and limits from the document to the
    /// `TargetConfig`.
    pub(super) fn agreed(mut self) -> Self {
        self.config.access = access(&self.document, &self.config.entrances());
        self.config.tls_listeners = policies(&self.document, &self.config.entrances());
        for subsystem in &mut self.config.subsystems {
            let described = self.document.subsystems.get(&subsystem.config.nqn);
            let namespaces = described.into_iter().flat_map(|described| &described.namespaces);
            for (nsid, namespace) in namespaces {
                subsystem.sharing.insert(NamespaceId(*nsid), sharing(namespace));
            }
            let hosts = described.into_iter().flat_map(|described| &described.hosts);
            let limited = hosts.filter(|(_, host)| !host.limits.is_empty());
            subsystem.host_rates =
                limited.map(|(name, it)| (name.clone(), rates(&it.limits))).collect();
        }
        self
    }

    pub(super) fn describe(&mut self, nqn: &str, nsid: NamespaceId, namespace: Namespace) {
        let subsystem = self.document.subsystems.entry(nqn.to_owned()).or_default();
        subsystem.namespaces.insert(nsid.0, namespace);
    }

    /// Makes the identities of all namespaces distinct.
    pub(super) fn distinguished(mut self) -> Self {
        let given = |nqn: &str, nsid: NamespaceId| {
            let described = self.document.subsystems.get(nqn);
            described.and_then(|it| it.namespaces.get(&nsid.0)).is_some_and(|it| it.uuid.is_some())
        };
        disks::distinguish(&mut self.config.subsystems, &given);
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

/// Converts a `TargetConfig` to a document, without namespaces and key files.
pub(super) fn of(config: &TargetConfig) -> Document {
    let referrals = config.referrals.iter().filter_map(|referral| {
        let address: IpAddr = referral.address.parse().ok()?;
        Some((SocketAddr::new(address, referral.service.parse().ok()?), Referral {}))
    });
    let subsystems = config.subsystems.iter().map(|subsystem| {
        let (given, usual) = (&subsystem.config, Subsystem::new(&subsystem.config.nqn).config);
        let hosts = given.allowed_hosts.iter().map(|host| (host.clone(), Host::default()));
        let described = farblock_state::Subsystem {
            serial: Some(given.serial.clone()).filter(|serial| *serial != usual.serial),
            model: Some(given.model.clone()).filter(|model| *model != usual.model),
            min_cntlid: given.controller_ids.as_ref().map(|ids| *ids.start()),
            max_cntlid: given.controller_ids.as_ref().map(|ids| *ids.end()),
            allow_any_host: given.allow_any_host,
            hosts: hosts.collect(),
            namespaces: BTreeMap::new(),
        };
        (given.nqn.clone(), described)
    });
    Document {
        listeners: listeners(&config.entrances(), &BTreeMap::new(), &Listener::default(), None),
        referrals: referrals.collect(),
        subsystems: subsystems.collect(),
        ..Document::default()
    }
}

/// Returns a listener for each address, with the ANA states of `access`. Each gets the TLS policy
/// `tls`. If that is `None`, it keeps its policy in `before`, and a new address gets the strictest
/// policy in `before`.
pub(super) fn listeners(
    addresses: &[Entrance],
    before: &BTreeMap<Entrance, Listener>,
    access: &Listener,
    tls: Option<Tls>,
) -> BTreeMap<Entrance, Listener> {
    let strictest = before.values().map(|one| one.tls).max().unwrap_or_default();
    let said = |address| before.get(address).map_or(strictest, |one: &Listener| one.tls);
    let listener = |address| {
        let tls = tls.unwrap_or_else(|| said(address));
        Listener { tls, ..access.clone() }
    };
    addresses.iter().map(|address| (*address, listener(address))).collect()
}

/// Returns the TLS policy for all listeners, if the command line sets one.
pub(super) fn tls(args: &ServeArgs) -> Option<Tls> {
    args.tls.or_else(|| (!args.tls_key.is_empty()).then_some(Tls::Required))
}

/// Returns the ANA states that all listeners of a configuration have. `ana`, from the command line,
/// overrides the state for the whole listener.
pub(super) fn common_access(document: &Document, ana: Option<Ana>) -> Listener {
    let mut access = document.listeners.values().next().cloned().unwrap_or_default();
    access.ana = ana.unwrap_or(access.ana);
    access
}

/// Returns the document's listeners at the addresses that the target bound, so without port 0.
#[cfg(unix)]
pub(super) fn bound(document: &Document, addresses: &[Entrance]) -> BTreeMap<Entrance, Listener> {
    let listener = |address: &Entrance| {
        let asked_for = [*address, address.with_port(0)];
        let found = asked_for.iter().find_map(|address| document.listeners.get(address));
        (*address, found.cloned().unwrap_or_default())
    };
    addresses.iter().map(listener).collect()
}

/// Returns the ANA states of each listener, by the listener's index.
pub(super) fn access(document: &Document, addresses: &[Entrance]) -> BTreeMap<usize, PortAccess> {
    let listener = |address| document.listeners.get(address);
    let each = addresses.iter().enumerate();
    each.filter_map(|(index, it)| Some((index, farblock_admin::access(listener(it)?)))).collect()
}

fn policies(document: &Document, addresses: &[Entrance]) -> BTreeMap<usize, TlsPolicy> {
    let listener = |address| document.listeners.get(address);
    let each = addresses.iter().enumerate();
    each.filter_map(|(at, it)| Some((at, farblock_admin::tls_policy(listener(it)?.tls)))).collect()
}

pub(super) fn namespace(spec: &Spec, block_size: u32, read_only: bool) -> Namespace {
    Namespace { block_size, read_only, ..Namespace::new(names::name(spec)) }
}
