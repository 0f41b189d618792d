//! Calls that determine which hosts see a namespace.

use super::message::{Answer, Params, RpcError};
use super::nvmf_calls::{check_target, parse};
use super::{Method, SpdkRpc, Table, method, refused};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;

pub(super) const METHODS: &[Method] = &[
    method("nvmf_ns_add_host", |rpc, table, params| change(rpc, table, params, true)),
    method("nvmf_ns_remove_host", |rpc, table, params| change(rpc, table, params, false)),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NsHost {
    nqn: String,
    nsid: u32,
    host: String,
    tgt_name: Option<String>,
}

fn change(rpc: &SpdkRpc, _: &mut Table, params: Params, sees: bool) -> Answer {
    let asked: NsHost = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let view = rpc.view();
    let namespace = view.subsystem(&asked.nqn)?.namespaces.get(&asked.nsid);
    let invalid = |sentence: String| RpcError::invalid().because(sentence);
    let missing = || invalid(format!("nsid: namespace {} does not exist", asked.nsid));
    let seen_by = &namespace.ok_or_else(missing)?.visible_to;
    let mut hosts: BTreeSet<String> = seen_by.clone().ok_or_else(|| {
        invalid("every host sees this namespace: add it with no_auto_visible".to_owned())
    })?;
    if sees {
        hosts.insert(asked.host);
    } else if !hosts.remove(&asked.host) {
        return Err(invalid(format!("host: {} does not see the namespace", asked.host)));
    }
    let changed = rpc.change(|document| {
        let subsystem = document.subsystems.get_mut(&asked.nqn);
        if let Some(it) = subsystem.and_then(|one| one.namespaces.get_mut(&asked.nsid)) {
            it.visible_to = Some(hosts);
        }
    });
    changed.map_err(refused(RpcError::invalid()))?;
    Ok(json!(true))
}
