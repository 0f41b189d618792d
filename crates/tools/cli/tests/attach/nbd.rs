//! Tests of attachments over NBD: a socket for programs that support this protocol. A supervisor is
//! the process that starts a successor, a server that replaces a killed one.

use crate::attached::{Attachments, Target, run};
use crate::support::{noise, signal, until};
use std::fs;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

const DISK_BYTES: u64 = 32 << 20;

/// Checks that third-party programs read and write the disk.
#[test]
fn nbd_programs_read_and_write_the_disk() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = attachments.attach(&[&target.url(), "--as", "nbd", "--no-device"]);
    assert!(url.starts_with("nbd+unix:///?socket="), "{url}");
    let info = run("qemu-img", &["info", "--output=json", &url]);
    assert!(info.contains(&format!("\"virtual-size\": {DISK_BYTES}")), "{info}");
    let input = attachments.scratch.file("input", &noise(5, DISK_BYTES as usize));
    run("nbdcopy", &["--", &input, &url]);
    let output = attachments.scratch.text("output");
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &output]);
    assert!(
        fs::read(&output).expect("the file is readable")
            == fs::read(&input).expect("the file is readable"),
        "the data differs from the written data"
    );
    run(
        "fio",
        &[
            "--name=nbd",
            "--ioengine=nbd",
            &format!("--uri={url}"),
            "--rw=randrw",
            "--bs=4k",
            "--iodepth=16",
            "--size=8m",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ],
    );
    attachments.detach("fb0");
    target.server.stop();
}

#[test]
fn a_connected_nbd_client_counts_as_a_user() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let socket = attachments.scratch.text("chosen.sock");
    let url = attachments.attach(&[&target.url(), "--as", "nbd", "--socket", &socket]);
    assert!(url.ends_with(&socket), "{url}");
    let mut client = Command::new("qemu-io")
        .args(["-f", "raw", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("qemu-io is installed");
    let whose = format!("process {}", client.id());
    until("the client is connected", || {
        let users = attachments.status("fb0")["users"].to_string();
        users.contains(&whose)
    });
    attachments.run(["detach", "fb0"]).fails_in_a_line(1, &["NBD client", &whose, "--force"]);
    drop(client.stdin.take());
    client.wait().expect("the process exits");
    until("the client has disconnected", || attachments.run(["detach", "fb0"]).code == Some(0));
    assert!(UnixStream::connect(&socket).is_err());
}

/// Checks that a successor replaces a killed server, and that clients reconnect.
#[test]
fn a_successor_replaces_a_killed_nbd_server() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let url = attachments.attach(&[&target.url(), "--as", "nbd", "--no-device"]);
    let input = attachments.scratch.file("input", &noise(6, 1 << 20));
    run("nbdcopy", &["--flush", "--", &input, &url]);
    let killed = attachments.kill_server("fb0");
    attachments.wait_for_successor("fb0", killed);
    let output = attachments.scratch.text("output");
    run("nbdcopy", &["--", &url, &output]);
    let read = fs::read(&output).expect("the file is readable");
    assert!(read[..1 << 20] == noise(6, 1 << 20), "the data differs from the written data");
    attachments.detach("fb0");
}

/// Checks that SIGHUP, SIGUSR1 and SIGUSR2 kill neither the server nor its supervisor.
#[test]
fn the_server_and_its_supervisor_ignore_sighup_and_sigusr() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    attachments.attach(&[&target.url(), "--as", "nbd", "--no-device"]);
    let before = attachments.status("fb0");
    for process in ["pid", "server_pid"] {
        let pid = before[process].as_u64().and_then(|pid| u32::try_from(pid).ok());
        ["HUP", "USR1", "USR2"]
            .iter()
            .for_each(|name| signal(pid.expect("the signal is sent"), name));
    }
    // By then, a signal would have killed the process.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let after = attachments.status("fb0");
    let who = |status: &serde_json::Value| (status["pid"].clone(), status["server_pid"].clone());
    assert_eq!(who(&after), who(&before));
    assert!(after["trouble"].is_null(), "{after}");
    attachments.detach("fb0");
}

/// Checks that a command that stops waiting for a target leaves no process behind.
#[test]
fn an_interrupted_attach_leaves_no_process() {
    let attachments = Attachments::new();
    let nobody = "nvme+tcp://127.0.0.1:1/nqn.2026-11.org.example:disk?ns=1";
    let wait = ["attach", nobody, "--as", "nbd", "--no-device", "--connect-wait", "10m"];
    for more in [&[][..], &["--foreground"]] {
        let mut command = attachments.command(wait.iter().chain(more));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("the process starts");
        until("the server waits", || attachments.folder("fb0").join("server-pid").exists());
        signal(child.id(), "TERM");
        until("nothing is left", || !attachments.folder("fb0").exists());
        child.wait().expect("the process exits");
    }
}

/// Checks that the server listens on a port of the loopback interface only.
#[test]
fn an_nbd_server_and_its_successor_listen_on_one_loopback_port() {
    let attachments = Attachments::new();
    let target = Target::new(&attachments, DISK_BYTES);
    let of = target.url();
    let url = attachments.attach(&[&of, "--as", "nbd", "--listen", "127.0.0.1:0"]);
    assert!(url.starts_with("nbd://127.0.0.1:") && !url.contains(":0/"), "{url}");
    run("nbdinfo", &[&url]);
    // A successor must use the same address, even if another program holds the port for a short
    // time.
    let address = url.split('/').nth(2).expect("the URL has an address").to_owned();
    for is_taken in [false, true] {
        let killed = attachments.status("fb0")["server_pid"]
            .as_u64()
            .expect("the status contains the process id");
        let supervisor =
            attachments.status("fb0")["pid"].as_u64().expect("the status contains the process id");
        let tell =
            |name| signal(u32::try_from(supervisor).expect("the process id has 32 bits"), name);
        tell("STOP");
        signal(u32::try_from(killed).expect("the process id has 32 bits"), "KILL");
        let mut taken = None;
        until("the port is free", || {
            taken = TcpListener::bind(&address).ok();
            taken.is_some()
        });
        taken.take_if(|_| !is_taken);
        tell("CONT");
        if is_taken {
            let text = || fs::read_to_string(attachments.folder("fb0").join("server-pid"));
            until("another server exists", || {
                text().is_ok_and(|text| text.trim() != killed.to_string())
            });
            drop(taken);
        }
        attachments.wait_for_successor("fb0", killed);
        assert_eq!(attachments.status("fb0")["use"]["path"], url.as_str());
        run("nbdinfo", &[&url]);
    }
    attachments.detach("fb0");
    let refused = attachments.run(["attach", &of, "--as", "nbd", "--listen", "0.0.0.0:0"]);
    refused.fails_in_a_line(1, &["127.0.0.1"]);
    assert!(attachments.list().is_empty());
}
