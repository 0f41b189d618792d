//! Measures the same file over iSCSI, alternating with NVMe: farblock or tgt shares it.
//!
//! A round: the NVMe target closes the file, each iSCSI target shares it for one run, and then the
//! NVMe target shares it again. All connections use the loopback, where farblock's iSCSI target
//! listens. Both sides have the same load: one generator, over farblock's host or over farblock's
//! initiator, which has a session for each job.

use crate::controller::{Fleet, Sum};
use crate::error::FleetError;
use crate::limits::TGT_TIME;
use crate::message::{Ask, Say};
use crate::plan::{IscsiTarget, Plan, Wanted};
use crate::report::{IscsiReport, IscsiTotal};
use farblock_bench::{Pattern, jobs_and_depth};
use farblock_random::Random;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The iSCSI name of both targets.
pub(crate) const NAME: &str = "iqn.2026-11.org.farblock:fleet";
/// The block size of tgt, and so of all targets.
pub(crate) const BLOCK_BYTES: u32 = 512;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The folders in which Debian installs tgt; not always in a user's search path.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The external programs for iSCSI.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    tgtd: PathBuf,
    tgtadm: PathBuf,
}

impl Programs {
    /// Finds the plan's programs; a plan without iSCSI needs none.
    pub(crate) fn of(plan: &Plan) -> Result<Programs, FleetError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
        Programs::find(plan, &folders.collect::<Vec<_>>())
    }

    fn find(plan: &Plan, folders: &[PathBuf]) -> Result<Programs, FleetError> {
        let mut programs = Programs::default();
        if !plan.iscsi.contains(&IscsiTarget::Tgt) {
            return Ok(programs);
        }
        let find = |program: &str| {
            let found = folders.iter().map(|folder| folder.join(program)).find(|it| it.is_file());
            found.ok_or_else(|| {
                let why = format!(
                    "needs {program}, which is not installed: install it (Debian: apt install \
                     tgt), or leave these rows out with --without tgt"
                );
                FleetError::plan(&plan.name, why)
            })
        };
        (programs.tgtd, programs.tgtadm) = (find("tgtd")?, find("tgtadm")?);
        Ok(programs)
    }
}

/// One run with each of the plan's iSCSI targets. The NVMe target shares the file before and after.
pub(crate) fn turn(
    fleet: &mut Fleet<'_>,
    pattern: &Pattern,
    run: u32,
    reports: &mut Vec<IscsiReport>,
) -> Result<(), FleetError> {
    done(fleet, true, &Ask::Connect { clients: Vec::new() })?;
    done(fleet, false, &Ask::Unshare)?;
    for (index, &target) in fleet.plan.iscsi.iter().enumerate() {
        let total = match target {
            IscsiTarget::Farblock => by_farblock(fleet, pattern, run)?,
            IscsiTarget::Tgt => by_tgt(fleet, pattern, run)?,
        };
        if reports.len() <= index {
            reports.push(IscsiReport { target, total, runs: Vec::new(), nvme_ratio: 0.0 });
        }
        reports[index].runs.push(total);
    }
    fleet.share(0)
}

fn done(fleet: &mut Fleet<'_>, is_host: bool, ask: &Ask) -> Result<(), FleetError> {
    let peer = if is_host { &mut fleet.hosts[0] } else { &mut fleet.targets[0].peer };
    match peer.ask(ask)? {
        Say::Done => Ok(()),
        other => Err(peer.surprise(&other)),
    }
}

fn by_farblock(
    fleet: &mut Fleet<'_>,
    pattern: &Pattern,
    run: u32,
) -> Result<IscsiTotal, FleetError> {
    let mut share = fleet.targets[0].share.clone();
    share.iscsi = true;
    share.address.set_port(0);
    let peer = &mut fleet.targets[0].peer;
    let url = match peer.ask(&Ask::Share(share))? {
        Say::Sharing { mut namespaces, .. } if namespaces.len() == 1 => namespaces.remove(0).url,
        other => return Err(peer.surprise(&other)),
    };
    let total = one_run(fleet, pattern, run, &url, (None, IscsiTarget::Farblock))?;
    done(fleet, false, &Ask::Unshare)?;
    Ok(total)
}

fn by_tgt(fleet: &mut Fleet<'_>, pattern: &Pattern, run: u32) -> Result<IscsiTotal, FleetError> {
    let drive = fleet.targets[0].share.drives[0].clone();
    let file = drive.strip_prefix("file:").unwrap_or(&drive);
    let mut tgt = Tgt::start(&fleet.programs, &fleet.setting.folder, file).map_err(failed)?;
    let uri = format!("iscsi://{}/{NAME}/1", tgt.address);
    let process = tgt.process.child.id();
    let total = one_run(fleet, pattern, run, &uri, (Some(process), IscsiTarget::Tgt));
    // A result is invalid if the target has ended.
    match tgt.process.is_running().map_err(failed)? {
        true => total,
        false => Err(failed(tgt.process.complaint("ended"))),
    }
}

