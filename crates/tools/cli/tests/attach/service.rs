//! Tests of `attach` in the foreground, for a service manager: files, notifications to systemd,
//! signals, and the systemd unit. A supervisor is the process that starts a successor, a server
//! that replaces a killed one.

use crate::attached::{Attachments, Load, Mounted, Target, run, wait_for_progress};
use crate::support::{WAIT_LIMIT, signal, until, wait};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::fs;
use std::io::{BufRead, BufReader, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A notification socket like systemd's.
struct Systemd(UnixDatagram);

impl Systemd {
    fn new(attachments: &Attachments) -> Systemd {
        let socket =
            UnixDatagram::bind(attachments.scratch.path("notify")).expect("the socket is bound");
        socket.set_read_timeout(Some(WAIT_LIMIT)).expect("the socket accepts the timeout");
        Systemd(socket)
    }

    /// Waits for a notification that contains this text.
    #[track_caller]
    fn is_told(&self, part: &str) -> String {
        self.is_given(part).0
    }

    /// Like `is_told`, and returns the descriptor that the notification passes, if any.
    #[track_caller]
    fn is_given(&self, part: &str) -> (String, Option<OwnedFd>) {
        let mut buffer = [0; 4096];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(&mut buffer)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = rustix::net::recvmsg(&self.0, &mut parts, &mut control, flags);
            let received = received.unwrap_or_else(|error| {
                panic!("systemd received no notification with {part}: {error}");
            });
            let descriptor = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                _ => None,
            });
            let text = String::from_utf8_lossy(&buffer[..received.bytes]).into_owned();
            if text.contains(part) {
                return (text, descriptor);
            }
        }
    }
}

/// Whether the server passes its connection to systemd. It does so only if the kernel can deliver
/// pending requests again.
fn is_kept() -> bool {
    let release = run("uname", &["-r"]);
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(|it| it.parse().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    let is_kept = version >= (Some(6_u32), Some(9_u32));
    if !is_kept {
        println!("skipped: before Linux 6.9 a server passes no connection to systemd: {release}");
    }
    is_kept
}

fn in_foreground(attachments: &Attachments, args: &[&str]) -> Child {
    let mut command = attachments.command([&["attach", "--foreground"], args].concat());
    command.env("NOTIFY_SOCKET", attachments.scratch.path("notify"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the process starts")
}

/// Runs the command again with the descriptor that systemd kept.
fn again_with(attachments: &Attachments, kept: &OwnedFd, args: &[&str]) -> Child {
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_farblock"), "attach", "--foreground"]);
    attachments.scratch.prepare(&mut command);
    command.env("FARBLOCK_RUNTIME_DIR", attachments.scratch.path("run"));
    command.env("FARBLOCK_ATTACH_DIR", attachments.scratch.path("attach.d"));
    command.env("LISTEN_FDNAMES", "farblock-connection");
    command.env("NOTIFY_SOCKET", attachments.scratch.path("notify"));
    command.args(args).stdin(kept.try_clone().expect("the descriptor is duplicated"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the process starts")
}

fn restored(attachments: &Attachments, name: &str, text: &str) {
    let folder = attachments.scratch.path("attach.d");
    fs::create_dir_all(&folder).expect("the folder is created");
    fs::write(folder.join(format!("{name}.toml")), text).expect("the file is written");
}

/// Restores a service from its file, waits until it is ready, kills it, uses it, and stops it.
#[test]
fn a_restored_service_notifies_systemd() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 32 << 20);
    let systemd = Systemd::new(&attachments);
    let file = format!("urls = [{:?}]\nas = 'fuse'\nreconnect-delay = '100ms'\n", target.url());
    restored(&attachments, "data", &file);
    let mut child = in_foreground(&attachments, &["--restore", "data"]);
    let ready = systemd.is_told("READY=1");
    let mut said = String::new();
    let stdout = child.stdout.take().expect("the stream is a pipe");
    BufReader::new(stdout).read_line(&mut said).expect("the process prints a line");
    assert!(said.starts_with("data: /dev/loop") && ready.contains(said.trim_end()), "{ready}");
    let status = attachments.status("data");
    assert_eq!(status["pid"], child.id());
    let device = status["use"]["path"].as_str().expect("the JSON contains the path").to_owned();

    let killed = attachments.kill_server("data");
    systemd.is_told("STATUS=restarting");
    attachments.wait_for_successor("data", killed);
    systemd.is_told("STATUS=live");

    run("mkfs.ext4", &["-q", &device]);
    let mounted = Mounted::new(&device);
    signal(child.id(), "TERM");
    let waits = systemd.is_told("STOPPING=1");
    assert!(waits.contains(mounted.path().to_str().expect("the path is UTF-8")), "{waits}");
    assert!(
        child.try_wait().expect("the process can be waited for").is_none(),
        "the service ended in use"
    );
    mounted.unmount();
    let output = wait(child);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    assert!(!attachments.folder("data").exists());
    target.server.stop();
}

/// Kills the supervisor and then its server, as systemd does after a service's main process was
/// killed.
fn kill_both(attachments: &Attachments, supervisor: Child) {
    let server = attachments.status("data")["server_pid"]
        .as_u64()
        .expect("the status contains the process id");
    signal(supervisor.id(), "KILL");
    signal(u32::try_from(server).expect("the process id has 32 bits"), "KILL");
    wait(supervisor);
    attachments.wait_for_state("data", "stale");
}

/// Kills the server and the supervisor, as systemd does after a service's main process was killed.
/// Both restart with the kept descriptor. Users of the disk must wait, and lose no data.
#[test]
fn a_killed_service_continues_with_the_descriptor_that_systemd_keeps() {
    if !is_kept() {
        return;
    }
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 64 << 20);
    let systemd = Systemd::new(&attachments);
    let file = format!("urls = [{:?}]\nas = 'fuse'\nreconnect-delay = '100ms'\n", target.url());
    restored(&attachments, "data", &file);
    let mut child = in_foreground(&attachments, &["--restore", "data"]);
    let (told, kept) = systemd.is_given("FDSTORE=1");
    assert_eq!(told, "FDSTORE=1\nFDNAME=farblock-connection");
    let kept = kept.expect("systemd passed the descriptor");
    systemd.is_told("READY=1");
    let device = attachments.status("data")["use"]["path"]
        .as_str()
        .expect("the JSON contains the path")
        .to_owned();
    run("mkfs.ext4", &["-q", &device]);
    let mounted = Mounted::new(&device);
    let mut load = Load::start(&mounted.file("load"), &[]);
    for round in 0..2 {
        wait_for_progress(&device);
        kill_both(&attachments, child);
        // `list` must neither clean up the attachment nor prevent its restart.
        let trouble = attachments.status("data")["trouble"].as_str().unwrap_or_default().to_owned();
        assert!(trouble.contains("in use") || trouble.contains("kept"), "{trouble}");
        child = again_with(&attachments, &kept, &["--restore", "data"]);
        systemd.is_told("FDSTORE=1");
        systemd.is_told("READY=1");
        let status = attachments.status("data");
        assert_eq!(status["use"]["path"], *device, "round {round}: another device");
        wait_for_progress(&device);
        assert!(load.is_running(), "the load ended too early");
    }
    load.finish();
    mounted.unmount();
    run("fsck.ext4", &["-fn", &device]);
    signal(child.id(), "TERM");
    systemd.is_told("FDSTOREREMOVE=1");
    let output = wait(child);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!attachments.folder("data").exists());
    target.server.stop();
}

/// Checks that only a forced detach removes a disk that systemd keeps for the next server.
#[test]
fn forced_detach_removes_a_disk_that_systemd_keeps() {
    if !is_kept() {
        return;
    }
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 32 << 20);
    let systemd = Systemd::new(&attachments);
    let file = format!("urls = [{:?}]\nas = 'fuse'\nno-device = true\n", target.url());
    restored(&attachments, "data", &file);
    let child = in_foreground(&attachments, &["--restore", "data"]);
    let kept = systemd.is_given("FDSTORE=1").1.expect("systemd passed the descriptor");
    systemd.is_told("READY=1");
    kill_both(&attachments, child);
    let refused = attachments.run(["detach", "data"]);
    refused.fails_in_a_line(1, &["kept for its next server", "--force"]);
    assert!(attachments.folder("data").exists(), "the folder was removed");
    attachments.run(["detach", "data", "--force"]).ok();
    assert!(!attachments.folder("data").exists());
    // The descriptor that systemd keeps belongs to a dead FUSE connection. The next process must
    // attach the disk nevertheless.
    let child = again_with(&attachments, &kept, &["--restore", "data"]);
    systemd.is_told("READY=1");
    let path = attachments.status("data")["use"]["path"]
        .as_str()
        .expect("the JSON contains the path")
        .to_owned();
    assert_eq!(fs::read(&path).expect("the disk is served").len(), 32 << 20);
    signal(child.id(), "TERM");
    assert!(wait(child).status.success());
}

