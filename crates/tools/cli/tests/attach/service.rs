//! In the foreground, for a service manager: files, systemd's datagrams, signals, the unit.

use crate::attached::{Attachments, Mounted, Target, run};
use crate::support::{PATIENCE, signal, until, wait};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Stdio};

/// A socket as systemd has it.
struct Systemd(UnixDatagram);

impl Systemd {
    fn new(attachments: &Attachments) -> Systemd {
        let socket = UnixDatagram::bind(attachments.scratch.path("notify")).expect("a socket");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        Systemd(socket)
    }

    /// Waits until it is told something with this in it.
    #[track_caller]
    fn is_told(&self, part: &str) -> String {
        let mut buffer = [0; 4096];
        loop {
            let length = self.0.recv(&mut buffer).unwrap_or_else(|error| {
                panic!("systemd is not told {part}: {error}");
            });
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text.contains(part) {
                return text;
            }
        }
    }
}

fn in_foreground(attachments: &Attachments, args: &[&str]) -> Child {
    let mut command = attachments.command([&["attach", "--foreground"], args].concat());
    command.env("NOTIFY_SOCKET", attachments.scratch.path("notify"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

fn restored(attachments: &Attachments, name: &str, text: &str) {
    let folder = attachments.scratch.path("attach.d");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join(format!("{name}.toml")), text).expect("a file");
}

/// The whole life of a service: restored from its file, ready, killed, in use, stopped.
#[test]
fn systemd_is_told_how_it_goes() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 32 << 20);
    let systemd = Systemd::new(&attachments);
    let file = format!("urls = [{:?}]\nas = 'fuse'\nreconnect-delay = '100ms'\n", target.url());
    restored(&attachments, "data", &file);
    let mut child = in_foreground(&attachments, &["--restore", "data"]);
    let ready = systemd.is_told("READY=1");
    let mut said = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut said).expect("a line");
    assert!(said.starts_with("data: /dev/loop") && ready.contains(said.trim_end()), "{ready}");
    let status = attachments.status("data");
    assert_eq!(status["pid"], child.id());
    let device = status["use"]["path"].as_str().expect("a path").to_owned();

    let killed = attachments.kill_server("data");
    systemd.is_told("STATUS=restarting");
    attachments.wait_for_successor("data", killed);
    systemd.is_told("STATUS=live");

    run("mkfs.ext4", &["-q", &device]);
    let mounted = Mounted::new(&device);
    signal(child.id(), "TERM");
    let waits = systemd.is_told("STOPPING=1");
    assert!(waits.contains(mounted.path().to_str().expect("UTF-8")), "{waits}");
    assert!(child.try_wait().expect("a child").is_none(), "it ended under its user");
    mounted.unmount();
    let output = wait(child);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    assert!(!attachments.folder("data").exists());
    target.server.stop();
}

/// What cannot be attached is a failure at once, and leaves nothing.
#[test]
fn a_failure_is_a_failure() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 32 << 20);
    let url = target.url();
    target.server.stop();
    let args = ["attach", &url, "--as", "fuse", "--foreground"];
    attachments.run(args).fails(1, &["cannot connect", "is the target running"]);
    attachments.run(["attach", &url, "--as", "fuse"]).fails_in_a_line(1, &["cannot connect"]);
    assert!(fs::read_dir(attachments.scratch.path("run")).expect("it").next().is_none());
}

/// Ctrl-C while it still connects.
#[test]
fn who_does_not_wait_any_longer_gets_no_disk() {
    let attachments = Attachments::new();
    // Somebody who listens and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url =
        format!("nvme+tcp://{}/nqn.2026-11.org.example:x?ns=1", silent.local_addr().expect("it"));
    let child = attachments.command(["attach", &url, "--as", "fuse"]).spawn().expect("it starts");
    silent.accept().expect("it connects");
    signal(child.id(), "INT");
    wait(child);
    until("nothing is left", || !attachments.folder("fb0").exists());
}

#[test]
fn the_unit_is_one() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../contrib/systemd/farblock-attach@.service");
    let text = fs::read_to_string(&unit).expect("the unit");
    assert!(text.contains("attach --restore %i --foreground") && text.contains("Type=notify"));
    // The program is looked for where it is installed.
    let folder = tempfile::tempdir().expect("a folder");
    let text = text.replace("/usr/bin/farblock", env!("CARGO_BIN_EXE_farblock"));
    let copy = folder.path().join("farblock-attach@data.service");
    fs::write(&copy, text).expect("a file");
    let complaints = run("systemd-analyze", &["verify", copy.to_str().expect("UTF-8")]);
    assert_eq!(complaints, "");
}
