//! Helpers: a runtime directory of attachments, a target, and a load. A successor is a server that
//! replaces a killed one.

use crate::support::{Outcome, Reserved, Scratch, Server, finish, signal, until};
use serde_json::Value;
use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A runtime directory. Dropping it after a failed test detaches the test's disks by force.
pub(crate) struct Attachments {
    pub(crate) scratch: Scratch,
}

impl Attachments {
    pub(crate) fn new() -> Attachments {
        Attachments { scratch: Scratch::new() }
    }

    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.scratch.command(args);
        command.env("FARBLOCK_RUNTIME_DIR", self.scratch.path("run"));
        command.env("FARBLOCK_ATTACH_DIR", self.scratch.path("attach.d"));
        command.env_remove("NOTIFY_SOCKET");
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Outcome {
        finish(self.command(args), b"")
    }

    /// Attaches a disk, and returns its path.
    #[track_caller]
    pub(crate) fn attach(&self, args: &[&str]) -> String {
        let outcome = self.run([&["attach", "--json"], args].concat()).ok();
        outcome.json()["use"]["path"].as_str().expect("the JSON contains the path").to_owned()
    }

    pub(crate) fn list(&self) -> Vec<Value> {
        let outcome = self.run(["list", "--json"]).ok();
        outcome.json().as_array().expect("the JSON contains the list").clone()
    }

    #[track_caller]
    pub(crate) fn status(&self, name: &str) -> Value {
        let all = self.list();
        let found = all.iter().find(|status| status["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {all:?}")).clone()
    }

    pub(crate) fn kill_server(&self, name: &str) -> u64 {
        let pid =
            self.status(name)["server_pid"].as_u64().expect("the status contains the process id");
        signal(u32::try_from(pid).expect("the process id has 32 bits"), "KILL");
        pid
    }

    /// Waits until another process serves the attachment.
    pub(crate) fn wait_for_successor(&self, name: &str, of: u64) {
        until("another process serves the disk", || {
            let pid = self.status(name)["server_pid"].as_u64();
            pid.is_some_and(|pid| pid != of)
        });
    }

    #[track_caller]
    pub(crate) fn wait_for_state(&self, name: &str, state: &str) {
        until(&format!("{name} is {state}"), || self.status(name)["state"] == state);
    }

    #[track_caller]
    pub(crate) fn detach(&self, name: &str) {
        self.detach_by(name, name);
    }

    /// Detaches by a path to the disk, and checks that this detached the attachment `name`.
    #[track_caller]
    pub(crate) fn detach_by(&self, name: &str, path: &str) {
        self.run(["detach", path]).ok();
        assert!(!self.folder(name).exists(), "the folder of {name} remains");
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.scratch.path("run").join(name)
    }

    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder(name).join("log")).unwrap_or_default()
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        let entries = std::fs::read_dir(self.scratch.path("run")).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            if std::thread::panicking() {
                let name = name.to_string_lossy();
                eprintln!("--- the log of {name}:\n{}", self.log(&name));
            }
            let args = ["detach".as_ref(), name.as_os_str(), "--force".as_ref()];
            let _ = self.command(args).output();
        }
    }
}

/// A target with one disk in a file. It can be killed and restarted at the same address.
pub(crate) struct Target {
    pub(crate) server: Server,
    reserved: Reserved,
    nqn: String,
    disk: String,
}

impl Target {
    pub(crate) fn new(attachments: &Attachments, bytes: u64) -> Target {
        let disk = attachments.scratch.disk("disk.img", bytes);
        let reserved = Reserved::at(Ipv4Addr::LOCALHOST);
        let address = reserved.address.to_string();
        let command = attachments.scratch.command(["serve", "--listen", &address, &disk]);
        let server = Server::start(command);
        let nqn = server.nqn.clone();
        Target { server, reserved, nqn, disk }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url(1)
    }

