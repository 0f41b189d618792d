//! Tests of signals, full disks, and disks that vanish while a target uses them.
#![cfg(unix)]

mod support;

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::{Scratch, Server, cannot_check, has, noise, read};

const ENGINES: [&str; 2] = ["auto", "portable"];

#[test]
fn signals_stop_a_target_cleanly() {
    for engine in ENGINES {
        for signal in ["TERM", "INT"] {
            let scratch = Scratch::new();
            let server = scratch.serve(["--engine", engine, "mem:1MiB"]);
            server.signal(signal);
            let outcome = server.wait().ok();
            assert_eq!(outcome.stderr, "stopped\n", "{engine} {signal}");
        }
    }
}

#[test]
fn a_target_survives_sighup_and_sigusr() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB"]);
    for signal in ["USR1", "HUP", "USR2", "HUP"] {
        server.signal(signal);
        scratch.run(["read", &server.url(1), "-o", "out.bin"]).ok();
    }
    let outcome = server.stop();
    assert!(outcome.stderr.contains("no configuration file to read again"), "{}", outcome.stderr);
}

/// Checks that an acknowledged write is in the file, even if the target stops during the transfer.
#[test]
fn a_target_stopped_during_a_write_keeps_every_acknowledged_block() {
    for engine in ENGINES {
        let scratch = Scratch::new();
        let disk = scratch.disk("disk.img", 64 << 20);
        // Limit the rate, so that the target stops in the middle of the transfer.
        let slow = format!("limit:16MiB/s,{disk}");
        let server = scratch.serve(["--engine", engine, &slow]);
        let data = noise(1, 64 << 20);
        let input = scratch.file("in.bin", &data);
        let url = server.url(1);
        let args = ["write", &url, "--input", &input, "--ctrl-loss-timeout", "1"];
        let child = scratch.command(args).spawn().unwrap();
        support::until("the first block is written", || read(&disk)[..512] == data[..512]);
        server.signal("TERM");
        let stopped = server.wait().ok();
        assert!(stopped.stderr.contains("stopping"), "{}", stopped.stderr);
        let output = support::wait(child);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let error = stderr
            .lines()
            .find(|line| line.starts_with("error: "))
            .expect("the output has an error");
        assert!(error.contains("failed") || error.contains("lost"), "{error}");
        // Every block has either its old or its new content.
        let mut written = 0;
        for (now, sent) in read(&disk).chunks(512).zip(data.chunks(512)) {
            assert!(now == sent || now.iter().all(|&byte| byte == 0), "{engine}: a torn block");
            written += usize::from(now == sent);
        }
        assert!(written > 0, "{engine}: nothing was written before the stop");
    }
}

/// Starts a read from a slow target, and returns once the command has connected.
fn start_reading(scratch: &Scratch, server: &Server) -> Child {
    let url = server.url(1);
    let options = ["-o", "out.bin", "--verbose", "--ctrl-loss-timeout", "1"];
    let mut command = scratch.command(["read", &url].iter().chain(&options));
    let log = std::fs::File::create(scratch.path("reader.log")).unwrap();
    let child = command.stderr(log).spawn().unwrap();
    let logged = || String::from_utf8_lossy(&read(scratch.path("reader.log"))).into_owned();
    support::until("the reader is connected", || logged().contains("connected"));
    support::until("the host has a queue", || {
        let status = scratch.run(["status", "--json"]).ok().json();
        status["controllers"][0]["io_queues"].as_u64() > Some(0)
    });
    // The command sends its reads within milliseconds after it connects.
    std::thread::sleep(Duration::from_millis(500));
    child
}

#[test]
fn a_second_signal_ends_a_target_at_once() {
    let scratch = Scratch::new();
    // Make each read take longer than any timeout in this test.
    let mut server = scratch.serve(["delay:60s,mem:1MiB"]);
    let mut reader = start_reading(&scratch, &server);
    // Repeat the signal: a second signal merges with the first if the process has not handled it
    // yet.
    support::until("the target exits", || {
        server.signal("TERM");
        server.has_ended()
    });
    let outcome = server.wait();
    assert_eq!(outcome.code, Some(130), "{}", outcome.stderr);
    let _ = reader.kill();
    let _ = reader.wait();
}

#[test]
fn an_interrupted_write_reports_its_progress() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:1MiB"]);
    let mut command = scratch.command(["write", &server.url(1)]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&[7; 600 << 10]).unwrap();
    support::until("the first piece is written", || {
        scratch.run(["read", &server.url(1), "--length", "1"]).ok().stdout == [7]
    });
    support::signal(child.id(), "INT");
    let output = support::wait(child);
    drop(stdin);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted: the first 512 KiB are durable in"), "{stderr}");
    let there = scratch.run(["read", &server.url(1), "--length", "512KiB"]).ok();
    assert!(there.stdout == [7; 512 << 10], "data that was reported as written is missing");
    server.stop();
}

