//! Tests of `farblock attach`, `list` and `detach` on Linux and Windows: an iSCSI target and an NBD
//! server for programs of this machine, without kernel drivers.
#![cfg(any(target_os = "linux", windows))]

mod support;

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use support::{Outcome, Scratch, Server, WAIT_LIMIT, finish, signal, until, wait};

const DISK_BYTES: u64 = 16 << 20;

/// A runtime directory, and a target with one disk.
struct Attachments {
    scratch: Scratch,
    target: Option<Server>,
}

impl Attachments {
    fn new() -> Attachments {
        let scratch = Scratch::new();
        let disk = scratch.disk("disk.img", DISK_BYTES);
        let target = Some(scratch.serve([&disk]));
        Attachments { scratch, target }
    }

    fn url(&self) -> String {
        self.target.as_ref().expect("the process runs").url(1)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.scratch.command(args);
        command.env("FARBLOCK_RUNTIME_DIR", self.scratch.path("run"));
        command.env("FARBLOCK_ATTACH_DIR", self.scratch.path("attach.d"));
        command.env_remove("NOTIFY_SOCKET");
        command
    }

    fn run(&self, args: &[&str]) -> Outcome {
        finish(self.command(args), b"")
    }

    /// Attaches the disk, and returns the path or URL to use.
    #[track_caller]
    fn attach(&self, args: &[&str]) -> String {
        let outcome = self.run(&[&["attach", "--json", &self.url()], args].concat()).ok();
        outcome.json()["use"]["path"].as_str().expect("the JSON contains the path").to_owned()
    }

    #[track_caller]
    fn status(&self, name: &str) -> Value {
        let all = self.run(&["list", "--json"]).ok().json();
        let found = all
            .as_array()
            .expect("the JSON contains the list")
            .iter()
            .find(|status| status["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {all}")).clone()
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.scratch.path("run").join(name)
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.folder(name).join("log")).unwrap_or_default()
    }

    #[track_caller]
    fn detach(&self, name: &str) {
        self.run(&["detach", name]).ok();
        assert!(!self.folder(name).exists(), "the folder of {name} remains");
    }
}

impl Drop for Attachments {
    fn drop(&mut self) {
        for entry in fs::read_dir(self.scratch.path("run")).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if std::thread::panicking() {
                eprintln!("--- the log of {name}:\n{}", self.log(&name));
            }
            let _ = self.command(&["detach", &name, "--force"]).output();
        }
    }
}

fn connect(url: &str) -> TcpStream {
    let address = url.split('/').nth(2).expect("the URL has an address");
    let stream = TcpStream::connect(address).expect("a server listens");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("the socket accepts the timeout");
    stream
}

/// A minimal iSCSI initiator (RFC 7143). It logs in, queries the size of a disk, and reads or
/// writes a block. The second field is the number of its next command.
struct Initiator(TcpStream, u32);

impl Initiator {
    fn new(url: &str) -> Initiator {
        let target = url.split('/').nth(3).expect("the URL names a subsystem");
        let keys = format!(
            "InitiatorName=iqn.2026-11.org.example:it\0TargetName={target}\0SessionType=Normal\0\
             AuthMethod=None\0HeaderDigest=None\0DataDigest=None\0"
        );
        let mut initiator = Initiator(connect(url), 0);
        // Send two immediate Login requests: from the security stage to the operational stage, and
        // from there to the full feature phase.
        let (mut stages, mut text) =
            (0x81, keys.split_at(keys.find("HeaderDigest").expect("the list has the key")));
        for _ in 0..2 {
            let mut header = [0; 48];
            (header[0], header[1]) = (0x43, stages);
            header[8..14].copy_from_slice(&[0x80, 0, 0, 1, 0, 0]);
            let (header, _) = initiator.ask(header, text.0.as_bytes());
            assert_eq!(header[0], 0x23, "the target sent no login response");
            assert_eq!(header[36..38], [0, 0], "the login failed");
            (stages, text) = (0x87, (text.1, ""));
        }
        initiator
    }

