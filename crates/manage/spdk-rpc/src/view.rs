//! The target as SPDK's clients see it: the document, and the bdevs of its namespaces.

use super::bdevs::{Bdev, BdevKind, is_of};
use super::message::RpcError;
use super::{Extra, SpdkRpc, Table};
use farblock_backends::Spec;
use farblock_state::{Document, Entrance, Namespace, Subsystem};
use farblock_target::{NamespaceReport, Report};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use uuid::Uuid;

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A snapshot of the target.
pub(super) struct View {
    pub(super) document: Document,
    pub(super) report: Report,
    /// The bdevs that clients have created, and then one bdev for each other namespace.
    pub(super) bdevs: Vec<Bdev>,
    pub(super) uses: Vec<Use>,
}

/// A namespace and its bdev.
pub(super) struct Use {
    pub(super) nqn: String,
    pub(super) nsid: u32,
    pub(super) bdev: String,
}

pub(super) fn is_discovery(nqn: &str) -> bool {
    nqn == DISCOVERY || nqn == "discovery"
}

impl SpdkRpc {
    pub(super) fn view(&self) -> View {
        let (document, _) = self.steering.document();
        let report = self.steering.report();
        let made = self.bdevs.all();
        let mut bdevs = made.clone();
        let mut uses = Vec::new();
        for (nqn, subsystem) in &document.subsystems {
            for (&nsid, namespace) in &subsystem.namespaces {
                // Each namespace from another interface has its own bdev: two RAM disks of the same
                // size are two disks.
                let bdev = match made.iter().find(|bdev| is_of(namespace, bdev)) {
                    Some(bdev) => bdev.name.clone(),
                    None => {
                        let seen = reported(&report, nqn, nsid);
                        let name = free_name(&bdevs, nqn, nsid);
                        bdevs.push(of_others(name.clone(), namespace, seen));
                        name
                    }
                };
                uses.push(Use { nqn: nqn.clone(), nsid, bdev });
            }
        }
        View { document, report, bdevs, uses }
    }
}

/// A name for a bdev that no client has named. It differs from all names that clients gave, so that
/// no call reaches the wrong bdev.
fn free_name(bdevs: &[Bdev], nqn: &str, nsid: u32) -> String {
    let mut name = format!("{nqn}/{nsid}");
    while bdevs.iter().any(|bdev| bdev.name == name) {
        name.push('\'');
    }
    name
}

/// Returns a bdev for a namespace whose storage is not a bdev of a client.
fn of_others(name: String, namespace: &Namespace, seen: Option<&NamespaceReport>) -> Bdev {
    let kind = match Spec::parse(&namespace.path) {
        Ok(Spec::Mem { .. }) => BdevKind::Malloc,
        Ok(Spec::Null { .. }) => BdevKind::Null,
        Ok(Spec::Stripe { .. }) => BdevKind::Raid,
        Ok(Spec::File(_)) => BdevKind::Aio,
        _ => BdevKind::Other,
    };
    let uuid = seen.map(|seen| Uuid::from_bytes(seen.uuid)).or(namespace.uuid);
    Bdev {
        name,
        kind,
        uuid: uuid.unwrap_or_default(),
        namespace: namespace.clone(),
        opened: None,
        bases: Vec::new(),
        strip_kib: 0,
    }
}

fn reported<'a>(report: &'a Report, nqn: &str, nsid: u32) -> Option<&'a NamespaceReport> {
    let subsystem = report.subsystems.iter().find(|one| one.nqn == nqn)?;
    subsystem.namespaces.iter().find(|one| one.nsid == nsid)
}

impl View {
    pub(super) fn bdev(&self, name: &str) -> Option<&Bdev> {
        let uuid = Uuid::parse_str(name).ok();
        self.bdevs.iter().find(|bdev| bdev.name == name || uuid == Some(bdev.uuid))
    }

    /// The namespaces on a bdev.
    pub(super) fn uses_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Use> {
        self.uses.iter().filter(move |one| one.bdev == name)
    }

    /// The RAID bdev that uses a bdev.
    pub(super) fn raid_over(&self, name: &str) -> Option<&Bdev> {
        self.bdevs.iter().find(|bdev| bdev.bases.iter().any(|base| base == name))
    }

    pub(super) fn bdev_at(&self, nqn: &str, nsid: u32) -> &str {
        let found = self.uses.iter().find(|one| one.nqn == nqn && one.nsid == nsid);
        found.map_or("", |one| &one.bdev)
    }

    pub(super) fn reported(&self, nqn: &str, nsid: u32) -> Option<&NamespaceReport> {
        reported(&self.report, nqn, nsid)
    }

    /// The size of a bdev in blocks.
    pub(super) fn blocks(&self, bdev: &Bdev) -> u64 {
        if let Some(opened) = &bdev.opened {
            return opened.namespace.geometry().blocks;
        }
        let place = self.uses_of(&bdev.name).next();
        let seen = place.and_then(|one| self.reported(&one.nqn, one.nsid));
        seen.map_or(0, |seen| seen.blocks)
    }

    pub(super) fn subsystem(&self, nqn: &str) -> Result<&Subsystem, RpcError> {
        self.document.subsystems.get(nqn).ok_or_else(|| no_subsystem(nqn))
    }
}

pub(super) fn no_subsystem(nqn: &str) -> RpcError {
    let sentence = format!("Subsystem with NQN '{nqn}' not found");
    RpcError::new(super::message::INVALID_PARAMETERS, sentence)
}

impl Table {
    /// The addresses at which clients let a subsystem listen.
    pub(super) fn listeners(&self, nqn: &str, document: &Document) -> BTreeSet<Entrance> {
        let everywhere = || document.listeners.keys().copied().collect();
        match self.subsystems.get(nqn).and_then(|extra| extra.listeners.as_ref()) {
            Some(listed) => listed.clone(),
            None if is_discovery(nqn) => BTreeSet::new(),
            None => everywhere(),
        }
    }

    pub(super) fn extra(&mut self, nqn: &str) -> &mut Extra {
        self.subsystems.entry(nqn.to_owned()).or_default()
    }
}

/// An address in SPDK's format.
pub(super) fn shown_address(entrance: &Entrance) -> Value {
    let Entrance { transport, address } = entrance;
    json!({
        "trtype": transport.name().to_ascii_uppercase(),
        "adrfam": if address.is_ipv4() { "IPv4" } else { "IPv6" },
        "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
    })
}
