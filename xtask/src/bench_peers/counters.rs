//! Measures the cost of counters and histograms: the same load runs on targets and attached disks,
//! with and without clients that read their metrics.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use farblock_bench::Rw;
use serde_json::Value;

use super::contest::{self, Entrant, Row};
use super::process::Process;
use super::sides::{self, Client, Endpoint, Means, Times, farblock};
use super::work::{Backend, Load};
use super::{DiskFile, Options};

/// The name of the table's file, and the title of the table.
const TABLE: (&str, &str) =
    ("counters", "targets and attached disks with and without readers of their metrics");

/// The interval at which a client polls the counters, shorter than Prometheus' usual 15 s or more.
const PERIOD: Duration = Duration::from_secs(1);

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let rows = [1, 32].map(|depth| {
        let load = Load::new(Rw::RandRead, 4096, depth, 1);
        Row { name: load.words(), load }
    });
    if options.list {
        TARGETS.iter().for_each(|(name, ..)| println!("{name}"));
        DISKS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let file = DiskFile::create(&options.directory, options.disk_mib)?;
    let means = super::means(options, &file)?;
    let wanted = |name: &str| options.only.iter().all(|words| name.contains(words.as_str()));
    let mut targets = Vec::new();
    for (name, serves, asked) in TARGETS.into_iter().filter(|(name, ..)| wanted(name)) {
        targets.push(Served::start(&means, name, serves, asked)?);
    }
    let plain = Served::start(&means, "", false, false)?;
    let mut disks = Vec::new();
    for (name, asked) in DISKS.into_iter().filter(|(name, _)| wanted(name)) {
        disks.push(Attached::start(&means, &plain, name, asked)?);
    }
    let entrants = targets.iter().map(|target| target.entrant(&means));
    let entrants: Vec<_> = entrants.chain(disks.iter().map(|disk| disk.entrant(&means))).collect();
    let remarks =
        ["An attached disk is a FUSE file without a loop device, and fio reads this file. The \
         processor time of the disk's server is not counted."
            .to_owned()];
    contest::hold(TABLE, options, &rows, &entrants, contest::times(options)?, &remarks)
}

/// The targets: the name, whether it has `--metrics`, and whether a client polls its counters.
const TARGETS: [(&str, bool, bool); 3] = [
    ("target without --metrics", false, false),
    ("target with --metrics", true, false),
    ("target with a scrape each second", true, true),
];

/// The attached disks: the name, and whether `list --metrics` ran before, which starts the
/// measurement of latencies.
const DISKS: [(&str, bool); 2] =
    [("attached disk, latencies not read", false), ("attached disk, latencies read", true)];

/// A target with a memory disk.
struct Served {
    name: &'static str,
    process: Process,
    endpoint: Endpoint,
    // A thread polls the counters until this is dropped.
    _asking: Option<Sender<()>>,
}

impl Served {
    fn start(
        means: &Means,
        name: &'static str,
        serves: bool,
        asked: bool,
    ) -> Result<Served, String> {
        let mut command = farblock::serving(means, Backend::Mem, &["127.0.0.1:0".to_owned()])?;
        if serves {
            command.args(["--metrics", "127.0.0.1:0"]);
        }
        let mut process = Process::start(command, means.target_cpu)?;
        let (endpoint, metrics) = process.wait_for(|line| {
            let said: Value = serde_json::from_str(line).ok()?;
            let metrics = said["metrics"].as_str().and_then(address);
            Some((farblock::parse_listening(line)?.remove(0), metrics))
        })?;
        farblock::fill_at(means, &farblock::url(&endpoint))?;
        let asking = metrics.filter(|_| asked).map(ask);
        Ok(Served { name, process, endpoint, _asking: asking })
    }

    fn entrant<'a>(&'a self, means: &'a Means) -> Entrant<'a> {
        let client = |row: &Row, times: Times| {
            farblock::remote(means, &self.endpoint, (false, false), &row.load, times)
        };
        let server = Some(&self.process);
        Entrant { name: self.name, server, polls: false, client: Box::new(client) }
    }
}

/// Parses the address in `http://ADDR:PORT/metrics`.
fn address(url: &str) -> Option<SocketAddr> {
    url.strip_prefix("http://")?.split('/').next()?.parse().ok()
}

/// Polls the counters until the returned sender is dropped.
fn ask(address: SocketAddr) -> Sender<()> {
    let (asking, end) = channel();
    std::thread::spawn(move || {
        while end.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
            // Ignore a failed poll. The next one follows after the interval.
            let _ = TcpStream::connect(address).and_then(|mut stream| {
                stream
                    .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
                stream.read_to_end(&mut Vec::new())
            });
        }
    });
    asking
}

/// A disk that is attached as a FUSE file.
struct Attached {
    name: &'static str,
    process: Process,
    file: PathBuf,
    // Dropped last, because the folder contains a mount.
    _folder: Folder,
}

/// A folder. Dropping this removes the folder if it is empty.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Attached {
    fn start(
        means: &Means,
        target: &Served,
        name: &'static str,
        asked: bool,
    ) -> Result<Attached, String> {
        let folder = format!("farblock-bench-counters-{}-{asked}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(folder));
        let mut command = Command::new(&means.farblock);
        command.arg("attach").arg(farblock::url(&target.endpoint));
        command.args(["--as", "fuse", "--no-device", "--foreground", "--name", "bench"]);
        command.arg("--runtime-dir").arg(&folder.0);
        let mut process = Process::start(command, means.target_cpu)?;
        process.wait_for(|line| line.starts_with("bench: ").then_some(()))?;
        if asked {
            let mut command = Command::new(&means.farblock);
            command.args(["list", "--metrics", "--runtime-dir"]).arg(&folder.0);
            Process::start(command, means.host_cpu)?.finish(Duration::from_secs(60))?;
        }
        let file = folder.0.join("bench/mount/bench");
        Ok(Attached { name, process, file, _folder: folder })
    }

    fn entrant<'a>(&'a self, means: &'a Means) -> Entrant<'a> {
        let client = |row: &Row, times: Times| {
            let mut command = Command::new("fio");
            let (ramp, runtime) = (times.ramp.as_millis(), times.runtime.as_millis());
            command
                .args(["--name=job", "--thread", "--output-format=json", "--ioengine=io_uring"])
                .args(["--rw=randread", "--bs=4k", "--direct=1", "--time_based", "--norandommap"])
                .arg(format!("--filename={}", self.file.display()))
                .arg(format!("--size={}", means.disk_bytes))
                .arg(format!("--iodepth={}", row.load.depth))
                .arg(format!("--ramp_time={ramp}ms"))
                .arg(format!("--runtime={runtime}ms"));
            Client { command, begins: None, parse: sides::nbd::parse }
        };
        let server = Some(&self.process);
        Entrant { name: self.name, server, polls: false, client: Box::new(client) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_taken_from_the_url_of_the_counters() {
        let here = address("http://127.0.0.1:9101/metrics").expect("a valid address");
        assert_eq!(here, SocketAddr::from(([127, 0, 0, 1], 9101)));
        assert_eq!(address("https://127.0.0.1:9101/metrics"), None);
    }
}
