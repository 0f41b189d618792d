//! The configuration as a list of calls that recreate it, for `save_config`.
//!
//! If no call can recreate a setting, the list leaves it out, and a log line reports that. If the
//! calls cannot express the access restrictions of a host, the list leaves out the whole host. So
//! no host can later connect with weaker authentication. Keys are saved as the paths of their
//! files.

use super::bdevs::{Bdev, BdevKind};
use super::keyring_calls::Keyring;
use super::view::{View, shown_address};
use super::{Table, listener_calls, nvmf_calls, qos_calls};
use farblock_state::{Demand, Host, Namespace, Subsystem, Tls};
use serde_json::{Value, json};

fn call(method: &str, params: &Value) -> Value {
    json!({ "method": method, "params": params })
}

pub(super) fn keyring(view: &View, table: &Table) -> Vec<Value> {
    let keyring = Keyring::of(table, &view.document);
    keyring.saved().map(|params| call("keyring_file_add_key", &params)).collect()
}

pub(super) fn bdevs(view: &View) -> Vec<Value> {
    let made = view.bdevs.iter().flat_map(|bdev| bdev_config(view, bdev));
    made.chain([json!({ "method": "bdev_wait_for_examine" })]).collect()
}

fn bdev_config(view: &View, bdev: &Bdev) -> Vec<Value> {
    let (creator, params) = match creation(view, bdev) {
        Ok(creation) => creation,
        Err(why) => {
            let path = &bdev.namespace.path;
            tracing::warn!("the configuration for SPDK clients omits {path}: {why}");
            return Vec::new();
        }
    };
    if bdev.kind == BdevKind::Aio && current(view, bdev).size.is_some() {
        tracing::warn!(
            "the configuration for SPDK clients omits the size of {}: bdev_aio_create has no such \
             parameter, so the bdev gets the size of the file",
            bdev.namespace.path
        );
    }
    let limits = qos_calls::saved(view, bdev).map(|it| call("bdev_set_qos_limit", &it));
    [call(creator, &params)].into_iter().chain(limits).collect()
}

/// The current settings of a bdev, which may have changed through another interface.
fn current<'a>(view: &'a View, bdev: &'a Bdev) -> &'a Namespace {
    let used = view.uses_of(&bdev.name).next();
    let subsystems = &view.document.subsystems;
    let used = used.and_then(|one| subsystems.get(&one.nqn)?.namespaces.get(&one.nsid));
    used.unwrap_or(&bdev.namespace)
}

