//! The rate limits of a bdev. They apply to the namespace on the bdev.
//!
//! SPDK rounds IOPS to whole thousands. farblock applies the requested value.

use super::bdevs::{Bdev, invalid, parse};
use super::message::{Answer, Errno, Params, RpcError};
use super::view::View;
use super::{Method, SpdkRpc, Table, method, refused};
use farblock_state::Limits;
use serde::Deserialize;
use serde_json::{Value, json};

pub(super) const METHODS: &[Method] = &[method("bdev_set_qos_limit", set_limit)];

const MIB: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetLimit {
    name: String,
    rw_ios_per_sec: Option<u64>,
    rw_mbytes_per_sec: Option<u64>,
    r_mbytes_per_sec: Option<u64>,
    w_mbytes_per_sec: Option<u64>,
}

fn set_limit(rpc: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let asked: SetLimit = parse(params)?;
    let view = rpc.view();
    let bdev = view.bdev(&asked.name).ok_or(Errno::NoDevice)?;
    if let Some(raid) = view.raid_over(&bdev.name) {
        return Err(invalid(format!(
            "{0} is a part of {1}: limit {1} instead",
            bdev.name, raid.name
        )));
    }
    let limits = asked.over(limits(&view, bdev))?;
    let uses: Vec<_> = view.uses_of(&bdev.name).map(|one| (one.nqn.clone(), one.nsid)).collect();
    let changed = rpc.change(|document| {
        for (nqn, nsid) in uses {
            let subsystem = document.subsystems.get_mut(&nqn);
            if let Some(it) = subsystem.and_then(|one| one.namespaces.get_mut(&nsid)) {
                it.limits = limits;
            }
        }
    });
    changed.map_err(refused(Errno::Invalid.into()))?;
    rpc.bdevs.limit(&bdev.name, limits);
    Ok(json!(true))
}

impl SetLimit {
    /// Replaces the limits that the client names; 0 removes a limit.
    fn over(&self, limits: Limits) -> Result<Limits, RpcError> {
        let rates = [
            self.rw_ios_per_sec,
            self.rw_mbytes_per_sec,
            self.r_mbytes_per_sec,
            self.w_mbytes_per_sec,
        ];
        if rates.iter().all(Option::is_none) {
            return Err(invalid("name a limit: rw_ios_per_sec, rw_mbytes_per_sec, …"));
        }
        let bytes = |mib: Option<u64>, before: Option<u64>| -> Result<_, RpcError> {
            let Some(mib) = mib else { return Ok(before) };
            let bytes = mib.checked_mul(MIB);
            let bytes = bytes.ok_or_else(|| invalid(format!("{mib} MiB/s is too large")))?;
            Ok(Some(bytes).filter(|bytes| *bytes > 0))
        };
        Ok(Limits {
            iops: self.rw_ios_per_sec.map_or(limits.iops, |rate| Some(rate).filter(|it| *it > 0)),
            bytes: bytes(self.rw_mbytes_per_sec, limits.bytes)?,
            read_bytes: bytes(self.r_mbytes_per_sec, limits.read_bytes)?,
            write_bytes: bytes(self.w_mbytes_per_sec, limits.write_bytes)?,
            ..limits
        })
    }
}

/// The limits of a bdev, which are settings of the namespace on the bdev.
fn limits(view: &View, bdev: &Bdev) -> Limits {
    let used = view.uses_of(&bdev.name).next();
    let subsystems = &view.document.subsystems;
    let used = used.and_then(|one| subsystems.get(&one.nqn)?.namespaces.get(&one.nsid));
    used.map_or(bdev.namespace.limits, |namespace| namespace.limits)
}

/// The limits of a bdev in SPDK's format.
pub(super) fn shown(view: &View, bdev: &Bdev) -> Value {
    let limits = limits(view, bdev);
    let mib = |bytes: Option<u64>| bytes.unwrap_or(0).div_ceil(MIB);
    json!({
        "rw_ios_per_sec": limits.iops.unwrap_or(0),
        "rw_mbytes_per_sec": mib(limits.bytes),
        "r_mbytes_per_sec": mib(limits.read_bytes),
        "w_mbytes_per_sec": mib(limits.write_bytes),
    })
}

/// The parameters of the call that sets the limits of a bdev; `None` if it has no limits.
pub(super) fn saved(view: &View, bdev: &Bdev) -> Option<Value> {
    let limits = limits(view, bdev);
    if limits.read_iops.or(limits.write_iops).is_some() || limits.burst_ms.is_some() {
        let what = "read_iops, write_iops and burst_ms";
        tracing::warn!("an SPDK configuration cannot express {what} of {}", bdev.name);
    }
    let mut params = shown(view, bdev);
    if params.as_object()?.values().all(|rate| *rate == json!(0)) {
        return None;
    }
    params["name"] = json!(bdev.name);
    Some(params)
}
