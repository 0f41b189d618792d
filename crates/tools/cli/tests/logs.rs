//! Tests of the contents, the format and the amount of log lines.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use support::Scratch;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555";

/// Checks that the target logs the storage failure and the host once, and that the host prints one
/// sentence.
#[test]
fn a_failing_disk_logs_one_line_on_each_side() {
    let scratch = Scratch::new();
    let server = scratch.serve(["fault:1,mem:8MiB"]);
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    let outcome = scratch.run_with(["write", &url], &[1; 4 << 20]);
    outcome.fails_in_a_line(1, &["writing to", "failed"]);
    let outcome = server.stop();
    let lines: Vec<_> = outcome.stderr.lines().filter(|line| line.contains("WARN")).collect();
    let [line, rest @ ..] = &lines[..] else { panic!("nothing is logged: {}", outcome.stderr) };
    for part in [HOST, "namespace=1", "LBA 0", "failed in the target's storage"] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
    assert!(rest.iter().all(|line| line.contains("more operations")), "{}", outcome.stderr);
    assert!(rest.len() <= 1, "{}", outcome.stderr);
}

/// Checks that the log reports the replacement early, while the old disk can still be copied.
#[cfg(unix)]
#[test]
fn the_log_reports_a_replaced_disk_file() {
    let scratch = Scratch::new();
    let [disk, other] = ["disk.img", "other.img"].map(|name| scratch.disk(name, 1 << 20));
    let log = scratch.path("log");
    let mut command = scratch.command(["serve", "--listen", "127.0.0.1:0", &disk]);
    command.stderr(std::fs::File::create(&log).unwrap());
    let server = support::Server::start(command);
    std::fs::rename(other, &disk).unwrap();
    let said = || String::from_utf8(support::read(&log)).unwrap();
    support::until("the replacement is logged", || {
        said().contains(&format!("{disk} was deleted, or replaced"))
    });
    server.stop();
}

#[test]
fn a_flood_of_protocol_errors_logs_a_few_lines_and_a_count() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB"]);
    for _ in 0..200 {
        let mut stranger = TcpStream::connect(&server.address).expect("the server listens");
        // The target may close the connection during the write.
        let _ = stranger.write_all(&[0xff; 128]);
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    let stderr = server.stop().stderr;
    assert!(stderr.lines().count() < 30, "{stderr}");
    assert!(stderr.contains("more protocol errors in"), "{stderr}");
}

/// Checks that a host that keeps reconnecting causes only a few lines and a count.
#[test]
fn a_host_that_keeps_reconnecting_logs_a_few_lines_and_a_count() {
    let scratch = Scratch::new();
    let server = scratch.serve(["-v", "mem:1MiB"]);
    let url: farblock_host::Url = server.url(1).parse().expect("the URL is valid");
    for _ in 0..40 {
        farblock_host::Controller::connect_url(&url, &Default::default())
            .expect("the controller admits the host");
    }
    let stderr = server.stop().stderr;
    assert!(stderr.lines().count() < 40 && stderr.contains(" connected to "), "{stderr}");
    assert!(stderr.contains("more connects and disconnects of hosts in"), "{stderr}");
}

/// Checks that one line describes a change and the user who made it.
#[cfg(unix)]
#[test]
fn a_change_logs_one_line() {
    let scratch = Scratch::new();
    let server = scratch.serve(["-v", "mem:1MiB"]);
    scratch.ctl(&["add-namespace", &server.nqn, "mem:2MiB"]).ok();
    scratch.ctl(&["remove-namespace", &server.nqn, "2"]).ok();
    server.signal("HUP");
    let stderr = server.stop().stderr;
    for (what, times) in [("namespace 2 added", 1), ("namespace 2 removed", 1), ("shared", 0)] {
        assert_eq!(stderr.matches(what).count(), times, "{what}: {stderr}");
    }
}

#[test]
fn rust_log_selects_the_log_level() {
    let scratch = Scratch::new();
    let serve = |level: &str| {
        let mut command = scratch.command(["serve", "--listen", "127.0.0.1:0", "mem:1MiB"]);
        command.env("RUST_LOG", level);
        let server = support::Server::start(command);
        let url = format!("{}&hostnqn={HOST}", server.url(1));
        scratch.run(["read", &url, "-o", "out.bin"]).ok();
        server.stop().stderr
    };
    let stderr = serve("farblock_target=info,error");
    assert!(stderr.contains("connected") && stderr.contains(HOST), "{stderr}");
    assert_eq!(serve("warn"), "stopped\n");
    assert!(serve("farblock_target=loud").contains("cannot parse $RUST_LOG"));
}

