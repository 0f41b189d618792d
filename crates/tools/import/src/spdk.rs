//! Reads the output of SPDK's `save_config`: the calls that recreate SPDK's target.

use super::{Imported, KEYS, is_on, number, said};
use farblock_secure::{Group, Hash};
use farblock_state::{
    Ana, Entrance, Eui64, Host, Limits, Listener, Namespace, Referral, Subsystem, Tls, Transport,
};
use farblock_wire::fabrics::CNTLID_MAX;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use uuid::Uuid;

const MIB: u64 = 1 << 20;

/// Calls that only tune SPDK or wait for SPDK. The importer ignores these calls, and all calls
/// whose names end in `_set_options`.
const TUNING: &[&str] = &[
    "bdev_wait_for_examine",
    "bdev_nvme_set_hotplug",
    "bdev_examine",
    "framework_set_scheduler",
    "framework_wait_init",
    "iobuf_set_options",
    "nvmf_create_transport",
    "nvmf_set_crdt",
    "nvmf_set_max_subsystems",
    "sock_set_default_impl",
    "fsdev_set_opts",
    "accel_assign_opc",
];

#[derive(Default)]
struct Reader {
    imported: Imported,
    bdevs: BTreeMap<String, Namespace>,
    /// The paths of key files, by the name of the key in SPDK's keyring.
    keys: BTreeMap<String, String>,
    /// The allowed hash functions, and the allowed DH groups. An empty list allows all.
    hashes: Vec<String>,
    groups: Vec<String>,
    /// The pairs of a listener and a subsystem that SPDK offers there.
    offered: BTreeSet<(Entrance, String)>,
}

pub(super) fn read(subsystems: &[Value]) -> Imported {
    let mut reader = Reader::default();
    let calls = subsystems.iter().flat_map(|one| one["config"].as_array().into_iter().flatten());
    for call in calls {
        if let Some(method) = said(&call["method"]) {
            reader.call(method, &call["params"]);
        }
    }
    reader.note_keys_for_tls();
    reader.note_what_is_not_offered();
    reader.imported
}

impl Reader {
    fn call(&mut self, method: &str, params: &Value) {
        match method {
            "bdev_malloc_create" | "bdev_null_create" | "bdev_aio_create" | "bdev_uring_create"
            | "bdev_raid_create" => self.bdev(method, params),
            "bdev_set_qos_limit" => self.limits(params),
            "keyring_file_add_key" => self.key(params),
            "nvmf_set_config" => self.authentication(params),
            "nvmf_create_subsystem" => self.subsystem(params),
            "nvmf_subsystem_add_host" => self.host(params),
            "nvmf_subsystem_add_ns" => self.namespace(params),
            "nvmf_ns_add_host" => self.visible(params),
            "nvmf_subsystem_add_listener" => self.listener(params),
            "nvmf_subsystem_listener_set_ana_state" => self.state(params),
            "nvmf_discovery_add_referral" => self.referral(params),
            _ if TUNING.contains(&method) || method.ends_with("_set_options") => {}
            other => {
                let name = said(&params["name"]).map(|name| format!(" ({name})"));
                let name = name.unwrap_or_default();
                self.imported.note(format!("{other}{name}: farblock has no equivalent"));
            }
        }
    }

    fn key(&mut self, params: &Value) {
        if let (Some(name), Some(path)) = (said(&params["name"]), said(&params["path"])) {
            self.keys.insert(name.to_owned(), path.to_owned());
        }
    }

    fn authentication(&mut self, params: &Value) {
        let fewer = |key: &str, all: usize| {
            let names = params[key].as_array().into_iter().flatten();
            let names: Vec<_> = names.filter_map(said).map(ToOwned::to_owned).collect();
            if names.len() < all { names } else { Vec::new() }
        };
        self.hashes = fewer("dhchap_digests", Hash::ALL.len());
        self.groups = fewer("dhchap_dhgroups", Group::ALL.len());
    }