/// Runs the load on this target, and returns its result.
fn one_run(
    fleet: &mut Fleet<'_>,
    pattern: &Pattern,
    run: u32,
    url: &str,
    (process, target): (Option<u32>, IscsiTarget),
) -> Result<IscsiTotal, FleetError> {
    fleet.connect_to(pattern, url)?;
    let mut sum = Sum::default();
    let whose = format!(", iSCSI, {}", target.words());
    fleet.one_run(pattern, run, (process, &whose), &mut sum)?;
    done(fleet, true, &Ask::Connect { clients: Vec::new() })?;
    let run = sum.runs.first().ok_or_else(|| failed("nothing was measured".to_owned()))?;
    Ok(IscsiTotal {
        iops: run.iops,
        mib_per_second: run.mib_per_second,
        mean_latency_us: run.latency.mean_ns / 1e3,
        p99_latency_us: Some(run.latency.p99_ns as f64 / 1e3),
        cpu_us_per_io: run.cpu_us_per_io,
    })
}

fn failed(why: String) -> FleetError {
    FleetError::agent("iSCSI", why)
}

/// Fills in the results that depend on all runs.
pub(crate) fn finish(reports: &mut [IscsiReport], nvme_iops: f64) {
    for report in reports {
        let count = report.runs.len().max(1) as f64;
        let mean = |of: fn(&IscsiTotal) -> f64| report.runs.iter().map(of).sum::<f64>() / count;
        report.total = IscsiTotal {
            iops: mean(|run| run.iops),
            mib_per_second: mean(|run| run.mib_per_second),
            mean_latency_us: mean(|run| run.mean_latency_us),
            p99_latency_us: report.runs.iter().map(|run| run.p99_latency_us).sum::<Option<f64>>(),
            cpu_us_per_io: mean(|run| run.cpu_us_per_io),
        };
        report.total.p99_latency_us = report.total.p99_latency_us.map(|sum| sum / count);
        report.nvme_ratio = nvme_iops / report.total.iops.max(f64::MIN_POSITIVE);
    }
}

/// Fills a plan's file with data, since file systems answer reads of holes without the disk.
pub(crate) fn fill(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let mut left = file.metadata()?.len();
    let (mut random, mut chunk) = (Random::new(1), vec![0; 1 << 20]);
    while left > 0 {
        random.fill(&mut chunk);
        let part = left.min(chunk.len() as u64);
        file.write_all(&chunk[..part as usize])?;
        left -= part;
    }
    file.sync_all()
}

