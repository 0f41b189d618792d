//! Measures the cost of features, used and unused. The same load runs on several targets with one
//! feature each, one after the other.
//!
//! On a busy machine, only the processor time per I/O is comparable.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use farblock_bench::Rw;
use rustix::fs::{XattrFlags, setxattr};

use super::contest::{self, Entrant, Row};
use super::process::Process;
use super::sides::{Endpoint, Means, Times, farblock};
use super::work::Load;
use super::{DiskFile, Options};

/// The name of the table's file, and the title of the table.
const TABLE: (&str, &str) = ("cost", "targets with one feature each, and a target without any");

const NQN: &str = "nqn.2026-11.org.farblock:cost";
/// Limits far above the real rates, so that only checking the limits takes time.
const LIMITS: &str = "{ iops = 1000000000, read_bytes = 1000000000000, write_iops = 1000000000 }";
/// The number of namespaces of [`TargetKind::Many`] and [`TargetKind::ManyLimited`].
const MANY: u32 = 1000;
/// The duration of the idle measurement of targets with many namespaces.
const IDLE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum TargetKind {
    /// A memory disk without features.
    Plain,
    /// The namespace has limits that the load never reaches.
    Limited,
    /// The host has a weight, and limits that the load never reaches.
    LimitedHost,
    /// All listeners have an ANA state that is not the default.
    Ana,
    /// The next three kinds are a stripe set, a concatenation and a mirror of two memory disks.
    Stripe,
    Concat,
    Mirror,
    /// A mirror with one leg on another target over loopback; the next kind has both legs there.
    MirrorNear,
    MirrorFar,
    /// A file in a memory file system.
    File,
    /// A file as in `File`, with two registered hosts. The measuring host holds a reservation that
    /// excludes unregistered hosts.
    Reserved,
    /// Many namespaces, of which the load uses one.
    Many,
    /// As `Many`, with limits on each namespace.
    ManyLimited,
}

const KINDS: [(&str, TargetKind); 13] = [
    ("nothing", TargetKind::Plain),
    ("limits of the namespace", TargetKind::Limited),
    ("limits and weight of the host", TargetKind::LimitedHost),
    ("ANA non-optimized", TargetKind::Ana),
    ("stripe of two", TargetKind::Stripe),
    ("concat of two", TargetKind::Concat),
    ("mirror of two", TargetKind::Mirror),
    ("mirror, one leg remote", TargetKind::MirrorNear),
    ("mirror, both legs remote", TargetKind::MirrorFar),
    ("file in memory", TargetKind::File),
    ("file in memory, reserved", TargetKind::Reserved),
    ("1,000 namespaces", TargetKind::Many),
    ("1,000 namespaces with limits", TargetKind::ManyLimited),
];

