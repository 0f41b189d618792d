//! Calls about SPDK's framework, and calls that have an effect only in SPDK.

use super::message::{Answer, INVALID_PARAMETERS, Params, RpcError};
use super::{Method, SpdkRpc, Table, method, methods, nvmf_calls, saved};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;

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

/// A method that SPDK allows only before initialization. SPDK configurations contain such calls,
/// and SPDK's clients skip them.
const fn at_start(name: &'static str) -> Method {
    Method { name, at_start: true, call: |_, _, _| Ok(json!(true)) }
}

/// A method that tunes a feature that farblock lacks. farblock accepts such calls so that SPDK
/// configurations load.
const fn tuning(name: &'static str) -> Method {
    method(name, |_, _, _| Ok(json!(true)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "farblock's methods have no aliases")]
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
        { "subsystem": "keyring", "depends_on": [] },
        { "subsystem": "bdev", "depends_on": ["keyring"] },
        { "subsystem": "nvmf", "depends_on": ["bdev", "keyring"] },
    ]))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "farblock's configuration has no batches")]
struct GetConfig {
    name: String,
    with_batches: Option<IgnoredAny>,
}

fn get_config(rpc: &SpdkRpc, table: &mut Table, params: Params) -> Answer {
    let invalid = RpcError::new(INVALID_PARAMETERS, "Invalid arguments");
    let asked: GetConfig = params.parse().map_err(|sentence| invalid.because(sentence))?;
    let view = rpc.view();
    match asked.name.as_str() {
        "keyring" => Ok(json!(saved::keyring(&view, table))),
        "bdev" => Ok(json!(saved::bdevs(&view))),
        "nvmf" => Ok(json!(saved::nvmf(&view, table))),
        other => {
            let message = format!("Subsystem '{other}' not found");
            Err(RpcError::new(INVALID_PARAMETERS, message))
        }
    }
}
