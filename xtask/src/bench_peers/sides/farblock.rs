//! Starts farblock's target and host with the commands that users run.

use std::process::Command;

use farblock_bench::Report;
use serde_json::Value;

use super::{Client, Endpoint, Means, Measured, Server, Times};
use crate::bench_peers::process::Process;
use crate::bench_peers::work::{Backend, Load, MIX_READ};

const TLS_HOST: &str = "nqn.2026-11.org.farblock:bench";

pub(super) fn serve(
    means: &Means,
    backend: Backend,
    poll: bool,
    tls: bool,
) -> Result<Server, String> {
    let mut command = serving(means, backend, &["127.0.0.1:0".to_owned()])?;
    if poll {
        command.arg("--poll");
    }
    if tls {
        command.args(["--tls-key", &format!("{TLS_HOST}={}", new_key(means)?)]);
    }
    let mut process = Process::start(command, means.target_cpu)?;
    let endpoint = process.wait_for(parse_listening)?.remove(0);
    if backend == Backend::Mem {
        fill_at(means, &url_of(means, &endpoint, tls))?;
    }
    Ok(Server { process, endpoint })
}

/// Creates a TLS key, and returns the path of its file.
fn new_key(means: &Means) -> Result<String, String> {
    let path = super::key_of(&means.file);
    let _ = std::fs::remove_file(&path);
    let mut command = Command::new(&means.farblock);
    command.args(["keys", "new", "--tls", "--output"]).arg(&path);
    let limit = std::time::Duration::from_secs(60);
    Process::start(command, means.host_cpu)?.finish(limit)?;
    Ok(path.display().to_string())
}

fn url_of(means: &Means, endpoint: &Endpoint, tls: bool) -> String {
    let url = url(endpoint);
    match tls {
        true => {
            let key = super::key_of(&means.file);
            format!("{url}&hostnqn={TLS_HOST}&tls-key={}", key.display())
        }
        false => url,
    }
}

/// Starts a target that listens at several addresses. Returns its endpoints in the same order. Does
/// not fill the disk of the target.
pub(in crate::bench_peers) fn serve_at(
    means: &Means,
    backend: Backend,
    listen: &[String],
) -> Result<(Process, Vec<Endpoint>), String> {
    let mut process = Process::start(serving(means, backend, listen)?, means.target_cpu)?;
    let endpoints = process.wait_for(parse_listening)?;
    Ok((process, endpoints))
}

/// The command that starts the target of [`serve_at`].
pub(in crate::bench_peers) fn serving(
    means: &Means,
    backend: Backend,
    listen: &[String],
) -> Result<Command, String> {
    let disk = match backend {
        // Use a copy for farblock, which locks the file that it shares.
        Backend::File => format!("file:{}", means.file_for("farblock")?.display()),
        _ => disk(means, backend),
    };
    let mut command = Command::new(&means.farblock);
    command.args(["serve", "--json"]);
    for address in listen {
        command.args(["--listen", address]);
    }
    command.arg(disk);
    Ok(command)
}

/// Writes the whole memory disk of an NVMe/TCP target, because reads of memory that was never
/// written are faster.
pub(super) fn fill(means: &Means, endpoint: &Endpoint) -> Result<(), String> {
    fill_at(means, &url(endpoint))
}

pub(in crate::bench_peers) fn fill_at(means: &Means, url: &str) -> Result<(), String> {
    let mut command = Command::new(&means.farblock);
    command.args(["--quiet", "copy"]).arg(&means.file).arg(url);
    let limit = std::time::Duration::from_secs(60);
    Process::start(command, means.host_cpu)?.finish(limit).map(drop)
}

fn disk(means: &Means, backend: Backend) -> String {
    match backend {
        Backend::Mem => format!("mem:{}", means.disk_bytes),
        Backend::Null => format!("null:{}", means.disk_bytes),
        Backend::File => format!("file:{}", means.file.display()),
    }
}

pub(in crate::bench_peers) fn url(endpoint: &Endpoint) -> String {
    format!("nvme+tcp://{}/{}?ns=1", endpoint.address, endpoint.name)
}

pub(in crate::bench_peers) fn local(
    means: &Means,
    backend: Backend,
    load: &Load,
    times: Times,
) -> Client {
    bench(means, &disk(means, backend), load, times)
}

pub(in crate::bench_peers) fn remote(
    means: &Means,
    endpoint: &Endpoint,
    (poll, tls): (bool, bool),
    load: &Load,
    times: Times,
) -> Client {
    let mut client = bench(means, &url_of(means, endpoint, tls), load, times);
    if load.digests {
        client.command.args(["--header-digest", "--data-digest"]);
    }
    if poll {
        client.command.arg("--poll");
    }
    client
}

fn bench(means: &Means, disk: &str, load: &Load, times: Times) -> Client {
    let mut command = Command::new(&means.farblock);
    command
        .args(["bench", disk, "--quiet", "--json", "-", "--allow-writes"])
        .args(["--rw", load.rw.name(), "--bs", &load.block_size()])
        .args(["--iodepth", &load.depth.to_string()])
        .args(["--connections", &load.connections.to_string()])
        .args(["--rwmixread", &MIX_READ.to_string()])
        .args(["--size", &means.disk_bytes.to_string()])
        .args(["--runtime", &times.runtime.as_secs_f64().to_string()])
        .args(["--ramp-time", &times.ramp.as_secs_f64().to_string()]);
    if let Some(rate) = load.rate {
        command.args(["--rate-iops", &rate.to_string()]);
    }
    Client { command, begins: None, parse }
}

/// Parses the line that `farblock serve --json` prints.
pub(in crate::bench_peers) fn parse_listening(line: &str) -> Option<Vec<Endpoint>> {
    let value: Value = serde_json::from_str(line).ok()?;
    let name = value["subsystems"][0]["nqn"].as_str()?;
    let endpoint = |address: &Value| {
        Some(Endpoint { address: address.as_str()?.parse().ok()?, name: name.to_owned() })
    };
    let endpoints: Vec<Endpoint> =
        value["listening"].as_array()?.iter().map(endpoint).collect::<Option<_>>()?;
    (!endpoints.is_empty()).then_some(endpoints)
}

fn parse(output: &str, _: &Load) -> Result<Measured, String> {
    let start = output.find('{').ok_or("farblock bench printed no report")?;
    let report = Report::from_json(&output[start..])
        .map_err(|error| format!("farblock bench printed no report: {error}"))?;
    let pattern = report.patterns.first().ok_or("farblock bench measured nothing")?;
    let figures = pattern.remote.as_ref().or(pattern.local.as_ref());
    figures.map(Measured::from).ok_or_else(|| {
        let errors = pattern.errors.iter().map(|error| error.message.as_str());
        errors.collect::<Vec<_>>().join("; ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_addresses_are_parsed_from_the_output_of_farblock() {
        let line = r#"{"listening":["127.0.0.1:45751","192.0.2.1:7"],
            "subsystems":[{"nqn":"nqn.x","n":1}]}"#;
        let endpoints = parse_listening(line).expect("a valid line");
        let urls: Vec<String> = endpoints.iter().map(url).collect();
        assert_eq!(
            urls,
            ["nvme+tcp://127.0.0.1:45751/nqn.x?ns=1", "nvme+tcp://192.0.2.1:7/nqn.x?ns=1"]
        );
        assert!(parse_listening(r#"{"listening":[],"subsystems":[{"nqn":"n"}]}"#).is_none());
        assert!(parse_listening("warning: something else").is_none());
    }
}