/// Checks that an impossible attachment fails at once, and leaves nothing behind.
#[test]
fn attach_fails_at_once_if_the_target_is_down() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, 32 << 20);
    let url = target.url();
    target.server.stop();
    let args = ["attach", &url, "--as", "fuse", "--foreground"];
    attachments.run(args).fails(1, &["cannot connect", "is the target running"]);
    attachments.run(["attach", &url, "--as", "fuse"]).fails_in_a_line(1, &["cannot connect"]);
    assert!(
        fs::read_dir(attachments.scratch.path("run"))
            .expect("the folder is readable")
            .next()
            .is_none()
    );
}

/// Presses Ctrl-C while the command still connects.
#[test]
fn ctrl_c_while_attach_connects_leaves_nothing() {
    let attachments = Attachments::new();
    // This peer accepts connections and stays silent.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!(
        "nvme+tcp://{}/nqn.2026-11.org.example:x?ns=1",
        silent.local_addr().expect("the socket has an address")
    );
    let child =
        attachments.command(["attach", &url, "--as", "fuse"]).spawn().expect("the process starts");
    silent.accept().expect("the connection opens");
    signal(child.id(), "INT");
    wait(child);
    until("nothing is left", || !attachments.folder("fb0").exists());
}

#[test]
fn the_systemd_unit_of_an_attachment_is_valid() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../contrib/systemd/farblock-attach@.service");
    let text = fs::read_to_string(&unit).expect("the file is readable");
    assert!(text.contains("attach --restore %i --foreground") && text.contains("Type=notify"));
    // The unit contains the installed path of the program, so replace it.
    let folder = tempfile::tempdir().expect("a temporary folder is created");
    let text = text.replace("/usr/bin/farblock", env!("CARGO_BIN_EXE_farblock"));
    let copy = folder.path().join("farblock-attach@data.service");
    fs::write(&copy, text).expect("the file is written");
    let complaints = run("systemd-analyze", &["verify", copy.to_str().expect("the path is UTF-8")]);
    assert_eq!(complaints, "");
}
