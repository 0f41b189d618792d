//! Tests of transfers that lose their target or get a signal, and of resumed transfers.

mod support;

use std::process::Child;
use support::{Outcome, Scratch, Server, noise, read};

/// A target with a fixed port, so that it can restart at the same address.
#[cfg_attr(not(unix), allow(dead_code, reason = "only tests for Unix kill it"))]
struct Target<'a> {
    scratch: &'a Scratch,
    what: String,
    server: Option<Server>,
    url: String,
    #[cfg(unix)]
    _reserved: support::Reserved,
}

#[cfg_attr(not(unix), allow(dead_code, reason = "only tests for Unix kill it"))]
impl<'a> Target<'a> {
    /// Starts a target that is slow enough to interrupt a transfer in the middle.
    fn new(scratch: &'a Scratch, disk: &str) -> Target<'a> {
        let what = format!("limit:8MiB/s,{disk}");
        #[cfg(unix)]
        let reserved = support::Reserved::at(std::net::Ipv4Addr::LOCALHOST);
        #[cfg(unix)]
        let address = reserved.address.to_string();
        #[cfg(windows)]
        let address = "127.0.0.1:0";
        let server = Server::start(scratch.command(["serve", "--listen", address.as_ref(), &what]));
        let url = server.url(1);
        Target {
            scratch,
            what,
            server: Some(server),
            url,
            #[cfg(unix)]
            _reserved: reserved,
        }
    }

    fn kill(&mut self) -> String {
        let server = self.server.take().expect("the process runs");
        let address = server.address.clone();
        server.signal("KILL");
        server.wait();
        address
    }

    fn start_again(&mut self, address: &str) {
        let command = self.scratch.command(["serve", &self.what, "--listen", address]);
        self.server = Some(Server::start(command));
    }
}

/// Waits until a file in the folder records progress, while the transfer runs.
fn wait_for_record(scratch: &Scratch, folder: &str, transfer: &mut Child) -> std::path::PathBuf {
    let mut found = None;
    support::until("a transfer record exists", || {
        if let Some(status) = transfer.try_wait().expect("the process can be waited for") {
            let mut said = String::new();
            let stderr = transfer.stderr.as_mut().expect("the stream is a pipe");
            std::io::Read::read_to_string(stderr, &mut said).expect("the output is UTF-8");
            panic!("the transfer has ended, {status}: {said}");
        }
        found = std::fs::read_dir(scratch.path(folder)).ok().and_then(|mut entries| {
            entries.find_map(|entry| {
                let path = entry.ok()?.path();
                path.extension().filter(|it| *it == "farblock-map")?;
                let text = std::fs::read_to_string(&path).ok()?;
                let map: serde_json::Value = serde_json::from_str(&text).ok()?;
                (map["farblock_map"]["done"].as_u64()? > 0).then_some(path)
            })
        });
        found.is_some()
    });
    found.expect("`until` found a record")
}

fn kill(mut child: Child) {
    child.kill().expect("the process still runs");
    support::wait(child);
}

#[cfg(unix)]
fn ends_well(child: Child) -> String {
    let output = support::wait(child);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    stderr
}

/// Checks that the log has one line for the loss of the target and one for its return, whatever the
/// number of connections and attempts.
#[cfg(unix)]
fn says_that_it_was_lost(stderr: &str) {
    let lines: Vec<_> = stderr.lines().filter(|line| line.contains("WARN")).collect();
    let [lost, back] = lines[..] else { panic!("{} lines: {stderr}", lines.len()) };
    assert!(
        lost.contains("the path is lost") && back.contains("the path reconnected after"),
        "{stderr}"
    );
}

const SIZE: usize = 64 << 20;

#[cfg(unix)]
#[test]
fn a_transfer_continues_after_its_target_restarts() {
    let scratch = Scratch::new();
    let data = noise(1, SIZE);
    let disk = scratch.file("disk.img", &data);
    let mut target = Target::new(&scratch, &disk);
    let reader = scratch.command(["copy", &target.url, "out.img", "--verify"]).spawn().unwrap();
    support::until("the transfer has started", || {
        let part = std::fs::read(scratch.path(".out.img.farblock-part"));
        part.is_ok_and(|part| part.starts_with(&data[..512]))
    });
    let address = target.kill();
    target.start_again(&address);
    says_that_it_was_lost(&ends_well(reader));
    assert!(read(scratch.path("out.img")) == data);

    let other = noise(2, SIZE);
    let input = scratch.file("in.img", &other);
    let writer = scratch.command(["copy", &input, &target.url]).spawn().unwrap();
    support::until("the transfer has started", || read(&disk)[..512] == other[..512]);
    let address = target.kill();
    target.start_again(&address);
    says_that_it_was_lost(&ends_well(writer));
    assert!(read(&disk) == other);
}

/// Checks that a transfer gives up a target that denies access sooner than a lost connection.
#[cfg(unix)]
#[test]
fn a_target_that_denies_access_ends_a_transfer() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB", "--ana", "inaccessible"]);
    let url = server.url(1);
    let limit = ["--ctrl-loss-timeout", "1s"];
    let parts = ["unreachable", "--ctrl-loss-timeout", "Inaccessible", "the target's machine"];
    scratch.run([&["read", &url], &limit[..]].concat()).fails_in_a_line(1, &parts);
    let input = scratch.file("in.img", &noise(1, 4096));
    scratch.run([&["copy", &input, &url], &limit[..]].concat()).fails_in_a_line(1, &parts);
    server.stop();
}