/// A running program whose output is written to a file. The program is killed when this value is
/// dropped, or when this process exits.
struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(program: &Command, folder: &Path, name: &str) -> Result<Process, String> {
        let log = folder.join(format!("{name}.log"));
        let cannot = |error: io::Error| format!("{name} cannot be started: {error}");
        let file = File::create(&log).map_err(cannot)?;
        let again = file.try_clone().map_err(cannot)?;
        let mut command = crate::process::bound(program);
        command.stdin(Stdio::null()).stdout(file).stderr(again);
        let child = command.spawn();
        let child = child.map_err(|error| format!("setpriv, for {name}: {error}"))?;
        Ok(Process { name: name.to_owned(), child, log })
    }

    fn is_running(&mut self) -> Result<bool, String> {
        match self.child.try_wait() {
            Ok(None) => Ok(true),
            Ok(Some(status)) if status.success() => Ok(false),
            Ok(Some(status)) => Err(self.complaint(&format!("failed ({status})"))),
            Err(error) => Err(self.complaint(&format!("cannot be waited for ({error})"))),
        }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn complaint(&self, what: &str) -> String {
        let said = self.said();
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        format!("{} {what}: {}", self.name, last.unwrap_or("it said nothing").trim())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// tgtd, which shares the file as its unit 1.
struct Tgt {
    process: Process,
    address: SocketAddr,
}

impl Tgt {
    fn start(programs: &Programs, folder: &Path, file: &str) -> Result<Tgt, String> {
        let address = free_address().map_err(|error| format!("no free port: {error}"))?;
        let socket = folder.join("tgt");
        let mut command = Command::new(&programs.tgtd);
        command.args(["-f", "--iscsi", &format!("portal={address}")]);
        command.env("TGT_IPC_SOCKET", &socket);
        let process = Process::start(&command, folder, "tgtd")?;
        let mut tgt = Tgt { process, address };
        let say = |words: &str, file: Option<&str>| {
            let mut command = Command::new(&programs.tgtadm);
            command.env("TGT_IPC_SOCKET", &socket).args(["--lld", "iscsi"]);
            command.args(words.split(' ')).args(file.map(|file| ["-b", file]).iter().flatten());
            administer(command)
        };
        let until = Instant::now() + TGT_TIME;
        while let Err(why) = say("--op show --mode sys", None) {
            if !tgt.process.is_running()? || Instant::now() > until {
                return Err(tgt.process.complaint(&format!("does not get ready ({why})")));
            }
            thread::sleep(LOOK_EVERY);
        }
        say(&format!("--op new --mode target --tid 1 -T {NAME}"), None)?;
        let unit = "--op new --mode logicalunit --tid 1 --lun 1 --bstype rdwr";
        // tgtd opens the file as farblock does: without the page cache, if the file system supports
        // that.
        say(&format!("{unit} --bsoflags direct"), Some(file)).or_else(|_| say(unit, Some(file)))?;
        say("--op bind --mode target --tid 1 -I ALL", None)?;
        Ok(tgt)
    }
}

fn administer(mut command: Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("tgtadm cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("tgtadm: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A free address, since tgtd does not accept port 0. The address belongs to this process, so that
/// no other program takes the port in between.
fn free_address() -> io::Result<SocketAddr> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    TcpListener::bind((Ipv4Addr::new(127, high | 64, middle, low), 0))?.local_addr()
}

/// Remarks on the comparison for the reader, a sentence each.
pub(crate) fn remarks(plan: &Plan) -> Vec<String> {
    if plan.iscsi.is_empty() {
        return Vec::new();
    }
    vec![
        "iSCSI and NVMe/TCP had the same file in turns, on the loopback, under the same load \
         generator: NVMe by farblock's host, iSCSI by farblock's initiator, a session for each job"
            .to_owned(),
        "the documents' figure is about 550 % better random I/O over NVMe-oF than over iSCSI, \
         which reads as 5.5 or 6.5 times; theirs was RDMA for both (RoCE, iSER), from machine to \
         machine"
            .to_owned(),
    ]
}

/// Checks that a load is possible over iSCSI.
pub(crate) fn check(plan: &Plan, wanted: &Wanted) -> Result<(), FleetError> {
    let pattern = &wanted.pattern;
    let is_fit = !wanted.vm && pattern.block_size_bytes.is_multiple_of(BLOCK_BYTES);
    let why = format!(
        "compares with iSCSI in blocks of {BLOCK_BYTES} bytes, without virtual machines; {} ({}) \
         is something else",
        pattern.name,
        jobs_and_depth(pattern)
    );
    if is_fit { Ok(()) } else { Err(FleetError::plan(&plan.name, why)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_a_mean() {
        let one = |iops, p99_latency_us| IscsiTotal {
            iops,
            mib_per_second: iops / 256.0,
            mean_latency_us: 1000.0,
            p99_latency_us,
            cpu_us_per_io: 25.0,
        };
        let of = |runs: [IscsiTotal; 2]| {
            let (target, total, runs) = (IscsiTarget::Tgt, runs[0], runs.to_vec());
            let mut reports = [IscsiReport { target, total, runs, nvme_ratio: 0.0 }];
            finish(&mut reports, 96_000.0);
            (reports[0].total, reports[0].nvme_ratio)
        };
        let (total, ratio) = of([one(64_000.0, Some(10.0)), one(32_000.0, Some(20.0))]);
        assert_eq!((total.iops, ratio, total.p99_latency_us), (48_000.0, 2.0, Some(15.0)));
        assert_eq!((total.mib_per_second, total.cpu_us_per_io), (187.5, 25.0));
        let (total, _) = of([one(64_000.0, Some(10.0)), one(32_000.0, None)]);
        assert_eq!(total.p99_latency_us, None, "a report of before had none");
    }

    #[test]
    fn what_is_not_installed_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = Plan { name: "x".to_owned(), ..Plan::default() };
        let why = |plan: &Plan| {
            let found = Programs::find(plan, &[folder.path().to_path_buf()]);
            found.map_or_else(|error| error.to_string(), |_| String::new())
        };
        assert_eq!(why(&plan), "", "it needs nothing");
        plan.iscsi = vec![IscsiTarget::Tgt];
        let missing = why(&plan);
        assert!(missing.contains("tgtd") && missing.contains("--without tgt"), "{missing}");
        plan.iscsi = vec![IscsiTarget::Farblock];
        assert_eq!(why(&plan), "");
    }

    #[test]
    fn a_file_is_filled_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive");
        File::create(&path).unwrap().set_len((1 << 20) + 512).unwrap();
        fill(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), (1 << 20) + 512);
        assert!(bytes.chunks(512).all(|block| block.iter().any(|&byte| byte != 0)));
    }
}
