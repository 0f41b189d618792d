//! The same file by iSCSI, in turns with NVMe: shared by farblock or by tgt, and read by libiscsi.
//!
//! A turn: the NVMe target lets go of the file, each iSCSI target has it for one run, and then the
//! NVMe target again. All of it is on the loopback, as farblock's iSCSI target serves nobody else.
//! libiscsi's `iscsi-perf` only reads and tells no latencies, but always has as many commands in
//! flight as it may, so that their mean latency is that number by the rate (Little's law).

use crate::controller::{Fleet, MIB};
use crate::error::FleetError;
use crate::limits::{LOAD_GRACE, TGT_TIME};
use crate::message::{Ask, Say};
use crate::plan::{IscsiTarget, Plan};
use crate::report::{IscsiReport, IscsiTotal};
use farblock_bench::cpu::CpuSource;
use farblock_bench::{Pattern, jobs_and_depth};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The name of both targets.
pub(crate) const NAME: &str = "iqn.2026-11.org.farblock:fleet";
/// tgt's blocks, so everybody's.
pub(crate) const BLOCK_BYTES: u32 = 512;
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Where Debian has tgt, which is not always where users look.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The programs that it takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    perf: PathBuf,
    tgtd: PathBuf,
    tgtadm: PathBuf,
}

impl Programs {
    /// Finds what the plan needs; a plan without iSCSI needs nothing.
    pub(crate) fn of(plan: &Plan) -> Result<Programs, FleetError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
        Programs::find(plan, &folders.collect::<Vec<_>>())
    }

    fn find(plan: &Plan, folders: &[PathBuf]) -> Result<Programs, FleetError> {
        let mut programs = Programs::default();
        if plan.iscsi.is_empty() {
            return Ok(programs);
        }
        let find = |program: &str, package: &str, else_: &str| {
            let found = folders.iter().map(|folder| folder.join(program)).find(|it| it.is_file());
            found.ok_or_else(|| {
                let why = format!(
                    "needs {program}, which is not installed: install it (Debian: apt install \
                     {package}){else_}"
                );
                FleetError::plan(&plan.name, why)
            })
        };
        programs.perf = find("iscsi-perf", "libiscsi-bin", "")?;
        if plan.iscsi.contains(&IscsiTarget::Tgt) {
            let leave_out = ", or leave these rows out with --without tgt";
            programs.tgtd = find("tgtd", "tgt", leave_out)?;
            programs.tgtadm = find("tgtadm", "tgt", leave_out)?;
        }
        Ok(programs)
    }
}

