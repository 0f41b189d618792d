//! The floor: the same transfers over bare sockets, without a protocol or a disk, with a process at
//! each end.

use std::process::Command;

use farblock_bench::Figures;

use super::{Client, Endpoint, Means, Measured, Server, Times};
use crate::bench_peers::process::Process;
use crate::bench_peers::work::{Load, MIX_READ};

pub(super) fn serve(means: &Means) -> Result<Server, String> {
    let mut command = Command::new(&means.xtask);
    command.arg("floor-serve");
    let mut process = Process::start(command, means.target_cpu)?;
    let listening = |line: &str| line.strip_prefix("listening on ")?.parse().ok();
    let address = process.wait_for(listening)?;
    Ok(Server { process, endpoint: Endpoint { address, name: String::new() } })
}

pub(super) fn client(means: &Means, endpoint: &Endpoint, load: &Load, times: Times) -> Client {
    let mut command = Command::new(&means.xtask);
    command
        .args(["floor-drive", &endpoint.address.to_string()])
        .args(["--rw", load.rw.name(), "--bs", &load.block_size()])
        .args(["--iodepth", &load.depth_each().to_string()])
        .args(["--connections", &load.connections.to_string()])
        .args(["--rwmixread", &MIX_READ.to_string()])
        .args(["--runtime", &times.runtime.as_secs_f64().to_string()])
        .args(["--ramp-time", &times.ramp.as_secs_f64().to_string()]);
    Client { command, begins: None, parse }
}

fn parse(output: &str, _: &Load) -> Result<Measured, String> {
    let figures: Figures = serde_json::from_str(output)
        .map_err(|error| format!("floor-drive printed no figures: {error}"))?;
    Ok(Measured::from(&figures))
}

impl From<&Figures> for Measured {
    fn from(figures: &Figures) -> Measured {
        let us = |ns: u64| Some(ns as f64 / 1000.0);
        Measured {
            iops: figures.iops,
            mib_per_second: figures.mib_per_second,
            p50_us: us(figures.latency.p50_ns),
            p99_us: us(figures.latency.p99_ns),
            p99_9_us: us(figures.latency.p99_9_ns),
        }
    }
}