/// Checks the summary of a resumed transfer, which must not have started from the beginning.
fn goes_on(outcome: Outcome) {
    let summary = outcome.ok().json();
    let (before, now) = (&summary["resumed_from"], &summary["bytes"]);
    assert!(before.as_u64() > Some(0), "{summary}");
    assert_eq!(before.as_u64().unwrap() + now.as_u64().unwrap(), SIZE as u64);
}

#[test]
fn resume_continues_a_killed_transfer_to_a_namespace() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", SIZE as u64);
    let server = Target::new(&scratch, &disk);
    let input = scratch.file("in.img", &noise(3, SIZE));
    let args = ["copy", &input, &server.url, "--resume", "--json"];
    let mut child = scratch.command(args).spawn().unwrap();
    let map = wait_for_record(&scratch, "state/farblock", &mut child);
    kill(child);

    // A different transfer must not mix with the recorded one.
    let other = scratch.file("other.img", &noise(4, SIZE));
    scratch
        .run(["copy", &other, &server.url, "--resume"])
        .fails_in_a_line(1, &["cannot resume", "started from", "farblock-map to start again"]);
    let shorter = ["--length", "1MiB"];
    scratch
        .run(args.iter().chain(&shorter))
        .fails_in_a_line(1, &["offset or length was different"]);
    let text = std::fs::read(&map).unwrap();
    std::fs::write(&map, &text[..text.len() / 2]).unwrap();
    scratch.run(args).fails_in_a_line(1, &["is damaged"]);
    std::fs::write(&map, &text).unwrap();

    goes_on(scratch.run(args.iter().chain(&["--verify"])));
    assert!(read(&disk) == read(&input));
    assert!(!map.exists(), "the record is left");
}

#[test]
fn resume_continues_a_killed_transfer_to_a_file() {
    let scratch = Scratch::new();
    let disk = scratch.file("disk.img", &noise(5, SIZE));
    let server = Target::new(&scratch, &disk);
    std::fs::create_dir(scratch.path("to")).unwrap();
    let output = scratch.file("to/out.img", b"precious\n");
    let args = ["read", &server.url, "-o", &output, "--resume", "--json"];
    let mut child = scratch.command(args).spawn().unwrap();
    let map = wait_for_record(&scratch, "to", &mut child);
    kill(child);
    assert_eq!(read(&output), b"precious\n");
    let record = std::fs::read(&map).unwrap();
    goes_on(scratch.run(args));
    assert!(read(&output) == read(&disk));
    let count = || std::fs::read_dir(scratch.path("to")).unwrap().count();
    assert_eq!(count(), 1, "the record is left");
    // Restore the record, as if the process had been killed after it put the file in place and
    // before it removed the record.
    std::fs::write(&map, record).unwrap();
    let summary = scratch.run(args).ok().json();
    assert_eq!(summary["resumed_from"], 0, "a complete file was resumed");
    assert!(read(&output) == read(&disk));
    assert_eq!(count(), 1, "the record is left");
}