    fn bdev(&mut self, method: &str, params: &Value) {
        let Some(name) = said(&params["name"]) else { return };
        let blocks = number(&params["num_blocks"]).unwrap_or(0);
        let block_size = number(&params["block_size"]).unwrap_or(512);
        let bytes = blocks.saturating_mul(block_size);
        let path = match method {
            "bdev_malloc_create" => Ok(format!("mem:{bytes}")),
            "bdev_null_create" => Ok(format!("null:{bytes}")),
            "bdev_raid_create" => self.striped(params),
            _ => said(&params["filename"]).map(ToOwned::to_owned).ok_or("it names no file"),
        };
        let path = match path {
            Ok(path) => path,
            Err(what) => return self.imported.note(format!("bdev {name}: {what}")),
        };
        let mut namespace = Namespace::new(path);
        let base = params["base_bdevs"].get(0).and_then(said).and_then(|name| self.bdevs.get(name));
        namespace.block_size = base.map_or(block_size as u32, |base| base.block_size);
        namespace.read_only = is_on(&params["readonly"]);
        namespace.uuid = said(&params["uuid"]).and_then(|uuid| Uuid::try_parse(uuid).ok());
        if number(&params["md_size"]).is_some_and(|bytes| bytes > 0) {
            self.imported.note(format!("metadata of bdev {name}: farblock does not support it"));
        }
        self.bdevs.insert(name.to_owned(), namespace);
    }

