//! NBD: the memory plugin of `nbdkit`, and fio's nbd engine.

use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Client, Endpoint, Means, Measured, Server, Times, spdk::free_address};
use crate::bench_peers::process::Process;
use crate::bench_peers::work::{Load, MIX_READ};

pub(super) fn serve(means: &Means) -> Result<Server, String> {
    let address = free_address()?;
    let mut command = Command::new("nbdkit");
    command
        .args(["--foreground", "--ipaddr", &address.ip().to_string()])
        .args(["--port", &address.port().to_string()])
        .args(["memory", &means.disk_bytes.to_string()]);
    let process = Process::start(command, means.target_cpu)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_err() {
        if Instant::now() > deadline {
            return Err(format!("nbdkit does not listen on {address}"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    let endpoint = Endpoint { address, name: String::new() };
    let size = means.disk_bytes.to_string();
    let mut fill = fio(&endpoint);
    fill.args(["--rw=write", "--bs=1M", "--iodepth=4", &format!("--size={size}")]);
    Process::start(fill, means.host_cpu)?.finish(Duration::from_secs(60))?;
    Ok(Server { process, endpoint })
}

fn fio(endpoint: &Endpoint) -> Command {
    let mut command = Command::new("fio");
    command
        .args(["--name=nbd", "--ioengine=nbd", "--output-format=json", "--thread"])
        .arg(format!("--uri=nbd://{}", endpoint.address));
    command
}

pub(super) fn client(means: &Means, endpoint: &Endpoint, load: &Load, times: Times) -> Client {
    let mut command = fio(endpoint);
    command
        .arg(format!("--rw={}", load.rw))
        .arg(format!("--rwmixread={MIX_READ}"))
        .arg(format!("--bs={}", load.block_bytes))
        .arg(format!("--iodepth={}", load.depth_each()))
        .arg(format!("--numjobs={}", load.connections))
        .arg(format!("--size={}", means.disk_bytes))
        .args(["--time_based", "--norandommap", "--group_reporting"])
        .arg(format!("--ramp_time={}ms", times.ramp.as_millis()))
        .arg(format!("--runtime={}ms", times.runtime.as_millis()));
    Client { command, begins: None, parse }
}

/// Parses fio's JSON output. Skips any notes before the JSON.
pub(in crate::bench_peers) fn parse(output: &str, load: &Load) -> Result<Measured, String> {
    let start = output.find('{').ok_or("fio printed no JSON")?;
    let mut documents = serde_json::Deserializer::from_str(&output[start..]).into_iter::<Value>();
    let report = match documents.next() {
        Some(Ok(report)) => report,
        _ => return Err("fio printed no JSON".to_owned()),
    };
    let job = &report["jobs"][0];
    if job["error"].as_u64() != Some(0) {
        return Err("fio reports an error of its job".to_owned());
    }
    let of = |kind: &str| job[kind]["iops"].as_f64().unwrap_or(0.0);
    let iops = of("read") + of("write");
    // fio has separate percentiles of reads and writes. Of a mixed load, most I/Os are reads.
    let kind = if of("read") > 0.0 { "read" } else { "write" };
    let us = |percentile: &str| {
        job[kind]["clat_ns"]["percentile"][percentile].as_f64().map(|ns| ns / 1000.0)
    };
    Ok(Measured {
        iops,
        mib_per_second: iops * f64::from(load.block_bytes) / f64::from(1 << 20),
        p50_us: us("50.000000"),
        p99_us: us("99.000000"),
        p99_9_us: us("99.900000"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_bench::Rw;

    #[test]
    fn the_output_of_fio_is_parsed() {
        let load = Load::new(Rw::RandRead, 4096, 32, 1);
        let output = r#"note: something
            {"jobs": [{"error": 0, "read": {"iops": 70622.5, "clat_ns": {"percentile":
            {"50.000000": 395264, "99.000000": 1089536, "99.900000": 2539520}}},
            "write": {"iops": 0.0}}]}
            trailing words"#;
        let measured = parse(output, &load).expect("the output is valid");
        assert_eq!((measured.iops, measured.p50_us), (70_622.5, Some(395.264)));
        let failed = output.replace("\"error\": 0", "\"error\": 5");
        assert!(parse(&failed, &load).is_err());
        assert!(parse("fio: engine nbd not loadable", &load).is_err());
    }
}
