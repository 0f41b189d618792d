//! iSCSI: Debian's `tgt` on a memory file system, and libiscsi's `iscsi-perf`. The latter only
//! reads, and reports no latencies.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, Endpoint, Means, Measured, Server, Times, spdk::free_address};
use crate::bench_peers::process::{Process, describe};
use crate::bench_peers::work::Load;

const IQN: &str = "iqn.2026-11.org.farblock:bench-peers";
const BLOCK_BYTES: u32 = 512;

pub(super) fn serve(means: &Means) -> Result<Server, String> {
    let file = means.file_in_memory("iscsi")?;
    let address = free_address()?;
    // tgt's control socket has this number in its name, and tgt accepts only small numbers.
    let control = (address.port() % 32_768).to_string();
    let mut command = Command::new("tgtd");
    command.args(["-f", "-C", &control, "--iscsi", &format!("portal={address}")]);
    let process = Process::start(command, means.target_cpu)?;
    let admin = |words: &str| {
        let mut command = Command::new("tgtadm");
        command.args(["-C", &control, "--lld", "iscsi"]).args(words.split(' '));
        administer(command)
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(sentence) = admin("--op show --mode sys") {
        if Instant::now() > deadline {
            return Err(sentence);
        }
        thread::sleep(Duration::from_millis(50));
    }
    admin(&format!("--op new --mode target --tid 1 -T {IQN}"))?;
    let file = file.display();
    admin(&format!("--op new --mode logicalunit --tid 1 --lun 1 --bstype rdwr -b {file}"))?;
    admin("--op bind --mode target --tid 1 -I ALL")?;
    Ok(Server { process, endpoint: Endpoint { address, name: IQN.to_owned() } })
}

fn administer(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{}: {error}", describe(&command)))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", describe(&command), said.trim()))
}

pub(super) fn client(endpoint: &Endpoint, load: &Load, times: Times) -> Client {
    let seconds = (times.ramp + times.runtime).as_secs_f64().ceil();
    let mut command = Command::new("iscsi-perf");
    command
        .args(["-r", "-m", &load.depth.to_string()])
        .args(["-b", &(load.block_bytes / BLOCK_BYTES).to_string()])
        .args(["-t", &seconds.to_string()])
        .arg(format!("iscsi://{}/{}/1", endpoint.address, endpoint.name));
    Client { command, begins: None, parse }
}

/// Parses the last average: `iops average 23456 (96 MB/s)`.
fn parse(output: &str, load: &Load) -> Result<Measured, String> {
    let average = |piece: &str| {
        let number = piece.split_whitespace().next()?;
        number.parse::<f64>().ok()
    };
    let iops = output.rsplit("iops average ").find_map(average);
    let iops = iops.ok_or("iscsi-perf printed no average")?;
    let mib_per_second = iops * f64::from(load.block_bytes) / f64::from(1 << 20);
    Ok(Measured { iops, mib_per_second, ..Measured::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_bench::Rw;

    #[test]
    fn the_output_of_iscsi_perf_is_parsed() {
        let load = Load::new(Rw::RandRead, 4096, 32, 1);
        let output = "capacity is 512.00 MB\rlba 5, iops current 9000 (35 MB/s), iops average 8000 \
                      (31 MB/s)\riops average 22334 (87 MB/s)\nfinished.";
        assert_eq!(parse(output, &load).expect("the output is valid").iops, 22_334.0);
        assert!(parse("failed to connect", &load).is_err());
    }
}
