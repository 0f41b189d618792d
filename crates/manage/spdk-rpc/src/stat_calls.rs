//! Calls about the state and the statistics of the target.

use super::bdevs::Bdev;
use super::message::{Answer, Errno, INTERNAL_ERROR, Params, RpcError};
use super::nvmf_calls::{OfSubsystem, check_target, parse};
use super::view::{View, is_discovery, shown_address};
use super::{Method, SpdkRpc, Table, method};
use farblock_state::{Entrance, Transport};
use farblock_target::{ControllerReport, IoCounts, Stats};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use uuid::Uuid;

pub(super) const METHODS: &[Method] = &[
    method("nvmf_subsystem_get_controllers", get_controllers),
    method("nvmf_subsystem_get_qpairs", get_qpairs),
    method("nvmf_get_stats", get_stats),
    method("bdev_get_iostat", get_iostat),
    method("thread_get_stats", thread_get_stats),
];

/// The ticks per second in answers.
const TICK_RATE: u64 = 1_000_000;
/// The ticks per second of processor times in Linux, on every architecture.
const LINUX_TICK_RATE: u64 = 100;

/// The controllers of a subsystem or of the discovery service.
fn controllers<'a>(
    view: &'a View,
    asked: &'a OfSubsystem,
) -> Result<impl Iterator<Item = &'a ControllerReport>, RpcError> {
    check_target(asked.tgt_name.as_deref())?;
    let discovery = is_discovery(&asked.nqn);
    if !discovery {
        view.subsystem(&asked.nqn)?;
    }
    let is_of = move |one: &&ControllerReport| match &one.subsystem {
        Some(nqn) => *nqn == asked.nqn,
        None => discovery,
    };
    Ok(view.report.controllers.iter().filter(is_of))
}

fn get_controllers(rpc: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let asked: OfSubsystem = parse(params)?;
    let view = rpc.view();
    let shown = controllers(&view, &asked)?.map(|one| {
        json!({
            "cntlid": one.id,
            "cntrltype": if one.subsystem.is_some() { "io" } else { "discovery" },
            "hostnqn": one.host_nqn,
            "hostid": Uuid::from_bytes(one.host_id).to_string(),
            "num_io_qpairs": one.io_queues,
        })
    });
    Ok(shown.collect())
}

fn get_qpairs(rpc: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let asked: OfSubsystem = parse(params)?;
    let view = rpc.view();
    let shown = controllers(&view, &asked)?.flat_map(|one| {
        (0..=one.io_queues).map(|qid| {
            let mut shown = json!({
                "cntlid": one.id,
                "qid": qid,
                "state": "enabled",
                "thread": "farblock",
                "hostnqn": one.host_nqn,
            });
            let transport = one.transport;
            if let Ok(address) = one.local.parse::<SocketAddr>() {
                shown["listen_address"] = shown_address(&Entrance { transport, address });
            }
            if let Some(peer) = one.peer {
                let address = SocketAddr::new(peer.to_canonical(), 0);
                shown["peer_address"] = shown_address(&Entrance { transport, address });
                shown["peer_address"]["trsvcid"] = json!("");
            }
            shown
        })
    });
    Ok(shown.collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetStats {
    tgt_name: Option<String>,
}

fn get_stats(rpc: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let asked: GetStats = parse(params)?;
    check_target(asked.tgt_name.as_deref())?;
    let report = rpc.steering.report();
    let io_qpairs: usize = report.controllers.iter().map(|one| one.io_queues).sum();
    let total = rpc.steering.counts().total;
    let used: BTreeSet<_> = report.addresses.iter().map(|one| one.transport).collect();
    let kind = |one: &Transport| json!({ "trtype": one.name().to_ascii_uppercase() });
    let transports: Value = used.iter().map(kind).collect();
    Ok(json!({
        "tick_rate": TICK_RATE,
        "poll_groups": [{
            "name": "farblock",
            "current_admin_qpairs": report.controllers.len(),
            "current_io_qpairs": io_qpairs,
            "completed_nvme_io": total.reads + total.writes + total.others,
            "transports": transports,
        }],
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetIostat {
    names: Option<Vec<String>>,
    #[serde(default)]
    per_channel: bool,
    reset_mode: Option<String>,
}

fn get_iostat(rpc: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    let error = RpcError::new(INTERNAL_ERROR, "spdk_json_decode_object failed");
    let asked: GetIostat = params.parse().map_err(|sentence| error.because(sentence))?;
    let resets = asked.reset_mode.is_some_and(|mode| mode != "none");
    if resets || asked.per_channel {
        let sentence = "reset_mode, per_channel: farblock has only totals, and never resets them";
        return Err(RpcError::from(Errno::NotSupported).because(sentence));
    }
    let (view, stats) = (rpc.view(), rpc.steering.counts());
    let stat = |bdev: &Bdev| io_stat(&bdev.name, &counts(&view, &stats, &bdev.name));
    let named = |name: &String| view.bdev(name).map(stat).ok_or(RpcError::from(Errno::NoDevice));
    let stats: Result<Value, _> = match &asked.names {
        None => Ok(view.bdevs.iter().map(stat).collect()),
        Some(names) => names.iter().map(named).collect(),
    };
    Ok(json!({
        "tick_rate": TICK_RATE,
        "ticks": u64::try_from(view.report.uptime.as_micros()).unwrap_or(u64::MAX),
        "bdevs": stats?,
    }))
}

/// The I/O counts of the namespace on a bdev, since the namespace was added.
fn counts(view: &View, stats: &Stats, name: &str) -> IoCounts {
    let mut sum = IoCounts::default();
    for one in view.uses_of(name) {
        let subsystem = stats.subsystems.iter().find(|subsystem| subsystem.nqn == one.nqn);
        let namespaces = subsystem.into_iter().flat_map(|subsystem| &subsystem.namespaces);
        let counted = namespaces.filter(|(nsid, _)| nsid.0 == one.nsid);
        counted.for_each(|(_, counts)| sum += counts);
    }
    sum
}

fn io_stat(name: &str, counts: &IoCounts) -> Value {
    json!({
        "name": name,
        "bytes_read": counts.read_bytes,
        "num_read_ops": counts.reads,
        "bytes_written": counts.written_bytes,
        "num_write_ops": counts.writes,
    })
}

fn thread_get_stats(_: &SpdkRpc, _: &mut Table, params: Params) -> Answer {
    params.none("thread_get_stats")?;
    Ok(json!({ "tick_rate": LINUX_TICK_RATE, "threads": threads() }))
}

/// The threads of this process and their processor times. The list is empty if the system does not
/// report them.
fn threads() -> Vec<Value> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let read = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        thread(&stat)
    };
    tasks.flatten().filter_map(read).collect()
}

/// Parses the line in /proc about a thread.
fn thread(stat: &str) -> Option<Value> {
    let (start, rest) = stat.rsplit_once(')')?;
    let (id, name) = start.split_once('(')?;
    // `fields` starts with the third field. The user and system times are the 14th and 15th fields.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let time = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(json!({
        "name": name,
        "id": id.trim().parse::<u64>().ok()?,
        "busy": time(11)? + time(12)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_line_with_any_name_is_parsed() {
        let line = "71 (a) (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14";
        let thread = thread(line).unwrap();
        assert_eq!(thread, json!({ "name": "a) (b", "id": 71, "busy": 11 + 12 }));
        assert_eq!(super::thread("71 (a) S"), None);
    }
}