/// One run by each of the plan's iSCSI targets. The NVMe target shares the file before and after.
pub(crate) fn turn(
    fleet: &mut Fleet<'_>,
    pattern: &Pattern,
    run: u32,
    reports: &mut Vec<IscsiReport>,
) -> Result<(), FleetError> {
    done(fleet, true, &Ask::Connect { clients: Vec::new() })?;
    done(fleet, false, &Ask::Unshare)?;
    for (index, &target) in fleet.plan.iscsi.iter().enumerate() {
        let runs = fleet.plan.runs;
        let what =
            format!("{} by iSCSI, {}, run {} of {runs}", pattern.name, target.words(), run + 1);
        fleet.note(&what)?;
        let total = match target {
            IscsiTarget::Farblock => by_farblock(fleet, pattern, &what)?,
            IscsiTarget::Tgt => by_tgt(fleet, pattern, &what)?,
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
    what: &str,
) -> Result<IscsiTotal, FleetError> {
    let mut share = fleet.targets[0].share.clone();
    share.iscsi = true;
    share.address.set_port(0);
    let peer = &mut fleet.targets[0].peer;
    let address = match peer.ask(&Ask::Share(share))? {
        Say::Sharing { address } => address,
        other => return Err(peer.surprise(&other)),
    };
    let process = peer.process().ok_or_else(|| peer.error("it was not started here"))?;
    let total = read(fleet, pattern, what, &format!("iscsi://{address}/{NAME}/0"), process)?;
    done(fleet, false, &Ask::Unshare)?;
    Ok(total)
}

fn by_tgt(fleet: &mut Fleet<'_>, pattern: &Pattern, what: &str) -> Result<IscsiTotal, FleetError> {
    let drive = fleet.targets[0].share.drives[0].clone();
    let file = drive.strip_prefix("file:").unwrap_or(&drive);
    let tgt = Tgt::start(&fleet.programs, &fleet.setting.folder, file).map_err(failed)?;
    let uri = format!("iscsi://{}/{NAME}/1", tgt.address);
    read(fleet, pattern, what, &uri, tgt.process.child.id())
}

fn failed(why: String) -> FleetError {
    FleetError::agent("iSCSI", why)
}

/// Reads by libiscsi: a process, and so a session, for each job.
fn read(
    fleet: &mut Fleet<'_>,
    pattern: &Pattern,
    what: &str,
    uri: &str,
    target: u32,
) -> Result<IscsiTotal, FleetError> {
    let plan = fleet.plan;
    let (ramp, runtime) = (plan.ramp_seconds, plan.runtime_seconds);
    let mut command = Command::new(&fleet.programs.perf);
    if pattern.rw.is_random() {
        command.arg("-r");
    }
    // A second more, so that they all run until the end of the measured time.
    command
        .args(["-m", &pattern.iodepth.to_string()])
        .args(["-b", &(pattern.block_size_bytes / BLOCK_BYTES).to_string()])
        .args(["-t", &((ramp + runtime).ceil() + 1.0).to_string()])
        .arg(uri);
    let start = |job| Process::start(&command, &fleet.setting.folder, &format!("iscsi-perf-{job}"));
    let mut readers: Vec<Process> =
        (0..pattern.numjobs).map(start).collect::<Result<_, _>>().map_err(failed)?;
    let processes = readers.iter().map(|it| it.child.id()).chain([target]);
    let meters = processes
        .map(meter)
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| failed(format!("processor time cannot be read: {error}")))?;
    let used = || meters.iter().map(|meter| meter.cpu_time()).sum::<Duration>();
    wait(fleet, what, Duration::from_secs_f64(ramp))?;
    let (before, begin) = (used(), Instant::now());
    wait(fleet, what, Duration::from_secs_f64(runtime))?;
    let (used, elapsed) = (used().saturating_sub(before), begin.elapsed());
    let until = Instant::now() + LOAD_GRACE;
    let mut iops = 0.0;
    for reader in &mut readers {
        while reader.is_running().map_err(failed)? {
            wait(fleet, what, LOOK_EVERY)?;
            if Instant::now() > until {
                return Err(failed("iscsi-perf does not end".to_owned()));
            }
        }
        iops += average(&reader.said()).ok_or_else(|| failed(reader.complaint("failed")))?;
    }
    Ok(total(pattern, iops, used.as_secs_f64() / elapsed.as_secs_f64()))
}

fn total(pattern: &Pattern, iops: f64, cores: f64) -> IscsiTotal {
    let in_flight = f64::from(pattern.numjobs) * f64::from(pattern.iodepth);
    let each_us = 1e6 / iops.max(f64::MIN_POSITIVE);
    IscsiTotal {
        iops,
        mib_per_second: iops * f64::from(pattern.block_size_bytes) / MIB,
        mean_latency_us: in_flight * each_us,
        cpu_us_per_io: cores * each_us,
    }
}

/// Fills in what follows of all runs.
pub(crate) fn finish(reports: &mut [IscsiReport], nvme_iops: f64) {
    for report in reports {
        let count = report.runs.len().max(1) as f64;
        let mean = |of: fn(&IscsiTotal) -> f64| report.runs.iter().map(of).sum::<f64>() / count;
        report.total = IscsiTotal {
            iops: mean(|run| run.iops),
            mib_per_second: mean(|run| run.mib_per_second),
            mean_latency_us: mean(|run| run.mean_latency_us),
            cpu_us_per_io: mean(|run| run.cpu_us_per_io),
        };
        report.nvme_ratio = nvme_iops / report.total.iops.max(f64::MIN_POSITIVE);
    }
}

#[cfg(any(target_os = "linux", windows))]
fn meter(process: u32) -> io::Result<Box<dyn CpuSource>> {
    Ok(Box::new(farblock_bench::cpu::OtherProcess::new(process)?))
}

#[cfg(not(any(target_os = "linux", windows)))]
fn meter(_: u32) -> io::Result<Box<dyn CpuSource>> {
    Err(io::ErrorKind::Unsupported.into())
}

fn wait(fleet: &mut Fleet<'_>, what: &str, time: Duration) -> Result<(), FleetError> {
    let until = Instant::now() + time;
    loop {
        fleet.note(what)?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}

/// The last average: `iops average 23456 (96 MB/s)`.
fn average(said: &str) -> Option<f64> {
    let (_, last) = said.rsplit_once("iops average ")?;
    let iops: f64 = last.split_whitespace().next()?.parse().ok()?;
    (iops > 0.0).then_some(iops)
}

/// A plan's file with something in it everywhere: file systems answer for holes by themselves.
pub(crate) fn fill(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let mut left = file.metadata()?.len();
    let (mut state, mut chunk) = (1_u64, vec![0; 1 << 20]);
    while left > 0 {
        for word in chunk.chunks_exact_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.copy_from_slice(&(state ^ (state >> 29)).to_le_bytes());
        }
        let part = left.min(chunk.len() as u64);
        file.write_all(&chunk[..part as usize])?;
        left -= part;
    }
    file.sync_all()
}

/// A program that says into a file. It is killed when this is dropped, or when this process ends.
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
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program.get_program());
        command.args(program.get_args()).stdin(Stdio::null()).stdout(file).stderr(again);
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        // Ctrl-C is for the controller, which ends them.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
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
        // As farblock opens it: without the page cache, where the file system can do that.
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