#[test]
fn resume_refuses_a_changed_source() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", SIZE as u64);
    let server = Target::new(&scratch, &disk);
    let input = scratch.file("in.img", &noise(6, SIZE));
    let args = ["copy", &input, &server.url, "--resume"];
    let mut child = scratch.command(args).spawn().unwrap();
    wait_for_record(&scratch, "state/farblock", &mut child);
    kill(child);
    let modified = std::fs::metadata(&input).and_then(|found| found.modified()).unwrap();
    scratch.file("in.img", &noise(7, SIZE));
    if cfg!(unix) {
        // Set the modification time back, as programs that restore files do.
        let file = std::fs::OpenOptions::new().write(true).open(&input).unwrap();
        file.set_modified(modified).unwrap();
    }
    scratch.run(args).fails_in_a_line(1, &["cannot resume", "in.img has changed"]);
    scratch.file("in.img", &noise(7, SIZE - 512));
    scratch
        .run(args)
        .fails_in_a_line(1, &["in.img had 64 MiB then and has 63.9 MiB (67108352 bytes) now"]);
    // Overwriting a part of the destination must also invalidate the record.
    let count = || std::fs::read_dir(scratch.path("state/farblock")).unwrap().count();
    assert_eq!(count(), 1);
    let part = scratch.file("part.img", &noise(12, 4096));
    scratch.run(["copy", &part, &scratch.disk("other.img", 1 << 20)]).ok();
    assert_eq!(count(), 1, "a transfer to another file was resumed");
    scratch.run(["write", &server.url, "--offset", "1MiB", "--input", &part]).ok();
    assert_eq!(count(), 0);
    // A transfer without `--resume` writes the whole destination again and invalidates the record.
    scratch.run(["copy", &input, &server.url]).ok();
    let summary = scratch.run(args.iter().chain(&["--json"])).ok().json();
    assert_eq!(summary["resumed_from"], 0);
}

#[test]
fn resume_and_verify_refuse_pipes_and_ram_disks() {
    let scratch = Scratch::new();
    let input = scratch.file("in.img", &noise(8, 1 << 20));
    scratch.run(["copy", "mem:1MiB", "out", "--resume"]).fails_in_a_line(2, &["--resume cannot"]);
    scratch.run(["copy", &input, "mem:1MiB", "--resume"]).fails_in_a_line(2, &["--resume cannot"]);
    scratch.run_with(["copy", "-", "out", "--verify"], b"x").fails_in_a_line(2, &["a pipe cannot"]);
    scratch.run(["copy", &input, "-", "--verify"]).fails_in_a_line(2, &["a pipe cannot"]);
}

#[test]
fn verify_finds_data_that_was_not_stored() {
    let scratch = Scratch::new();
    let mut data = noise(9, 3 << 20);
    data[..2 << 20].fill(0);
    let input = scratch.file("in.img", &data);
    let summary = scratch.run(["copy", &input, "out.img", "--verify", "--json"]).ok().json();
    assert_eq!(summary["verified"], true);
    // A `null:` disk reads as zeroes, so it equals only zeroes.
    scratch
        .run(["copy", &input, "null:4MiB", "--verify"])
        .fails_in_a_line(1, &["verifying failed", "null:4MiB differs from"]);
    scratch.run(["copy", &input, "null:4MiB", "--verify", "--length", "2MiB"]).ok();
}

