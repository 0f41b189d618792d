//! SPDK, from the build in `FARBLOCK_SPDK`: `nvmf_tgt` and `spdk_nvme_perf`, without hugepages.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Client, Endpoint, Means, Measured, Server, Times, farblock};
use crate::bench_peers::process::Process;
use crate::bench_peers::work::{Backend, Load, MIX_READ};

const NQN: &str = "nqn.2016-06.io.spdk:farblock-bench-peers";
const HOST_NQN: &str = "nqn.2026-11.org.farblock:bench-peers-host";
const BDEV: &str = "Disk0";
const BLOCK_BYTES: u64 = 512;
/// The memory that the target needs besides a memory disk, in MiB.
const OWN_MIB: u64 = 512;

pub(super) fn serve(means: &Means, backend: Backend, zero_copy: bool) -> Result<Server, String> {
    let build = means.spdk.as_ref().expect("this side needs a build of SPDK");
    let address = free_address()?;
    let rpc = Rpc::of(address);
    let disk_mib = if backend == Backend::Mem { means.disk_bytes >> 20 } else { 0 };
    let mut command = Command::new(build.join("build/bin/nvmf_tgt"));
    command
        .args(["-m", &format!("{:#x}", 1_u64 << means.target_cpu)])
        .args(["-s", &(OWN_MIB + disk_mib).to_string(), "-u", "--no-huge", "--wait-for-rpc"])
        // Without this option, a target refuses a processor on which another SPDK target is running
        // or stopped.
        .args(["--disable-cpumask-locks", "-r"])
        .arg(&rpc.path);
    let process = Process::start(command, means.target_cpu)?;
    rpc.wait()?;
    rpc.call(
        "sock_impl_set_options",
        &json!({ "impl_name": "posix", "enable_zerocopy_send_server": zero_copy }),
    )?;
    rpc.call("framework_start_init", &Value::Null)?;
    rpc.call("nvmf_create_transport", &json!({ "trtype": "TCP" }))?;
    add_disk(means, backend, &rpc)?;
    share(&rpc, address)?;
    let server = Server { process, endpoint: Endpoint { address, name: NQN.to_owned() } };
    if backend == Backend::Mem {
        // The memory disk allocates its memory at the first write.
        farblock::fill(means, &server.endpoint)?;
    }
    Ok(server)
}

fn add_disk(means: &Means, backend: Backend, rpc: &Rpc) -> Result<(), String> {
    let blocks = means.disk_bytes / BLOCK_BYTES;
    let size = json!({ "name": BDEV, "num_blocks": blocks, "block_size": BLOCK_BYTES });
    match backend {
        Backend::Mem => rpc.call("bdev_malloc_create", &size),
        Backend::Null => rpc.call("bdev_null_create", &size),
        Backend::File => {
            let file = means.file_for("spdk")?;
            let disk = json!({ "name": BDEV, "filename": file, "block_size": BLOCK_BYTES });
            // Some builds of SPDK lack io_uring.
            rpc.call("bdev_uring_create", &disk).or_else(|_| rpc.call("bdev_aio_create", &disk))
        }
    }
}

fn share(rpc: &Rpc, address: SocketAddr) -> Result<(), String> {
    rpc.call("nvmf_create_subsystem", &json!({ "nqn": NQN, "allow_any_host": true }))?;
    let namespace = json!({ "nsid": 1, "bdev_name": BDEV });
    rpc.call("nvmf_subsystem_add_ns", &json!({ "nqn": NQN, "namespace": namespace }))?;
    let listen = json!({
        "trtype": "TCP",
        "adrfam": "IPv4",
        "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
    });
    rpc.call("nvmf_subsystem_add_listener", &json!({ "nqn": NQN, "listen_address": listen }))
}

/// Limits the IOPS at the target, because SPDK's host has no option for a limit.
pub(super) fn limit(server: &Server, rate: Option<u32>) -> Result<(), String> {
    let rpc = Rpc::of(server.endpoint.address);
    let rate = rate.unwrap_or(0);
    rpc.call("bdev_set_qos_limit", &json!({ "name": BDEV, "rw_ios_per_sec": rate }))
}

pub(super) fn client(means: &Means, endpoint: &Endpoint, load: &Load, times: Times) -> Client {
    let build = means.spdk.as_ref().expect("this side needs a build of SPDK");
    let (ip, port) = (endpoint.address.ip(), endpoint.address.port());
    let seconds = |time: Duration| time.as_secs_f64().ceil().to_string();
    // `stdbuf` makes the output line-buffered, so that the stand sees the start at once.
    let mut command = Command::new("stdbuf");
    command
        .arg("-oL")
        .arg(build.join("build/bin/spdk_nvme_perf"))
        .args(["--no-huge", "-s", "512", "-c", &format!("{:#x}", 1_u64 << means.host_cpu)])
        .args(["-q", &load.depth.to_string(), "-o", &load.block_bytes.to_string()])
        .args(["-P", &load.connections.to_string()])
        .args(["-w", load.rw.name(), "-a", &seconds(times.ramp), "-t", &seconds(times.runtime)])
        .arg("-r")
        // By default this program sends no host NQN, and farblock correctly refuses that.
        .arg(format!(
            "trtype:TCP adrfam:IPv4 traddr:{ip} trsvcid:{port} subnqn:{} hostnqn:{HOST_NQN} ns:1",
            endpoint.name
        ))
        .arg("-L");
    if load.rw.reads() && load.rw.writes() {
        command.args(["-M", &MIX_READ.to_string()]);
    }
    if load.digests {
        command.args(["-H", "-I"]);
    }
    let begins = Some("Launching workers");
    Client { command, begins, parse }
}

