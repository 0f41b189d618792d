//! Tests of inputs that stay silent, and of disks that do not answer. Commands must report what
//! they wait for, and signals must stop them.
#![cfg(unix)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use support::{Scratch, Server, signal, until};

const HOST: &str = "nqn.2026-11.org.example:host";
const CONFIG: &str = r#"listeners = ["127.0.0.1:0"]

[[subsystems]]
nqn = "nqn.2026-11.org.example:disks"
allow_any_host = true

[[subsystems.namespaces]]
path = "mem:1MiB"
"#;

fn pipe(scratch: &Scratch) -> String {
    let path = scratch.text("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
    path
}

#[test]
fn a_pipe_without_a_writer_is_refused() {
    let scratch = Scratch::new();
    let pipe = pipe(&scratch);
    let keyed = CONFIG.replace("allow_any_host = true", "[[subsystems.hosts]]\nnqn = \"HOST\"");
    let keyed = keyed.replace("\"HOST\"", &format!("\"{HOST}\"\ndhchap_key = \"pipe\""));
    let keyed = scratch.file("keyed.toml", keyed.as_bytes());
    let key = format!("{HOST}={pipe}");
    let listen = ["--listen", "127.0.0.1:0"];
    let serve = |args: &[&str]| scratch.run([&["serve"], args].concat());
    std::thread::scope(|all| {
        for args in [
            &["--config", &pipe][..],
            &["--check", &pipe],
            &["--check", &keyed],
            &["--config", &keyed],
            &[&listen[..], &["mem:1MiB", "--host-key", &key]].concat(),
            &[&listen[..], &["mem:1MiB", "--tls-key", &key]].concat(),
        ] {
            let args = args.to_vec();
            all.spawn(move || serve(&args).fails(code(&args), &["pipe", "without a writer"]));
        }
        for args in [["config", "import", &pipe], ["keys", "check", &pipe]] {
            let scratch = &scratch;
            all.spawn(move || scratch.run(args).fails(1, &["pipe", "without a writer"]));
        }
    });
    let persist = [&listen[..], &["mem:1MiB", "--persist", &pipe]].concat();
    serve(&persist).fails(1, &["not a regular file"]);
}

/// Returns the expected exit code: a bad key makes a configuration invalid.
fn code(args: &[&str]) -> i32 {
    if args[1].ends_with("keyed.toml") { 2 } else { 1 }
}

/// Checks that a configuration can be a pipe, which delivers its data only once, for all readers.
#[test]
fn a_configuration_can_be_a_pipe() {
    let scratch = Scratch::new();
    let pipe = pipe(&scratch);
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || {
            let mut pipe = File::options().write(true).open(pipe).expect("the file opens");
            pipe.write_all(CONFIG.as_bytes()).expect("the reader has the pipe open");
        }
    });
    let server = Server::start(scratch.command(["serve", "--config", &pipe]));
    writer.join().expect("the pipe is read");
    scratch.run(["id", &server.subsystem_url()]).ok();
    scratch.run(["reload"]).fails(1, &["is not a regular file"]);
    server.stop();
}

#[test]
fn an_endless_configuration_is_refused() {
    let scratch = Scratch::new();
    scratch.run(["serve", "--config", "/dev/zero"]).fails(1, &["name another file"]);
}

/// A leg of a mirror does not answer. The target must report this, and name the leg.
#[test]
fn serve_names_the_leg_that_it_waits_for() {
    let scratch = Scratch::new();
    let disk = scratch.disk("disk.img", 1 << 20);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let leg = format!(
        "{}/nqn.2026-11.org.example:leg",
        silent.local_addr().expect("the socket has an address")
    );
    let mirror = format!("mirror:{disk},nvme+tcp://{leg}?create");
    let args = ["serve", "--listen", "127.0.0.1:0", &mirror];
    let mut child = scratch.command(args).spawn().expect("the process starts");
    let mut log = BufReader::new(child.stderr.take().expect("the stream is a pipe"));
    let mut line = String::new();
    while !(line.contains(&leg) && line.contains("has not answered for")) {
        line.clear();
        assert!(
            log.read_line(&mut line).expect("the output is UTF-8") > 0,
            "the output ended too early"
        );
    }
    child.kill().expect("the process can be killed");
    child.wait().expect("the process can be waited for");
}

/// Checks that the second signal stops a target that waits for a leg of a mirror at its start.
#[test]
fn a_second_signal_ends_a_target_that_still_opens_disks() {
    for second in ["TERM", "INT"] {
        let scratch = Scratch::new();
        let disk = scratch.disk("disk.img", 1 << 20);
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let at = silent.local_addr().expect("the socket has an address");
        let mirror = format!("mirror:{disk},nvme+tcp://{at}/nqn.2026-11.org.example:leg?create");
        let args = ["serve", "--listen", "127.0.0.1:0", &mirror];
        let mut child = scratch.command(args).spawn().expect("the process starts");
        let _opening = silent.accept().expect("the target opens the leg");
        signal(child.id(), "TERM");
        // Repeat the signal: a second signal merges with the first if the process has not handled
        // it yet.
        let mut ended = None;
        until("the target exits", || {
            signal(child.id(), second);
            ended = child.try_wait().expect("the process can be waited for");
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.code()), Some(130), "{second}");
    }
}

/// Checks that the first signal stops a command whose reads get no answer.
#[test]
fn a_signal_ends_a_read_that_waits_for_an_answer() {
    let scratch = Scratch::new();
    let server = scratch.serve(["delay:3600s,mem:1MiB"]);
    let (url, out) = (server.url(1), scratch.text("out.img"));
    let here = || scratch.path("").read_dir().expect("the folder is readable").count();
    let before = here();
    let mut child =
        scratch.command(["read", &url, "-o", &out]).spawn().expect("the process starts");
    // The command installs its signal handlers before it creates the file.
    until("the new file exists", || here() > before);
    signal(child.id(), "TERM");
    until("the command exits", || {
        child.try_wait().expect("the process can be waited for").is_some()
    });
    assert_eq!(child.wait().expect("the process can be waited for").code(), Some(130));
}