    pub(crate) fn nqn(&self) -> &str {
        &self.nqn
    }

    pub(crate) fn kill(&self) {
        self.server.signal("KILL");
    }

    pub(crate) fn restart(&mut self, attachments: &Attachments) {
        let disk = self.disk.clone();
        self.restart_with(attachments, &disk);
    }

    /// Restarts the target with another disk, at the same address and with the same NQN.
    pub(crate) fn restart_with(&mut self, attachments: &Attachments, disk: &str) {
        let address = self.reserved.address.to_string();
        let args = ["serve", "--listen", &address, "--nqn", &self.nqn, disk];
        self.server = Server::start(attachments.scratch.command(args));
    }
}

/// A file system that is mounted during a test.
pub(crate) struct Mounted(tempfile::TempDir);

impl Mounted {
    pub(crate) fn new(device: &str) -> Mounted {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        run("mount", &[device, folder.path().to_str().expect("the path is UTF-8")]);
        Mounted(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().expect("the path is UTF-8").into()
    }

    pub(crate) fn unmount(self) {
        run("umount", &[self.0.path().to_str().expect("the path is UTF-8")]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the mounts are readable");
        if mounts.split_whitespace().any(|word| Path::new(word) == self.0.path()) {
            let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
        }
    }
}

/// Runs a program that must succeed, and returns its output.
#[track_caller]
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let mut command = Command::new("timeout");
    let output = command.arg("60").arg(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {}\n{said}{complained}", output.status);
    said
}

/// A running fio that continuously writes and verifies.
pub(crate) struct Load(Option<Child>);

const SECONDS: &str = "600";

fn catches_sigint(pid: u32) -> bool {
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process exists");
    let caught = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .expect("the status has the line");
    let mask = u64::from_str_radix(caught.trim(), 16).expect("the text is hexadecimal");
    mask & 1 << (2 - 1) != 0
}

impl Load {
    pub(crate) fn start(file: &str, args: &[&str]) -> Load {
        let mut command = Command::new("fio");
        command
            .args(["--name=load", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"])
            .args(["--rw=randrw", "--bs=4k", "--ioengine=libaio", "--direct=1", "--iodepth=16"])
            // Write and verify in rounds, for longer than the test takes.
            .args(["--size=8m", "--time_based", "--runtime", SECONDS, "--minimal"])
            .arg(format!("--filename={file}"))
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().expect("fio is installed");
        // Wait for fio's signal handler: an earlier SIGINT would kill fio.
        until("fio handles SIGINT", || catches_sigint(child.id()));
        Load(Some(child))
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.0
            .as_mut()
            .is_some_and(|child| child.try_wait().expect("the process can be waited for").is_none())
    }

    /// Makes fio finish, and checks that it found no error.
    #[track_caller]
    pub(crate) fn finish(mut self) {
        let child = self.0.take().expect("the process runs");
        // On SIGINT, fio completes the I/O in flight and exits with success.
        signal(child.id(), "INT");
        let output = crate::support::wait(child);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr);
        // The fifth field of the terse report is the error number.
        let error = said.split(';').nth(4);
        assert_eq!(error, Some("0"), "{}\n{said}\n{complained}", output.status);
        assert!(!complained.contains("verify:"), "{complained}");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the number of sectors that a block device has read or written so far.
pub(crate) fn progress(device: &str) -> u64 {
    let name = Path::new(device).file_name().expect("the path has a file name");
    let text = std::fs::read_to_string(Path::new("/sys/block").join(name).join("stat"));
    let text = text.expect("the device has statistics");
    let numbers: Vec<u64> =
        text.split_whitespace().map(|it| it.parse().expect("the text is a number")).collect();
    numbers[2] + numbers[6]
}

#[track_caller]
pub(crate) fn wait_for_progress(device: &str) {
    let before = progress(device);
    until(&format!("the load uses {device}"), || progress(device) > before + 64);
}