/// Parses the line of totals, and the summary of latencies that `-L` adds.
fn parse(output: &str, load: &Load) -> Result<Measured, String> {
    let total = output.lines().find_map(|line| line.trim_start().strip_prefix("Total"));
    let total = total.and_then(|line| line.split_once(':')).map(|(_, numbers)| numbers);
    let mut numbers = total.unwrap_or_default().split_whitespace().map(str::parse::<f64>);
    let (Some(Ok(iops)), Some(Ok(_))) = (numbers.next(), numbers.next()) else {
        return Err("spdk_nvme_perf printed no totals".to_owned());
    };
    let percentile = |wanted: &str| {
        let line = output.lines().find_map(|line| line.trim_start().strip_prefix(wanted))?;
        line.trim_start().strip_prefix(':')?.trim().strip_suffix("us")?.parse().ok()
    };
    Ok(Measured {
        iops,
        mib_per_second: iops * f64::from(load.block_bytes) / f64::from(1 << 20),
        p50_us: percentile("50.00000%"),
        p99_us: percentile("99.00000%"),
        p99_9_us: percentile("99.90000%"),
    })
}

pub(super) fn free_address() -> Result<SocketAddr, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    listener.and_then(|listener| listener.local_addr()).map_err(|error| error.to_string())
}

/// The JSON-RPC socket of a target.
struct Rpc {
    path: PathBuf,
}

impl Rpc {
    /// Returns the RPC socket of the target at this address. Does not connect, so the target need
    /// not run.
    fn of(address: SocketAddr) -> Rpc {
        let name = format!("farblock-spdk-{}-{}.sock", std::process::id(), address.port());
        Rpc { path: std::env::temp_dir().join(name) }
    }

    fn wait(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.call("spdk_get_version", &Value::Null).is_err() {
            if Instant::now() > deadline {
                return Err("nvmf_tgt does not answer its RPC socket".to_owned());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn call(&self, method: &str, parameters: &Value) -> Result<(), String> {
        let complain = |why: &dyn std::fmt::Display| format!("nvmf_tgt: {method}: {why}");
        let mut stream = UnixStream::connect(&self.path).map_err(|error| complain(&error))?;
        let mut request = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
        if !parameters.is_null() {
            request["params"] = parameters.clone();
        }
        let limit = Some(Duration::from_secs(60));
        stream
            .set_read_timeout(limit)
            .and_then(|()| stream.write_all(request.to_string().as_bytes()))
            .map_err(|error| complain(&error))?;
        let mut answers = serde_json::Deserializer::from_reader(stream).into_iter::<Value>();
        match answers.next() {
            Some(Ok(answer)) if answer["error"].is_null() => Ok(()),
            Some(Ok(answer)) => Err(complain(&answer["error"]["message"])),
            Some(Err(error)) => Err(complain(&error)),
            None => Err(complain(&"no answer")),
        }
    }
}

/// The reason why a build cannot be used.
pub(super) fn check(build: &Path) -> Result<(), String> {
    for binary in ["nvmf_tgt", "spdk_nvme_perf"] {
        let path = build.join("build/bin").join(binary);
        if !path.is_file() {
            let path = path.display();
            return Err(format!(
                "SPDK: FARBLOCK_SPDK does not name a build of SPDK: {path} does not exist"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_bench::Rw;

    #[test]
    fn the_output_of_spdk_nvme_perf_is_parsed() {
        let output = "Initialization complete. Launching workers.\n\
            ========================================================\n\
            \x20                                            Latency(us)\n\
            Device Information : IOPS MiB/s Average min max\n\
            TCP (addr:127.0.0.1 subnqn:nqn.x) NSID 1 from core 1: 336758.50 1315.46 95 11 900\n\
            ========================================================\n\
            Total                                    :  336759.00    1315.46      95.00     11.12\n\
            \n\
            Summary latency data for TCP from core  1:\n\
            ==========\n\
            \x20 1.00000% :    60.123us\n\
            \x2050.00000% :    95.102us\n\
            \x2099.00000% :   173.405us\n\
            \x2099.50000% :   200.000us\n\
            \x2099.90000% :   303.242us\n";
        let load = Load::new(Rw::RandRead, 4096, 32, 1);
        let measured = parse(output, &load).expect("the output is valid");
        assert_eq!(measured.iops, 336_759.0);
        assert_eq!(measured.p50_us, Some(95.102));
        assert_eq!((measured.p99_us, measured.p99_9_us), (Some(173.405), Some(303.242)));
        assert!(parse("No valid NVMe controllers found", &load).is_err());
    }
}