    /// Sends a request, and returns the header and the data of the answer.
    fn ask(&mut self, mut header: [u8; 48], data: &[u8]) -> ([u8; 48], Vec<u8>) {
        let length = u32::try_from(data.len()).expect("a length of 32 bits").to_be_bytes();
        header[5..8].copy_from_slice(&length[1..]);
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.0.write_all(&bytes).expect("the bytes are sent");
        self.0.read_exact(&mut header).expect("the server answers");
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; length.next_multiple_of(4)];
        self.0.read_exact(&mut data).expect("the server sends the data");
        data.truncate(length);
        (header, data)
    }

    fn command(&mut self, flags: u8, code: u8, bytes: u32, data: &[u8]) -> ([u8; 48], Vec<u8>) {
        let mut header = [0; 48];
        (header[0], header[1]) = (0x01, flags);
        header[16..20].copy_from_slice(&self.1.to_be_bytes());
        header[20..24].copy_from_slice(&bytes.to_be_bytes());
        header[24..28].copy_from_slice(&self.1.to_be_bytes());
        // READ CAPACITY (0x25) has no length. All other commands transfer one block.
        (header[32], header[40]) = (code, u8::from(code != 0x25));
        self.1 += 1;
        self.ask(header, data)
    }

    /// Sends READ CAPACITY (10), and returns the number of the last block and the block size.
    fn last_block(&mut self) -> (u32, u32) {
        // The target answers the first commands with a unit attention.
        for _ in 0..4 {
            let (answer, data) = self.command(0xc0, 0x25, 8, &[]);
            if answer[0] == 0x25 {
                let word = |at: usize| {
                    u32::from_be_bytes(
                        data[at..at + 4].try_into().expect("the slice has the right length"),
                    )
                };
                return (word(0), word(4));
            }
            assert_eq!((answer[0], answer[3]), (0x21, 0x02), "not CHECK CONDITION");
        }
        panic!("the unit reports only errors");
    }
}

/// Attaches a disk, lets an initiator use it, and detaches it. Checks that `farblock detach` fails
/// while the initiator is logged in.
#[test]
fn a_disk_is_attached_and_is_not_detached_while_an_initiator_uses_it() {
    let attachments = Attachments::new();
    let options = ["--as", "iscsi", "--listen", "127.0.0.1:0", "--name", "a_Box"];
    let url = attachments.attach(&options);
    assert!(url.starts_with("iscsi://127.0.0.1:") && url.contains(":a-box"), "{url}");
    let status = attachments.status("a_Box");
    assert_eq!((&status["state"], &status["size_bytes"]), (&"live".into(), &DISK_BYTES.into()));
    let said = attachments.run(&["list"]).ok().out();
    assert!(said.contains("a_Box") && said.contains(&url), "{said}");

    let mut initiator = Initiator::new(&url);
    let blocks = u32::try_from(DISK_BYTES / 512).expect("a number of 32 bits");
    assert_eq!(initiator.last_block(), (blocks - 1, 512));
    until("the initiator is listed", || !attachments.status("a_Box")["users"][0].is_null());
    let refused = attachments.run(&["detach", "a_Box"]);
    refused.fails_in_a_line(1, &["in use", "initiator is logged in", "--force"]);
    let other = attachments.url();
    let again = [&["attach", &other], &options[..]].concat();
    attachments
        .run(&again)
        .fails_in_a_line(2, &["a_Box is already attached to nvme+tcp://", "detach a_Box"]);

    drop(initiator);
    until("the disk is detached", || attachments.run(&["detach", "a_Box"]).code == Some(0));
    assert!(!attachments.folder("a_Box").exists(), "the folder of the attachment remains");
    assert_eq!(attachments.run(&["list"]).ok().out(), "nothing is attached\n");
    attachments.run(&["detach", "a_Box"]).fails_in_a_line(2, &["\"a_Box\" is not attached"]);
}

/// Checks that a forced detach removes a disk that has users, by its path and by its name.
#[test]
fn forced_detach_removes_a_disk_with_users() {
    let attachments = Attachments::new();
    let url = attachments.attach(&["--as", "iscsi", "--listen", "127.0.0.1:0"]);
    let mut initiator = Initiator::new(&url);
    until("the initiator is listed", || !attachments.status("fb0")["users"][0].is_null());
    attachments.run(&["detach", &url, "--force"]).ok();
    assert!(!attachments.folder("fb0").exists(), "the folder of the attachment remains");
    let mut rest = Vec::new();
    assert!(
        initiator.0.read_to_end(&mut rest).is_err() || rest.len() < 1024,
        "the disk is still served"
    );
}

