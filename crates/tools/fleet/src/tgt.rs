//! Finds tgt, an iSCSI target that Linux distributions package, and exports one file with it.

use crate::error::FleetError;
use crate::limits::TGT_TIME;
use crate::plan::{IscsiTarget, Plan};
use crate::storage::ISCSI_NAME;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The interval between checks whether tgtd is ready.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The folders in which Debian installs tgt. A user's `PATH` may lack them.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The paths of the external programs for iSCSI.
#[derive(Clone, Debug, Default)]
pub(crate) struct Programs {
    tgtd: PathBuf,
    tgtadm: PathBuf,
}

impl Programs {
    /// Finds the programs that the plan needs. A plan without iSCSI needs none.
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
                     tgt), or omit these rows with --without tgt"
                );
                FleetError::plan(&plan.name, why)
            })
        };
        (programs.tgtd, programs.tgtadm) = (find("tgtd")?, find("tgtadm")?);
        Ok(programs)
    }
}

/// A running program whose output goes to a file. The program is killed when this is dropped, or
/// when this process exits.
struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(program: &Command, folder: &Path, name: &str) -> Result<Process, String> {
        let log = folder.join(format!("{name}.log"));
        let cannot = |error: io::Error| format!("cannot start {name}: {error}");
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
            Err(error) => Err(self.complaint(&format!("cannot be observed ({error})"))),
        }
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn complaint(&self, what: &str) -> String {
        let said = self.said();
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        format!("{} {what}: {}", self.name, last.unwrap_or("without a message").trim())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A tgtd process that exports the file as LUN 1.
pub(crate) struct Tgt {
    process: Process,
    pub(crate) address: SocketAddr,
}

impl Tgt {
    /// Starts tgtd, and waits until it exports the file.
    pub(crate) fn start(programs: &Programs, folder: &Path, file: &str) -> Result<Tgt, String> {
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
                return Err(tgt.process.complaint(&format!("did not become ready ({why})")));
            }
            thread::sleep(LOOK_EVERY);
        }
        say(&format!("--op new --mode target --tid 1 -T {ISCSI_NAME}"), None)?;
        let unit = "--op new --mode logicalunit --tid 1 --lun 1 --bstype rdwr";
        // tgtd bypasses the page cache like farblock, if the file system supports direct I/O.
        say(&format!("{unit} --bsoflags direct"), Some(file)).or_else(|_| say(unit, Some(file)))?;
        say("--op bind --mode target --tid 1 -I ALL", None)?;
        Ok(tgt)
    }

    pub(crate) fn process(&self) -> u32 {
        self.process.child.id()
    }

    /// Fails if tgtd has exited.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if self.process.is_running()? { Ok(()) } else { Err(self.process.complaint("ended")) }
    }
}

fn administer(mut command: Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("cannot start tgtadm: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("tgtadm: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// A free address, because tgtd cannot choose a port itself (port 0). Its loopback IP address is
/// unique to this process, so that no other program takes the port before tgtd does.
fn free_address() -> io::Result<SocketAddr> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    TcpListener::bind((Ipv4Addr::new(127, high | 64, middle, low), 0))?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_iscsi_target_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut plan = Plan { name: "x".to_owned(), ..Plan::default() };
        let why = |plan: &Plan| {
            let found = Programs::find(plan, &[folder.path().to_path_buf()]);
            found.map_or_else(|error| error.to_string(), |_| String::new())
        };
        assert_eq!(why(&plan), "", "a plan without tgt needs no program");
        plan.iscsi = vec![IscsiTarget::Tgt];
        let missing = why(&plan);
        assert!(missing.contains("tgtd") && missing.contains("--without tgt"), "{missing}");
        plan.iscsi = vec![IscsiTarget::Farblock];
        assert_eq!(why(&plan), "");
    }
}