pub(crate) fn run(options: &Options) -> Result<(), String> {
    if options.list {
        KINDS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let loads = [(Rw::RandRead, 1), (Rw::RandRead, 32), (Rw::RandWrite, 32)];
    let rows = loads.map(|(rw, depth)| {
        let load = Load::new(rw, 4096, depth, 1);
        Row { name: load.words(), load }
    });
    let file = DiskFile::create(&options.directory, options.disk_mib)?;
    let means = super::means(options, &file)?;
    let folder = Folder::new()?;
    let wanted = |name: &str| options.only.iter().all(|words| name.contains(words.as_str()));
    let mut targets = Vec::new();
    for (name, kind) in KINDS.into_iter().filter(|(name, _)| wanted(name)) {
        match Served::start(&means, &folder, name, kind) {
            Ok(target) => targets.push(target),
            // An older farblock lacks some of the features.
            Err(sentence) => eprintln!("not measured: {name}: {sentence}"),
        }
    }
    let mut remarks = vec![
        "The baselines use none of the measured features: \"nothing\" is a plain RAM disk, and \
         \"file in memory\" a plain file in /dev/shm."
            .to_owned(),
    ];
    remarks.extend(targets.iter().filter_map(Served::idle));
    let entrants: Vec<Entrant<'_>> = targets.iter().map(|target| target.entrant(&means)).collect();
    contest::hold(TABLE, options, &rows, &entrants, contest::times(options)?, &remarks)
}

/// The folder for configurations and disks, in a memory file system.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder, String> {
        let path = PathBuf::from(format!("/dev/shm/farblock-bench-cost-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Served {
    name: &'static str,
    kind: TargetKind,
    process: Process,
    endpoint: Endpoint,
    /// The targets that serve the remote legs of a mirror. They run on the host's processor.
    _legs: Vec<Process>,
}

impl Served {
    fn start(
        means: &Means,
        folder: &Folder,
        name: &'static str,
        kind: TargetKind,
    ) -> Result<Served, String> {
        let path = folder.0.join(format!("{}.toml", name.replace(' ', "-")));
        let host = HostNames::this(means)?;
        let (path_of_disk, legs) = stored(means, folder, kind, &host)?;
        let text = configuration(&path_of_disk, kind, &host);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut command = Command::new(&means.farblock);
        command.args(["serve", "--json", "--no-control", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(&path);
        let mut process = Process::start(command, means.target_cpu)?;
        let endpoint = process.wait_for(farblock::parse_listening)?.remove(0);
        farblock::fill_at(means, &farblock::url(&endpoint))?;
        Ok(Served { name, kind, process, endpoint, _legs: legs })
    }

    fn entrant<'a>(&'a self, means: &'a Means) -> Entrant<'a> {
        let client = |row: &Row, times: Times| {
            farblock::remote(means, &self.endpoint, (false, false), &row.load, times)
        };
        let server = Some(&self.process);
        Entrant { name: self.name, server, polls: false, client: Box::new(client) }
    }

    /// Measures the memory and processor time of the idle target, to compare many namespaces with
    /// one. `None` for other kinds.
    fn idle(&self) -> Option<String> {
        if !matches!(self.kind, TargetKind::Plain | TargetKind::Many | TargetKind::ManyLimited) {
            return None;
        }
        let (before, began) = (self.process.cpu_time(), Instant::now());
        std::thread::sleep(IDLE);
        let used = self.process.cpu_time().saturating_sub(before).as_secs_f64();
        let percent = used / began.elapsed().as_secs_f64() * 100.0;
        let mib = self.process.memory_bytes()? as f64 / f64::from(1 << 20);
        let name = self.name;
        Some(format!(
            "The idle target {name:?} holds {mib:.1} MiB with its RAM disk, and uses \
             {percent:.2} % of a processor."
        ))
    }
}

struct HostNames {
    nqn: String,
    /// The host ID in hexadecimal.
    id: String,
}

impl HostNames {
    fn this(means: &Means) -> Result<HostNames, String> {
        let mut command = Command::new(&means.farblock);
        command.arg("whoami");
        let said = Process::start(command, means.host_cpu)?.finish(Duration::from_secs(60))?;
        let after = |words: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(words));
            line.map(|rest| rest.trim().to_owned()).ok_or(format!("whoami says {said}"))
        };
        Ok(HostNames { nqn: after("host NQN")?, id: after("host ID")?.replace('-', "") })
    }
}

/// The disk of a kind, as `farblock serve` names it, and the targets that serve its remote legs.
fn stored(
    means: &Means,
    folder: &Folder,
    kind: TargetKind,
    host: &HostNames,
) -> Result<(String, Vec<Process>), String> {
    // A mirror reserves a MiB of each leg.
    let (bytes, half) = (means.disk_bytes, means.disk_bytes / 2);
    let leg = bytes + (1 << 20);
    let mut legs = Vec::new();
    let path = match kind {
        TargetKind::Stripe => format!("stripe:64KiB,mem:{half},mem:{half}"),
        TargetKind::Concat => format!("concat:mem:{half},mem:{half}"),
        TargetKind::Mirror => format!("mirror:mem:{leg},mem:{leg}?create"),
        TargetKind::MirrorNear | TargetKind::MirrorFar => {
            let mut named = vec![format!("mem:{leg}")];
            for at in usize::from(kind == TargetKind::MirrorNear)..2 {
                let (process, url) = remote_leg(means, at, leg)?;
                legs.push(process);
                named.push(url);
            }
            format!("mirror:{}?create", named[named.len() - 2..].join(","))
        }
        TargetKind::File | TargetKind::Reserved => {
            disk(means, folder, kind, host)?.display().to_string()
        }
        _ => format!("mem:{bytes}"),
    };
    Ok((path, legs))
}

/// Starts a target with a memory disk, which is the leg of a mirror.
fn remote_leg(means: &Means, leg: usize, bytes: u64) -> Result<(Process, String), String> {
    let mut command = Command::new(&means.farblock);
    command.args(["serve", "--json", "--no-control", "--listen", "127.0.0.1:0"]);
    command.args(["--nqn", &format!("{NQN}-leg{leg}"), &format!("mem:{bytes}")]);
    let mut process = Process::start(command, means.host_cpu)?;
    let endpoint = process.wait_for(farblock::parse_listening)?.remove(0);
    Ok((process, farblock::url(&endpoint)))
}

fn configuration(path: &str, kind: TargetKind, host: &HostNames) -> String {
    let mut text = String::new();
    if kind == TargetKind::Ana {
        text += "ana = \"non-optimized\"\n";
    }
    let _ = write!(text, "[[subsystems]]\nnqn = \"{NQN}\"\n");
    if kind != TargetKind::LimitedHost {
        text += "allow_any_host = true\n";
    } else {
        let limits = LIMITS.replace(" }", ", weight = 300 }");
        let _ = write!(text, "[[subsystems.hosts]]\nnqn = \"{}\"\nlimits = {limits}\n", host.nqn);
    }
    let count = if matches!(kind, TargetKind::Many | TargetKind::ManyLimited) { MANY } else { 1 };
    for nsid in 1..=count {
        let path = if nsid == 1 { path } else { "null:1GiB" };
        let _ = write!(text, "[[subsystems.namespaces]]\npath = \"{path}\"\n");
        if matches!(kind, TargetKind::Limited | TargetKind::LimitedHost | TargetKind::ManyLimited) {
            let _ = writeln!(text, "limits = {LIMITS}");
        }
    }
    text
}

/// Creates a file, and a reservation if the kind needs one.
fn disk(
    means: &Means,
    folder: &Folder,
    kind: TargetKind,
    host: &HostNames,
) -> Result<PathBuf, String> {
    let path =
        folder.0.join(if kind == TargetKind::Reserved { "reserved.img" } else { "file.img" });
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::create(&path).map_err(failed)?;
    file.set_len(means.disk_bytes).map_err(failed)?;
    file.flush().map_err(failed)?;
    if kind == TargetKind::Reserved {
        let other = "f".repeat(32);
        let inode = file.metadata().map_err(failed)?.ino();
        // Reservation type 4: Exclusive Access, Registrants Only.
        let state = format!(
            "farblock reservations 1\ngeneration 3\nreservation 4 {other}\nhost {} 1\n\
             host {other} 2\n",
            host.id
        );
        let value = format!("{inode}\n{state}");
        let flags = XattrFlags::empty();
        setxattr(&path, "user.farblock.reservations", value.as_bytes(), flags)
            .map_err(|error| failed(error.into()))?;
    }
    Ok(path)
}
