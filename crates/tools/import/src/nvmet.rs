//! Reads the files in which nvmetcli saves the configuration of the Linux kernel's target.

use super::{Imported, KEYS, is_on, number, said};
use farblock_state::{
    Ana, Entrance, Host, Listener, Namespace, Referral, Subsystem, Tls, Transport,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use uuid::Uuid;

pub(super) fn read(json: &Value) -> Imported {
    let mut imported = Imported::default();
    let locked = locked(json);
    for subsystem in list(&json["subsystems"]) {
        let Some(nqn) = said(&subsystem["nqn"]) else { continue };
        let taken = self::subsystem(&mut imported, nqn, subsystem, &locked);
        imported.document.subsystems.insert(nqn.to_owned(), taken);
    }
    list(&json["ports"]).for_each(|it| port(&mut imported, it));
    imported
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns the NQNs of the hosts that have a DH-HMAC-CHAP key.
fn locked(json: &Value) -> BTreeSet<&str> {
    let has_key = |host: &&Value| {
        let fields = [&host["attr"], *host].into_iter().filter_map(Value::as_object).flatten();
        let mut keys =
            fields.filter(|(name, _)| name.starts_with("dhchap") && name.ends_with("key"));
        keys.any(|(_, key)| said(key).is_some())
    };
    list(&json["hosts"]).filter(has_key).filter_map(|host| said(&host["nqn"])).collect()
}

fn subsystem(
    imported: &mut Imported,
    nqn: &str,
    subsystem: &Value,
    locked: &BTreeSet<&str>,
) -> Subsystem {
    let attr = &subsystem["attr"];
    let mut taken = Subsystem {
        serial: said(&attr["serial"]).map(ToOwned::to_owned),
        model: said(&attr["model"]).map(ToOwned::to_owned),
        allow_any_host: is_on(&attr["allow_any_host"]),
        ..Subsystem::default()
    };
    for host in list(&subsystem["allowed_hosts"]).filter_map(said) {
        if locked.contains(host) {
            imported.note(format!(
                "host {host} of {nqn} has a key, without which it must not connect: put its secret \
                 into a file, and add the host with dhchap_key set to that file"
            ));
        } else if taken.allow_any_host {
            imported.note(format!("host {host} of {nqn}, because the subsystem allows any host"));
        } else {
            taken.hosts.insert(host.to_owned(), Host::default());
        }
    }
    if ["cntlid_min", "cntlid_max"]
        .iter()
        .any(|name| number(&attr[*name]).is_some_and(|id| !matches!(id, 0 | 1 | 65_519)))
    {
        imported
            .note(format!("the controller identifiers of {nqn}: set cntlids for all subsystems"));
    }
    if is_on(&attr["pi_enable"]) {
        imported.note(format!("protection information of {nqn}: farblock does not support it"));
    }
    for namespace in list(&subsystem["namespaces"]) {
        let Some(nsid) = number(&namespace["nsid"]).and_then(|nsid| nsid.try_into().ok()) else {
            continue;
        };
        if let Some(it) = self::namespace(imported, nqn, nsid, namespace) {
            taken.namespaces.insert(nsid, it);
        }
    }
    taken
}

fn namespace(imported: &mut Imported, nqn: &str, nsid: u32, it: &Value) -> Option<Namespace> {
    let what = format!("namespace {nsid} of {nqn}");
    let path = said(&it["device"]["path"]);
    if !it["enable"].is_null() && !is_on(&it["enable"]) {
        imported.note(format!("{what}, because it is not enabled"));
        return None;
    }
    let Some(path) = path else {
        imported.note(format!("{what}, because it names no device"));
        return None;
    };
    let mut taken = Namespace::new(path);
    taken.block_size = block_size(imported, &what, path);
    let id = |name: &str| {
        let id = said(&it["device"][name]).and_then(|text| Uuid::try_parse(text).ok());
        id.filter(|id| !id.is_nil())
    };
    taken.uuid = id("uuid").or_else(|| id("nguid"));
    taken.nguid = id("nguid");
    let group = [&it["ana_grpid"], &it["ana"]["grpid"]].into_iter().find_map(number);
    taken.ana_group = group.and_then(|group| group.try_into().ok()).unwrap_or(taken.ana_group);
    Some(taken)
}

/// Returns the block size that the kernel's target uses, in bytes: the logical block size of the
/// device, or 4096 for a file.
fn block_size(imported: &mut Imported, what: &str, path: &str) -> u32 {
    if !path.starts_with("/dev/") {
        return 4096;
    }
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let name = real.file_name().unwrap_or_default();
    let queue = |folder: &Path| std::fs::read_to_string(folder.join("queue/logical_block_size"));
    let folder = Path::new("/sys/class/block").join(name);
    // The directory of a partition has no `queue`; its parent, the disk, has one.
    let text = queue(&folder).or_else(|_| queue(&folder.join("..")));
    let size = text.ok().and_then(|text| text.trim().parse().ok());
    size.unwrap_or_else(|| {
        imported.note(format!(
            "the block size of {what}, because {path} is not on this machine: change 512 to 4096 \
             if necessary"
        ));
        512
    })
}

/// Returns the address of a port or a referral; `None` if farblock does not support its transport.
fn address(addr: &Value) -> Option<Entrance> {
    let transport = match said(&addr["trtype"]) {
        Some(kind) => Transport::from_name(kind)?,
        None => Transport::Tcp,
    };
    let ip: IpAddr = said(&addr["traddr"])?.parse().ok()?;
    let port = number(&addr["trsvcid"]).and_then(|port| u16::try_from(port).ok())?;
    let address = SocketAddr::new(ip, port);
    (port > 0).then_some(Entrance { transport, address })
}

fn port(imported: &mut Imported, port: &Value) {
    let (id, addr) = (&port["portid"], &port["addr"]);
    let Some(at) = address(addr) else {
        let (kind, traddr) = (&addr["trtype"], &addr["traddr"]);
        imported.note(format!(
            "port {id} ({kind} {traddr}): farblock listens only on TCP and RDMA, at IP addresses"
        ));
        return;
    };
    let offered: BTreeSet<_> = list(&port["subsystems"]).filter_map(said).collect();
    let hidden = imported.document.subsystems.keys().find(|nqn| !offered.contains(nqn.as_str()));
    if let Some(nqn) = hidden.cloned() {
        imported.note(format!(
            "the kernel did not offer {nqn} at port {id} ({at}), but every listener of farblock \
             offers all subsystems"
        ));
    }
    let mut listener = Listener::default();
    let states: BTreeMap<&str, Ana> = [
        ("optimized", Ana::Optimized),
        ("non-optimized", Ana::NonOptimized),
        ("inaccessible", Ana::Inaccessible),
        ("persistent-loss", Ana::PersistentLoss),
        ("change", Ana::Change),
    ]
    .into();
    for group in list(&port["ana_groups"]) {
        let number = number(&group["grpid"]).and_then(|number| u32::try_from(number).ok());
        let state = said(&group["ana"]["state"]).and_then(|state| states.get(state));
        if let (Some(number), Some(state)) = (number, state)
            && *state != Ana::Optimized
        {
            listener.ana_groups.insert(number, *state);
        }
    }
    let treq = said(&addr["treq"]).unwrap_or_default();
    let has_tls =
        at.transport.has_tls() && said(&addr["tsas"]).is_some_and(|tsas| tsas.starts_with("tls"));
    if (at.transport.has_tls() && treq == "required") || (has_tls && treq != "not required") {
        listener.tls = Tls::Required;
    }
    if has_tls || listener.tls == Tls::Required {
        imported.note(format!("the TLS keys of port {id} ({at}): {KEYS}"));
    }
    imported.document.listeners.insert(at, listener);
    for referral in list(&port["referrals"]) {
        match address(&referral["addr"]).and_then(Entrance::tcp_address) {
            Some(at) => drop(imported.document.referrals.insert(at, Referral {})),
            None => imported.note(format!("a referral of port {id}: {}", referral["addr"])),
        }
    }
}
