//! What there is to call, the configuration as calls, and what only SPDK has.

use super::bdevs::{Bdev, Kind};
use super::message::{Answer, INVALID_PARAMETERS, Params, RpcError};
use super::view::View;
use super::{Method, SpdkRpc, Table, listener_calls, method, methods, nvmf_calls, qos_calls};
use farblock_state::Namespace;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

pub(super) const METHODS: &[Method] = &[
    method("rpc_get_methods", get_methods),
    method("spdk_get_version", get_version),
    method("framework_get_subsystems", get_subsystems),
    method("framework_get_config", get_config),
    method("framework_wait_init", |_, _, params| {
        params.none("framework_wait_init").map(|()| json!(true))
    }),
    method("bdev_wait_for_examine", |_, _, params| {
        params.none("bdev_wait_for_examine").map(|()| json!(true))
    }),
    at_start("framework_start_init"),
    at_start("nvmf_set_config"),
    at_start("nvmf_set_max_subsystems"),
    at_start("nvmf_set_crdt"),
    at_start("iobuf_set_options"),
    at_start("sock_impl_set_options"),
    at_start("sock_set_default_impl"),
    at_start("accel_set_options"),
    at_start("accel_assign_opc"),
    at_start("bdev_set_options"),
    at_start("keyring_linux_set_options"),
    tuning("bdev_nvme_set_options"),
    tuning("bdev_nvme_set_hotplug"),
    tuning("bdev_iscsi_set_options"),
    tuning("bdev_raid_set_options"),
    tuning("framework_set_scheduler"),
    tuning("fsdev_set_opts"),
];

/// A method that SPDK has before it is initialized, and farblock never: configurations of SPDK have
/// calls of it, and clients leave them out.
const fn at_start(name: &'static str) -> Method {
    Method { name, at_start: true, call: |_, _, _| Ok(json!(true)) }
}

/// A method that tunes what farblock has not: it is taken, so that configurations of SPDK load.
const fn tuning(name: &'static str) -> Method {
    method(name, |_, _, _| Ok(json!(true)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "there are no aliases")]
struct GetMethods {
    #[serde(default)]
    current: bool,
    include_aliases: Option<IgnoredAny>,
}

fn get_methods(_: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let asked: GetMethods = nvmf_calls::parse(params)?;
    let now = methods().filter(|method| !(asked.current && method.at_start));
    Ok(now.map(|method| json!(method.name)).collect())
}

fn get_version(_: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    params.none("spdk_get_version method")?;
    Ok(json!({
        "version": concat!("farblock ", env!("CARGO_PKG_VERSION"), ", as SPDK v26.09"),
        "fields": { "major": 26, "minor": 9, "patch": 0, "suffix": "" },
    }))
}

fn get_subsystems(_: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let error = |_| {
        let message = "'framework_get_subsystems' requires no arguments";
        RpcError::new(INVALID_PARAMETERS, message)
    };
    params.none("framework_get_subsystems").map_err(error)?;
    Ok(json!([
        { "subsystem": "bdev", "depends_on": [] },
        { "subsystem": "nvmf", "depends_on": ["bdev"] },
    ]))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "there are no batches in it")]
struct GetConfig {
    name: String,
    with_batches: Option<IgnoredAny>,
}

fn get_config(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let invalid = RpcError::new(INVALID_PARAMETERS, "Invalid arguments");
    let asked: GetConfig = params.parse().map_err(|sentence| invalid.because(sentence))?;
    let view = rpc.view();
    match asked.name.as_str() {
        "bdev" => Ok(json!(bdev_config(&view))),
        "nvmf" => Ok(json!(nvmf_config(&view, table))),
        other => {
            let message = format!("Subsystem '{other}' not found");
            Err(RpcError::new(INVALID_PARAMETERS, message))
        }
    }
}

fn call(method: &str, params: &Value) -> Value {
    json!({ "method": method, "params": params })
}

/// The calls that make the bdevs.
fn bdev_config(view: &View) -> Vec<Value> {
    let made = view.bdevs.iter().filter_map(|bdev| {
        let params = creation(view, bdev)?;
        let limits = qos_calls::saved(view, bdev).map(|it| call("bdev_set_qos_limit", &it));
        Some([Some(call(bdev.kind.creator(), &params)), limits])
    });
    let made = made.flatten().flatten();
    made.chain([json!({ "method": "bdev_wait_for_examine" })]).collect()
}

/// What a bdev is made with; none of what SPDK has no call for.
fn creation(view: &View, bdev: &Bdev) -> Option<Value> {
    let namespace = &bdev.namespace;
    let path = &namespace.path;
    let decorated = ["delay:", "limit:", "fault:"].iter().any(|kind| path.starts_with(kind));
    if decorated || (bdev.kind == Kind::Raid && bdev.bases.is_empty()) {
        tracing::warn!("{path} has no place in a configuration of SPDK's and is left out");
        return None;
    }
    let filename = path.strip_prefix("file:").unwrap_or(path);
    let mut params = json!({ "name": bdev.name, "uuid": bdev.uuid.to_string() });
    match bdev.kind {
        Kind::Malloc | Kind::Null => {
            params["num_blocks"] = json!(view.blocks(bdev));
            params["block_size"] = json!(namespace.block_size);
        }
        Kind::Aio => {
            params["filename"] = json!(filename);
            params["block_size"] = json!(namespace.block_size);
            params["readonly"] = json!(namespace.read_only);
        }
        Kind::Uring => {
            params["filename"] = json!(filename);
            params["block_size"] = json!(namespace.block_size);
        }
        Kind::Raid => {
            params["raid_level"] = json!("raid0");
            params["strip_size_kb"] = json!(bdev.strip_kib);
            params["base_bdevs"] = json!(bdev.bases);
            params["superblock"] = json!(false);
        }
    }
    Some(params)
}

/// The calls that make the rest.
fn nvmf_config(view: &View, table: &Table) -> Vec<Value> {
    let mut calls = Vec::new();
    if let Some(given) = &table.transport {
        let mut params = given.clone();
        params.entry("trtype").or_insert(json!("TCP"));
        calls.push(call("nvmf_create_transport", &json!(params)));
    }
    for (nqn, subsystem) in &view.document.subsystems {
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
        calls.push(call("nvmf_create_subsystem", &params));
        for host in nvmf_calls::hosts(table, nqn, subsystem) {
            calls.push(call("nvmf_subsystem_add_host", &json!({ "nqn": nqn, "host": host })));
        }
        for (&nsid, namespace) in &subsystem.namespaces {
            calls.extend(namespace_config(view, nqn, nsid, namespace));
        }
    }
    let subsystems = view.document.subsystems.keys().map(String::as_str);
    for nqn in ["discovery"].into_iter().chain(subsystems) {
        for address in table.listeners(nqn, &view.document) {
            let address = listener_calls::shown(&address);
            let params = json!({ "nqn": nqn, "listen_address": address, "secure_channel": false });
            calls.push(call("nvmf_subsystem_add_listener", &params));
        }
    }
    calls.extend(
        listener_calls::states(table, view)
            .map(|params| call("nvmf_subsystem_listener_set_ana_state", &params)),
    );
    calls
}

fn namespace_config(view: &View, nqn: &str, nsid: u32, shared: &Namespace) -> Vec<Value> {
    let bdev = view.bdev(view.bdev_at(nqn, nsid));
    let Some(bdev) = bdev.filter(|bdev| creation(view, bdev).is_some()) else { return Vec::new() };
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