#[cfg(target_os = "linux")]
#[test]
fn copy_preserves_holes() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let scratch = Scratch::new();
    let sparse = scratch.disk("sparse.img", 1 << 30);
    let file = std::fs::OpenOptions::new().write(true).open(&sparse).unwrap();
    for place in [0, (100 << 20) + 4321, (1 << 30) - 700] {
        file.write_all_at(&noise(place, 700), place).unwrap();
    }
    drop(file);
    let disk = scratch.disk("disk.img", 1 << 30);
    let server = scratch.serve([&disk]);
    scratch.run(["copy", &sparse, &server.url(1), "--verify"]).ok();
    let result = scratch.text("result.img");
    scratch.run(["copy", &server.url(1), &result, "--verify"]).ok();
    server.stop();
    scratch.run(["copy", &sparse, &result, "--verify"]).ok();
    for path in [&disk, &result] {
        let metadata = std::fs::metadata(path).unwrap();
        assert_eq!(metadata.len(), 1 << 30);
        let allocated = metadata.blocks() * 512;
        assert!(allocated < 8 << 20, "{path}: {allocated} bytes are allocated");
    }
}

/// Returns the number of bytes in a size such as `7.5 MiB` or `63.9 MiB (67108352 bytes)`.
#[cfg(target_os = "linux")]
fn bytes_of(size: &str) -> usize {
    if let Some((_, exact)) = size.split_once('(') {
        return exact.split(' ').next().unwrap().parse().unwrap();
    }
    let (number, unit) = size.split_once(' ').unwrap();
    let unit = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        other => panic!("{other}"),
    };
    (number.parse::<f64>().unwrap() * f64::from(unit)) as usize
}

#[cfg(target_os = "linux")]
fn interrupted_by(signal: &str) {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", SIZE as u64);
    let server = Target::new(&scratch, &disk);
    let input = scratch.file("in.img", &noise(10, SIZE));
    let args = ["copy", &input, &server.url, "--resume"];
    let mut child = scratch.command_with_hangup(args).spawn().unwrap();
    wait_for_record(&scratch, "state/farblock", &mut child);
    support::signal(child.id(), signal);
    let output = support::wait(child);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("the same command continues from there"), "{stderr}");
    let bytes = stderr.split_once("the first ").expect(&stderr).1;
    let bytes = bytes_of(bytes.split_once(" are durable").expect(&stderr).0);
    assert!(bytes > 0);
    assert!(read(&disk)[..bytes] == read(&input)[..bytes]);
    goes_on(scratch.run(args.iter().chain(&["--json"])));
    assert!(read(&disk) == read(&input));
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_transfer_reports_its_durable_bytes() {
    interrupted_by("INT");
}

/// Sends SIGHUP, as when the terminal of a transfer is closed or loses its connection.
#[cfg(target_os = "linux")]
#[test]
fn a_transfer_reports_its_durable_bytes_on_sighup() {
    interrupted_by("HUP");
}

#[cfg(target_os = "linux")]
#[test]
fn a_transfer_under_nohup_continues_after_sighup() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", SIZE as u64);
    let server = Target::new(&scratch, &disk);
    let input = scratch.file("in.img", &noise(12, SIZE));
    let mut command = std::process::Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_farblock"), "copy", &input, &server.url, "--resume"]);
    scratch.prepare(&mut command);
    let mut child = command.spawn().unwrap();
    wait_for_record(&scratch, "state/farblock", &mut child);
    support::signal(child.id(), "HUP");
    ends_well(child);
    assert!(read(&disk) == read(&input));
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_a_transfer_to_a_silent_target() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", SIZE as u64);
    let target = Target::new(&scratch, &disk);
    let input = scratch.file("in.img", &noise(11, SIZE));
    let mut command = scratch.command(["copy", &input, &target.url, "--resume"]);
    let mut child = command.spawn().unwrap();
    wait_for_record(&scratch, "state/farblock", &mut child);
    let server = target.server.as_ref().unwrap();
    server.signal("STOP");
    // Repeat the signal: a second signal merges with the first if the process has not handled it
    // yet.
    support::until("the transfer exits", || {
        support::signal(child.id(), "INT");
        child.try_wait().expect("the process can be waited for").is_some()
    });
    let output = support::wait(child);
    assert_eq!(output.status.code(), Some(130));
    // The command had no time to report which data are durable.
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    server.signal("CONT");
}