#[test]
fn a_read_fails_when_its_target_is_killed() {
    let scratch = Scratch::new();
    let server = scratch.serve(["delay:60s,mem:1MiB"]);
    let reader = start_reading(&scratch, &server);
    server.signal("KILL");
    let output = support::wait(reader);
    let stderr = String::from_utf8_lossy(&read(scratch.path("reader.log"))).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the namespace is unreachable"), "{stderr}");
    server.wait();
}

#[test]
fn a_read_fails_beyond_the_end_of_a_truncated_file() {
    for engine in ENGINES {
        let scratch = Scratch::new();
        let disk = scratch.disk("disk.img", 4 << 20);
        let server = scratch.serve(["--engine", engine, &disk]);
        let file = std::fs::OpenOptions::new().write(true).open(&disk).unwrap();
        file.set_len(1 << 20).unwrap();
        let url = server.url(1);
        scratch
            .run(["read", &url, "-o", "out.bin"])
            .fails(1, &["reading nvme+tcp://", "at byte 1048576 failed: "]);
        // The other blocks can still be read.
        let start = scratch.run(["read", &url, "--length", "1MiB"]).ok();
        assert!(start.stdout == vec![0; 1 << 20]);
        server.stop();
    }
}

fn with_full_disk(scratch: &Scratch, kib: u32) -> Command {
    if !has("unshare") || !has("mount") {
        cannot_check("there is no unshare to mount a small disk with");
    }
    std::fs::create_dir(scratch.path("full")).unwrap();
    let mut command = Command::new("unshare");
    if !support::is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let script = format!("mount -t tmpfs -o size={kib}k tmpfs full && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_farblock")]);
    scratch.prepare(&mut command);
    let mut probe = Command::new("unshare");
    if !support::is_root() {
        probe.args(["--user", "--map-root-user"]);
    }
    probe.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs full"]);
    scratch.prepare(&mut probe);
    if !probe.status().is_ok_and(|status| status.success()) {
        cannot_check("this user may not mount a small disk");
    }
    command
}

#[test]
fn read_reports_a_full_local_file_system() {
    let scratch = Scratch::new();
    let mut command = with_full_disk(&scratch, 1024);
    let server = scratch.serve(["mem:4MiB"]);
    scratch.run_with(["write", &server.url(1)], &noise(2, 4 << 20)).ok();
    command.args(["read", &server.url(1), "-o", "full/out.bin"]);
    support::finish(command, b"")
        .fails_in_a_line(1, &["full/out.bin", "No space left", "make room"]);
    server.stop();
}

#[test]
fn write_reports_a_full_file_system_of_the_target() {
    for engine in ENGINES {
        let scratch = Scratch::new();
        let command = with_full_disk(&scratch, 1024);
        // Make a sparse file that is larger than its file system.
        let mut inner = Command::new("unshare");
        inner.args(command.get_args().map(|arg| {
            let text = arg.to_str().unwrap();
            text.replace("&& exec", "&& truncate -s 4M full/disk.img && exec")
        }));
        scratch.prepare(&mut inner);
        inner.args(["serve", "--engine", engine, "--listen", "127.0.0.1:0", "full/disk.img"]);
        let server = Server::start(inner);
        let url = server.url(1);
        scratch
            .run_with(["write", &url], &noise(3, 4 << 20))
            .fails(1, &["writing to nvme+tcp://", "no space is left"]);
        // The target still reads existing data, and writes blocks that fit.
        scratch.run(["read", &url, "--length", "64KiB"]).ok();
        server.stop();
    }
}

#[test]
fn read_reports_a_limit_on_file_sizes() {
    let scratch = Scratch::new();
    let server = scratch.serve(["mem:4MiB"]);
    scratch.run_with(["write", &server.url(1)], &noise(4, 4 << 20)).ok();
    let mut command = Command::new("sh");
    // The shell counts blocks of 512 bytes or of 1 KiB. In both cases the limit is below 4 MiB.
    command.args(["-c", "ulimit -f 2000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_farblock")]);
    command.args(["read", &server.url(1), "-o", "out.bin"]);
    scratch.prepare(&mut command);
    support::finish(command, b"").fails_in_a_line(1, &["out.bin", "limits the size of files"]);
    server.stop();
}