/// The call that creates a bdev, with its parameters. The error is the reason why there is no such
/// call.
fn creation(view: &View, bdev: &Bdev) -> Result<(&'static str, Value), &'static str> {
    let namespace = current(view, bdev);
    let is_read_only = namespace.read_only;
    let filename = namespace.path.strip_prefix("file:").unwrap_or(&namespace.path);
    let mut params = json!({ "name": bdev.name, "uuid": bdev.uuid.to_string() });
    let writable = "no SPDK call makes it read-only, so hosts could write to it";
    match bdev.kind {
        BdevKind::Other => Err("SPDK has no bdev of this kind"),
        BdevKind::Malloc | BdevKind::Null if is_read_only => Err(writable),
        BdevKind::Malloc | BdevKind::Null => {
            params["num_blocks"] = json!(view.blocks(bdev));
            params["block_size"] = json!(namespace.block_size);
            let is_memory = bdev.kind == BdevKind::Malloc;
            Ok((if is_memory { "bdev_malloc_create" } else { "bdev_null_create" }, params))
        }
        BdevKind::Uring if !is_read_only => {
            params["filename"] = json!(filename);
            params["block_size"] = json!(namespace.block_size);
            Ok(("bdev_uring_create", params))
        }
        // farblock treats both kinds alike, and only bdev_aio_create has a read-only option.
        BdevKind::Aio | BdevKind::Uring => {
            params["filename"] = json!(filename);
            params["block_size"] = json!(namespace.block_size);
            params["readonly"] = json!(is_read_only);
            Ok(("bdev_aio_create", params))
        }
        BdevKind::Raid if bdev.bases.is_empty() => Err("its parts are not bdevs"),
        BdevKind::Raid => {
            let mut bases = bdev.bases.iter().filter_map(|name| view.bdev(name));
            if is_read_only && !bases.any(|base| base.namespace.read_only) {
                return Err(writable);
            }
            params["raid_level"] = json!("raid0");
            params["strip_size_kb"] = json!(bdev.strip_kib);
            params["base_bdevs"] = json!(bdev.bases);
            params["superblock"] = json!(false);
            Ok(("bdev_raid_create", params))
        }
    }
}

/// The calls that create the transport, the subsystems with their contents, and the listeners.
pub(super) fn nvmf(view: &View, table: &Table) -> Vec<Value> {
    let keyring = Keyring::of(table, &view.document);
    let mut calls = Vec::new();
    for (transport, given) in &table.transports {
        let mut params = given.clone();
        let kind = transport.name().to_ascii_uppercase();
        params.entry("trtype").or_insert(json!(kind));
        calls.push(call("nvmf_create_transport", &json!(params)));
    }
    for (nqn, subsystem) in &view.document.subsystems {
        calls.push(subsystem_config(table, nqn, subsystem));
        let hosts = nvmf_calls::hosts(table, nqn, subsystem);
        calls.extend(hosts.filter_map(|(name, host)| host_config(&keyring, nqn, name, host)));
        for (&nsid, namespace) in &subsystem.namespaces {
            calls.extend(namespace_config(view, nqn, nsid, namespace));
        }
    }
    calls.extend(listener_config(view, table));
    calls.extend(
        listener_calls::states(table, view)
            .map(|params| call("nvmf_subsystem_listener_set_ana_state", &params)),
    );
    calls
}

fn subsystem_config(table: &Table, nqn: &str, subsystem: &Subsystem) -> Value {
    let offered = nvmf_calls::offered(nqn, subsystem);
    let mut params = json!({
        "nqn": nqn,
        "allow_any_host": subsystem.allow_any_host,
        "ana_reporting": true,
        "serial_number": offered.serial,
        "model_number": offered.model,
    });
    let most = table.subsystems.get(nqn).and_then(|extra| extra.max_namespaces);
    if let Some(most) = most {
        params["max_namespaces"] = json!(most);
    }
    for (name, id) in [("min_cntlid", subsystem.min_cntlid), ("max_cntlid", subsystem.max_cntlid)] {
        if let Some(id) = id {
            params[name] = json!(id);
        }
    }
    call("nvmf_create_subsystem", &params)
}

/// The call that lists a host with its keys. `None` if the host could then connect with weaker
/// authentication than now.
fn host_config(keyring: &Keyring, nqn: &str, name: &str, host: &Host) -> Option<Value> {
    let (demand, hashes) = (host.demand, &host.dhchap_hashes);
    let asked = [
        ("a host_id", host.host_id.is_some()),
        ("a demand", demand.is_some_and(|demand| demand != Demand::Auth)),
        ("hashes or groups", !hashes.is_empty() || !host.dhchap_dhgroups.is_empty()),
    ];
    if let Some((what, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) {
        tracing::warn!(
            "the configuration for SPDK clients omits host {name} of {nqn}: it has {what}, which \
             no SPDK call sets"
        );
        return None;
    }
    if !host.limits.is_empty() {
        let what = "has limits that an SPDK configuration cannot express";
        tracing::warn!("host {name} of {nqn} {what}");
    }
    let mut params = json!({ "nqn": nqn, "host": name });
    for (parameter, key) in keyring.named(host) {
        params[parameter] = json!(key);
    }
    Some(call("nvmf_subsystem_add_host", &params))
}

/// The calls that add the listeners. Listeners that require TLS come last: a new listener without a
/// TLS setting becomes as strict as the strictest existing listener.
fn listener_config(view: &View, table: &Table) -> Vec<Value> {
    let subsystems = view.document.subsystems.keys().map(String::as_str);
    let mut added = Vec::new();
    for nqn in ["discovery"].into_iter().chain(subsystems) {
        for address in table.listeners(nqn, &view.document) {
            let listener = listener_calls::listener(&view.document, &address);
            let is_secure = listener.is_some_and(|(_, one)| one.tls == Tls::Required);
            let address = shown_address(&address);
            let params =
                json!({ "nqn": nqn, "listen_address": address, "secure_channel": is_secure });
            added.push((is_secure, call("nvmf_subsystem_add_listener", &params)));
        }
    }
    added.sort_by_key(|(is_secure, _)| *is_secure);
    added.into_iter().map(|(_, call)| call).collect()
}

fn namespace_config(view: &View, nqn: &str, nsid: u32, shared: &Namespace) -> Vec<Value> {
    let bdev = view.bdev(view.bdev_at(nqn, nsid));
    let Some(bdev) = bdev.filter(|bdev| creation(view, bdev).is_ok()) else { return Vec::new() };
    let uuid = view.reported(nqn, nsid).map(|seen| uuid::Uuid::from_bytes(seen.uuid));
    let mut namespace = json!({
        "nsid": nsid,
        "bdev_name": bdev.name,
        "uuid": uuid.unwrap_or(bdev.uuid).to_string(),
        "anagrpid": shared.ana_group,
    });
    if let Some(nguid) = shared.nguid {
        namespace["nguid"] = json!(nvmf_calls::digits(nguid));
    }
    if let Some(eui64) = shared.eui64 {
        namespace["eui64"] = json!(nvmf_calls::eui64_digits(eui64));
    }
    if shared.visible_to.is_some() {
        namespace["no_auto_visible"] = json!(true);
    }
    let add = call("nvmf_subsystem_add_ns", &json!({ "nqn": nqn, "namespace": namespace }));
    let hosts =
        shared.visible_to.iter().flatten().map(|host| {
            call("nvmf_ns_add_host", &json!({ "nqn": nqn, "nsid": nsid, "host": host }))
        });
    [add].into_iter().chain(hosts).collect()
}
