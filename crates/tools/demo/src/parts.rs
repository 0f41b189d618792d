//! The processes of a demonstration, and the folder of their files. Each process stops when its
//! standard input ends, so no process outlives this one.

use crate::error::{Failure, Result, os};
use serde::Deserialize;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PREFIX: &str = "farblock-demo-";
/// The time limit for a process to stop after its standard input has ended.
const END_TIME: Duration = Duration::from_secs(10);
/// The time limit for removing the folder, in which stopping processes may still create files.
const SWEEP_TIME: Duration = Duration::from_secs(15);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A folder for the files of the demonstration. This process removes it at the end. If this process
/// is killed, the sweeper process removes the folder.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    sweeper: Option<(Child, ChildStdin)>,
}

impl Folder {
    pub(super) fn new() -> Result<Folder> {
        let place = std::env::temp_dir();
        let id = std::process::id();
        let names = (0..100).map(|number| place.join(format!("{PREFIX}{id}-{number}")));
        let mut problem = None;
        for path in names {
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let mut folder = Folder { path, sweeper: None };
                    folder.sweeper = Some(folder.swept()?);
                    return Ok(folder);
                }
                Err(error) => problem = Some(error),
            }
        }
        let reason = problem.map(|error| os(&error)).unwrap_or_default();
        Err(Failure::run(format_args!(
            "cannot make a folder in {}: {reason}; set TMPDIR to another folder",
            place.display()
        )))
    }

    /// Starts the sweeper, the process that removes the folder after this process has died.
    fn swept(&self) -> Result<(Child, ChildStdin)> {
        let mut command = this_program()?;
        command.args(["demo", "--sweep"]).arg(&self.path);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.process_group(0).spawn().map_err(|error| cannot_start(&error))?;
        let stdin = child.stdin.take().expect("the stream is a pipe");
        Ok((child, stdin))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
        if let Some((mut child, stdin)) = self.sweeper.take() {
            drop(stdin);
            let _ = child.wait();
        }
    }
}

/// Waits until the standard input ends, and removes the folder.
pub(super) fn sweep(folder: &Path) -> Result<()> {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned());
    if !name.is_some_and(|name| name.starts_with(PREFIX)) {
        return Err(Failure::usage("--sweep is only for farblock demo itself: omit it"));
    }
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    let until = Instant::now() + SWEEP_TIME;
    // A stopping process may still make a file while we remove the folder.
    while fs::remove_dir_all(folder).is_err() && folder.exists() && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn this_program() -> Result<Command> {
    let path = std::env::current_exe();
    path.map(Command::new).map_err(|error| cannot_start(&error))
}

fn cannot_start(error: &std::io::Error) -> Failure {
    Failure::run(format_args!("cannot start a process of this program: {}", os(error)))
}

/// The JSON line that a target prints as soon as it listens.
#[derive(Deserialize)]
pub(super) struct Said {
    pub(super) listening: Vec<SocketAddr>,
    pub(super) dashboard: Option<String>,
}

/// A target in its own process.
pub(super) struct Target {
    child: Child,
    stdin: Option<ChildStdin>,
    _stdout: ChildStdout,
    log: PathBuf,
    pub(super) said: Said,
}

impl Target {
    /// Starts `farblock serve` and waits until it listens.
    pub(super) fn start(folder: &Path, name: &str, args: &[String]) -> Result<Target> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).map_err(|error| {
            Failure::run(format_args!("cannot make {}: {}", log.display(), os(&error)))
        })?;
        let mut command = this_program()?;
        command.args(["serve", "--json", "--end-with-input"]).args(args);
        command.env_remove("RUST_LOG").env("XDG_CONFIG_HOME", folder).env("XDG_STATE_HOME", folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
        // In its own process group, the child does not receive Ctrl-C. The demonstration stops its
        // children in order.
        let mut child = command.process_group(0).spawn().map_err(|error| cannot_start(&error))?;
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().expect("the stream is a pipe"));
        let mut line = String::new();
        let read = stdout.read_line(&mut line).map_err(|error| cannot_start(&error));
        let said = read.ok().and_then(|_| serde_json::from_str(&line).ok());
        let Some(said) = said else {
            drop(stdin);
            let _ = child.wait();
            return Err(Failure::run(format_args!("the target {name} stopped: {}", last(&log))));
        };
        Ok(Target { child, stdin, _stdout: stdout.into_inner(), log, said })
    }

    /// Kills the process, like `kill -9`.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the last line of the target's log if the target has stopped.
    pub(super) fn ended(&mut self) -> Option<String> {
        matches!(self.child.try_wait(), Ok(Some(_))).then(|| last(&self.log))
    }
}

/// A port on the loopback that no process uses now.
#[cfg(target_os = "linux")]
pub(super) fn free_port() -> Result<SocketAddr> {
    let bound = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|it| it.local_addr());
    bound.map_err(|error| Failure::run(format_args!("cannot open a port: {}", os(&error))))
}

/// etcd in its own process.
#[cfg(target_os = "linux")]
pub(super) struct Etcd {
    shell: Child,
    stdin: Option<ChildStdin>,
    pub(super) url: String,
}

#[cfg(target_os = "linux")]
impl Etcd {
    /// Starts etcd, and waits until it listens. A shell stops etcd when this process has ended.
    pub(super) fn start(folder: &Path) -> Result<Etcd> {
        let is_installed = Command::new("etcd")
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if is_installed.is_err() {
            return Err(Failure::run(
                "--group needs etcd, and this machine has none: install it (Debian: apt-get \
                 install etcd-server), or run farblock demo without --group",
            ));
        }
        let (client, peer) = (free_port()?, free_port()?);
        let (url, peer) = (format!("http://{client}"), format!("http://{peer}"));
        let log = folder.join("etcd.log");
        let file = File::create(&log).map_err(|error| {
            Failure::run(format_args!("cannot make {}: {}", log.display(), os(&error)))
        })?;
        let script = "\"$@\" & etcd=$!; cat > /dev/null; kill -9 $etcd";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", "etcd", "--name=one", "--unsafe-no-fsync"]);
        command.arg(format!("--data-dir={}", folder.join("etcd").display()));
        for (option, url) in [("listen-client-urls", &url), ("advertise-client-urls", &url)] {
            command.arg(format!("--{option}={url}"));
        }
        for option in ["listen-peer-urls", "initial-advertise-peer-urls"] {
            command.arg(format!("--{option}={peer}"));
        }
        command.arg(format!("--initial-cluster=one={peer}"));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file);
        let mut shell = command.process_group(0).spawn().map_err(|error| cannot_start(&error))?;
        let stdin = shell.stdin.take();
        let etcd = Etcd { shell, stdin, url };
        let until = Instant::now() + END_TIME;
        while std::net::TcpStream::connect(client).is_err() {
            if Instant::now() >= until {
                return Err(Failure::run(format_args!("etcd does not start: {}", last(&log))));
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(etcd)
    }
}

#[cfg(target_os = "linux")]
impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let until = Instant::now() + END_TIME;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
        self.kill();
    }
}

fn last(log: &Path) -> String {
    let mut text = String::new();
    let _ = File::open(log).and_then(|mut file| file.read_to_string(&mut text));
    let line =
        text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("its log is empty");
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