/// Checks that both ends log each command, so that a contributor can follow it.
#[test]
fn each_command_is_logged_at_both_ends() {
    let scratch = Scratch::new();
    let mut command = scratch.command(["serve", "--listen", "127.0.0.1:0", "mem:1MiB"]);
    command.env("RUST_LOG", "farblock_target::queue=trace");
    let server = support::Server::start(command);
    let mut command = scratch.command(["write", &server.url(1), "--offset", "128KiB"]);
    command.env("RUST_LOG", "farblock_host::queue=trace").stdin(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let mut host = command.spawn().unwrap();
    host.stdin.take().unwrap().write_all(&[1; 128 << 10]).unwrap();
    let host = host.wait_with_output().unwrap();
    let host = String::from_utf8(host.stderr).unwrap();
    let target = server.stop().stderr;
    for part in ["sends Write: 256 blocks at LBA 256", "answered: 0 bytes, Successful Completion"] {
        assert!(host.contains(part), "{part:?} is missing in {host}");
    }
    let parts = [
        "arrived: a write of 256 blocks at LBA 256",
        "waits for data: R2T for 131072 bytes",
        "passed gate Data",
        "submitted: 256 blocks at LBA 256",
        "answered: Successful Completion",
    ];
    let mut rest = target.as_str();
    for part in parts {
        let place = rest.find(part).unwrap_or_else(|| panic!("{part:?} is missing in {target}"));
        rest = &rest[place..];
    }
}

#[test]
fn a_host_suspects_another_protocol_if_the_server_closes_the_connection() {
    let scratch = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("the socket has an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client connects");
            // Close the connection without an answer, as to a malformed request.
            let _ = stream.read_exact(&mut [0; 16]);
        }
    });
    let url = format!("nvme+tcp://{address}/nqn.2026-11.org.farblock:disk?ns=1");
    let outcome = scratch.run(["read", &url]);
    outcome.fails_in_a_line(1, &["the server may use another protocol"]);
}

/// Returns the target's log of an admitted and a refused host, with these options.
fn logged(scratch: &Scratch, options: &[&str]) -> String {
    let serve = [&["mem:1MiB", "--allow-host", HOST, "-v"], options].concat();
    let server = scratch.serve(serve);
    let url = format!("{}&hostnqn={HOST}", server.url(1));
    scratch.run(["read", &url, "-o", "out.bin"]).ok();
    scratch.run(["id", &server.url(1)]).fails(1, &["does not allow this host"]);
    // Keep a connection open during the stop, so that the target logs the number of connections.
    let mut connected = TcpStream::connect(&server.address).expect("the server listens");
    let mut hello = [0; 128];
    (hello[2], hello[4]) = (128, 128);
    connected.write_all(&hello).expect("the server reads");
    connected.read_exact(&mut hello).expect("the server answers");
    let text = server.stop().stderr;
    // The number may include earlier connections.
    assert!(
        text.contains("stopping: finishing the accepted commands of ")
            && text.contains(" connection"),
        "{text}"
    );
    text
}

#[test]
fn log_format_json_writes_json_lines() {
    let scratch = Scratch::new();
    let text = logged(&scratch, &["--log-format", "json"]);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("the text is JSON")).collect();
    let said = |level: &str, part: &str| {
        lines.iter().any(|line| {
            line["level"] == level && line["message"].as_str().is_some_and(|it| it.contains(part))
        })
    };
    assert!(said("info", HOST) && said("warn", "refused host"), "{text}");
    // The log also contains the final error.
    let outcome = scratch.run(["serve", "missing.img", "--log-format", "json"]);
    let last: serde_json::Value = serde_json::from_str(&outcome.stderr).expect("the text is JSON");
    assert_eq!((outcome.code, &last["level"]), (Some(1), &"error".into()), "{last}");
}

#[test]
fn log_format_journald_writes_priorities() {
    let scratch = Scratch::new();
    let text = logged(&scratch, &["--log-format", "journald"]);
    assert!(text.lines().all(|line| line.starts_with("<4>") || line.starts_with("<6>")), "{text}");
    assert!(text.contains("<4>refused host"), "{text}");
}

/// Checks that the process recognizes the journal without an option.
#[cfg(target_os = "linux")]
#[test]
fn the_journal_format_is_chosen_if_stderr_is_the_journal() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let run = |journal: &std::fs::File| {
        let log = std::fs::File::create(scratch.path("log")).expect("the file is created");
        let found = journal.metadata().expect("the file exists");
        let mut command = scratch.command(["serve", "missing.img"]);
        command.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino())).stderr(log);
        assert_eq!(command.status().expect("the program runs").code(), Some(1));
        String::from_utf8(support::read(scratch.path("log"))).expect("the text is UTF-8")
    };
    let other = std::fs::File::create(scratch.path("other")).expect("the file is created");
    let log = std::fs::File::create(scratch.path("log")).expect("the file is created");
    let text = run(&log);
    assert!(text.starts_with("<3>") && text.lines().count() == 1, "{text}");
    // The process ignores a variable that names another journal.
    assert!(run(&other).starts_with("error: "));
}

/// Checks that on a full file system hosts get an error, and the log names the reason.
#[cfg(unix)]
#[test]
fn the_log_names_a_full_file_system() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 8 << 20);
    // The shell counts blocks of 512 or 1024 bytes.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -f 512 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_farblock")]);
    command.args(["serve", "--listen", "127.0.0.1:0", &disk]);
    scratch.prepare(&mut command);
    let server = support::Server::start(command);
    let outcome = scratch.run_with(["write", &server.url(1)], &[1; 4 << 20]);
    outcome.fails_in_a_line(1, &["writing to", "failed"]);
    let stderr = server.stop().stderr;
    assert!(stderr.contains("no space is left on the namespace's storage"), "{stderr}");
    assert!(!stderr.contains("0x"), "{stderr}");
}