    fn striped(&self, params: &Value) -> Result<String, &'static str> {
        let level = said(&params["raid_level"]).unwrap_or_default();
        if !matches!(level, "raid0" | "0") || is_on(&params["superblock"]) {
            return Err(
                "farblock imports only raid0 without a superblock: it knows no other layout",
            );
        }
        let names = params["base_bdevs"].as_array().into_iter().flatten().filter_map(said);
        let bases: Option<Vec<_>> =
            names.map(|name| Some(self.bdevs.get(name)?.path.clone())).collect();
        let bases = bases.ok_or("farblock has no equivalent of one of its base bdevs")?;
        let strip_kib = number(&params["strip_size_kb"]).unwrap_or(64);
        Ok(format!("stripe:{strip_kib}KiB,{}", bases.join(",")))
    }

    fn limits(&mut self, params: &Value) {
        let Some(bdev) = said(&params["name"]).and_then(|name| self.bdevs.get_mut(name)) else {
            return;
        };
        let rate = |name: &str| number(&params[name]).filter(|rate| *rate > 0);
        let mib = |name: &str| rate(name).and_then(|rate| rate.checked_mul(MIB));
        bdev.limits = Limits {
            iops: rate("rw_ios_per_sec"),
            bytes: mib("rw_mbytes_per_sec"),
            read_bytes: mib("r_mbytes_per_sec"),
            write_bytes: mib("w_mbytes_per_sec"),
            ..Limits::default()
        };
    }

    fn subsystem(&mut self, params: &Value) {
        let Some(nqn) = said(&params["nqn"]) else { return };
        if is_discovery(nqn) {
            return;
        }
        let cntlid = |name: &str| number(&params[name]).and_then(|id| u16::try_from(id).ok());
        let subsystem = Subsystem {
            serial: said(&params["serial_number"]).map(ToOwned::to_owned),
            model: said(&params["model_number"]).map(ToOwned::to_owned),
            min_cntlid: cntlid("min_cntlid").filter(|id| *id != 1),
            max_cntlid: cntlid("max_cntlid").filter(|id| *id != CNTLID_MAX),
            allow_any_host: is_on(&params["allow_any_host"]),
            ..Subsystem::default()
        };
        if is_on(&params["passthrough"]) {
            self.imported.note(format!("passthrough of {nqn}: farblock does not support it"));
        }
        self.imported.document.subsystems.insert(nqn.to_owned(), subsystem);
    }

    fn named(&mut self, params: &Value) -> Option<(String, &mut Subsystem)> {
        let nqn = said(&params["nqn"])?;
        Some((nqn.to_owned(), self.imported.document.subsystems.get_mut(nqn)?))
    }

    fn host(&mut self, params: &Value) {
        let Some(host) = said(&params["host"]) else { return };
        let entry = self.entry(params);
        let Some((nqn, subsystem)) = self.named(params) else { return };
        if subsystem.allow_any_host {
            let keys = match entry {
                Some(entry) if !entry.has_key() => "",
                _ => ", also without a key",
            };
            let note = format!("host {host} of {nqn}, because the subsystem allows any host{keys}");
            self.imported.note(note);
        } else if let Some(entry) = entry {
            subsystem.hosts.insert(host.to_owned(), entry);
        } else {
            self.imported.note(format!(
                "host {host} of {nqn} has a key that is not in a file, and must not connect \
                 without the key: put the key into a file, and add the host with dhchap_key or \
                 tls_key set to that file"
            ));
        }
    }

    /// Returns the settings of a host with its key files; `None` if one of its keys is not in a
    /// file.
    fn entry(&self, params: &Value) -> Option<Host> {
        let file = |key: &str| match said(&params[key]) {
            Some(name) => self.keys.get(name).cloned().map(Some),
            None => Some(None),
        };
        let mut host = Host {
            dhchap_key: file("dhchap_key")?,
            dhchap_ctrl_key: file("dhchap_ctrlr_key")?,
            tls_key: file("psk")?,
            ..Host::default()
        };
        if host.dhchap_key.is_some() {
            host.dhchap_hashes.clone_from(&self.hashes);
            host.dhchap_dhgroups.clone_from(&self.groups);
        }
        Some(host)
    }

    fn namespace(&mut self, params: &Value) {
        let asked = &params["namespace"];
        let name = said(&asked["bdev_name"]).unwrap_or_default().to_owned();
        let bdev = self.bdevs.get(&name).cloned();
        let Some((nqn, subsystem)) = self.named(params) else { return };
        let Some(mut namespace) = bdev else {
            let sentence = "farblock has no equivalent of this bdev";
            return self.imported.note(format!("bdev {name} as a namespace of {nqn}: {sentence}"));
        };
        let free = (1..).find(|nsid| !subsystem.namespaces.contains_key(nsid));
        let asked_for = number(&asked["nsid"]).and_then(|nsid| nsid.try_into().ok());
        let Some(nsid) = asked_for.filter(|nsid| *nsid > 0).or(free) else { return };
        let id = |name: &str| said(&asked[name]).and_then(|text| Uuid::try_parse(text).ok());
        namespace.uuid = id("uuid").or(namespace.uuid).or_else(|| id("nguid"));
        let group = number(&asked["anagrpid"]).and_then(|group| group.try_into().ok());
        namespace.ana_group = group.unwrap_or(namespace.ana_group);
        namespace.visible_to = is_on(&asked["no_auto_visible"]).then(Default::default);
        namespace.nguid = id("nguid").filter(|nguid| !nguid.is_nil());
        let eui64 = said(&asked["eui64"]).and_then(|text| text.parse::<Eui64>().ok());
        namespace.eui64 = eui64.filter(|id| !id.is_nil());
        subsystem.namespaces.insert(nsid, namespace);
        let what = format!("namespace {nsid} of {nqn}");
        if said(&asked["ptpl_file"]).is_some() {
            self.imported
                .note(format!("stored reservations of {what}: farblock starts without them"));
        }
    }

    fn visible(&mut self, params: &Value) {
        let (nsid, host) = (number(&params["nsid"]), said(&params["host"]));
        let nsid = nsid.and_then(|nsid| u32::try_from(nsid).ok());
        let Some((_, subsystem)) = self.named(params) else { return };
        let namespace = nsid.and_then(|nsid| subsystem.namespaces.get_mut(&nsid));
        if let (Some(hosts), Some(host)) = (namespace.and_then(|it| it.visible_to.as_mut()), host) {
            hosts.insert(host.to_owned());
        }
    }

    fn listener(&mut self, params: &Value) {
        match address(&params["listen_address"]) {
            Some(at) => {
                let listener = self.imported.document.listeners.entry(at).or_default();
                listener.ana = state(&params["ana_state"]).unwrap_or(listener.ana);
                if is_on(&params["secure_channel"]) && at.transport.has_tls() {
                    listener.tls = Tls::Required;
                }
                self.offered.extend(said(&params["nqn"]).map(|nqn| (at, nqn.to_owned())));
            }
            None => self.imported.note(format!("a listener at {}", params["listen_address"])),
        }
    }

    /// If some hosts have no TLS key, adds a note for each listener that requires TLS.
    fn note_keys_for_tls(&mut self) {
        let Imported { document, notes } = &mut self.imported;
        let lacks = |it: &Subsystem| {
            it.allow_any_host || it.hosts.values().any(|host| host.tls_key.is_none())
        };
        if document.subsystems.values().any(lacks) {
            let strict = document.listeners.iter().filter(|(_, one)| one.tls == Tls::Required);
            let note = |(at, _)| format!("some TLS keys for the listener {at}: {KEYS}");
            notes.extend(strict.map(note));
        }
    }

    /// Adds a note for each subsystem that SPDK did not offer at some listener, because each
    /// listener of farblock offers all subsystems.
    fn note_what_is_not_offered(&mut self) {
        let Imported { document, notes } = &mut self.imported;
        let everything = document
            .listeners
            .keys()
            .flat_map(|at| document.subsystems.keys().map(|nqn| (*at, nqn.clone())));
        notes.extend(everything.filter(|one| !self.offered.contains(one)).map(|(at, nqn)| {
            format!(
                "SPDK did not offer {nqn} at {at}, but every listener of farblock offers all \
                 subsystems"
            )
        }));
    }

    fn state(&mut self, params: &Value) {
        let Some(at) = address(&params["listen_address"]) else { return };
        let Some(state) = state(&params["ana_state"]) else { return };
        let Some(listener) = self.imported.document.listeners.get_mut(&at) else { return };
        let group = number(&params["anagrpid"]).and_then(|group| u32::try_from(group).ok());
        match group.filter(|group| *group > 0) {
            Some(group) => drop(listener.ana_groups.insert(group, state)),
            None => *listener = Listener { ana: state, tls: listener.tls, ..Listener::default() },
        }
    }

    fn referral(&mut self, params: &Value) {
        match address(&params["address"]).and_then(Entrance::tcp_address) {
            Some(at) => drop(self.imported.document.referrals.insert(at, Referral {})),
            None => self.imported.note(format!("a referral to {}", params["address"])),
        }
    }
}

fn is_discovery(nqn: &str) -> bool {
    nqn == farblock_wire::nqn::DISCOVERY_NQN
}

fn state(value: &Value) -> Option<Ana> {
    match said(value)? {
        "optimized" => Some(Ana::Optimized),
        "non_optimized" => Some(Ana::NonOptimized),
        "inaccessible" => Some(Ana::Inaccessible),
        "persistent_loss" => Some(Ana::PersistentLoss),
        "change" => Some(Ana::Change),
        _ => None,
    }
}

/// Returns the listen address in a call; `None` if farblock does not support its transport.
fn address(it: &Value) -> Option<Entrance> {
    let transport = Transport::from_name(said(&it["trtype"])?)?;
    let ip: IpAddr = said(&it["traddr"])?.parse().ok()?;
    let port = number(&it["trsvcid"]).and_then(|port| u16::try_from(port).ok())?;
    let address = SocketAddr::new(ip, port);
    (port > 0).then_some(Entrance { transport, address })
}