/// Checks metrics with the promtool of Prometheus.
#[cfg(target_os = "linux")]
#[track_caller]
fn promtool(metrics: &str) {
    let mut tool = Command::new("promtool");
    tool.args(["check", "metrics"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finish(tool, metrics.as_bytes());
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{metrics}");
}

/// Checks that doctor describes an attachment. After the target stops, doctor names the failed
/// step.
#[test]
fn doctor_describes_an_attachment_and_its_failed_path() {
    let mut attachments = Attachments::new();
    let options = ["--as", "iscsi", "--listen", "127.0.0.1:0", "--name", "data"];
    let used = attachments.attach(&[&options[..], &["--keep-alive", "1"]].concat());
    for name in ["data", &used] {
        let text = attachments.run(&["doctor", name]).ok().out();
        assert!(text.contains("data is live") && text.contains("ns=1 is live"), "{text}");
    }
    attachments.run(&["doctor", "other"]).fails_in_a_line(2, &["nothing is attached as other"]);
    drop(attachments.target.take());
    until("the path is lost", || attachments.status("data")["state"] == "reconnecting");
    until("the attach fails", || {
        attachments.status("data")["paths"][0]["failures"]["refused"].as_u64() > Some(0)
    });
    let metrics = attachments.run(&["list", "--metrics"]).ok().out();
    for part in [
        "farblock_host_disk_state{name=\"data\",way=\"iscsi\",state=\"reconnecting\"} 1\n",
        "farblock_host_path_failures_total{name=\"data\",path=\"nvme+tcp://",
        ",reason=\"lost\"} 1\n",
    ] {
        assert!(metrics.contains(part), "{part:?} is missing in {metrics}");
    }
    #[cfg(target_os = "linux")]
    promtool(&metrics);
    let outcome = attachments.run(&["doctor", "data"]);
    let text = outcome.out();
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(1), ""), "{text}");
    for part in ["reads and writes wait", "ns=1 has been", "nothing listens at 127.0.0.1"] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
}

/// Checks that a scrape contains each operation since the previous scrape exactly once.
#[test]
fn a_scrape_counts_the_latency_of_each_operation_once() {
    let attachments = Attachments::new();
    let options = ["--as", "iscsi", "--listen", "127.0.0.1:0", "--name", "data"];
    let url = attachments.attach(&options);
    let scrape = || attachments.run(&["list", "--metrics"]).ok().out();
    let has_counts = |metrics: &str, counts: [u32; 4]| {
        for (kind, count) in ["read", "write", "flush", "other"].into_iter().zip(counts) {
            let name = format!("farblock_host_disk_{kind}_seconds");
            for sample in [
                "_bucket{name=\"data\",way=\"iscsi\",le=\"+Inf\"}",
                "_count{name=\"data\",way=\"iscsi\"}",
            ] {
                let line = format!("{name}{sample} {count}\n");
                assert!(metrics.contains(&line), "{line:?} is missing in {metrics}");
            }
        }
    };
    assert!(
        attachments.status("data")["latency"].is_null(),
        "latencies were measured before a request"
    );
    has_counts(&scrape(), [0; 4]);
    let mut initiator = Initiator::new(&url);
    initiator.last_block();
    for _ in 0..5 {
        let (answer, data) = initiator.command(0xc0, 0x28, 512, &[]);
        assert_eq!((answer[0], answer[1] & 1, answer[3], data.len()), (0x25, 1, 0, 512));
    }
    for _ in 0..3 {
        let (answer, _) = initiator.command(0xa0, 0x2a, 512, &[1; 512]);
        assert_eq!((answer[0], answer[3]), (0x21, 0), "the write failed");
    }
    let (answer, _) = initiator.command(0x80, 0x35, 0, &[]);
    assert_eq!((answer[0], answer[3]), (0x21, 0), "the flush failed");
    let metrics = scrape();
    has_counts(&metrics, [5, 3, 1, 0]);
    #[cfg(target_os = "linux")]
    promtool(&metrics);
    // A scrape itself performs no operations.
    has_counts(&scrape(), [5, 3, 1, 0]);
    drop(initiator);
    until("the disk is detached", || attachments.run(&["detach", "data"]).code == Some(0));
}

/// Checks that a successor of a killed server starts at once, at the same address.
#[test]
fn a_killed_server_is_replaced_at_the_same_address() {
    let attachments = Attachments::new();
    let url = attachments.attach(&["--as", "iscsi", "--listen", "127.0.0.1:0"]);
    let pid = attachments.status("fb0")["server_pid"]
        .as_u64()
        .expect("the status contains the process id");
    signal(u32::try_from(pid).expect("the process id has 32 bits"), "KILL");
    until("another process serves the disk", || {
        attachments.status("fb0")["server_pid"].as_u64().is_some_and(|other| other != pid)
    });
    let status = attachments.status("fb0");
    assert_eq!((&status["state"], &status["use"]["path"]), (&"live".into(), &url.clone().into()));
    assert_eq!(Initiator::new(&url).last_block().1, 512);
    assert!(attachments.log("fb0").contains("died"), "{}", attachments.log("fb0"));
    until("the disk is detached", || attachments.run(&["detach", "fb0"]).code == Some(0));
    assert!(!attachments.folder("fb0").exists(), "the folder of the attachment remains");
}