/// tgtd takes no port 0. The address is this process's own, so that nobody else takes the port in
/// between.
fn free_address() -> io::Result<SocketAddr> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    TcpListener::bind((Ipv4Addr::new(127, high | 64, middle, low), 0))?.local_addr()
}

/// A sentence for each thing that a reader has to know of the comparison.
pub(crate) fn remarks(plan: &Plan) -> Vec<String> {
    if plan.iscsi.is_empty() {
        return Vec::new();
    }
    vec![
        "iSCSI and NVMe/TCP had the same file in turns, on the loopback: NVMe by farblock's host \
         and target, iSCSI by libiscsi's iscsi-perf, a session for each job"
            .to_owned(),
        "iscsi-perf only reads, so there are no writes; its mean latency is commands in flight by \
         rate, and its I/Os per second include the ramp"
            .to_owned(),
        "the documents' figure is about 550 % better random I/O over NVMe-oF than over iSCSI, \
         which reads as 5.5 or 6.5 times; theirs was RDMA for both (RoCE, iSER), from machine to \
         machine"
            .to_owned(),
    ]
}

/// What a load has to be.
pub(crate) fn check(plan: &Plan, pattern: &Pattern) -> Result<(), FleetError> {
    let is_fit = !pattern.rw.writes()
        && pattern.rate_iops.is_none()
        && pattern.block_size_bytes.is_multiple_of(BLOCK_BYTES);
    let why = format!(
        "compares reads with iSCSI, of blocks of {BLOCK_BYTES} bytes, without a rate; {} ({}) is \
         something else",
        pattern.name,
        jobs_and_depth(pattern)
    );
    if is_fit { Ok(()) } else { Err(FleetError::plan(&plan.name, why)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farblock_bench::Rw;

    #[test]
    fn what_iscsi_perf_prints() {
        let said = "lba 5, iops current 9000 (35 MB/s), iops average 8000 (31 MB/s), in_flight \
                    32\r\riops average 22334 (87 MB/s)   \n\nfinished.";
        assert_eq!(average(said), Some(22_334.0));
        assert_eq!(average("iops average 0 (0 MB/s)"), None);
        assert_eq!(average("Login Failed."), None);
    }

    #[test]
    fn what_follows_of_a_rate() {
        let pattern = Pattern::new(Rw::RandRead, 4096, 2, 32);
        let one = total(&pattern, 64_000.0, 1.6);
        assert_eq!((one.mib_per_second, one.mean_latency_us), (250.0, 1000.0));
        assert!((one.cpu_us_per_io - 25.0).abs() < 1e-9);
        let runs = vec![one, total(&pattern, 32_000.0, 1.6)];
        let target = IscsiTarget::Tgt;
        let mut reports = [IscsiReport { target, total: one, runs, nvme_ratio: 0.0 }];
        finish(&mut reports, 96_000.0);
        assert_eq!((reports[0].total.iops, reports[0].nvme_ratio), (48_000.0, 2.0));
        assert_eq!(reports[0].total.mean_latency_us, 1500.0);
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
        assert!(why(&plan).contains("libiscsi-bin"), "{}", why(&plan));
        fs::write(folder.path().join("iscsi-perf"), "").unwrap();
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
