//! Compares the ways to attach a disk, with 4k random reads of a memory disk at depths 1 and 32.
//!
//! The servers are Cargo examples of `farblock-attach`, and serve memory without a network. So the
//! comparison shows only the cost of each way to attach.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use farblock_bench::Rw;

use super::contest::{self, Entrant, Row};
use super::process::Process;
use super::sides::{self, Client, Means, Times, farblock};
use super::work::{Backend, Load};
use super::{DiskFile, Options};

/// The name of the table's file, and the title of the table.
const TABLE: (&str, &str) = ("attach", "the ways to attach a disk, one RAM disk each");

struct Way {
    name: &'static str,
    server: Process,
    load: LoadTool,
    // Dropped last, because the server may have a mount in this folder.
    _folder: Folder,
}

enum LoadTool {
    /// fio, with the options for this way of attaching.
    Fio(Vec<String>),
    /// An example of `farblock-attach` that acts like the driver of a guest on a vhost-user socket.
    Driver { program: PathBuf, socket: PathBuf },
}

/// The folder for one way of attaching. Dropping this removes the folder.
struct Folder(PathBuf);

impl Folder {
    fn create(name: &str) -> Result<Folder, String> {
        let name = format!("farblock-bench-attach-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path)
            .map_err(|error| format!("cannot create {}: {error}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Do not remove recursively: if a disk is still mounted in the folder, this would delete
        // its files.
        let _ = fs::remove_file(self.0.join("socket"));
        let _ = fs::remove_dir(&self.0);
    }
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let rows = [1, 32].map(|depth| {
        let load = Load::new(Rw::RandRead, 4096, depth, 1);
        Row { name: load.words(), load }
    });
    if options.list {
        STARTERS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    let file = DiskFile::create(&options.directory, options.disk_mib)?;
    let means = super::means(options, &file)?;
    let mut remarks = vec![
        "Server µs/IO is the processor time of the serving process; the library runs in the \
         client. Neither column counts the kernel's threads of a loop device."
            .to_owned(),
        "fio 3.33 has no engine for vhost-user, so our program `vhost_drive` acts as the guest's \
         driver, without EVENT_IDX. A real guest without KVM would measure its emulator."
            .to_owned(),
    ];
    let mut ways = Vec::new();
    for (name, start) in STARTERS {
        if !options.only.iter().all(|words| name.contains(words.as_str())) {
            continue;
        }
        match start(&means, name).and_then(|way| fill(&means, &way).map(|()| way)) {
            Ok(way) => ways.push(way),
            Err(sentence) => remarks.push(format!("{name} is not measured: {sentence}")),
        }
    }
    let library = |row: &Row, times| farblock::local(&means, Backend::Mem, &row.load, times);
    let library = Entrant {
        name: "library, in the process",
        server: None,
        polls: false,
        client: Box::new(library),
    };
    let entrants: Vec<Entrant<'_>> =
        std::iter::once(library).chain(ways.iter().map(|way| way.entrant(&means))).collect();
    contest::hold(TABLE, options, &rows, &entrants, contest::times(options)?, &remarks)
}

type Start = fn(&Means, &'static str) -> Result<Way, String>;

const STARTERS: [(&str, Start); 5] = [
    ("vhost-user", vhost),
    ("FUSE file", |means, name| fuse(means, name, false)),
    ("loop device on the FUSE file", |means, name| fuse(means, name, true)),
    ("NBD, Unix socket", nbd),
    ("nbdkit's NBD, Unix socket", nbdkit),
];

/// The path of an example of `farblock-attach`, in the build directory of farblock.
fn example(means: &Means, name: &str) -> Result<PathBuf, String> {
    let path = means.farblock.with_file_name("examples").join(name);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "{} does not exist: run cargo build --release -p farblock-attach --examples",
            path.display()
        )),
    }
}

fn spec(means: &Means) -> String {
    format!("mem:{}", means.disk_bytes)
}

fn ready(line: &str) -> Option<String> {
    line.strip_prefix("ready ").map(str::to_owned)
}

fn fuse(means: &Means, name: &'static str, is_loop: bool) -> Result<Way, String> {
    let folder = Folder::create(if is_loop { "loop" } else { "fuse" })?;
    let mut command = Command::new(example(means, "fuse_serve")?);
    command.arg(spec(means)).arg(&folder.0);
    if is_loop {
        command.args(["--loop", "true"]);
    }
    let mut server = Process::start_obedient(command, means.target_cpu)?;
    let path = server.wait_for(ready)?;
    let fio = vec!["--ioengine=io_uring".into(), "--direct=1".into(), format!("--filename={path}")];
    Ok(Way { name, server, load: LoadTool::Fio(fio), _folder: folder })
}

fn vhost(means: &Means, name: &'static str) -> Result<Way, String> {
    let folder = Folder::create("vhost")?;
    let socket = folder.0.join("socket");
    let mut command = Command::new(example(means, "vhost_serve")?);
    command.arg(spec(means)).arg(&socket).args(["--queues", "2"]);
    let mut server = Process::start_obedient(command, means.target_cpu)?;
    server.wait_for(ready)?;
    let load = LoadTool::Driver { program: example(means, "vhost_drive")?, socket };
    Ok(Way { name, server, load, _folder: folder })
}

fn nbd(means: &Means, name: &'static str) -> Result<Way, String> {
    let folder = Folder::create("nbd")?;
    let mut command = Command::new(example(means, "nbd_serve")?);
    command.arg(spec(means)).arg(format!("unix:{}", folder.0.join("socket").display()));
    let mut server = Process::start_obedient(command, means.target_cpu)?;
    let uri = server.wait_for(ready)?;
    Ok(Way { name, server, load: nbd_load(&uri), _folder: folder })
}

fn nbdkit(means: &Means, name: &'static str) -> Result<Way, String> {
    if let Some(sentence) = sides::lack_of("NBD", &["nbdkit", "fio"], "nbdkit fio") {
        return Err(sentence);
    }
    let folder = Folder::create("nbdkit")?;
    let socket = folder.0.join("socket");
    let mut command = Command::new("nbdkit");
    command.arg("--foreground").arg("--unix").arg(&socket);
    command.args(["memory", &means.disk_bytes.to_string()]);
    let server = Process::start(command, means.target_cpu)?;
    wait_for_file(&socket)?;
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    Ok(Way { name, server, load: nbd_load(&uri), _folder: folder })
}

fn wait_for_file(path: &Path) -> Result<(), String> {
    for _ in 0..500 {
        if path.exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err(format!("{} did not appear", path.display()))
}

fn nbd_load(uri: &str) -> LoadTool {
    LoadTool::Fio(vec!["--ioengine=nbd".to_owned(), format!("--uri={uri}")])
}

/// Writes the whole disk, because reads of memory that was never written are faster.
fn fill(means: &Means, way: &Way) -> Result<(), String> {
    let size = means.disk_bytes.to_string();
    let mut command = way.load.command();
    match way.load {
        LoadTool::Fio(_) => {
            command.args(["--rw=write", "--bs=1M", "--iodepth=4", &format!("--size={size}")])
        }
        LoadTool::Driver { .. } => command.args(["fill", &size]),
    };
    Process::start(command, means.host_cpu)?.finish(Duration::from_secs(60)).map(drop)
}

impl LoadTool {
    fn command(&self) -> Command {
        match self {
            LoadTool::Fio(options) => {
                let mut command = Command::new("fio");
                command.args(options).args(["--name=job", "--thread", "--output-format=json"]);
                command
            }
            LoadTool::Driver { program, socket } => {
                let mut command = Command::new(program);
                command.arg(socket);
                command
            }
        }
    }

    fn read(&self, means: &Means, depth: u32, times: Times) -> Command {
        let mut command = self.command();
        let (ramp, runtime) = (times.ramp.as_millis(), times.runtime.as_millis());
        match self {
            LoadTool::Fio(_) => command
                .args(["--rw=randread", "--bs=4k", "--time_based", "--norandommap"])
                .arg(format!("--size={}", means.disk_bytes))
                .arg(format!("--iodepth={depth}"))
                .arg(format!("--ramp_time={ramp}ms"))
                .arg(format!("--runtime={runtime}ms")),
            LoadTool::Driver { .. } => command
                .args(["randread", &depth.to_string(), &means.disk_bytes.to_string()])
                .args([ramp.to_string(), runtime.to_string()]),
        };
        command
    }
}

impl Way {
    fn entrant<'a>(&'a self, means: &'a Means) -> Entrant<'a> {
        let client = |row: &Row, times: Times| {
            let command = self.load.read(means, row.load.depth, times);
            Client { command, begins: None, parse: sides::nbd::parse }
        };
        let server = Some(&self.server);
        Entrant { name: self.name, server, polls: false, client: Box::new(client) }
    }
}