/// Checks that `list` shows an attachment without processes once, and then removes it.
#[test]
fn list_removes_the_remains_of_a_dead_daemon() {
    let attachments = Attachments::new();
    attachments.attach(&["--as", "iscsi", "--listen", "127.0.0.1:0"]);
    let status = attachments.status("fb0");
    for pid in ["pid", "server_pid"] {
        let pid = status[pid].as_u64().expect("the status contains the process id");
        signal(u32::try_from(pid).expect("the process id has 32 bits"), "KILL");
    }
    until("the processes have exited", || attachments.run(&["list"]).ok().out().contains("stale"));
    assert_eq!(attachments.run(&["list"]).ok().out(), "nothing is attached\n");
    assert!(!attachments.folder("fb0").exists(), "the folder of the attachment remains");
}

#[test]
fn an_nbd_client_connects_over_tcp() {
    let attachments = Attachments::new();
    let url = attachments.attach(&["--as", "nbd", "--listen", "127.0.0.1:0"]);
    assert!(url.starts_with("nbd://127.0.0.1:"), "{url}");
    let mut greeting = [0; 16];
    connect(&url).read_exact(&mut greeting).expect("the server sends a greeting");
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT");
    until("no user is listed", || attachments.status("fb0")["users"][0].is_null());
    attachments.detach("fb0");
}

/// Attaches from a file in the foreground, as a service manager does.
#[test]
fn attach_in_the_foreground_exits_on_ctrl_c() {
    let attachments = Attachments::new();
    let folder = attachments.scratch.path("attach.d");
    fs::create_dir_all(&folder).expect("the folder is created");
    let url = attachments.url();
    let text = format!("urls = [{url:?}]\nas = 'iscsi'\nlisten = '127.0.0.1:0'\n");
    fs::write(folder.join("data.toml"), text).expect("the file is written");
    let mut command = attachments.command(&["attach", "--restore", "data", "--foreground"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the process starts");
    let mut said = String::new();
    let stdout = child.stdout.take().expect("the stream is a pipe");
    BufReader::new(stdout).read_line(&mut said).expect("the process prints a line");
    assert!(said.starts_with("data: iscsi://127.0.0.1:"), "{said}");
    assert_eq!(attachments.status("data")["pid"], child.id());
    signal(child.id(), "INT");
    let output = wait(child);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!attachments.folder("data").exists(), "the folder of the attachment remains");
}

#[test]
fn attach_refuses_invalid_options_and_leaves_nothing() {
    let mut attachments = Attachments::new();
    let url = attachments.url();
    let other = if cfg!(windows) { "fuse" } else { "winspd" };
    for (args, parts) in [
        (&["nvme+tcp://127.0.0.1:1"][..], &["names no subsystem", "farblock discover"][..]),
        (&[&url, "--as", "scsi"], &["iscsi"]),
        (&[&url, "--as", other], &[other]),
        (&[&url, "--as", "iscsi", "--socket", "x"], &["socket is only for"]),
        (&[&url, "--as", "iscsi", "--no-device"], &["no-device is only for"]),
        (&[&url, "--name", "../x"], &["is not a name"]),
        (&["--restore", "../x"], &["is not a name"]),
    ] {
        attachments.run(&[&["attach"], args].concat()).fails(2, parts);
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let taken = taken
        .local_addr()
        .map(|address| (address.to_string(), taken))
        .expect("the socket has an address");
    for (args, parts) in [
        (&["--restore", "none"][..], &["none.toml", "name a file that exists"][..]),
        (&[&url, "--as", "iscsi", "--listen", "0.0.0.0:0"], &["only this machine", "127.0.0.1"]),
        (&[&url, "--as", "iscsi", "--listen", &taken.0], &["listens at", "choose another port"]),
    ] {
        attachments.run(&[&["attach"], args].concat()).fails_in_a_line(1, parts);
    }
    // Wine has no drivers, and WinSpd is not installed on this machine.
    #[cfg(windows)]
    attachments
        .run(&["attach", &url, "--as", "winspd"])
        .fails_in_a_line(1, &["WinSpd", "github.com/winfsp/winspd/releases", "--as iscsi"]);
    attachments.target.take().expect("the process runs").stop();
    let gone = ["attach", &url, "--as", "iscsi", "--listen", "127.0.0.1:0"];
    attachments.run(&gone).fails_in_a_line(1, &["cannot connect", "is the target running"]);
    let left: Vec<_> =
        fs::read_dir(attachments.scratch.path("run")).expect("the folder is readable").collect();
    assert!(left.is_empty(), "{left:?}");
}
